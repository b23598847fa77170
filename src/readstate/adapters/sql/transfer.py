"""Export, import and erase in SQL. The rules of an import are in `readstate.transfer.folding`."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from itertools import groupby
from typing import Any

import msgspec
from msgspec.structs import replace

from readstate.api import Erased, Refused
from readstate.domain.facts import Key
from readstate.domain.model import Channel, Latest, Member, Message, Pointer, Position, Preferences
from readstate.domain.rooms import channel_and_thread, is_thread, thread_room
from readstate.transfer.folding import take
from readstate.transfer.follows import presumed_follows
from readstate.transfer.known import Concern, Known, KnownMessage, KnownUserRoom, Misfit, Neighbours, Rows
from readstate.transfer.records import (
    ErasedRows,
    GivenUser,
    GivenUserRoom,
    MessageLine,
    Numbered,
    PreferencesLine,
    Record,
    Taken,
)
from readstate.transfer.user_rooms import resolve

from . import gathering
from .applying import hash_of
from .dead_letters import erase_dead_letters
from .gathering import ask, newest_but
from .session import Database, Session, as_json

PAGE = 500
ON_THE_WAY_MS = 4 * 24 * 3600 * 1000
"""No event is in flight for this long: the log keeps events for two days."""
STALLED_SECONDS = 60
"""A reader that takes longer for one page loses the export: its snapshot blocks vacuum and checkpoints."""
_OF_THREADS = {"channel": "thread", "member": "follow"}
"""Record types of threads whose rows say `group`: an earlier version let callers delete a thread by its room name."""
_PARTS = ("rooms", "members", "pointers", "unplaced", "messages", "replies", "users")
"""Members and followers come before messages: for members who arrive after the replies, an import presumes follows."""
_MESSAGES = {"unplaced", "messages", "replies"}

_message_line = msgspec.json.Decoder(MessageLine)
_known_messages = msgspec.json.Decoder(list[tuple[str, str, KnownMessage]])
_neighbours = msgspec.json.Decoder(list[tuple[str, int, Neighbours]])
_user_rooms = msgspec.json.Decoder(list[tuple[str, str, Member | None, Preferences, Pointer | None]])
_tails = msgspec.json.Decoder(list[tuple[str, int, int]])
_own = msgspec.json.Decoder(list[tuple[str, str, frozenset[int]]])
_concerns = msgspec.json.Decoder(list[Concern])
_users = msgspec.json.Decoder(list[GivenUser])
_names = msgspec.json.Decoder(list[str])
_flags = msgspec.json.Decoder(list[tuple[str, int]])


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(PreferencesLine)}


class SqlTransfer:
    def __init__(self, database: Database, fanout_max_members: int) -> None:
        self._database = database
        self._limit = fanout_max_members

    async def export(self) -> AsyncGenerator[Sequence[Record], None]:
        async with self._database.snapshot() as snapshot:
            for part in _PARTS:
                a, b, c = "", -1, ""
                while page := await snapshot.rows(f"export_{part}", a=a, b=b, c=c, limit=PAGE):
                    a, b, c, _ = page[-1]
                    watch = asyncio.get_running_loop().call_later(STALLED_SECONDS, snapshot.abandon)
                    try:
                        yield [_line(part, text) for *_, text in page]
                    finally:
                        watch.cancel()

    async def take(self, records: Sequence[Numbered], stop: bool) -> Taken:
        return await self._database.write(lambda session: self._take(session, records, stop))

    async def _take(self, session: Session, records: Sequence[Numbered], stop: bool) -> Taken:
        refused: list[Refused] = []
        rooms: dict[str, int] = {}
        users: set[str] = set()
        concerns: list[Concern] = []
        arrived: dict[Key, int] = {}
        await session.lock(_channels_of(records), _user_rooms_of(records))
        position: int = await session.value("next_position")
        for _, group in groupby(records, lambda one: type(one.given)):
            run = list(group)
            known = await _gather(session, run)
            rows, misfits = take(run, known, self._limit, stop)
            refused += misfits
            await _store(session, rows, known, position)
            rooms |= {name: known.rooms[name].change for name in rows.rooms}
            users |= rows.concerned
            users.update(_names.decode(await ask(session, "active_members", rows.audiences)) if rows.audiences else ())
            concerns += rows.concerns
            arrived |= rows.arrived
            if stop and misfits:
                break
        rows, known = await self._follow(session, concerns, arrived, position)
        rooms |= {name: known.rooms[name].change for name in rows.rooms}
        return Taken(refused, rooms, sorted(users | rows.concerned))

    async def _follow(
        self, session: Session, concerns: list[Concern], arrived: dict[Key, int], position: int
    ) -> tuple[Rows, Known]:
        """Let members follow the threads that concern them. For new members, the replies are in the store already."""
        concerns = [one for one in concerns if (one.channel_id, one.user_id) not in arrived]
        if arrived:
            keys = [(channel, user, since) for (channel, user), since in arrived.items()]
            concerns += _concerns.decode(await ask(session, "concerned_by_replies", keys))
        if not concerns:
            return Rows(), Known()
        known = Known()
        in_channels = {(one.channel_id, one.user_id) for one in concerns}
        in_threads = {(thread_room(one.channel_id, one.thread_id), one.user_id) for one in concerns}
        await session.lock({channel for channel, _ in in_channels}, in_threads)
        await _gather_user_rooms(session, known, in_channels | in_threads)
        run = [Numbered(0, user_room) for user_room in presumed_follows(concerns, known)]
        if not run:
            return Rows(), Known()
        known = await _gather(session, run)
        rows, _ = take(run, known, self._limit, stop=False)
        await _store(session, rows, known, position)
        return rows, known

    async def erase(self, user: str, on_the_way: int | None = None) -> ErasedRows:
        async def work(session: Session) -> ErasedRows:
            if on_the_way is not None:
                await session.run("erase_reached", user=user)  # first: `apply_shared` locks these rows first too
                await session.run("round_erased", before=on_the_way - ON_THE_WAY_MS)
                await session.run("expire_erased", before=on_the_way - ON_THE_WAY_MS)
                await session.run("note_erased", hash=hash_of(user), at=on_the_way)
            return await _erase(session, user)

        return await self._database.write(work)


def _channels_of(records: Sequence[Numbered]) -> set[str]:
    names = set()
    for one in records:
        match one.given:
            case Channel() | Message():
                names.add(channel_and_thread(one.given.channel_id)[0])
            case GivenUserRoom():
                names.add(channel_and_thread(one.given.room)[0])
    return names


def _user_rooms_of(records: Sequence[Numbered]) -> set[Key]:
    """(room, user) that the records are about, including the senders of messages."""
    user_rooms = set()
    for one in records:
        match one.given:
            case Message():
                user_rooms.add((one.given.channel_id, one.given.sender_id))
            case GivenUserRoom():
                user_rooms.add((one.given.room, one.given.user_id))
    return user_rooms


def _line(part: str, text: str) -> Record:
    """A row as its record. A thread room is written as channel and thread."""
    if part in _MESSAGES:
        return _message_line.decode(text)
    fields = msgspec.json.decode(text)
    room = fields.get("channel_id", "")
    if is_thread(room):
        fields["type"] = _OF_THREADS.get(fields["type"], fields["type"])
        fields["channel_id"], fields["thread_id"] = channel_and_thread(room)
        fields.pop("preferences", None)
        for name in ("kind", "name", "avatar", "archived"):
            fields.pop(name, None)
    if fields.get("preferences") == _DEFAULTS:
        del fields["preferences"]
    record: Record = msgspec.convert(fields, Record)
    return record


# ---------------------------------------------------------------- facts for an import


async def _gather(session: Session, run: Sequence[Numbered]) -> Known:
    match run[0].given:
        case Channel():
            return await _about_rooms(session, [one.given for one in run if isinstance(one.given, Channel)])
        case Message():
            return await _about_messages(session, [one.given for one in run if isinstance(one.given, Message)])
        case GivenUserRoom():
            return await _about_user_rooms(session, [one.given for one in run if isinstance(one.given, GivenUserRoom)])
        case GivenUser():
            names = {one.given.user_id for one in run if isinstance(one.given, GivenUser)}
            return Known(users={user.user_id: user for user in _users.decode(await ask(session, "activities", names))})


async def _about_rooms(session: Session, given: Sequence[Channel]) -> Known:
    known = Known()
    await _gather_rooms(session, known, {room.channel_id for room in given})
    latest = {(channel_and_thread(room.channel_id)[0], room.latest.id) for room in given if room.latest is not None}
    await _gather_messages(session, known, latest)
    return known


async def _about_messages(session: Session, given: Sequence[Message]) -> Known:
    known = Known()
    rooms = {message.channel_id for message in given}
    replies = [(m.channel_id, m.thread_id) for m in given if m.thread_id is not None]
    await _gather_rooms(session, known, rooms | {thread_room(channel, thread) for channel, thread in replies})
    await _gather_messages(session, known, {(message.channel_id, message.id) for message in given} | set(replies))
    await _gather_user_rooms(
        session, known, {(m.channel_id, m.sender_id) for m in given if m.seq is not None or m.thread_id is None}
    )
    tails = {room: (seq, at) for room, seq, at in _tails.decode(await ask(session, "tails", rooms))}
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
            found = _neighbours.decode(await ask(session, name, keys))
            known.around |= {(room, seq): neighbours for room, seq, neighbours in found}
    return known


async def _about_user_rooms(session: Session, given: Sequence[GivenUserRoom]) -> Known:
    known = Known()
    await _gather_rooms(session, known, {user_room.room for user_room in given})
    await _gather_user_rooms(session, known, {(user_room.room, user_room.user_id) for user_room in given})
    await _gather_messages(session, known, {key for user_room in given for key in _named(user_room)})
    await _gather_places(session, known, given)
    for user_room in given:
        if (
            user_room.read is not None
            and user_room.read.seq is None
            and user_room.read.id is None
            and user_room.read.at is not None
        ):
            key = (user_room.room, user_room.read.at)
            if key not in known.times:
                known.times[key] = await _by_time(session, *key)
    await _gather_own(session, known, given)
    return known


def _named(user_room: GivenUserRoom) -> Iterable[Key]:
    """The messages that a user room's record names: a thread's root, and the last message read."""
    channel, thread = channel_and_thread(user_room.room)
    if thread:
        yield channel, thread
    if user_room.read is not None and user_room.read.seq is None and user_room.read.id is not None:
        yield channel, user_room.read.id


async def _gather_rooms(session: Session, known: Known, names: set[str]) -> None:
    parents = {channel_and_thread(name)[0] for name in names}
    known.rooms = {
        room.channel_id: room for room in gathering.channels.decode(await ask(session, "channels", names | parents))
    }


async def _gather_messages(session: Session, known: Known, keys: set[Key]) -> None:
    if keys:
        rows = _known_messages.decode(await ask(session, "known_messages", keys))
        known.messages = {(channel, id_): message for channel, id_, message in rows}


async def _gather_user_rooms(session: Session, known: Known, keys: set[Key]) -> None:
    rows = _user_rooms.decode(await ask(session, "seats", keys))
    known.user_rooms = {
        (room, user): KnownUserRoom(member, wanted, pointer) for room, user, member, wanted, pointer in rows
    }


async def _gather_places(session: Session, known: Known, given: Sequence[GivenUserRoom]) -> None:
    """The messages at pointers that give only a seq."""
    places, replies = set(), set()
    for user_room in given:
        read = user_room.read
        if read is not None and read.seq and (read.id is None or read.at is None):
            if is_thread(user_room.room):
                replies.add((user_room.room, read.seq, *channel_and_thread(user_room.room)))
            else:
                places.add((user_room.room, read.seq))
    for name, keys in (("by_seq", places), ("reply_places", replies)):
        if keys:
            rows = gathering.places.decode(await ask(session, name, keys))
            known.positions |= {(room, seq): Position(seq, id_, at) for room, seq, id_, at in rows}


async def _gather_own(session: Session, known: Known, given: Sequence[GivenUserRoom]) -> None:
    """The user's own messages beyond the pointer, which the read state must cover (in channels)."""
    keys = []
    for user_room in given:
        if is_thread(user_room.room):
            continue
        pointer = known.user_rooms.get((user_room.room, user_room.user_id), KnownUserRoom()).pointer
        try:
            since = resolve(user_room, known).seq if user_room.read is not None or pointer is None else pointer.seq
        except Misfit:
            continue
        keys.append((user_room.room, user_room.user_id, since))
    if keys:
        known.own = {
            (room, user): seqs for room, user, seqs in _own.decode(await ask(session, "own_beyond", keys)) if seqs
        }


async def _by_time(session: Session, room: str, time: int) -> Position | None:
    """The newest position at or before a time, by binary search: times follow seqs.

    Messages missing at the start of the room count as read.
    """
    channel, thread = channel_and_thread(room)
    values: dict[str, object] = {"channel": channel, "thread": thread}
    prefix = "reply_" if thread else ""
    low, high = await session.row(f"{prefix}ends", **values) or (None, None)
    if low is None:
        return None

    async def newest(seq: int) -> Position:
        row = await session.row(f"{prefix}at_or_before", **values, seq=seq)
        assert row is not None
        return Position(*row)

    if ((await newest(low)).at or 0) > time:
        return Position(low - 1, None, None)
    while low < high:
        middle = (low + high + 1) // 2
        found = await newest(middle)
        if (found.at or 0) <= time:
            low = middle
        else:
            high = found.seq - 1
    return await newest(low)


# ---------------------------------------------------------------- rows


async def _store(session: Session, rows: Rows, known: Known, position: int) -> None:
    if rows.deleted:
        await session.run("delete_messages", keys=as_json(rows.deleted))
    await session.put("add_messages", [_message_row(message) for message in rows.messages])
    for name, values in (
        ("put_seats", [_user_room_row(key, user_room) for key, user_room in rows.user_rooms.items()]),
        ("put_pointers", [_receipt_row(key, pointer) for key, pointer in rows.pointers.items()]),
        ("put_activities", [(u.user_id, u.last_tap, u.last_seen, u.receipts) for u in rows.users.values()]),
    ):
        if values:
            await session.run(name, rows=as_json(values))
    for name in sorted(rows.latest_gone):
        known.rooms[name] = replace(known.rooms[name], latest=await _newest(session, name))
    for name in {room for room, _ in rows.user_rooms}:
        known.rooms[name] = await _with_peers(session, known.rooms[name])
    await _put_rooms(session, rows.rooms, known.rooms, position)


async def _put_rooms(session: Session, names: set[str], rooms: dict[str, Channel], position: int) -> None:
    """Write rooms as changed. A thread takes its channel's change number, so the channel changes too."""
    names |= {channel_and_thread(name)[0] for name in names}
    parents = sorted(name for name in names if not is_thread(name))
    for name in parents:
        rooms[name] = replace(rooms[name], change=rooms[name].change + 1, position=position)
    for name in names.difference(parents):
        parent = rooms[channel_and_thread(name)[0]]
        rooms[name] = replace(rooms[name], change=parent.change)
    if names:
        await session.run("put_channels", rows=as_json([rooms[name] for name in sorted(names)]))


async def _with_peers(session: Session, room: Channel) -> Channel:
    if room.type != "direct":
        return room
    members = _names.decode(await ask(session, "active_members", [room.channel_id]))
    return replace(room, peers=tuple(sorted(members)) if len(members) <= 2 else ())


async def _newest(session: Session, room: str) -> Latest | None:
    m = await newest_but(session, room, "")
    seq = None if m is None else m.thread_seq if is_thread(room) else m.seq
    return None if m is None or seq is None else Latest(m.id, seq, m.at, m.sender_id, m.preview)


def _message_row(m: Message) -> tuple[Any, ...]:
    mentions = as_json(m.mentions) if m.mentions else "[]"
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


def _user_room_row(key: Key, user_room: KnownUserRoom) -> tuple[Any, ...]:
    (room, user), member, wanted = key, user_room.member, user_room.preferences
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


async def _erase(session: Session, user: str) -> ErasedRows:
    user_rooms = _flags.decode(await session.value("rooms_of", user=user))
    await session.lock(
        {channel_and_thread(room)[0] for room, _ in user_rooms}, [(room, user) for room, _ in user_rooms]
    )
    user_rooms = _flags.decode(await session.value("rooms_of", user=user))
    receivers = _names.decode(await session.value("badges_with", user=user))
    position: int = await session.value("next_position")
    counts = {
        part: await session.run(f"erase_{part}", user=user)
        for part in ("members", "receipts", "undo", "undelivered", "activity", "once_named")
    }
    await erase_dead_letters(session, user)
    names = {room for room, active in user_rooms if active}
    known = Known()
    await _gather_rooms(session, known, names)
    for name in names:
        room = known.rooms[name]
        known.rooms[name] = await _with_peers(session, replace(room, member_count=max(room.member_count - 1, 0)))
    await _put_rooms(session, names, known.rooms, position)
    threads = sum(is_thread(room) for room, _ in user_rooms)
    erased = Erased(len(user_rooms) - threads, threads, counts["receipts"], counts["undelivered"])
    return ErasedRows(erased, {name: known.rooms[name] for name in sorted(names)}, receivers)
