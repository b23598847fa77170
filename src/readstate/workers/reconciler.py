"""Looks for differences between hot store and durable store, repairs them, and lets go of what badges need no more."""

import structlog

from readstate.services.badge import OfflineBadge
from readstate.services.repair import Repair

from . import RECONCILER
from .periodic import Job, PeriodicJobs

log = structlog.get_logger()

EXPIRE_SECONDS = 3_600


class Reconciler(PeriodicJobs):
    """Any number of processes may have this role: one at a time does the work."""

    def __init__(self, repair: Repair, badge: OfflineBadge, every_seconds: int) -> None:
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

        jobs = [Job("reconcile", every_seconds, reconcile), Job("expire", EXPIRE_SECONDS, badge.expire)]
        super().__init__(RECONCILER, repair.claim, jobs)
