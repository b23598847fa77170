"""Several processes over one set of servers are one service."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conftest import eventually

from .fleet import Fleet, lags, running


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with running(tmp_path) as fleet:
        yield fleet
        print(fleet.logs())  # shown if the test has failed


async def test_what_one_process_takes_another_tells(fleet: Fleet) -> None:
    async with fleet.chat(0) as alice, fleet.chat(1) as bob:
        await alice.open_channel("alice", "bob")
        result = await alice.post("alice", id="m1", text="hello")
        assert result["seq"] == 1

        assert await bob.count("bob") == 1
        await bob.read("bob")

        assert await alice.count("bob") == 0

        async def all_done() -> bool:
            left = await lags(fleet)
            print(left)
            return not any(left.values())

        await eventually(all_done, "nothing is left in the log")
        assert await alice.count("bob") == 0
