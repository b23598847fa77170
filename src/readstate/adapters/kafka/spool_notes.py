"""A note in the database that reads wait in a spool.

Other processes still see the note when the spool's process and the hot store are both lost.
"""

import asyncio
from typing import Protocol

import structlog

from readstate.domain.errors import ReadstateError
from readstate.ports import Clock

from .spool import Spool

COUNTS_MS = 60_000
"""A note counts this long after its last renewal; then other processes go on without those reads."""
AGAIN_MS = 15_000
NOTE_SECONDS = 1.0
PAUSE_MS = 5_000
"""After a failed note, reads do not try the next one for this long."""

log = structlog.get_logger()


class Notebook(Protocol):
    async def note_spool(self, name: str, until: int) -> None:
        """Reads wait in the spool; the note counts until this time (ms)."""

    async def drop_spool(self, name: str) -> None:
        """Nothing waits in the spool any longer."""


class SpoolNotes:
    """The note about one spool. A database that refuses the note does not hold up reads."""

    def __init__(self, spool: Spool, notebook: Notebook, clock: Clock) -> None:
        self._spool = spool
        self._notebook = notebook
        self._clock = clock
        self._noted_at: int | None = None
        """When the note was last written. 0: there is no note. None: an earlier process may have left one."""
        self._not_before = 0
        self._turn = asyncio.Lock()

    async def keep(self) -> None:
        """Bring the note up to date. Returns at once if the note is current or was tried less than PAUSE_MS ago."""
        if self._is_done():
            return
        async with self._turn:
            if self._is_done():
                return
            noted_at = self._clock() if self._spool.depth else 0
            try:
                async with asyncio.timeout(NOTE_SECONDS):
                    if noted_at:
                        await self._notebook.note_spool(self._spool.name, noted_at + COUNTS_MS)
                    else:
                        await self._notebook.drop_spool(self._spool.name)
            except (ReadstateError, TimeoutError) as error:
                log.debug("the spool could not be noted", action="spool", reason=repr(error))
                self._not_before = self._clock() + PAUSE_MS
                return
            self._noted_at = noted_at

    def _is_done(self) -> bool:
        now = self._clock()
        if now < self._not_before:
            return True
        if not self._spool.depth:
            return self._noted_at == 0
        return now < (self._noted_at or 0) + AGAIN_MS
