"""The loop of those who look after the stores: each job once in a while, by one process of all."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import structlog

from readstate.domain.errors import Unavailable
from readstate.tasks import cancel

log = structlog.get_logger()

LOOK_SECONDS = 10.0
"""Between two looks whether it is somebody's turn."""

Claim = Callable[[str, float], Awaitable[bool]]
"""Takes the turn at something that is done once every so many seconds, unless another process has."""


class Job(NamedTuple):
    """Something to do once in a while."""

    name: str
    every: float
    """Seconds; 0: never."""
    work: Callable[[], Awaitable[object]]


class PeriodicJobs:
    """Does its jobs until it is told to stop. What fails is told, and done again at the next look."""

    def __init__(self, name: str, claim: Claim, jobs: Sequence[Job]) -> None:
        self.name = name
        self._claim = claim
        self._jobs = [job for job in jobs if job.every > 0]
        self._failed: set[str] = set()
        self._trouble = ""

    @property
    def state(self) -> str:
        """`ok`, or why it does not get on."""
        return self._trouble or "ok"

    async def run(self, stopping: asyncio.Event) -> None:
        """Until it is told to stop; a job under way is broken off then: all of them may be."""
        stop = asyncio.create_task(stopping.wait())
        work = asyncio.create_task(self._work())
        try:
            await asyncio.wait([stop, work], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(stop)
            await cancel(work)

    async def _work(self) -> None:
        pause = min([LOOK_SECONDS, *(job.every for job in self._jobs)])
        while True:
            for job in self._jobs:
                await self.turn(job)
            await asyncio.sleep(pause)

    async def turn(self, job: Job) -> None:
        """Do a job, if it is this process's turn or it failed here before."""
        try:
            if job.name in self._failed or await self._claim(job.name, job.every):
                self._failed.add(job.name)
                await job.work()
                self._failed.discard(job.name)
            self._trouble = ""
        except Unavailable as error:
            if not self._trouble:
                log.warning("waiting until it can go on", action=self.name, job=job.name, reason=error.explained)
            self._trouble = error.detail
        except Exception as error:
            self._trouble = f"{job.name}: {type(error).__name__}"
            log.error("a job has failed", action=self.name, job=job.name, traceback=traceback.format_exc())
