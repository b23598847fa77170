"""Reads by focus: messages that arrive while the user has their channel open."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import structlog

from readstate.domain.errors import ReadstateError
from readstate.domain.model import DropNumber
from readstate.ports import Absent, Freshness, HotUsers, Move, Moved, Read, Seen

from .moves import Moves
from .pending_writes import PendingWrites

log = structlog.get_logger()


class _Unwritten(NamedTuple):
    """Reads that the hot state shows and the log does not have yet."""

    reads: list[Move]
    results: list[Moved | Absent]
    generation: DropNumber
    pending: ExitStack


class FocusReads:
    """Counts include these reads at once. They go to the log while the next ones are collected."""

    def __init__(self, users: HotUsers, moves: Moves, pending_writes: PendingWrites, freshness: Freshness) -> None:
        self._users = users
        self._moves = moves
        self._pending_writes = pending_writes
        self._freshness = freshness
        self._unwritten: list[_Unwritten] = []
        self._writing: asyncio.Task[None] | None = None

    async def read(self, seen: Sequence[Seen]) -> None:
        reads: list[Move] = [Read(one.user_id, one.channel_id, one.position, epoch=one.epoch) for one in seen]
        with ExitStack() as pending:
            pending.enter_context(self._pending_writes.of({read.user_id for read in reads}))
            generation = await self._users.generation({read.user_id for read in reads})
            results = await self._users.move(reads)
            self._unwritten.append(_Unwritten(reads, results, generation, pending.pop_all()))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing

    async def _write_all(self) -> None:
        try:
            while self._unwritten:
                unwritten, self._unwritten = self._unwritten, []
                await self._write(unwritten)
        finally:
            self._writing = None

    async def _write(self, unwritten: Sequence[_Unwritten]) -> None:
        reads = [read for one in unwritten for read in one.reads]
        results = [result for one in unwritten for result in one.results]
        try:
            if self._freshness.behind({read.user_id for read in reads}):
                _, results = await self._moves.apply(reads)
            await self._moves.finish(reads, results, unwritten[0].generation)
        except ReadstateError as error:  # if the log refused them, the counts are announced as changed
            log.warning("a read by focus was not written", action="read", code=error.code)
        finally:
            for one in unwritten:
                one.pending.close()
