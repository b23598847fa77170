"""Keeps read states on the local disk while the log does not acknowledge them.

Events are appended to the newest segment and acknowledged when they are synced. A drain seals the oldest segment, sends
it as one batch and removes it. A crash in between sends the batch twice, which is harmless: states merge. For the same
reason order does not matter, and after a restart or a fault a new segment is begun instead of continuing the old one.

Segments of an earlier process are passed to `restore` instead of being sent, also oldest first. The hot store that
showed those reads may have lost them, and the log alone does not bring them back there.
"""

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from readstate.batching import Batcher
from readstate.domain.errors import ReadstateError, Stopping, Unavailable
from readstate.domain.events import ReadEvent
from readstate.tasks import cancel
from readstate.telemetry import FALLBACK_SUCCESS, SPOOL_DEPTH

from .segments import Entry, Segments

T = TypeVar("T")
Send = Callable[[Sequence[ReadEvent]], Awaitable[None]]

SEGMENT_BYTES = 2**20
"""A segment of this size is sealed: about 5,000 events, which are sent as one batch."""
MAX_CALLERS = 256
"""At most this many callers share one sync."""

log = structlog.get_logger()


class Spool:
    """A durable queue of read states in a directory that belongs to one process."""

    def __init__(self, segments: Segments, restore: Send | None = None) -> None:
        self._segments = segments
        self._restore = restore
        self._found = segments.last
        """The number of the newest segment of earlier processes."""
        # One thread touches the files: each operation runs to its end, even if its caller was cancelled.
        self._thread = ThreadPoolExecutor(1, "readstate-spool")
        self._appends: Batcher[Entry, Unavailable | None] = Batcher(self._write, max_items=MAX_CALLERS)
        self._one_drain = asyncio.Lock()
        self._draining: asyncio.Task[None] | None = None
        self._closed = False
        self._reported = 0
        self._report_depth()

    @classmethod
    def open(
        cls, directory: Path, *, max_bytes: int, segment_bytes: int = SEGMENT_BYTES, restore: Send | None = None
    ) -> "Spool":
        """Lock the directory and read all segments that an earlier process left. Blocks; needs no event loop.

        With `restore`, a drain passes those segments to `restore` instead of sending them.
        """
        return cls(Segments.open(directory, max_bytes, segment_bytes), restore)

    @property
    def name(self) -> str:
        """Belongs to the directory, whichever process uses it."""
        return self._segments.name

    @property
    def depth(self) -> int:
        return self._segments.depth

    @property
    def bytes(self) -> int:
        return self._segments.bytes

    @property
    def damaged(self) -> int:
        """Lines that could not be read and were skipped, since the start."""
        return self._segments.damaged

    def _report_depth(self) -> None:
        """A process may have several spools open: each adds its own depth to the gauge."""
        SPOOL_DEPTH.inc(self.depth - self._reported)
        self._reported = self.depth

    async def append(self, events: Sequence[ReadEvent]) -> None:
        """Keep all events or none; returns when they are synced.

        Raises Unavailable when the spool is full or the disk fails.
        """
        if not events:
            return
        [refusal] = await self._appends.submit([Entry.of(events)])
        self._report_depth()
        if refusal is not None:
            raise refusal

    async def drain(self, send: Send) -> int:
        """Send what is in the spool now, oldest first; returns the number of events.

        A batch holds each user and channel once, and is removed after `send` returns. If `send` raises, so does this,
        and the rest stays. The same holds for `restore`.
        """
        sent = 0
        async with self._one_drain:
            last = self._segments.last
            while (batch := await self._run(partial(self._segments.oldest, last))) is not None:
                is_inherited = batch.segment.number <= self._found
                target = self._restore if is_inherited and self._restore is not None else send
                if batch.states:
                    await target(batch.states)
                await self._run(partial(self._segments.retire, batch.segment))
                sent += batch.events
                FALLBACK_SUCCESS.inc(batch.events)
                self._report_depth()
        return sent

    async def pending(self) -> AsyncIterator[list[ReadEvent]]:
        """Everything in the spool when this begins, in batches that hold each user and channel once.

        A batch that is drained meanwhile may be left out: it is in the log by then.
        """
        for segment in await self._run(self._segments.all):
            if states := await self._run(partial(self._segments.states, segment)):
                yield states

    # ------------------------------------------------------------ in the background

    def keep_draining(self, send: Send, every: float) -> None:
        """Drain every `every` seconds, in the background."""
        if self._draining is not None:
            raise RuntimeError("the spool is being drained already")
        self._draining = asyncio.create_task(self._keep_draining(send, every))

    async def stop_draining(self) -> None:
        """Stop the background drain. A batch in flight stays in the spool and may be sent twice. Appends go on."""
        if self._draining is None:
            return
        task, self._draining = self._draining, None
        await cancel(task)

    async def close(self) -> None:
        """Refuse new events, finish the appends, stop draining, and unlock the directory."""
        await self._appends.close()
        await self.stop_draining()
        if not self._closed:
            closing = self._run(self._segments.close)
            self._closed = True
            SPOOL_DEPTH.dec(self._reported)
            await closing
            self._thread.shutdown()

    async def _keep_draining(self, send: Send, every: float) -> None:
        failures = 0
        while True:
            try:
                sent = await self.drain(send) if self.depth else 0
                if sent:
                    log.info("the spool has been sent to Kafka", action="spool", events=sent)
                failures = 0
            except Exception as error:
                failures += 1
                if failures == 1:  # later failures of the same outage add nothing
                    _log_unsent(error, self.depth)
            await asyncio.sleep(every)

    # ------------------------------------------------------------ to the thread

    async def _write(self, entries: Sequence[Entry]) -> list[Unavailable | None]:
        return await self._run(partial(self._segments.append, entries))

    def _run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        if self._closed:
            raise Stopping
        return asyncio.get_running_loop().run_in_executor(self._thread, work)


def _log_unsent(error: Exception, depth: int) -> None:
    trace = None if isinstance(error, ReadstateError) else "".join(traceback.format_exception(error))
    log.warning("the spool can't be sent to Kafka", action="spool", events=depth, reason=str(error), traceback=trace)
