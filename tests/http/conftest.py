"""The service in this process, told twice: once counting by ledgers, once by timelines; stories also over servers."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests import stores
from tests.conftest import Chat, Clock, in_process


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Stories must come out the same wherever everything is kept."""
    if metafunc.module.__name__.endswith("_story"):
        metafunc.parametrize("kept", stores.ALL, indirect=True)


@pytest.fixture(autouse=True)
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the services of a test keep everything."""
    kind = str(getattr(request, "param", stores.chosen))
    monkeypatch.setattr(stores, "chosen", kind)
    return kind


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
