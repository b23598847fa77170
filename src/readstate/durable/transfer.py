"""Export, import and erase in the SQLite file. What an import does is not decided here: see `transfer_fold`."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ..errors import StorageUnavailable
from ..facts import Key
from ..model import Channel, Latest, Member, Message, Pointer, Position, Preferences
from ..rooms import channel_and_thread, is_thread, thread_room
from ..transfer_fold import Known, KnownMessage, KnownSeat, Misfit, Neighbours, Rows, resolve, take
from ..transfer_records import (
    Erased,
    ErasedRows,
    GivenSeat,
    GivenUser,
    MessageLine,
    Numbered,
    PreferencesLine,
    Record,
    Refused,
    Taken,
)
from .sql import for_rows, queries
from .sqlite_engine import SqliteEngine, connect, execute_rows

SQL = queries("sqlite") | queries("sqlite", "transfer.sql")
PAGE = 500
_ADDS = for_rows(SQL["add_messages"], (500, 50, 5, 1))
STALLED_SECONDS = 60
"""Whoever takes longer over a page has lost the export: its snapshot keeps the file from being tidied up."""
_PARTS = ("rooms", "unplaced", "messages", "replies", "members", "pointers", "users")

_message_line = msgspec.json.Decoder(MessageLine)
_channels = msgspec.json.Decoder(list[Channel], strict=False)
_messages = msgspec.json.Decoder(list[Message], strict=False)
_known_messages = msgspec.json.Decoder(list[tuple[str, str, KnownMessage]])
_neighbours = msgspec.json.Decoder(list[tuple[str, int, Neighbours]])
_seats = msgspec.json.Decoder(list[tuple[str, str, Member | None, Preferences, Pointer | None]])
_places = msgspec.json.Decoder(list[tuple[str, int, str, int]])
_tails = msgspec.json.Decoder(list[tuple[str, int, int]])
_own = msgspec.json.Decoder(list[tuple[str, str, frozenset[int]]])
_users = msgspec.json.Decoder(list[GivenUser])
_names = msgspec.json.Decoder(list[str])
_flags = msgspec.json.Decoder(list[tuple[str, int]])


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(PreferencesLine)}


class SqliteTransfer:
    """The port DurableTransfer over one file."""

    def __init__(self, engine: SqliteEngine, fanout_max_members: int) -> None:
        self._engine = engine
        self._limit = fanout_max_members

    async def export(self) -> AsyncGenerator[Sequence[Record], None]:
        """All records, a page at a time, as of one moment."""
        path = await self._engine.read(lambda db: db.execute("PRAGMA database_list").fetchone()[2])
        snapshot = await asyncio.to_thread(_Snapshot, Path(path))
        try:
            for part in _PARTS:
                after: tuple[object, ...] = ("", -1, "")
                while page := await asyncio.to_thread(snapshot.page, part, after):
                    after = page[-1][:3]
                    watch = asyncio.get_running_loop().call_later(STALLED_SECONDS, snapshot.close)
                    try:
                        yield [_line(text) for *_, text in page]
                    finally:
                        watch.cancel()
        finally:
            snapshot.close()

    async def take(self, records: Sequence[Numbered], stop: bool) -> Taken:
        """Merge records in, in order, in one transaction; with `stop`, none after the first refused one."""
        return await self._engine.write(lambda db: self._take(db, records, stop))

    def _take(self, db: sqlite3.Connection, records: Sequence[Numbered], stop: bool) -> Taken:
        refused: list[Refused] = []
        rooms: dict[str, int] = {}
        users: set[str] = set()
        position: int = db.execute(SQL["next_position"]).fetchone()[0]
        for _, group in groupby(records, lambda one: type(one.given)):
            run = list(group)
            known = _gather(db, run)
            rows, misfits = take(run, known, self._limit, stop)
            refused += misfits
            _store(db, rows, known, position)
            rooms |= {name: known.rooms[name].change for name in rows.rooms}
            users |= rows.concerned
            users.update(_names.decode(_ask(db, "active_members", rows.audiences)) if rows.audiences else ())
            if stop and misfits:
                break
        return Taken(refused, rooms, sorted(users))

    async def erase(self, user: str) -> ErasedRows:
        """Remove whatever is kept of a user, but for the messages, in one transaction."""
        return await self._engine.write(lambda db: _erase(db, user))


class _Snapshot:
    """The file at one moment, for as long as it is open."""

    def __init__(self, path: Path) -> None:
        self._db = connect(path, read_only=True)
        self._db.execute("PRAGMA cache_size = -4096")
        self._db.execute("BEGIN")
        self._db.execute(SQL["next_position"]).fetchone()

    def page(self, part: str, after: tuple[object, ...]) -> list[tuple[Any, ...]]:
        a, b, c = after
        values = {"a": a, "b": b, "c": c, "limit": PAGE}
        try:
            return self._db.execute(SQL[f"export_{part}"], values).fetchall()
        except sqlite3.ProgrammingError as error:
            raise StorageUnavailable(f"the export was not read for {STALLED_SECONDS} seconds: begin again") from error
        except sqlite3.OperationalError as error:
            raise StorageUnavailable(f"the database cannot be read ({error})") from error

    def close(self) -> None:
        self._db.close()


def _line(text: str) -> Record:
    """A row as its record; the room of a thread is told as channel and thread."""
    if text.startswith('{"type":"message"'):
        return _message_line.decode(text)
    fields = msgspec.json.decode(text)
    room = fields.get("channel_id", "")
    if is_thread(room):
        fields["channel_id"], fields["thread_id"] = channel_and_thread(room)
        fields.pop("preferences", None)
        for name in ("kind", "name", "avatar", "archived"):
            fields.pop(name, None)
    if fields.get("preferences") == _DEFAULTS:
        del fields["preferences"]
    record: Record = msgspec.convert(fields, Record)
    return record


# ---------------------------------------------------------------- what an import must know


def _gather(db: sqlite3.Connection, run: Sequence[Numbered]) -> Known:
    match run[0].given:
        case Channel():
            return _about_rooms(db, [one.given for one in run if isinstance(one.given, Channel)])
        case Message():
            return _about_messages(db, [one.given for one in run if isinstance(one.given, Message)])
        case GivenSeat():
            return _about_seats(db, [one.given for one in run if isinstance(one.given, GivenSeat)])
        case GivenUser():
            names = {one.given.user_id for one in run if isinstance(one.given, GivenUser)}
            return Known(users={user.user_id: user for user in _users.decode(_ask(db, "activities", names))})


def _about_rooms(db: sqlite3.Connection, given: Sequence[Channel]) -> Known:
    known = Known()
    _gather_rooms(db, known, {room.channel_id for room in given})
    latest = {(channel_and_thread(room.channel_id)[0], room.latest.id) for room in given if room.latest is not None}
    _gather_messages(db, known, latest)
    return known


def _about_messages(db: sqlite3.Connection, given: Sequence[Message]) -> Known:
    known = Known()
    rooms = {message.channel_id for message in given}
    replies = [(m.channel_id, m.thread_id) for m in given if m.thread_id is not None]
    _gather_rooms(db, known, rooms | {thread_room(channel, thread) for channel, thread in replies})
    _gather_messages(db, known, {(message.channel_id, message.id) for message in given} | set(replies))
    _gather_seats(db, known, {(m.channel_id, m.sender_id) for m in given if m.seq is not None or m.thread_id is None})
    tails = {room: (seq, at) for room, seq, at in _tails.decode(_ask(db, "tails", rooms))}
    places, replies_at = [], []
    for m in given:
        if m.seq is not None and m.channel_id in tails:
            seq, at = tails[m.channel_id]
            if m.seq <= seq:
                places.append((m.channel_id, m.seq, m.channel_id))
            else:
                known.around[m.channel_id, m.seq] = Neighbours(at)
        if m.thread_id is not None and m.thread_seq is not None:
            replies_at.append((thread_room(m.channel_id, m.thread_id), m.thread_seq, m.channel_id, m.thread_id))
    for name, keys in (("around", places), ("around_replies", replies_at)):
        if keys:
            found = _neighbours.decode(_ask(db, name, keys))
            known.around |= {(room, seq): neighbours for room, seq, neighbours in found}
    return known


def _about_seats(db: sqlite3.Connection, given: Sequence[GivenSeat]) -> Known:
    known = Known()
    _gather_rooms(db, known, {seat.room for seat in given})
    _gather_seats(db, known, {(seat.room, seat.user_id) for seat in given})
    _gather_messages(db, known, {key for seat in given for key in _named(seat)})
    _gather_places(db, known, given)
    for seat in given:
        if seat.read is not None and seat.read.seq is None and seat.read.id is None and seat.read.at is not None:
            key = (seat.room, seat.read.at)
            if key not in known.times:
                known.times[key] = _by_time(db, *key)
    _gather_own(db, known, given)
    return known


def _named(seat: GivenSeat) -> Iterable[Key]:
    """The messages that a seat's record names: a thread's root, and what was read last."""
    channel, thread = channel_and_thread(seat.room)
    if thread:
        yield channel, thread
    if seat.read is not None and seat.read.seq is None and seat.read.id is not None:
        yield channel, seat.read.id


def _gather_rooms(db: sqlite3.Connection, known: Known, names: set[str]) -> None:
    parents = {channel_and_thread(name)[0] for name in names}
    known.rooms = {room.channel_id: room for room in _channels.decode(_ask(db, "channels", names | parents))}


def _gather_messages(db: sqlite3.Connection, known: Known, keys: set[Key]) -> None:
    if keys:
        rows = _known_messages.decode(_ask(db, "known_messages", keys))
        known.messages = {(channel, id_): message for channel, id_, message in rows}


def _gather_seats(db: sqlite3.Connection, known: Known, keys: set[Key]) -> None:
    rows = _seats.decode(_ask(db, "seats", keys))
    known.seats = {(room, user): KnownSeat(member, wanted, pointer) for room, user, member, wanted, pointer in rows}


def _gather_places(db: sqlite3.Connection, known: Known, given: Sequence[GivenSeat]) -> None:
    """Which messages pointers stand at that say only a seq."""
    places, replies = set(), set()
    for seat in given:
        read = seat.read
        if read is not None and read.seq and (read.id is None or read.at is None):
            if is_thread(seat.room):
                replies.add((seat.room, read.seq, *channel_and_thread(seat.room)))
            else:
                places.add((seat.room, read.seq))
    for name, keys in (("by_seq", places), ("reply_places", replies)):
        if keys:
            rows = _places.decode(_ask(db, name, keys))
            known.places |= {(room, seq): Position(seq, id_, at) for room, seq, id_, at in rows}


def _gather_own(db: sqlite3.Connection, known: Known, given: Sequence[GivenSeat]) -> None:
    """Own messages beyond the pointers, which the read state must cover (in channels)."""
    keys = []
    for seat in given:
        if is_thread(seat.room):
            continue
        pointer = known.seats.get((seat.room, seat.user_id), KnownSeat()).pointer
        try:
            since = resolve(seat, known).seq if seat.read is not None or pointer is None else pointer.seq
        except Misfit:
            continue
        keys.append((seat.room, seat.user_id, since))
    if keys:
        known.own = {(room, user): seqs for room, user, seqs in _own.decode(_ask(db, "own_beyond", keys)) if seqs}


def _by_time(db: sqlite3.Connection, room: str, time: int) -> Position | None:
    """The newest place at or before a time, by halving: times follow seqs. What is missing at the start is read."""
    channel, thread = channel_and_thread(room)
    values: dict[str, object] = {"channel": channel, "thread": thread}
    prefix = "reply_" if thread else ""
    low, high = db.execute(SQL[f"{prefix}ends"], values).fetchone()
    if low is None:
        return None

    def newest(seq: int) -> Position:
        return Position(*db.execute(SQL[f"{prefix}at_or_before"], values | {"seq": seq}).fetchone())

    if (newest(low).at or 0) > time:
        return Position(low - 1, None, None)
    while low < high:
        middle = (low + high + 1) // 2
        found = newest(middle)
        if (found.at or 0) <= time:
            low = middle
        else:
            high = found.seq - 1
    return newest(low)


# ---------------------------------------------------------------- rows


def _store(db: sqlite3.Connection, rows: Rows, known: Known, position: int) -> None:
    if rows.deleted:
        _ask_nothing(db, "delete_messages", keys=rows.deleted)
    execute_rows(db, _ADDS, [_message_row(message) for message in rows.messages])
    for name, values in (
        ("put_seats", [_seat_row(key, seat) for key, seat in rows.seats.items()]),
        ("put_pointers", [_receipt_row(key, pointer) for key, pointer in rows.pointers.items()]),
        ("put_activities", [(u.user_id, u.last_tap, u.last_seen, u.receipts) for u in rows.users.values()]),
    ):
        if values:
            _ask_nothing(db, name, rows=values)
    for name in rows.latest_gone:
        known.rooms[name] = replace(known.rooms[name], latest=_newest(db, name))
    for name in {room for room, _ in rows.seats}:
        known.rooms[name] = _with_peers(db, known.rooms[name])
    _put_rooms(db, rows.rooms, known.rooms, position)


def _put_rooms(db: sqlite3.Connection, names: set[str], rooms: dict[str, Channel], position: int) -> None:
    """Write rooms as changed. A thread counts its changes by its channel, so that changes too."""
    names |= {channel_and_thread(name)[0] for name in names}
    channels = sorted(name for name in names if not is_thread(name))
    for name in channels:
        rooms[name] = replace(rooms[name], change=rooms[name].change + 1, position=position)
    for name in names.difference(channels):
        parent = rooms[channel_and_thread(name)[0]]
        rooms[name] = replace(rooms[name], change=parent.change)
    if names:
        _ask_nothing(db, "put_channels", rows=[rooms[name] for name in sorted(names)])


def _with_peers(db: sqlite3.Connection, room: Channel) -> Channel:
    if room.type != "direct":
        return room
    members = _names.decode(_ask(db, "active_members", [room.channel_id]))
    return replace(room, peers=tuple(sorted(members)) if len(members) <= 2 else ())


def _newest(db: sqlite3.Connection, room: str) -> Latest | None:
    """The newest message of a room that is not deleted."""
    name, key = ("newest_reply_but", (*channel_and_thread(room), "")) if is_thread(room) else ("newest_but", (room, ""))
    for m in _messages.decode(_ask(db, name, [key])):
        seq = m.thread_seq if is_thread(room) else m.seq
        if seq is not None:
            return Latest(m.id, seq, m.at, m.sender_id, m.preview)
    return None


def _message_row(m: Message) -> tuple[Any, ...]:
    mentions = _json(m.mentions) if m.mentions else "[]"
    return (
        m.channel_id,
        m.id,
        m.seq,
        m.sender_id,
        m.at,
        m.sent_at,
        m.text,
        m.preview,
        m.thread_id,
        m.thread_seq,
        mentions,
        m.silent,
        m.deleted,
        m.backfill,
        m.change,
        m.position,
    )


def _seat_row(key: Key, seat: KnownSeat) -> tuple[Any, ...]:
    (room, user), member, wanted = key, seat.member, seat.preferences
    assert member is not None
    return (
        user,
        room,
        int(member.active),
        member.joined_seq,
        member.joined_at,
        member.skipped,
        wanted.muted_until,
        wanted.count,
        wanted.receipts,
        int(wanted.pinned),
        wanted.archived_seq,
    )


def _receipt_row(key: Key, pointer: Pointer) -> tuple[Any, ...]:
    (room, user), p = key, pointer
    return (user, room, p.epoch, p.seq, sorted(p.apart), p.id, p.at, p.read_at)


def _erase(db: sqlite3.Connection, user: str) -> ErasedRows:
    values = {"user": user}
    seats = _flags.decode(db.execute(SQL["rooms_of"], values).fetchone()[0])
    receivers = _names.decode(db.execute(SQL["badges_with"], values).fetchone()[0])
    position: int = db.execute(SQL["next_position"]).fetchone()[0]
    counts = {
        part: db.execute(SQL[f"erase_{part}"], values).rowcount
        for part in ("members", "receipts", "undo", "undelivered", "activity")
    }
    names = {room for room, active in seats if active}
    known = Known()
    _gather_rooms(db, known, names)
    for name in names:
        room = known.rooms[name]
        known.rooms[name] = _with_peers(db, replace(room, member_count=max(room.member_count - 1, 0)))
    _put_rooms(db, names, known.rooms, position)
    threads = sum(is_thread(room) for room, _ in seats)
    erased = Erased(len(seats) - threads, threads, counts["receipts"], counts["undelivered"])
    return ErasedRows(erased, {name: known.rooms[name].change for name in names}, receivers)


def _ask(db: sqlite3.Connection, name: str, keys: Iterable[Any]) -> str:
    text: str = db.execute(SQL[name], {"keys": _json(list(keys))}).fetchone()[0]
    return text


def _ask_nothing(db: sqlite3.Connection, name: str, **values: Any) -> None:
    db.execute(SQL[name], {key: _json(value) for key, value in values.items()})


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
