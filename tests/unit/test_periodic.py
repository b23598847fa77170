"""The loop of those who look after the stores."""

import asyncio

from readstate.domain.errors import StorageUnavailable
from readstate.timings import WorkerTimings
from readstate.workers.periodic import Job, PeriodicJobs

HASTY = WorkerTimings(claim=0.001)


class Turns:
    """What the durable store would say: each turn is taken once."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    async def claim(self, name: str, every: float) -> bool:
        assert every > 0
        if name in self.taken:
            return False
        self.taken.add(name)
        return True


class Work:
    """A job that fails with these errors first."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.times = 0
        self.done = asyncio.Event()

    async def __call__(self) -> None:
        self.times += 1
        if self.errors:
            raise self.errors.pop(0)
        self.done.set()


async def run(*periodic: PeriodicJobs, until: asyncio.Event) -> None:
    stopping = asyncio.Event()
    tasks = [asyncio.create_task(one.run(stopping)) for one in periodic]
    await asyncio.wait_for(until.wait(), 30)
    stopping.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 30)


async def test_of_several_processes_one_does_the_work() -> None:
    turns, work, other = Turns(), Work(), Work()
    jobs = [Job("one", 60, work), Job("other", 60, other)]
    await run(
        PeriodicJobs("a", turns.claim, jobs, HASTY), PeriodicJobs("b", turns.claim, jobs, HASTY), until=other.done
    )
    assert (work.times, other.times) == (1, 1)


async def test_what_fails_is_done_again_and_never_ends_the_loop() -> None:
    work = Work(StorageUnavailable(), RuntimeError("a fault"))
    one = PeriodicJobs("a", Turns().claim, [Job("one", 60, work)], HASTY)
    await run(one, until=work.done)
    assert work.times == 3
    assert one.state == "ok"


async def test_it_says_what_it_waits_for() -> None:
    one = PeriodicJobs("a", Turns().claim, [], HASTY)
    assert one.state == "ok"
    work = Work(StorageUnavailable("the disk is full"), RuntimeError("holds a secret"))
    await one.turn(Job("one", 60, work))
    assert one.state == "the disk is full"
    await one.turn(Job("one", 60, work))
    assert one.state == "one: RuntimeError"
    await one.turn(Job("one", 60, work))
    assert one.state == "ok"


async def test_a_database_that_does_not_say_whose_turn_it_is_is_waited_for() -> None:
    async def down(*_: object) -> bool:
        raise StorageUnavailable("down")

    one, work = PeriodicJobs("a", down, [], HASTY), Work()
    await one.turn(Job("one", 60, work))
    assert (one.state, work.times) == ("down", 0)


async def test_a_job_under_way_is_broken_off_at_a_stop() -> None:
    begun = asyncio.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    await run(PeriodicJobs("a", Turns().claim, [Job("one", 60, endless)], HASTY), until=begun)


async def test_a_job_that_is_switched_off_is_never_done() -> None:
    off, on = Work(), Work()
    await run(PeriodicJobs("a", Turns().claim, [Job("off", 0, off), Job("on", 60, on)], HASTY), until=on.done)
    assert off.times == 0


async def test_without_any_job_it_waits_for_the_stop() -> None:
    now = asyncio.Event()
    now.set()
    await run(PeriodicJobs("a", Turns().claim, [], HASTY), until=now)
