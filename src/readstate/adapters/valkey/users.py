"""Users in Valkey: reads, hot updates and loads. Every function is atomic and touches one slot."""

import random
import secrets
from collections.abc import Collection, Iterator, Sequence
from struct import Struct as Packing
from typing import Any

from readstate.adapters.drops import Drops
from readstate.domain.hot_updates import FanOut, Gone, Joined, Left, Merged, OwnRead, Switched, UserHotUpdate
from readstate.domain.model import ChangeNumber, DropNumber, Generation, Mode, Pointer, Position, Preferences
from readstate.domain.rooms import is_thread
from readstate.ports import Absent, LedgerLoad, LoadedUserRoom, Move, Moved, Read, Restore, Rewind, StoredKey

from . import OVERTAKEN
from .calls import Packet, UserCalls
from .came import Came, together, weight_of
from .commands import Word, encode
from .functions import Function
from .groups import all_or_reload, chunks, once_or_reload
from .short_way import ABSENT, ShortWay
from .stored import StoredKeys
from .user_rooms import (
    Flag,
    UserFunction,
    flags_of,
    flags_of_room,
    pack_missing,
    pack_seqs,
    pack_user_room,
    pointer_of,
    preferences_of,
)
from .views import ValkeyViews

STAGE = 1_000
"""Fields that one call writes to a staged key."""
ENTRIES_PER_ITEM = 10
"""This many messages of a loaded ledger weigh as much as a hot update."""

_KINDS = {Left: 4, Switched: 5, Gone: 6}

MOVE, LEDGERS = UserFunction("move", width=5, timed=True, expires=True), UserFunction("ledgers", width=5)
APPLY, INSTALL = UserFunction("apply"), UserFunction("install")
BEGIN, STAGED = UserFunction("begin"), Function("stage")
PREFER, FORGET = UserFunction("prefer", expires=True), UserFunction("forget", expires=True)
NUMBER = UserFunction("number")

_HEAD = Packing(">iB")


class ValkeyUsers(ValkeyViews):
    """Implements `HotUsers`, for which `MemoryUsers` is the reference."""

    def __init__(self, calls: UserCalls) -> None:
        super().__init__(calls)
        self._generation = calls.backend.generation
        self._load_ms = calls.backend.timings.load_ms
        self._drops = Drops()
        self._short_way = ShortWay(calls, self._clock)

    async def stored(self, user: str, room: str) -> list[StoredKey]:
        return await StoredKeys(self._calls.backend).of_user(self._calls.keys, user, room)

    # ------------------------------------------------------------ reads

    async def move(self, moves: Sequence[Move], generation: DropNumber | None = None) -> list[Moved | Absent]:
        """Reads take the short way, as far as they can. All moves of a user keep their order."""
        number = None if generation is None else Generation(generation >> 32)
        answers: list[Moved | Absent] = [Absent.NOT_LOADED] * len(moves)
        plain, others = self._short_way.sort(moves)
        left, repeated = await self._short_way.read(moves, plain, answers, number) if plain else ([], False)
        if others or left:
            await self._long_way(moves, sorted([*others, *left]), answers, number, repeated)
        return answers

    async def _long_way(
        self,
        moves: Sequence[Move],
        indexes: Sequence[int],
        answers: list[Moved | Absent],
        generation: Generation | None,
        repeated: bool,
    ) -> None:
        packets = self._calls.packets()
        for packet, index in packets.place((moves[index].user_id, 1, index) for index in indexes):
            move = moves[index]
            packet.add(index, _move(move, *packet.numbers(move.user_id, move.channel_id)))
        call = self._calls.many(MOVE, packets, self._calls.packing(MOVE), generation)
        found, again = await once_or_reload(self._generation, call)
        now = self._clock()
        for packet, values in found:
            if values is OVERTAKEN:  # moves that were applied are lost with the slot
                continue
            for index, value in zip(packet.indexes, values, strict=True):
                answers[index] = _moved(moves[index], value, now, repeated or again)

    # ------------------------------------------------------------ hot updates

    async def apply(self, updates: Sequence[UserHotUpdate]) -> list[Moved]:
        packets = self._calls.packets()
        parts = together(updates)
        packed = list(map(_packed, parts))
        items = (
            (user, weight_of(one), (index, user, item)) for index, one in enumerate(parts) for user, item in _items(one)
        )
        for packet, (index, user, item) in packets.place(items):
            update = packet.number_of_update(index, packed[index])
            packet.add(index, [update, *packet.numbers(user, parts[index].channel_id), *item])
        with all_or_reload(self._generation):
            found, _ = await self._calls.many(APPLY, packets, self._calls.packing(APPLY))
        now = self._clock()
        return [self._moved_by(packet, value, parts, now) for packet, values in found for value in values]

    @staticmethod
    def _moved_by(packet: Packet, value: Sequence[Any], updates: Sequence[UserHotUpdate | Came], now: int) -> Moved:
        index, was, was_apart, raw, apart = value
        user = list(packet.users)[packet.items[index - 1][1] - 1]
        update = updates[packet.indexes[index - 1]]
        return Moved(user, update.channel_id, pointer_of(was, was_apart), pointer_of(raw, apart, now), True)

    async def prefer(
        self, user: str, channel: str, preferences: Preferences, known: ChangeNumber | None = None
    ) -> ChangeNumber | None:
        call = self._calls.once(PREFER, user, channel, encode(preferences), -1 if known is None else known)
        number, _ = await once_or_reload(self._generation, call)
        return None if number < 0 else ChangeNumber(number)

    async def take_number(self, user: str) -> ChangeNumber | None:
        number = await self._calls.one(NUMBER, user)
        return None if number < 0 else ChangeNumber(number)

    async def number_before_load(self, user: str) -> ChangeNumber | None:
        """Always None: the number is decided when a load is installed."""
        return None

    # ------------------------------------------------------------ loading

    async def generation(self, users: Collection[str]) -> DropNumber:
        """The highest generation of all slots, and in the lower 32 bits this process's drop number."""
        return DropNumber((await self._check(users) << 32) + self._drops.count)

    async def answering(self, users: Collection[str]) -> tuple[DropNumber, Collection[str]]:
        if not self._calls.backend.client.is_cluster:
            return await self.generation(users), users
        slots = {user: self._calls.keys.of(user)[0] for user in users}
        there = await self._generation.answering(set(slots.values()))
        number = DropNumber((self._generation.number << 32) + self._drops.count)
        return number, users if len(there) == len({*slots.values()}) else {u for u in users if slots[u] in there}

    async def dropped(self, generation: DropNumber, users: Collection[str]) -> set[str]:
        lost: set[str] = set()
        if await self._check(users) > (known := generation >> 32):
            lost = {user for user in users if self._generation.of(self._calls.keys.of(user)[0]) > known}
        return lost | self._drops.since(generation & 0xFFFFFFFF, users)

    async def _check(self, users: Collection[str]) -> Generation:
        is_cluster = self._calls.backend.client.is_cluster
        return await self._generation.check({self._calls.keys.of(user)[0] for user in users} if is_cluster else None)

    async def begin(self, user: str) -> int:
        """A change for the user before `install` makes the install fail; messages are kept for it instead.

        The ticket is written first, then the markers are checked: a server that was emptied before the check has no
        marker, one that is emptied later has no ticket.
        """
        slot = self._calls.keys.of(user)[0]
        for _ in range(3):
            number = self._generation.of(slot)
            ticket = int(await self._calls.one(BEGIN, user, random.getrandbits(53), self._load_ms))
            await self._generation.check([slot])
            if self._generation.of(slot) == number:
                break
        return ticket

    async def install(self, user: str, ticket: int, user_rooms: Sequence[LoadedUserRoom]) -> bool:
        staged = self._calls.keys.staged(user, secrets.token_hex(8))
        missing = 0
        flat: list[list[Word]] = [[] for _ in staged]
        rows, aparts, counts, preferences, inbox, timelines = flat
        rows += ("", b"")  # the user's marker comes first: a small hash is searched from the beginning
        for load in user_rooms:
            room, flags = load.channel_id, flags_of(load)
            rows += (room, pack_user_room(load.pointer, load.change, flags))
            if flags & Flag.APART:
                aparts += (room, pack_seqs(load.pointer.apart))
            if flags & Flag.PREFERS:
                preferences += (room, encode(load.preferences))
            if flags & Flag.COUNTED:
                counts += (room, pack_missing(flags))
                missing += not flags & Flag.TIMELINE
            if flags & Flag.MEMBER and flags & Flag.TIMELINE:
                timelines.append(room)
            elif flags & Flag.MEMBER and not flags & Flag.THREAD:
                inbox += (load.latest_at, room)
        for key, command, values in zip(staged, ("HSET", "HSET", "HSET", "HSET", "ZADD", "SADD"), flat, strict=True):
            for part in chunks(values, 2 * STAGE):
                await self._calls.backend.one(STAGED, [key], self._load_ms, command, *part)
        return bool(await self._calls.one(INSTALL, user, ticket, missing, more=staged))

    async def install_ledgers(self, loads: Sequence[LedgerLoad]) -> list[bool]:
        answers = [False] * len(loads)
        packets = self._calls.packets()
        weighed = ((one.user_id, 1 + len(one.entries) // ENTRIES_PER_ITEM, n) for n, one in enumerate(loads))
        for packet, index in packets.place(weighed):
            load = loads[index]
            room, state = load.channel_id, load.state
            entries = [(entry.seq, entry.at, entry.id, entry.mention) for entry in load.entries]
            loaded = (state.epoch, load.change, load.floor, entries, state.seq, sorted(state.apart))
            packet.add(index, (*packet.numbers(load.user_id, room), room, *loaded))
        found, _ = await self._calls.many(LEDGERS, packets, self._calls.packing(LEDGERS))
        for packet, values in found:
            for index, value in zip(packet.indexes, values, strict=True):
                answers[index] = bool(value)
        return answers

    async def erase(self, user: str, rooms: Collection[str]) -> None:
        """Includes the ledgers in rooms that only the hot state knows."""
        every = sorted({*rooms, *(await self.pointers(user) or ())})
        ledgers = [self._calls.keys.ledger(user, room) for room in every]
        self._drops.user(user)
        for some in [*chunks(ledgers, STAGE)] or [()]:
            call = self._calls.once(FORGET, user, "", more=some)
            await once_or_reload(self._generation, call)

    async def forget(self, user: str, channel: str | None = None) -> None:
        if channel == "":
            return
        if channel is None:
            self._drops.user(user)
        await once_or_reload(self._generation, self._calls.once(FORGET, user, channel or ""))


# ---------------------------------------------------------------- arguments of functions


def _move(move: Move, user: int, ledger: int) -> list[object]:
    target = (user, ledger, move.channel_id)
    match move:
        case Read():
            item: list[object] = [1, *target, *_position(move.to.seq, move.to), _epoch(move.epoch)]
            if move.apart:
                item.append(sorted(move.apart))
                if len(move.ids) == len(move.apart):
                    item.append(move.ids)
            return item
        case Rewind():
            return [2, *target, *_position(move.seq, move.before), _epoch(move.epoch), sorted(move.own)]
        case Restore():
            before, after = move.before, move.after
            state = (after.epoch, after.seq, sorted(after.apart))
            return [3, *target, *_position(before.seq, move.to), sorted(before.apart), *state]


def _position(seq: int, to: Position) -> tuple[int, int, str]:
    return seq, to.at or 0, to.id or ""


def _epoch(epoch: int | None) -> int:
    return -1 if epoch is None else epoch


def _moved(move: Move, value: Any, now: int, repeated: bool) -> Moved | Absent:
    if isinstance(value, int):
        return ABSENT[value]
    packed, was_apart, apart, preferences = (value, b"", b"", b"") if isinstance(value, bytes) else value
    unread, length = _HEAD.unpack_from(packed)
    was, raw = packed[_HEAD.size : _HEAD.size + length], packed[_HEAD.size + length :]
    before = pointer_of(was, was_apart)
    pointer = pointer_of(raw, apart, now) if raw else before
    return Moved(
        move.user_id,
        move.channel_id,
        before,
        pointer,
        bool(raw) or repeated,
        Mode.TIMELINE if was[0] & Flag.TIMELINE else Mode.LEDGER,
        preferences_of(preferences),
        None if unread < 0 else unread,
    )


def _packed(update: UserHotUpdate | Came) -> list[object]:
    room = update.channel_id
    thread = Flag.THREAD if is_thread(room) else 0
    match update:
        case Came():
            return [7, room, thread, *update.packed]
        case FanOut():
            put, gone = update.put, update.remove
            entry = (0, 0, "") if put is None else (put.seq, put.at, put.id)
            removed = (0, "") if gone is None else (gone.seq, gone.id)
            return [1, room, thread, update.change, *entry, *removed, update.edit, update.latest_at, update.archived]
        case OwnRead():
            return [2, room, thread, update.seq]
        case Merged():
            return [2, room, thread]
        case Joined():
            flags = Flag.MEMBER | flags_of_room(room, update.mode, update.archived)
            to = _position(update.read.seq, update.read)
            return [3, room, flags, update.change, update.last_seq, update.latest_at, *to]
        case _:
            return [_KINDS[type(update)], room, thread, update.change]


def _items(update: UserHotUpdate | Came) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Each user that a hot update goes to, and what it says only to that user."""
    match update:
        case Came():
            special = update.special
            for user in update.users:
                yield user, special.get(user, ())
        case FanOut():
            for user in update.users:
                yield user, (user == update.sender, update.named is None or user in update.named)
        case OwnRead() | Merged():
            yield update.user_id, _given(update.pointer)
        case Joined():
            for user, pointer in update.pointers:
                yield user, _given(pointer)
        case _:
            for user in update.users:
                yield user, ()


def _given(pointer: Pointer) -> tuple[object, ...]:
    return pointer.epoch, pointer.seq, sorted(pointer.apart), pointer.at or 0, pointer.id or ""
