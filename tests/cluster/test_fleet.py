"""Several processes over one set of servers are one service."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SERVICE_KEY, eventually

from .fleet import ClusterProcesses, lags, running_cluster


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[ClusterProcesses]:
    async with running_cluster(tmp_path) as processes:
        yield processes
        print(processes.logs())  # shown if the test has failed


async def test_what_one_process_takes_another_tells(processes: ClusterProcesses) -> None:
    async with processes.chat(0) as alice, processes.chat(1) as bob:
        await alice.open_channel("alice", "bob")
        result = await alice.post("alice", id="m1", text="hello")
        assert result["seq"] == 1

        assert await bob.count("bob") == 1
        await bob.read("bob")

        assert await alice.count("bob") == 0

        async def all_done() -> bool:
            left = await lags(processes)
            print(left)
            return not any(left.values())

        await eventually(all_done, "nothing is left in the log")

        async def exact() -> bool:
            return bool((await alice.unread("bob"))["exact"])

        await eventually(exact, "this process knows it too")
        assert await alice.count("bob") == 0


async def test_bench_finds_every_count_right_and_leaves_what_costs_others_to_a_quiet_hour(
    processes: ClusterProcesses,
) -> None:
    world = ["--users", "6", "--channels", "3"]
    report, said = await bench(processes, *world, "--members", "4", "--seconds", "0.3", "--batch", "10")
    assert [phase["done"] > 0 for phase in report["phases"]] == [True] * 4
    assert (report["checked_users"], report["wrong"]) == (6, [])
    assert report["left"] == {"channels": 0, "users": 9}  # six who read, three who wrote
    again = f"readstate bench --remove {report['prefix']} --users 6 --channels 3"
    assert again in said
    async with processes.chat(1) as chat:

        async def is_deleted() -> bool:
            return (await chat.call("GET", f"/v1/channels/{report['prefix']}-c0")).status_code == 404

        await eventually(is_deleted, "the channel is gone at the other instance too")

    left, _ = await bench(processes, "--remove", report["prefix"], *world)
    assert left == {"channels": 0, "users": 0}


async def bench(processes: ClusterProcesses, *words: str) -> tuple[Any, str]:
    """What `readstate bench` answers, and what it says beside it."""
    place = ("--url", processes.serves[0].url, "--key", SERVICE_KEY)
    command = (sys.executable, "-m", "readstate", "bench", *words, *place, "--connections", "4", "--json")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    return json.loads(out), said.decode()
