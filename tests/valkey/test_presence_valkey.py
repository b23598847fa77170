"""Presence over several processes: those that die, and a hot store that is lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from readstate.adapters.valkey import DurableCounter, SharedGeneration, ValkeyClient
from readstate.adapters.valkey.presence import ValkeyPresence
from readstate.adapters.valkey.presence.calls import LEAVE
from readstate.domain.model import FOREVER, Undelivered
from readstate.ports import Departure
from readstate.stack import Valkey, ValkeyCluster
from readstate.tasks import cancel
from tests.conftest import eventually
from tests.contract.valkey import PATIENT, HotStore, cluster, hot_store, single
from tests.slots import Slots

NOW = 1_700_000_000_000
LEASE_MS = 3_000
"""Of a process that dies: a test waits for its end. The others have one that no busy machine makes them miss."""
SETTLE_MS = 1_000
"""Many heartbeats."""


def note(message: str, receiver: str = "bob") -> Undelivered:
    return Undelivered(receiver, NOW, "alice", "c", message)


class Place:
    """A hot store, and the processes that share it."""

    def __init__(self, url: str, store: HotStore, stack: AsyncExitStack) -> None:
        self._url = url
        self._store = store
        self._stack = stack
        self._counter = Slots()
        self._count = 0
        self.now = NOW

    async def process(self, lease_ms: int = 60_000, settle_ms: int = 0, heartbeat: float = 0.02) -> ValkeyPresence:
        """One more process."""
        timings = replace(PATIENT, lease_ms=lease_ms, settle_ms=settle_ms, heartbeat=heartbeat)
        generation = SharedGeneration(self._url, self._store.prefix, DurableCounter(1, self._counter), timings)
        client = ValkeyClient(self._url, timings, generation)
        self._count += 1
        store = self._store._replace(client=client, generation=generation)
        presence = ValkeyPresence(store.backend(lambda: self.now, timings=timings), f"i{self._count}")
        for close in (generation.close, client.close, presence.close):
            self._stack.push_async_callback(close)
        return presence

    async def empty(self) -> None:
        """The hot store loses everything."""
        await self._store.empty()


@asynccontextmanager
async def opened(server: Callable[[], Valkey | ValkeyCluster]) -> AsyncIterator[Place]:
    async with hot_store(server) as store, AsyncExitStack() as stack:
        yield Place(server().url, store, stack)


@pytest.fixture(params=[single, cluster])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    async with opened(request.param) as place:
        yield place


async def dies(presence: ValkeyPresence) -> None:
    """From now on it says nothing."""
    assert presence._task is not None
    await cancel(presence._task)
    presence._task = None


async def listed(presence: ValkeyPresence, *users: str) -> None:
    """Returns when a process has noted whom it would leave behind."""

    async def noted() -> bool:
        return presence._users.listed.issuperset(users)

    await eventually(noted, "the users are listed")


async def comes(presence: ValkeyPresence, user: str = "bob", connection: str = "k1", focus: str | None = None) -> None:
    await presence.connect(user, "phone", FOREVER, focus, connection)


async def all_departures(*processes: ValkeyPresence) -> list[Departure]:
    """Those that are told, once somebody tells anything. What they leave is noted; then nobody tells anything."""
    told: list[Departure] = []

    async def something_is_told() -> bool:
        found = await asyncio.gather(*(one.expire() for one in processes))
        for process, some in zip(processes, found, strict=True):
            await process.noted([one for departure in some for one in departure.unproven])
            told.extend(departure for departure in some if departure.since)
        return bool(told)

    await eventually(something_is_told, "a departure is told")
    for process in processes:
        assert await process.expire() == []
    return told


async def test_all_processes_see_the_same(place: Place) -> None:
    first, second = await place.process(), await place.process()
    await comes(first, focus="c")
    assert "bob" in await second.online(["alice", "bob"])
    assert "alice" not in await second.online(["alice", "bob"])
    assert await second.devices("bob") == ["phone"]
    assert await second.focused(["c"]) == {"c": ["bob"]}
    await second.blur("bob", "c")
    assert await first.focused(["c"]) == {}


async def test_who_has_a_device_on_another_process_has_not_left(place: Place) -> None:
    first, second = await place.process(), await place.process()
    await comes(first)
    await comes(second, connection="k2")
    await second.reached([note("m1")])
    assert await first.disconnect("bob", "phone", "k1") is None
    assert await first.unproven("bob") == [note("m1")]
    gone = await second.disconnect("bob", "phone", "k2")
    assert gone == Departure("bob", NOW, (note("m1"),))


async def test_a_device_that_was_reported_to_one_process_can_go_at_another(place: Place) -> None:
    first, second = await place.process(), await place.process()
    await first.connect("bob", "phone", NOW + 100, None)
    assert await second.disconnect("bob", "phone") == Departure("bob", NOW)
    await first.connect("bob", "phone", NOW + 100, None)
    await second.connect("bob", "phone", NOW + 200, None)
    place.now += 100
    assert await first.expire() == []
    assert "bob" in await first.online(["bob"])
    place.now += 100
    assert await second.expire() == [Departure("bob", NOW + 200)]


async def test_what_one_process_sent_another_can_prove(place: Place) -> None:
    first, second = await place.process(), await place.process()
    await comes(second)
    await first.reached([note("m1")])
    second.sent([note("m1")])
    second.proven("bob")

    async def proven() -> bool:
        return await first.unproven("bob") == []

    await eventually(proven, "it is proven")


async def test_when_a_process_dies_its_users_are_told_to_be_gone_once_with_what_was_unproven(place: Place) -> None:
    first, second, third = await place.process(LEASE_MS), await place.process(), await place.process()
    users = [f"user{number}" for number in range(20)]
    for user in users:
        await comes(first, user)
    await comes(first, "bob")
    await comes(second, "bob", "k2")
    await comes(third, "carol")
    await second.reached([note(f"to {user}", user) for user in [*users, "bob"]])
    await listed(first, *users, "bob")
    await dies(first)

    told = await all_departures(second, third)

    expected = [(user, (note(f"to {user}", user),)) for user in users]
    assert sorted((one.user_id, one.unproven) for one in told) == sorted(expected)
    assert all(one.since for one in told)
    found = await second.online([*users, "bob", "carol"])
    assert [user for user in [*users, "bob", "carol"] if user in found] == ["bob", "carol"]
    assert await third.unproven("bob") == [note("to bob")]


async def test_nobody_is_reached_through_a_process_that_is_dead(place: Place) -> None:
    first, second = await place.process(LEASE_MS), await place.process()
    await comes(first, focus="c")
    await dies(first)

    async def away() -> bool:
        return "bob" not in await second.online(["bob"])

    await eventually(away, "the lease is over")
    assert await second.reached([note("m1")]) == [note("m1")]
    assert await second.devices("bob") == []
    assert await second.focused(["c"]) == {}


async def test_a_process_that_was_thought_dead_and_is_not_says_everything_again(place: Place) -> None:
    first, second = await place.process(LEASE_MS), await place.process()
    await comes(first, focus="c")
    await listed(first, "bob")
    await dies(first)
    assert [one.user_id for one in await all_departures(second)] == ["bob"]
    await first.join()  # it was only paused

    async def back() -> bool:
        return "bob" in await second.online(["bob"])

    await eventually(back, "bob is online")
    assert await second.focused(["c"]) == {"c": ["bob"]}
    assert await first.disconnect("bob", "phone", "k1") == Departure("bob", NOW)
    assert await second.expire() == []


async def test_a_process_that_stops_leaves_its_users_to_the_others_at_once(place: Place) -> None:
    first, second = await place.process(), await place.process()
    await comes(first)
    await second.reached([note("m1")])
    await first.close()
    assert await all_departures(second) == [Departure("bob", NOW, (note("m1"),))]


async def missed(presence: ValkeyPresence, user: str = "bob") -> set[Undelivered]:
    """What a user may have missed and is not noted, as a process that looks after the user is told."""
    return {one for gone in await presence.expire(user) for one in gone.unproven}


async def test_what_is_unproven_outlives_the_process_that_was_told_of_the_departure(place: Place) -> None:
    """It dies before the database has it: whoever looks after its users is told again, however many die on the way."""
    doomed, heir, last = [await place.process(LEASE_MS) for _ in range(3)]
    await comes(doomed)
    await heir.reached([note("m1")])
    await listed(doomed, "bob")
    gone = await doomed.disconnect("bob", "phone", "k1")
    assert gone == Departure("bob", NOW, (note("m1"),))
    await doomed._flush()
    await dies(doomed)

    async def is_told(process: ValkeyPresence) -> bool:
        return Departure("bob", 0, (note("m1"),)) in await process.expire()

    await eventually(lambda: is_told(heir), "the heir is told")
    await dies(heir)
    await eventually(lambda: is_told(last), "so is the last one")

    await last.noted([note("m1")])
    assert await last.expire() == await last.expire("bob") == []


async def test_who_comes_back_before_it_is_noted_has_missed_it_all_the_same(place: Place) -> None:
    first, second = await place.process(), await place.process()
    await comes(first)
    await first.reached([note("m1")])
    await first.disconnect("bob", "phone", "k1")
    await comes(second, connection="k2")
    await second.reached([note("m2")])
    assert await second.unproven("bob") == [note("m2")]
    assert await missed(first) == {note("m1")}
    second.sent([note("m2")])
    second.proven("bob")
    assert await second.disconnect("bob", "phone", "k2") == Departure("bob", NOW, (note("m1"),))
    await second.noted([note("m1")])
    assert await missed(second) == set()


async def test_a_departure_whose_answer_was_lost_leaves_what_is_unproven(place: Place) -> None:
    """The script has run, the answer has not come, and it is run again."""
    first = await place.process()
    await comes(first)
    await first.reached([note("m1")])
    entry = [first._calls.entry(("phone", "k1"))]
    await first._calls.decide(LEAVE, {"bob": entry}, await first._calls.settled(["bob"]))
    assert await first.disconnect("bob", "phone", "k1") == Departure("bob", 0, (note("m1"),))


# ---------------------------------------------------------------- the hot store is lost


async def test_nobody_is_away_because_the_hot_store_was_lost(place: Place) -> None:
    first, second, writer = [await place.process(settle_ms=SETTLE_MS) for _ in range(3)]
    users = [f"user{number}" for number in range(50)]
    for user in users:
        await comes(first, user, focus="c")
    await comes(second, "carol")
    for _ in range(3):
        await place.empty()
        found, lost = await asyncio.gather(
            writer.online([*users, "carol", "dave"]), writer.reached([note("m1", "carol"), note("m2", "dave")])
        )
        assert [user for user in [*users, "carol", "dave"] if user in found] == [*users, "carol"]
        assert lost == [note("m2", "dave")]
        assert sorted((await writer.focused(["c"]))["c"]) == sorted(users)
        assert await writer.expire() == await first.expire() == []


async def test_after_a_loss_the_last_device_is_still_the_last_one(place: Place) -> None:
    first, second = [await place.process(settle_ms=SETTLE_MS) for _ in range(2)]
    await comes(first, "bob")
    await comes(second, "bob", "k2")
    await comes(first, "carol")
    await place.empty()
    assert await first.disconnect("bob", "phone", "k1") is None
    assert await first.disconnect("carol", "phone", "k1") == Departure("carol", NOW)
    await place.empty()
    gone = await second.disconnect("bob", "phone", "k2")
    assert gone is not None
    assert gone.user_id == "bob"


async def test_what_was_sent_and_not_proven_is_kept_through_a_loss(place: Place) -> None:
    first, second = [await place.process(settle_ms=SETTLE_MS) for _ in range(2)]
    await comes(first)
    await second.reached([note("m1"), note("m2")])
    first.sent([note("m1"), note("m2")])
    await place.empty()

    async def back() -> bool:
        return set(await second.unproven("bob")) == {note("m1"), note("m2")}

    await eventually(back, "the first has said it again")
    gone = await first.disconnect("bob", "phone", "k1")
    assert gone is not None
    assert set(gone.unproven) == {note("m1"), note("m2")}


async def test_an_older_generation_says_nothing_of_who_is_there(place: Place) -> None:
    first, second = [await place.process(settle_ms=SETTLE_MS) for _ in range(2)]
    await comes(first, "bob")
    await comes(first, "carol", connection="k2")
    second._generation.distrust()
    found = await second.online(["bob", "carol"])
    assert "bob" in found
    assert "carol" in found
    assert await first.disconnect("bob", "phone", "k1") == Departure("bob", NOW)
