"""The spools of all processes that share a data directory: one subdirectory for each process.

A process takes the first one that no other process holds, and restores those that processes left which died.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import structlog

from readstate.domain.errors import ConfigurationError, ReadstateError
from readstate.domain.events import ReadEvent
from readstate.ports import Clock
from readstate.timings import KafkaTimings

from .spool import Send, Spool
from .spool_notes import Notebook, SpoolNotes

SPOOLS = "spool"
MAX_SPOOLS = 1_000

log = structlog.get_logger()


class SpoolDirectory:
    """`restore` takes reads that another process left."""

    def __init__(
        self, data_dir: Path, max_mib: int, restore: Send, notebook: Notebook, clock: Clock, timings: KafkaTimings
    ) -> None:
        self._directory = data_dir / SPOOLS
        self._max_bytes = max_mib * 2**20
        self._restore = restore
        self._notebook = notebook
        self._clock = clock
        self._timings = timings

    async def open_own(self) -> tuple[Spool, SpoolNotes]:
        spool = await asyncio.to_thread(self._first_free)
        return spool, self._notes(spool)

    async def keep_adopting(self) -> None:
        """Restore the spools of processes that died and were not restarted."""
        while True:
            for directory in await asyncio.to_thread(lambda: sorted(self._directory.glob("*"))):
                with contextlib.suppress(ReadstateError):  # a process holds it, or a store is down
                    await self.adopt(directory)
            await asyncio.sleep(self._timings.adopt)

    async def adopt(self, directory: Path) -> None:
        spool = await asyncio.to_thread(Spool.open, directory, max_bytes=self._max_bytes)
        notes = self._notes(spool)

        async def restore(events: Sequence[ReadEvent]) -> None:
            await notes.keep()
            await self._restore(events)

        try:
            if spool.depth and await spool.drain(restore):
                await notes.keep()
                log.info("the spool of a dead process has been restored", action="spool", spool=directory.name)
        finally:
            await spool.close()

    def _notes(self, spool: Spool) -> SpoolNotes:
        return SpoolNotes(spool, self._notebook, self._clock, self._timings)

    def _first_free(self) -> Spool:
        for number in range(MAX_SPOOLS):
            with contextlib.suppress(ConfigurationError):
                return self._open(number)
        return self._open(MAX_SPOOLS)

    def _open(self, number: int) -> Spool:
        return Spool.open(self._directory / str(number), max_bytes=self._max_bytes, restore=self._restore)
