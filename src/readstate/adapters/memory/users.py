"""Users in the memory of one process: the reference implementation of the hot state of users.

A user room is one packed bytes object, so that a million of them fit in under 200 MB. User rooms carry the user's
change numbers, by which changes since a sync cursor are found.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence
from itertools import count
from sys import intern
from typing import cast

from msgspec import Struct, field
from msgspec.structs import replace

from readstate.adapters.drops import Drops
from readstate.domain.hot_updates import FanOut, Gone, Joined, Left, Merged, OwnRead, Switched, UserHotUpdate
from readstate.domain.model import (
    NO_CHANGE,
    NO_PREFERENCES,
    ChangeNumber,
    DropNumber,
    Entry,
    Generation,
    Mode,
    Pointer,
    Position,
    Preferences,
    ReadState,
)
from readstate.domain.rooms import is_thread
from readstate.domain.rules import advance, give_back, merge, next_epoch, rewind
from readstate.ports import Absent, Clock, LedgerLoad, LoadedUserRoom, Move, Moved, Read, Restore, Rewind
from readstate.telemetry import EVICTIONS

from .ledger import Ledger
from .user_rooms import ARCHIVED, HEAD, MEMBER, PACKING, THREAD, TIMELINE, Row, Shelf, User, flags_of, unpack
from .views import UserViews

USER_BYTES = 1_200
USER_ROOM_BYTES = 190
ENTRY_BYTES = 30
NUMBERS_PER_GENERATION = 2**32

_NOTHING: frozenset[int] = frozenset()


class _Loading(Struct):
    """A load in flight, with the fan-outs that arrived meanwhile; they are applied after it."""

    ticket: int
    fan_outs: list[FanOut] = field(default_factory=list)


class MemoryUsers(UserViews):
    """Hot state of users. Every method is atomic because none of them ever suspends."""

    def __init__(self, *, unread_cap: int, generation: Generation, clock: Clock, ledger_ttl: int) -> None:
        super().__init__(clock, ledger_ttl, unread_cap)
        self._generation = generation
        self._numbers = cast("Iterator[ChangeNumber]", count(generation * NUMBERS_PER_GENERATION + 1))
        self._loading: dict[str, _Loading] = {}
        self._drops = Drops()
        self._next_ticket = count(1)

    # ------------------------------------------------------------ reads

    async def move(self, moves: Sequence[Move], generation: DropNumber | None = None) -> list[Moved | Absent]:
        now = self._clock()
        return [self._move(move, now) for move in moves]

    def _move(self, move: Move, now: int) -> Moved | Absent:
        user = self._users.get(move.user_id)
        if user is None:
            return Absent.NOT_LOADED
        user.used = now
        channel = move.channel_id
        raw = user.user_rooms.get(channel)
        if raw is None:
            return Absent.NOT_A_MEMBER
        epoch, seq, at, change, filled, number, latest, flags = PACKING.unpack_from(raw)
        if not flags & MEMBER:
            return Absent.NOT_A_MEMBER
        apart = user.apart.get(channel, _NOTHING)
        before = pointer = Pointer(epoch, seq, apart, raw[HEAD:].decode() or None, at or None, 0, number)
        shelf = user.shelf(flags)
        if type(move) is not Read or apart or move.apart:
            row, state = unpack(raw), before.state
            after, position = self._target(move, state, row)
            if after is not state:
                self._set_state(user, channel, row, state, after, position)
                pointer = _pointer(after, position, now, row.number)
        elif move.to.seq > seq and (move.epoch is None or move.epoch == epoch):
            to = move.to
            number = user.change = next(self._numbers)
            packed = PACKING.pack(epoch, to.seq, to.at or 0, change, filled, number, latest, flags)
            user.user_rooms[intern(channel)] = packed + to.id.encode() if to.id else packed
            if (ledger := shelf.take(channel)) is not None:
                ledger.read(to.seq)
                shelf.put(channel, ledger)
            pointer = Pointer(epoch, to.seq, apart, to.id, to.at, now, number)
        return Moved(
            move.user_id,
            channel,
            before,
            pointer,
            pointer is not before,
            Mode.TIMELINE if flags & TIMELINE else Mode.LEDGER,
            user.preferences.get(channel, NO_PREFERENCES),
            _size(shelf, channel),
        )

    def _target(self, move: Move, state: ReadState, row: Row) -> tuple[ReadState, Position]:
        """The state that a move leads to (the same object if nothing changes), and the position it points at."""
        match move:
            case Read(epoch=epoch) | Rewind(epoch=epoch) if epoch is not None and epoch != state.epoch:
                return state, row.position
            case Read():
                after = advance(state, move.to.seq, move.apart)
                return after, (move.to if after.seq != state.seq else row.position)
            case Rewind():
                epoch = next_epoch(state.epoch, self._generation)
                after = rewind(state, move.seq, move.own, epoch)
                return after, (move.before if after.seq != state.seq else row.position)
            case Restore():
                epoch = next_epoch(state.epoch, self._generation)
                restored = give_back(state, move.before, move.after, epoch)
                return (state, row.position) if restored is None else (restored, move.to)

    def _set_state(
        self, user: User, channel: str, row: Row, before: ReadState, after: ReadState, position: Position
    ) -> None:
        row.epoch, row.seq = after.epoch, after.seq
        row.point(position)
        if after.apart:
            user.apart[channel] = after.apart
        elif before.apart:
            del user.apart[channel]
        shelf = user.shelf(row.flags)
        if not row.flags & MEMBER:
            pass  # a user who has left has no ledger
        elif after.epoch != before.epoch:
            shelf.unload(channel)
        elif (ledger := shelf.take(channel)) is not None:
            ledger.read(after.seq)
            for seq in after.apart - before.apart:
                ledger.remove(seq)
            shelf.put(channel, ledger)
        user.put(channel, row, next(self._numbers))

    # ------------------------------------------------------------ hot updates

    async def apply(self, updates: Sequence[UserHotUpdate]) -> list[Moved]:
        moved: list[Moved] = []
        now = self._clock()
        for update in updates:
            match update:
                case FanOut():
                    for user in update.users:
                        self._fan_out(user, update, now)
                case OwnRead() | Merged():
                    moved.extend(self._given(update))
                case Joined():
                    for user, pointer in update.pointers:
                        moved.extend(self._joined(user, update, pointer))
                case Left() | Switched() | Gone():
                    for user in update.users:
                        self._restructured(user, update)
        return moved

    def _fan_out(self, user_id: str, fan_out: FanOut, now: int) -> None:
        user = self._users.get(user_id)
        if user is None:
            if (loading := self._loading.get(user_id)) is not None:
                loading.fan_outs.append(fan_out)
            return
        channel = fan_out.channel_id
        raw = user.user_rooms.get(channel)
        if raw is None:
            return
        epoch, seq, at, change, filled, _, latest, flags = PACKING.unpack_from(raw)
        if fan_out.change <= change or not flags & MEMBER:
            return
        if fan_out.change > filled:  # else the ledger was loaded later and holds it; the rest is still to be applied
            filled = fan_out.change
            if fan_out.put is not None and user_id != fan_out.sender:
                if fan_out.put.seq > seq and fan_out.put.seq not in user.apart.get(channel, _NOTHING):
                    self._fan_out_put(
                        user, flags, fan_out, fan_out.put, fan_out.named is None or user_id in fan_out.named, now
                    )
            elif fan_out.remove and (ledger := user.shelf(flags).take(channel)) is not None:
                ledger.remove(fan_out.remove.seq)
                user.shelf(flags).put(channel, ledger)
        if not flags & TIMELINE:
            user.shelf(flags).note_moved(channel)
            if user.inbox is not None:
                _reorder(user, channel, latest, fan_out.latest_at)
        if fan_out.archived != bool(flags & ARCHIVED):
            flags ^= ARCHIVED
            if not flags & TIMELINE:
                user.set_aside.symmetric_difference_update({intern(channel)})
        number = user.change = next(self._numbers)
        packed = PACKING.pack(epoch, seq, at, fan_out.change, filled, number, fan_out.latest_at, flags)
        user.user_rooms[channel] = packed + raw[HEAD:]

    def _fan_out_put(self, user: User, flags: int, fan_out: FanOut, entry: Entry, mention: bool, now: int) -> None:
        channel, shelf = fan_out.channel_id, user.shelf(flags)
        if channel in shelf.missing:
            return
        ledger = shelf.take(channel)
        only_mentions = bool(flags & TIMELINE)
        if fan_out.edit and not only_mentions:
            if ledger is not None and entry.seq in ledger:
                ledger.set_mention(entry.seq, mention)
        elif mention or not only_mentions:
            ledger = ledger or Ledger(self._cap)
            ledger.put(entry, mention)
            ledger.touched = now
        elif ledger is not None:
            ledger.remove(entry.seq)
        if ledger is not None:
            shelf.put(channel, ledger)

    def _given(self, update: OwnRead | Merged) -> Iterator[Moved]:
        """Merge a state; for an OwnRead, also read the user's own message."""
        user = self._loaded(update.user_id)
        if user is None:
            return
        row = user.row(update.channel_id)
        before = ReadState(row.epoch, row.seq, user.apart.get(update.channel_id, _NOTHING))
        after = merge(before, update.pointer.state)
        if isinstance(update, OwnRead):
            after = advance(after, after.seq, (update.seq,))
        yield from self._merged(user, update.user_id, update.channel_id, row, before, after, update.pointer)

    def _merged(
        self, user: User, user_id: str, channel: str, row: Row, before: ReadState, after: ReadState, given: Pointer
    ) -> Iterator[Moved]:
        """Store a merged state; yield it if the durable store lacks it."""
        if after == before:
            return
        position = given.position if after.seq == given.seq else row.position
        was = _pointer(before, row.position)
        self._set_state(user, channel, row, before, after, position)
        if after != given.state:
            yield Moved(user_id, channel, was, _pointer(after, position, self._clock(), row.number), True)

    def _joined(self, user_id: str, update: Joined, pointer: Pointer) -> Iterator[Moved]:
        user = self._loaded(user_id)
        if user is None:
            return
        channel = update.channel_id
        row = user.row(channel)
        joins = update.change > row.change
        if joins:
            row.change = row.filled = update.change
            _reorder(user, channel, row.latest, None if update.mode is Mode.TIMELINE else update.latest_at)
            row.latest = update.latest_at
            user.user_room_flags(channel, row, flags_of(channel, True, update.mode, update.archived))
            if merge(ReadState(row.epoch, row.seq, _NOTHING), pointer.state).seq < update.last_seq:
                user.shelf(row.flags).unload(channel)
            user.put(channel, row, next(self._numbers))
        before = ReadState(row.epoch, row.seq, user.apart.get(channel, _NOTHING))
        after = merge(before, pointer.state)
        if joins and after.seq < update.read.seq:
            after = advance(after, update.read.seq)
            pointer = replace(pointer, seq=update.read.seq, id=update.read.id, at=update.read.at)
        yield from self._merged(user, user_id, channel, row, before, after, pointer)

    def _restructured(self, user_id: str, update: Left | Switched | Gone) -> None:
        user = self._loaded(user_id)
        if user is None:
            return
        channel = update.channel_id
        row = user.row(channel)
        if update.change <= row.change:
            return
        _reorder(user, channel, row.latest, None)
        match update:
            case Switched():
                perhaps_unread = channel in user.live or channel in user.live.missing
                user.user_room_flags(channel, row, row.flags | TIMELINE)
                if perhaps_unread:
                    user.named.unload(channel)
            case Left():
                user.user_room_flags(channel, row, row.flags & ~MEMBER)
            case Gone():
                user.user_room_flags(channel, row, row.flags & THREAD)
                row = Row(epoch=row.epoch + 1, flags=row.flags)
                user.apart.pop(channel, None)
                user.preferences.pop(channel, None)
        row.change = row.filled = update.change
        user.put(channel, row, next(self._numbers))

    def _loaded(self, user_id: str) -> User | None:
        """The user, or None. Without a user, a load in flight is too old and is cancelled."""
        user = self._users.get(user_id)
        if user is None:
            self._loading.pop(user_id, None)
        return user

    async def prefer(
        self, user: str, channel: str, preferences: Preferences, known: ChangeNumber | None = None
    ) -> ChangeNumber | None:
        found = self._loaded(user)
        if found is None or not found.row(channel).flags & MEMBER:
            return None
        if known is not None and found.preferences.get(channel, NO_PREFERENCES).change > known:
            return None
        row = found.row(channel)
        found.put(channel, row, next(self._numbers))
        found.preferences[intern(channel)] = replace(preferences, change=row.number)
        return row.number

    async def take_number(self, user: str) -> ChangeNumber | None:
        known = self._users.get(user)
        if known is None:
            return None
        known.change = next(self._numbers)
        return known.change

    async def number_before_load(self, user: str) -> ChangeNumber | None:
        """All users share one count, so the next number of any user is above it."""
        return None if user in self._users else next(self._numbers)

    # ------------------------------------------------------------ loading

    async def begin(self, user: str) -> int:
        """Fan-outs that arrive before `install` are kept for it; any other change makes the load fail."""
        loading = self._loading.get(user)
        if loading is None:
            loading = self._loading[user] = _Loading(next(self._next_ticket))
        return loading.ticket

    async def install(self, user: str, ticket: int, user_rooms: Sequence[LoadedUserRoom]) -> bool:
        loading = self._loading.get(user)
        if loading is None or loading.ticket != ticket:
            return False
        del self._loading[user]
        if user in self._users:  # another load installed it, and later changes were applied to it
            return True
        now = self._clock()
        number = next(self._numbers)
        loaded = User(number, number, now)
        for user_room in user_rooms:
            self._install_user_room(loaded, user_room)
        self._users[user] = loaded
        for fan_out in loading.fan_outs:
            self._fan_out(user, fan_out, now)
        return True

    @staticmethod
    def _install_user_room(user: User, load: LoadedUserRoom) -> None:
        channel, pointer = intern(load.channel_id), load.pointer
        row = Row(pointer.epoch, pointer.seq, 0, load.change, load.change, pointer.change, load.latest_at)
        row.point(pointer.position)
        user.user_room_flags(channel, row, flags_of(channel, load.member, load.mode, load.archived))
        user.user_rooms[channel] = row.pack()
        if pointer.apart:
            user.apart[channel] = pointer.apart
        if load.preferences != NO_PREFERENCES:
            user.preferences[channel] = load.preferences
        if load.member and not load.empty:
            user.shelf(row.flags).unload(channel)

    async def install_ledgers(self, loads: Sequence[LedgerLoad]) -> list[bool]:
        now = self._clock()
        return [self._install_ledger(load, now) for load in loads]

    def _install_ledger(self, load: LedgerLoad, now: int) -> bool:
        user = self._users.get(load.user_id)
        raw = None if user is None else user.user_rooms.get(load.channel_id)
        if user is None or raw is None:
            return False
        row = unpack(raw)
        if not row.flags & MEMBER:
            return True
        if load.change < row.filled or load.state.epoch != row.epoch:
            return False
        apart = user.apart.get(load.channel_id, _NOTHING)
        if load.state.seq > row.seq or any(seq > row.seq for seq in load.state.apart - apart):
            return False  # loaded for a read that was refused afterwards
        ledger = Ledger(self._cap, now)
        for entry in load.entries:
            if entry.seq > row.seq and entry.seq not in apart:
                ledger.put(entry, entry.mention)
        if load.floor > row.seq:
            ledger.floor = load.floor
        row.filled = load.change
        channel = intern(load.channel_id)
        user.user_rooms[channel] = row.pack()
        shelf = user.shelf(row.flags)
        shelf.take(channel)
        shelf.put(channel, ledger)
        return True

    async def forget(self, user: str, channel: str | None = None) -> None:
        if channel is None:
            self._drops.user(user)
            self._users.pop(user, None)
            self._loading.pop(user, None)
        elif (known := self._users.get(user)) is not None and (flags := known.row(channel).flags) & MEMBER:
            known.shelf(flags).unload(channel)

    async def erase(self, user: str, rooms: Collection[str]) -> None:
        """Everything kept of a user is in one object."""
        await self.forget(user)

    # ------------------------------------------------------------ memory

    def bytes(self) -> int:
        """The approximate memory of all users."""
        user_rooms = sum(len(user.user_rooms) for user in self._users.values())
        shelves = (shelf for user in self._users.values() for shelf in (user.live, user.named, user.threads))
        entries = sum(shelf.unread for shelf in shelves)
        return len(self._users) * USER_BYTES + user_rooms * USER_ROOM_BYTES + entries * ENTRY_BYTES

    async def generation(self, users: Collection[str]) -> DropNumber:
        return self._drops.count

    async def answering(self, users: Collection[str]) -> tuple[DropNumber, Collection[str]]:
        return self._drops.count, users

    async def dropped(self, generation: DropNumber, users: Collection[str]) -> set[str]:
        return self._drops.since(generation, users)

    async def clear(self) -> None:
        """Drop everything, including loads in flight."""
        self._drops.everyone()
        self._users.clear()
        self._loading.clear()

    def by_use(self) -> list[str]:
        return sorted(self._users, key=lambda user: self._users[user].used)

    async def evict(self, user: str) -> None:
        await self.forget(user)
        EVICTIONS.labels("user").inc()


def _size(shelf: Shelf, channel: str) -> int | None:
    """The size of a ledger; None if it must be loaded, or holds only the newest messages."""
    ledger = shelf.get(channel)
    if ledger is None:
        return None if channel in shelf.missing else 0
    return None if ledger.floor else len(ledger.seqs)


def _reorder(user: User, channel: str, before: int, after: int | None) -> None:
    """Move a channel in the inbox, if the inbox exists; `after=None` removes it."""
    if user.inbox is None or is_thread(channel):
        return
    index = bisect_left(user.inbox, (-before, channel))
    if index < len(user.inbox) and user.inbox[index] == (-before, channel):
        del user.inbox[index]
    if after is not None:
        insort(user.inbox, (-after, intern(channel)))


def _pointer(state: ReadState, position: Position, read_at: int = 0, change: ChangeNumber = NO_CHANGE) -> Pointer:
    return Pointer(state.epoch, state.seq, state.apart, position.id, position.at, read_at, change)
