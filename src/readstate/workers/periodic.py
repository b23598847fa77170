"""The loop of the reconciler and the auditor: each job runs once per interval, in one process of the cluster."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import structlog

from readstate.domain.errors import Unavailable
from readstate.tasks import cancel
from readstate.timings import WorkerTimings

log = structlog.get_logger()

Claim = Callable[[str, float], Awaitable[bool]]
"""Claims a job's turn for this many seconds; False if another process has claimed it."""


class Job(NamedTuple):
    name: str
    every: float
    """Seconds; 0: never."""
    work: Callable[[], Awaitable[object]]


class PeriodicJobs:
    """Runs its jobs until stopped. A job that fails is logged, and retried at the next look without a new claim."""

    def __init__(self, name: str, claim: Claim, jobs: Sequence[Job], timings: WorkerTimings) -> None:
        self.name = name
        self._claim = claim
        self._timings = timings
        self._jobs = [job for job in jobs if job.every > 0]
        self._failed: set[str] = set()
        self._trouble = ""

    @property
    def state(self) -> str:
        """`ok`, or the last error."""
        return self._trouble or "ok"

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until `stopping` is set. A job in flight is cancelled then; every job tolerates that."""
        stop = asyncio.create_task(stopping.wait())
        work = asyncio.create_task(self._work())
        try:
            await asyncio.wait([stop, work], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(stop)
            await cancel(work)

    async def _work(self) -> None:
        pause = min([self._timings.claim, *(job.every for job in self._jobs)])
        while True:
            for job in self._jobs:
                await self.turn(job)
            await asyncio.sleep(pause)

    async def turn(self, job: Job) -> None:
        """Run a job if this process can claim it, or if it failed here before."""
        try:
            if job.name in self._failed or await self._claim(job.name, job.every):
                self._failed.add(job.name)
                await job.work()
                self._failed.discard(job.name)
            self._trouble = ""
        except Unavailable as error:
            if not self._trouble:
                log.warning("waiting for a dependency", action=self.name, job=job.name, reason=error.explained)
            self._trouble = error.detail
        except Exception as error:
            self._trouble = f"{job.name}: {type(error).__name__}"
            log.error("a job has failed", action=self.name, job=job.name, traceback=traceback.format_exc())
