"""Generations by slot: a lost master concerns the users and channels of its slots, and nobody else."""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from readstate.adapters.valkey import Backend, DurableCounter, SharedGeneration, ValkeyClient, slot_of, tag_of
from readstate.adapters.valkey.calls import UserCalls
from readstate.adapters.valkey.channels import SharedChannels
from readstate.adapters.valkey.functions import call
from readstate.adapters.valkey.generation import MARK
from readstate.adapters.valkey.keys import ChannelKeys
from readstate.adapters.valkey.users import ValkeyUsers
from readstate.domain.errors import HotStoreUnavailable
from readstate.domain.model import Channel
from readstate.domain.rules import EPOCHS_PER_GENERATION
from readstate.domain.slots import SLOTS, LostRange, SlotRange, ranges_of, renewed
from readstate.ports import Absent, Moved, Read, Rewind
from readstate.stack import ValkeyCluster
from readstate.timings import ValkeyTimings
from tests.contract.test_hot_users import load, place
from tests.contract.valkey import cluster
from tests.slots import MASTERS, Slots, room_in, user_in

NOW = 1_700_000_000_000


def slot_in(master: int) -> int:
    """Some slot of a master that is not the one of its marker."""
    return SLOTS * master // MASTERS + 100


class Process:
    """What one process holds of the hot store."""

    def __init__(self, url: str, slots: Slots, prefix: str = "", patience: float = 20.0) -> None:
        timings = ValkeyTimings(patience=patience)
        self.generation = SharedGeneration(url, prefix, DurableCounter(1, slots), timings)
        self.client = ValkeyClient(url, timings, self.generation)
        backend = Backend(
            client=self.client,
            generation=self.generation,
            clock=lambda: NOW,
            timings=timings,
            prefix=prefix,
            unread_cap=5,
            ttl_ms=60_000,
        )
        self.users = ValkeyUsers(UserCalls(backend))
        self.channels = SharedChannels(backend, 1)

    def numbers(self) -> list[int]:
        """Of one slot of each master."""
        return [self.generation.of(slot_in(master)) for master in range(MASTERS)]

    async def close(self) -> None:
        await self.client.close()
        await self.generation.close()


@asynccontextmanager
async def processes(
    slots: Slots, count: int = 2, url: str = "", patience: float = 20.0
) -> AsyncIterator[list[Process]]:
    prefixes = (f"{secrets.token_hex(6)}:" for _ in itertools.count())
    prefix = next(one for one in prefixes if slot_of(ChannelKeys(one).drops) * MASTERS // SLOTS == 0)
    found = [Process(url or cluster().url, slots, prefix, patience) for _ in range(count)]
    try:
        for one in found:
            await one.generation.check()
        yield found
    finally:
        await asyncio.gather(*(one.close() for one in found))


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ValkeyCluster]:
    """A Cluster whose slots a test may move, and whose masters it may stop."""
    with ValkeyCluster(tmp_path / "own", persistent=False) as valkeys:
        for node in valkeys.nodes:
            node.demand("CONFIG", "SET", "cluster-require-full-coverage", "no")
        yield valkeys


def lose(master: int) -> None:
    cluster().nodes[master].ask("FLUSHALL")


# ---------------------------------------------------------------- which slots are lost


async def test_a_lost_master_costs_the_numbers_of_its_slots_only() -> None:
    slots = Slots()
    async with processes(slots) as (first, second):
        assert first.numbers() == second.numbers() == [1, 1, 1]
        lose(1)
        await first.generation.check([slot_in(1)])
        await second.generation.check()
        assert first.numbers() == second.numbers() == [1, 2, 1]
        assert slots.raised == 2


async def test_a_loss_is_noticed_by_those_whom_it_concerns() -> None:
    async with processes(Slots(), 1) as (process,):
        lose(1)
        await process.generation.check([slot_in(0), slot_in(2)])
        assert process.numbers() == [1, 1, 1]
        await process.generation.check([slot_in(0), slot_in(1)])
        assert process.numbers() == [1, 2, 1]


async def test_what_one_look_finds_lost_shares_a_number_and_a_later_loss_gets_a_higher_one() -> None:
    slots = Slots()
    async with processes(slots) as (first, second):
        lose(0)
        lose(2)
        await asyncio.gather(first.generation.check(), second.generation.check())
        await asyncio.gather(first.generation.check(), second.generation.check())
        assert first.numbers() == second.numbers()
        assert first.numbers()[0] == first.numbers()[2] > first.numbers()[1] == 1
        lose(1)
        await first.generation.check()
        assert first.numbers()[1] > first.numbers()[0]


async def test_dropping_everything_renews_all_slots_in_one_write() -> None:
    slots = Slots()
    async with processes(slots) as (first, second):
        lose(1)
        await first.generation.check()
        first.generation.distrust()
        await first.generation.confirm()
        await second.generation.check()
        assert first.numbers() == second.numbers() == [3, 3, 3]
        assert slots.raised == 3


class Held(Slots):
    """Lets a process wait between the table and the markers."""

    def __init__(self) -> None:
        super().__init__()
        self.hold = False
        self.is_held, self.go_on = asyncio.Event(), asyncio.Event()

    async def renew_slots(
        self, seen: Sequence[SlotRange], lost: Sequence[LostRange], above: int, now: int, every: int
    ) -> list[SlotRange] | None:
        found = await super().renew_slots(seen, lost, above, now, every)
        if self.hold:
            self.hold = False
            self.is_held.set()
            await self.go_on.wait()
        return found


async def test_a_process_that_marks_late_hides_no_loss() -> None:
    """It has raised the number of a lost master; others have raised it again, and the master is lost once more."""
    slots = Held()
    async with processes(slots) as (slow, other):
        lose(1)
        slots.hold = True
        looking = asyncio.create_task(slow.generation.check())
        await slots.is_held.wait()
        await other.generation.check()
        loaded_in = other.numbers()[1]
        lose(1)
        slots.go_on.set()
        await looking
        await other.generation.check()
        await slow.generation.check()
        assert other.numbers()[1] > loaded_in
        assert slow.numbers() == other.numbers()


async def test_a_process_of_an_older_version_that_raises_all_numbers_is_followed() -> None:
    """It knows one number for all masters: where it finds two, it raises both."""
    slots = Slots()
    async with processes(slots) as (first, second):
        lose(1)
        await first.generation.check()
        for node, master in zip((await first.client.masters()).values(), range(MASTERS), strict=True):
            known = first.generation._masters[first.generation.owners[slot_in(master)]]
            await call(node, MARK, first.generation._marker(known.slot), 50, "1", known.run)
        await first.generation.check()
        await second.generation.check()
        assert first.numbers() == second.numbers() == [51, 51, 51]
        markers = {one.marker.split()[0] for one in first.generation._masters.values() if one.marker}
        assert markers == {b"51"}, "the older process takes the number that it finds on all of them"


async def test_a_slot_that_has_moved_is_lost_and_its_neighbours_are_not(own: ValkeyCluster) -> None:
    user = user_in(0)
    slot = slot_of(tag_of(user))
    async with processes(Slots(), url=own.url) as (first, second):
        await load(first.users, user)
        before = first.generation.of(slot)
        for key in first.users._calls.keys.of(user)[1]:  # a slot may change its owner without its keys
            own.nodes[0].demand("UNLINK", key.decode())
        target = own.nodes[1].demand("CLUSTER", "MYID")
        for node in (own.nodes[1], own.nodes[0], own.nodes[2]):
            node.demand("CLUSTER", "SETSLOT", str(slot), "NODE", target)
        for process in (first, second):
            assert await process.users.view(user, []) is None
            await process.generation.check()
            assert process.generation.of(slot) > before
            assert process.numbers() == [1, 1, 1]
        assert first.generation.of(slot) == second.generation.of(slot)


async def test_a_master_that_does_not_answer_holds_up_its_own_slots_only(own: ValkeyCluster) -> None:
    here, there = user_in(0), user_in(1)
    async with processes(Slots(), 1, own.url, patience=1.0) as (process,):
        for user in (here, there):
            await load(process.users, user)
        own.nodes[1].stop()
        number = await process.users.generation([here])
        assert await process.users.dropped(number, [here]) == set()
        assert await process.users.view(here, []) is not None
        with pytest.raises(HotStoreUnavailable):
            await process.users.generation([there])
        assert await process.users.dropped(number, [here]) == set()
        assert (await process.users.answering([here, there]))[1] == {here}


async def test_channels_of_other_masters_are_loaded_while_one_does_not_answer(own: ValkeyCluster) -> None:
    """Drops of channels are counted on the first master."""
    here, there = (Channel(room_in(master), "group") for master in (2, 1))
    async with processes(Slots(), 1, own.url, patience=1.0) as (process,):
        own.nodes[1].stop()
        assert await process.channels.install([here], await process.channels.generation())
        assert await process.channels.channels([here.channel_id]) == [here]
        with pytest.raises(HotStoreUnavailable):
            await process.channels.install([there], await process.channels.generation())


# ---------------------------------------------------------------- calls and epochs


async def test_moves_are_overtaken_and_users_dropped_by_slot() -> None:
    lost, kept = user_in(1), user_in(0)
    async with processes(Slots()) as (first, second):
        for user in (lost, kept):
            await load(first.users, user)
        number = await first.users.generation([lost, kept])
        lose(1)
        await second.generation.check()
        reads = [Read(lost, "c", place(1)), Read(kept, "c", place(1))]
        assert await first.users.dropped(number, [lost, kept]) == {lost}
        absent, moved = await first.users.move(reads, number)
        assert absent is Absent.NOT_LOADED
        assert isinstance(moved, Moved)
        await load(first.users, lost)
        again, _ = await first.users.move(reads, number)
        assert again is Absent.NOT_LOADED, "it is loaded in a later generation than the move is meant for"


async def test_epochs_follow_the_number_of_the_users_slot() -> None:
    lost, kept = user_in(1), user_in(0)
    async with processes(Slots(), 1) as (process,):
        for user in (lost, kept):
            await load(process.users, user)
        for _ in range(2):
            lose(1)
            await process.generation.check()
        await load(process.users, lost)
        found = await process.users.move([Rewind(user, "c", 0, place(0), ()) for user in (lost, kept)])
        epochs = [one.pointer.epoch for one in found if isinstance(one, Moved)]
        assert epochs == [3 * EPOCHS_PER_GENERATION, EPOCHS_PER_GENERATION]


# ---------------------------------------------------------------- ranges


def test_ranges_are_split_and_joined() -> None:
    runs: list[str | None] = ["a"] * SLOTS
    whole = renewed([], ranges_of(runs), Slots(1).number)
    assert whole == [SlotRange(0, SLOTS - 1, Slots(1).number, "a")]
    parts = renewed(whole, [LostRange(5, 6, "b"), LostRange(7, 9, "a")], Slots(2).number)
    assert [(one.first, one.last, one.number, one.run) for one in parts] == [
        (0, 4, 1, "a"),
        (5, 6, 2, "b"),
        (7, 9, 2, "a"),
        (10, SLOTS - 1, 1, "a"),
    ]
    assert len(renewed(parts, [LostRange(0, SLOTS - 1, "a")], Slots(3).number)) == 1
