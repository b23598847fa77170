"""The cluster profile as it runs: several `serve` and `worker` processes over one Valkey, Kafka and PostgreSQL."""

import asyncio
import atexit
import functools
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg  # type: ignore[import-untyped]
import httpx
from confluent_kafka.admin import AdminClient

from readstate.adapters.kafka.topics import Topics
from readstate.adapters.kafka.watcher import Watcher
from readstate.adapters.sql.postgres.store import migrate
from readstate.stack import Kafka, Postgres, Valkey
from readstate.stack.ports import free_ports
from readstate.timings import SqlTimings
from tests import stores
from tests.conftest import JWT_SECRET, SERVICE_KEY, WAIT, Chat
from tests.contract import kafka, postgres, valkey
from tests.servers import Child, Server, Worker

PARTITIONS = 2
START_SECONDS = 60.0
HASTY = replace(stores.HASTY, workers=replace(stores.HASTY.workers, retries=(1.0, 2.0, 4.0)))
"""Of processes that tests run in their own; an event that fails is retried as often as it is in production."""
SHOWN_LINES = 60
"""Of the log of each child, when something went wrong."""


class Backends(NamedTuple):
    """The servers that everything stands on, and how processes reach them."""

    valkey: Valkey
    kafka: Kafka
    postgres: Postgres
    hot_url: str
    bootstrap: str
    database: str
    """The URL of a database, up to the name."""


def shared_backends(own: Kafka | None = None) -> Backends:
    """Those of this test process, reached without a detour; with a Kafka of the caller's own, if there is one."""
    hot, log, durable = valkey.single(), own or kafka.server(), postgres.server()
    return Backends(hot, log, durable, hot.url, log.url, durable.url.rpartition("/")[0])


class ClusterStores(NamedTuple):
    """What one cluster has for itself on backends that many share."""

    database: str
    key_prefix: str
    topic_prefix: str

    @classmethod
    def new(cls) -> "ClusterStores":
        """With names that nobody had before."""
        name = secrets.token_hex(6)
        return cls(f"fleet_{name}", f"{name}:", f"fleet-{name}-")

    def settings(self, backends: Backends, partitions: int = PARTITIONS) -> dict[str, Any]:
        """The settings of every process of the cluster."""
        return {
            "profile": "cluster",
            "database_url": f"{backends.database}/{self.database}",
            "hot_url": backends.hot_url,
            "key_prefix": self.key_prefix,
            "kafka_bootstrap": tuple(backends.bootstrap.split(",")),
            "topic_prefix": self.topic_prefix,
            "partitions": partitions,
            "produce_timeout": 10_000,  # a busy machine is not one without Kafka
            "wait_timeout": 30,
            "service_keys": (SERVICE_KEY,),
            "jwt_secret": JWT_SECRET,
        }

    @property
    def topics(self) -> Topics:
        return Topics(self.topic_prefix)


async def make_database(backends: Backends, name: str) -> None:
    """A database with the tables of the service: one that others have used before, if these servers are shared."""
    if _is_shared(backends.postgres, postgres.server):
        used = await postgres.take_database()
        await postgres.rename_database(used, name)
        return
    connection = await asyncpg.connect(backends.postgres.url)
    try:
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()
    await migrate(f"{backends.postgres.url.rpartition('/')[0]}/{name}", SqlTimings())


async def remove_stores(backends: Backends, stores: ClusterStores) -> None:
    """Others may have the database, and the topics go; keys in Valkey are in nobody's way. Own servers go anyway."""
    if _is_shared(backends.postgres, postgres.server):
        postgres.give_back(postgres.url_of(stores.database))
    if _is_shared(backends.kafka, kafka.server):
        await asyncio.to_thread(remove_topics, stores.topics)


def _is_shared(server: object, shared: "functools._lru_cache_wrapper[Any]") -> bool:
    return shared.cache_info().currsize > 0 and shared() is server


@functools.cache
def _admin() -> AdminClient:
    atexit.register(_admin.cache_clear)  # before the broker is gone
    return AdminClient({"bootstrap.servers": kafka.server().url})


def remove_topics(topics: Topics) -> None:
    """A broker gets slow with thousands of them. It removes them when it can: nobody waits for it."""
    _admin().delete_topics(list(topics.all))


class ClusterProcesses:
    """The processes of one cluster. Everything here blocks; call it in a thread where clients run meanwhile."""

    def __init__(
        self,
        directory: Path,
        backends: Backends,
        stores: ClusterStores,
        *,
        serves: int = 2,
        workers: int = 2,
        roles: Sequence[str] = (),
        **settings: object,
    ) -> None:
        self.directory = directory
        self.backends = backends
        self.stores = stores
        self.settings: Mapping[str, Any] = {**stores.settings(backends), **settings}
        self.serves = [
            # Each keeps its port: clients come back to where they were.
            Server(self._home(f"serve-{n}"), "--port", str(port), **self._of(f"serve-{n}"))
            for n, port in enumerate(free_ports(serves))
        ]
        self.workers = [Worker(self._home(f"worker-{n}"), *roles, **self._of(f"worker-{n}")) for n in range(workers)]

    @property
    def children(self) -> list[Child]:
        return [*self.serves, *self.workers]

    def start(self) -> "ClusterProcesses":
        """All at once; returns when each is ready."""
        for child in self.children:
            child.launch()
        for child in self.children:
            child.wait_until_ready(START_SECONDS)
        return self

    def close(self) -> None:
        """Ends those that still run."""
        for child in self.children:
            child.close()

    def mend(self) -> None:
        """Every child goes on, is started again if it does not run, and is ready."""
        for child in self.children:
            if child.runs:
                child.resume()
            else:
                child.close()
                child.launch()
        for child in self.children:
            try:
                child.wait_until_ready(START_SECONDS)
            except AssertionError:
                if child.runs:
                    raise
                child.close()  # a server was away while it started: whoever watches over it starts it again
                child.launch()
                child.wait_until_ready(START_SECONDS)

    def logs(self, lines: int = SHOWN_LINES) -> str:
        """The last words of every child; 0: all of them."""
        told = (f"---- {child.data_dir.name}\n{''.join(child.log[-lines:])}" for child in self.children)
        return "\n".join(told)

    @asynccontextmanager
    async def chat(self, number: int = 0) -> AsyncIterator[Chat]:
        """A chat product that talks to one of the servers, and waits for the place of what it sends."""
        async with httpx.AsyncClient(base_url=self.serves[number].url, headers=WAIT, timeout=30) as http:
            yield Chat(http)

    def _home(self, name: str) -> Path:
        home = self.directory / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _of(self, name: str) -> dict[str, Any]:
        return {**self.settings, "instance_id": name}


@asynccontextmanager
async def running_cluster(
    directory: Path, given: Backends | None = None, **options: Any
) -> AsyncIterator[ClusterProcesses]:
    """A fresh cluster that is ready; it is gone with the block. Options are those of `ClusterProcesses`."""
    backends = given if given is not None else await asyncio.to_thread(shared_backends)
    stores = ClusterStores.new()
    await make_database(backends, stores.database)
    processes = ClusterProcesses(directory, backends, stores, **options)
    try:
        await asyncio.to_thread(processes.start)
        yield processes
    finally:
        await asyncio.to_thread(processes.close)
        await remove_stores(backends, stores)


async def lags(processes: ClusterProcesses) -> dict[str, int]:
    """Events that each group of consumers has still to do."""
    topics = processes.stores.topics
    watcher = Watcher(
        {"bootstrap.servers": processes.backends.kafka.url}, processes.settings["partitions"], kafka.TIMINGS
    )
    try:
        return {
            "messages": await watcher.lag(topics.writer, topics.messages),
            "reads": await watcher.lag(topics.persister, topics.reads),
            "unsent": await watcher.lag(topics.status_update, topics.unsent),
            "dead reads": await watcher.lag(topics.dead_letters, topics.dead(topics.reads)),
            "dead messages": await watcher.lag(topics.dead_letters, topics.dead(topics.messages)),
        }
    finally:
        await watcher.close()
