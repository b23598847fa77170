"""The loop of the message writer: a batch is stored while the one before is still being spread.

The work on a batch has two halves. The first one is the transaction. The second one is everything after its commit: hot
updates, events, announcements, log positions. Then the offsets are committed.

    batch 1   store ── spread ───── offsets
    batch 2            store ────── spread ───── offsets
    batch 3                         store ────── spread ── …

What holds, and why:

- **Order.** A batch is spread when the one before has been spread, so a channel's updates and announcements keep their
  order. A batch is stored when the one before has been stored and the one before that is committed: two batches are
  under way at most, and the durable store keeps what replays of two batches need (`complete` of `apply`).
- **Offsets** of a batch are committed when both halves of it, and of every batch before, are done.
- **A failure** of either half, by a server or by an event, ends the overlap: the batch waits for the one before, and is
  then handled from its beginning like any other worker's batch, with retries, bisecting and dead letters. For a batch
  that is stored already this is a replay, as after a crash. Nothing else is stored meanwhile (`_storing`), so a replay
  never runs beside a transaction of this process. The batch after it, if it was stored before, is spread afterwards;
  where the replay has brought its changes already, the hot store ignores them by their change numbers.
- **A stop** waits for both batches, but not long for answers of Kafka. If the first one is abandoned, so is the
  second one.
- **A partition that is given away** while its batches are under way is replayed by its new owner from the last
  committed offset. The transaction decides who applies an event, and both may spread it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import structlog

from readstate.domain.errors import Stopping
from readstate.domain.events import Consumed
from readstate.tasks import cancel, retrieve_exception

from .runner import Runner

Begin = Callable[[Sequence[Consumed]], Awaitable[Callable[[], Awaitable[None]]]]
"""The first half; returns the second one."""

log = structlog.get_logger()


@dataclass(eq=False, repr=False)
class _Batch:
    records: Sequence[Consumed]
    since: float = field(default_factory=time.monotonic)
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    """Set after the first attempt to store it."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is complete or abandoned."""
    complete: bool = False


@dataclass(eq=False, repr=False)
class OverlappingRunner(Runner):
    """Runs a consumer whose work has two halves; `_handle` does both."""

    begin: Begin = field(kw_only=True)
    _storing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _committing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Locks are taken in order: offsets are committed in order."""
    _last: _Batch | None = None
    _under_way: "list[asyncio.Task[None]]" = field(default_factory=list)
    """Two batches at most, each until its offsets are committed."""

    def _progressed_at(self) -> float:
        """Turns that find no records are no progress while a batch is under way."""
        if self._last is None or all(task.done() for task in self._under_way):
            return self._turned_at
        return min(self._last.since, self._turned_at)

    async def _take(self, records: Sequence[Consumed]) -> None:
        """Return when the batch is stored and the one before is committed."""
        tasks = list(self._under_way)
        if records:
            before, batch = self._last, _Batch(records)
            task = asyncio.create_task(self._traced(records, self._run(batch, before)))
            task.add_done_callback(retrieve_exception)  # one that was abandoned with the one before is not awaited
            self._last = batch
            self._under_way.append(task)
            async with self._with_heartbeats():
                await batch.tried.wait()
                if tasks:
                    await asyncio.wait(tasks)
        for task in tasks:
            if task.done():
                self._under_way.remove(task)
                task.result()

    async def _settle(self) -> None:
        try:
            if self._under_way:
                async with self._with_heartbeats():
                    await asyncio.wait(self._under_way)
        finally:
            for task in self._under_way:
                await cancel(task)

    async def _run(self, batch: _Batch, before: _Batch | None) -> None:
        try:
            await self._both_halves(batch, before)
            batch.complete = True
        finally:
            batch.ended.set()
        async with self._committing:
            await self._until_up(lambda: self._consumer.commit(batch.records))

    async def _both_halves(self, batch: _Batch, before: _Batch | None) -> None:
        finish = await self._store(batch)
        if before is not None:
            await before.ended.wait()
            if not before.complete:
                raise Stopping
        if finish is None or not await self._succeeds(finish):
            async with self._storing:
                await self._work(batch.records)

    async def _store(self, batch: _Batch) -> Callable[[], Awaitable[None]] | None:
        """The first attempt of the first half; None if it has failed."""
        try:
            async with self._storing:
                return await self.begin(batch.records)
        except Exception as error:
            log.debug("a batch waits for the one before", action=self.name, reason=repr(error))
            return None
        finally:
            batch.tried.set()

    async def _succeeds(self, finish: Callable[[], Awaitable[None]]) -> bool:
        try:
            await finish()
        except Exception as error:
            log.debug("a batch is handled again", action=self.name, reason=repr(error))
            return False
        return True
