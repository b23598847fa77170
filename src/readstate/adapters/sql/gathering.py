"""Reads the facts that a fold needs, and writes the changes that it decided."""

from collections.abc import Iterable
from typing import Any

import msgspec

from readstate.domain.facts import Changes, Facts, FactsNeeded, Key
from readstate.domain.model import Channel, Member, Message, Pointer, Position
from readstate.domain.rooms import SEPARATOR, channel_and_thread, is_thread

from .session import Session, as_json

MAX_OWN = 10_000
"""At most this many of a joiner's own messages, the newest: older ones cannot be unread."""

channels = msgspec.json.Decoder(list[Channel], strict=False)
messages = msgspec.json.Decoder(list[Message], strict=False)
members = msgspec.json.Decoder(list[Member], strict=False)
places = msgspec.json.Decoder(list[tuple[str, int, str, int]])
_pointers = msgspec.json.Decoder(list[tuple[str, str, Pointer]])
_anything = msgspec.json.Decoder()


async def ask(session: Session, name: str, keys: Iterable[Any]) -> str:
    """Run a statement that takes many keys as one JSON array and returns JSON."""
    text: str = await session.value(name, keys=as_json(list(keys)))
    return text


async def gather(session: Session, needed: FactsNeeded, facts: Facts) -> None:
    if needed.channels:
        found = channels.decode(await ask(session, "channels", needed.channels))
        facts.channels |= {channel.channel_id: channel for channel in found}
    if needed.messages:
        stored = messages.decode(await ask(session, "messages", needed.messages))
        facts.messages |= {(message.channel_id, message.id): message for message in stored}
    if needed.members:
        known = members.decode(await ask(session, "members", needed.members))
        facts.members |= {(member.channel_id, member.user_id): member for member in known}
    if needed.pointers:
        rows = _pointers.decode(await ask(session, "pointers", needed.pointers))
        facts.pointers |= {(channel, user): pointer for channel, user, pointer in rows}
    if needed.audience:
        await _gather_audience(session, needed.audience, facts)
    if needed.followers:
        keys = [(room, channel_and_thread(room)[0]) for room in needed.followers]
        for room, user, member in _anything.decode(await ask(session, "followers", keys)):
            facts.followers.setdefault(room, {})[user] = bool(member)
    for channel in needed.everyone:
        text = await session.value("everyone", **_with_threads(channel))
        facts.everyone[channel] = tuple((room, user) for room, user in _anything.decode(text))
    for channel, n in needed.before_last:
        facts.before_last[channel, n] = await _before_last(session, channel, n)
    for channel, user in needed.own_seqs:
        text = await session.value("own_seqs", channel=channel, user=user, since=1, cap=MAX_OWN)
        facts.own_seqs[channel, user] = tuple(_anything.decode(text))
    if needed.newest_but:
        await _gather_newest(session, needed.newest_but, facts)


async def _gather_audience(session: Session, names: Iterable[str], facts: Facts) -> None:
    audience: dict[str, list[str]] = {}
    for channel, user, muted_until in _anything.decode(await ask(session, "audience", names)):
        audience.setdefault(channel, []).append(user)
        if muted_until:
            facts.muted[channel, user] = muted_until
    facts.audience |= {channel: tuple(users) for channel, users in audience.items()}


async def _gather_newest(session: Session, keys: Iterable[Key], facts: Facts) -> None:
    for room, id_ in keys:
        if found := await newest_but(session, room, id_):
            facts.newest_but[room, id_] = found


async def newest_but(session: Session, room: str, id_: str) -> Message | None:
    """The newest message of a channel or thread that is not deleted, other than this one."""
    if is_thread(room):
        text = await ask(session, "newest_reply_but", [(*channel_and_thread(room), id_)])
    else:
        text = await ask(session, "newest_but", [(room, id_)])
    found = messages.decode(text)
    return found[0] if found else None


async def store(session: Session, changes: Changes) -> None:
    for channel in sorted(changes.purged):
        await session.run("note_gone", channel=channel, change=changes.channels[channel].change)
        for part in ("messages", "undelivered", "once_named"):
            await session.run(f"purge_{part}", channel=channel)
        for part in ("members", "receipts", "threads"):
            await session.run(f"purge_{part}", **_with_threads(channel))
    for name, rows in (
        ("put_channels", changes.channels.values()),
        ("put_messages", changes.messages.values()),
        ("put_members", changes.members.values()),
        ("put_undelivered", changes.undelivered),
        ("put_once_named", changes.once_named),
    ):
        if rows:
            await session.run(name, rows=as_json(list(rows)))
    await session.put("merge_receipts", sorted(_receipt(key, pointer) for key, pointer in changes.pointers.items()))


def _with_threads(channel: str) -> dict[str, str]:
    """A channel, and the range of room names that its threads have."""
    return {"channel": channel, "first": channel + SEPARATOR, "last": channel + chr(ord(SEPARATOR) + 1)}


def _receipt(key: Key, pointer: Pointer) -> tuple[Any, ...]:
    channel, user = key
    p = pointer
    return (user, channel, p.epoch, p.seq, as_json(sorted(p.apart)), p.id, p.at, p.read_at, p.change)


async def _before_last(session: Session, channel: str, n: int) -> Position:
    seq = await session.value("before_last", channel=channel, n=n)
    return Position(0, None, None) if seq is None else await place(session, channel, seq - 1)


async def place(session: Session, channel: str, seq: int) -> Position:
    """A position in a channel, with the message's id and time if a message is there."""
    found = places.decode(await ask(session, "by_seq", [(channel, seq)]))
    return Position(seq, found[0][2], found[0][3]) if found else Position(seq, None, None)
