"""Reads of the hot state of users in Valkey. Each read shows one consistent state of a user."""

import asyncio
from collections.abc import Sequence
from struct import pack
from typing import Any

from readstate.domain.model import NO_PREFERENCES, ChangeNumber, Pointer, Position
from readstate.ports import CountDelta, UnreadOverview, UnreadSummary, UserView, Which

from .calls import UserCalls
from .commands import encode
from .groups import chunks
from .user_rooms import (
    COUNT,
    NAMED,
    USER,
    Flag,
    UserFunction,
    pairs,
    pointer_of,
    preferences_of,
    read_at_of,
    user_room_of,
)

UNREAD_SUMMARY, INBOX = UserFunction("unread_summary"), UserFunction("inbox")
ROOMS, NOTE_USE = UserFunction("rooms"), UserFunction("note_use")
VIEW, ROOM_STATES = UserFunction("view"), UserFunction("room_states", width=3)
COUNT_DELTA, CHANGES = UserFunction("count_delta", width=4), UserFunction("changes", width=1)
POINTERS, POINTERS_IN = UserFunction("pointers", width=2), UserFunction("pointers_in", width=3, timed=True)

PART = 1_000
"""Rooms that one call reads."""
MANY = 20_000
"""From this many rooms on, it is cheaper to read all."""
MAX_ATTEMPTS = 100


class ValkeyViews:
    """The part of `HotUsers` that only reads."""

    def __init__(self, calls: UserCalls) -> None:
        self._calls = calls
        self._clock = calls.backend.clock
        self._ttl_ms = calls.backend.ttl_ms

    async def view(self, user: str, which: Which) -> UserView | None:
        """More than `PART` rooms take several calls, which are repeated until the user does not change in between."""
        if which == "all" or isinstance(which, int):
            kind, since = ("all", 0) if which == "all" else ("since", which)
            found = await self._calls.one(VIEW, user, kind, pack(">Q", since))
            return None if found is None else self._view(found, pairs(found[4]), pairs(found[5]), pairs(found[6]))
        names = [name for name in dict.fromkeys(which) if name]
        if len(names) > MANY:
            return await self._view_of_many(user, names)
        for _ in range(MAX_ATTEMPTS):
            rest = [*map(encode, chunks(names[PART:], PART))]
            first = self._calls.one(VIEW, user, "rooms", encode(names[:PART]))
            found, parts = (
                await asyncio.gather(first, self._calls.parts(ROOM_STATES, user, rest)) if rest else (await first, [])
            )
            if found is None:
                return None
            if all(part[0] == found[0] for part in parts):  # the user's marker is the same
                break
        else:
            return await self._view_of_many(user, names)
        user_rooms, counts, aparts = (
            _by_name(names, [found[at], *(part[index] for part in parts)]) for at, index in ((4, 1), (6, 2), (5, 3))
        )
        await self._note_use(user, counts)
        return self._view(found, user_rooms, aparts, counts)

    async def _view_of_many(self, user: str, names: Sequence[str]) -> UserView | None:
        """Read all rooms and keep those asked for: cheaper than naming this many."""
        found = await self._calls.one(VIEW, user, "all", b"")
        if found is None:
            return None
        user_rooms, counts = pairs(found[4]), pairs(found[6])
        await self._note_use(user, counts)
        wanted = {name: user_rooms[name] for name in names if name in user_rooms}
        return self._view(found, wanted, pairs(found[5]), counts)

    async def _note_use(self, user: str, counts: dict[str, bytes]) -> None:
        """Note the use of ledgers, if the last use that was noted is older than ttl / 16."""
        due = (self._clock() - self._ttl_ms // 16) // 1000
        loaded = ((name, row) for name, row in counts.items() if not row[0] & Flag.MISSING)
        for some in chunks([name for name, row in loaded if COUNT.unpack_from(row)[2] <= due], PART):
            ledgers = [self._calls.keys.ledger(user, name) for name in some]
            await self._calls.one(NOTE_USE, user, encode(some), more=ledgers)

    def _view(
        self, found: Any, user_rooms: dict[str, bytes], aparts: dict[str, bytes], counts: dict[str, bytes]
    ) -> UserView:
        _, number, since, _, _ = USER.unpack(found[0])
        wanted = {room: preferences_of(packed) for room, packed in pairs(found[3]).items()}
        oldest = (self._clock() - self._ttl_ms) // 1000
        return UserView(
            change=number,
            complete_since=since,
            user_rooms=[
                user_room_of(
                    room, raw, aparts.get(room, b""), counts.get(room), wanted.get(room, NO_PREFERENCES), oldest
                )
                for room, raw in user_rooms.items()
                if room
            ],
            unloaded=[room.decode() for room in found[1]],
            timelines=[room.decode() for room in found[2]],
            preferences=wanted,
        )

    async def unread_overview(self, user: str, after: tuple[int, str] | None, limit: int) -> UnreadOverview | None:
        found = await self._calls.one(UNREAD_SUMMARY, user)
        if found is None:
            return None
        _, number, _, missing, _ = USER.unpack(found[2])
        return UnreadOverview(
            change=number,
            unloaded=missing > 0,
            summary=_summary(found[0], {room.decode() for room in found[1][::2]}),
            rooms=_unread_rooms(found[0], after, limit),
            timelines=[room.decode() for room in found[3]],
            preferences={room: preferences_of(packed) for room, packed in pairs(found[1]).items()},
        )

    async def unread_summary(self, user: str) -> UnreadSummary | None:
        found = await self._calls.one(UNREAD_SUMMARY, user)
        return None if found is None else _summary(found[0], {room.decode() for room in found[1][::2]})

    async def inbox(
        self, user: str, after: tuple[int, str] | None, limit: int, only_unread: bool = False
    ) -> list[tuple[int, str]] | None:
        if only_unread:
            found = await self._calls.one(UNREAD_SUMMARY, user)
            return None if found is None else _unread_rooms(found[0], after, limit)
        found = await self._calls.one(INBOX, user, "" if after is None else -after[0], limit)
        if found is None:
            return None
        flat = iter(found)
        ordered = sorted({(-int(at), name.decode()) for name, at in zip(flat, flat, strict=True)})
        return [key for key in ordered if after is None or key > after][:limit]

    async def rooms(self, user: str) -> list[str] | None:
        found = await self._calls.one(ROOMS, user)
        return None if found is None else [room.decode() for room in found]

    async def pointers(self, user: str) -> dict[str, Pointer] | None:
        found = await self._calls.one(POINTERS, user)
        if found is None:
            return None
        aparts = pairs(found[1])
        return {room: pointer_of(raw, aparts.get(room, b"")) for room, raw in pairs(found[0]).items() if room}

    async def pointers_in(self, channel: str, users: Sequence[str]) -> list[Pointer | None]:
        found = await self._calls.each(POINTERS_IN, users, None, channel)
        return [
            None if raw is None else read_at_of(pointer_of(raw, apart), moved) if raw else Pointer()
            for raw, apart, moved in found
        ]

    async def changes(self, users: Sequence[str]) -> list[ChangeNumber | None]:
        found = await self._calls.each(CHANGES, users, None)
        return [None if number < 0 else number for (number,) in found]

    async def count_delta(
        self, channel: str, position: Position, named: frozenset[str] | None, users: Sequence[str]
    ) -> list[tuple[CountDelta, int]]:
        found = await self._calls.each(COUNT_DELTA, users, channel, channel, position.seq, position.id or "")
        return [
            (self._count_delta(code, preferences, named is None or user in named), epoch)
            for user, (code, epoch, preferences) in zip(users, found, strict=True)
        ]

    def _count_delta(self, code: int, packed: bytes, mention: bool) -> CountDelta:
        count_delta = CountDelta(code)
        if count_delta is not CountDelta.ONE_MORE or not packed:
            return count_delta
        wanted = preferences_of(packed)
        if wanted.count == "none" or (wanted.count == "mentions" and not mention):
            return CountDelta.LOOK
        return CountDelta.ONE_MORE_MUTED if wanted.muted_until > self._clock() else CountDelta.ONE_MORE


def _by_name(names: Sequence[str], parts: Sequence[Sequence[bytes | None]]) -> dict[str, bytes]:
    """The values that exist, by name. A part is empty if the user has nothing of that kind."""
    found: dict[str, bytes] = {}
    for start, values in enumerate(parts):
        some = names[start * PART : (start + 1) * PART]
        found.update((name, value) for name, value in zip(some, values, strict=False) if value is not None)
    return found


def _summary(flat: Sequence[bytes], wanted: set[str]) -> UnreadSummary:
    """Of the rows of a user's ledgers. `wanted`: the rooms with preferences."""
    unread = mentions = channels = 0
    capped = False
    special, threads = [], []
    values = iter(flat)
    for name, row in zip(values, values, strict=True):
        flags, count, _, _, floor, floor_at, _, _, _, length = COUNT.unpack_from(row)
        if not count or flags & (Flag.MISSING | Flag.TIMELINE):
            continue
        named = (len(row) - COUNT.size - length) // NAMED.size
        over = floor > 0 or floor_at > 0
        if flags & Flag.THREAD:
            threads.append((name.decode(), count, over))
        elif flags & Flag.ARCHIVED:
            pass
        elif wanted and (room := name.decode()) in wanted:
            special.append((room, count, named, over))
        else:
            unread, mentions, channels, capped = unread + count, mentions + named, channels + 1, capped or over
    return UnreadSummary((unread, mentions, channels, capped), special, threads)


def _unread_rooms(flat: Sequence[bytes], after: tuple[int, str] | None, limit: int) -> list[tuple[int, str]]:
    """The unread ledger channels among the rows of a user's ledgers, by latest activity."""
    values, unpack = iter(flat), COUNT.unpack_from
    others = Flag.MISSING | Flag.TIMELINE | Flag.THREAD
    rows = ((name, unpack(row)) for name, row in zip(values, values, strict=True) if not row[0] & others)
    keys = [(-row[6], name.decode()) for name, row in rows if row[1]]
    if after is not None:
        keys = [key for key in keys if key > after]
    keys.sort()
    return keys[:limit]
