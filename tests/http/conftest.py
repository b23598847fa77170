"""The service in this process, told twice: once counting by ledgers, once by timelines."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conftest import Chat, Clock, in_process


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["ledger", "timeline"])
def mode(request: pytest.FixtureRequest) -> str:
    """How channels of two members and more are counted."""
    return str(request.param)


@pytest.fixture
async def chat(tmp_path: Path, clock: Clock, mode: str) -> AsyncIterator[Chat]:
    """A fresh service with an injected clock; stories must come out the same in both modes."""
    limit = 100 if mode == "ledger" else 1
    async with in_process(tmp_path, clock=clock, fanout_max_members=limit) as chat:
        yield chat
