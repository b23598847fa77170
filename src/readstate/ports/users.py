"""The hot state of users."""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Literal, Protocol

from msgspec import Struct

from readstate.domain.hot_updates import UserHotUpdate
from readstate.domain.model import NO_PREFERENCES, Entry, Mode, Pointer, Position, Preferences, ReadState


class Read(Struct, frozen=True, gc=False):
    """Read up to a place, and these seqs one by one; only in `epoch`, if it is named."""

    user_id: str
    channel_id: str
    to: Position
    apart: tuple[int, ...] = ()
    epoch: int | None = None
    origin: str | None = None
    """The connection it came from."""
    ids: tuple[str, ...] = ()
    """The ids of the messages in `apart`, if they are known: a ledger that is kept by ids needs no load then."""


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


class Seen(Struct, frozen=True, gc=False):
    """A message that came while a user had its channel open."""

    user_id: str
    channel_id: str
    place: Position
    epoch: int | None
    """In which it is read, and in no later one; None: in any."""


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


class CountDelta(Enum):
    """What a message that has just come does to a user's unread count."""

    NOTHING = 0
    ONE_MORE = 1
    """It adds one, to the mentions too if it names the user; nothing else changes."""
    ONE_MORE_MUTED = 2
    """It adds one, but not to the totals."""
    LOOK = 3
    """It adds none, but something else may have changed, or it can't be told: count."""


class UserRoom(Struct, frozen=True, gc=False):
    """A user in a channel."""

    channel_id: str
    member: bool
    mode: Mode
    pointer: Pointer
    preferences: Preferences
    ledger: LedgerView | None
    """None: not loaded."""


class UnreadSummary(Struct, frozen=True, gc=False):
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
    user_rooms: list[UserRoom]
    unloaded: list[str]
    """Channels and threads whose ledger must be loaded first."""
    timelines: Sequence[str]
    """The user's timeline channels."""
    preferences: Mapping[str, Preferences]
    """Where they are not the default."""


class LoadedUserRoom(Struct, frozen=True, gc=False, array_like=True):
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
    floor: int = 0
    """The newest unread seq that is not among them; 0: none was left out."""


Which = Literal["all"] | Sequence[str] | int
"""All seats, those named, or those changed after a change number."""


class HotUsers(Protocol):
    """Read states, ledgers and memberships of users. Atomic per user; may be lost, and is then loaded again.

    A user is loaded as a unit (pointers, memberships, preferences), each ledger on its own. What is not
    loaded is told apart from what is empty: methods answer None for it.
    """

    async def move(self, moves: Sequence[Move], generation: int | None = None) -> list[Moved | Absent]:
        """Apply reads of members; each sees the ones before it.

        `generation`: a moment. Where everything was lost since, nobody counts as loaded.
        """

    async def apply(self, updates: Sequence[UserHotUpdate]) -> list[Moved]:
        """Take what happened in channels, in order. Returns the pointers that moved. A repeat does nothing."""

    async def view(self, user: str, which: Which) -> UserView | None:
        """The user's seats at one moment, also those left."""

    async def unread_summary(self, user: str) -> UnreadSummary | None:
        """What is unread in the ledgers that are loaded, at one moment."""

    async def inbox(
        self, user: str, after: tuple[int, str] | None, limit: int, only_unread: bool = False
    ) -> list[tuple[int, str]] | None:
        """The user's ledger channels by latest activity, as (minus the time, channel), after such a pair."""

    async def count_delta(
        self, channel: str, place: Position, named: frozenset[str] | None, users: Sequence[str]
    ) -> list[tuple[CountDelta, int]]:
        """What a message that has just come does to the counts of these users, and the epoch that each is in.

        `named`: whom it mentions; None is everyone.
        """

    async def changes(self, users: Sequence[str]) -> list[int | None]:
        """The change numbers of users; None: not loaded."""

    async def rooms(self, user: str) -> list[str] | None:
        """The channels that a user is in, and the threads that the user follows."""

    async def pointers(self, user: str) -> dict[str, Pointer] | None:
        """All pointers of a user, also where the user has left. No use of it: what nobody uses is dropped all the same.

        None: not loaded.
        """

    async def pointers_in(self, channel: str, users: Sequence[str]) -> list[Pointer | None]:
        """The pointers of these users in one channel, an empty one where there is none. No use, as in `pointers`.

        `read_at` is 0 where the store doesn't keep it. None: the user is not loaded.
        """

    async def prefer(self, user: str, channel: str, preferences: Preferences, known: int | None = None) -> int | None:
        """Set a member's preferences; returns the user's change number, which they carry from then on.

        `known`: only if no newer ones stand than those of this change number. None: nothing was set, because newer
        ones stand, the user is not loaded or is not a member.
        """

    async def take_number(self, user: str) -> int | None:
        """Raise the user's change number and return it; None: not loaded."""

    async def generation(self) -> int:
        """A moment, for `dropped`."""

    async def dropped(self, generation: int, users: Collection[str]) -> set[str]:
        """Those of these users who may have been dropped since: they may be loaded without what was on its way."""

    async def begin(self, user: str) -> int:
        """Announce a load. Whatever changes for the user until `install` makes that one fail or is kept for it."""

    async def install(self, user: str, ticket: int, user_rooms: Sequence[LoadedUserRoom]) -> bool:
        """Take a loaded user; False if something has happened since `begin`: load again."""

    async def install_ledgers(self, loads: Sequence[LedgerLoad]) -> list[bool]:
        """Take loaded ledgers; False where a newer change or another epoch has passed: load again."""

    async def erase(self, user: str, rooms: Collection[str]) -> None:
        """Drop a user with everything that is kept of them in these rooms; only the change number goes on."""

    async def forget(self, user: str, channel: str | None = None) -> None:
        """Drop a user (or one ledger); loaded again on use. A load of the user that is under way fails."""
