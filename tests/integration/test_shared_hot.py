"""Hot state that several processes share: one generation for all, and how far each part of the log is applied."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from readstate.errors import HotStoreUnavailable
from readstate.hot.valkey import ValkeyHot
from readstate.stack import Valkey, ValkeyCluster
from readstate.steps import ChannelStep
from readstate.valkey import Generation
from tests.contract.test_hot_channels import channel
from tests.contract.valkey import HotStore, cluster, hot_store, single

from .test_generation import Counter

NOW = 1_700_000_000_000


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    with Valkey(tmp_path / "valkey", persistent=False) as server:
        yield server


# ---------------------------------------------------------------- one generation


@asynccontextmanager
async def processes(url: str, counter: Counter, count: int = 2) -> AsyncIterator[list[Generation]]:
    """What so many processes hold of one hot store."""
    found = [Generation(url, "", 5.0, 1, counter, shared=True) for _ in range(count)]
    try:
        yield found
    finally:
        await asyncio.gather(*(one.close() for one in found))


async def agreed(generations: list[Generation]) -> int:
    """The number that all have come to, after as many looks as that takes."""
    for _ in range(100):
        numbers = set(await asyncio.gather(*(one.check() for one in generations)))
        if len(numbers) == 1:
            return numbers.pop()
    raise AssertionError("they don't agree")


async def test_a_process_that_starts_takes_the_number_that_it_finds(valkey: Valkey) -> None:
    counter = Counter()
    async with processes(valkey.url, counter, 3) as (first, second, third):
        number = await first.check()
        assert [await second.check(), await third.check(), await first.check()] == [number] * 3
        assert counter.raised == 1
        second.missed()  # a step that failed is repeated by its caller
        assert await second.check() == number
        assert second.trusted
        assert counter.raised == 1


async def test_all_take_the_number_that_one_has_raised(valkey: Valkey) -> None:
    counter = Counter()
    async with processes(valkey.url, counter) as (first, second):
        number = await first.check()
        assert await second.check() == number
        first.distrust()
        await first.confirm()
        assert await second.check() == await first.check() > number
        assert counter.raised == 2


async def test_after_a_loss_all_agree_on_a_new_number_although_all_raise_at_once() -> None:
    counter = Counter()
    async with processes(cluster().url, counter, 5) as generations:
        number = await agreed(generations)
        for _ in range(5):
            for node in cluster().nodes:
                node.ask("FLUSHALL")
            number, before = await agreed(generations), number
            assert number > before
            assert await agreed(generations) == number


async def test_a_restart_is_seen_by_all_and_costs_one_number(tmp_path: Path) -> None:
    counter = Counter()
    with Valkey(tmp_path / "kept", persistent=True) as valkey:
        async with processes(valkey.url, counter) as (first, second):
            number = await first.check()
            assert await second.check() == number
            valkey.stop()
            valkey.start()
            assert await first.check() > number
            assert await second.check() == await first.check()
            assert counter.raised == 2


async def test_a_full_server_costs_no_numbers(valkey: Valkey) -> None:
    counter = Counter()
    async with processes(valkey.url, counter, 1) as (generation,):
        await generation.check()
        valkey.ask("CONFIG", "SET", "maxmemory", "1")
        valkey.ask("FLUSHALL")
        generation.distrust()
        for _ in range(10):
            with pytest.raises(HotStoreUnavailable):
                await generation.check()
        assert counter.raised == 1
        valkey.ask("CONFIG", "SET", "maxmemory", "0")
        assert await generation.check() == counter.number == 2


# ---------------------------------------------------------------- places in the log


@asynccontextmanager
async def hots(store: HotStore, url: str, counter: Counter, count: int = 2) -> AsyncIterator[list[ValkeyHot]]:
    """The hot state as so many processes have it."""
    found = [
        ValkeyHot(
            url,
            prefix=store.prefix,
            unread_cap=5,
            clock=lambda: NOW,
            ledger_ttl=60,
            position=0,
            store=1,
            next_generation=counter,
            shared=True,
            partitions=3,
            instance_id=f"i{number}",
        )
        for number in range(count)
    ]
    try:
        yield found
    finally:
        await asyncio.gather(*(hot.close() for hot in found))


@pytest.fixture(params=[single, cluster])
async def two(request: pytest.FixtureRequest) -> AsyncIterator[tuple[ValkeyHot, ValkeyHot, HotStore]]:
    server: Callable[[], Valkey | ValkeyCluster] = request.param
    async with hot_store(server) as store, hots(store, server().url, Counter()) as (first, second):
        yield first, second, store


Two = tuple[ValkeyHot, ValkeyHot, HotStore]


async def test_places_are_known_to_all_and_only_grow(two: Two) -> None:
    first, second, _ = two
    assert await first.channels.positions() == (0, 0, 0)
    assert await first.channels.offsets() == {}
    await first.channels.passed({0: (7, 3), 2: (2**50, 2**50 - 1)})
    await second.channels.passed({0: (5, 1), 1: (1, 1)})
    assert await second.channels.positions() == (7, 1, 2**50)
    assert await first.channels.offsets() == {0: 3, 1: 1, 2: 2**50 - 1}
    await first.channels.passed({})


async def test_places_are_unknown_once_the_hot_store_was_emptied_and_are_told_again(two: Two) -> None:
    first, second, store = two
    await first.channels.passed({0: (7, 3)})
    await store.empty()
    assert await second.channels.positions() == (0, 0, 0)
    await first.notes.generation()  # whoever tells places looks now and then, and tells all of them again
    await first.channels.passed({0: (6, 2)})
    assert await second.channels.positions() == (6, 0, 0)


async def test_places_of_an_older_generation_count_no_more(two: Two) -> None:
    first, second, _ = two
    await first.channels.passed({0: (7, 3)})
    await second.clear()
    assert await second.channels.offsets() == {}
    await first.notes.generation()
    assert await first.channels.offsets() == {}
    await first.channels.passed({1: (2, 2)})
    assert await second.channels.offsets() == {1: 2}


async def test_what_one_process_drops_is_not_put_back_by_the_older_load_of_another(two: Two) -> None:
    first, second, _ = two
    generation = await first.channels.generation()
    loaded = channel(1)
    await second.channels.apply([ChannelStep(channel(2), 2)])
    await second.channels.forget("c")
    assert not await first.channels.install([loaded], generation)
    assert await first.channels.channels(["c"]) == [None]
    assert await first.channels.install([channel(2)], await first.channels.generation())


async def test_notes_are_those_of_all(two: Two) -> None:
    first, second, _ = two
    number = await first.notes.generation()
    await first.notes.note_fresh(number - 1)
    assert await second.notes.fresh() == number - 1
    await first.notes.note_spool("i0", 3)
    await second.notes.note_spool("i1", 4)
    assert await second.notes.spooled() == 7
    await first.notes.note_spool("i0", 0)
    assert await second.notes.spooled() == 4
