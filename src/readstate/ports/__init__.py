"""The ports: what the services need of the world, and what every adapter promises. All methods take lists.

Hot state is two ports, because in a cluster a user's keys and a channel's keys live on different servers:
no step spans both, and nothing here asks for it.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from readstate.domain.events import AnyChannelEvent, ReadEvent
from readstate.domain.facts import Effect
from readstate.domain.model import Clock
from readstate.domain.rooms import partition_of

from .channels import AppliedOffsets, Count, CountQuery, HotChannels, TimelineLoad
from .durable import (
    Activity,
    Breakdown,
    Durable,
    DurableLoads,
    DurableQueries,
    DurableReceipts,
    DurableTransfer,
    DurableUsers,
    DurableWrites,
    Online,
    TapCursor,
    Tapped,
    UndoItem,
    UnreadSource,
)
from .people import MAX_UNPROVEN, Bus, Deliveries, Departure, Devices, HotBadges, Presence, Present
from .upkeep import DurableDeadLetters, DurableUpkeep, ListedDeadLetter
from .users import (
    Absent,
    CountDelta,
    HotUsers,
    LedgerLoad,
    LedgerView,
    LoadedUserRoom,
    Move,
    Moved,
    Read,
    Restore,
    Rewind,
    Seen,
    UnreadSummary,
    UserRoom,
    UserView,
    Which,
)


class HotPresence(Presence, Devices, Deliveries, Protocol):
    """Who is connected, with what, and what has got through."""


class Hot(Protocol):
    """All hot state, wherever it is."""

    @property
    def users(self) -> HotUsers:
        """Of users."""

    @property
    def channels(self) -> HotChannels:
        """Of channels."""

    @property
    def badges(self) -> HotBadges:
        """Of badges."""

    @property
    def presence(self) -> HotPresence:
        """Of devices."""

    async def loaded(self, items: int) -> None:
        """So many seats, channels or messages were loaded."""

    async def bound(self) -> None:
        """Drop what is over the bound."""

    async def clear(self) -> None:
        """Drop everything; it is loaded again on use."""


class Stale(NamedTuple):
    """Which counts are the last known ones, at one moment."""

    everything: bool
    """Read states may be missing."""
    partitions: frozenset[int]
    """Parts of the log where accepted messages have waited for too long."""
    of: int
    """How many parts the log has."""

    def has(self, room: str) -> bool:
        """Whether the counts of a channel or thread are."""
        return self.everything or (bool(self.partitions) and partition_of(room, self.of) in self.partitions)

    def or_by(self, later: "Stale") -> "Stale":
        """Those that are at one of two moments."""
        return Stale(self.everything or later.everything, self.partitions | later.partitions, max(self.of, later.of))

    def any_of(self, rooms: Iterable[str]) -> bool:
        """Whether the counts of one of these are."""
        return self.everything or (bool(self.partitions) and any(map(self.has, rooms)))


FRESH = Stale(False, frozenset(), 1)


class Freshness(Protocol):
    """Whether what is answered can lack what the log has: reads, after the hot store was lost, or messages."""

    @property
    def behind(self) -> bool:
        """Whether reads that only the log has yet may be missing: then all counts are the last known ones."""

    def stale(self) -> Stale:
        """Which counts are the last known ones now. Costs no call to a server."""

    async def caught_up(self) -> None:
        """Return when no reads are missing. Raises Unavailable if that takes too long."""

    async def passed(self) -> bool:
        """Return when every read that is acknowledged now is in the durable store; False if that takes too long."""

    async def stored_soon(self) -> bool:
        """The same for a caller who waits for the answer: False after 2 s."""


class Log(Protocol):
    """Acknowledged is durable; ordered per channel; at least once."""

    async def channel_events(self, events: Sequence[AnyChannelEvent], wait: bool = True) -> Sequence[Effect | None]:
        """Append, in order. With `wait`, the effects are waited for as long as settings say; None: not known yet.

        A log that consumes at once always answers with the effects.
        """

    async def reads(self, events: Sequence[ReadEvent]) -> None:
        """Append read states."""

    async def settled(self, channels: Collection[str]) -> bool:
        """Return when what these channels had in the log at the call is applied, or settings say to wait no longer.

        False: nothing was under way, so there is no reason to look again.
        """


__all__ = [
    "FRESH",
    "MAX_UNPROVEN",
    "Absent",
    "Activity",
    "AppliedOffsets",
    "Breakdown",
    "Bus",
    "Clock",
    "Count",
    "CountDelta",
    "CountQuery",
    "Deliveries",
    "Departure",
    "Devices",
    "Durable",
    "DurableDeadLetters",
    "DurableLoads",
    "DurableQueries",
    "DurableReceipts",
    "DurableTransfer",
    "DurableUpkeep",
    "DurableUsers",
    "DurableWrites",
    "Freshness",
    "Hot",
    "HotBadges",
    "HotChannels",
    "HotPresence",
    "HotUsers",
    "LedgerLoad",
    "LedgerView",
    "ListedDeadLetter",
    "LoadedUserRoom",
    "Log",
    "Move",
    "Moved",
    "Online",
    "Presence",
    "Present",
    "Read",
    "Restore",
    "Rewind",
    "Seen",
    "Stale",
    "TapCursor",
    "Tapped",
    "TimelineLoad",
    "UndoItem",
    "UnreadSource",
    "UnreadSummary",
    "UserRoom",
    "UserView",
    "Which",
]
