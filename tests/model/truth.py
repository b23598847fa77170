"""What the durable store holds, small: rooms, messages and pointers; and the steps that every change makes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count

from msgspec import structs

from readstate.domain.hot_updates import FanOut, Gone, Joined, Left, OwnRead, Switched, UserHotUpdate
from readstate.domain.model import NO_PREFERENCES, Entry, Mode, Pointer, Position, Preferences, ReadState
from readstate.domain.rooms import is_thread
from readstate.domain.rules import EVERYONE, advance, merge, pointer_at
from readstate.ports import LedgerLoad, LoadedUserRoom

NOWHERE = Position(0, None, 0)


@dataclass(frozen=True)
class Message:
    seq: int
    id: str
    at: int
    sender: str
    mentions: frozenset[str] = frozenset()
    silent: bool = False
    deleted: bool = False

    @property
    def place(self) -> Position:
        return Position(self.seq, self.id, self.at)


@dataclass
class Room:
    """A channel or a thread."""

    name: str
    mode: Mode = Mode.LEDGER
    archived: bool = False
    last: Position = NOWHERE
    change: int = 0
    messages: dict[int, Message] = field(default_factory=dict)
    members: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    """Everyone who ever had to do with it."""
    pointers: dict[str, Pointer] = field(default_factory=dict)
    preferences: dict[str, Preferences] = field(default_factory=dict)

    @property
    def latest_at(self) -> int:
        return max((m.at for m in self.messages.values() if not m.deleted), default=0)

    def place(self, seq: int) -> Position:
        """The place of a message; after a channel was deleted, some have none."""
        if seq in self.messages:
            return self.messages[seq].place
        return self.last if seq and seq == self.last.seq else Position(seq, None, None)

    def pointer(self, user: str) -> Pointer:
        return self.pointers.get(user) or Pointer()

    def own(self, user: str) -> list[int]:
        return [seq for seq, message in self.messages.items() if message.sender == user]

    def unread(self, user: str, state: ReadState) -> list[Message]:
        """What counts for a user beyond a state."""
        return [
            message
            for seq, message in sorted(self.messages.items())
            if seq > state.seq and seq not in state.apart and message.sender != user
            if not message.deleted and not message.silent
        ]

    def entries(self, user: str, state: ReadState, mode: Mode) -> list[Entry]:
        """The same as a ledger holds them: in a timeline channel only those that name the user."""
        by_name = mode is Mode.TIMELINE
        entries = [
            Entry(m.seq, m.id, m.at, user in m.mentions or (EVERYONE in m.mentions and not by_name))
            for m in self.unread(user, state)
        ]
        return [entry for entry in entries if entry.mention or not by_name]


class Truth:
    """All rooms. What changes them returns the steps for the hot state, as the fold makes them."""

    def __init__(self, rooms: Iterable[str], limit: int, clock: Callable[[], int]) -> None:
        self.rooms = {name: Room(name) for name in rooms}
        self._limit = limit
        self._clock = clock
        self._changes = count(1)
        self._names = count(1)

    # ------------------------------------------------------------ messages

    def say(self, room: Room, sender: str, mentions: frozenset[str], silent: bool) -> list[UserHotUpdate]:
        room.change = next(self._changes)
        at = max(self._clock(), (room.last.at or 0) + 1)
        message = Message(room.last.seq + 1, f"m{next(self._names)}", at, sender, mentions, silent)
        room.messages[message.seq] = message
        room.last = message.place
        pointer = pointer_at(advance(room.pointer(sender).state, message.seq), message.place, self._clock())
        room.pointers[sender] = pointer
        room.known.add(sender)
        steps: list[UserHotUpdate] = [*self._fan_out(room, message, self._told(room, message))]
        return [*steps, OwnRead(room.name, sender, message.seq, pointer)]

    def edit(self, room: Room, seq: int, mentions: frozenset[str]) -> list[UserHotUpdate]:
        room.change = next(self._changes)
        before = room.messages[seq]
        message = room.messages[seq] = replace(before, mentions=mentions)
        if is_thread(room.name):
            return self._look(room)
        return self._fan_out(room, message, self._told(room, before, message), edit=True)

    def delete(self, room: Room, seq: int) -> list[UserHotUpdate]:
        room.change = next(self._changes)
        message = room.messages[seq] = replace(room.messages[seq], deleted=True)
        users = self._told(room, message)
        fan_out = FanOut(room.name, room.change, users, remove=message.place)
        return [structs.replace(fan_out, latest_at=room.latest_at, archived=room.archived)] if users else []

    def _told(self, room: Room, *messages: Message) -> tuple[str, ...]:
        if room.mode is Mode.LEDGER:
            return tuple(sorted(room.members))
        return tuple(sorted({user for message in messages for user in message.mentions} - {EVERYONE}))

    @staticmethod
    def _fan_out(room: Room, message: Message, users: tuple[str, ...], edit: bool = False) -> list[UserHotUpdate]:
        if not users:
            return []
        everyone = EVERYONE in message.mentions
        put = None if message.silent else Entry(message.seq, message.id, message.at, everyone)
        named = None if everyone and room.mode is Mode.LEDGER else message.mentions
        fan_out = FanOut(room.name, room.change, users, put, named, message.sender, edit=edit)
        return [structs.replace(fan_out, latest_at=room.latest_at, archived=room.archived)]

    @staticmethod
    def _look(room: Room) -> list[UserHotUpdate]:
        users = tuple(sorted(room.members)) if room.mode is Mode.LEDGER else ()
        fan_out = FanOut(room.name, room.change, users, latest_at=room.latest_at, archived=room.archived)
        return [fan_out] if users else []

    # ------------------------------------------------------------ members and channels

    def join(self, room: Room, users: Iterable[str], read: bool) -> list[UserHotUpdate]:
        new = [user for user in users if user not in room.members]
        if not new:
            return []
        room.change = next(self._changes)
        stayed = tuple(sorted(room.members))
        room.members.update(new)
        room.known.update(new)
        outgrown = not is_thread(room.name) and room.mode is Mode.LEDGER and len(room.members) > self._limit
        room.mode = Mode.TIMELINE if outgrown else room.mode
        pointers = tuple((user, self._joined(room, user, read)) for user in new)
        step = Joined(room.name, room.change, room.mode, room.last.seq, room.latest_at, room.archived, pointers)
        return [step, Switched(room.name, room.change, stayed)] if stayed and outgrown else [step]

    def _joined(self, room: Room, user: str, read: bool) -> Pointer:
        pointer = room.pointer(user)
        if read and room.last.seq > pointer.seq:
            pointer = pointer_at(advance(pointer.state, room.last.seq), room.last, self._clock())
        own = advance(pointer.state, pointer.seq, room.own(user))
        pointer = structs.replace(pointer, apart=own.apart)
        if pointer.state != ReadState():
            room.pointers[user] = pointer
        return pointer

    def leave(self, room: Room, user: str) -> list[UserHotUpdate]:
        room.change = next(self._changes)
        room.members.discard(user)
        return [Left(room.name, room.change, (user,))]

    def archive(self, room: Room) -> list[UserHotUpdate]:
        room.change = next(self._changes)
        room.archived = not room.archived
        return self._look(room)

    def gone(self, room: Room) -> list[UserHotUpdate]:
        """The room is deleted; its numbers go on in the next one of that name."""
        room.change = next(self._changes)
        users = tuple(sorted(room.known))
        pointers = {user: Pointer(room.pointer(user).epoch + 1) for user in users}
        last = Position(room.last.seq, None, room.last.at)
        self.rooms[room.name] = Room(room.name, last=last, change=room.change, known=room.known, pointers=pointers)
        return [Gone(room.name, room.change, users)] if users else []

    # ------------------------------------------------------------ what users do

    def merge(self, room: Room, user: str, given: Pointer) -> None:
        known = room.pointer(user)
        state = merge(known.state, given.state)
        place = given if (state.epoch, state.seq) == (given.epoch, given.seq) else known
        room.pointers[user] = pointer_at(state, place.position, given.read_at)
        room.known.add(user)

    # ------------------------------------------------------------ loads

    def user_rooms(self, user: str, changes: dict[str, int]) -> list[LoadedUserRoom]:
        """Everything that the user had to do with; `changes`: the user's change numbers that were kept."""
        return [
            LoadedUserRoom(
                name,
                user in room.members,
                room.mode,
                room.change,
                room.pointer(user).seq >= room.last.seq,
                structs.replace(room.pointer(user), change=changes.get(name, 0)),
                room.preferences.get(user, NO_PREFERENCES),
                room.latest_at,
                room.archived,
            )
            for name, room in self.rooms.items()
            if user in room.known
        ]

    def ledger(self, user: str, name: str, mode: Mode, state: ReadState, cap: int) -> LedgerLoad:
        room = self.rooms[name]
        entries = room.entries(user, state, mode)
        floor = entries[-cap - 1].seq if len(entries) > cap else 0
        return LedgerLoad(user, name, state, room.change, entries[-cap:], floor)
