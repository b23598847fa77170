"""Where the services of tests keep everything: in files and memory of their own, on real servers, or as a cluster.

`TEST_STORES=servers` puts every service of the run on PostgreSQL and Valkey, `TEST_STORES=cluster` makes it one of the
cluster profile, with Kafka and with workers beside it, `TEST_STORES=embedded` needs no server. Some tests ask for
several kinds in any run that does not choose one.
"""

import asyncio
import gc
import os
import secrets
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from readstate.domain.errors import LogUnavailable
from readstate.timings import KafkaTimings, ServiceTimings, Timings, ValkeyTimings, WorkerTimings

if TYPE_CHECKING:
    from readstate import Readstate

T = TypeVar("T")

EMBEDDED, SERVERS, CLUSTER = "embedded", "servers", "cluster"
chosen = os.environ.get("TEST_STORES", EMBEDDED)
"""What services use that are not told otherwise."""
assert chosen in {EMBEDDED, SERVERS, CLUSTER}, f"TEST_STORES is {EMBEDDED}, {SERVERS} or {CLUSTER}"
ALL = [chosen] if "TEST_STORES" in os.environ else [EMBEDDED, SERVERS]
UNLIMITED = {"rate_limit": 0, "max_devices": 0}
"""Tests ask faster, and with more devices, than a user may. Those of the limits set them."""
PARTITIONS = 2
FRESH_SECONDS = 60.0
HEARTBEAT_SECONDS = 0.1
SETTLE_SECONDS = 0.5
"""So long a fresh hot store waits for what processes say of themselves: here they say it sooner."""
HASTY = Timings(
    services=ServiceTimings(settle=SETTLE_SECONDS, freshness_poll=0.05),
    workers=WorkerTimings(
        gather_reads=0.05,
        gather_slice=0.02,
        gather_unsent=0.05,
        gather_dead_letters=0.05,
        positions=0.1,
        lag=0.5,
        retries=(0.01, 0.01, 0.01),
    ),
    valkey=ValkeyTimings(generation=0.05, heartbeat=HEARTBEAT_SECONDS, settle_ms=int(SETTLE_SECONDS * 1000)),
    kafka=KafkaTimings(drain=0.2, heartbeat=HEARTBEAT_SECONDS, topics=0.1),
)
"""Of a cluster in one process: nobody looks at the load."""

not_in_a_cluster = partial(pytest.mark.skipif, chosen == CLUSTER)
"""For what only one process with stores of its own promises: `@not_in_a_cluster(reason=...)`."""

_used: dict[Path, dict[str, Any]] = {}


def settings_of(data_dir: Path) -> dict[str, Any]:
    """The settings of a service with this data directory; one that starts there again finds what it had."""
    if chosen == EMBEDDED:
        return {}
    if data_dir not in _used:
        _used[data_dir] = _on_servers() | (_on_kafka() if chosen == CLUSTER else {})
    return _used[data_dir]


def _on_servers() -> dict[str, Any]:
    from tests.contract import postgres, valkey

    url = _wait_for(postgres.take_database())
    prefix = f"{secrets.token_hex(6)}:"  # what others have left under theirs is in nobody's way
    return {"database_url": url, "hot_url": valkey.single().url, "key_prefix": prefix}


def _on_kafka() -> dict[str, Any]:
    from tests.contract import kafka

    return {
        "profile": "cluster",
        "kafka_bootstrap": (kafka.server().url,),
        "topic_prefix": f"{kafka.topic()}-",
        "partitions": PARTITIONS,
        "produce_timeout": 10_000,  # a busy machine is not one without Kafka
        "wait_timeout": 30,
        "stale_after": 60,  # nor one whose writer is behind
    }


def give_back(below: Path) -> None:
    """The services whose data lie below a directory are over; others may have their databases."""
    for data_dir in [used for used in _used if used.is_relative_to(below)]:
        from tests.contract import postgres

        used = _used.pop(data_dir)
        postgres.give_back(used["database_url"])
        if "topic_prefix" in used:
            _remove_topics(used["topic_prefix"])
            _collect_sockets()


def _remove_topics(prefix: str) -> None:
    from readstate.adapters.kafka.topics import Topics
    from tests.cluster.fleet import remove_topics

    remove_topics(Topics(prefix))


def _collect_sockets() -> None:
    """A task that is cancelled at the end while it connects leaves its socket to the collector: here, not later."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


# ---------------------------------------------------------------- a service of the cluster profile in this process


def timings() -> Timings:
    """A cluster of one process, which is made anew for every test, need not wait long for others."""
    return HASTY if chosen == CLUSTER else Timings()


@asynccontextmanager
async def with_workers(rs: "Readstate") -> AsyncIterator[None]:
    """The workers that a service needs beside it, as long as the block lasts: in the same process, by its clock."""
    if rs.settings.profile != "cluster":
        yield
        return
    from readstate.profiles.roles import WorkerSupervisor
    from readstate.workers import ROLES

    stopping = asyncio.Event()
    work = asyncio.create_task(WorkerSupervisor(rs, ROLES).run(stopping))
    try:
        await _until(lambda: not is_behind(rs) or work.done(), "the hot state is fresh")
        yield
    finally:
        stopping.set()
        await work


def is_behind(rs: "Readstate") -> bool:
    """Whether anybody may lack reads that only the log has."""
    return rs.cluster.freshness._fresh < rs.cluster.notes.seen() or not rs.cluster.notes.seen()


async def evict(rs: "Readstate") -> None:
    """The hot state is lost; returns when what is loaded instead is known to be whole."""
    await rs.evict()
    if rs.settings.profile == "cluster":
        await _fresh(rs)


async def _fresh(rs: "Readstate") -> None:
    await rs.cluster.notes.generation()
    await _until(lambda: not is_behind(rs), "the hot state is fresh again")


async def settle(rs: "Readstate") -> None:
    """Returns when all of the log is applied, and told to be: badges, cursors and receipts follow a moment later.

    So does it that counts are known to be exact, after an import as after any loss of the hot state.
    """
    if rs.settings.profile != "cluster":
        return
    await _fresh(rs)
    end = asyncio.get_running_loop().time() + FRESH_SECONDS
    while not await _is_applied(rs):
        assert asyncio.get_running_loop().time() < end, "the log is not applied"
        await asyncio.sleep(0.02)


async def _is_applied(rs: "Readstate") -> bool:
    topics, watcher = rs.cluster.topics, rs.cluster.watcher
    groups = {topics.unsent: topics.status_update, topics.reads: topics.persister}
    try:
        return not any([await watcher.lag(groups[one], one) for one in groups]) and await _is_told(rs)
    except LogUnavailable:  # a broker that has too much to do for an answer is asked again
        return False


async def _is_told(rs: "Readstate") -> bool:
    applied = await rs.cluster.hot.channels.offsets()
    ends = await rs.cluster.watcher.ends(rs.cluster.topics.messages)
    return all(applied.get(part, 0) >= end for part, end in ends.items())


async def _until(condition: Callable[[], bool], what: str) -> None:
    end = asyncio.get_running_loop().time() + FRESH_SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < end, f"waited {FRESH_SECONDS} s in vain until {what}"
        await asyncio.sleep(0.02)


def _wait_for(work: Coroutine[Any, Any, T]) -> T:
    """The answer, whether this thread has a loop or not."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
