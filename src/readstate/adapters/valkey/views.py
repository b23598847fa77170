"""Reads of the hot state of users in Valkey. Each read shows one consistent state of a user."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from struct import pack
from typing import Any

from readstate.domain.model import ChangeNumber, Pointer, Position, Preferences
from readstate.ports import CountDelta, CountQuery, UnreadOverview, UnreadSummary, UserView, Which

from .calls import UserCalls
from .commands import encode
from .groups import chunks
from .user_rooms import (
    COUNT,
    COUNTED,
    MISSING,
    NAMED,
    TIMELINE,
    USER,
    Flag,
    Packed,
    UserFunction,
    named_of,
    pairs,
    pointer_of,
    preferences_of,
    read_at_of,
    user_rooms_of,
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
MAX_COUNTED = 500
"""Timeline channels of which an overview says what their counts need: as many as one call counts."""
TOUCHED = slice(5, 9)
"""The bytes of a ledger's row that say when it was used."""


class _Overview(UnreadOverview, frozen=True, gc=False, kw_only=True):
    """With the rows that it was made of."""

    marker: bytes
    ledgers: Mapping[str, bytes]


class ValkeyViews:
    """The part of `HotUsers` that only reads."""

    def __init__(self, calls: UserCalls) -> None:
        self._calls = calls
        self._clock = calls.backend.clock
        self._ttl_ms = calls.backend.ttl_ms

    async def view(self, user: str, which: Which, known: UnreadOverview | None = None) -> UserView | None:
        """More than `PART` rooms take several calls, which are repeated until the user does not change in between."""
        if which == "all" or isinstance(which, int):
            kind, since = ("all", 0) if which == "all" else ("since", which)
            found = await self._calls.one(VIEW, user, kind, pack(">Q", since))
            return None if found is None else self._view(found, Packed(*map(pairs, found[4:7])))
        names = [name for name in dict.fromkeys(which) if name]
        if len(names) > MANY:
            return await self._view_of_many(user, names, known)
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
            return await self._view_of_many(user, names, None)
        packed = Packed(
            *(_by_name(names, [found[at], *(part[index] for part in parts)]) for at, index in ((4, 1), (5, 3), (6, 2)))
        )
        await self._note_use(user, packed.ledgers)
        return self._view(found, packed)

    async def _view_of_many(self, user: str, names: Sequence[str], known: UnreadOverview | None) -> UserView | None:
        """Read all rooms and keep those asked for: cheaper than naming this many."""
        if isinstance(known, _Overview) and (found := await self._calls.one(POINTERS, user)) is not None:
            user_rooms = pairs(found[0])
            if user_rooms.pop("") == known.marker:  # nothing has changed, so the ledgers are the same
                packed = Packed(user_rooms, pairs(found[1]), known.ledgers)
                await self._note_use(user, known.ledgers)
                return self._made(known.marker, packed, names, known.preferences, [], known.timelines)
        found = await self._calls.one(VIEW, user, "all", b"")
        if found is None:
            return None
        packed = Packed(*map(pairs, found[4:7]))
        await self._note_use(user, packed.ledgers)
        return self._view(found, packed, names)

    async def _note_use(self, user: str, counts: Mapping[str, bytes]) -> None:
        """Note the use of ledgers, if the last use that was noted is older than ttl / 16."""
        due = pack(">I", max(0, (self._clock() - self._ttl_ms // 16) // 1000))
        stale = [name for name, row in counts.items() if row[TOUCHED] <= due and not row[0] & MISSING]
        for some in chunks(stale, PART):
            ledgers = [self._calls.keys.ledger(user, name) for name in some]
            await self._calls.one(NOTE_USE, user, encode(some), more=ledgers)

    def _view(self, found: Any, packed: Packed, names: Iterable[str] | None = None) -> UserView:
        """`names`: only these rooms."""
        wanted = {room: preferences_of(one) for room, one in pairs(found[3]).items()}
        some = [room for room in packed.user_rooms if room] if names is None else names
        unloaded, timelines = ([room.decode() for room in rooms] for rooms in found[1:3])
        return self._made(found[0], packed, some, wanted, unloaded, timelines)

    def _made(
        self,
        marker: bytes,
        packed: Packed,
        names: Iterable[str],
        wanted: Mapping[str, Preferences],
        unloaded: list[str],
        timelines: Sequence[str],
    ) -> UserView:
        _, number, since, _, _ = USER.unpack(marker)
        user_rooms = user_rooms_of(names, packed, wanted, (self._clock() - self._ttl_ms) // 1000)
        return UserView(number, since, user_rooms, unloaded, timelines, wanted)

    async def unread_overview(self, user: str, after: tuple[int, str] | None, limit: int) -> UnreadOverview | None:
        found = await self._calls.one(UNREAD_SUMMARY, user, MAX_COUNTED)
        if found is None:
            return None
        flat, preferences, marker, timelines, user_rooms, apart = found
        wanted = {room: preferences_of(packed) for room, packed in pairs(preferences).items()}
        ledgers, big = pairs(flat), [room.decode() for room in timelines]
        summary, keys = _summary(ledgers, wanted)
        if after is not None:
            keys = [key for key in keys if key > after]
        keys.sort()
        return _Overview(
            change=USER.unpack(marker)[1],
            unloaded=USER.unpack(marker)[3] > 0,
            summary=summary,
            rooms=keys[:limit],
            timelines=big,
            preferences=wanted,
            queries=_queries(user, big, user_rooms, apart, ledgers) if user_rooms else (),
            marker=marker,
            ledgers=ledgers,
        )

    async def unread_summary(self, user: str) -> UnreadSummary | None:
        overview = await self.unread_overview(user, None, 0)
        return None if overview is None else overview.summary

    async def inbox(
        self, user: str, after: tuple[int, str] | None, limit: int, only_unread: bool = False
    ) -> list[tuple[int, str]] | None:
        if only_unread:
            overview = await self.unread_overview(user, after, limit)
            return None if overview is None else overview.rooms
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


def _queries(
    user: str,
    timelines: Sequence[str],
    user_rooms: Sequence[bytes | None],
    apart: Sequence[bytes | None],
    ledgers: Mapping[str, bytes],
) -> list[CountQuery]:
    """What counts of these channels need. `apart` is empty if the user has none anywhere."""
    return [
        CountQuery(
            user,
            room,
            pointer_of(raw, list_ or b""),
            named_of(ledgers[room]) if raw[0] & COUNTED and room in ledgers else (),
        )
        for room, raw, list_ in zip(timelines, user_rooms, apart or [None] * len(timelines), strict=True)
        if raw is not None
    ]


def _summary(rows: Mapping[str, bytes], wanted: Collection[str]) -> tuple[UnreadSummary, list[tuple[int, str]]]:
    """Of the rows of a user's ledgers; with the unread ledger channels, as (negated time, channel).

    `wanted`: the rooms with preferences.
    """
    unread = mentions = channels = 0
    capped = False
    special, threads, keys = [], [], []
    unpack, head, width, others = COUNT.unpack_from, COUNT.size, NAMED.size, MISSING | TIMELINE
    for room, row in rows.items():
        flags, count, _, _, floor, floor_at, latest, _, _, length = unpack(row)
        if not count or flags & others:
            continue
        over = floor > 0 or floor_at > 0
        if flags & Flag.THREAD:
            threads.append((room, count, over))
            continue
        keys.append((-latest, room))
        if flags & Flag.ARCHIVED:
            continue
        named = (len(row) - head - length) // width
        if room in wanted:
            special.append((room, count, named, over))
        else:
            unread += count
            mentions += named
            channels += 1
            capped = capped or over
    return UnreadSummary((unread, mentions, channels, capped), special, threads), keys
