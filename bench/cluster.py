"""The cluster profile as it runs, on one machine: real servers, `readstate serve`, and workers, all as processes.

Beside it, over the same servers: the plain design of `baselines.plain_cluster`.
"""

import asyncio
import contextlib
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import asyncpg  # type: ignore[import-untyped]

from readstate.adapters.kafka.topics import Topics
from readstate.adapters.kafka.watcher import Watcher
from readstate.adapters.sql.postgres.store import migrate
from readstate.stack import Kafka, Postgres, Valkey
from readstate.timings import KafkaTimings, SqlTimings
from readstate.workers import MESSAGE_WRITER, RECEIPT_PERSISTER, ROLES

from .allocator import allocator, jemalloc
from .load import HOST, BenchmarkError
from .servers import UNLIMITED, Server, Silent, free_port, readstate

PARTITIONS = 32
PLAIN = "plain"
PLAIN_TOPICS = ("reads", "messages")
WORKERS = {
    "writer": (MESSAGE_WRITER,),
    "persister": (RECEIPT_PERSISTER,),
    "other roles": tuple(role for role in ROLES if role not in {MESSAGE_WRITER, RECEIPT_PERSISTER}),
}
"""A process each, by what they are called here."""
ONE_WORKER = {"worker": tuple(ROLES)}
DRAIN_SECONDS = 300.0
LOOK_SECONDS = 0.05
"""Between two looks that cost next to nothing."""
ANSWER_SECONDS = 60.0
LAG_SECONDS = 0.5
"""Between two questions to Kafka, which cost it something: not within what is measured."""


@dataclass
class Cluster:
    """Everything that runs, and what can be asked of it."""

    directory: Path
    valkey: Valkey
    kafka: Kafka
    postgres: Postgres
    serve: Server
    workers: dict[str, Server]
    """By name."""
    plain: Server
    plain_workers: list[Server]
    settings: Mapping[str, str]
    """Of its instances and workers."""
    more: dict[str, Server] = field(default_factory=dict)
    """What runs besides, by name."""
    topics: Topics = field(default_factory=Topics)

    @property
    def versions(self) -> str:
        """Of the servers."""
        names = {"Valkey": self.valkey, "Kafka": self.kafka, "PostgreSQL": self.postgres}
        versions = {name: server.record.version for name, server in names.items()}
        versions["Valkey"] += f" (allocator: {allocator(self.valkey)})"
        return ", ".join(f"{name} {version}" for name, version in versions.items())

    @property
    def pids(self) -> dict[str, int]:
        """The first process of each part, also of the plain design."""
        servers = {"Valkey": self.valkey, "Kafka": self.kafka, "PostgreSQL": self.postgres}
        mine = {"serve": self.serve} | self.workers | self.more
        plain = {server.name: server for server in (self.plain, *self.plain_workers)}
        found = {name: server.pid for name, server in (mine | plain).items()}
        return found | {name: server.process.pid for name, server in servers.items() if server.process is not None}

    @property
    def plain_database(self) -> str:
        """Where the plain one keeps its tables."""
        return f"{self.postgres.url.rpartition('/')[0]}/{PLAIN}"

    @contextlib.contextmanager
    def another(self, name: str) -> Iterator[Server]:
        """A second process beside `serve` or a worker of this name; gone after this."""
        called = f"{name} 2"
        home = self.directory / called.replace(" ", "-")
        if name == "serve":
            server = readstate(home, **self.settings)
        else:
            server = worker(home, called, WORKERS[name], self.settings)
        try:
            server.start()
            self.more[called] = server
            yield server
        finally:
            self.more.pop(called, None)
            server.stop()

    @property
    def log_topics(self) -> list[str]:
        """Of both designs."""
        return [
            self.topics.reads,
            self.topics.messages,
            self.topics.unsent,
            *(f"{PLAIN}-{one}" for one in PLAIN_TOPICS),
        ]

    @property
    def processes(self) -> str:
        """What runs, for people."""
        if list(self.workers) == list(WORKERS):
            return "one `serve`, and workers: a message writer, a persister, and one with the other roles"
        return "one `serve`, and one worker with all roles"

    def watcher(self) -> Watcher:
        """Asks Kafka how long its logs are; patiently, since the machine is busy by design."""
        return Watcher({"bootstrap.servers": self.kafka.url}, PARTITIONS, KafkaTimings(answer=ANSWER_SECONDS))

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator["Progress"]:
        """Gives what tells how far the workers are, connected: that costs more than a question does."""
        watcher = self.watcher()
        progress = Progress(watcher, self.topics)
        try:
            await progress.settled()
            yield progress
        finally:
            await watcher.close()

    def settle(self) -> None:
        """Return when the workers have done all that is in the log."""

        async def settle() -> None:
            async with self.watching():
                pass

        asyncio.run(settle())


@dataclass(frozen=True)
class Progress:
    """Of the workers."""

    _watcher: Watcher
    _topics: Topics

    async def settled(self) -> None:
        """Return when they have done all that is in the log."""
        topics = self._topics
        groups = {
            topics.messages: topics.writer,
            topics.reads: topics.persister,
            topics.unsent: topics.status_update,
        }
        await self._until_done(groups, LAG_SECONDS)

    async def applied(self) -> None:
        """Return when the writer has done what is in the log; to be asked when PostgreSQL has all of it already."""
        await self._until_done({self._topics.messages: self._topics.writer}, LOOK_SECONDS)

    async def _until_done(self, groups: Mapping[str, str], pause: float) -> None:
        async def done() -> bool:
            return not any([await self._watcher.lag(group, topic) for topic, group in groups.items()])

        await until(done, "the workers have done everything", pause=pause)


async def until(condition: Callable[[], Awaitable[bool]], what: str, *, pause: float = LOOK_SECONDS) -> None:
    """Return when it holds; BenchmarkError when it does not in time."""
    end = time.monotonic() + DRAIN_SECONDS
    while not await condition():
        if time.monotonic() > end:
            raise BenchmarkError(f"waited {DRAIN_SECONDS:.0f} s in vain until {what}")
        await asyncio.sleep(pause)


@contextlib.contextmanager
def running(
    directory: Path, say: Callable[[str], None], workers: Mapping[str, Sequence[str]] = WORKERS
) -> Iterator[Cluster]:
    """Started and ready; gone after this."""
    with contextlib.ExitStack() as stack:
        say("starting Valkey, PostgreSQL and Kafka")
        valkey, postgres = Valkey(directory / "valkey", preload=jemalloc()), Postgres(directory / "postgres")
        kafka = Kafka(directory / "kafka", options=())  # as it is without the short cuts of tests
        for server in (valkey, postgres, kafka):
            stack.callback(server.wipe)
            server.start()
        asyncio.run(_make_databases(postgres.url))
        cluster = _processes(directory, valkey, kafka, postgres, workers)
        say("starting serve and workers")
        for child in (cluster.serve, *cluster.workers.values(), cluster.plain, *cluster.plain_workers):
            stack.callback(child.stop)
            child.start()
        yield cluster


async def _make_databases(url: str) -> None:
    await migrate(url, SqlTimings())
    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE DATABASE {PLAIN}")
    await connection.close()


def settings_of(hot_url: str, kafka: Kafka, postgres: Postgres) -> dict[str, str]:
    """Of every process of a cluster on these servers."""
    return {
        "profile": "cluster",
        "hot_url": hot_url,
        "key_prefix": "rs:",
        "kafka_bootstrap": kafka.url,
        "database_url": postgres.url,
        "partitions": str(PARTITIONS),
        "wait_timeout": "60",  # of the requests that set the scene
        "packed_records": "on",  # as `auto` is after the first minute, which says nothing of the rest
        "produce_timeout": "5000",  # on a machine that is busy by design, reads would wait in the spool
    }


def _processes(
    directory: Path, valkey: Valkey, kafka: Kafka, postgres: Postgres, roles_of: Mapping[str, Sequence[str]]
) -> Cluster:
    settings = settings_of(valkey.url, kafka, postgres)
    serve = readstate(directory / "serve", **settings)
    workers = {name: worker(directory / name, name, roles, settings) for name, roles in roles_of.items()}
    key = secrets.token_urlsafe(24)
    environment = {
        "PLAIN_VALKEY": valkey.url,
        "PLAIN_KAFKA": kafka.url,
        "PLAIN_DATABASE": f"{postgres.url.rpartition('/')[0]}/{PLAIN}",
        "PLAIN_PARTITIONS": str(PARTITIONS),
        "PLAIN_KEY": key,
    }
    plain, plain_workers = _plain(environment, key)
    return Cluster(directory, valkey, kafka, postgres, serve, workers, plain, plain_workers, settings)


def worker(home: Path, name: str, roles: Sequence[str], settings: Mapping[str, str]) -> Server:
    port = free_port()
    command = [sys.executable, "-m", "readstate", "worker", *roles, "--port", str(port), "--data-dir", str(home)]
    environment = {f"READSTATE_{name.upper()}": value for name, value in settings.items()}
    return Server(name, command, {**environment, **UNLIMITED, "READSTATE_LOG_LEVEL": "warning"}, port, "none")


def _plain(environment: Mapping[str, str], key: str) -> tuple[Server, list[Server]]:
    module, port = "bench.baselines.plain_cluster", free_port()
    command = [sys.executable, "-m", "uvicorn", f"{module}:app", "--host", HOST, "--port", str(port)]
    command += ["--loop", "uvloop", "--http", "httptools", "--ws", "none", "--no-access-log"]
    command += ["--log-level", "warning", "--no-server-header", "--timeout-keep-alive", "75"]
    consumers = [
        Silent(f"plain {topic}", [sys.executable, "-m", module, topic], environment, 0, key) for topic in PLAIN_TOPICS
    ]
    return Server("plain serve", command, environment, port, key), list(consumers)


# ---------------------------------------------------------------- what processes use


class Use(NamedTuple):
    """Of a process with its children."""

    cpu: float
    """Seconds since it was started."""
    memory: int
    """Bytes; what is shared between processes is counted once."""


LOAD = "load generator"
"""This process."""
TICKS = 100
"""Of the clock of `/proc`, in a second."""


def use(pid: int, children: Mapping[int, list[int]] | None = None) -> Use:
    """What a process uses; with `children`, also those that it has started."""
    cpu, memory = 0.0, 0
    pids = [pid]
    while pids:
        one = pids.pop()
        with contextlib.suppress(OSError):  # it has just ended
            words = Path(f"/proc/{one}/stat").read_text().rpartition(") ")[2].split()
            mine = 13 if children is None else 15  # then with those of its children that have ended
            cpu += sum(map(int, words[11:mine])) / TICKS
            memory += _memory(one)
        pids += children.get(one, []) if children else []
    return Use(cpu, memory)


def uses(pids: Mapping[str, int]) -> dict[str, Use]:
    """Of many with their children, by name, and of this process alone."""
    children = _children()
    return {name: use(pid, children) for name, pid in pids.items()} | {LOAD: use(os.getpid())}


def _memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(") ")[2].split()[1])
            found.setdefault(parent, []).append(int(stat.parent.name))
    return found
