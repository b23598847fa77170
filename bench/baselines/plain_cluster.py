"""The design that one finds described most often, built plainly over Valkey, Kafka and PostgreSQL.

A read is one write to Valkey and one record of Kafka that is waited for; a consumer writes one row for every record.
A message is a record too; its consumer stores it, and puts it into a sorted set of every member. The keys are those
of `pairs`. Requests that wait do so beside each other; everything else takes one thing after another.

`uvicorn bench.baselines.plain_cluster:app` takes requests, `python -m bench.baselines.plain_cluster TOPIC` consumes.
"""

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import asyncpg  # type: ignore[import-untyped]
import msgspec
import uvloop
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel
from redis.asyncio import Redis

from .pairs import fan_out, iso, latest_key, pointer_key

KEY = os.environ.get("PLAIN_KEY", "")
KAFKA: dict[str, str | int | float | bool] = {"bootstrap.servers": os.environ.get("PLAIN_KAFKA", "")}
DATABASE = os.environ.get("PLAIN_DATABASE", "")
PREFIX = "plain-"

SCHEMA = """
CREATE TABLE IF NOT EXISTS channels (channel_id text PRIMARY KEY, last_seq bigint NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS members (channel_id text, user_id text, PRIMARY KEY (channel_id, user_id));
CREATE TABLE IF NOT EXISTS messages (
    channel_id text, seq bigint, id text, sender_id text, at bigint, text text, PRIMARY KEY (channel_id, seq)
);
CREATE TABLE IF NOT EXISTS reads (
    user_id text, channel_id text, seq bigint, read_at bigint, PRIMARY KEY (user_id, channel_id)
);
"""
UPSERT = """
INSERT INTO reads (user_id, channel_id, seq, read_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (user_id, channel_id) DO UPDATE SET seq = excluded.seq, read_at = excluded.read_at
WHERE reads.seq < excluded.seq
"""
NEXT = "UPDATE channels SET last_seq = last_seq + 1 WHERE channel_id = $1 RETURNING last_seq"
STORE = "INSERT INTO messages VALUES ($1, $2, $3, $4, $5, $6)"
MEMBERS = "SELECT user_id FROM members WHERE channel_id = $1"


class NewChannel(BaseModel):
    type: str = "group"
    members: list[str] = []


class NewMembers(BaseModel):
    add: list[str] = []


class NewMessage(BaseModel):
    id: str
    channel_id: str
    sender_id: str
    text: str = ""
    outside: bool = False


class NewMessages(BaseModel):
    messages: list[NewMessage]


class Read(BaseModel):
    up_to_seq: int


class Log:
    """A producer; whoever sends waits for the acknowledgement."""

    def __init__(self) -> None:
        self._producer = Producer({**KAFKA, "acks": "all", "enable.idempotence": True})
        self._loop = asyncio.get_running_loop()
        self._closed = False
        threading.Thread(target=self._poll, daemon=True).start()

    async def send(self, topic: str, key: str, value: dict[str, Any]) -> None:
        """Return when the record is in Kafka."""
        done: asyncio.Future[None] = self._loop.create_future()

        def landed(error: KafkaError | None, _: Message) -> None:
            self._loop.call_soon_threadsafe(_settle, done, error)

        self._producer.produce(PREFIX + topic, msgspec.json.encode(value), key, on_delivery=landed)
        await done

    def close(self) -> None:
        self._closed = True

    def _poll(self) -> None:
        while not self._closed:
            self._producer.poll(0.1)


def _settle(done: "asyncio.Future[None]", error: KafkaError | None) -> None:
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(KafkaException(error))


class Servers:
    """What requests use."""

    log: Log
    valkey: Redis
    database: asyncpg.Pool


servers = Servers()


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    servers.valkey = Redis.from_url(os.environ["PLAIN_VALKEY"])
    servers.database = await asyncpg.create_pool(DATABASE)
    await servers.database.execute(SCHEMA)
    topics = [NewTopic(PREFIX + name, int(os.environ["PLAIN_PARTITIONS"]), 1) for name in ("reads", "messages")]
    admin = AdminClient(KAFKA)
    for made in admin.create_topics(topics).values():
        made.result()
    servers.log = Log()
    yield
    servers.log.close()
    await servers.valkey.aclose()
    await servers.database.close()


def check_key(authorization: Annotated[str, Header()] = "") -> None:
    if authorization != f"Bearer {KEY}":
        raise HTTPException(401)


app = FastAPI(dependencies=[Depends(check_key)], lifespan=lifespan)


@app.put("/v1/channels/{channel}")
async def put_channel(channel: str, new: NewChannel) -> dict[str, Any]:
    await servers.database.execute("INSERT INTO channels VALUES ($1) ON CONFLICT DO NOTHING", channel)
    return await add_members(channel, NewMembers(add=new.members))


@app.post("/v1/channels/{channel}/members")
async def add_members(channel: str, new: NewMembers) -> dict[str, Any]:
    rows = [(channel, user) for user in new.add]
    await servers.database.executemany("INSERT INTO members VALUES ($1, $2) ON CONFLICT DO NOTHING", rows)
    return {"added": len(rows)}


@app.post("/v1/messages", status_code=202)
async def send(new: NewMessages) -> dict[str, Any]:
    for message in new.messages:
        await servers.log.send("messages", message.channel_id, message.model_dump() | {"at": _now()})
    return {"results": [{"id": message.id, "status": "accepted"} for message in new.messages]}


@app.post("/v1/users/{user}/channels/{channel}/read")
async def mark_read(user: str, channel: str, read: Read) -> dict[str, Any]:
    now = _now()
    await servers.valkey.hset(
        pointer_key(user, channel), mapping={"last_read_seq": read.up_to_seq, "last_read_at": iso(now)}
    )
    event = {"user_id": user, "channel_id": channel, "seq": read.up_to_seq, "read_at": now}
    await servers.log.send("reads", f"{user}:{channel}", event)
    return {"last_read": {"seq": read.up_to_seq}}


@app.get("/readyz")
async def ready() -> dict[str, str]:
    return {"status": "ok"}


def _now() -> int:
    return time.time_ns() // 1_000_000


# ---------------------------------------------------------------- the consumers


async def consume(topic: str) -> None:
    """One record after another, until a signal."""
    database = await asyncpg.connect(DATABASE)
    valkey = Redis.from_url(os.environ["PLAIN_VALKEY"])
    consumer = Consumer({**KAFKA, "group.id": PREFIX + topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([PREFIX + topic])
    while True:
        record = consumer.poll(1.0)
        if record is None or record.error() is not None:
            continue
        event = msgspec.json.decode(record.value() or b"")
        if topic == "reads":
            await database.execute(UPSERT, event["user_id"], event["channel_id"], event["seq"], event["read_at"])
        else:
            await store(database, valkey, event)


async def store(database: asyncpg.Connection, valkey: Redis, event: dict[str, Any]) -> None:
    """A message gets its place, its row, and is put before every member."""
    channel, id_, at = event["channel_id"], event["id"], event["at"]
    seq = await database.fetchval(NEXT, channel)
    await database.execute(STORE, channel, seq, id_, event["sender_id"], at, event["text"])
    members = [row[0] for row in await database.fetch(MEMBERS, channel)]
    newest: dict[Any, Any] = {
        "latest_id": id_,
        "latest_at": iso(at),
        "message_seq": seq,
        "latest_preview": event["text"],
    }
    await valkey.hset(latest_key(channel), mapping=newest)
    await fan_out(valkey, members, channel, id_, at)


if __name__ == "__main__":
    uvloop.run(consume(sys.argv[1]))
