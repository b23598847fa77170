"""Several services of the cluster profile in this process, over real servers, and steps of theirs that can be held.

No role runs until a test starts it: so what is "only in the log" stays there as long as a test wants.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from readstate import Readstate
from readstate.adapters.kafka.producer import Record
from readstate.domain.errors import LogUnavailable
from readstate.domain.events import Consumed
from readstate.gateway import asgi_app
from readstate.profiles.roles import WorkerSupervisor, channel_events, log_positions
from readstate.tasks import cancel
from readstate.workers import MESSAGE_WRITER, RECEIPT_PERSISTER, STATUS_UPDATE
from tests.conftest import WAIT, Chat, eventually
from tests.contract import postgres
from tests.stores import is_behind

from .fleet import HASTY, PARTITIONS, Backends, ClusterStores, make_database, remove_stores, shared_backends

SMALL, BIG = "small", "big"
FANOUT = 3
"""Channels with more members are counted by their timeline."""
STOP_SECONDS = READ_SECONDS = 60.0
GUESTS = ("carol", "dave", "erin")
ROOMS = pytest.mark.parametrize("room", [SMALL, BIG])


class Work:
    """Roles that somebody has in a service, until they are stopped."""

    def __init__(self, rs: Readstate, roles: tuple[str, ...]) -> None:
        self._stopping = asyncio.Event()
        self._task = asyncio.create_task(WorkerSupervisor(rs, roles).run(self._stopping))

    async def stop(self) -> None:
        """What was taken is finished."""
        self._stopping.set()
        done, _ = await asyncio.wait([self._task], timeout=STOP_SECONDS)
        if not done:  # a test has failed while it held somebody
            await cancel(self._task)


class Instance:
    """One process of the cluster, as far as it is one: with connections, memory and a spool of its own."""

    def __init__(self, rs: Readstate, http: httpx.AsyncClient) -> None:
        self.rs = rs
        self.chat = Chat(http)
        """Waits for the place of what it sends."""
        self._work: list[Work] = []

    def start_worker(self, *roles: str) -> Work:
        """Somebody works here from now on."""
        self._work.append(Work(self.rs, roles))
        return self._work[-1]

    async def stop_workers(self) -> None:
        """Nobody works here any more."""
        while self._work:
            await self._work.pop().stop()

    @property
    def is_behind(self) -> bool:
        return is_behind(self.rs)

    async def knows_of_the_loss(self) -> None:
        """Returns when it has seen that the hot store has lost everything."""
        await self.rs.cluster.notes.generation()
        assert self.is_behind

    async def is_fresh(self) -> None:
        """Returns when what is loaded is known to be whole."""

        async def fresh() -> bool:
            await self.rs.cluster.notes.generation()
            return not self.is_behind

        await eventually(fresh, "the hot state is fresh")

    async def accept(self, sender: str, name: str, channel: str = SMALL, **fields: Any) -> None:
        """A message is acknowledged: the log has it, and nobody asks for more."""
        body = {"channel_id": channel, "sender_id": sender, "id": name} | fields
        answer = await self.chat.call("POST", "/v1/messages", body, headers={"prefer": ""})
        assert answer.status_code == 202, answer.text
        [result] = answer.json()["results"]
        assert (result["status"], result["seq"]) == ("accepted", None), result


class LocalCluster:
    """The servers, and everybody who is on them."""

    def __init__(self, directory: Path, backends: Backends, stores: ClusterStores, stack: AsyncExitStack) -> None:
        self.backends = backends
        self.stores = stores
        self.timings = HASTY
        """Of everybody who comes from now on."""
        self._directory = directory
        self._stack = stack

    async def open(self, name: str, *roles: str, **settings: Any) -> Instance:
        """One more process. Without roles it only serves."""
        options: dict[str, Any] = {"fanout_max_members": FANOUT, "instance_id": name, "stale_after": 60}
        options |= self.stores.settings(self.backends) | {"data_dir": str(self._directory / name)}
        options |= {"timings": self.timings} | settings
        rs = await self._stack.enter_async_context(Readstate.open(**options))
        transport = httpx.ASGITransport(app=asgi_app(rs))
        client = httpx.AsyncClient(transport=transport, base_url="http://test", headers=WAIT)
        instance = Instance(rs, await self._stack.enter_async_context(client))
        self._stack.push_async_callback(instance.stop_workers)
        if roles:
            instance.start_worker(*roles)
        return instance

    def lose_hot_store(self) -> None:
        """Everything hot is lost, without a word to anybody."""
        self.backends.valkey.ask("FLUSHALL")

    async def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return await postgres.command(statement, f"{self.backends.database}/{self.stores.database}")

    async def receipts(self) -> dict[tuple[str, str], tuple[int, int, frozenset[int]]]:
        """The read states of the database: epoch, seq and what was read apart."""
        rows = await self.sql("SELECT user_id, channel_id, epoch, last_read_seq, apart FROM read_receipts")
        return {(user, channel): (epoch, seq, frozenset(apart)) for user, channel, epoch, seq, apart in rows}

    async def records(self, topic: str) -> list[Consumed]:
        """All that a topic holds, oldest first in each partition."""
        return await asyncio.to_thread(_read_topic, self.backends.kafka.url, topic)

    async def all_done(self, instance: Instance, *roles: str) -> None:
        """Returns when these roles have done what is in their topics now."""
        topics, watcher = self.stores.topics, instance.rs.cluster.watcher
        groups = {
            MESSAGE_WRITER: (topics.writer, topics.messages),
            RECEIPT_PERSISTER: (topics.persister, topics.reads),
            STATUS_UPDATE: (topics.status_update, topics.unsent),
        }

        async def done() -> bool:
            return not any([await watcher.lag(*groups[role]) for role in roles])

        await eventually(done, f"{', '.join(roles)} have done everything")


@asynccontextmanager
async def local_cluster(directory: Path, backends: Backends | None = None) -> AsyncIterator[LocalCluster]:
    """A fresh one, without anybody; on the servers of this test process, if none are given."""
    if backends is None:
        backends = await asyncio.to_thread(shared_backends)
    stores = ClusterStores.new()
    await make_database(backends, stores.database)
    try:
        async with AsyncExitStack() as stack:
            yield LocalCluster(directory, backends, stores, stack)
    finally:
        await remove_stores(backends, stores)


def _read_topic(bootstrap: str, topic: str) -> list[Consumed]:
    """Without a group, which would have to be joined first."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    found: list[Consumed] = []
    try:
        parts = [TopicPartition(topic, part, OFFSET_BEGINNING) for part in range(PARTITIONS)]
        left = sum(consumer.get_watermark_offsets(part, timeout=READ_SECONDS)[1] for part in parts)
        consumer.assign(parts)
        while len(found) < left:
            messages = consumer.consume(left - len(found), READ_SECONDS)
            assert messages, f"{len(found)} of {left} records of {topic} are read"
            for message in messages:
                partition, offset, key, value = message.partition(), message.offset(), message.key(), message.value()
                epoch = message.leader_epoch()
                fields: list[Any] = [topic, partition, offset, key or b"", value, -1 if epoch is None else epoch]
                found.append(Consumed(*fields))
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))


async def two_rooms(chat: Chat, messages: int = 5) -> None:
    """A small channel and a big one, with so many messages that bob has not read."""
    await chat.open_channel("alice", "bob", channel=SMALL)
    await chat.open_channel("alice", "bob", *GUESTS, channel=BIG)
    for room in (SMALL, BIG):
        names = [f"m{n}" for n in range(1, messages + 1)]
        await chat.post_all({"channel_id": room, "sender_id": "alice", "id": name} for name in names)


class ManualWriter:
    """A message writer that is led by hand: it takes what it is given, and says to nobody how far it has come."""

    def __init__(self, instance: Instance) -> None:
        self._rs = instance.rs

    async def handle(self, records: Sequence[Consumed]) -> None:
        """One batch, as the writer of that process would do it."""
        unused: Any = None  # only a writer that runs by itself looks at the partitions of its consumer
        await channel_events(self._rs, await log_positions(self._rs, unused)).handle(records)


def manual_writer(instance: Instance) -> ManualWriter:
    """The writer of a process that does what it is told."""
    return ManualWriter(instance)


async def is_left(room: str, left: list[str], *instances: Instance) -> None:
    """This is unread for bob, whoever is asked."""
    for instance in instances:
        await instance.is_fresh()
        assert await instance.chat.count("bob", room) == len(left)
        assert await instance.chat.waiting("bob", channel=room, order="oldest") == left


async def is_written(cluster: LocalCluster, worker: Instance) -> None:
    """What is in the log is in the database."""
    worker.start_worker(RECEIPT_PERSISTER)
    await cluster.all_done(worker, RECEIPT_PERSISTER)


class Unplugged:
    """A process that Kafka takes no reads from, until it is mended."""

    def __init__(self, instance: Instance) -> None:
        self._spool = instance.rs.cluster.spool
        self._topic = instance.rs.cluster.topics.reads
        self._producer = instance.rs.cluster.log._sender._producer
        self._send = self._producer.send
        self._producer.send = self._refuse  # type: ignore[method-assign]

    async def _refuse(self, topic: str, records: Sequence[Record]) -> dict[int, int]:
        if topic == self._topic:
            raise LogUnavailable("the cable is out")
        return await self._send(topic, records)

    async def mend(self) -> None:
        """Returns when what was kept on the disk is in Kafka."""
        self._producer.send = self._send  # type: ignore[method-assign]

        async def drained() -> bool:
            return not self._spool.depth

        await eventually(drained, "the spool is empty")
