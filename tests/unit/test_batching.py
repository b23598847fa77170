"""What arrives while a batch is under way goes together in the next one."""

import asyncio
from collections.abc import Sequence

import pytest

from readstate.batching import Batcher
from readstate.domain.errors import Stopping


class Handler:
    """Doubles numbers; can be held up, and fails on negative ones."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        await self.open.wait()
        if any(item < 0 for item in items):
            raise ValueError("negative")
        return [2 * item for item in items]


async def started(tasks: Sequence["asyncio.Task[Sequence[int]]"]) -> None:
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


async def test_callers_share_a_batch_and_each_gets_its_own_results() -> None:
    handler = Handler()
    batcher = Batcher[int, int](handler, max_items=10)
    first = asyncio.create_task(batcher.submit([1]))
    await started([first])
    rest = [asyncio.create_task(batcher.submit(items)) for items in ([2, 3], [4])]
    await started(rest)
    handler.open.set()
    assert list(await first) == [2]
    assert [list(part) for part in await asyncio.gather(*rest)] == [[4, 6], [8]]
    assert handler.batches == [[1], [2, 3, 4]]


async def test_one_call_after_the_other() -> None:
    handler = Handler()
    handler.open.set()
    batcher = Batcher[int, int](handler, max_items=10)
    for n in range(5):
        assert list(await batcher.submit([n])) == [2 * n]


async def test_a_batch_has_a_bound_and_parts_are_never_split() -> None:
    handler = Handler()
    batcher = Batcher[int, int](handler, max_items=3)
    tasks = [asyncio.create_task(batcher.submit(items)) for items in ([1, 2], [3, 4], [5], [6, 7, 8, 9])]
    await started(tasks)
    handler.open.set()
    await asyncio.gather(*tasks)
    assert handler.batches == [[1, 2], [3, 4, 5], [6, 7, 8, 9]]


async def test_an_error_reaches_every_caller_of_the_batch_and_no_other() -> None:
    handler = Handler()
    batcher = Batcher[int, int](handler, max_items=10)
    first = asyncio.create_task(batcher.submit([1]))
    await started([first])
    failing = [asyncio.create_task(batcher.submit(items)) for items in ([-1], [2])]
    await started(failing)
    handler.open.set()
    assert list(await first) == [2]
    for task in failing:
        with pytest.raises(ValueError, match="negative"):
            await task
    assert list(await batcher.submit([3])) == [6]


async def test_a_caller_that_gives_up_does_not_disturb_the_others() -> None:
    handler = Handler()
    batcher = Batcher[int, int](handler, max_items=10)
    first, second = [asyncio.create_task(batcher.submit([n])) for n in (1, 2)]
    await started([first, second])
    first.cancel()
    handler.open.set()
    assert list(await second) == [4]


async def test_closing_finishes_what_was_taken_and_takes_no_more() -> None:
    handler = Handler()
    batcher = Batcher[int, int](handler, max_items=1)
    tasks = [asyncio.create_task(batcher.submit([n])) for n in range(5)]
    await started(tasks)
    handler.open.set()
    await batcher.close()
    assert [list(task.result()) for task in tasks] == [[0], [2], [4], [6], [8]]
    with pytest.raises(Stopping):
        await batcher.submit([1])
