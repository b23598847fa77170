"""What a stretch of work costs: processor time of each process, and what goes over the wires and into the logs."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import asyncpg  # type: ignore[import-untyped]

from .cluster import Cluster, uses
from .report import Result, number

LEAST = 0.5
"""Milliseconds for 1,000; what costs less is not named."""
TRIPS, BYTES_IN, BYTES_OUT = "total_writes_processed", "total_net_input_bytes", "total_net_output_bytes"
"""As Valkey counts them: answers are written once for each turn, so that a pipeline is one."""
RECORDS, LOGGED, WAL = "records", "bytes of the log", "bytes of WAL"


@dataclass
class Spent:
    """Of all stretches together."""

    cpu: Counter[str] = field(default_factory=Counter)
    """Seconds by process."""
    traffic: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, begin: "Reading", end: "Reading") -> None:
        """A stretch between two readings."""
        self.cpu.update({name: end.cpu[name] - cpu for name, cpu in begin.cpu.items()})
        self.traffic.update({name: end.traffic[name] - amount for name, amount in begin.traffic.items()})
        self.seconds += end.at - begin.at

    def tell(self, result: Result, what: str, units: str, count: int) -> None:
        """Two rows: processor time, and traffic, each for 1,000 (`units`: reads, messages)."""
        each = {name: 1_000_000 * cpu / count for name, cpu in self.cpu.items()}
        parts = sorted(each.items(), key=lambda one: -one[1])
        text = ", ".join(f"{name} {number(cpu)}" for name, cpu in parts if cpu >= LEAST)
        result.add(f"{what}: processor time of 1,000 {units}, ms", f"{number(sum(each.values()))}: {text}")
        result.add(f"{what}: traffic of 1,000 {units}", self._traffic(count))

    def _traffic(self, count: int) -> str:
        each = {name: 1_000 * amount / count for name, amount in self.traffic.items()}
        kilobytes = {name: f"{number(each[name] / 1_000)} kB" for name in (BYTES_IN, BYTES_OUT, LOGGED, WAL)}
        return (
            f"Valkey {number(each[TRIPS])} round trips, {kilobytes[BYTES_IN]} in, {kilobytes[BYTES_OUT]} out; "
            f"Kafka {number(each[RECORDS])} records, {kilobytes[LOGGED]}; PostgreSQL {kilobytes[WAL]} of WAL"
        )


@dataclass(frozen=True)
class Reading:
    """Of everything at one moment."""

    at: float
    cpu: dict[str, float]
    traffic: dict[str, int]


async def before(cluster: Cluster) -> Reading:
    """What was used and sent so far, to be read right before the work: asking costs every server some milliseconds."""
    traffic = await _traffic(cluster)
    cpu = _cpu(cluster)
    return Reading(time.perf_counter(), cpu, traffic)


async def after(cluster: Cluster) -> Reading:
    """The same right after the work."""
    at, cpu = time.perf_counter(), _cpu(cluster)
    return Reading(at, cpu, await _traffic(cluster))


def _cpu(cluster: Cluster) -> dict[str, float]:
    return {name: one.cpu for name, one in uses(cluster.pids).items()}


async def _traffic(cluster: Cluster) -> dict[str, int]:
    stats = cluster.valkey.info("stats")
    traffic = {name: int(stats[name]) for name in (TRIPS, BYTES_IN, BYTES_OUT)}
    topics = cluster.log_topics
    records, wal = await _records(cluster, topics), await _wal(cluster)
    return traffic | {RECORDS: records, LOGGED: _logged(cluster, topics), WAL: wal}


async def _records(cluster: Cluster, topics: Sequence[str]) -> int:
    watcher = cluster.watcher()
    try:
        return sum([sum((await watcher.ends(topic)).values()) for topic in topics])
    finally:
        await watcher.close()


def _logged(cluster: Cluster, topics: Sequence[str]) -> int:
    files = [file for topic in topics for file in cluster.kafka.data.glob(f"{topic}-[0-9]*/*.log")]
    return sum(file.stat().st_size for file in files)


async def _wal(cluster: Cluster) -> int:
    connection = await asyncpg.connect(cluster.postgres.url)
    try:
        return int(await connection.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'"))
    finally:
        await connection.close()
