"""What an import needs to know of the store before it folds a run of records."""

from collections.abc import Iterable, Sequence

from msgspec.json import Decoder

from readstate.domain.facts import Key
from readstate.domain.model import Channel, Member, Message, Pointer, Position, Preferences
from readstate.domain.rooms import channel_and_thread, is_thread, thread_room
from readstate.transfer.known import Known, KnownMessage, KnownUserRoom, Misfit, Neighbours
from readstate.transfer.records import GivenUser, GivenUserRoom, Numbered
from readstate.transfer.user_rooms import resolve

from . import rows
from .queries import position_at
from .session import Session, ask

_known_messages = Decoder(list[tuple[str, str, KnownMessage]])
_neighbours = Decoder(list[tuple[str, int, Neighbours]])
_user_rooms = Decoder(list[tuple[str, str, Member | None, Preferences, Pointer | None]], strict=False)
_tails = Decoder(list[tuple[str, int, int]])
_own = Decoder(list[tuple[str, str, frozenset[int]]])
_users = Decoder(list[GivenUser])


async def gather(session: Session, run: Sequence[Numbered]) -> Known:
    """The facts for a run, whose records are all of one type."""
    match run[0].given:
        case Channel():
            return await _about_rooms(session, [one.given for one in run if isinstance(one.given, Channel)])
        case Message():
            return await _about_messages(session, [one.given for one in run if isinstance(one.given, Message)])
        case GivenUserRoom():
            return await _about_user_rooms(session, [one.given for one in run if isinstance(one.given, GivenUserRoom)])
        case GivenUser():
            ids = {one.given.user_id for one in run if isinstance(one.given, GivenUser)}
            return Known(users={user.user_id: user for user in await ask(session, _users, "activities", ids)})


async def _about_rooms(session: Session, given: Sequence[Channel]) -> Known:
    latest = {(channel_and_thread(room.channel_id)[0], room.latest.id) for room in given if room.latest is not None}
    return Known(
        rooms=await known_rooms(session, {room.channel_id for room in given}),
        messages=await _messages(session, latest),
    )


async def _about_messages(session: Session, given: Sequence[Message]) -> Known:
    rooms = {message.channel_id for message in given}
    replies = [(m.channel_id, m.thread_id) for m in given if m.thread_id is not None]
    senders = {(m.channel_id, m.sender_id) for m in given if m.seq is not None or m.thread_id is None}
    return Known(
        rooms=await known_rooms(session, rooms | {thread_room(channel, thread) for channel, thread in replies}),
        messages=await _messages(session, {(message.channel_id, message.id) for message in given} | set(replies)),
        user_rooms=await known_user_rooms(session, senders),
        around=await _around(session, given, rooms),
    )


async def _around(session: Session, given: Sequence[Message], rooms: set[str]) -> dict[tuple[str, int], Neighbours]:
    tails = {room: (seq, at) for room, seq, at in await ask(session, _tails, "tails", rooms)}
    around: dict[tuple[str, int], Neighbours] = {}
    positions, replies = [], []
    for m in given:
        if m.seq is not None and m.channel_id in tails:
            seq, at = tails[m.channel_id]
            if m.seq <= seq:
                positions.append((m.channel_id, m.seq, m.channel_id))
            else:
                around[m.channel_id, m.seq] = Neighbours(at)
        if m.thread_id is not None and m.thread_seq is not None:
            replies.append((thread_room(m.channel_id, m.thread_id), m.thread_seq, m.channel_id, m.thread_id))
    found = await ask(session, _neighbours, "around", positions)
    found += await ask(session, _neighbours, "around_replies", replies)
    return around | {(room, seq): neighbours for room, seq, neighbours in found}


async def _about_user_rooms(session: Session, given: Sequence[GivenUserRoom]) -> Known:
    known = Known(
        rooms=await known_rooms(session, {user_room.room for user_room in given}),
        user_rooms=await known_user_rooms(session, {(user_room.room, user_room.user_id) for user_room in given}),
        messages=await _messages(session, {key for user_room in given for key in _named(user_room)}),
        positions=await _positions(session, given),
    )
    for one in given:
        if one.read is not None and one.read.seq is None and one.read.id is None and one.read.at is not None:
            key = (one.room, one.read.at)
            if key not in known.times:
                known.times[key] = await position_at(session, *key)
    known.own = await _own_beyond(session, known, given)
    return known


def _named(user_room: GivenUserRoom) -> Iterable[Key]:
    """The messages that a user room's record names: a thread's root, and the last message read."""
    channel, thread = channel_and_thread(user_room.room)
    if thread:
        yield channel, thread
    if user_room.read is not None and user_room.read.seq is None and user_room.read.id is not None:
        yield channel, user_room.read.id


async def known_rooms(session: Session, names: set[str]) -> dict[str, Channel]:
    """These rooms, and the channels of threads among them."""
    parents = {channel_and_thread(name)[0] for name in names}
    return {room.channel_id: room for room in await ask(session, rows.channels, "channels", names | parents)}


async def known_user_rooms(session: Session, keys: set[Key]) -> dict[Key, KnownUserRoom]:
    found = await ask(session, _user_rooms, "user_rooms", keys)
    return {(room, user): KnownUserRoom(member, wanted, pointer) for room, user, member, wanted, pointer in found}


async def _messages(session: Session, keys: set[Key]) -> dict[Key, KnownMessage]:
    found = await ask(session, _known_messages, "known_messages", keys)
    return {(channel, id_): message for channel, id_, message in found}


async def _positions(session: Session, given: Sequence[GivenUserRoom]) -> dict[tuple[str, int], Position]:
    """The messages at pointers that give only a seq."""
    positions, replies = set(), set()
    for user_room in given:
        read = user_room.read
        if read is not None and read.seq and (read.id is None or read.at is None):
            if is_thread(user_room.room):
                replies.add((user_room.room, read.seq, *channel_and_thread(user_room.room)))
            else:
                positions.add((user_room.room, read.seq))
    found = await ask(session, rows.positions, "by_seq", positions)
    found += await ask(session, rows.positions, "reply_positions", replies)
    return {(room, seq): Position(seq, id_, at) for room, seq, id_, at in found}


async def _own_beyond(session: Session, known: Known, given: Sequence[GivenUserRoom]) -> dict[Key, frozenset[int]]:
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
    found = await ask(session, _own, "own_beyond", keys)
    return {(room, user): seqs for room, user, seqs in found if seqs}
