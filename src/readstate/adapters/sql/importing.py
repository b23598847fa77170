"""Import in SQL. Its rules are in `readstate.transfer.folding`."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from msgspec.json import Decoder
from msgspec.structs import asdict, replace

from readstate.api import Refused
from readstate.domain.facts import Key
from readstate.domain.model import Channel, Latest, LogPosition, Message, Pointer
from readstate.domain.rooms import channel_and_thread, is_thread, thread_room
from readstate.transfer.folding import take
from readstate.transfer.follows import presumed_follows
from readstate.transfer.known import Concern, Known, Rows
from readstate.transfer.records import GivenUserRoom, Numbered, Taken

from . import rows as decoders
from .gathering import newest_but
from .import_facts import gather, known_user_rooms
from .session import Session, SqlTopic, as_json, ask, write_rows

_concerns = Decoder(list[Concern])


class SqlImport(SqlTopic):
    async def take(self, records: Sequence[Numbered], stop: bool) -> Taken:
        return await self._database.write(lambda session: self._take(session, records, stop))

    async def _take(self, session: Session, records: Sequence[Numbered], stop: bool) -> Taken:
        refused: list[Refused] = []
        rooms: dict[str, int] = {}
        users: set[str] = set()
        concerns: list[Concern] = []
        arrived: dict[Key, int] = {}
        await session.lock(*_concerned(records))
        position: LogPosition = await session.value("next_position")
        for _, group in groupby(records, lambda one: type(one.given)):
            run = list(group)
            known = await gather(session, run)
            rows, misfits = take(run, known, self._fanout_max_members, stop)
            refused += misfits
            await _store(session, rows, known, position)
            rooms |= {name: known.rooms[name].change for name in rows.rooms}
            users |= rows.concerned
            users.update(await _active_members(session, rows.audiences))
            concerns += rows.concerns
            arrived |= rows.arrived
            if stop and misfits:
                break
        rows, known = await self._follow(session, concerns, arrived, position)
        rooms |= {name: known.rooms[name].change for name in rows.rooms}
        return Taken(refused, rooms, sorted(users | rows.concerned))

    async def _follow(
        self, session: Session, concerns: list[Concern], arrived: dict[Key, int], position: LogPosition
    ) -> tuple[Rows, Known]:
        """Let members follow the threads that concern them. For new members, the replies are in the store already."""
        concerns = [one for one in concerns if (one.channel_id, one.user_id) not in arrived]
        keys = [(channel, user, since) for (channel, user), since in arrived.items()]
        concerns += await ask(session, _concerns, "concerned_by_replies", keys)
        if not concerns:
            return Rows(), Known()
        in_channels = {(one.channel_id, one.user_id) for one in concerns}
        in_threads = {(thread_room(one.channel_id, one.thread_id), one.user_id) for one in concerns}
        await session.lock({channel for channel, _ in in_channels}, in_threads)
        known = Known(user_rooms=await known_user_rooms(session, in_channels | in_threads))
        run = [Numbered(0, user_room) for user_room in presumed_follows(concerns, known)]
        if not run:
            return Rows(), Known()
        known = await gather(session, run)
        rows, _ = take(run, known, self._fanout_max_members, stop=False)
        await _store(session, rows, known, position)
        return rows, known


def _concerned(records: Sequence[Numbered]) -> tuple[set[str], set[Key]]:
    """The channels and the (room, user) that the records are about, including the senders of messages."""
    channels, user_rooms = set(), set()
    for one in records:
        match one.given:
            case Channel(channel_id=room):
                pass
            case Message(channel_id=room, sender_id=user) | GivenUserRoom(room=room, user_id=user):
                user_rooms.add((room, user))
            case _:
                continue
        channels.add(channel_and_thread(room)[0])
    return channels, user_rooms


async def _store(session: Session, rows: Rows, known: Known, position: LogPosition) -> None:
    if rows.deleted:
        await session.run("delete_messages", keys=as_json(rows.deleted))
    await session.put("add_messages", list(zip(*map(_message_row, rows.messages), strict=True)))
    await write_rows(session, "put_user_rooms", [(one.member, one.preferences) for one in rows.user_rooms.values()])
    await write_rows(session, "put_pointers", [_pointer_row(key, pointer) for key, pointer in rows.pointers.items()])
    users = [(user.user_id, user.last_tap, user.last_seen, user.receipts) for user in rows.users.values()]
    await write_rows(session, "put_activities", users)
    for name in sorted(rows.latest_gone):
        known.rooms[name] = replace(known.rooms[name], latest=await _newest(session, name))
    for name in {room for room, _ in rows.user_rooms}:
        known.rooms[name] = await with_peers(session, known.rooms[name])
    await put_rooms(session, rows.rooms, known.rooms, position)


async def put_rooms(session: Session, names: set[str], rooms: dict[str, Channel], position: LogPosition) -> None:
    """Write rooms as changed. A thread takes its channel's change number, so the channel changes too."""
    names |= {channel_and_thread(name)[0] for name in names}
    parents = sorted(name for name in names if not is_thread(name))
    for name in parents:
        rooms[name] = replace(rooms[name], change=rooms[name].change + 1, position=position)
    for name in names.difference(parents):
        parent = rooms[channel_and_thread(name)[0]]
        rooms[name] = replace(rooms[name], change=parent.change)
    await write_rows(session, "put_channels", [rooms[name] for name in sorted(names)])


async def with_peers(session: Session, room: Channel) -> Channel:
    """A direct channel with its two members, as they are now."""
    if room.type != "direct":
        return room
    members = await _active_members(session, {room.channel_id})
    return replace(room, peers=tuple(sorted(members)) if len(members) <= 2 else ())


async def _active_members(session: Session, rooms: set[str]) -> list[str]:
    return await ask(session, decoders.names, "active_members", rooms)


async def _newest(session: Session, room: str) -> Latest | None:
    m = await newest_but(session, room, "")
    seq = None if m is None else m.thread_seq if is_thread(room) else m.seq
    return None if m is None or seq is None else Latest(m.id, seq, m.at, m.sender_id, m.preview)


def _message_row(message: Message) -> tuple[Any, ...]:
    """Every field, in the order of the table's columns."""
    return tuple((asdict(message) | {"mentions": as_json(message.mentions)}).values())


def _pointer_row(key: Key, pointer: Pointer) -> tuple[Any, ...]:
    (room, user), p = key, pointer
    return (user, room, p.epoch, p.seq, sorted(p.apart), p.id, p.at, p.read_at)
