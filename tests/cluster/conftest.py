"""A service of the cluster profile in this process, with its workers beside it, and hands on its topics."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import json

from readstate import Readstate
from readstate.adapters.kafka.producer import KafkaProducer, Record
from readstate.domain.rooms import partition_of
from readstate.gateway import asgi_app
from readstate.workers import MESSAGE_WRITER
from tests import commands, stores
from tests.conftest import JWT_SECRET, SERVICE_KEY, WAIT, Chat, eventually
from tests.contract import postgres
from tests.servers import DEADLINE, environ_of

from .hard import Instance, LocalCluster, local_cluster, two_rooms


class WorkingService:
    """The service, a chat product that uses it, and somebody who writes into its topics by hand."""

    def __init__(self, rs: Readstate, chat: Chat, producer: KafkaProducer) -> None:
        self.rs = rs
        self.chat = chat
        self._producer = producer

    @property
    def topics(self) -> Any:
        return self.rs.cluster.topics

    async def put(self, topic: str, *values: bytes, channel: str = "general") -> None:
        """Records as they are, where the events of a channel are."""
        part = partition_of(channel, self.rs.settings.partitions)
        await self._producer.send(topic, [Record(b"", value, part) for value in values])

    async def put_events(self, topic: str, *events: Any, channel: str = "general") -> None:
        await self.put(topic, *(json.encode(event) for event in events), channel=channel)

    async def all_done(self) -> None:
        """Returns when the workers have done what is in the topics now."""
        watcher, topics = self.rs.cluster.watcher, self.topics
        groups = {
            topics.messages: topics.writer,
            topics.reads: topics.persister,
            topics.unsent: topics.status_update,
            topics.dead(topics.reads): topics.dead_letters,
            topics.dead(topics.messages): topics.dead_letters,
        }

        async def done() -> bool:
            return not any([await watcher.lag(group, topic) for topic, group in groups.items()])

        await eventually(done, "the workers have done everything")

    async def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return await postgres.command(statement, self.rs.settings.database_url)

    async def command(self, *words: str) -> str:
        """What a command of `readstate` says, over the same servers."""
        given = stores.settings_of(Path(self.rs.settings.data_dir))
        directory = Path(self.rs.settings.data_dir)
        environ = environ_of(given | {"data_dir": directory}) | {"COLUMNS": "1000"}
        done = await asyncio.to_thread(commands.run, *words, env=environ, cwd=directory, timeout=DEADLINE)
        assert done.returncode == 0, done
        return done.stdout + done.stderr

    async def receipts(self) -> dict[tuple[str, str], tuple[int, int, frozenset[int]]]:
        """The read states of the database: epoch, seq and what was read apart."""
        rows = await self.sql("SELECT user_id, channel_id, epoch, last_read_seq, apart FROM read_receipts")
        return {(user, channel): (epoch, seq, frozenset(apart)) for user, channel, epoch, seq, apart in rows}


@asynccontextmanager
async def working_service(data_dir: Path, **settings: Any) -> AsyncIterator[WorkingService]:
    """A fresh one."""
    options: dict[str, Any] = {"service_keys": (SERVICE_KEY,), "jwt_secret": JWT_SECRET, "data_dir": str(data_dir)}
    options |= stores.settings_of(data_dir) | {"timings": stores.HASTY} | settings
    async with Readstate.open(**options) as rs, stores.with_workers(rs):
        producer = KafkaProducer(rs.cluster.options, rs.timings.kafka)
        transport = httpx.ASGITransport(app=asgi_app(rs))
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=WAIT) as http:
                yield WorkingService(rs, Chat(http), producer)
        finally:
            await producer.close()


@pytest.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WorkingService]:
    """One with alice and bob in general."""
    monkeypatch.setattr(stores, "chosen", stores.CLUSTER)
    async with working_service(tmp_path) as service:
        await service.chat.open_channel("alice", "bob")
        yield service


async def listed(service: WorkingService) -> Sequence[tuple[Any, ...]]:
    """The dead letters that nobody has repaired: topic, error and event."""
    return await service.sql("SELECT topic, error, event FROM dead_letters ORDER BY id")


# ---------------------------------------------------------------- several processes, step by step


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Nobody is there yet."""
    async with local_cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def worker(cluster: LocalCluster) -> Instance:
    """Writes messages; nobody brings reads to the database yet."""
    return await cluster.open("worker", MESSAGE_WRITER)


@pytest.fixture
async def one(cluster: LocalCluster, worker: Instance) -> Instance:
    """Bob has five unread messages in each of two channels."""
    one = await cluster.open("one")
    await two_rooms(one.chat)
    await cluster.all_done(one, MESSAGE_WRITER)
    return one


@pytest.fixture
async def two(cluster: LocalCluster, one: Instance) -> Instance:
    return await cluster.open("two")
