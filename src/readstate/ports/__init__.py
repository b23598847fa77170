"""The ports: what services need from the stores, the log and the bus, and what every adapter guarantees.

Methods take lists, so that one call serves a batch. Users and channels are separate ports of the hot store: in a
cluster their keys live on different servers, so no operation is atomic over both.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from readstate.domain.events import AnyChannelEvent, ReadEvent
from readstate.domain.facts import Effect
from readstate.domain.model import Clock
from readstate.domain.rooms import partition_of

from .channels import AppliedOffsets, HotChannels, TimelineLoad
from .durable import (
    NOTHING_COMPLETE,
    Activity,
    Breakdown,
    Durable,
    DurableDeadLetters,
    DurableLoads,
    DurableLog,
    DurableQueries,
    DurableReads,
    DurableTransfer,
    DurableUsers,
    ListedDeadLetter,
    Online,
    TapCursor,
    Tapped,
    UndoItem,
)
from .people import MAX_UNPROVEN, Bus, Deliveries, Departure, Devices, HotBadges, Presence, Present
from .users import (
    Absent,
    Count,
    CountDelta,
    CountQuery,
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
    StoredKey,
    UnreadOverview,
    UnreadPage,
    UnreadSummary,
    UserRoom,
    UserView,
    Which,
)


class HotPresence(Presence, Devices, Deliveries, Protocol):
    """Presence, devices and unproven deliveries in one adapter."""


class Hot(Protocol):
    """The hot store: users, channels, badges and presence."""

    @property
    def users(self) -> HotUsers:
        """Read states, ledgers and memberships."""

    @property
    def channels(self) -> HotChannels:
        """Latest messages and timelines."""

    @property
    def badges(self) -> HotBadges:
        """Offline badges."""

    @property
    def presence(self) -> HotPresence:
        """Connected devices."""

    async def loaded(self, items: int) -> None:
        """Account for `items` loaded user rooms, channels or messages, and evict if memory is over its limit."""

    async def bound(self) -> None:
        """Evict until memory is below its limit."""

    async def clear(self) -> None:
        """Drop everything. State is reloaded on use."""


class Stale(NamedTuple):
    """Which counts may be stale, as of one call."""

    everything: bool
    """Reads may be missing, so every count may be stale."""
    partitions: frozenset[int]
    """Partitions of the log whose accepted messages have waited too long."""
    of: int
    """The number of partitions."""

    def has(self, room: str) -> bool:
        """Whether the counts of a room may be stale."""
        return self.everything or (bool(self.partitions) and partition_of(room, self.of) in self.partitions)

    def or_by(self, later: "Stale") -> "Stale":
        """What is stale in either of the two."""
        if later == self:
            return self
        return Stale(self.everything or later.everything, self.partitions | later.partitions, max(self.of, later.of))

    def any_of(self, rooms: Iterable[str]) -> bool:
        """Whether the counts of any of these rooms may be stale."""
        return self.everything or (bool(self.partitions) and any(map(self.has, rooms)))


class Freshness(Protocol):
    """Whether an answer may lack what only the log has: reads, after a loss of the hot store, or messages."""

    def behind(self, users: Iterable[str]) -> bool:
        """Whether any of these users may lack reads that only the log has: then all counts of that user are stale.

        Makes no call to a server, as `stale`.
        """

    def stale(self, user: str) -> Stale:
        """Which counts of the user may be stale now."""

    async def caught_up(self, users: Collection[str]) -> None:
        """Return when none of these users lacks reads. Raises Unavailable if that takes too long."""

    async def passed(self) -> bool:
        """Return when every read acknowledged so far is in the durable store. False: that takes too long."""

    async def stored_soon(self) -> bool:
        """`passed` for a caller who waits for the answer: False after 2 s."""


class Log(Protocol):
    """Acknowledged means durable. Ordered per channel. Delivers at least once."""

    async def channel_events(self, events: Sequence[AnyChannelEvent], wait: bool = True) -> Sequence[Effect | None]:
        """Append in order. With `wait`, wait for the effects up to the configured timeout; None: not applied yet.

        A log that calls its consumer directly always returns the effects.
        """

    async def reads(self, events: Sequence[ReadEvent]) -> None:
        """Append read states. Returns when they are durable."""

    async def settled(self, channels: Collection[str]) -> bool:
        """Return when all events that these channels have in the log now are applied, or at the configured timeout.

        False: nothing was in flight, so a caller need not look again.
        """
