"""The loop of a worker, where its log fails in the middle of a batch, and where it is told to stop."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from readstate.domain.errors import LogUnavailable, StorageUnavailable
from readstate.domain.events import Consumed, ReadEvent
from readstate.domain.model import NO_CHANGE
from readstate.timings import WorkerTimings
from readstate.workers import runner as loop
from readstate.workers.receipt_persister import ReceiptPersister, SharedPersister
from readstate.workers.runner import Gather, Runner
from tests.conftest import eventually

Ends = dict[tuple[str, int], tuple[int, int]]


class Scripted:
    """One batch after the other, of a log that goes away whenever a batch takes long."""

    def __init__(self, *batches: list[Consumed]) -> None:
        self.batches = list(batches)
        self.committed: list[Consumed] = []
        self.heartbeats = 0
        self.closed = False

    async def batch(self, most: int, seconds: float) -> list[Consumed]:
        return self.batches.pop(0)

    async def commit(self, records: Sequence[Consumed]) -> None:
        self.committed += records

    async def heartbeat(self) -> None:
        self.heartbeats += 1
        raise LogUnavailable("Kafka cannot be read")

    async def ends(self) -> Ends:
        return {}

    async def check(self, ends: Ends) -> None: ...

    async def close(self) -> None:
        self.closed = True


async def test_a_batch_that_takes_long_gives_signs_of_life_and_a_log_that_goes_away_meanwhile_loses_none_of_it() -> (
    None
):
    records = [Consumed("t", 0, offset, b"", b"%d" % offset) for offset in range(3)]
    consumer = Scripted(records)
    done: list[bytes] = []
    fails = [False, True, True, True]  # from the end

    async def handle(batch: Sequence[Consumed]) -> None:
        if batch[0].offset <= 1 <= batch[-1].offset and fails.pop():
            raise ValueError("not now")
        before = consumer.heartbeats

        async def has_beaten_twice() -> bool:
            return consumer.heartbeats >= before + 2

        await eventually(has_beaten_twice, "it has given two signs of life")
        done.extend(record.value for record in batch)

    async def dead_letter(record: Consumed, reason: str, tries: int) -> None:
        raise AssertionError(reason)

    runner = Runner(
        "test", consumer, handle, dead_letter, Gather(10, 0), WorkerTimings(retries=(0, 0, 0), heartbeat=0.001)
    )
    await runner.turn()
    assert done == [b"0", b"1", b"2"]
    assert consumer.committed == records
    assert runner.state == "ok"
    after = consumer.heartbeats
    await asyncio.sleep(0.01)
    assert consumer.heartbeats == after


async def test_of_a_record_with_many_events_only_the_one_that_fails_is_put_aside() -> None:
    records = [Consumed("t", 0, 5, b"", b"abcde"), Consumed("t", 0, 6, b"", b"fg")]
    consumer = Scripted(records)
    done: list[bytes] = []
    dead: list[tuple[bytes, int, int]] = []

    def split(record: Consumed) -> list[Consumed]:
        if record.nth >= 0:
            return [record]
        return [record._replace(value=record.value[at : at + 1], nth=at) for at in range(len(record.value))]

    async def handle(batch: Sequence[Consumed]) -> None:
        values = b"".join(record.value for record in batch)
        if b"c" in values or b"g" in values:
            raise ValueError("no event")
        done.append(values)

    async def dead_letter(record: Consumed, reason: str, tries: int) -> None:
        dead.append((record.value, record.offset, record.nth))

    timings = WorkerTimings(retries=(0,))
    await Runner("test", consumer, handle, dead_letter, Gather(10, 0, split), timings).turn()

    assert sorted(b"".join(done)) == sorted(b"abdef")
    assert dead == [(b"c", 5, 2), (b"g", 6, 1)]
    assert consumer.committed == records


DEADLINE = 60
ONE = Consumed("t", 0, 0, b"", b"0")


async def never_buried(record: Consumed, reason: str, tries: int) -> None:
    raise AssertionError(reason)


async def until(condition: Callable[[], bool], what: str) -> None:
    async def holds() -> bool:
        return condition()

    await eventually(holds, what)


async def ended(runner: Runner, begun: Callable[[], bool]) -> None:
    """It is told to stop once it has begun, and does."""
    stopping = asyncio.Event()
    running = asyncio.create_task(runner.run(stopping))
    try:
        await until(lambda: begun() or running.done(), "it is in the middle of it")
        stopping.set()
        await asyncio.wait_for(asyncio.shield(running), DEADLINE)
    finally:
        running.cancel()


@pytest.mark.parametrize("what", ["the work", "the commit"])
async def test_a_server_that_is_down_does_not_hold_up_a_stop_and_the_batch_is_left_to_others(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = Scripted([ONE])
    tries = 0

    async def fails(_: Sequence[Consumed]) -> None:
        nonlocal tries
        tries += 1
        raise StorageUnavailable

    async def works(_: Sequence[Consumed]) -> None: ...

    if what == "the commit":
        monkeypatch.setattr(consumer, "commit", fails)
    handle = fails if what == "the work" else works

    await ended(Runner("test", consumer, handle, never_buried, Gather(1, 0), WorkerTimings()), lambda: tries > 1)

    assert consumer.committed == []
    assert consumer.closed


@pytest.mark.parametrize("where", ["between two tries", "while it can't be put aside"])
async def test_nor_does_an_event_that_fails_by_itself(where: str) -> None:
    consumer = Scripted([ONE])
    tries = 0

    async def handle(_: Sequence[Consumed]) -> None:
        nonlocal tries
        tries += 1
        raise ValueError("not an event")

    async def dead_letter(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise LogUnavailable

    pauses = (3_600.0,) if where == "between two tries" else (0.0,)
    runner = Runner("test", consumer, handle, dead_letter, Gather(1, 0), WorkerTimings(retries=pauses))

    await ended(runner, lambda: tries >= 1 if where == "between two tries" else tries > 3)

    assert consumer.committed == []
    assert consumer.closed


async def test_a_batch_that_gets_on_is_finished_before_a_stop() -> None:
    consumer, stopping = Scripted([ONE]), asyncio.Event()

    async def handle(_: Sequence[Consumed]) -> None:
        stopping.set()

    await Runner("test", consumer, handle, never_buried, Gather(1, 0), WorkerTimings()).run(stopping)

    assert consumer.committed == [ONE]
    assert consumer.closed


NO_USERS: Any = None


async def nothing_is_lost(users: Collection[str]) -> Collection[str]:
    return ()


def persisting(rows: Any) -> ReceiptPersister:
    return ReceiptPersister(rows)


class Rows:
    """A durable store that takes everything."""

    def __init__(self) -> None:
        self.merged: list[Sequence[ReadEvent]] = []

    async def merge(self, states: Sequence[ReadEvent]) -> Sequence[ReadEvent]:
        self.merged.append(states)
        return list({(one.user_id, one.channel_id): one for one in states}.values())


class Moment:
    """The time that the loop sees."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


async def test_whoever_rests_to_spare_the_database_is_well_and_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = Moment()
    monkeypatch.setattr(loop, "time", moment)
    consumer = Scripted([ONE])
    states = [ReadEvent("bob", f"c{number}", 0, 1, (), None, None, 0, NO_CHANGE, 0) for number in range(3_600)]
    rows = Rows()

    async def handle(_: Sequence[Consumed]) -> None:
        await persister.handle(states)

    runner = Runner("test", consumer, handle, never_buried, Gather(1, 0), WorkerTimings(heartbeat=0.001))
    persister = SharedPersister(persisting(rows), NO_USERS, nothing_is_lost, lambda: 0, 1, runner.rest)
    stopping = asyncio.Event()
    running = asyncio.create_task(runner.run(stopping))
    try:
        await until(lambda: consumer.heartbeats > 1, "it rests, and is still a member of its group")
        moment.now += 0.5
        await until(lambda: runner.state == "ok", "it says that it is well")
        stopping.set()
        await asyncio.wait_for(asyncio.shield(running), DEADLINE)
    finally:
        running.cancel()
    assert 0 < len(rows.merged) < len(states)
    assert consumer.committed == [], "the batch is left to others"
    assert consumer.closed


async def test_a_limited_rate_is_spent_in_small_slices_and_what_folds_comes_together() -> None:
    rows, rests = Rows(), []

    async def rest(seconds: float) -> None:
        rests.append((seconds, len(rows.merged)))

    persister = SharedPersister(persisting(rows), NO_USERS, nothing_is_lost, lambda: 0, 100, rest)
    states = [
        ReadEvent(f"user {number % 25:02d}", "c", 0, number, (), None, None, 0, NO_CHANGE, 0) for number in range(50)
    ]
    await persister.handle(states)
    assert [len(some) for some in rows.merged] == [10] * 5
    assert [{one.user_id for one in some} for some in rows.merged] == [
        {f"user {5 * part + number:02d}" for number in range(5)} for part in range(5)
    ]
    assert [done for _, done in rests] == [0, 1, 2, 3, 4]
    assert all(seconds > 0 for seconds, _ in rests[1:])

    unlimited = Rows()
    await SharedPersister(persisting(unlimited), NO_USERS, nothing_is_lost, lambda: 0, 0).handle(states)
    assert unlimited.merged == [states]
