"""Read states in SQL: the merge, what the hot store is loaded from, undo, and receipts."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.json import Decoder
from msgspec.structs import replace

from readstate.domain.events import ReadEvent
from readstate.domain.facts import Key
from readstate.domain.folding.reads import fold_reads
from readstate.domain.model import (
    Channel,
    Entry,
    Mode,
    Pointer,
    Position,
    Preferences,
    Reading,
    ReadState,
    SeenPosition,
)
from readstate.domain.rooms import channel_and_thread, is_thread
from readstate.domain.rules import receipt_seq, seen_position
from readstate.ports import LedgerLoad, LedgerView, LoadedUserRoom, UndoItem, UnreadPage, UserRoom

from . import rows
from .session import Session, SqlTopic, as_json, ask
from .users import erased_at

_user_rooms = Decoder(list[LoadedUserRoom], strict=False)
_entries = Decoder(list[tuple[int, Entry]], strict=False)
_unread_page = Decoder(
    tuple[
        tuple[int, int, int, bool],
        list[tuple[Preferences, int, int, bool]],
        list[tuple[str, int, frozenset[int]]],
        list[tuple[Channel, Pointer, Preferences, int, int, Position]],
    ],
    strict=False,
)
_readings = Decoder(list[Reading])
_undo_items = Decoder(list[UndoItem])


class SqlReads(SqlTopic):
    async def merge(self, events: Sequence[ReadEvent]) -> Sequence[ReadEvent]:
        return await self._database.write(lambda session: _merge(session, events), alone=True)

    async def merge_unless_erased(self, events: Sequence[ReadEvent]) -> Sequence[ReadEvent]:
        async def work(session: Session) -> Sequence[ReadEvent]:
            return await _merge(session, await _unless_erased(session, events))

        return await self._database.write(work)

    async def load_user(self, user: str) -> list[LoadedUserRoom]:
        return await self._find(_user_rooms, "load_user", user=user)

    async def unread_page(self, user: str, limit: int, cap: int) -> UnreadPage:
        async def work(session: Session) -> UnreadPage:
            text = await session.value("unread_page", user=user, limit=limit, cap=cap)
            plain, special, threads, found = _unread_page.decode(text)
            rooms = [_unread_room(*room, cap) for room in found]
            rooms.sort(key=lambda room: (-room[1].latest_at, room[1].channel_id))
            return UnreadPage(plain, special, await _unread_threads(session, user, threads, cap), rooms)

        return await self._database.read(work)

    async def load_ledgers(self, wanted: Sequence[tuple[str, str, Mode, ReadState]], cap: int) -> list[LedgerLoad]:
        keys, thread_keys = [], []
        for index, (user, room, mode, state) in enumerate(wanted):
            apart = sorted(state.apart)
            if is_thread(room):
                channel, thread = channel_and_thread(room)
                thread_keys.append((index, user, channel, state.seq, thread, apart))
            else:
                keys.append((index, user, room, state.seq, int(mode is Mode.TIMELINE), apart))

        async def work(session: Session) -> tuple[list[tuple[str, int]], list[str]]:
            changes = await ask(session, rows.anything, "changes", {room for _, room, _, _ in wanted})
            parts = (("ledger_entries", keys), ("thread_entries", thread_keys))
            return changes, [await session.value(name, keys=as_json(some), cap=cap) for name, some in parts if some]

        changes, found = await self._database.read(work)
        numbers = dict(changes)
        loads = [LedgerLoad(user, room, state, numbers.get(room, 0), []) for user, room, _, state in wanted]
        for text in found:
            for index, entry in _entries.decode(text):
                loads[index].entries.append(entry)
        return [_cut(load, cap) for load in loads]

    async def save_undo(self, token: str, user: str, expires_at: int, now: int, items: Sequence[UndoItem]) -> None:
        async def work(session: Session) -> None:
            await session.run("expire_undo", now=now)
            await session.run("save_undo", token=token, user=user, expires_at=expires_at, items=as_json(items))

        await self._database.write(work)

    async def load_undo(self, token: str, user: str, now: int) -> list[UndoItem] | None:
        items = await self._database.value("load_undo", token=token, user=user, now=now)
        return None if items is None else _undo_items.decode(items)

    async def drop_undo(self, token: str) -> None:
        await self._run("drop_undo", token=token)

    # ------------------------------------------------------------ receipts

    async def readers(self, channel: str) -> list[Reading]:
        return await self._find(_readings, "readers", channel=channel)

    async def seen_count(self, channel: str, sender: str, seq: int) -> int:
        return await self._number("seen_count", channel=channel, sender=sender, seq=seq)

    async def public_readers(self, keys: Sequence[Key]) -> dict[Key, tuple[tuple[int, int], ...]]:
        found = await self._find(rows.anything, "public_readers", keys=as_json(keys))
        return {(user, channel): tuple((a, b) for a, b in skipped) for user, channel, skipped in found}

    async def receipts_since(self, user: str, since: int, most_members: int, limit: int) -> list[SeenPosition] | None:
        values = {"user": user, "since": since, "most": most_members, "limit": limit + 1}
        found = await self._find(rows.anything, "receipts_since", **values)
        if len(found) > limit:
            return None
        return [
            seen_position(reader, channel, Position(seq, id_, None), read_at, skipped)
            for channel, reader, seq, id_, read_at, skipped in found
            if receipt_seq(seq, skipped) or not seq  # who only joined has read nothing
        ]

    async def cut_skipped(self, user: str, channel: str, seq: int) -> None:
        await self._run("cut_skipped", user, user=user, channel=channel, seq=seq)


async def _unless_erased(session: Session, events: Sequence[ReadEvent]) -> Sequence[ReadEvent]:
    """Leave out events from before their user was erased. Usually the newest erasure is older than all of them."""
    newest = await session.value("newest_erasure")
    users = {event.user_id for event in events if event.created_at <= newest}
    gone = await erased_at(session, users)
    return [event for event in events if event.created_at > gone.get(event.user_id, -1)] if gone else events


def _unread_room(
    channel: Channel, pointer: Pointer, preferences: Preferences, count: int, mentions: int, first: Position, cap: int
) -> tuple[UserRoom, Channel]:
    ledger = LedgerView(min(count, cap), mentions, first, count > cap)
    return UserRoom(channel.channel_id, True, Mode.LEDGER, pointer, preferences, ledger), channel


async def _unread_threads(
    session: Session, user: str, threads: Sequence[tuple[str, int, frozenset[int]]], cap: int
) -> tuple[int, int]:
    """(unread, threads) of these rooms (room, seq, apart)."""
    keys = [
        (index, user, channel, seq, thread, sorted(apart))
        for index, (room, seq, apart) in enumerate(threads)
        for channel, thread in [channel_and_thread(room)]
    ]
    text = await session.value("thread_entries", keys=as_json(keys), cap=cap) if keys else "[]"
    counts = Counter(index for index, _ in _entries.decode(text))
    return sum(min(count, cap) for count in counts.values()), len(counts)


async def _merge(session: Session, events: Sequence[ReadEvent]) -> Sequence[ReadEvent]:
    """Folds them after the erased ones are left out: folded with one of those, a later state would go with it."""
    states = fold_reads(events)
    states.sort(key=lambda one: f"{one.user_id}\0{one.channel_id}")  # the order of (user, channel), found faster
    columns = _columns(states)
    if any(state.apart for state in states):  # all rows in one statement: two would lock rows out of order
        columns.insert(4, [as_json(one.apart) if one.apart else "[]" for one in states])
        await session.put("merge_receipts", columns)
    else:
        await session.put("merge_pointers", columns)
    return states


def _columns(states: Sequence[ReadEvent]) -> list[Sequence[Any]]:
    """Of `merge_pointers`. By column, so that no row becomes an object."""
    return [
        [one.user_id for one in states],
        [one.channel_id for one in states],
        [one.epoch for one in states],
        [one.last_read_seq for one in states],
        [one.last_read_id for one in states],
        [one.last_read_at for one in states],
        [one.read_at for one in states],
        [one.change for one in states],
    ]


def _cut(load: LedgerLoad, cap: int) -> LedgerLoad:
    """Keep the newest `cap` entries; the query returns one more, to show whether there are more."""
    if len(load.entries) <= cap:
        return load
    return replace(load, entries=load.entries[-cap:], floor=load.entries[-cap - 1].seq)
