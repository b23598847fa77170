"""Recounts a sample of users, channels and badges from the durable store every minute, and logs drift."""

import structlog

from readstate.services.audit import Audit
from readstate.timings import WorkerTimings

from . import AUDITOR
from .periodic import Claim, Job, PeriodicJobs

log = structlog.get_logger()


def auditor(audit: Audit, claim: Claim, sample: int, timings: WorkerTimings) -> PeriodicJobs:
    """Any number of processes may have this role; each audit runs in only one of them."""

    async def run() -> None:
        for one in (await audit.run(sample, timings.drift)).drift:
            log.error(
                "hot store and database differ: readstate recount repairs a count, readstate reconcile the rest",
                action=AUDITOR,
                user=one.user_id,
                channel=one.channel_id,
                what=one.what,
                hot=one.hot,
                durable=one.durable,
            )

    return PeriodicJobs(AUDITOR, claim, [Job("audit", timings.audit if sample else 0, run)], timings)
