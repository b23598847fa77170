"""The ports: what the services need of the world, and what every adapter promises. All methods take lists.

Hot state is two ports, because in a cluster a user's keys and a channel's keys live on different servers:
no step spans both, and nothing here asks for it.
"""

from collections.abc import AsyncGenerator, Callable, Container, Mapping, Sequence
from enum import Enum
from typing import Literal, Protocol

from msgspec import Struct

from .announcements import Announcement
from .api import Minus
from .events import AnyChannelEvent, Delivery, ReadEvent
from .facts import Effect
from .model import (
    NO_PREFERENCES,
    Channel,
    Entry,
    Member,
    Message,
    Mode,
    Pointer,
    Position,
    Preferences,
    ReadState,
    ReceiptsPreference,
    SeenPlace,
    Undelivered,
)
from .steps import ChannelStep, UserStep
from .transfer_records import ErasedRows, Numbered, Record, Taken

Clock = Callable[[], int]
"""Milliseconds since 1970."""


# ---------------------------------------------------------------- hot state of users


class Read(Struct, frozen=True, gc=False):
    """Read up to a place, and these seqs one by one; only in `epoch`, if it is named."""

    user_id: str
    channel_id: str
    to: Position
    apart: tuple[int, ...] = ()
    epoch: int | None = None
    origin: str | None = None
    """The connection it came from."""


class Rewind(Struct, frozen=True, gc=False):
    """Mark unread from `seq` on, as a new epoch; only in `epoch`, if it is named."""

    user_id: str
    channel_id: str
    seq: int
    before: Position
    """The place just before `seq`."""
    own: tuple[int, ...]
    """The user's own messages from there on."""
    epoch: int | None = None
    origin: str | None = None
    """The connection it came from."""


class Restore(Struct, frozen=True, gc=False):
    """Take the step from `before` to `after` back, as a new epoch, if the pointer still is at `after`."""

    user_id: str
    channel_id: str
    before: ReadState
    to: Position
    """Where `before` points."""
    after: ReadState
    origin: str | None = None


Move = Read | Rewind | Restore


class Absent(Enum):
    """Why there is nothing to work on."""

    NOT_LOADED = 1
    """The user must be loaded first."""
    NOT_A_MEMBER = 2


class Moved(Struct, frozen=True, gc=False):
    """A pointer as it stands after a move that was applied or had nothing to do."""

    user_id: str
    channel_id: str
    before: Pointer
    pointer: Pointer
    changed: bool
    mode: Mode = Mode.LEDGER
    preferences: Preferences = NO_PREFERENCES
    unread: int | None = None
    """What the user's ledger holds then, if it is loaded."""


class LedgerView(Struct, frozen=True, gc=False):
    """What the user's own set says. In a timeline channel it holds the messages that name the user, only."""

    count: int = 0
    mentions: int = 0
    first: Position | None = None
    """`seq` is 0 where the store doesn't keep it."""
    capped: bool = False
    named: tuple[int, ...] = ()
    """The seqs of the unread mentions, in a timeline channel."""


class Standing(Enum):
    """What a message that has just come does to a user's unread count."""

    NOTHING = 0
    ONE_MORE = 1
    """It adds one, to the mentions too if it names the user; nothing else changes."""
    ONE_MORE_MUTED = 2
    """It adds one, but not to the totals."""
    LOOK = 3
    """It adds none, but something else may have changed, or it can't be told: count."""


class Seat(Struct, frozen=True, gc=False):
    """A user in a channel."""

    channel_id: str
    member: bool
    mode: Mode
    pointer: Pointer
    preferences: Preferences
    ledger: LedgerView | None
    """None: not loaded."""


class Survey(Struct, frozen=True, gc=False):
    """What may be unread for a user, in brief: one moment, without a value per read channel."""

    plain: tuple[int, int, int, bool]
    """(unread, mentions, channels, capped) over the ledger channels that nothing sets apart: sums of set sizes."""
    special: list[tuple[str, int, int, bool]]
    """(channel, unread, mentions, capped) of unread ledger channels for which the user has preferences."""
    threads: list[tuple[str, int, bool]]
    """Followed threads with anything unread: (room, unread, capped)."""


class UserView(Struct, frozen=True, gc=False):
    """A moment of a user's state."""

    change: int
    """The user's change number: grows with everything that changes for this user."""
    complete_since: int
    """Since this change number, `Seat.pointer.change` knows of everything; before it only of the user's reads."""
    seats: list[Seat]
    unloaded: list[str]
    """Channels and threads whose ledger must be loaded first."""
    timelines: Sequence[str]
    """The user's timeline channels."""
    preferences: Mapping[str, Preferences]
    """Where they are not the default."""


class SeatLoad(Struct, frozen=True, gc=False, array_like=True):
    """A (user, channel) as the durable store has it."""

    channel_id: str
    member: bool
    mode: Mode
    change: int
    """The channel's change number."""
    empty: bool
    """No message stands after the pointer."""
    pointer: Pointer
    preferences: Preferences
    latest_at: int
    """The time of the channel's latest message."""
    archived: bool
    """Whether the channel is archived."""


class LedgerLoad(Struct, frozen=True, gc=False):
    """A user's unread messages in a channel, oldest first, as the durable store has them."""

    user_id: str
    channel_id: str
    state: ReadState
    """The state that they were looked up with."""
    change: int
    entries: list[Entry]
    """`mention`: the message names the user or everyone (in a timeline channel: only those that name the user)."""
    capped: bool = False


Which = Literal["all"] | Sequence[str] | int
"""All seats, those named, or those changed after a change number."""


class HotUsers(Protocol):
    """Read states, ledgers and memberships of users. Atomic per user; may be lost, and is then loaded again.

    A user is loaded as a unit (pointers, memberships, preferences), each ledger on its own. What is not
    loaded is told apart from what is empty: methods answer None for it.
    """

    async def move(self, moves: Sequence[Move]) -> list[Moved | Absent]:
        """Apply reads of members; each sees the ones before it."""

    async def apply(self, steps: Sequence[UserStep]) -> list[Moved]:
        """Take what happened in channels, in order. Returns the pointers that moved. A repeat does nothing."""

    async def view(self, user: str, which: Which) -> UserView | None:
        """The user's seats at one moment, also those left."""

    async def survey(self, user: str) -> Survey | None:
        """What is unread in the ledgers that are loaded, at one moment."""

    async def inbox(
        self, user: str, after: tuple[int, str] | None, limit: int, only_unread: bool = False
    ) -> list[tuple[int, str]] | None:
        """The user's ledger channels by latest activity, as (minus the time, channel), after such a pair."""

    async def standing(
        self, channel: str, seq: int, named: frozenset[str] | None, users: Sequence[str]
    ) -> list[tuple[Standing, int]]:
        """What a message that has just come does to the counts of these users, and the epoch that each is in.

        `named`: whom it mentions; None is everyone.
        """

    async def changes(self, users: Sequence[str]) -> list[int | None]:
        """The change numbers of users; None: not loaded."""

    async def rooms(self, user: str) -> list[str] | None:
        """The channels that a user is in, and the threads that the user follows."""

    async def prefer(self, user: str, channel: str, preferences: Preferences) -> int | None:
        """Set preferences; returns the user's change number."""

    async def generation(self) -> int:
        """Changes whenever something was dropped: what was written meanwhile may have been loaded without it."""

    async def begin(self, user: str) -> int:
        """Announce a load. Whatever changes for the user until `install` makes that one fail or is kept for it."""

    async def install(self, user: str, ticket: int, seats: Sequence[SeatLoad]) -> bool:
        """Take a loaded user; False if something has happened since `begin`: load again."""

    async def install_ledgers(self, loads: Sequence[LedgerLoad]) -> list[bool]:
        """Take loaded ledgers; False where a newer change or another epoch has passed: load again."""

    async def forget(self, user: str, channel: str | None = None) -> None:
        """Drop a user (or one ledger); loaded again on use."""


# ---------------------------------------------------------------- hot state of channels


class Count(Struct, frozen=True, gc=False):
    """What is unread in a timeline channel for a user."""

    count: int
    mentions: int
    first: Position | None
    capped: bool


class CountQuery(Struct, frozen=True, gc=False):
    """A user's state, as counting needs it."""

    user_id: str
    channel_id: str
    state: ReadState
    named: tuple[int, ...] = ()
    """Unread messages that name the user."""


class TimelineLoad(Struct, frozen=True, gc=False):
    """The last countable messages of a channel, oldest first."""

    channel_id: str
    change: int
    entries: list[Entry]
    floor: int
    """The newest countable seq that is not among them; 0: none was left out."""


class HotChannels(Protocol):
    """Latest messages and timelines of channels. Atomic per channel; loaded again when lost."""

    async def channels(self, ids: Sequence[str]) -> list[Channel | None]:
        """Channels as they stand; None: not loaded."""

    async def apply(self, steps: Sequence[ChannelStep]) -> None:
        """Take what happened in channels, in order. A repeat does nothing."""

    async def count(self, queries: Sequence[CountQuery]) -> list[Count | None]:
        """Count timelines; None: not loaded."""

    async def generation(self) -> int:
        """Changes whenever something was dropped: a load that began before it may be too old."""

    async def install(self, channels: Sequence[Channel]) -> None:
        """Take loaded channels; an older change number than the one known is ignored."""

    async def install_timeline(self, load: TimelineLoad) -> bool:
        """Take a loaded timeline; False if a newer change has passed: load again."""

    async def position(self) -> int:
        """Where in the log everything is applied up to."""

    async def forget(self, channel: str) -> None:
        """Drop a channel; loaded again on use."""


# ---------------------------------------------------------------- badges


class HotBadges(Protocol):
    """Who wrote to a user while away, since the last tap. Atomic per user; loaded again when lost."""

    async def count(self, user: str) -> int | None:
        """How many; None: not loaded."""

    async def add(self, undelivered: Sequence[Undelivered]) -> None:
        """Take them in, unless they were accepted before the user's last tap."""

    async def tap(self, user: str, at: int) -> None:
        """Forget everyone up to a moment."""

    async def begin(self, user: str) -> int:
        """Announce a load."""

    async def install(self, user: str, ticket: int, tap: int, senders: frozenset[str]) -> bool:
        """Take a loaded badge; False if something has happened since `begin`: load again."""

    async def forget(self, user: str) -> None:
        """Drop a badge; loaded again on use."""


# ---------------------------------------------------------------- live updates


class Bus(Protocol):
    """Reaches the instances that hold users' devices, in order. Best effort: what was missed is resumed."""

    async def publish(self, announcements: Sequence[Announcement]) -> None:
        """Tell what is durable. Never fails."""


# ---------------------------------------------------------------- presence


class Presence(Protocol):
    """Which users have a device connected."""

    def online(self) -> Container[str]:
        """Everyone who is online, at the moment of asking."""

    def focused(self, channel: str) -> Sequence[str]:
        """Who has the channel open on a device."""

    def blur(self, user: str, channel: str) -> None:
        """What arrives in the channel is read at once no more, until a device of the user opens it again."""


class Devices(Protocol):
    """The devices behind presence."""

    def devices(self, user: str) -> list[str]:
        """The devices of a user that are connected."""

    def connect(self, user: str, device: str, until: int, focus: str | None, connection: str = "") -> None:
        """A device is connected, until then at least, with a channel open or none.

        One that has several connections is connected, and has open, what any of them says.
        """

    def disconnect(self, user: str, device: str, connection: str = "") -> bool:
        """A connection of a device is gone; True if it was the user's last one."""

    def drop(self, user: str) -> None:
        """All devices of a user are gone."""

    def expire(self, user: str | None = None) -> list[tuple[str, int]]:
        """Drop devices (of one user) that are overdue; (user, since when) of those who went offline by it."""


# ---------------------------------------------------------------- durable store


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


class UndoItem(Struct, frozen=True, gc=False, array_like=True):
    """What a mark-all-read did to one channel."""

    channel_id: str
    before: ReadState
    to: Position
    after: ReadState


class DurableWrites(Protocol):
    """What it acknowledged survives. Everything that is asked together shares one commit."""

    async def apply(self, deliveries: Sequence[Delivery], online: Container[str]) -> list[Effect]:
        """Fold events of channels, in order, in one transaction; who is not `online` then is away."""

    async def merge(self, events: Sequence[ReadEvent]) -> None:
        """Merge read states; each (user, channel) at most once."""

    async def save_preferences(self, user: str, channel: str, preferences: Preferences, change: int) -> None:
        """Keep a member's preferences."""

    async def save_undo(self, token: str, user: str, expires_at: int, now: int, items: Sequence[UndoItem]) -> None:
        """Keep what an undo needs; drops what is over."""

    async def drop_undo(self, token: str) -> None:
        """The token is used."""


class DurableLoads(Protocol):
    """What the hot state is made of. Sees every write that was acknowledged or asked for before."""

    async def load_user(self, user: str) -> list[SeatLoad]:
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

    async def members(self, channel: str, after: str, limit: int) -> list[Member]:
        """Members by id."""

    async def breakdown(self, user: str, channel: str, state: ReadState) -> Breakdown:
        """Count from scratch."""


class DurableUsers(Protocol):
    """What is kept of users besides their read states."""

    async def activity(self, user: str) -> Activity:
        """What is kept of a user."""

    async def save_seen(self, user: str, at: int) -> None:
        """When a user was last online."""

    async def save_receipts(self, user: str, receipts: ReceiptsPreference) -> None:
        """Whether a user's receipts are public."""

    async def badge_count(self, user: str) -> int:
        """How many different people wrote to a user while away, since the last tap."""

    async def badge_senders(self, user: str) -> tuple[int, frozenset[str]]:
        """(last tap, who wrote since)."""

    async def save_undelivered(self, undelivered: Sequence[Undelivered]) -> None:
        """Note messages that did not reach their receivers after all."""

    async def tap(self, user: str, at: int, limit: int, keep_since: int) -> tuple[int, list[Message]]:
        """Set the badge to 0; (how many people wrote before, what they wrote, newest first)."""


class DurableReceipts(Protocol):
    """Who has read what. Leaves out what joins alone marked as read, and who keeps receipts private."""

    async def seen_by(self, channel: str, sender: str, seq: int) -> list[tuple[str, int]]:
        """(user, read at) of the members other than the sender who have read a place."""

    async def seen_count(self, channel: str, sender: str, seq: int) -> int:
        """How many they are."""

    async def receipts(self, channel: str) -> list[tuple[str, int, int]]:
        """(user, seq, read at) of the members who have read anything."""

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


class Durable(DurableWrites, DurableLoads, DurableQueries, DurableUsers, DurableReceipts, Protocol):
    """The durable store."""

    async def next_generation(self) -> int:
        """A number that was never given before: the hot state begins empty."""

    async def last_position(self) -> int:
        """Where in the log the last change stands."""

    async def ping(self) -> None:
        """Raise StorageUnavailable if it can't be written."""

    async def close(self) -> None:
        """Finish what was asked for, then stop."""


# ---------------------------------------------------------------- log


class Log(Protocol):
    """Acknowledged is durable; ordered per channel; at least once."""

    async def channel_events(self, events: Sequence[AnyChannelEvent]) -> Sequence[Effect | None]:
        """Append. A log that consumes at once answers with the effects; another one with None for each."""

    async def reads(self, events: Sequence[ReadEvent]) -> None:
        """Append read states."""


# ---------------------------------------------------------------- moving in and out


class DurableTransfer(Protocol):
    """Everything that is kept, out and in again; and one user's traces, gone."""

    def export(self) -> AsyncGenerator[Sequence[Record], None]:
        """All records, a page at a time, as of one moment, in an order in which they can be taken in."""

    async def take(self, records: Sequence[Numbered], stop: bool) -> Taken:
        """Merge records in, in order, in one transaction; one that does not fit is refused and leaves nothing.

        `stop`: none after the first refused one is taken.
        """

    async def erase(self, user: str) -> ErasedRows:
        """Remove whatever is kept of a user, but for the messages, in one transaction."""
