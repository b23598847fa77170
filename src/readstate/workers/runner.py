"""The loop of every consumer of the log: take a batch, handle it, commit its offsets.

A failure because a dependency is unavailable is retried until the dependency is back or the worker stops, and uses up
no attempt. An event that fails by itself is found by bisecting the batch, retried three times, and put into the dead
letters, so that one event never blocks its partition.
"""

import asyncio
import contextlib
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from readstate.domain.errors import Stopping, Unavailable
from readstate.domain.events import Consumed
from readstate.tasks import cancel
from readstate.telemetry import CONSUMER_LAG, DEAD_LETTERS, WORKER_RETRIES
from readstate.timings import WorkerTimings

if TYPE_CHECKING:
    from readstate.tracing import Tracing

log = structlog.get_logger()


class Consumer(Protocol):
    """A member of a consumer group."""

    async def batch(self, most: int, seconds: float) -> list[Consumed]:
        """The next records: at most `most`, gathered for at most `seconds`."""

    async def commit(self, records: Sequence[Consumed]) -> None:
        """Commit the offsets after these records."""

    async def heartbeat(self) -> None:
        """Stay a member of the group while a batch takes long."""

    async def ends(self) -> dict[tuple[str, int], tuple[int, int]]:
        """(committed, end) of each assigned partition."""

    async def check(self, ends: dict[tuple[str, int], tuple[int, int]]) -> None:
        """Given the answer of `ends`, notice that the consumer is stuck; the next `batch` then recovers."""

    async def close(self) -> None:
        """Leave the group, so that other members take over at once."""


def whole(record: Consumed) -> Sequence[Consumed]:
    """A record that holds one event."""
    return [record]


class Gather(NamedTuple):
    """When a batch is complete, and what it consists of."""

    most: int
    seconds: float
    split: Callable[[Consumed], Sequence[Consumed]] = whole
    """The events of a record, each as a record of its own. Needed only to find the one that fails."""


@dataclass(eq=False, repr=False)
class Runner:
    """Runs one consumer. Stops between two batches, or within a batch that can't go on."""

    name: str
    _consumer: Consumer
    _handle: Callable[[Sequence[Consumed]], Awaitable[None]]
    _dead_letter: Callable[[Consumed, str, int], Awaitable[None]]
    _gather: Gather
    _timings: WorkerTimings
    _tracing: "Tracing | None" = None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _retries: int = 0
    _dead_lettered: int = 0
    _trouble: str = ""
    """Of a batch."""
    _unread: str = ""
    """Why the log can't be read."""

    def __post_init__(self) -> None:
        self._turned_at = time.monotonic()

    @property
    def state(self) -> str:
        """`ok`, or why the consumer makes no progress."""
        if self._trouble or self._unread:
            return self._trouble or self._unread
        late = time.monotonic() - self._progressed_at()
        return "ok" if late < self._timings.stuck else f"has made no progress for {late:.0f} s"

    def _progressed_at(self) -> float:
        return self._turned_at

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until `stopping` is set: finish the batch in flight, then leave the group.

        A batch that can't finish soon, because a dependency is down, an event fails or a rate is limited, is abandoned
        without a commit. The member that takes over the partition replays it.
        """
        self._stopping = stopping
        lag = asyncio.create_task(self._watch_lag())
        try:
            while not stopping.is_set():
                await self.turn()
        finally:
            try:
                await self._settle()
            finally:
                lag.cancel()
                await asyncio.wait([lag])
                await self._consumer.close()

    async def turn(self) -> None:
        try:
            records = await self._consumer.batch(self._gather.most, self._gather.seconds)
            self._unread = ""
            await self._take(records)
        except Stopping:
            log.info("a batch is left to the worker that takes over", action=self.name, reason=self._trouble)
        except Unavailable as error:
            self._unread = error.detail
            log.warning("the log can't be read", action=self.name, reason=error.explained)
            await self._stopping_within(self._timings.longest_back_off)
        self._turned_at = time.monotonic()

    async def rest(self, seconds: float) -> None:
        """For handlers that spare a store: pause within a batch; `state` stays ok. Raises Stopping at a stop."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if await self._stopping_within(min(left, self._timings.heartbeat)):
                raise Stopping
            self._turned_at = time.monotonic()

    async def _stopping_within(self, seconds: float) -> bool:
        """Wait this many seconds, or until the stop; returns whether the worker is stopping."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()

    async def _take(self, records: Sequence[Consumed]) -> None:
        if records:
            async with self._with_heartbeats():
                await self._traced(records, self._finish(records))

    async def _settle(self) -> None:
        """Finish or abandon everything that is under way."""

    async def _finish(self, records: Sequence[Consumed]) -> None:
        await self._work(records)
        await self._until_up(lambda: self._consumer.commit(records))

    async def _traced(self, records: Sequence[Consumed], work: Awaitable[None]) -> None:
        if (tracing := self._tracing) is None:
            await work
            return
        retries, dead_lettered = self._retries, self._dead_lettered
        partitions = {(record.topic, record.partition) for record in records}
        with tracing.worker_batch(self.name, len(records), len(partitions)) as span:
            try:
                await work
            finally:
                tracing.outcome(span, retries=self._retries - retries, put_aside=self._dead_lettered - dead_lettered)

    async def _work(self, records: Sequence[Consumed]) -> None:
        """Handle a batch. If it fails by itself, handle the halves of its events, in order."""
        try:
            await self._until_up(lambda: self._handle(records))
        except Stopping:
            raise
        except Exception as error:
            self._count_retry("event")
            events = [event for record in records for event in self._gather.split(record)]
            if len(events) == 1:
                await self._try_again(events[0], error)
                return
            middle = len(events) // 2
            await self._work(events[:middle])
            await self._work(events[middle:])

    async def _try_again(self, record: Consumed, error: Exception) -> None:
        for pause in self._timings.retries:
            if await self._stopping_within(pause):
                raise Stopping
            try:
                await self._until_up(lambda: self._handle([record]))
                return
            except Stopping:
                raise
            except Exception as again:
                error = again
        where = f"{record.topic}/{record.partition}/{record.offset}" + (f"/{record.nth}" if record.nth >= 0 else "")
        trace = "".join(traceback.format_exception(error))
        log.error(
            "an event has failed too often and becomes a dead letter", action=self.name, record=where, traceback=trace
        )
        reason = f"{type(error).__name__}: {error}"
        await self._until_up(lambda: self._dead_letter(record, reason, len(self._timings.retries)))
        self._dead_lettered += 1
        DEAD_LETTERS.labels(record.topic).inc()

    async def _until_up(self, work: Callable[[], Awaitable[None]]) -> None:
        """Retry while a dependency is unavailable. Raises Stopping if it still is when the worker stops."""
        pause = self._timings.first_back_off
        while True:
            try:
                await work()
                self._trouble = ""
                return
            except Unavailable as error:
                self._count_retry("dependency")
                if not self._trouble:
                    log.warning("waiting for a dependency", action=self.name, reason=error.explained)
                self._trouble = error.detail
            if await self._stopping_within(pause):
                raise Stopping
            pause = min(2 * pause, self._timings.longest_back_off)

    @contextlib.asynccontextmanager
    async def _with_heartbeats(self) -> AsyncIterator[None]:
        heartbeats = asyncio.create_task(self._heartbeat())
        try:
            yield
        finally:
            await cancel(heartbeats)

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._timings.heartbeat)
            with contextlib.suppress(Unavailable):  # the batch continues
                await self._consumer.heartbeat()

    def _count_retry(self, reason: str) -> None:
        self._retries += 1
        WORKER_RETRIES.labels(self.name, reason).inc()

    async def _watch_lag(self) -> None:
        lags: dict[str, int] = {}
        while True:
            try:
                ends = await self._consumer.ends()
                lags = dict.fromkeys(lags, 0)  # a partition that was given away lags elsewhere
                for (topic, _), (committed, end) in ends.items():
                    lags[topic] = lags.get(topic, 0) + max(0, end - committed)
                for topic, lag in lags.items():
                    CONSUMER_LAG.labels(self.name, topic).set(lag)
                await self._consumer.check(ends)
            except Exception as error:
                log.debug("the lag is unknown", action=self.name, reason=str(error))
            await asyncio.sleep(self._timings.lag)
