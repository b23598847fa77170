"""The ports of the durable store, by topic."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Protocol

from msgspec import Struct

from readstate.api import Minus
from readstate.domain.events import DeadLetter, Delivery, ReadEvent
from readstate.domain.facts import Effect, Key
from readstate.domain.model import (
    ChangeNumber,
    Channel,
    Generation,
    LogPosition,
    Member,
    Message,
    Mode,
    Pointer,
    Position,
    Preferences,
    Reading,
    ReadState,
    ReceiptsPreference,
    SeenPosition,
    Seq,
    Undelivered,
)
from readstate.domain.slots import LostRange, SlotRange
from readstate.transfer.records import ErasedRows, Numbered, Record, Taken

from .channels import TimelineLoad
from .people import Present
from .users import LedgerLoad, LoadedUserRoom, UnreadPage

Online = Callable[[Collection[str]], Awaitable[Present]]
"""Tells which of these users are online."""

NOTHING_COMPLETE: Mapping[int, LogPosition] = MappingProxyType({})


class Activity(Struct, frozen=True, gc=False):
    """What the store keeps of a user besides read states."""

    last_tap: int = 0
    last_seen: int = 0
    receipts: ReceiptsPreference = "public"


class Breakdown(Struct, frozen=True, gc=False):
    """A count from the durable store, with the reasons for it."""

    unread: int
    mentions: int
    after_pointer: int
    minus: Minus
    latest_seq: Seq
    joined_seq: Seq
    change: ChangeNumber
    """The channel's change number as of the count."""


class TapCursor(Struct, frozen=True, gc=False):
    """The position of a message in the list that a tap shows."""

    accepted_at: int
    at: int
    channel_id: str
    message_id: str


class Tapped(Struct, frozen=True, gc=False):
    """The result of a tap."""

    since: int
    """The time of the previous tap."""
    at: int
    """The time of the last tap: this one, or a later one that was stored before."""
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


class ListedDeadLetter(Struct, frozen=True, gc=False, array_like=True):
    """A dead letter that could not be repaired."""

    id: int
    topic: str
    """The topic on which the event failed, with the prefix."""
    event: str
    error: str
    tries: int
    place: str
    """The partition, the offset, and a checksum of the event."""
    failed_at: int


# ---------------------------------------------------------------- topics


class DurableLog(Protocol):
    """Applies channel events. Atomic per call; events of one channel are applied in order, each once."""

    async def apply(
        self,
        deliveries: Sequence[Delivery],
        online: Online,
        source: str = "",
        complete: Mapping[int, LogPosition] = NOTHING_COMPLETE,
    ) -> list[Effect]:
        """Fold channel events in order, in one transaction. Receivers that are not `online` then are away.

        `source` names a log that other processes read too; the positions of `deliveries` are then its offsets. A replay
        changes nothing and returns the effects that the hot store has to take again.
        `complete` tells, by partition, the log position up to which every event is also in the hot store and its
        deliveries are tracked. A replay of a later event names the receivers (`reached`) who had a connection when it
        was first stored.
        """

    async def cut(self, source: str, part: int, end: int, known: tuple[LogPosition, int]) -> bool:
        """Record that a partition ends before its applied offset: its offsets from `end` on are reused for new events.

        So is an earlier offset if its event has a later leader epoch than the last applied one.
        `known`: (log position, next offset), read before the end was. False: another process has recorded it since.
        """

    async def positions(self, source: str) -> dict[int, tuple[LogPosition, int]]:
        """(log position, next offset) of each partition of which anything was applied."""

    async def last_position(self) -> LogPosition:
        """The log position of the last change."""


class DurableQueries(Protocol):
    """Channels, members and messages. Sees every write that was acknowledged or requested before.

    Messages include deleted ones unless a method says otherwise.
    """

    async def load_channels(self, ids: Sequence[str]) -> Mapping[str, Channel]:
        """Channels by id, including deleted ones. Unknown ids are left out."""

    async def members(self, channel: str, after: str, limit: int) -> list[Member]:
        """A page of members, by id."""

    async def once_members(self, channel: str, users: Sequence[str]) -> list[str]:
        """Those of these users who were in the channel and have left it."""

    async def joins(self, user: str, channels: Sequence[str]) -> dict[str, tuple[Seq, LogPosition]]:
        """(seq, log position) of the user's join, for those of these channels that the user is in."""

    async def by_id(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Message]:
        """Messages by (channel, id)."""

    async def by_seq(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Position]:
        """Positions by (channel, seq)."""

    async def by_time(self, channel: str, time: int) -> Position:
        """The newest position at or before a time."""

    async def own_seqs(self, user: str, channel: str, since: int, cap: int) -> tuple[int, ...]:
        """The seqs of the user's own messages from `since` on: the newest `cap` of them."""

    async def unread_messages(
        self, user: str, channel: str, state: ReadState, after: int, before: int, newest_first: bool, limit: int
    ) -> list[Message]:
        """Unread messages with a time strictly between `after` and `before`."""

    async def messages_since(self, channel: str, position: LogPosition, limit: int) -> list[Message]:
        """Messages after a log position, in order: up to `limit` + 1, where the extra one means that there are more."""

    async def wrote_since(self, user: str, positions: Sequence[tuple[str, int]]) -> list[str]:
        """Of these (channel, seq), the channels in which another user has written since."""

    async def breakdown(self, user: str, channel: str, state: ReadState) -> Breakdown:
        """Count unread messages from scratch."""

    async def load_timeline(self, channel: str, cap: int) -> TimelineLoad:
        """The newest `cap` countable messages."""


class DurableReads(Protocol):
    """Read states and receipts. Merges are idempotent and commute; those that arrive together share one commit.

    Receipts leave out private ones, and positions that only a join marked as read.
    """

    async def merge(self, events: Sequence[ReadEvent]) -> Sequence[ReadEvent]:
        """Merge read states. Returns what was stored, one state per (user, channel)."""

    async def merge_unless_erased(self, events: Sequence[ReadEvent]) -> Sequence[ReadEvent]:
        """Like `merge`, but leaves out states from before their user was erased.

        For states of other processes, which may not know of the erasure yet.
        """

    async def load_user(self, user: str) -> list[LoadedUserRoom]:
        """Every room that the user is in, has left, or has a pointer in."""

    async def unread_page(self, user: str, limit: int, cap: int) -> UnreadPage:
        """What is unread for a user, as of one time: the sums, and the rooms with the latest activity."""

    async def load_ledgers(self, wanted: Sequence[tuple[str, str, Mode, ReadState]], cap: int) -> list[LedgerLoad]:
        """The newest `cap` unread messages of each (user, channel)."""

    async def save_undo(self, token: str, user: str, expires_at: int, now: int, items: Sequence[UndoItem]) -> None:
        """Save what an undo needs, and remove expired undos."""

    async def load_undo(self, token: str, user: str, now: int) -> list[UndoItem] | None:
        """What an undo needs; None: unknown token, or expired."""

    async def drop_undo(self, token: str) -> None:
        """Remove a used token."""

    async def readers(self, channel: str) -> list[Reading]:
        """The members whose receipts others may see, including those who have read nothing."""

    async def seen_count(self, channel: str, sender: str, seq: int) -> int:
        """How many members other than the sender have read this message."""

    async def public_readers(self, keys: Sequence[Key]) -> dict[Key, tuple[tuple[int, int], ...]]:
        """Those of these (user, channel) whose receipts others may see, with the ranges that only a join marked."""

    async def receipts_since(self, user: str, since: int, most_members: int, limit: int) -> list[SeenPosition] | None:
        """Others' receipts since a time, in order, in the user's channels of up to `most_members` members.

        None if there are more than `limit`.
        """

    async def cut_skipped(self, user: str, channel: str, seq: int) -> None:
        """The user marks unread from `seq` on: from there on, the join no longer marks anything as read."""


class DurableUsers(Protocol):
    """What the store keeps of users besides read states: activity, preferences, undelivered messages and taps.

    Writes of one user are applied in the order of their calls. A message is recorded as undelivered once per receiver,
    however often it is saved.
    """

    async def activity(self, user: str) -> Activity:
        """Last tap, last time online, and receipts preference."""

    async def save_seen(self, user: str, at: int) -> None:
        """Save when a user was last online."""

    async def save_receipts(self, user: str, receipts: ReceiptsPreference, change: int) -> None:
        """Save whether a user's receipts are public; `change` as in `save_preferences`."""

    async def save_preferences(self, user: str, channel: str, preferences: Preferences, change: int) -> None:
        """Save a member's preferences, unless newer ones are stored. `change` is the user's change number."""

    async def erased_until(self, user: str) -> int:
        """When the user was erased, in ms; 0: never. Old notes are dropped: then one time stands for all users."""

    async def badge_count(self, user: str) -> int:
        """How many different people wrote to a user while the user was away, since the last tap."""

    async def badge_senders(self, user: str) -> tuple[int, frozenset[str]]:
        """(time of the last tap, who wrote since)."""

    async def save_undelivered(self, undelivered: Sequence[Undelivered]) -> list[Undelivered]:
        """Record messages that did not reach their receivers after all. Returns those that are stored now.

        Leaves out deleted messages, and messages accepted before their sender or receiver was erased.
        """

    async def receivers_of_gone(self, undelivered: Sequence[Undelivered]) -> set[str]:
        """The receivers of those whose row is gone, because the channel was deleted or the sender erased."""

    async def tap(self, user: str, at: int, limit: int, until: float = inf) -> Tapped:
        """Reset the badge. A later tap that is already stored stays the last one. Serialized per user.

        Raises StorageUnavailable rather than commit after `until` on the monotonic clock.
        """

    async def bound_tap(self, user: str, now: int) -> None:
        """Set a tap from beyond clock skew in the future to `now`. What it showed does not count again."""

    async def tapped(
        self, user: str, since: int, until: int, before: TapCursor, limit: int
    ) -> list[tuple[int, Message]]:
        """A page of what the tap at `until` shows, newest first, from `before` on: (accepted at, message)."""

    async def expire_undelivered(self, after: str, before: int, tapped: int, limit: int) -> tuple[str | None, int]:
        """Remove up to `limit` rows accepted up to `before`, if a tap up to `tapped` has shown them.

        Takes receivers by id, from `after` on. Returns (where to continue, None at the end; how many were removed).
        """

    async def expire_untapped(self, after: str, before: int, limit: int) -> tuple[str | None, int, list[str]]:
        """Remove the rows accepted up to `before` of up to `limit` receivers, tapped or not.

        Takes receivers by id, from `after` on. Returns (where to continue, None at the end; how many rows were
        removed; whose badge may have changed).
        """


class DurableDeadLetters(Protocol):
    """Dead letters that could not be repaired, until an operator has handled them."""

    async def put_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """List events. One that is listed already (same topic, offset and content) stays as it is."""

    async def list_dead_letters(self, after: int, limit: int) -> list[ListedDeadLetter]:
        """A page, in the order of listing."""

    async def find_dead_letters(self, ids: Collection[int]) -> list[ListedDeadLetter]:
        """Those of these ids that are listed, in the order of listing."""

    async def drop_dead_letters(self, ids: Collection[int]) -> int:
        """Remove handled dead letters; returns how many were listed."""


class DurableUpkeep(Protocol):
    """Pages over everything, random samples, and turns at jobs that one process does for all."""

    async def users_after(self, user: str, limit: int) -> list[str]:
        """A page, by id, of the users who are or were in a channel or have read something."""

    async def count_users(self) -> int:
        """The number of users that `users_after` goes through."""

    async def channels_after(self, channel: str, limit: int) -> list[str]:
        """A page, by id, of the channels and threads that exist."""

    async def count_channels(self) -> int:
        """The number of channels and threads that `channels_after` goes through."""

    async def read_states(self, keys: Sequence[Key]) -> dict[Key, Pointer]:
        """Pointers by (user, channel). Missing ones are left out."""

    async def some_user_rooms(self, limit: int) -> list[Key]:
        """(user, channel) of up to `limit` random members."""

    async def claim_turn(self, name: str, now: int, every: int) -> bool:
        """Take the turn at a job that runs once every `every` ms. False: another process took it within that time."""


class DurableTransfer(Protocol):
    """Export, import, and erasure of a user. An export is one snapshot; a call of the other two is one transaction."""

    def export(self) -> AsyncGenerator[Sequence[Record], None]:
        """All records, page by page, from one snapshot, in an order in which they can be imported."""

    async def take(self, records: Sequence[Numbered], stop: bool) -> Taken:
        """Merge records in order, in one transaction. A record that does not fit is refused and leaves no trace.

        `stop`: stop at the first refused record.
        """

    async def erase(self, user: str, on_the_way: int | None = None) -> ErasedRows:
        """Remove everything that is kept of a user except the messages, in one transaction.

        `on_the_way`: a time in ms. Events made up to then that are still in a log do not bring the user back.
        """


# ---------------------------------------------------------------- the store


class Durable(DurableLog, DurableQueries, DurableReads, DurableUsers, DurableDeadLetters, DurableUpkeep, Protocol):
    """The durable store: all its topics but transfer. Acknowledged writes survive."""

    async def store_id(self) -> int:
        """A random number that identifies this store. Cursors of another store are recognized by it."""

    async def cursor_key(self) -> bytes:
        """The key that signs cursors. Random, made once, shared by all processes, never exported."""

    async def next_generation(self) -> Generation:
        """A generation that was never used. Hot state of older ones counts as lost."""

    async def slots(self) -> list[SlotRange]:
        """The generations of the hot store by slot, in the order of slots."""

    async def renew_slots(
        self, seen: Sequence[SlotRange], lost: Sequence[LostRange], above: int, now: int, every: int
    ) -> list[SlotRange] | None:
        """Give all lost slots one number that was never used and is above `above`, in one write.

        Returns all slots after that.

        None: the slots are no longer as `seen`, or the last number is younger than `every` ms. Look again.
        """

    async def fresh(self) -> Generation:
        """The highest generation that was found fresh. It covers all lower ones."""

    async def note_fresh(self, number: Generation) -> None:
        """Note that this generation is fresh. A higher one stays."""

    async def ping(self) -> None:
        """Raise StorageUnavailable if the store cannot be written."""

    async def close(self) -> None:
        """Finish the requested writes, then stop."""


class DurableLoads(DurableReads, DurableQueries, Protocol):
    """What the hot store is loaded from."""
