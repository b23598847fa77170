"""Users in the memory of one process: the plain statement of what the hot state of users does.

A (user, channel) is one packed bytes object, so that a million of them fit in under 200 MB. A user's seats
are kept in the order of their change numbers: what changed last is found from the end.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, takewhile
from math import ceil
from struct import Struct as Packing

from msgspec import Struct

from ..model import Mode, Pointer, Position, Preferences, ReadState
from ..ports import (
    Absent,
    Clock,
    LedgerLoad,
    LedgerView,
    Move,
    Moved,
    Read,
    Restore,
    Rewind,
    Seat,
    SeatLoad,
    Survey,
    UserView,
    Which,
)
from ..rooms import is_thread
from ..rules import advance, give_back, merge, next_epoch, rewind
from ..steps import Fan, Gone, Joined, Left, OwnRead, Switched, UserStep
from ..telemetry import EVICTIONS
from .ledger import Ledger

USER_BYTES = 1_000
SEAT_BYTES = 190
ENTRY_BYTES = 30
NUMBERS_PER_GENERATION = 2**32

_PACKING = Packing("<QQQIIQQB")
_HEAD = _PACKING.size
_MEMBER, _TIMELINE = 1, 2
_DEFAULTS = Preferences()
_NOTHING: frozenset[int] = frozenset()
_EMPTY = LedgerView()


class _Row(Struct, gc=False):
    """A seat, unpacked.

    `change`: passed by membership and mode; `filled`: by the ledger; `number`: the user's; `latest`: when the
    channel's latest message came.
    """

    epoch: int = 0
    seq: int = 0
    at: int = 0
    change: int = 0
    filled: int = 0
    number: int = 0
    latest: int = 0
    flags: int = 0
    id: bytes = b""

    def pack(self) -> bytes:
        head = _PACKING.pack(
            self.epoch, self.seq, self.at, self.change, self.filled, self.number, self.latest, self.flags
        )
        return head + self.id

    def point(self, place: Position) -> None:
        self.at = place.at or 0
        self.id = b"" if place.id is None else place.id.encode()

    @property
    def place(self) -> Position:
        return Position(self.seq, self.id.decode() or None, self.at or None)

    @property
    def mode(self) -> Mode:
        return Mode.TIMELINE if self.flags & _TIMELINE else Mode.LEDGER


def _unpack(raw: bytes) -> _Row:
    epoch, seq, at, change, filled, number, latest, flags = _PACKING.unpack_from(raw)
    return _Row(epoch, seq, at, change, filled, number, latest, flags, raw[_HEAD:])


class _User:
    __slots__ = ("apart", "inbox", "live", "preferences", "seats", "since", "timelines", "used")

    def __init__(self, since: int, used: int) -> None:
        self.seats: dict[str, bytes] = {}
        self.apart: dict[str, frozenset[int]] = {}
        self.live: dict[str, Ledger | None] = {}
        """Not here: known to be empty. None: not loaded."""
        self.timelines: dict[str, None] = {}
        self.preferences: dict[str, Preferences] = {}
        self.inbox: list[tuple[int, str]] | None = None
        """(minus the time of the latest message, channel) of the ledger channels, sorted; made when asked for."""
        self.since = since
        self.used = used


class MemoryUsers:
    """Hot state of users; everything is atomic because nothing here waits."""

    def __init__(self, *, unread_cap: int, generation: int, clock: Clock, ledger_ttl: int) -> None:
        self._cap = unread_cap
        self._generation = generation
        self._clock = clock
        self._ttl = ledger_ttl * 1000
        self._numbers = count(generation * NUMBERS_PER_GENERATION + 1)
        self._users: dict[str, _User] = {}
        self._tickets: dict[str, int] = {}
        self._next_ticket = count(1)

    # ------------------------------------------------------------ reads

    async def move(self, moves: Sequence[Move]) -> list[Moved | Absent]:
        """Apply reads of members; each sees the ones before it."""
        now = self._clock()
        return [self._move(move, now) for move in moves]

    def _move(self, move: Move, now: int) -> Moved | Absent:
        user = self._users.get(move.user_id)
        if user is None:
            return Absent.NOT_LOADED
        user.used = now
        channel = move.channel_id
        raw = user.seats.get(channel)
        if raw is None:
            return Absent.NOT_A_MEMBER
        epoch, seq, at, change, filled, number, latest, flags = _PACKING.unpack_from(raw)
        if not flags & _MEMBER:
            return Absent.NOT_A_MEMBER
        apart = user.apart.get(channel, _NOTHING)
        before = Pointer(epoch, seq, apart, raw[_HEAD:].decode() or None, at or None, 0, number)
        if type(move) is Read and not (apart or move.apart):
            to = move.to
            if to.seq <= seq or (move.epoch is not None and move.epoch != epoch):
                return Moved(move.user_id, channel, before, before, False)
            number = next(self._numbers)
            del user.seats[channel]
            user.seats[channel] = _PACKING.pack(epoch, to.seq, to.at or 0, change, filled, number, latest, flags) + (
                to.id.encode() if to.id else b""
            )
            ledger = user.live.get(channel)
            if ledger is not None:
                ledger.read(to.seq)
                self._drop_if_empty(user, channel, ledger)
            pointer = Pointer(epoch, to.seq, apart, to.id, to.at, now, number)
            return Moved(move.user_id, channel, before, pointer, True)
        row = _unpack(raw)
        state = before.state
        after, place = self._target(move, state, row)
        if after is state:
            return Moved(move.user_id, channel, before, before, False)
        self._set_state(user, channel, row, state, after, place)
        pointer = Pointer(after.epoch, after.seq, after.apart, place.id, place.at, now, row.number)
        return Moved(move.user_id, channel, before, pointer, True)

    def _target(self, move: Move, state: ReadState, row: _Row) -> tuple[ReadState, Position]:
        """The state that a move leads to (the same object where it changes nothing), and where that points."""
        match move:
            case Read(epoch=epoch) | Rewind(epoch=epoch) if epoch is not None and epoch != state.epoch:
                return state, row.place
            case Read():
                after = advance(state, move.to.seq, move.apart)
                return after, (move.to if after.seq != state.seq else row.place)
            case Rewind():
                epoch = next_epoch(state.epoch, self._generation)
                after = rewind(state, move.seq, move.own, epoch)
                return after, (move.before if after.seq != state.seq else row.place)
            case Restore():
                epoch = next_epoch(state.epoch, self._generation)
                restored = give_back(state, move.before, move.after, epoch)
                return (state, row.place) if restored is None else (restored, move.to)

    def _set_state(
        self, user: _User, channel: str, row: _Row, before: ReadState, after: ReadState, place: Position
    ) -> None:
        row.epoch, row.seq = after.epoch, after.seq
        row.point(place)
        if after.apart:
            user.apart[channel] = after.apart
        elif before.apart:
            del user.apart[channel]
        if after.epoch != before.epoch:
            user.live[channel] = None
        elif (ledger := user.live.get(channel)) is not None:
            ledger.read(after.seq)
            for seq in after.apart - before.apart:
                ledger.remove(seq)
            self._drop_if_empty(user, channel, ledger)
        self._put(user, channel, row)

    @staticmethod
    def _drop_if_empty(user: _User, channel: str, ledger: Ledger) -> None:
        if not ledger:
            if ledger.floor:
                user.live[channel] = None
            else:
                del user.live[channel]

    def _put(self, user: _User, channel: str, row: _Row) -> None:
        """Stores a seat that has changed, as the newest."""
        row.number = next(self._numbers)
        user.seats.pop(channel, None)
        user.seats[channel] = row.pack()

    # ------------------------------------------------------------ what happened in channels

    async def apply(self, steps: Sequence[UserStep]) -> list[Moved]:
        """Take what happened in channels, in order. Returns the pointers that moved. A repeat does nothing."""
        moved: list[Moved] = []
        now = self._clock()
        for step in steps:
            match step:
                case Fan():
                    for user in step.users:
                        self._fan(user, step, now)
                case OwnRead():
                    moved.extend(self._own_read(step))
                case Joined():
                    for user, pointer in step.pointers:
                        moved.extend(self._joined(user, step, pointer))
                case Left() | Switched() | Gone():
                    for user in step.users:
                        self._restructured(user, step)
        return moved

    def _fan(self, user_id: str, fan: Fan, now: int) -> None:
        user = self._users.get(user_id)
        raw = None if user is None else user.seats.get(fan.channel_id)
        if user is None or raw is None:
            return
        row = _unpack(raw)
        if fan.change <= row.filled or not row.flags & _MEMBER:
            return
        row.filled = fan.change
        if fan.put is not None and user_id != fan.sender:
            mention = fan.named is None or user_id in fan.named
            self._fan_put(user, row, fan, mention, now)
        elif fan.remove and (ledger := user.live.get(fan.channel_id)) is not None:
            ledger.remove(fan.remove)
            self._drop_if_empty(user, fan.channel_id, ledger)
        if not row.flags & _TIMELINE:
            _reorder(user, fan.channel_id, row.latest, fan.latest_at)
        row.latest = fan.latest_at
        self._put(user, fan.channel_id, row)

    def _fan_put(self, user: _User, row: _Row, fan: Fan, mention: bool, now: int) -> None:
        entry, channel = fan.put, fan.channel_id
        assert entry is not None
        if entry.seq <= row.seq or entry.seq in user.apart.get(channel, _NOTHING):
            return
        ledger = user.live.get(channel)
        if ledger is None and channel in user.live:
            return
        only_mentions = bool(row.flags & _TIMELINE)
        if fan.edit and not only_mentions:
            if ledger is not None and entry.seq in ledger:
                ledger.set_mention(entry.seq, mention)
        elif mention or not only_mentions:
            if ledger is None:
                ledger = user.live[channel] = Ledger(self._cap)
            ledger.put(entry, mention)
            ledger.touched = now
        elif ledger is not None:
            ledger.remove(entry.seq)
            self._drop_if_empty(user, channel, ledger)

    def _own_read(self, step: OwnRead) -> Iterator[Moved]:
        user = self._loaded(step.user_id)
        if user is None:
            return
        row = self._row(user, step.channel_id)
        before = ReadState(row.epoch, row.seq, user.apart.get(step.channel_id, _NOTHING))
        after = merge(before, step.pointer.state)
        after = advance(after, after.seq, (step.seq,))
        yield from self._merged(user, step.user_id, step.channel_id, row, before, after, step.pointer)

    def _merged(
        self, user: _User, user_id: str, channel: str, row: _Row, before: ReadState, after: ReadState, given: Pointer
    ) -> Iterator[Moved]:
        """Stores a merged state; yields it if the durable store doesn't have it yet."""
        if after == before:
            return
        place = given.place if (after.epoch, after.seq) == (given.epoch, given.seq) else row.place
        was = Pointer(before.epoch, before.seq, before.apart, *_id_and_at(row.place))
        self._set_state(user, channel, row, before, after, place)
        if after != given.state:
            pointer = Pointer(*_triple(after), *_id_and_at(place), self._clock(), row.number)
            yield Moved(user_id, channel, was, pointer, True)

    def _joined(self, user_id: str, step: Joined, pointer: Pointer) -> Iterator[Moved]:
        user = self._loaded(user_id)
        if user is None:
            return
        channel = step.channel_id
        row = self._row(user, channel)
        if step.change > row.change:
            row.change = row.filled = step.change
            row.flags = _MEMBER | (_TIMELINE if step.mode is Mode.TIMELINE else 0)
            if step.mode is Mode.TIMELINE:
                user.timelines[channel] = None
            _reorder(user, channel, row.latest, None if step.mode is Mode.TIMELINE else step.latest_at)
            row.latest = step.latest_at
            user.live.pop(channel, None)
            if max(pointer.seq, row.seq) < step.last_seq:
                user.live[channel] = None
            self._put(user, channel, row)
        before = ReadState(row.epoch, row.seq, user.apart.get(channel, _NOTHING))
        yield from self._merged(user, user_id, channel, row, before, merge(before, pointer.state), pointer)

    def _restructured(self, user_id: str, step: Left | Switched | Gone) -> None:
        user = self._loaded(user_id)
        if user is None:
            return
        channel = step.channel_id
        row = self._row(user, channel)
        if step.change <= row.change:
            return
        _reorder(user, channel, row.latest, None)
        match step:
            case Switched():
                row.flags |= _TIMELINE
                user.timelines[channel] = None
                if channel in user.live:
                    user.live[channel] = None
            case Left():
                row.flags &= ~_MEMBER
                user.live.pop(channel, None)
                user.timelines.pop(channel, None)
            case Gone():
                row = _Row()
                user.live.pop(channel, None)
                user.timelines.pop(channel, None)
                user.apart.pop(channel, None)
                user.preferences.pop(channel, None)
        row.change = row.filled = step.change
        self._put(user, channel, row)

    def _loaded(self, user_id: str) -> _User | None:
        """The user; or None, and then a load that is under way is too old."""
        user = self._users.get(user_id)
        if user is None:
            self._tickets.pop(user_id, None)
        return user

    @staticmethod
    def _row(user: _User, channel: str) -> _Row:
        raw = user.seats.get(channel)
        return _Row() if raw is None else _unpack(raw)

    # ------------------------------------------------------------ views

    async def view(self, user: str, which: Which) -> UserView | None:
        """The user's seats at one moment, also those left."""
        known = self._users.get(user)
        if known is None:
            return None
        known.used = self._clock()
        channels: Iterable[str]
        if which == "all":
            channels = known.seats
        elif isinstance(which, int):
            newest_first = reversed(known.seats.items())
            channels = [channel for channel, _ in takewhile(lambda item: _unpack(item[1]).number > which, newest_first)]
        else:
            channels = [channel for channel in which if channel in known.seats]
        return UserView(self._change(known), known.since, [self._seat(known, channel) for channel in channels])

    @staticmethod
    def _change(user: _User) -> int:
        last = next(reversed(user.seats), None)
        return user.since if last is None else max(user.since, _unpack(user.seats[last]).number)

    def _seat(self, user: _User, channel: str) -> Seat:
        row = _unpack(user.seats[channel])
        apart = user.apart.get(channel, _NOTHING)
        return Seat(
            channel_id=channel,
            member=bool(row.flags & _MEMBER),
            mode=row.mode,
            pointer=Pointer(row.epoch, row.seq, apart, *_id_and_at(row.place), 0, row.number),
            preferences=user.preferences.get(channel, _DEFAULTS),
            ledger=self._ledger_view(user, channel, row),
        )

    def _ledger_view(self, user: _User, channel: str, row: _Row) -> LedgerView | None:
        if channel not in user.live:
            return _EMPTY
        ledger = self._fresh(user, channel)
        if ledger is None:
            return None
        named = tuple(ledger.named) if row.flags & _TIMELINE else ()
        first = ledger.place(0) if ledger else None
        return LedgerView(len(ledger), len(ledger.named), first, ledger.floor > 0, named)

    def _fresh(self, user: _User, channel: str) -> Ledger | None:
        """The ledger, unless it is not loaded or has expired."""
        ledger = user.live[channel]
        if ledger is None:
            return None
        now = self._clock()
        if ledger.touched and now - ledger.touched > self._ttl:
            user.live[channel] = None
            return None
        ledger.touched = now
        return ledger

    async def survey(self, user: str) -> Survey | None:
        """What may be unread, at one moment."""
        known = self._users.get(user)
        if known is None:
            return None
        known.used = self._clock()
        timelines = known.timelines
        counts, unloaded, threads = [], [], []
        for channel in list(known.live):
            if channel in timelines:
                continue
            ledger = self._fresh(known, channel)
            if ledger is None:
                unloaded.append(channel)
            elif is_thread(channel):
                threads.append((channel, len(ledger.seqs), ledger.floor > 0))
            else:
                counts.append((channel, len(ledger.seqs), len(ledger.named), ledger.floor > 0))
        return Survey(self._change(known), counts, unloaded, list(timelines), threads, known.preferences)

    async def inbox(self, user: str, after: tuple[int, str] | None, limit: int) -> list[tuple[int, str]] | None:
        """The user's ledger channels by latest activity, as (minus the time, channel), after such a pair."""
        known = self._users.get(user)
        if known is None:
            return None
        known.used = self._clock()
        if known.inbox is None:
            rows = ((channel, _unpack(raw)) for channel, raw in known.seats.items() if not is_thread(channel))
            known.inbox = sorted((-row.latest, channel) for channel, row in rows if row.flags == _MEMBER)
        start = 0 if after is None else bisect_right(known.inbox, after)
        return known.inbox[start : start + limit]

    async def prefer(self, user: str, channel: str, preferences: Preferences) -> int | None:
        """Set preferences; returns the user's change number."""
        known = self._loaded(user)
        if known is None or channel not in known.seats:
            return None
        known.preferences.pop(channel, None)
        if preferences != _DEFAULTS:
            known.preferences[channel] = preferences
        row = self._row(known, channel)
        self._put(known, channel, row)
        return row.number

    # ------------------------------------------------------------ loading

    async def begin(self, user: str) -> int:
        """Announce a load. Whatever changes for the user until `install` makes that one fail."""
        ticket = self._tickets[user] = self._tickets.get(user) or next(self._next_ticket)
        return ticket

    async def install(self, user: str, ticket: int, seats: Sequence[SeatLoad]) -> bool:
        """Take a loaded user; False if something has happened since `begin`: load again."""
        if self._tickets.get(user) != ticket:
            return False
        del self._tickets[user]
        loaded = _User(next(self._numbers), self._clock())
        for seat in sorted(seats, key=lambda seat: seat.pointer.change):
            self._install_seat(loaded, seat)
        self._users[user] = loaded
        return True

    @staticmethod
    def _install_seat(user: _User, load: SeatLoad) -> None:
        channel, pointer = load.channel_id, load.pointer
        row = _Row(pointer.epoch, pointer.seq, 0, load.change, load.change, pointer.change, load.latest_at)
        row.point(pointer.place)
        row.flags = (_MEMBER if load.member else 0) | (_TIMELINE if load.mode is Mode.TIMELINE else 0)
        user.seats[channel] = row.pack()
        if pointer.apart:
            user.apart[channel] = pointer.apart
        if load.preferences != _DEFAULTS:
            user.preferences[channel] = load.preferences
        if load.member and load.mode is Mode.TIMELINE:
            user.timelines[channel] = None
        if load.member and not load.empty:
            user.live[channel] = None

    async def install_ledgers(self, loads: Sequence[LedgerLoad]) -> list[bool]:
        """Take loaded ledgers; False where a newer change or another epoch has passed: load again."""
        now = self._clock()
        return [self._install_ledger(load, now) for load in loads]

    def _install_ledger(self, load: LedgerLoad, now: int) -> bool:
        user = self._users.get(load.user_id)
        raw = None if user is None else user.seats.get(load.channel_id)
        if user is None or raw is None:
            return False
        row = _unpack(raw)
        if load.change < row.filled or load.state.epoch != row.epoch:
            return False
        apart = user.apart.get(load.channel_id, _NOTHING)
        ledger = Ledger(self._cap, now)
        for entry in load.entries:
            if entry.seq > row.seq and entry.seq not in apart:
                ledger.put(entry, entry.mention)
        if load.capped and load.entries and row.seq < load.entries[0].seq - 1:
            ledger.floor = max(ledger.floor, load.entries[0].seq - 1)
        row.filled = load.change
        user.seats[load.channel_id] = row.pack()
        user.live[load.channel_id] = ledger
        self._drop_if_empty(user, load.channel_id, ledger)
        return True

    async def forget(self, user: str, channel: str | None = None) -> None:
        """Drop a user (or one ledger); loaded again on use."""
        if channel is None:
            self._users.pop(user, None)
        elif (known := self._users.get(user)) is not None and channel in known.seats:
            known.live[channel] = None

    # ------------------------------------------------------------ memory

    def bytes(self) -> int:
        """About how much memory the users take."""
        seats = sum(len(user.seats) for user in self._users.values())
        entries = sum(len(ledger) for user in self._users.values() for ledger in user.live.values() if ledger)
        return len(self._users) * USER_BYTES + seats * SEAT_BYTES + entries * ENTRY_BYTES

    async def clear(self) -> None:
        """Drop everything."""
        self._users.clear()

    async def shrink(self, share: float) -> int:
        """Drop this share of the users, the least recently used first; returns how many."""
        oldest = sorted(self._users, key=lambda user: self._users[user].used)
        dropped = oldest[: min(ceil(len(oldest) * share), len(oldest) - 1)]
        for user in dropped:
            del self._users[user]
            EVICTIONS.labels("user").inc()
        return len(dropped)


def _reorder(user: _User, channel: str, before: int, after: int | None) -> None:
    """Moves a channel in the inbox, if there is one; None takes it out."""
    if user.inbox is None or is_thread(channel):
        return
    index = bisect_left(user.inbox, (-before, channel))
    if index < len(user.inbox) and user.inbox[index] == (-before, channel):
        del user.inbox[index]
    if after is not None:
        insort(user.inbox, (-after, channel))


def _id_and_at(place: Position) -> tuple[str | None, int | None]:
    return place.id, place.at


def _triple(state: ReadState) -> tuple[int, int, frozenset[int]]:
    return state.epoch, state.seq, state.apart
