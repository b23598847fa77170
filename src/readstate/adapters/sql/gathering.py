"""Reads the facts that a fold needs, and writes the changes that it decided."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import astuple

from readstate.domain.facts import Changes, Facts, FactsNeeded, Key
from readstate.domain.model import START, Message, Pointer, Position
from readstate.domain.rooms import SEPARATOR, channel_and_thread, is_thread

from . import rows
from .away import Decided, put_firsts, put_sets
from .session import Session, as_json, ask, write_rows

MAX_OWN = 10_000
"""At most this many of a joiner's own messages, the newest: older ones cannot be unread."""


async def gather(session: Session, needed: FactsNeeded, facts: Facts) -> None:
    channels = await ask(session, rows.channels, "channels", needed.channels)
    facts.channels |= {channel.channel_id: channel for channel in channels}
    messages = await ask(session, rows.messages, "messages", needed.messages)
    facts.messages |= {(message.channel_id, message.id): message for message in messages}
    members = await ask(session, rows.members, "members", needed.members)
    facts.members |= {(member.channel_id, member.user_id): member for member in members}
    pointers = await ask(session, rows.pointers, "pointers", needed.pointers)
    facts.pointers |= {(channel, user): pointer for channel, user, pointer in pointers}
    await _gather_audience(session, needed.audience, facts)
    followed = [(room, channel_and_thread(room)[0]) for room in needed.followers]
    for room, user, is_member in await ask(session, rows.anything, "followers", followed):
        facts.followers.setdefault(room, {})[user] = bool(is_member)
    for channel in needed.everyone:
        text = await session.value("everyone", **_with_threads(channel))
        facts.everyone[channel] = tuple((room, user) for room, user in rows.anything.decode(text))
    for channel, n in needed.before_last:
        facts.before_last[channel, n] = await _before_last(session, channel, n)
    for channel, user in needed.own_seqs:
        text = await session.value("own_seqs", channel=channel, user=user, since=1, cap=MAX_OWN)
        facts.own_seqs[channel, user] = tuple(rows.anything.decode(text))
    for room, id_ in needed.newest_but:
        if newest := await newest_but(session, room, id_):
            facts.newest_but[room, id_] = newest


async def _gather_audience(session: Session, names: Iterable[str], facts: Facts) -> None:
    audience: dict[str, list[str]] = {}
    for channel, user, muted_until in await ask(session, rows.anything, "audience", names):
        audience.setdefault(channel, []).append(user)
        if muted_until:
            facts.muted[channel, user] = muted_until
    facts.audience |= {channel: tuple(users) for channel, users in audience.items()}


async def newest_but(session: Session, room: str, id_: str) -> Message | None:
    """The newest message of a channel or thread that is not deleted, other than this one."""
    name, key = ("newest_reply_but", channel_and_thread(room)) if is_thread(room) else ("newest_but", (room,))
    found = await ask(session, rows.messages, name, [(*key, id_)])
    return found[0] if found else None


class _MessageRow(Message, frozen=True, gc=False, kw_only=True):
    accepted_at: int
    away_set: int


def _row(message: Message, away: Mapping[Key, Decided]) -> Message:
    decided = away.get((message.channel_id, message.id))
    if decided is None:
        return message
    return _MessageRow(*astuple(message), accepted_at=decided.away.accepted_at, away_set=decided.set_id)


async def store(session: Session, changes: Changes) -> None:
    if changes.purged:
        await session.lock_taps()
    for channel in sorted(changes.purged):
        await session.run("note_gone", channel=channel, change=changes.channels[channel].change)
        for part in ("undelivered", "away_sets", "messages", "once_named"):
            await session.run(f"purge_{part}", channel=channel)
        for part in ("members", "receipts", "threads"):
            await session.run(f"purge_{part}", **_with_threads(channel))
    await write_rows(session, "put_channels", changes.channels.values())
    away = await put_sets(session, changes.away.values()) if changes.away else {}
    await write_rows(session, "put_messages", [_row(one, away) for one in changes.messages.values()])
    await write_rows(session, "put_members", changes.members.values())
    await put_firsts(session, away.values())
    await write_rows(session, "put_once_named", changes.once_named)
    receipts = sorted(_receipt(key, pointer) for key, pointer in changes.pointers.items())
    await session.put("merge_receipts", list(zip(*receipts, strict=True)))


def _with_threads(channel: str) -> dict[str, str]:
    """A channel, and the range of room names that its threads have."""
    return {"channel": channel, "first": channel + SEPARATOR, "last": channel + chr(ord(SEPARATOR) + 1)}


def _receipt(key: Key, pointer: Pointer) -> tuple[Any, ...]:
    channel, user = key
    p = pointer
    return (user, channel, p.epoch, p.seq, as_json(sorted(p.apart)), p.id, p.at, p.read_at, p.change)


async def _before_last(session: Session, channel: str, n: int) -> Position:
    seq = await session.value("before_last", channel=channel, n=n)
    if seq is None:
        return START
    found = await ask(session, rows.positions, "by_seq", [(channel, seq - 1)])
    return Position(seq - 1, *(found[0][2:] if found else (None, None)))
