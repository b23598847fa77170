"""What the fold of an import knows of the store, and the rows that it writes."""

from bisect import bisect_left, insort
from collections import defaultdict

from msgspec import Struct, field
from msgspec.structs import replace

from readstate.domain.facts import Key
from readstate.domain.model import NO_PREFERENCES, Channel, Member, Message, Pointer, Position, Preferences
from readstate.domain.rooms import is_thread, thread_room

from .records import GivenUser

RoomSeq = tuple[str, int]

PRESUMED_AT = 1
"""`joined_at` of a presumed follow: no real follow is from the first millisecond of 1970."""


class KnownMessage(Struct, frozen=True, gc=False, array_like=True):
    """What the fold needs of a stored message."""

    seq: int | None
    thread_seq: int | None
    sender_id: str
    at: int
    sent_at: int | None
    thread_id: str | None
    deleted: bool


class KnownUserRoom(Struct, frozen=True, gc=False):
    member: Member | None = None
    preferences: Preferences = NO_PREFERENCES
    pointer: Pointer | None = None


class Neighbours(Struct, frozen=True, gc=False, array_like=True):
    """The message at a seq, and the times of those before and after it."""

    before_at: int | None = None
    id: str | None = None
    after_at: int | None = None


class Known(Struct):
    """What the store has when a run begins; the fold updates it. Rooms are channels and threads."""

    rooms: dict[str, Channel] = field(default_factory=dict)
    messages: dict[Key, KnownMessage] = field(default_factory=dict)
    around: dict[RoomSeq, Neighbours] = field(default_factory=dict)
    user_rooms: dict[Key, KnownUserRoom] = field(default_factory=dict)
    """By (room, user)."""
    positions: dict[RoomSeq, Position] = field(default_factory=dict)
    times: dict[tuple[str, int], Position | None] = field(default_factory=dict)
    """The newest position at or before a time; None: no message is there to decide it."""
    own: dict[Key, frozenset[int]] = field(default_factory=dict)
    """Seqs of a user's own messages beyond the pointer of the record, by (room, user)."""
    users: dict[str, GivenUser] = field(default_factory=dict)


class Concern(Struct, frozen=True, gc=False, array_like=True):
    """A thread concerns a user: the author of its root, a replier, or a mentioned user."""

    channel_id: str
    thread_id: str
    user_id: str
    seq: int
    """How far the user has read the thread as a result."""
    own: bool
    """The user wrote the reply."""


class Rows(Struct):
    rooms: set[str] = field(default_factory=set)
    """Rooms that changed; `Known.rooms` has their new state."""
    messages: list[Message] = field(default_factory=list)
    deleted: list[Key] = field(default_factory=list)
    user_rooms: dict[Key, KnownUserRoom] = field(default_factory=dict)
    pointers: dict[Key, Pointer] = field(default_factory=dict)
    users: dict[str, GivenUser] = field(default_factory=dict)
    latest_gone: set[str] = field(default_factory=set)
    """Rooms whose latest message is deleted: another one takes its place."""
    audiences: set[str] = field(default_factory=set)
    """Rooms whose members all have stale hot state."""
    concerned: set[str] = field(default_factory=set)
    """Users whose hot state is stale."""
    concerns: list[Concern] = field(default_factory=list)
    """From new replies."""
    arrived: dict[Key, int] = field(default_factory=dict)
    """New members of channels: (channel, user) to the time of the join."""


class Misfit(Exception):
    """A record does not fit what the store has."""


def is_presumed(user_room: KnownUserRoom, room: str) -> bool:
    """Whether the user follows a thread only because an import presumed it, and has not read in it since."""
    member = user_room.member
    if not is_thread(room) or member is None or not member.active or member.joined_at != PRESUMED_AT:
        return False
    return user_room.pointer is None or (user_room.pointer.epoch == 0 and user_room.pointer.read_at == 0)


class Filled:
    """The seqs of one room that this run has filled: (seq, id, time) in order."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, str, int]] = []

    def around(self, seq: int) -> Neighbours:
        index = bisect_left(self._rows, (seq,))
        before = self._rows[index - 1][2] if index else None
        rest = self._rows[index : index + 2]
        taken = rest.pop(0)[1] if rest and rest[0][0] == seq else None
        return Neighbours(before, taken, rest[0][2] if rest else None)

    def put(self, seq: int, id_: str, at: int) -> None:
        insort(self._rows, (seq, id_, at))


class Fold:
    """The state of one run: what is known, kept up to date with the rows to write."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.rows = Rows()
        self.joined: dict[str, int] = {}
        """By how many members each room has grown."""
        self.filled = defaultdict[str, Filled](Filled)

    def set_room(self, room: Channel) -> None:
        self.known.rooms[room.channel_id] = room
        self.rows.rooms.add(room.channel_id)

    def set_pointer(self, key: Key, pointer: Pointer) -> None:
        known = self.known.user_rooms.get(key, KnownUserRoom())
        self.known.user_rooms[key] = replace(known, pointer=pointer)
        self.rows.pointers[key] = pointer
        self.mark_stale(key)

    def mark_stale(self, key: Key) -> None:
        room, user = key
        self.rows.rooms.add(room)
        self.rows.concerned.add(user)

    def channel(self, name: str) -> Channel:
        """A channel that exists. Raises Misfit for one that does not."""
        room = self.known.rooms.get(name)
        if room is None or room.deleted:
            raise Misfit(f"there is no channel {name!r}: its own record must come first")
        return room

    def thread(self, channel: str, thread: str) -> Channel:
        """The room of a thread, which may be new. Its root must exist and must not be a reply."""
        root = self.known.messages.get((channel, thread))
        if root is None or not root.sender_id:
            raise Misfit(f"there is no root message {thread!r} for the thread: its record must come first")
        if root.thread_id is not None:
            raise Misfit(f"{thread!r} is a reply itself: a thread needs a root message")
        name = thread_room(channel, thread)
        known = self.known.rooms.get(name)
        if known is None:
            return Channel(name, type="thread")
        return replace(known, deleted=False, type="thread") if known.deleted else known
