"""Several services of the cluster profile in this process, over real servers, and steps of theirs that can be held.

Nobody works in a city until somebody is hired: so what is "only in the log" stays there as long as a test wants.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from readstate import Readstate
from readstate.adapters.kafka.consumer import Consumed, KafkaConsumer
from readstate.adapters.kafka.producer import Record
from readstate.adapters.kafka.watcher import Watcher
from readstate.domain.errors import LogUnavailable
from readstate.gateway import asgi_app
from readstate.profiles.roles import WorkerSupervisor, _Writer
from readstate.tasks import cancel
from readstate.timings import Timings
from readstate.workers import MESSAGE_WRITER, RECEIPT_PERSISTER, STATUS_UPDATE
from tests.conftest import WAIT, Chat, eventually
from tests.contract import postgres

from .fleet import PARTITIONS, Machines, Stores, make_database, remove_stores, shared_machines

SMALL, BIG = "small", "big"
FANOUT = 3
"""Channels with more members are counted by their timeline."""
STOP_SECONDS = 30.0
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

    async def dismiss(self) -> None:
        """Nobody works here any more."""
        while self._work:
            await self._work.pop().stop()

    @property
    def is_behind(self) -> bool:
        return self.rs.cluster.freshness.behind

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


class City:
    """The servers, and everybody who is on them."""

    def __init__(self, directory: Path, machines: Machines, stores: Stores, stack: AsyncExitStack) -> None:
        self.machines = machines
        self.stores = stores
        self.timings = Timings()
        """Of everybody who comes from now on."""
        self._directory = directory
        self._stack = stack

    async def open(self, name: str, *roles: str, **settings: Any) -> Instance:
        """One more process. Without roles it only serves."""
        options: dict[str, Any] = {"fanout_max_members": FANOUT, "instance_id": name, "stale_after": 60}
        options |= self.stores.settings(self.machines) | {"data_dir": str(self._directory / name)} | settings
        rs = await self._stack.enter_async_context(Readstate.open(timings=self.timings, **options))
        transport = httpx.ASGITransport(app=asgi_app(rs))
        client = httpx.AsyncClient(transport=transport, base_url="http://test", headers=WAIT)
        instance = Instance(rs, await self._stack.enter_async_context(client))
        self._stack.push_async_callback(instance.dismiss)
        if roles:
            instance.start_worker(*roles)
        return instance

    def lose_hot_store(self) -> None:
        """Everything hot is lost, without a word to anybody."""
        self.machines.valkey.ask("FLUSHALL")

    async def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return await postgres.command(statement, f"{self.machines.database}/{self.stores.database}")

    async def receipts(self) -> dict[tuple[str, str], tuple[int, int, frozenset[int]]]:
        """The read states of the database: epoch, seq and what was read apart."""
        rows = await self.sql("SELECT user_id, channel_id, epoch, last_read_seq, apart FROM read_receipts")
        return {(user, channel): (epoch, seq, frozenset(apart)) for user, channel, epoch, seq, apart in rows}

    async def records(self, topic: str) -> list[Consumed]:
        """All that a topic holds, oldest first in each partition."""
        options = {"bootstrap.servers": self.machines.kafka.url}
        watcher = Watcher(options, PARTITIONS)
        consumer = KafkaConsumer(options, f"reader-{secrets.token_hex(6)}", [topic])
        found: list[Consumed] = []
        try:
            end = sum((await watcher.ends(topic)).values())

            async def all_there() -> bool:
                found.extend(await consumer.batch(1000, 0.1))
                return len(found) >= end

            await eventually(all_there, f"{end} records of {topic} are read")
        finally:
            await consumer.close()
            await watcher.close()
        return sorted(found, key=lambda record: (record.partition, record.offset))

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
async def a_city(directory: Path, machines: Machines | None = None) -> AsyncIterator[City]:
    """A fresh one, without anybody; on the servers of this test process, if none are given."""
    if machines is None:
        machines = await asyncio.to_thread(shared_machines)
    stores = Stores.new()
    await make_database(machines, stores.database)
    try:
        async with AsyncExitStack() as stack:
            yield City(directory, machines, stores, stack)
    finally:
        with suppress(TimeoutError):  # a broker that has much to do removes topics when it can
            await remove_stores(machines, stores)


async def two_rooms(chat: Chat, messages: int = 5) -> None:
    """A small channel and a big one, with so many messages that bob has not read."""
    await chat.open_channel("alice", "bob", channel=SMALL)
    await chat.open_channel("alice", "bob", *GUESTS, channel=BIG)
    for room in (SMALL, BIG):
        names = [f"m{n}" for n in range(1, messages + 1)]
        await chat.post_all({"channel_id": room, "sender_id": "alice", "id": name} for name in names)


class Hand:
    """A message writer that is led by hand: it takes what it is given, and says to nobody how far it has come."""

    def __init__(self, instance: Instance) -> None:
        self._rs = instance.rs

    async def handle(self, records: Sequence[Consumed]) -> None:
        """One batch, as the writer of that process would do it."""
        cluster = self._rs.cluster
        source = await cluster.watcher.topic_id(cluster.topics.messages)
        consumer = KafkaConsumer(cluster.options, f"{cluster.topics.writer}-by-hand", [cluster.topics.messages])
        try:
            await _Writer(self._rs, consumer, source).handle(records)
        finally:
            await consumer.close()


def by_hand(instance: Instance) -> Hand:
    """The writer of a process that does what it is told."""
    return Hand(instance)


async def is_left(room: str, left: list[str], *instances: Instance) -> None:
    """This is unread for bob, whoever is asked."""
    for instance in instances:
        await instance.is_fresh()
        assert await instance.chat.count("bob", room) == len(left)
        assert await instance.chat.waiting("bob", channel=room, order="oldest") == left


async def is_written(city: City, worker: Instance) -> None:
    """What is in the log is in the database."""
    worker.start_worker(RECEIPT_PERSISTER)
    await city.all_done(worker, RECEIPT_PERSISTER)


class Unplugged:
    """A process that Kafka takes no reads from, until it is mended."""

    def __init__(self, instance: Instance) -> None:
        self._log = instance.rs.cluster.log
        self._topic = instance.rs.cluster.topics.reads
        self._producer = self._log._producer
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
            return not self._log.spooled

        await eventually(drained, "the spool is empty")
