"""The durable store."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from math import inf
from typing import Protocol

from msgspec import Struct

from readstate.api import Minus
from readstate.domain.events import Delivery, ReadEvent
from readstate.domain.facts import Effect
from readstate.domain.model import (
    Channel,
    Member,
    Message,
    Mode,
    Position,
    Preferences,
    Reading,
    ReadState,
    ReceiptsPreference,
    SeenPlace,
    Undelivered,
)
from readstate.transfer.records import ErasedRows, Numbered, Record, Taken

from .channels import TimelineLoad
from .people import Present
from .upkeep import DurableDeadLetters, DurableUpkeep
from .users import LedgerLoad, LoadedUserRoom

Online = Callable[[Collection[str]], Awaitable[Present]]
"""Which of these users are online."""


class Activity(Struct, frozen=True, gc=False):
    """What is kept of a user."""

    last_tap: int = 0
    last_seen: int = 0
    receipts: ReceiptsPreference = "public"


class Breakdown(Struct, frozen=True, gc=False):
    """A count from the durable store, and why it is what it is."""

    unread: int
    mentions: int
    after_pointer: int
    minus: Minus
    latest_seq: int
    joined_seq: int
    change: int
    """The channel's change number when it was counted."""


class TapCursor(Struct, frozen=True, gc=False):
    """Where a message stands in what a tap shows."""

    accepted_at: int
    at: int
    channel_id: str
    message_id: str


class Tapped(Struct, frozen=True, gc=False):
    """What a tap did."""

    since: int
    """The tap before it."""
    at: int
    """The tap that stands now: this one, or a later one that was there already."""
    senders: int
    """How many different people wrote in between."""
    messages: list[tuple[int, Message]]
    """(accepted at, message), newest first."""


class UndoItem(Struct, frozen=True, gc=False, array_like=True):
    """What a mark-all-read did to one channel."""

    channel_id: str
    before: ReadState
    to: Position
    after: ReadState


class DurableWrites(Protocol):
    """What it acknowledged survives. Everything that is asked together shares one commit."""

    async def apply(self, deliveries: Sequence[Delivery], online: Online, source: str = "") -> list[Effect]:
        """Fold events of channels, in order, in one transaction; who is not `online` then is away.

        `source` names a log that others read too: places are offsets there. What comes again changes nothing, and is
        answered with what the hot store must be told again.
        """

    async def cut(self, source: str, part: int, end: int, known: tuple[int, int]) -> bool:
        """A part of a log ends before what is applied: its offsets from there on are used again, for new events.

        `known`: its place, read before its end was. False if another process has noticed it since.
        """

    async def places(self, source: str) -> dict[int, tuple[int, int]]:
        """(position, next offset) of the parts of a log that anything was applied of."""

    async def merge(self, events: Sequence[ReadEvent], shared: bool = False) -> Sequence[ReadEvent]:
        """Merge read states; each (user, channel) at most once. Returns those that it took.

        `shared`: others have made them, and may not know yet that a user was erased.
        """

    async def save_preferences(self, user: str, channel: str, preferences: Preferences, change: int) -> None:
        """Keep a member's preferences; `change` is the user's change number. Does nothing if newer ones are kept."""

    async def save_undo(self, token: str, user: str, expires_at: int, now: int, items: Sequence[UndoItem]) -> None:
        """Keep what an undo needs; drops what is over."""

    async def drop_undo(self, token: str) -> None:
        """The token is used."""


class DurableLoads(Protocol):
    """What the hot state is made of. Sees every write that was acknowledged or asked for before."""

    async def load_user(self, user: str) -> list[LoadedUserRoom]:
        """Every channel that the user is in, has left, or has a pointer in."""

    async def load_ledgers(self, wanted: Sequence[tuple[str, str, Mode, ReadState]], cap: int) -> list[LedgerLoad]:
        """The newest `cap` unread messages of each (user, channel)."""

    async def load_channels(self, ids: Sequence[str]) -> Mapping[str, Channel]:
        """Channels, also deleted ones; unknown ones are left out."""

    async def load_timeline(self, channel: str, cap: int) -> TimelineLoad:
        """The newest `cap` countable messages."""

    async def load_undo(self, token: str, user: str, now: int) -> list[UndoItem] | None:
        """None: unknown, or over."""


class UnreadSource(Struct, frozen=True, gc=False):
    """Where to look for a user's unread messages."""

    channel_id: str
    state: ReadState


class DurableQueries(Protocol):
    """Questions that only the durable store can answer."""

    async def by_id(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Message]:
        """Messages by (channel, id)."""

    async def by_seq(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Position]:
        """Places by (channel, seq)."""

    async def by_time(self, channel: str, time: int) -> Position:
        """The newest place at or before a time."""

    async def own_seqs(self, user: str, channel: str, since: int, cap: int) -> tuple[int, ...]:
        """The newest of the user's own messages from `since` on."""

    async def unread_messages(
        self, user: str, source: UnreadSource, after: int, before: int, newest_first: bool, limit: int
    ) -> list[Message]:
        """Unread messages with a time strictly between `after` and `before`."""

    async def messages_since(self, channel: str, position: int, limit: int) -> list[Message]:
        """Messages that came after a place in the log, in order; one more than `limit` says that there are more."""

    async def joins(self, user: str, channels: Sequence[str]) -> dict[str, tuple[int, int]]:
        """(seq, place in the log) at which the user joined, for those of these channels that the user is in."""

    async def once_members(self, channel: str, users: Sequence[str]) -> list[str]:
        """Those of these users who were in a channel and have left it."""

    async def members(self, channel: str, after: str, limit: int) -> list[Member]:
        """Members by id."""

    async def breakdown(self, user: str, channel: str, state: ReadState) -> Breakdown:
        """Count from scratch."""


class DurableUsers(Protocol):
    """What is kept of users besides their read states."""

    async def activity(self, user: str) -> Activity:
        """What is kept of a user."""

    async def erased_until(self, user: str) -> int:
        """When the user was erased, in ms; 0: never. An old note is dropped: then the answer is that for all users."""

    async def save_seen(self, user: str, at: int) -> None:
        """When a user was last online."""

    async def save_receipts(self, user: str, receipts: ReceiptsPreference, change: int) -> None:
        """Whether a user's receipts are public; `change` as in `save_preferences`."""

    async def badge_count(self, user: str) -> int:
        """How many different people wrote to a user while away, since the last tap."""

    async def badge_senders(self, user: str) -> tuple[int, frozenset[str]]:
        """(last tap, who wrote since)."""

    async def save_undelivered(self, undelivered: Sequence[Undelivered]) -> list[Undelivered]:
        """Note messages that did not reach their receivers after all. Returns those that it has now.

        Left out is what is deleted, and what was accepted before its sender or receiver was erased.
        """

    async def receivers_of_gone(self, undelivered: Sequence[Undelivered]) -> set[str]:
        """The receivers of those of these that are there no more: their channel is deleted, or their sender erased."""

    async def tap(self, user: str, at: int, limit: int, until: float = inf) -> Tapped:
        """Set the badge to 0: the last tap is this one, unless a later one stands. One after another for each user.

        Raises StorageUnavailable rather than commit after `until` on the monotonic clock.
        """

    async def bound_tap(self, user: str, now: int) -> None:
        """Let a stored tap that is further ahead than clocks differ count as one of now."""

    async def tapped(
        self, user: str, since: int, until: int, before: TapCursor, limit: int
    ) -> list[tuple[int, Message]]:
        """(accepted at, message) of what was shown by the tap of `until`, newest first, from a place on."""

    async def expire_undelivered(self, after: str, before: int, tapped: int, limit: int) -> tuple[str | None, int]:
        """Remove some of what was accepted up to `before` and shown by a tap, if that was not after `tapped`.

        Goes through the receivers after this one by id; (where to go on, None at the end; how many were removed).
        """


class DurableReceipts(Protocol):
    """Who has read what. Leaves out what joins alone marked as read, and who keeps receipts private."""

    async def readers(self, channel: str) -> list[Reading]:
        """The members whose receipts others may see, also those who have read nothing."""

    async def seen_count(self, channel: str, sender: str, seq: int) -> int:
        """How many members other than the sender have read a place."""

    async def public_readers(
        self, keys: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], tuple[tuple[int, int], ...]]:
        """Of these (user, channel), the members whose receipts others may see, and what joins alone marked."""

    async def receipts_since(self, user: str, since: int, most_members: int, limit: int) -> list[SeenPlace]:
        """Receipts of others since a time, in the user's channels of up to so many members, in order."""

    async def cut_skipped(self, user: str, channel: str, seq: int) -> None:
        """The user marks unread from a seq on: what comes after it is no longer marked by a join."""

    async def wrote_since(self, user: str, places: Sequence[tuple[str, int]]) -> list[str]:
        """Of these (channel, seq), those in which somebody else has written since."""


class Durable(
    DurableWrites,
    DurableLoads,
    DurableQueries,
    DurableUsers,
    DurableReceipts,
    DurableDeadLetters,
    DurableUpkeep,
    Protocol,
):
    """The durable store."""

    async def store_id(self) -> int:
        """A number that no other store has: cursors of another one are told apart."""

    async def cursor_key(self) -> bytes:
        """The key that cursors are signed with. Random, made once, the same for every process; never exported."""

    async def next_generation(self, above: int = 0) -> int:
        """A number that was never given before, and is larger than `above`: the hot state begins empty."""

    async def last_position(self) -> int:
        """Where in the log the last change stands."""

    async def ping(self) -> None:
        """Raise StorageUnavailable if it can't be written."""

    async def close(self) -> None:
        """Finish what was asked for, then stop."""


# ---------------------------------------------------------------- moving in and out


class DurableTransfer(Protocol):
    """Everything that is kept, out and in again; and one user's traces, gone."""

    def export(self) -> AsyncGenerator[Sequence[Record], None]:
        """All records, a page at a time, as of one moment, in an order in which they can be taken in."""

    async def take(self, records: Sequence[Numbered], stop: bool) -> Taken:
        """Merge records in, in order, in one transaction; one that does not fit is refused and leaves nothing.

        `stop`: none after the first refused one is taken.
        """

    async def erase(self, user: str, on_the_way: int | None = None) -> ErasedRows:
        """Remove whatever is kept of a user, but for the messages, in one transaction.

        `on_the_way`: what was made up to then and is still in a log brings nothing of the user back.
        """
