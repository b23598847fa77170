"""Folds imported messages: seqs, times, threads, own reads and deletes."""

from collections.abc import Iterator

from msgspec.structs import replace

from readstate.domain.facts import has_no_replies, named_by_id
from readstate.domain.model import FOREVER, Channel, Latest, Message, Mode, Pointer
from readstate.domain.rooms import thread_room

from .known import Concern, Fold, KnownMessage, Misfit, Neighbours


def take_message(fold: Fold, given: Message) -> None:
    channel = fold.channel(given.channel_id)
    known = fold.known.messages.get((given.channel_id, given.id))
    if known is not None:
        _again(fold, given, known, channel)
        return
    thread = None if given.thread_id is None else fold.thread(given.channel_id, given.thread_id)
    message = given
    in_channel = bool(given.sender_id) and not given.backfill and (given.seq is not None or thread is None)
    if given.backfill:
        thread = None
    if in_channel and given.seq is None:
        message = _next(message, channel, seq=channel.last_seq + 1)
    if thread is not None and given.thread_seq is None:
        message = _next(message, thread, thread_seq=thread.last_seq + 1, keep_at=given.seq is not None)
    if in_channel:
        _check_seq(fold, channel, message.seq, message.at)
    if thread is not None:
        _check_seq(fold, thread, message.thread_seq, message.at)
    _store(fold, message, channel, thread)


def _check_seq(fold: Fold, room: Channel, seq: int | None, at: int) -> None:
    assert seq is not None
    if seq > room.last_seq + 1:
        raise Misfit(f"seq {seq} leaves a gap: the last one before it is {room.last_seq}")
    here = fold.filled[room.channel_id].around(seq)
    there = fold.known.around.get((room.channel_id, seq), Neighbours())
    if taken := here.id or there.id:
        raise Misfit(f"seq {seq} is already taken, by message {taken!r}")
    before = max(here.before_at or 0, there.before_at or 0)
    after = min(here.after_at or FOREVER, there.after_at or FOREVER)
    if seq > room.last_seq:
        before = max(before, room.last_at)
    elif seq < room.last_seq and room.last_at:
        after = min(after, room.last_at)
    if not before < at < after:
        raise Misfit(f"its time {at} is not between those of the messages before and after seq {seq}")


def _store(fold: Fold, message: Message, channel: Channel, thread: Channel | None) -> None:
    m = replace(message, change=channel.change + 1)
    fold.known.messages[m.channel_id, m.id] = KnownMessage(
        m.seq, m.thread_seq, m.sender_id, m.at, m.sent_at, m.thread_id, m.deleted
    )
    fold.rows.messages.append(m)
    fold.rows.rooms.add(channel.channel_id)
    if m.seq is not None:
        _fill(fold, channel, m, m.seq)
        _read_own(fold, m.channel_id, m.sender_id, m.seq)
        fold.rows.concerned.update(m.mentions)
    if thread is not None and m.thread_seq is not None:
        if m.thread_seq > thread.last_seq:
            fold.rows.concerns += _concerns(fold, m, m.thread_seq, first=has_no_replies(thread))
        fold.known.rooms[thread.channel_id] = thread
        _fill(fold, thread, m, m.thread_seq)


def _concerns(fold: Fold, reply: Message, seq: int, first: bool) -> Iterator[Concern]:
    """Whom a reply at the end of its thread concerns, as if it were sent now."""
    assert reply.thread_id is not None
    root = (reply.channel_id, reply.thread_id)
    if first:
        yield Concern(*root, fold.known.messages[root].sender_id, 0, own=False)
    for user in named_by_id(reply.mentions):
        yield Concern(*root, user, seq - 1, own=False)
    yield Concern(*root, reply.sender_id, seq, own=True)


def _fill(fold: Fold, room: Channel, message: Message, seq: int) -> None:
    name = room.channel_id
    fold.filled[name].put(seq, message.id, message.at)
    if seq >= room.last_seq:
        room = replace(room, last_seq=seq, last_id=message.id, last_at=message.at)
    if not message.deleted and (room.latest is None or seq > room.latest.seq):
        latest = Latest(message.id, seq, message.at, message.sender_id, message.preview)
        room = replace(room, latest=latest)
    fold.set_room(room)
    if room.mode is Mode.LEDGER:
        fold.rows.audiences.add(name)


def _read_own(fold: Fold, channel: str, user: str, seq: int) -> None:
    """A read state always covers the user's own messages.

    Without a user room there is nothing to do: the record that brings one takes them from `Known.own`.
    """
    user_room = fold.known.user_rooms.get((channel, user))
    if user_room is None or (user_room.member is None and user_room.pointer is None):
        return
    pointer = user_room.pointer or Pointer()
    if seq > pointer.seq and seq not in pointer.apart:
        fold.set_pointer((channel, user), replace(pointer, apart=pointer.apart | {seq}))


def _again(fold: Fold, given: Message, known: KnownMessage, channel: Channel) -> None:
    """A message that exists already: only a delete still applies."""
    if not known.sender_id or not given.sender_id:
        if given.seq == channel.last_seq + 1:
            fold.set_room(
                replace(channel, last_seq=given.seq, last_id=given.id, last_at=max(given.at, channel.last_at))
            )
        return
    for name, here, there in (
        ("seq", given.seq, known.seq),
        ("thread_seq", given.thread_seq, known.thread_seq),
        ("thread_id", given.thread_id, known.thread_id),
        ("sender_id", given.sender_id, known.sender_id),
    ):
        if here is not None and here != there:
            raise Misfit(f"message {given.id!r} is already there, with another {name}: {there}")
    sent = given.at if given.sent_at is None else given.sent_at
    if given.at != known.at and sent not in {known.at, known.sent_at}:
        raise Misfit(f"message {given.id!r} is already there, with another time: {known.at}")
    if given.deleted and not known.deleted:
        _delete(fold, given, known, channel)


def _delete(fold: Fold, given: Message, known: KnownMessage, channel: Channel) -> None:
    key = (given.channel_id, given.id)
    fold.known.messages[key] = replace(known, deleted=True)
    fold.rows.deleted.append(key)
    rooms = [channel.channel_id]
    if known.thread_id is not None and known.thread_seq is not None:
        rooms.append(thread_room(given.channel_id, known.thread_id))
    for name in rooms:
        room = fold.known.rooms.get(name)
        if room is None:
            continue
        fold.rows.rooms.add(name)
        fold.rows.audiences.add(name)
        if room.latest is not None and room.latest.id == given.id:
            fold.rows.latest_gone.add(name)


def _next(message: Message, room: Channel, keep_at: bool = False, **seqs: int) -> Message:
    """The message with the next seq of a room, at a time after the previous message."""
    if keep_at:
        return replace(message, **seqs)
    sent_at = message.at if message.sent_at is None else message.sent_at
    return replace(message, at=max(message.at, room.last_at + 1), sent_at=sent_at, **seqs)
