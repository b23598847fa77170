"""Processes that are told to stop while Kafka does not answer."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from readstate.stack import Kafka
from tests.conftest import eventually
from tests.contract import kafka, postgres
from tests.servers import Child

from .fleet import Backends, ClusterProcesses, running_cluster, shared_backends
from .test_late_kafka import until_it_runs

STOP_SECONDS = 5.0
"""As documented."""
DEADLINE = 3 * STOP_SECONDS
USERS = [f"u{number}" for number in range(20)]
ROUNDS = 15


@pytest.fixture
async def backends() -> AsyncIterator[Backends]:
    """With a Kafka that only this process uses."""
    own = await asyncio.to_thread(kafka.mortal)
    try:
        yield await asyncio.to_thread(shared_backends, own)
    finally:
        await asyncio.to_thread(comes_back, own)


@pytest.fixture
async def processes(tmp_path: Path, backends: Backends) -> AsyncIterator[ClusterProcesses]:
    """An instance that puts reads into its spool soon, and a worker with all roles."""
    async with running_cluster(tmp_path, backends, serves=1, workers=1, produce_timeout=100) as processes:
        yield processes


def comes_back(own: Kafka) -> None:
    own.resume() if own.is_running else own.start()


async def ends(child: Child) -> None:
    """Asked to stop, it ends by itself."""
    assert await asyncio.to_thread(child.stop, DEADLINE) == 0, "".join(child.log)
    assert any(json.loads(line)["event"] == "stopped" for line in child.log if line.startswith("{")), child.log


@pytest.mark.parametrize("goes_away", [Kafka.kill, Kafka.pause])
async def test_they_end_soon_and_every_acknowledged_read_is_found_again(
    processes: ClusterProcesses, backends: Backends, goes_away: Callable[[Kafka], None]
) -> None:
    [serve], [worker] = processes.serves, processes.workers
    async with processes.chat() as chat:
        await chat.open_channel("alice", *USERS)
        await chat.send("alice", *(f"m{seq}" for seq in range(1, 2 * ROUNDS + 1)))
        for seq in range(1, ROUNDS + 1):  # for long enough that the persister has some of them in hand
            await asyncio.gather(*(chat.read(user, up_to_seq=seq) for user in USERS))
        going = asyncio.create_task(asyncio.to_thread(goes_away, backends.kafka))
        for seq in range(ROUNDS + 1, 2 * ROUNDS + 1):
            await asyncio.gather(*(chat.read(user, up_to_seq=seq) for user in USERS))
        await going

    await asyncio.gather(ends(serve), ends(worker))

    await asyncio.to_thread(comes_back, backends.kafka)
    await asyncio.to_thread(processes.start)

    async def all_stored() -> bool:
        rows = await postgres.command(
            f"SELECT user_id FROM read_receipts WHERE last_read_seq = {2 * ROUNDS}", processes.settings["database_url"]
        )
        return {user for (user,) in rows} >= set(USERS)

    await eventually(all_stored, "every read is in the database")


async def test_they_end_soon_if_kafka_never_answered(processes: ClusterProcesses, backends: Backends) -> None:
    for child in processes.children:
        await ends(child)
        child.log.clear()
    await asyncio.to_thread(backends.kafka.kill)
    for child in processes.children:
        child.launch()
    for child in processes.children:
        await asyncio.to_thread(until_it_runs, child)

    await asyncio.gather(*map(ends, processes.children))
