"""Hot state that several processes share: one generation for all, and how far each part of the log is applied."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from readstate.adapters.valkey import Backend, DurableCounter, SharedGeneration, ValkeyClient
from readstate.adapters.valkey.calls import UserCalls
from readstate.adapters.valkey.hot import HotOptions, SharedHot
from readstate.adapters.valkey.short_way import READ
from readstate.adapters.valkey.users import MOVE, PREFER, ValkeyUsers
from readstate.domain.errors import HotStoreUnavailable
from readstate.domain.hot_updates import ChannelHotUpdate
from readstate.domain.model import LogPosition, Preferences
from readstate.ports import Read, Rewind
from readstate.stack import Valkey, ValkeyCluster
from readstate.timings import ValkeyTimings
from tests.conftest import eventually
from tests.contract.test_hot_channels import channel
from tests.contract.test_hot_users import fan_out, load, moved, place, user_room
from tests.contract.valkey import HotStore, cluster, hot_store, single
from tests.slots import Slots
from tests.valkey_postgres.test_servers_late import Lane

NOW = 1_700_000_000_000


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    with Valkey(tmp_path / "valkey", persistent=False) as server:
        yield server


# ---------------------------------------------------------------- one generation


@asynccontextmanager
async def processes(url: str, counter: Slots, count: int = 2) -> AsyncIterator[list[SharedGeneration]]:
    """What so many processes hold of one hot store."""
    found = [SharedGeneration(url, "", DurableCounter(1, counter), ValkeyTimings()) for _ in range(count)]
    try:
        yield found
    finally:
        await asyncio.gather(*(one.close() for one in found))


async def agreed(generations: list[SharedGeneration]) -> int:
    """The number that all have come to, after as many looks as that takes."""
    for _ in range(100):
        numbers = set(await asyncio.gather(*(one.check() for one in generations)))
        if len(numbers) == 1:
            return numbers.pop()
    raise AssertionError("they don't agree")


async def test_a_process_that_starts_takes_the_number_that_it_finds(valkey: Valkey) -> None:
    counter = Slots()
    async with processes(valkey.url, counter, 3) as (first, second, third):
        number = await first.check()
        assert [await second.check(), await third.check(), await first.check()] == [number] * 3
        assert counter.raised == 1
        second.missed()  # a step that failed is repeated by its caller
        assert await second.check() == number
        assert second.trusted
        assert counter.raised == 1


async def test_all_take_the_number_that_one_has_raised(valkey: Valkey) -> None:
    counter = Slots()
    async with processes(valkey.url, counter) as (first, second):
        number = await first.check()
        assert await second.check() == number
        first.distrust()
        await first.confirm()
        assert await second.check() == await first.check() > number
        assert counter.raised == 2


async def test_after_a_loss_all_agree_on_a_new_number_although_all_raise_at_once() -> None:
    counter = Slots()
    async with processes(cluster().url, counter, 5) as generations:
        number = await agreed(generations)
        for _ in range(5):
            for node in cluster().nodes:
                node.ask("FLUSHALL")
            number, before = await agreed(generations), number
            assert number > before
            assert await agreed(generations) == number


async def test_a_restart_is_seen_by_all_and_costs_one_number(tmp_path: Path) -> None:
    counter = Slots()
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
    counter = Slots()
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
async def hots(store: HotStore, url: str, counter: Slots, count: int = 2) -> AsyncIterator[list[SharedHot]]:
    """The hot state as so many processes have it."""
    options = HotOptions(url=url, prefix=store.prefix, unread_cap=5, ledger_ttl=60)
    found = [
        SharedHot(options, DurableCounter(1, counter), lambda: NOW, ValkeyTimings(), f"i{number}", partitions=3)
        for number in range(count)
    ]
    try:
        yield found
    finally:
        await asyncio.gather(*(hot.close() for hot in found))


@pytest.fixture(params=[single, cluster])
async def two(request: pytest.FixtureRequest) -> AsyncIterator[tuple[SharedHot, SharedHot, HotStore]]:
    server: Callable[[], Valkey | ValkeyCluster] = request.param
    async with hot_store(server) as store, hots(store, server().url, Slots()) as (first, second):
        yield first, second, store


Two = tuple[SharedHot, SharedHot, HotStore]


def done(position: int, offset: int) -> tuple[LogPosition, int]:
    return LogPosition(position), offset


async def test_places_are_known_to_all_and_only_grow(two: Two) -> None:
    first, second, _ = two
    assert await first.channels.positions() == (0, 0, 0)
    assert await first.channels.offsets() == {}
    await first.channels.passed({0: done(7, 3), 2: done(2**50, 2**50 - 1)})
    await second.channels.passed({0: done(5, 1), 1: done(1, 1)})
    assert await second.channels.positions() == (7, 1, 2**50)
    assert await first.channels.offsets() == {0: 3, 1: 1, 2: 2**50 - 1}
    await first.channels.passed({})


async def test_offsets_fall_where_a_log_uses_them_again(two: Two) -> None:
    first, second, _ = two
    await first.channels.passed({0: done(7, 3)})
    await second.channels.passed({0: done(7, 1)})
    assert (await first.channels.positions(), await first.channels.offsets()) == ((7, 0, 0), {0: 1})
    await first.channels.passed({0: done(8, 2)})
    assert (await second.channels.positions(), await second.channels.offsets()) == ((8, 0, 0), {0: 2})
    await second.channels.passed({0: done(7, 3)})
    assert await first.channels.offsets() == {0: 2}, "what an older place says does not count"


async def test_places_are_unknown_once_the_hot_store_was_emptied_and_are_told_again(two: Two) -> None:
    first, second, store = two
    await first.channels.passed({0: done(7, 3)})
    await store.empty()
    assert await second.channels.positions() == (0, 0, 0)
    await first.notes.generation()  # whoever tells places looks now and then, and tells all of them again
    await first.channels.passed({0: done(6, 2)})
    assert await second.channels.positions() == (6, 0, 0)


async def test_places_of_an_older_generation_count_no_more(two: Two) -> None:
    first, second, _ = two
    await first.channels.passed({0: done(7, 3)})
    await second.clear()
    assert await second.channels.offsets() == {}
    await first.notes.generation()
    assert await first.channels.offsets() == {}
    await first.channels.passed({1: done(2, 2)})
    assert await second.channels.offsets() == {1: 2}


async def test_what_one_process_drops_is_not_put_back_by_the_older_load_of_another(two: Two) -> None:
    first, second, _ = two
    generation = await first.channels.generation()
    loaded = channel(1)
    await second.channels.apply([ChannelHotUpdate(channel(2), 2)])
    await second.channels.forget("c")
    assert not await first.channels.install([loaded], generation)
    assert await first.channels.channels(["c"]) == [None]
    assert await first.channels.install([channel(2)], await first.channels.generation())


async def test_notes_are_those_of_all(two: Two) -> None:
    first, second, _ = two
    await first.notes.note_spool("i0", 3)
    await second.notes.note_spool("i1", 4)
    assert await second.notes.spooled() == 7
    await first.notes.note_spool("i0", 0)
    assert await second.notes.spooled() == 4


# ---------------------------------------------------------------- calls that arrive late


@pytest.fixture
async def lane(valkey: Valkey) -> AsyncIterator[Lane]:
    async with Lane(valkey.port) as lane:
        yield lane


@pytest.fixture
async def shared_users(lane: Lane) -> AsyncIterator[ValkeyUsers]:
    timings = ValkeyTimings(answer=0.2, late=0.5, patience=10.0)
    generation = SharedGeneration(lane.url, "", DurableCounter(1, Slots()), timings)
    client = ValkeyClient(lane.url, timings, generation)
    backend = Backend(
        client=client,
        generation=generation,
        clock=lambda: NOW,
        timings=timings,
        prefix="",
        unread_cap=5,
        ttl_ms=60_000,
    )
    yield ValkeyUsers(UserCalls(backend))
    await client.close()
    await generation.close()


async def arrived(lane: Lane, valkey: Valkey) -> None:
    """What was held up has been executed, or refused."""

    def calls() -> int:
        return int(valkey.info("commandstats")["cmdstat_fcall"].split(",")[0].partition("=")[2])

    before = calls()
    await lane.let_go()

    async def more() -> bool:
        return calls() > before

    await eventually(more, "the late call is executed")


async def test_a_late_copy_of_a_read_does_not_undo_a_mark_unread(
    shared_users: ValkeyUsers, lane: Lane, valkey: Valkey
) -> None:
    await load(shared_users)
    await shared_users.apply([fan_out(1), fan_out(2)])
    number = await shared_users.generation(["bob"])
    lane.hold = READ.name.encode()
    await moved(shared_users, Read("bob", "c", place(2)))
    assert lane.is_holding
    rewound = await moved(shared_users, Rewind("bob", "c", 1, place(0), ()))

    await arrived(lane, valkey)

    assert (await user_room(shared_users)).pointer.state == rewound.pointer.state
    assert await shared_users.generation(["bob"]) == number, "nothing else was loaded again for it"


async def test_a_late_copy_of_a_mark_unread_does_not_undo_a_read(
    shared_users: ValkeyUsers, lane: Lane, valkey: Valkey
) -> None:
    await load(shared_users)
    await shared_users.apply([fan_out(1), fan_out(2)])
    lane.hold = MOVE.name.encode()
    await moved(shared_users, Rewind("bob", "c", 1, place(0), ()))
    read = await moved(shared_users, Read("bob", "c", place(2)))

    await arrived(lane, valkey)

    assert (await user_room(shared_users)).pointer.state == read.pointer.state


async def test_late_preferences_are_not_those_that_count(shared_users: ValkeyUsers, lane: Lane, valkey: Valkey) -> None:
    await load(shared_users)
    lane.hold = PREFER.name.encode()
    await shared_users.prefer("bob", "c", Preferences(count="none"))
    await shared_users.prefer("bob", "c", Preferences(count="mentions"))

    await arrived(lane, valkey)

    assert (await user_room(shared_users)).preferences.count == "mentions"


async def test_a_server_whose_clock_was_set_is_asked_for_its_time(shared_users: ValkeyUsers) -> None:
    await load(shared_users)
    generation = shared_users._generation
    generation._ahead = {run: ahead - 1_000 for run, ahead in generation._ahead.items()}
    await shared_users.apply([fan_out(1)])
    assert (await moved(shared_users, Read("bob", "c", place(1)))).changed
