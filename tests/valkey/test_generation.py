"""The generation of the hot store: raised as often as needed and no more, and by one process at a time."""

import asyncio
from pathlib import Path

import pytest

from readstate.adapters.valkey import DurableCounter, ExclusiveGeneration
from readstate.domain.errors import HotStoreUnavailable
from readstate.stack import Valkey
from readstate.timings import ValkeyTimings
from tests.slots import Slots


@pytest.fixture
def valkey(tmp_path: Path) -> Valkey:
    return Valkey(tmp_path / "valkey", persistent=False)


def process(valkey: Valkey, counter: Slots) -> ExclusiveGeneration:
    return ExclusiveGeneration(valkey.url, "", DurableCounter(1, counter), ValkeyTimings(patience=1.0))


async def test_a_full_server_costs_one_number_however_often_it_is_asked(valkey: Valkey) -> None:
    with valkey:
        counter = Slots()
        generation = process(valkey, counter)
        await generation.confirm()
        valkey.ask("CONFIG", "SET", "maxmemory", "1")
        generation.distrust()
        for _ in range(20):
            with pytest.raises(HotStoreUnavailable):
                await generation.check()
        assert counter.raised == 1

        valkey.ask("CONFIG", "SET", "maxmemory", "0")
        assert await generation.check() == counter.number
        assert counter.raised == 2
        await generation.close()


async def test_a_process_that_was_replaced_does_not_go_on_in_the_generation_of_its_successor(valkey: Valkey) -> None:
    with valkey:
        counter = Slots()
        old, new = (process(valkey, counter) for _ in range(2))
        await old.confirm()
        await new.confirm()
        with pytest.raises(HotStoreUnavailable, match="another process"):
            await old.check()
        assert await new.check() == counter.number
        await asyncio.gather(old.close(), new.close())
