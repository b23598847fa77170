"""A key per user and channel: the layout that one finds described most often, on the same server.

`read-pointer:USER:CHANNEL` is a hash with `last_read_id` and `last_read_at`, `unread:USER:CHANNEL` a sorted set of
message ids by time, `channel-latest:CHANNEL` a hash of the newest message.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from ..valkey import PART, Line, command


class Row(NamedTuple):
    """A channel with something unread."""

    channel: str
    unread: int
    fields: dict[bytes, bytes]
    """Its pointer, and its newest message if that was asked for."""


def pointer_key(user: str, channel: str) -> bytes:
    """Where a pointer lies."""
    return f"read-pointer:{user}:{channel}".encode()


def unread_key(user: str, channel: str) -> bytes:
    """Where unread messages lie."""
    return f"unread:{user}:{channel}".encode()


def latest_key(channel: str) -> bytes:
    """Where the newest message lies."""
    return f"channel-latest:{channel}".encode()


def iso(at: int) -> bytes:
    """A time as text."""
    return datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()


# ---------------------------------------------------------------- writes, encoded


def set_pointer(user: str, channel: str, id_: str, at: int) -> bytes:
    """The pointer moves."""
    words = (b"last_read_id", id_.encode(), b"last_read_at", iso(at))
    return command(b"HSET", pointer_key(user, channel), *words)


def put_unread(user: str, channel: str, ids: Iterable[tuple[str, int]]) -> bytes:
    """Messages come in."""
    words = (word for id_, at in ids for word in (b"%d" % at, id_.encode()))
    return command(b"ZADD", unread_key(user, channel), *words)


def set_latest(channel: str, id_: str, at: int, seq: int, sender: str, text: str) -> bytes:
    """A message is the newest."""
    place = (b"latest_id", id_.encode(), b"latest_at", iso(at), b"message_seq", b"%d" % seq)
    words = (b"latest_sender", sender.encode(), b"latest_preview", text.encode())
    return command(b"HSET", latest_key(channel), *place, *words)


# ---------------------------------------------------------------- what a login asks for


def sync_by_line(line: Line, user: str, channels: Sequence[str]) -> list[Row]:
    """All pointers and counts, at the least cost that Python can have: a blocking socket and hiredis."""
    return _rows(channels, line.ask(_questions(user, channels)))


def _questions(user: str, channels: Sequence[str]) -> Iterator[bytes]:
    for channel in channels:
        yield command(b"HGETALL", pointer_key(user, channel))
        yield command(b"ZCARD", unread_key(user, channel))


def _rows(channels: Sequence[str], answers: Sequence[Any]) -> list[Row]:
    return [
        Row(channel, answers[2 * place + 1], dict(zip(answers[2 * place][::2], answers[2 * place][1::2], strict=True)))
        for place, channel in enumerate(channels)
        if answers[2 * place + 1]
    ]


async def sync(client: Redis, user: str, channels: Sequence[str]) -> list[Row]:
    """The same by the client library that Readstate uses."""
    rows = []
    for start in range(0, len(channels), PART // 2):
        part = channels[start : start + PART // 2]
        pipeline = client.pipeline(transaction=False)
        for channel in part:
            _add(pipeline, "HGETALL", pointer_key(user, channel))
            _add(pipeline, "ZCARD", unread_key(user, channel))
        answers = iter(await pipeline.execute())
        for channel, pointer, unread in zip(part, answers, answers, strict=True):
            if unread:
                rows.append(Row(channel, unread, pointer))
    return rows


async def full_sync(client: Redis, user: str, channels: Sequence[str]) -> list[Row]:
    """The same with the newest message of every channel, and in its order: what a list of channels shows."""
    rows: list[tuple[bytes, Row]] = []
    for start in range(0, len(channels), PART // 3):
        part = channels[start : start + PART // 3]
        pipeline = client.pipeline(transaction=False)
        for channel in part:
            _add(pipeline, "HGETALL", pointer_key(user, channel))
            _add(pipeline, "ZCARD", unread_key(user, channel))
            _add(pipeline, "HGETALL", latest_key(channel))
        answers = iter(await pipeline.execute())
        for channel, pointer, unread, latest in zip(part, answers, answers, answers, strict=True):
            if unread:
                rows.append((latest[b"latest_at"], Row(channel, unread, {**pointer, **latest})))
    rows.sort(key=itemgetter(0), reverse=True)
    return [row for _, row in rows]


async def pointers(client: Redis, user: str, channels: Sequence[str]) -> int:
    """The pointers alone, without counts; how many there are."""
    found = 0
    for start in range(0, len(channels), PART):
        pipeline = client.pipeline(transaction=False)
        for channel in channels[start : start + PART]:
            _add(pipeline, "HGETALL", pointer_key(user, channel))
        found += sum(map(bool, await pipeline.execute()))
    return found


# ---------------------------------------------------------------- reads


async def read(client: Redis, user: str, channel: str, id_: str, at: int) -> None:
    """One read, as two commands one after another."""
    await client.hset(pointer_key(user, channel), mapping={"last_read_id": id_, "last_read_at": iso(at)})
    await client.zremrangebyscore(unread_key(user, channel), 0, at)


async def read_many(client: Redis, reads: Iterable[tuple[str, str, str, int]]) -> None:
    """Many (user, channel, id, time) in one pipeline."""
    pipeline = client.pipeline(transaction=False)
    for user, channel, id_, at in reads:
        _add(pipeline, "HSET", pointer_key(user, channel), b"last_read_id", id_, b"last_read_at", iso(at))
        _add(pipeline, "ZREMRANGEBYSCORE", unread_key(user, channel), 0, at)
    await pipeline.execute()


async def fan_out(client: Redis, users: Iterable[str], channel: str, id_: str, at: int) -> None:
    """A message into the set of every member, in one pipeline."""
    pipeline = client.pipeline(transaction=False)
    for user in users:
        _add(pipeline, "ZADD", unread_key(user, channel), at, id_)
    await pipeline.execute()


def _add(pipeline: Pipeline, *words: bytes | str | int) -> None:
    pipeline.execute_command(*words)
