"""Reads: mark read in all its forms, mark unread, mark all read, and undo.

A move (read, rewind or restore) changes the hot state first. Then the resulting state goes to the log, and the caller
is answered when the log has it. The hot store may lose its state in between, and users may be reloaded without the
move: `_finish` notices that and repeats the move.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence

import structlog
from msgspec.structs import replace

from readstate.api import (
    AllRead,
    ChannelRead,
    Id,
    MarkUnread,
    ReadAll,
    ReadOutcome,
    ReadResult,
    ReadTarget,
    Undone,
    UserRead,
)
from readstate.batching import Batcher, Batchers
from readstate.domain.announcements import PointerMoved, UserRoomChanged
from readstate.domain.errors import (
    Invalid,
    MessageDeleted,
    MessageNotFound,
    MessageWithoutSeq,
    ReadstateError,
    Unavailable,
    UndoNotFound,
)
from readstate.domain.events import read_event
from readstate.domain.model import START, Channel, Mode, Position
from readstate.domain.rooms import is_thread
from readstate.domain.rules import advance, check_id, check_size, check_user_id, parse_time
from readstate.ports import (
    Absent,
    Bus,
    Clock,
    CountQuery,
    Durable,
    Freshness,
    HotUsers,
    Log,
    Move,
    Moved,
    Presence,
    Read,
    Restore,
    Rewind,
    Seen,
    UndoItem,
)
from readstate.telemetry import RECEIPTS

from .coalesced import CoalescedLookups
from .counting import Counting, last_read, shown
from .loading import MAX_TRIES, Loader
from .pending_writes import PendingWrites
from .positions import Positions

log = structlog.get_logger()

MAX_MOVES = 5_000
_Named = tuple[str, str, ReadTarget]
"""A requested read: user, channel, target."""
_TARGETS = ("up_to", "up_to_seq", "up_to_time", "messages")
_OK = ReadOutcome("ok", True)
_SAME = ReadOutcome("ok", False)


class Reads:
    def __init__(
        self,
        users: HotUsers,
        durable: Durable,
        log: Log,
        loader: Loader,
        places: Positions,
        counting: Counting,
        presence: Presence,
        bus: Bus,
        pending_writes: PendingWrites,
        freshness: Freshness,
        clock: Clock,
        batchers: Batchers,
        *,
        instance_id: str,
        max_batch: int,
        unread_cap: int,
        undo_ttl: int,
        alone: bool,
    ) -> None:
        self._users = users
        self._durable = durable
        self._log = log
        self._loader = loader
        self._places = places
        self._counting = counting
        self._presence = presence
        self._bus = bus
        self._pending_writes = pending_writes
        self._freshness = freshness
        self._clock = clock
        self._alone = alone
        self._instance = instance_id
        self._max_batch = max_batch
        self._cap = unread_cap
        self._undo_ttl = undo_ttl * 1000
        self._moves: Batcher[Move, Moved | Absent] = batchers(
            self._move, max_items=MAX_MOVES, concurrency=2, name="moves"
        )
        self._lookups = CoalescedLookups(loader, batchers, alone=alone)
        self._in_focus: list[tuple[list[Move], list[Moved | Absent], int, Callable[[], None]]] = []
        self._gathering: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ what callers can do

    async def mark_read(self, user: str, channel: str, target: ReadTarget, origin: str | None = None) -> ReadResult:
        """Read everything, up to a position, or exactly these messages."""
        named = self._named(user, channel, target, "user", "channel")
        read = replace(await self._resolve(*named), origin=origin)
        return await self._answer(await self._move_one(read))

    async def mark_unread(self, user: str, channel: str, request: MarkUnread, origin: str | None = None) -> ReadResult:
        """Make a message and every later one by other users unread, as a new epoch."""
        check_user_id(user, "user")
        check_id(channel, "channel")
        id_ = check_id(request.from_, "from")
        user_room = await self._loader.user_room(user, channel)
        message = (await self._places.messages([(channel, id_)])).get((channel, id_))
        if message is None:
            raise MessageNotFound(f"there is no message {id_!r} in channel {channel!r}", field="from")
        if message.deleted:
            raise MessageDeleted(f"message {id_!r} is deleted", field="from")
        if message.seq is None:
            raise MessageWithoutSeq(field="from")
        before = START
        if message.seq > 1:
            before = (await self._places.by_seq([(channel, message.seq - 1)]))[channel, message.seq - 1]
        own = await self._durable.own_seqs(user, channel, message.seq, self._cap)
        if request.epoch in {None, user_room.pointer.epoch}:
            # Blur before the epoch ends: focus reads an arriving message in the epoch in which the channel was open.
            await self._presence.blur(user, channel)
            await self._durable.cut_skipped(user, channel, message.seq)
        moved = await self._move_one(Rewind(user, channel, message.seq, before, own, request.epoch, origin))
        if moved.changed:
            await self._presence.blur(user, channel)
            moved = await self._read_own(moved, origin)
        return await self._answer(moved)

    async def read_place(self, user: str, room: str, to: Position, origin: str | None = None) -> Moved:
        """Read a channel or thread up to a known position."""
        return await self._move_one(Read(user, room, to, origin=origin))

    async def read_in_focus(self, places: Sequence[Seen]) -> None:
        """Read messages that arrived while the user had the channel open.

        Counts include these reads at once. They go to the log while the next ones are collected.
        """
        reads: list[Move] = [Read(one.user_id, one.channel_id, one.place, epoch=one.epoch) for one in places]
        done = self._pending_writes.begin({read.user_id for read in reads})
        try:
            generation = await self._users.generation()
            self._in_focus.append((reads, await self._users.move(reads), generation, done))
        except BaseException:
            done()
            raise
        if self._gathering is None:
            self._gathering = asyncio.create_task(self._write_in_focus())

    async def _write_in_focus(self) -> None:
        try:
            while self._in_focus:
                await self._write_gathered()
        finally:
            self._gathering = None

    async def _write_gathered(self) -> None:
        gathered, self._in_focus = self._in_focus, []
        reads = [read for some, *_ in gathered for read in some]
        results = [result for _, some, *_ in gathered for result in some]
        try:
            if self._freshness.behind:
                results = await self._move_in(await self._fresh_generation(), reads)
            await self._finish(reads, results, gathered[0][2])
        except ReadstateError as error:  # if the log refused it, _persist has made devices look again
            log.warning("a read by focus was not written", action="read", code=error.code)
        finally:
            for *_, done in gathered:
                done()

    async def _read_own(self, rewound: Moved, origin: str | None) -> Moved:
        """Read the user's own messages that were stored during the rewind: they stay read."""
        user, channel, pointer = rewound.user_id, rewound.channel_id, rewound.pointer
        own = await self._durable.own_seqs(user, channel, pointer.seq + 1, self._cap)
        late = tuple(seq for seq in own if seq not in pointer.apart)
        if not late:
            return rewound
        moved = await self._move_one(Read(user, channel, START, late, pointer.epoch, origin))
        return replace(moved, before=rewound.before, changed=True)

    async def mark_many(self, reads: Sequence[UserRead]) -> list[ReadOutcome]:
        """Reads of any users. A rejected read does not affect the others."""
        check_size(reads, self._max_batch, "reads")
        resolved = await self._resolve_all([self._named_or_error(read) for read in reads])
        results = iter(await self._moves.submit([read for read in resolved if isinstance(read, Read)]))
        outcomes: list[ReadOutcome] = []
        for read in resolved:
            result: object = next(results) if isinstance(read, Read) else read
            if isinstance(result, Moved):
                outcomes.append(_OK if result.changed else _SAME)
            elif isinstance(result, ReadstateError):
                outcomes.append(ReadOutcome("rejected", False, result.code, result.detail))
            else:
                outcomes.append(await self._rejected(read))
        return outcomes

    async def mark_all(self, user: str, request: ReadAll) -> AllRead:
        """Read all channels or those listed, and return a token for `undo`."""
        check_user_id(user, "user")
        if request.all == (request.items is not None):
            raise Invalid('give either "all": true or "items"', field="items")
        if request.items is not None:
            moves = await self._moves_of_items(user, request)
        else:
            moves = await self._moves_of_all(user, request)
        token = secrets.token_urlsafe(18)
        expected = await self._expected(user, moves)
        await self._save_undo(user, token, expected)
        results = await self._moves.submit(moves)
        done: dict[str, UndoItem] = {}
        for moved in results:
            if isinstance(moved, Moved) and moved.changed:
                first = done.get(moved.channel_id)
                before, to = (first.before, first.to) if first else (moved.before.state, moved.before.place)
                done[moved.channel_id] = UndoItem(moved.channel_id, before, to, moved.pointer.state)
        if list(done.values()) != expected:
            await self._save_undo(user, token, list(done.values()))
        return AllRead(len(done), token)

    async def _expected(self, user: str, moves: Sequence[Read]) -> list[UndoItem]:
        """What the moves will do unless something interferes. Saved before them, so that no move lacks its undo."""
        user_rooms = {
            s.channel_id: s for s in (await self._loader.view(user, [m.channel_id for m in moves])).user_rooms
        }
        items: dict[str, UndoItem] = {}
        for move in moves:
            known = items.get(move.channel_id)
            if (user_room := user_rooms.get(move.channel_id)) is None:  # the user was erased meanwhile
                continue
            pointer = user_room.pointer
            now = pointer.state if known is None else known.after
            after = now if move.epoch not in {None, now.epoch} else advance(now, move.to.seq, move.apart)
            if after != now:
                items[move.channel_id] = UndoItem(move.channel_id, pointer.state, pointer.place, after)
        return list(items.values())

    async def _save_undo(self, user: str, token: str, items: Sequence[UndoItem]) -> None:
        now = self._clock()
        await self._durable.save_undo(token, user, now + self._undo_ttl, now, items)

    async def undo(self, user: str, token: str) -> Undone:
        """Restore the pointers from before a mark-all-read, except those that have moved since."""
        check_user_id(user, "user")
        items = await self._durable.load_undo(token, user, self._clock())
        if items is None:
            raise UndoNotFound(field="undo")
        moves = [Restore(user, item.channel_id, item.before, item.to, item.after) for item in items]
        results = await self._moves.submit(moves)
        with contextlib.suppress(Unavailable):  # the token expires anyway, and has nothing left to restore
            await self._durable.drop_undo(token)
        return Undone(sum(isinstance(result, Moved) and result.changed for result in results))

    async def close(self) -> None:
        await self._moves.close()
        await self._lookups.close()
        if self._gathering is not None:
            await self._gathering

    # ------------------------------------------------------------ from targets to moves

    def _named(
        self, user: Id, channel: Id, target: ReadTarget, user_field: str = "user_id", channel_field: str = "channel_id"
    ) -> _Named:
        """Check ids and sizes before anything is looked up."""
        named = check_user_id(user, user_field), check_id(channel, channel_field), target
        up_to, messages = target.up_to, target.messages
        several = (up_to is not None) + (target.up_to_seq is not None) + (target.up_to_time is not None)
        if several + (messages is not None) > 1:
            raise Invalid(f"give one of {', '.join(_TARGETS)}, or none of them for everything", field=_second(target))
        if up_to is not None:
            check_id(up_to, "up_to")
        elif messages is not None:
            check_size(messages, self._max_batch, "messages")
            for id_ in messages:
                check_id(id_, "messages")
        return named

    def _named_or_error(self, read: UserRead) -> _Named | ReadstateError:
        try:
            return self._named(read.user_id, read.channel_id, read)
        except ReadstateError as error:
            return error

    async def _resolve(self, user: str, channel: str, target: ReadTarget) -> Read:
        info = await self._lookups.channel(channel)
        ids: dict[tuple[str, str], Position] = {}
        seqs: dict[tuple[str, int], Position] = {}
        if target.up_to_seq is not None and 0 < target.up_to_seq < info.last_seq:
            seqs = await self._places.by_seq([(channel, target.up_to_seq)])
        elif target.up_to is not None:
            ids = await self._places.by_id([(channel, _text(target.up_to))])
        elif target.messages is not None:
            ids = await self._places.by_id([(channel, _text(id_)) for id_ in target.messages])
        return await self._read(user, info, target, ids, seqs)

    async def _resolve_all(self, reads: Sequence[_Named | ReadstateError]) -> list[Read | ReadstateError]:
        """The position that each read leads to, or its error."""
        named = [read for read in reads if not isinstance(read, ReadstateError)]
        names = list({channel for _, channel, _ in named})
        channels = dict(zip(names, await self._loader.channels(names), strict=True))
        by_id, by_seq = [], []
        for _, name, target in named:
            channel = channels[name]
            if channel is None:
                continue
            if target.up_to is not None:
                by_id.append((name, _text(target.up_to)))
            elif target.messages is not None:
                by_id += [(name, _text(id_)) for id_ in target.messages]
            elif target.up_to_seq is not None and 0 < target.up_to_seq < channel.last_seq:
                by_seq.append((name, target.up_to_seq))
        ids = await self._places.by_id(by_id) if by_id else {}
        seqs = await self._places.by_seq(by_seq) if by_seq else {}
        resolved: list[Read | ReadstateError] = []
        for read in reads:
            if isinstance(read, ReadstateError):
                resolved.append(read)
                continue
            user, name, target = read
            channel = channels[name]
            try:
                if channel is None:
                    channel = await self._loader.channel(name)
                resolved.append(await self._read(user, channel, target, ids, seqs))
            except Unavailable:  # nothing is done yet: the caller can retry the whole request
                raise
            except ReadstateError as error:
                resolved.append(error)
        return resolved

    async def _read(
        self,
        user: str,
        channel: Channel,
        target: ReadTarget,
        ids: dict[tuple[str, str], Position],
        seqs: dict[tuple[str, int], Position],
    ) -> Read:
        name = channel.channel_id
        up_to, seq, messages = target.up_to, target.up_to_seq, target.messages
        apart: tuple[Position, ...] = ()
        if seq is not None:
            to = channel.end if seq >= channel.last_seq else seqs[name, seq] if seq else START
        elif up_to is not None:
            to = _place(ids, name, _text(up_to), "up_to")
        elif messages is not None:
            to = START
            apart = tuple(_place(ids, name, _text(id_), "messages") for id_ in messages)
        elif target.up_to_time is not None:
            to = await self._place_at(channel, parse_time(target.up_to_time, "up_to_time"))
        else:
            to = channel.end
        known = tuple(one.id or "" for one in apart)
        return Read(user, name, to, tuple(one.seq for one in apart), target.epoch, ids=known)

    async def _place_at(self, channel: Channel, time: int) -> Position:
        if time >= channel.last_at:
            return START if channel.last_id is None else channel.end
        return await self._durable.by_time(channel.channel_id, time)

    async def _moves_of_items(self, user: str, request: ReadAll) -> list[Read]:
        items: Sequence[ChannelRead] = request.items or ()
        if request.up_to_time is not None:
            raise Invalid("up_to_time goes with all; an item has its own", field="up_to_time")
        check_size(items, self._max_batch, "items")
        named: list[_Named] = []
        for index, item in enumerate(items):
            with _of_item(index):
                named.append(self._named(user, item.channel_id, item))
        names = list(dict.fromkeys(channel for _, channel, _ in named))
        members = {
            user_room.channel_id for user_room in (await self._loader.view(user, names)).user_rooms if user_room.member
        }
        for index, (_, channel, _) in enumerate(named):
            if channel not in members:
                with _of_item(index):
                    raise await self._loader.no_user_room(user, channel)
        moves = []
        for index, read in enumerate(await self._resolve_all(named)):
            with _of_item(index):
                if isinstance(read, ReadstateError):
                    raise read
            moves.append(read)
        return moves

    async def _moves_of_all(self, user: str, request: ReadAll) -> list[Read]:
        time = None if request.up_to_time is None else parse_time(request.up_to_time, "up_to_time")
        everything = (await self._loader.view(user, "all")).user_rooms
        user_rooms = [user_room for user_room in everything if user_room.member and not is_thread(user_room.channel_id)]
        channels = await self._loader.channels([user_room.channel_id for user_room in user_rooms])
        moves = []
        for user_room, channel in zip(user_rooms, channels, strict=True):
            if channel is not None and user_room.pointer.seq < channel.last_seq:
                to = channel.end if time is None else await self._place_at(channel, time)
                moves.append(Read(user, user_room.channel_id, to))
        return moves

    # ------------------------------------------------------------ hot state, then log

    async def _move_one(self, move: Move) -> Moved:
        result = (await self._moves.submit([move]))[0]
        if result is Absent.NOT_A_MEMBER:
            raise await self._loader.no_user_room(move.user_id, move.channel_id)
        return _expect(result)

    async def _move(self, moves: Sequence[Move]) -> list[Moved | Absent]:
        """Apply moves and return when their states are durable.

        Moves that changed nothing are written too: the state that they found may not be durable yet.
        """
        generation = await self._fresh_generation()
        return await self._finish(moves, await self._move_in(generation, moves), generation)

    async def _fresh_generation(self) -> int:
        """Wait until no reads are missing, and return the generation.

        While reads are missing, the hot state may be in an old epoch, and a read made in it would be lost.
        """
        generation = await self._users.generation()  # calls the hot store, so that a new generation is noticed
        while self._freshness.behind:
            await self._freshness.caught_up()
            generation = await self._users.generation()
        return generation

    async def _move_in(self, generation: int, moves: Sequence[Move]) -> list[Moved | Absent]:
        """Moves only users loaded in this generation: a later one may lack epochs."""
        return await self._users.move(moves, None if self._alone else generation)

    async def _finish(
        self, moves: Sequence[Move], results: list[Moved | Absent], generation: int
    ) -> list[Moved | Absent]:
        """Make the states durable that the moves have led to.

        `generation` is the one from before the first move. Users who were dropped since may have been reloaded without
        the moves, and may be in another epoch: their moves are repeated.
        """
        results = await self._load_and_move(moves, results)
        todo = [index for index, result in enumerate(results) if isinstance(result, Moved)]
        for _ in range(MAX_TRIES):
            done = [(moves[index], moved) for index in todo if isinstance(moved := results[index], Moved)]
            lost = await self._persist(done, generation) if done else set()
            todo = [index for index in todo if moves[index].user_id in lost]
            if not todo:
                return results
            generation = await self._fresh_generation()
            again = [moves[index] for index in todo]
            repeated = await self._load_and_move(again, await self._move_in(generation, again))
            for index, second in zip(todo, repeated, strict=True):
                first = results[index]
                if isinstance(first, Moved) and isinstance(second, Moved):
                    same = first.pointer.epoch == second.pointer.epoch  # else another mark-unread came first
                    changed = second.changed or (same and first.changed)
                    results[index] = replace(second, before=first.before, changed=changed)
        raise Unavailable("the hot state is lost again and again; try again")

    async def _load_and_move(self, moves: Sequence[Move], results: list[Moved | Absent]) -> list[Moved | Absent]:
        """Loads the users who were not loaded, and repeats their moves."""
        for _ in range(MAX_TRIES):
            absent = [index for index, result in enumerate(results) if result is Absent.NOT_LOADED]
            if not absent:
                break
            await self._loader.load_users(moves[index].user_id for index in absent)
            again = await self._move_in(await self._fresh_generation(), [moves[index] for index in absent])
            for index, result in zip(absent, again, strict=True):
                results[index] = result
        return results

    async def _persist(self, done: Sequence[tuple[Move, Moved]], generation: int) -> set[str]:
        """Append states to the log, then announce them; return the users who were dropped meanwhile.

        If the log refuses the states, the hot state is ahead of it. A process with its own hot state drops it. A shared
        hot store keeps it: the user's next read brings it to the log, and a reload could lack other reads that only the
        log has.
        """
        now = self._clock()
        users = {moved.user_id for _, moved in done}
        try:
            with self._pending_writes.of(users):
                await self._log.reads([read_event(m.user_id, m.channel_id, m.pointer, now) for _, m in done])
                lost = await self._users.dropped(generation, users)
        except BaseException:
            if self._alone:
                await self._forget(users)
            await self._bus.publish([UserRoomChanged(moved.user_id, moved.channel_id) for _, moved in done])
            raise
        RECEIPTS.inc(len(done))
        if not self._bus.idle:
            await self._bus.publish([self._announcement(move, moved) for move, moved in done if moved.changed])
        return lost

    def _announcement(self, move: Move, moved: Moved) -> PointerMoved:
        return PointerMoved(moved.user_id, moved.channel_id, moved.before, moved.pointer, self._instance, move.origin)

    async def _forget(self, users: Iterable[str]) -> None:
        """Drop users whose hot state may differ from the durable one; they are reloaded on use."""
        for user in users:
            await self._users.forget(user)

    async def _answer(self, moved: Moved) -> ReadResult:
        unread = await self._left(moved)
        return ReadResult(last_read(moved.pointer), unread, self._counting.label(unread), moved.changed)

    async def _left(self, moved: Moved) -> int:
        """The count after a move, by the user's `count` preference; taken from the move itself if it has the number."""
        if moved.preferences.count == "all":
            if moved.mode is Mode.TIMELINE:
                query = CountQuery(moved.user_id, moved.channel_id, moved.pointer)
                return (await self._lookups.count(query)).count
            if moved.unread is not None:
                return moved.unread
        user_room = await self._loader.user_room(moved.user_id, moved.channel_id)
        channel = await self._loader.channel(moved.channel_id)
        count = (await self._counting.counts(moved.user_id, [user_room], [channel]))[0]
        return shown(user_room.preferences, count.count, count.mentions)

    async def _rejected(self, read: object) -> ReadOutcome:
        assert isinstance(read, Read)
        try:
            raise await self._loader.no_user_room(read.user_id, read.channel_id)
        except Unavailable:  # the caller can retry: reads are idempotent
            raise
        except ReadstateError as error:
            return ReadOutcome("rejected", False, error.code, error.detail)


def _text(id_: str | int) -> str:
    return id_ if isinstance(id_, str) else str(id_)


@contextlib.contextmanager
def _of_item(index: int) -> Iterator[None]:
    """Adds the index of the item to an error's field."""
    try:
        yield
    except ReadstateError as error:
        error.field = f"items[{index}].{error.field or 'channel_id'}"
        raise


def _place(ids: dict[tuple[str, str], Position], channel: str, id_: str, field: str) -> Position:
    place = ids.get((channel, id_))
    if place is None:
        raise MessageNotFound(f"there is no message {id_!r} in channel {channel!r}", field=field)
    if place.seq < 0:
        raise MessageWithoutSeq(field=field)
    return place


def _second(target: ReadTarget) -> str:
    """The first superfluous target."""
    return [name for name in _TARGETS if getattr(target, name) is not None][1]


def _expect(result: Moved | Absent) -> Moved:
    if isinstance(result, Moved):
        return result
    raise Unavailable("the user's state changed meanwhile; try again")
