"""Whether every read that is acknowledged is in the durable store."""

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest

from readstate.domain.model import Generation
from readstate.services.freshness import AlwaysFresh, NeverFresh, ReadLogProgress, Trailing
from readstate.tasks import cancel
from readstate.timings import ServiceTimings

HASTY = ServiceTimings(settle=0.001, freshness_poll=0.001)


class Log:
    """A log with its persister, and the spools of all instances."""

    def __init__(self) -> None:
        self.end = 10
        self.committed = 10
        self.in_spools = 0
        self.looks = 0
        self.number = Generation(1)
        self.numbers: dict[str, Generation] = {}
        """Of users whose slots have lower ones."""
        self.noted_fresh = Generation(1)

    async def ends(self) -> dict[int, int]:
        return {0: self.end, 1: 0}

    async def done(self) -> dict[int, int]:
        self.looks += 1
        return {0: self.committed}

    async def generation(self, users: Collection[str] | None = None) -> Generation:
        return self.number

    def of_user(self, user: str) -> Generation:
        return self.numbers.get(user, self.number)

    def seen(self) -> Generation:
        return self.number

    async def fresh(self) -> Generation:
        return self.noted_fresh

    async def note_fresh(self, number: Generation) -> None:
        self.noted_fresh = number

    async def spooled(self) -> bool:
        self.looks += 1
        return self.in_spools > 0


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def trailing(log: Log) -> Trailing:
    return made(log)


def made(log: Log, timings: ServiceTimings = HASTY) -> Trailing:
    return Trailing(log, log, ReadLogProgress(log.spooled, log.ends, log.done), timings, 5)


async def looked_again(log: Log) -> None:
    before = log.looks
    async with asyncio.timeout(30):
        while log.looks < before + 3:  # noqa: ASYNC110 - a plain number
            await asyncio.sleep(0.001)


async def test_a_log_that_is_written_down_is_passed(trailing: Trailing) -> None:
    assert await trailing.passed()


async def test_an_empty_log_is_passed(log: Log, trailing: Trailing) -> None:
    log.end = log.committed = 0
    assert await trailing.passed()


@pytest.mark.parametrize("behind", ["the persister", "a spool"])
async def test_what_is_behind_is_waited_for(log: Log, trailing: Trailing, behind: str) -> None:
    if behind == "a spool":
        log.in_spools = 1
    else:
        log.committed = 9
    asked = asyncio.create_task(trailing.passed())
    await looked_again(log)
    assert not asked.done()
    if behind == "a spool":
        log.end, log.in_spools = 11, 0  # it is sent
        await looked_again(log)
        assert not asked.done()
        log.committed = 11
    else:
        log.end = 1_000  # what comes later is not waited for
        log.committed = 10
    assert await asyncio.wait_for(asked, 30)


async def test_but_not_for_ever(log: Log) -> None:
    log.committed = 9
    assert not await made(log, replace(HASTY, persister=0.05)).passed()


async def test_without_a_shared_log_it_is_known_at_once() -> None:
    assert await AlwaysFresh().passed()
    assert not await NeverFresh().passed()


# ---------------------------------------------------------------- for callers who wait


async def test_what_is_stored_is_known_at_once(trailing: Trailing) -> None:
    assert await trailing.stored_soon()
    assert await AlwaysFresh().stored_soon()
    assert not await NeverFresh().stored_soon()


@pytest.mark.parametrize("behind", ["the persister", "a spool"])
async def test_what_is_not_stored_is_waited_for_but_not_for_long(log: Log, behind: str) -> None:
    if behind == "a spool":
        log.in_spools = 1
    else:
        log.end = 11
    assert not await made(log, replace(HASTY, persister_in_request=0.05)).stored_soon()
    waiting = asyncio.create_task(made(log, replace(HASTY, persister_in_request=30.0)).stored_soon())
    await looked_again(log)
    assert not waiting.done()
    log.in_spools, log.committed = 0, 11
    assert await waiting


async def test_what_comes_from_a_spool_is_waited_for(log: Log, trailing: Trailing) -> None:
    log.in_spools = 1
    waiting = asyncio.create_task(trailing.stored_soon())
    await looked_again(log)
    log.in_spools, log.end = 0, 11
    await looked_again(log)
    assert not waiting.done()
    log.committed = 11
    assert await waiting


async def test_many_share_their_looks(log: Log) -> None:
    trailing = made(log, replace(HASTY, freshness_poll=30.0))
    assert all(await asyncio.gather(*(trailing.stored_soon() for _ in range(100))))
    assert log.looks == 2  # at the spools and at the persister


async def test_who_comes_later_waits_for_a_later_end(log: Log, trailing: Trailing) -> None:
    log.end = 11
    first = asyncio.create_task(trailing.stored_soon())
    await looked_again(log)
    log.end = 12
    second = asyncio.create_task(trailing.stored_soon())
    log.committed = 11
    assert await first
    await looked_again(log)
    assert not second.done()
    log.committed = 12
    assert await second


# ---------------------------------------------------------------- after a loss of the hot store


async def test_after_a_loss_an_empty_log_says_nothing_of_spools(log: Log) -> None:
    """An instance may note its spool later than others look at the log."""
    log.end = log.committed = 0
    log.number, log.noted_fresh = Generation(2), Generation(1)
    trailing = made(log, replace(HASTY, settle=1.0))
    following = asyncio.create_task(trailing.run())
    await asyncio.sleep(0.05)
    assert trailing.behind(["bob"])
    log.in_spools = 1  # it is noted
    await asyncio.sleep(1.2)
    assert trailing.behind(["bob"])
    log.in_spools = 0
    await asyncio.wait_for(trailing.caught_up(["bob"]), 30)
    await cancel(following)


async def test_before_the_first_read_nothing_is_waited_for(log: Log) -> None:
    log.end = log.committed = 0
    log.noted_fresh = Generation(0)
    trailing = made(log, replace(HASTY, settle=3600))
    following = asyncio.create_task(trailing.run())
    await asyncio.wait_for(trailing.caught_up(["bob"]), 30)
    await cancel(following)


async def test_only_users_of_lost_slots_are_behind_and_are_merged(log: Log) -> None:
    timings = replace(HASTY, late_reads=3600)
    trailing = made(log, timings)
    following = asyncio.create_task(trailing.run())
    await asyncio.wait_for(trailing.caught_up(["bob", "carol"]), 30)
    trailing._fresh_before.clear()  # the time after the start is over
    log.numbers = {"carol": Generation(1)}
    log.number, log.committed = Generation(2), 9
    assert trailing.behind(["carol", "bob"])
    assert not trailing.behind(["carol"])
    assert (trailing.stale("bob").everything, trailing.stale("carol").everything) == (True, False)
    await asyncio.wait_for(trailing.caught_up(["carol"]), 30)
    assert await trailing.to_merge(["bob", "carol"]) == {"bob"}
    log.committed = 10
    await asyncio.wait_for(trailing.caught_up(["bob"]), 30)
    assert log.noted_fresh == 2
    assert await trailing.to_merge(["bob", "carol"]) == {"bob"}, "a read may have been in flight"
    trailing._fresh_before.clear()
    assert await trailing.to_merge(["bob", "carol"]) == set()
    await cancel(following)
