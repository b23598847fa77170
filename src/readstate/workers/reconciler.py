"""Repairs differences between the hot store and the durable store, and expires rows that badges no longer need."""

import structlog

from readstate.services.badge import OfflineBadge
from readstate.services.repair import Repair
from readstate.timings import WorkerTimings

from . import RECONCILER
from .periodic import Job, PeriodicJobs

log = structlog.get_logger()


def reconciler(repair: Repair, badge: OfflineBadge, every_seconds: int, timings: WorkerTimings) -> PeriodicJobs:
    """Any number of processes may have this role; each job runs in only one of them."""

    async def reconcile() -> None:
        found = await repair.reconcile()
        log.info(
            "hot store and database are reconciled",
            action=RECONCILER,
            users=found.users,
            states=found.states,
            database_behind=found.database_behind,
            hot_store_behind=found.hot_store_behind,
            undecided=found.undecided,
        )

    jobs = [Job("reconcile", every_seconds, reconcile), Job("expire", timings.expire, badge.expire)]
    return PeriodicJobs(RECONCILER, repair.claim, jobs, timings)
