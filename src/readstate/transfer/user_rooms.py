"""Folds imported memberships, follows, preferences and pointers."""

from collections.abc import Iterable

from msgspec.structs import replace

from readstate.domain.facts import Key
from readstate.domain.model import FOREVER, NO_PREFERENCES, START, Channel, Member, Pointer, Position, Preferences
from readstate.domain.rooms import channel_and_thread, is_thread
from readstate.domain.rules import MAX_IN_DIRECT, merge

from .known import Fold, Known, KnownUserRoom, Misfit, is_presumed
from .records import GivenRead, GivenUserRoom


def take_user_room(fold: Fold, given: GivenUserRoom) -> None:
    room = _room(fold, given.room)
    key = (given.room, given.user_id)
    position = resolve(given, fold.known)
    if given.read is not None and any(seq > room.last_seq for seq in given.read.apart):
        raise Misfit(f"last_read.apart goes beyond the last seq, which is {room.last_seq}")
    known = fold.known.user_rooms.get(key, KnownUserRoom())
    fold.known.rooms[given.room] = room
    presumed = given.member is not None and not given.presumed and is_presumed(known, given.room)
    if given.member is not None:
        wanted = _wanted(known, given.preferences, room)
        _join(fold, key, known, given.member, wanted, presumed=presumed)
    pointer = _pointer(given.read, position, fold.known.own.get(key, frozenset()))
    before = known.pointer
    if presumed:
        fold.set_pointer(key, pointer or Pointer())
    elif before is None and pointer is not None:
        fold.set_pointer(key, pointer)
    elif before is not None and pointer is not None:
        state = merge(before.state, pointer.state)
        if state != before.state:
            further = pointer if (pointer.epoch, pointer.seq) > (before.epoch, before.seq) else before
            fold.set_pointer(key, replace(further, apart=state.apart))


def _room(fold: Fold, name: str) -> Channel:
    if not is_thread(name):
        return fold.channel(name)
    channel, thread = channel_and_thread(name)
    fold.channel(channel)
    known = fold.known.rooms.get(name)
    return known if known is not None and not known.deleted else fold.thread(channel, thread)


def _wanted(known: KnownUserRoom, given: Preferences, room: Channel) -> Preferences:
    """Preferences that are set stay; those at their defaults take the given values."""
    if given.archived_seq == FOREVER:
        given = replace(given, archived_seq=room.last_seq)
    names, here = Preferences.__struct_fields__, known.preferences
    unset = (name for name in names if getattr(here, name) == getattr(NO_PREFERENCES, name))
    return replace(here, **{name: getattr(given, name) for name in unset})


def _join(
    fold: Fold, key: Key, known: KnownUserRoom, given: Member, preferences: Preferences, *, presumed: bool
) -> None:
    member = given if known.member is None or presumed else _later(known.member, given)
    user_room = KnownUserRoom(member, preferences, known.pointer)
    if member == known.member and preferences == known.preferences:
        return
    was = known.member is not None and known.member.active
    if member.active and not was:
        _check_room_for_one(fold, key[0])
    fold.known.user_rooms[key] = fold.rows.user_rooms[key] = user_room
    if member.active != was:
        fold.joined[key[0]] = fold.joined.get(key[0], 0) + (1 if member.active else -1)
    if member.active and not was and not is_thread(key[0]):
        fold.rows.arrived[key] = member.joined_at
    fold.mark_stale(key)


def _check_room_for_one(fold: Fold, name: str) -> None:
    room = fold.known.rooms[name]
    if room.type == "direct" and room.member_count + fold.joined.get(name, 0) >= MAX_IN_DIRECT:
        raise Misfit(f"channel {name!r} is direct and has two members at most")


def resolve(given: GivenUserRoom, known: Known) -> Position:
    """The position of a pointer that a record gives by seq, by id or by time."""
    read, room = given.read, known.rooms.get(given.room)
    if read is None:
        return START
    last = 0 if room is None else room.last_seq
    if read.seq is not None:
        if read.seq > last:
            raise Misfit(f"last_read.seq is {read.seq}, but the last seq there is {last}")
        there = known.positions.get((given.room, read.seq), START)
        return Position(read.seq, read.id or there.id, there.at if read.at is None else read.at)
    if read.id is not None:
        return _position_of(given.room, read.id, known)
    assert read.at is not None
    if room is not None and room.last_at and read.at >= room.last_at:
        return room.end
    found = known.times.get((given.room, read.at))
    if found is None:
        raise Misfit("last_read gives a time, and no message tells what was read by then")
    return found


def _position_of(room: str, id_: str, known: Known) -> Position:
    channel = channel_and_thread(room)[0]
    message = known.messages.get((channel, id_))
    holder = known.rooms.get(room)
    if message is None and holder is not None and holder.last_id == id_:
        return holder.end
    if message is None or not message.sender_id:
        raise Misfit(f"last_read names message {id_!r}, which does not exist")
    seq = message.thread_seq if is_thread(room) else message.seq
    if seq is None:
        raise Misfit(f"last_read names message {id_!r}, which has no seq there")
    return Position(seq, id_, message.at)


def _later(known: Member, given: Member) -> Member:
    """The later join; of the same join, the leave."""
    if given.joined_at != known.joined_at:
        return given if given.joined_at > known.joined_at else known
    return replace(known, active=known.active and given.active)


def _pointer(read: GivenRead | None, position: Position, own: Iterable[int]) -> Pointer | None:
    if read is None:
        beyond = frozenset(own)
        return Pointer(apart=beyond) if beyond else None
    apart = frozenset(seq for seq in read.apart.union(own) if seq > position.seq)
    read_at = read.read_at if read.read_at is not None else position.at or 0
    return Pointer(read.epoch, position.seq, apart, position.id, position.at, read_at)
