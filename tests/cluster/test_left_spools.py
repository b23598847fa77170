"""A process dies with reads in its spool, and they are found when nobody waits for them any more."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from readstate.adapters.kafka.spool_directory import SPOOLS
from readstate.domain.errors import HotStoreUnavailable
from readstate.domain.hot_updates import UserHotUpdate
from readstate.workers import MESSAGE_WRITER, RECEIPT_PERSISTER
from readstate.workers.receipt_persister import SharedPersister
from tests.conftest import eventually

from .fleet import HASTY
from .hard import SMALL, Instance, LocalCluster, Unplugged, is_left
from .test_live_after_a_loss import synced

NOTES = "SELECT count(*) FROM meta WHERE key LIKE 'spool:%'"


TIMINGS = replace(
    HASTY,
    services=replace(HASTY.services, late_reads=0.0),
    kafka=replace(HASTY.kafka, adopt=3600.0, close=0.5),
)
"""Nobody waits for what may still be on its way, nor is a spool adopted before a test does it."""


@pytest.fixture
async def worker(cluster: LocalCluster) -> Instance:
    return await cluster.open("worker", MESSAGE_WRITER, timings=TIMINGS)


@pytest.fixture
async def two(cluster: LocalCluster, one: Instance) -> Instance:
    """Has the same data directory as the first."""
    return await cluster.open("two", data_dir=one.rs.settings.data_dir, timings=TIMINGS)


@pytest.fixture
async def left(cluster: LocalCluster, worker: Instance, one: Instance, two: Instance) -> Path:
    """The first has died with a read of bob's; the hot store was lost a minute later, and is found fresh."""
    Unplugged(one)
    await one.chat.read("bob", SMALL)
    await one.rs.close()
    await cluster.sql("DELETE FROM meta WHERE key LIKE 'spool:%'")
    cluster.lose_hot_store()
    worker.start_worker(RECEIPT_PERSISTER)
    await is_left(SMALL, ["m1", "m2", "m3", "m4", "m5"], two)
    return Path(one.rs.settings.data_dir) / SPOOLS / "0"


async def starts_again(cluster: LocalCluster, two: Instance, left: Path) -> None:
    """A process in the same directory."""
    again = await cluster.open("one")

    async def restored() -> bool:
        return not again.rs.cluster.spool.depth

    await eventually(restored, "nothing waits in the spool")


async def is_adopted(cluster: LocalCluster, two: Instance, left: Path) -> None:
    await two.rs.cluster.spools.adopt(left)


async def is_adopted_without_kafka(cluster: LocalCluster, two: Instance, left: Path) -> None:
    Unplugged(two)
    await two.rs.cluster.spools.adopt(left)


@pytest.mark.parametrize("come_back", [starts_again, is_adopted, is_adopted_without_kafka])
async def test_what_was_acknowledged_counts_again_and_devices_hear_of_it(
    cluster: LocalCluster,
    two: Instance,
    left: Path,
    come_back: Callable[[LocalCluster, Instance, Path], Coroutine[Any, Any, None]],
) -> None:
    screen = await synced(two)
    await screen.connect(two)
    assert screen.state.channels[SMALL]["unread"] == 5

    await come_back(cluster, two, left)
    await cluster.all_done(two, RECEIPT_PERSISTER)

    await is_left(SMALL, [], two)
    await screen.shows_what_is_there(two)
    assert screen.state.channels[SMALL]["unread"] == 0
    assert (await cluster.receipts())["bob", SMALL][1] == 5


async def test_others_know_of_an_adopted_spool_as_long_as_it_is_not_restored(
    cluster: LocalCluster, two: Instance, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_away(_: Sequence[UserHotUpdate]) -> None:
        raise HotStoreUnavailable

    with monkeypatch.context() as lost:
        lost.setattr(two.rs.hot.users, "apply", is_away)
        with pytest.raises(HotStoreUnavailable):
            await two.rs.cluster.spools.adopt(left)
    assert await cluster.sql(NOTES) == [(1,)]

    await two.rs.cluster.spools.adopt(left)

    assert await cluster.sql(NOTES) == [(0,)]
    await is_left(SMALL, [], two)


async def test_what_the_stores_refuse_is_left_to_whoever_puts_it_aside(
    cluster: LocalCluster, two: Instance, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stumbles(*_: Any) -> None:
        raise ValueError("an event that makes no sense")

    monkeypatch.setattr(SharedPersister, "handle", stumbles)

    await two.rs.cluster.spools.adopt(left)

    [record] = await cluster.records(two.rs.cluster.topics.reads)
    assert b'"bob"' in record.value
