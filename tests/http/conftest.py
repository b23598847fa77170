"""The service in this process, told twice: once counting by ledgers, once by timelines; stories also over servers.

Over servers a story is told in one way of counting, and in the other by `make test-long`. Some stories are told by a
cluster too, in any run; `make test-cluster` has it tell all of them.
"""

import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests import stores
from tests.conftest import Chat, Clock, in_process

IN_A_CLUSTER = {"test_api_story": "ledger", "test_direct_story": "ledger"}
"""Stories that a cluster tells in any run, and how it counts there: each takes seconds."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Stories must come out the same wherever everything is kept."""
    if metafunc.module.__name__.endswith("_story"):
        metafunc.parametrize("kept", _kinds(metafunc), indirect=True)


def _kinds(metafunc: pytest.Metafunc) -> list[str]:
    in_any_run = stores.chosen == stores.EMBEDDED and stores.SERVERS in stores.ALL
    if in_any_run and metafunc.module.__name__.rpartition(".")[2] in IN_A_CLUSTER:
        return [*stores.ALL, stores.CLUSTER]
    return stores.ALL


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is told in any run is told in one way of counting."""
    if stores.chosen != stores.EMBEDDED:
        return
    for item in items:
        if _is_for_a_long_run(item):
            item.add_marker(pytest.mark.long)
    left = [item for item in items if _is_told_again(item)]
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=left)


def _is_for_a_long_run(item: pytest.Item) -> bool:
    """Of stories over servers one half counts by ledgers, the other by timelines: which one, its name says."""
    given = getattr(item, "callspec", None)
    if given is None or given.params.get("kept") != stores.SERVERS or "mode" not in given.params:
        return False
    name = item.name.partition("[")[0]
    return bool(given.params["mode"] != ("ledger", "timeline")[zlib.crc32(name.encode()) % 2])


def _is_told_again(item: pytest.Item) -> bool:
    given = getattr(item, "callspec", None)
    if given is None or given.params.get("kept") != stores.CLUSTER:
        return False
    way = IN_A_CLUSTER[item.path.stem]
    return bool(given.params.get("mode", way) != way)


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
