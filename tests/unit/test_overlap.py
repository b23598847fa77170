"""The loop of the message writer: what may run at the same time, what must not, and what happens where a half fails."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from readstate.domain.errors import LogUnavailable, StorageUnavailable
from readstate.domain.events import Consumed
from readstate.timings import WorkerTimings
from readstate.workers.overlap import OverlappingRunner
from readstate.workers.runner import Gather
from tests.conftest import eventually

DEADLINE = 60
HASTY = WorkerTimings(retries=(0.0, 0.0), first_back_off=0.001, longest_back_off=0.001, heartbeat=0.001)


def batch(name: str, *offsets: int) -> list[Consumed]:
    return [Consumed("t", 0, offset, b"", name.encode()) for offset in offsets]


class Log:
    """A consumer of these batches, which waits when there are no more."""

    def __init__(self, *batches: list[Consumed]) -> None:
        self.batches = list(batches)
        self.committed: list[int] = []
        self.heartbeats = 0
        self.closed = False
        self.refusals = 0

    async def batch(self, most: int, seconds: float) -> list[Consumed]:
        await asyncio.sleep(0)
        return self.batches.pop(0) if self.batches else []

    async def commit(self, records: Sequence[Consumed]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise LogUnavailable
        self.committed.append(records[-1].offset + 1)

    async def heartbeat(self) -> None:
        self.heartbeats += 1

    async def ends(self) -> dict[tuple[str, int], tuple[int, int]]:
        return {}

    async def check(self, ends: dict[tuple[str, int], tuple[int, int]]) -> None: ...

    async def close(self) -> None:
        self.closed = True


class Work:
    """Both halves of batches: what they did, in order. A test holds them, or lets them fail."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.begun: list[str] = []
        self.held: dict[str, asyncio.Event] = {}
        self.failures: dict[str, list[Exception]] = {}
        self.stored: set[str] = set()
        self.dead: list[int] = []
        self.under_way = 0

    def hold(self, *steps: str) -> None:
        for step in steps:
            self.held[step] = asyncio.Event()

    async def begin(self, records: Sequence[Consumed]) -> Callable[[], Awaitable[None]]:
        name = name_of(records)
        assert not self.under_way, "two transactions at once"
        self.under_way += 1
        try:
            await self._step(f"replay {name}" if name in self.stored else f"store {name}")
        finally:
            self.under_way -= 1
        self.stored.add(name)

        async def finish() -> None:
            await self._step(f"spread {name}")

        return finish

    async def handle(self, records: Sequence[Consumed]) -> None:
        finish = await self.begin(records)
        await finish()

    async def dead_letter(self, record: Consumed, reason: str, tries: int) -> None:
        self.dead.append(record.offset)

    async def _step(self, step: str) -> None:
        self.begun.append(step)
        if (held := self.held.get(step)) is not None:
            await held.wait()
        await asyncio.sleep(0)
        if failures := self.failures.get(step):
            raise failures.pop(0)
        self.done.append(step)


def name_of(records: Sequence[Consumed]) -> str:
    return "+".join(dict.fromkeys(record.value.decode() for record in records))


def runner(log: Log, work: Work) -> OverlappingRunner:
    return OverlappingRunner("test", log, work.handle, work.dead_letter, Gather(10, 0), HASTY, begin=work.begin)


async def until(condition: Callable[[], bool], what: str) -> None:
    async def holds() -> bool:
        return condition()

    await eventually(holds, what)


async def turns(count: int = 20) -> None:
    """Everything that can happen without another step has happened."""
    for _ in range(count):
        await asyncio.sleep(0)


@asynccontextmanager
async def running(one: OverlappingRunner) -> AsyncIterator[asyncio.Event]:
    stopping = asyncio.Event()
    task = asyncio.create_task(one.run(stopping))
    try:
        yield stopping
        stopping.set()
        await asyncio.wait_for(asyncio.shield(task), DEADLINE)
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_batch_is_stored_while_the_one_before_is_spread_and_spread_after_it() -> None:
    log, work = Log(batch("a", 0, 1), batch("b", 2), batch("c", 3)), Work()
    work.hold("spread a", "spread b")
    async with running(runner(log, work)):
        await until(lambda: "store b" in work.done, "the second one is stored")
        await turns()
        assert work.begun == ["store a", "spread a", "store b"], "the third one waits, and b is not spread before a"
        assert log.committed == []

        work.held["spread a"].set()
        await until(lambda: "store c" in work.done, "the third one is stored while the second one is spread")
        await turns()
        assert work.begun[3:] in (["spread b", "store c"], ["store c", "spread b"])
        assert log.committed == [2]

        work.held["spread b"].set()
        await until(lambda: len(log.committed) == 3, "everything is committed")
    assert log.committed == [2, 3, 4]
    assert [step for step in work.done if step.startswith("spread")] == ["spread a", "spread b", "spread c"]


async def test_a_batch_is_not_spread_before_it_is_stored_although_the_one_before_is_done() -> None:
    log, work = Log(batch("a", 0), batch("b", 1)), Work()
    work.hold("store b")
    async with running(runner(log, work)):
        await until(lambda: log.committed == [1], "the first one is done")
        await turns()
        assert "spread b" not in work.begun
        work.held["store b"].set()
        await until(lambda: log.committed == [1, 2], "both are done")


@pytest.mark.parametrize("error", [StorageUnavailable(), ValueError("not now")])
async def test_where_spreading_fails_it_is_replayed_while_nothing_else_is_stored_and_before_the_next_one_is_spread(
    error: Exception,
) -> None:
    log, work = Log(batch("a", 0), batch("b", 1)), Work()
    work.hold("spread a", "store b")
    work.failures["spread a"] = [error]
    async with running(runner(log, work)):
        await until(lambda: "store b" in work.begun, "both are under way")
        work.held["spread a"].set()
        await turns()
        assert "replay a" not in work.begun, "it waits for the transaction of the next batch"
        work.held["store b"].set()
        await until(lambda: log.committed == [1, 2], "both are done")
    assert work.done == ["store a", "store b", "replay a", "spread a", "spread b"]


async def test_where_storing_fails_it_is_tried_again_after_the_one_before() -> None:
    log, work = Log(batch("a", 0), batch("b", 1)), Work()
    work.hold("spread a")
    work.failures["store b"] = [StorageUnavailable(), StorageUnavailable()]
    async with running(runner(log, work)):
        await until(lambda: "store b" in work.begun, "both are under way")
        await turns()
        assert work.begun.count("store b") == 1
        work.held["spread a"].set()
        await until(lambda: log.committed == [1, 2], "both are done")
    assert work.done == ["store a", "spread a", "store b", "spread b"]


async def test_an_event_that_fails_becomes_a_dead_letter_and_the_next_batch_is_spread_after_its_neighbours() -> None:
    log, work = Log([*batch("a", 0), *batch("b", 1)], batch("c", 2)), Work()
    work.hold("spread a+b")
    work.failures["spread a+b"] = [ValueError(), ValueError()]
    work.failures["spread b"] = [ValueError() for _ in range(9)]
    async with running(runner(log, work)):
        await until(lambda: "store c" in work.done, "the next one is stored")
        work.held["spread a+b"].set()
        await until(lambda: log.committed == [2, 3], "both are done")
    assert work.dead == [1]
    spread = [step for step in work.done if step.startswith("spread")]
    assert spread == ["spread a", "spread c"]


async def test_offsets_that_the_log_refuses_are_committed_in_order() -> None:
    log, work = Log(batch("a", 0), batch("b", 1), batch("c", 2)), Work()
    log.refusals = 5
    async with running(runner(log, work)):
        await until(lambda: len(log.committed) == 3, "all are committed")
    assert log.committed == [1, 2, 3]


async def test_a_stop_finishes_what_is_under_way() -> None:
    log, work = Log(batch("a", 0), batch("b", 1)), Work()
    work.hold("spread a", "spread b")
    async with running(runner(log, work)) as stopping:
        await until(lambda: "store b" in work.done, "both are under way")
        stopping.set()
        work.held["spread a"].set()
        await until(lambda: log.committed == [1], "the first one is done")
        beats = log.heartbeats
        await until(lambda: log.heartbeats > beats or log.closed, "it stays a member meanwhile")
        assert not log.closed
        work.held["spread b"].set()
    assert log.committed == [1, 2]
    assert log.closed


async def test_a_batch_after_one_that_is_abandoned_is_abandoned_too() -> None:
    log, work = Log(batch("a", 0), batch("b", 1)), Work()
    work.hold("spread a")
    work.failures["spread a"] = [StorageUnavailable() for _ in range(100_000)]
    async with running(runner(log, work)) as stopping:
        await until(lambda: "store b" in work.done, "both are under way")
        work.held["spread a"].set()
        await until(lambda: "replay a" in work.done, "the first one has failed")
        stopping.set()
    assert log.committed == []
    assert "spread b" not in work.begun
    assert log.closed


async def test_turns_without_records_do_not_hide_a_batch_that_hangs() -> None:
    log, work = Log(batch("a", 0)), Work()
    work.hold("spread a")
    one = OverlappingRunner(
        "test", log, work.handle, work.dead_letter, Gather(10, 0), WorkerTimings(stuck=0.001), begin=work.begin
    )
    async with running(one):
        await until(lambda: one.state.startswith("has made no progress"), "it says so")
        work.held["spread a"].set()
        await until(lambda: log.committed == [1], "it is done")
