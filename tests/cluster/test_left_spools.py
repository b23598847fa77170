"""A process dies with reads in its spool, and they are found when nobody waits for them any more."""

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from readstate.domain.errors import HotStoreUnavailable
from readstate.domain.hot_updates import UserHotUpdate
from readstate.profiles import cluster
from readstate.timings import ServiceTimings, Timings
from readstate.workers import RECEIPT_PERSISTER
from tests.conftest import eventually

from .hard import SMALL, City, Instance, Unplugged, is_left
from .test_live_after_a_loss import synced

NOTES = "SELECT count(*) FROM meta WHERE key LIKE 'spool:%'"


@pytest.fixture(autouse=True)
def _nobody_waits(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for what may still be on its way, nor is a spool adopted before a test does it."""
    city.timings = Timings(services=ServiceTimings(late_reads=0.0))
    monkeypatch.setattr(cluster, "ADOPT_SECONDS", 3600.0)


@pytest.fixture
async def two(city: City, one: Instance) -> Instance:
    """Has the same data directory as the first."""
    return await city.open("two", data_dir=one.rs.settings.data_dir)


@pytest.fixture
async def left(city: City, worker: Instance, one: Instance, two: Instance) -> Path:
    """The first has died with a read of bob's; the hot store was lost a minute later, and is found fresh."""
    Unplugged(one)
    await one.chat.read("bob", SMALL)
    await one.rs.close()
    await city.sql("DELETE FROM meta WHERE key LIKE 'spool:%'")
    city.lose_hot_store()
    worker.start_worker(RECEIPT_PERSISTER)
    await is_left(SMALL, ["m1", "m2", "m3", "m4", "m5"], two)
    return Path(one.rs.settings.data_dir) / cluster.SPOOLS / "0"


async def starts_again(city: City, two: Instance, left: Path) -> None:
    """A process in the same directory."""
    again = await city.open("one")

    async def restored() -> bool:
        return not again.rs.cluster.log.spooled

    await eventually(restored, "nothing waits in the spool")


async def is_adopted(city: City, two: Instance, left: Path) -> None:
    await two.rs.cluster._adopt(left)


async def is_adopted_without_kafka(city: City, two: Instance, left: Path) -> None:
    Unplugged(two)
    await two.rs.cluster._adopt(left)


@pytest.mark.parametrize("come_back", [starts_again, is_adopted, is_adopted_without_kafka])
async def test_what_was_acknowledged_counts_again_and_devices_hear_of_it(
    city: City,
    two: Instance,
    left: Path,
    come_back: Callable[[City, Instance, Path], Coroutine[Any, Any, None]],
) -> None:
    screen = await synced(two)
    await screen.connect(two)
    assert screen.state.channels[SMALL]["unread"] == 5

    await come_back(city, two, left)
    await city.all_done(two, RECEIPT_PERSISTER)

    await is_left(SMALL, [], two)
    await screen.shows_what_is_there(two)
    assert screen.state.channels[SMALL]["unread"] == 0
    assert (await city.receipts())["bob", SMALL][1] == 5


async def test_others_know_of_an_adopted_spool_as_long_as_it_is_not_restored(
    city: City, two: Instance, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_away(_: Sequence[UserHotUpdate]) -> None:
        raise HotStoreUnavailable

    with monkeypatch.context() as lost:
        lost.setattr(two.rs.hot.users, "apply", is_away)
        with pytest.raises(HotStoreUnavailable):
            await two.rs.cluster._adopt(left)
    assert await city.sql(NOTES) == [(1,)]

    await two.rs.cluster._adopt(left)

    assert await city.sql(NOTES) == [(0,)]
    await is_left(SMALL, [], two)


async def test_what_the_stores_refuse_is_left_to_whoever_puts_it_aside(
    city: City, two: Instance, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stumbles(_: Any) -> None:
        raise ValueError("an event that makes no sense")

    monkeypatch.setattr(two.rs.cluster._restoring, "handle", stumbles)

    await two.rs.cluster._adopt(left)

    [record] = await city.records(two.rs.cluster.topics.reads)
    assert b'"bob"' in record.value
