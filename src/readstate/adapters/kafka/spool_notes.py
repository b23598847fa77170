"""Notes for other processes that reads wait in this process's spool.

The note in the hot store is renewed every second. The note in the database is still seen when the spool's process and
the hot store are both lost.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

import structlog

from readstate.domain.errors import ReadstateError
from readstate.domain.hot_updates import Merged
from readstate.ports import Clock, HotUsers
from readstate.timings import KafkaTimings

from .spool import Spool

log = structlog.get_logger()


class Notebook(Protocol):
    async def note_spool(self, name: str, until: int) -> None:
        """Reads wait in the spool; the note counts until this time (ms)."""

    async def drop_spool(self, name: str) -> None:
        """Nothing waits in the spool any longer."""


class SpoolNotes:
    """The note in the database about one spool. A database that refuses the note does not hold up reads."""

    def __init__(self, spool: Spool, notebook: Notebook, clock: Clock, timings: KafkaTimings) -> None:
        self._spool = spool
        self._notebook = notebook
        self._clock = clock
        self._timings = timings
        self._noted_at: int | None = None
        """When the note was last written. 0: there is no note. None: an earlier process may have left one."""
        self._not_before = 0
        self._renewing = asyncio.Lock()

    async def keep(self) -> None:
        """Bring the note up to date. Returns at once if the note is current or has failed a moment ago."""
        if self._is_current():
            return
        async with self._renewing:
            if self._is_current():
                return
            noted_at = self._clock() if self._spool.depth else 0
            try:
                async with asyncio.timeout(self._timings.note):
                    if noted_at:
                        await self._notebook.note_spool(self._spool.name, noted_at + self._timings.note_counts_ms)
                    else:
                        await self._notebook.drop_spool(self._spool.name)
            except (ReadstateError, TimeoutError) as error:
                log.debug("the note about the spool could not be renewed", action="spool", reason=repr(error))
                self._not_before = self._clock() + self._timings.note_pause_ms
                return
            self._noted_at = noted_at

    def _is_current(self) -> bool:
        now = self._clock()
        if now < self._not_before:
            return True
        if not self._spool.depth:
            return self._noted_at == 0
        return now < (self._noted_at or 0) + self._timings.note_renew_ms


class HotNotes(Protocol):
    """Notes in the hot store, lost with it."""

    async def note_spool(self, instance: str, depth: int) -> None:
        """Note that this many reads wait in the instance's spool."""

    def seen(self) -> int:
        """The highest generation of the last call, without a call."""

    def of_user(self, user: str) -> int:
        """The generation of the user's slot, without a call."""


@dataclass(eq=False, repr=False)
class SpoolReport:
    """Renews the notes about one spool, and merges the spool's reads of users whose slots the hot store has lost."""

    _spool: Spool
    _durable_notes: SpoolNotes
    _hot_notes: HotNotes
    _users: HotUsers
    _instance_id: str
    _noted: int = 0
    _generation: int = 0

    async def renew(self) -> None:
        depth = self._spool.depth
        await self._durable_notes.keep()
        if depth or self._noted:
            await self._hot_notes.note_spool(self._instance_id, depth)
            self._noted = depth
        if self._generation != (generation := self._hot_notes.seen()):
            if depth:
                await self._merge(self._generation)
            self._generation = generation

    async def _merge(self, before: int) -> None:
        """No other store has these reads. `before`: the highest generation in which they were merged."""
        async for events in self._spool.pending():
            lost = [event for event in events if self._hot_notes.of_user(event.user_id) > before]
            await self._users.apply([Merged(event.channel_id, event.user_id, event.pointer) for event in lost])
