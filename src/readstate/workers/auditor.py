"""Recounts some users and channels from the durable store every minute, and reports the drift that it finds."""

from ..services.repair import Audited, Repair
from . import AUDITOR
from .keeper import Job, Keeper

AUDIT_SECONDS = 60
PATIENCE = 60.0
"""A writer that was killed in the middle of a batch is replaced by then, and its batch applied."""


class Auditor(Keeper):
    """Any number of processes may have this role: one at a time does the work."""

    def __init__(self, repair: Repair, sample: int) -> None:
        async def audit() -> Audited:
            return await repair.audit(sample, PATIENCE)

        super().__init__(AUDITOR, repair.claim, [Job("audit", AUDIT_SECONDS if sample else 0, audit)])
