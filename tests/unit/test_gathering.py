"""Batches that are gathered by what their records hold, while the one before is worked on."""

import asyncio
import gc
from collections.abc import Sequence

import pytest

from readstate.domain.errors import LogUnavailable
from readstate.domain.events import Consumed
from readstate.timings import WorkerTimings
from readstate.workers.gathering import SLICE, GatherAhead
from readstate.workers.runner import Gather, Runner
from tests.conftest import eventually

Ends = dict[tuple[str, int], tuple[int, int]]
SOON = 0.02


def records(*sizes: int, offset: int = 0) -> list[Consumed]:
    return [Consumed("t", 0, offset + number, b"", b"x" * size) for number, size in enumerate(sizes)]


class Fed:
    """A member that gets what a test gives it, in slices."""

    def __init__(self) -> None:
        self.slices: list[list[Consumed] | LogUnavailable] = []
        self.asked: list[tuple[int, float]] = []
        self.committed: list[Consumed] = []
        self.heartbeats = 0
        self.closed = False

    async def batch(self, most: int, seconds: float) -> list[Consumed]:
        self.asked.append((most, seconds))
        await asyncio.sleep(0 if self.slices else 0.001)
        found = self.slices.pop(0) if self.slices else []
        if isinstance(found, LogUnavailable):
            raise found
        return found

    async def commit(self, done: Sequence[Consumed]) -> None:
        self.committed += done

    async def heartbeat(self) -> None:
        self.heartbeats += 1

    async def ends(self) -> Ends:
        return {("t", 0): (1, 2)}

    async def check(self, ends: Ends) -> None: ...

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def fed() -> Fed:
    return Fed()


@pytest.fixture
def ahead(fed: Fed) -> GatherAhead:
    return GatherAhead(fed, lambda record: len(record.value), 0.1)


async def test_a_batch_is_full_by_what_its_records_hold(fed: Fed, ahead: GatherAhead) -> None:
    first, second = records(4, 4), records(2, 7, offset=2)
    fed.slices = [[one] for one in (*first, *second)]
    assert await ahead.batch(8, 3_600) == first
    assert await ahead.batch(8, 3_600) == second
    assert set(fed.asked) == {(SLICE, 0.1)}
    await ahead.close()


async def test_a_batch_that_is_not_full_ends_in_time_and_one_without_records_too(fed: Fed, ahead: GatherAhead) -> None:
    assert await ahead.batch(8, SOON) == []
    fed.slices = [records(1)]
    assert await ahead.batch(8, SOON) == records(1)
    await ahead.close()
    assert fed.closed


async def test_the_next_batch_is_gathered_while_one_is_worked_on(fed: Fed, ahead: GatherAhead) -> None:
    fed.slices = [records(1)]
    next_one = records(3, 3, offset=1)
    handled: list[list[Consumed]] = []

    async def handle(batch: Sequence[Consumed]) -> None:
        if not handled:
            fed.slices = [[one] for one in next_one]

            async def taken() -> bool:
                return not fed.slices

            await eventually(taken, "the next records are taken from the log")
        handled.append(list(batch))

    async def never(*_: object) -> None:
        raise AssertionError

    runner = Runner("test", ahead, handle, never, Gather(6, SOON), WorkerTimings())
    await runner.turn()
    assert handled == [records(1)]
    await runner.turn()
    assert handled == [records(1), next_one]
    assert fed.committed == [*records(1), *next_one]
    await ahead.close()


async def test_a_log_that_goes_away_loses_nothing_that_was_gathered(fed: Fed, ahead: GatherAhead) -> None:
    fed.slices = [records(1), LogUnavailable("gone"), LogUnavailable("still gone"), records(8, offset=1)]
    assert await ahead.batch(8, 3_600) == records(1)
    with pytest.raises(LogUnavailable, match="still gone"):
        await ahead.batch(8, 3_600)
    assert await ahead.batch(8, 3_600) == records(8, offset=1)
    await ahead.close()


async def test_a_caller_who_gives_up_leaves_the_batch_to_the_next_one(fed: Fed, ahead: GatherAhead) -> None:
    fed.slices = [records(1)]
    waiting = asyncio.create_task(ahead.batch(8, 3_600))

    async def taken() -> bool:
        return not fed.slices

    await eventually(taken, "a record is taken")
    waiting.cancel()
    await asyncio.wait([waiting])
    fed.slices = [records(7, offset=1)]
    assert await ahead.batch(8, 3_600) == [*records(1), *records(7, offset=1)]
    await ahead.close()


async def test_a_full_batch_that_waits_leaves_the_signs_of_life_to_the_runner(fed: Fed, ahead: GatherAhead) -> None:
    fed.slices = [records(1)]
    await ahead.batch(1, SOON)
    await ahead.heartbeat()
    assert fed.heartbeats == 0, "it still gathers, which is a sign of life"
    fed.slices = [records(1, offset=1)]

    async def beats() -> bool:
        await ahead.heartbeat()
        return fed.heartbeats > 0

    await eventually(beats, "it is full, and gives signs of life")
    assert await ahead.ends() == {("t", 0): (1, 2)}
    await ahead.close()


async def test_a_log_that_goes_away_before_a_stop_is_no_fault_of_the_process(fed: Fed, ahead: GatherAhead) -> None:
    """Nobody asks for the batch that could not be gathered, and nothing is logged about it."""
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    fed.slices = [records(8), LogUnavailable("away")]
    assert await ahead.batch(8, SOON) == records(8)

    async def asked() -> bool:
        return not fed.slices

    await eventually(asked, "the log is asked for the next batch")
    await asyncio.sleep(0)
    await ahead.close()
    del ahead._coming
    gc.collect()
    assert faults == []
