"""The port for the hot state of users."""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from readstate.domain.hot_updates import UserHotUpdate
from readstate.domain.model import (
    NO_PREFERENCES,
    ChangeNumber,
    Channel,
    DropNumber,
    Entry,
    Mode,
    Pointer,
    Position,
    Preferences,
    ReadState,
)


class Read(Struct, frozen=True, gc=False):
    """Read up to a position, and the seqs of `apart` one by one. Only in `epoch`, if it is given."""

    user_id: str
    channel_id: str
    to: Position
    apart: tuple[int, ...] = ()
    epoch: int | None = None
    origin: str | None = None
    """The connection that the read came from."""
    ids: tuple[str, ...] = ()
    """The ids of the messages in `apart`, if known. With them, a ledger that is kept by ids needs no load."""


class Rewind(Struct, frozen=True, gc=False):
    """Mark unread from `seq` on, in a new epoch. Only in `epoch`, if it is given."""

    user_id: str
    channel_id: str
    seq: int
    before: Position
    """The position just before `seq`."""
    own: tuple[int, ...]
    """The seqs of the user's own messages from `seq` on."""
    epoch: int | None = None
    origin: str | None = None
    """The connection that the rewind came from."""


class Restore(Struct, frozen=True, gc=False):
    """Undo the move from `before` to `after`, in a new epoch, if the pointer is still at `after`."""

    user_id: str
    channel_id: str
    before: ReadState
    to: Position
    """The position that `before` points at."""
    after: ReadState
    origin: str | None = None


Move = Read | Rewind | Restore


class Seen(Struct, frozen=True, gc=False):
    """A message that arrived while the user had its channel open."""

    user_id: str
    channel_id: str
    position: Position
    epoch: int | None
    """The message counts as read in this epoch and in no later one; None: in any."""


class Absent(Enum):
    """Why a move has no user room to apply to."""

    NOT_LOADED = 1
    """Load the user first."""
    NOT_A_MEMBER = 2


class Moved(Struct, frozen=True, gc=False):
    """A pointer after a move that was applied or had nothing to do."""

    user_id: str
    channel_id: str
    before: Pointer
    pointer: Pointer
    changed: bool
    mode: Mode = Mode.LEDGER
    preferences: Preferences = NO_PREFERENCES
    unread: int | None = None
    """The size of the user's ledger after the move; None: not loaded."""


class Count(Struct, frozen=True, gc=False):
    """A user's unread messages in a room, counted."""

    count: int = 0
    mentions: int = 0
    first: Position | None = None
    """`seq` is 0 where the store does not keep it."""
    capped: bool = False
    sure: bool = True
    """False: the user has read the newest trimmed message, so possibly all trimmed messages are read."""


class CountQuery(Struct, frozen=True, gc=False):
    """The part of a user's state that a count of a timeline needs."""

    user_id: str
    channel_id: str
    state: ReadState
    named: tuple[int, ...] = ()
    """The seqs of unread messages that mention the user."""


class LedgerView(Count, frozen=True, gc=False):
    """The content of a ledger, summed up. In a timeline channel it holds only messages that mention the user."""

    named: tuple[int, ...] = ()
    """In a timeline channel, the seqs of the unread mentions."""


class CountDelta(Enum):
    """What a new message does to a user's unread count."""

    NOTHING = 0
    ONE_MORE = 1
    """It adds one, also to the mentions if it mentions the user. Nothing else changes."""
    ONE_MORE_MUTED = 2
    """It adds one, but not to the totals."""
    LOOK = 3
    """It adds none, but something else may have changed, or the store cannot tell: count."""


class UserRoom(Struct, frozen=True, gc=False):
    """The state of a user in a room."""

    channel_id: str
    member: bool
    mode: Mode
    pointer: Pointer
    preferences: Preferences
    ledger: LedgerView | None
    """None: not loaded."""


class UnreadSummary(Struct, frozen=True, gc=False):
    """What may be unread for a user, read atomically, without a value per channel that is read."""

    plain: tuple[int, int, int, bool]
    """(unread, mentions, channels, capped), summed over ledger channels without preferences, if not archived."""
    special: list[tuple[str, int, int, bool]]
    """(channel, unread, mentions, capped) of unread ledger channels with preferences, if not archived."""
    threads: list[tuple[str, int, bool]]
    """(room, unread, capped) of followed threads with anything unread."""


class UnreadOverview(Struct, frozen=True, gc=False):
    """What may be unread for a user, and where, read atomically."""

    change: ChangeNumber
    """The user's change number."""
    unloaded: bool
    """Whether a ledger must be loaded first."""
    summary: UnreadSummary
    rooms: list[tuple[int, str]]
    """Unread ledger channels by latest activity, as (negated time, channel)."""
    timelines: Sequence[str]
    """The user's timeline channels."""
    preferences: Mapping[str, Preferences]
    """Preferences that differ from the default, by channel."""
    queries: Sequence[CountQuery] = ()
    """What counts of the timeline channels need, if the store has it at hand: then they need not wait for the user
    rooms."""


class UnreadPage(Struct, frozen=True, gc=False):
    """What is unread for a user, as the durable store has it."""

    plain: tuple[int, int, int, bool]
    """(unread, mentions, channels, capped), summed over channels without a mute or `count`, if not archived."""
    special: list[tuple[Preferences, int, int, bool]]
    """(preferences, unread, mentions, capped) of the other unread channels, if not archived."""
    threads: tuple[int, int]
    """(unread, threads), summed over followed threads in channels that the user is in."""
    rooms: list[tuple[UserRoom, Channel]]
    """The unread channels with the latest activity, each with its whole count as a ledger."""


class UserView(Struct, frozen=True, gc=False):
    """A user's state, read atomically."""

    change: ChangeNumber
    """The user's change number. It grows with everything that changes for this user."""
    complete_since: ChangeNumber
    """From this change number on, `UserRoom.pointer.change` covers every change; before it only the user's reads."""
    user_rooms: list[UserRoom]
    unloaded: list[str]
    """Rooms whose ledger must be loaded first."""
    timelines: Sequence[str]
    """The user's timeline channels."""
    preferences: Mapping[str, Preferences]
    """Preferences that differ from the default, by channel."""


class LoadedUserRoom(Struct, frozen=True, gc=False, array_like=True):
    """A user room as the durable store has it."""

    channel_id: str
    member: bool
    mode: Mode
    change: int
    """The channel's change number."""
    empty: bool
    """There is no message after the pointer."""
    pointer: Pointer
    preferences: Preferences
    latest_at: int
    """The time of the room's latest message."""
    archived: bool


class LedgerLoad(Struct, frozen=True, gc=False):
    """A user's unread messages in a channel as the durable store has them, oldest first."""

    user_id: str
    channel_id: str
    state: ReadState
    """The read state that selected them."""
    change: int
    entries: list[Entry]
    """`mention`: the message mentions the user or everyone. A timeline channel lists only mentions of the user."""
    floor: int = 0
    """The newest unread seq that was left out; 0: none was."""


Which = Literal["all"] | Sequence[str] | ChangeNumber
"""All user rooms, those named, or those changed after a change number."""


class StoredKey(NamedTuple):
    """What a hot store keeps in one place of a user or a channel, for people."""

    name: str
    expires_in: int | None
    """Milliseconds; None: it does not expire by itself."""
    facts: Mapping[str, str]


class HotUsers(Protocol):
    """Read states, ledgers and memberships of users. Atomic per user. May be lost, and is then reloaded.

    A user is loaded as a unit (pointers, memberships, preferences), each ledger on its own. None means not loaded,
    which is different from empty.
    """

    async def move(self, moves: Sequence[Move], generation: DropNumber | None = None) -> list[Moved | Absent]:
        """Apply moves of members in order; each sees the ones before it.

        `generation`: a drop number from `generation()`. Users whose part of the store was lost since count as not
        loaded.
        """

    async def apply(self, updates: Sequence[UserHotUpdate]) -> list[Moved]:
        """Apply hot updates in order and return the pointers that moved. Replays change nothing."""

    async def view(self, user: str, which: Which, known: UnreadOverview | None = None) -> UserView | None:
        """The user's rooms, read atomically, including those that the user left.

        `known`: an overview from which ledgers may be taken if the user has not changed since.
        """

    async def stored(self, user: str, room: str) -> list[StoredKey]:
        """What is kept of the user in a room, as it is: nothing is loaded, and it may be out of date."""

    async def unread_summary(self, user: str) -> UnreadSummary | None:
        """The unread totals of the ledgers that are loaded, read atomically."""

    async def unread_overview(self, user: str, after: tuple[int, str] | None, limit: int) -> UnreadOverview | None:
        """The summary, and at most `limit` unread ledger channels after `after`."""

    async def inbox(
        self, user: str, after: tuple[int, str] | None, limit: int, only_unread: bool = False
    ) -> list[tuple[int, str]] | None:
        """The user's ledger channels after `after`, latest activity first, as (negated time, channel)."""

    async def count_delta(
        self, channel: str, position: Position, named: frozenset[str] | None, users: Sequence[str]
    ) -> list[tuple[CountDelta, int]]:
        """What a new message does to the counts of these users, and the epoch that each of them is in.

        `named`: the users whom it mentions; None: everyone.
        """

    async def changes(self, users: Sequence[str]) -> list[ChangeNumber | None]:
        """The change numbers of users; None: not loaded."""

    async def rooms(self, user: str) -> list[str] | None:
        """The channels that the user is in and the threads that the user follows."""

    async def pointers(self, user: str) -> dict[str, Pointer] | None:
        """All pointers of a user, including those in rooms that the user left; None: not loaded.

        Does not count as use: the user's state is evicted or expires as if it had not been read.
        """

    async def pointers_in(self, channel: str, users: Sequence[str]) -> list[Pointer | None]:
        """The pointers of these users in one channel, an empty one where there is none; None: the user is not loaded.

        Does not count as use, as in `pointers`. `read_at` is 0 where the store does not keep it.
        """

    async def prefer(
        self, user: str, channel: str, preferences: Preferences, known: ChangeNumber | None = None
    ) -> ChangeNumber | None:
        """Set a member's preferences. They carry the user's new change number, which is returned.

        `known`: set them only if those stored are not newer than this change number. None: nothing was set, because
        newer ones are stored, or the user is not loaded or not a member.
        """

    async def take_number(self, user: str) -> ChangeNumber | None:
        """Raise the user's change number and return it; None: not loaded."""

    async def number_before_load(self, user: str) -> ChangeNumber | None:
        """A change number below that of every later change of a user who is not loaded.

        None: the user is loaded, or this store knows the number only after a load.
        """

    async def generation(self, users: Collection[str]) -> DropNumber:
        """The drop number, for `dropped` and `move` of these users. Calls the hot store, so a loss is noticed."""

    async def answering(self, users: Collection[str]) -> tuple[DropNumber, Collection[str]]:
        """As `generation`, but waits for no part of the hot store that does not answer. Also returns the users of those
        parts that do.
        """

    async def dropped(self, generation: DropNumber, users: Collection[str]) -> set[str]:
        """Those of these users who may have been dropped since: a reload may lack writes that were in flight then."""

    async def begin(self, user: str) -> int:
        """Begin a load and return its ticket. A change until `install` is kept for the load or makes `install` fail."""

    async def install(self, user: str, ticket: int, user_rooms: Sequence[LoadedUserRoom]) -> bool:
        """Install a loaded user. False: something has changed since `begin`, so load again."""

    async def install_ledgers(self, loads: Sequence[LedgerLoad]) -> list[bool]:
        """Install loaded ledgers. False: a newer change or another epoch has been applied since, so load again."""

    async def erase(self, user: str, rooms: Collection[str]) -> None:
        """Drop a user with everything kept in these rooms. Only the change number continues."""

    async def forget(self, user: str, channel: str | None = None) -> None:
        """Drop a user, or one ledger. It is reloaded on use. A load of the user that is in flight fails."""
