"""All waits for Kafka end soon once a stop has begun."""

import asyncio
import threading

import pytest

from readstate.adapters.kafka.stopping import DaemonThread, StopDeadline
from readstate.timings import KafkaTimings
from tests.conftest import eventually

LONG = 3600.0


@pytest.mark.parametrize("seconds", [LONG, float("inf")])
async def test_a_wait_that_has_begun_ends_at_the_deadline(seconds: float) -> None:
    stop = StopDeadline(KafkaTimings(stop=0.01, attempt=LONG))

    async def wait() -> None:
        async with stop.timeout(seconds):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    stop.begin()
    with pytest.raises(TimeoutError):
        await waiting


async def test_a_wait_that_begins_later_has_one_attempt() -> None:
    stop = StopDeadline(KafkaTimings(stop=0.0, attempt=7.0))
    assert stop.left(LONG) == LONG
    stop.begin()
    assert stop.left(LONG) == 7.0
    assert stop.left(1.0) == 1.0


async def test_a_second_beginning_moves_no_deadline() -> None:
    stop = StopDeadline(KafkaTimings(stop=LONG, attempt=0.0))
    stop.begin()
    left = stop.left()
    stop.begin()
    assert 0 < stop.left() <= left


async def test_a_call_that_was_given_up_before_its_turn_is_left_out() -> None:
    thread, release = DaemonThread("test"), threading.Event()
    done: list[str] = []
    first = thread.run(release.wait)
    second = thread.run(lambda: done.append("second"))
    third = thread.run(lambda: done.append("third"))
    second.cancel()
    release.set()
    await asyncio.gather(first, third)
    assert done == ["third"]

    thread.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        thread.run(release.wait)

    async def ended() -> bool:
        return all(one.name != "test" for one in threading.enumerate())

    await eventually(ended, "the thread has ended")


async def test_a_call_that_fails_says_why() -> None:
    thread = DaemonThread("test")

    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await thread.run(fails)
    thread.stop()
