"""The loop that every consumer of the log runs: take a batch, do it, commit its offsets.

What fails because something is down is tried again until it is up, or the worker is told to stop, and uses up nothing.
What fails by itself is found by halves, tried three times, and put aside: one event never stops its partition.
"""

import asyncio
import contextlib
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import structlog

from readstate.domain.errors import Stopping, Unavailable
from readstate.tasks import cancel
from readstate.telemetry import CONSUMER_LAG, DEAD_LETTERS, WORKER_RETRIES

if TYPE_CHECKING:
    from readstate.tracing import Tracing

log = structlog.get_logger()

PAUSES = (1.0, 2.0, 4.0)
"""After each of the three tries of an event that fails."""
FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.05, 2.0
BREATH_SECONDS = 2.0
"""A batch that takes longer gives a sign of life so often."""
LAG_SECONDS = 5.0
LATE_SECONDS = 60.0
"""A loop that has not turned for so long is not ready."""


class Record(Protocol):
    """What is read from the log."""

    @property
    def topic(self) -> str:
        """Where from."""

    @property
    def partition(self) -> int:
        """Which part of it."""

    @property
    def offset(self) -> int:
        """Its place there."""

    @property
    def value(self) -> bytes:
        """The event."""


R = TypeVar("R", bound=Record)


class Consumer(Protocol[R]):
    """A member of a consumer group."""

    async def batch(self, most: int, seconds: float) -> list[R]:
        """What has come, at most so much and after so long."""

    async def commit(self, records: Sequence[R]) -> None:
        """Everything up to these is done."""

    async def heartbeat(self) -> None:
        """Stay a member while a batch takes long."""

    async def ends(self) -> dict[tuple[str, int], tuple[int, int]]:
        """(committed, end) of the partitions that it has."""

    async def check(self, ends: dict[tuple[str, int], tuple[int, int]]) -> None:
        """Notice by what `ends` said when it stands still, and begin anew with the next batch."""

    async def close(self) -> None:
        """Leave the group: others take over at once."""


class Runner(Generic[R]):
    """One consumer and what it does with a batch. Stops between two batches, or where one can't go on.

    `must_rest` says for how many seconds it has to leave the stores alone after a batch.
    """

    def __init__(
        self,
        name: str,
        consumer: Consumer[R],
        handle: Callable[[Sequence[R]], Awaitable[None]],
        dead_letter: Callable[[R, str, int], Awaitable[None]],
        *,
        most: int,
        seconds: float,
        pauses: Sequence[float] = PAUSES,
        breath: float = BREATH_SECONDS,
        throttle_delay: Callable[[], float] = lambda: 0.0,
        tracing: "Tracing | None" = None,
    ) -> None:
        self.name = name
        self._consumer = consumer
        self._handle = handle
        self._dead_letter = dead_letter
        self._most = most
        self._seconds = seconds
        self._pauses = pauses
        self._breath = breath
        self._throttle_delay = throttle_delay
        self._tracing = tracing
        self._stopping = asyncio.Event()
        self._retries = self._put_aside = 0
        """Since the start."""
        self._turned_at = time.monotonic()
        self._trouble = ""

    @property
    def state(self) -> str:
        """`ok`, or why it does not get on."""
        if self._trouble:
            return self._trouble
        late = time.monotonic() - self._turned_at
        return "ok" if late < LATE_SECONDS else f"has not got on for {late:.0f} s"

    async def run(self, stopping: asyncio.Event) -> None:
        """Until it is told to stop: then the batch that was taken is finished, and the group is left.

        A batch that can't be finished, since something is down or an event fails, is not waited for: it is not
        committed, and whoever takes over does it again.
        """
        self._stopping = stopping
        lag = asyncio.create_task(self._watch_lag())
        try:
            while not stopping.is_set():
                await self.turn()
        finally:
            lag.cancel()
            await asyncio.wait([lag])
            await self._consumer.close()

    async def turn(self) -> None:
        """One batch, if there is one."""
        try:
            records = await self._consumer.batch(self._most, self._seconds)
            if records and self._tracing is not None:
                await self._finish_traced(self._tracing, records)
            elif records:
                await self._finish(records)
            self._trouble = ""
            await self._rest(self._throttle_delay())
        except Stopping:
            log.info("a batch is left to whoever takes over", action=self.name, reason=self._trouble)
        except Unavailable as error:
            self._trouble = error.detail
            log.warning("the log can't be read", action=self.name, reason=error.explained)
            await self._stopping_within(LONGEST_BACK_OFF)
        self._turned_at = time.monotonic()

    async def _rest(self, seconds: float) -> None:
        """Nothing is wrong meanwhile: it stays a member of its group, and says so to whoever asks."""
        end = time.monotonic() + seconds
        if seconds > 0:
            async with self._with_heartbeats():
                while (left := end - time.monotonic()) > 0 and not await self._stopping_within(min(left, self._breath)):
                    self._turned_at = time.monotonic()

    async def _stopping_within(self, seconds: float) -> bool:
        """Wait for so long, or until it is told to stop: whether it is."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()

    async def _finish(self, records: Sequence[R]) -> None:
        async with self._with_heartbeats():
            await self._work(records)
            await self._until_up(lambda: self._consumer.commit(records))

    async def _finish_traced(self, tracing: "Tracing", records: Sequence[R]) -> None:
        retries, put_aside = self._retries, self._put_aside
        partitions = {(record.topic, record.partition) for record in records}
        with tracing.worker_batch(self.name, len(records), len(partitions)) as span:
            try:
                await self._finish(records)
            finally:
                tracing.outcome(span, retries=self._retries - retries, put_aside=self._put_aside - put_aside)

    async def _work(self, records: Sequence[R]) -> None:
        """Does a batch; where something in it fails by itself, the two halves, each in order."""
        try:
            await self._until_up(lambda: self._handle(records))
        except Stopping:
            raise
        except Exception as error:
            self._count_retry("event")
            if len(records) == 1:
                await self._try_again(records[0], error)
                return
            middle = len(records) // 2
            await self._work(records[:middle])
            await self._work(records[middle:])

    async def _try_again(self, record: R, error: Exception) -> None:
        for pause in self._pauses:
            if await self._stopping_within(pause):
                raise Stopping
            try:
                await self._until_up(lambda: self._handle([record]))
                return
            except Stopping:
                raise
            except Exception as again:
                error = again
        place = f"{record.topic}/{record.partition}/{record.offset}"
        trace = "".join(traceback.format_exception(error))
        log.error("an event fails again and again and is put aside", action=self.name, place=place, traceback=trace)
        reason = f"{type(error).__name__}: {error}"
        await self._until_up(lambda: self._dead_letter(record, reason, len(self._pauses)))
        self._put_aside += 1
        DEAD_LETTERS.labels(record.topic).inc()

    async def _until_up(self, work: Callable[[], Awaitable[None]]) -> None:
        """Something that is down uses up no try. Raises Stopping when it is down at a stop: nobody waits then."""
        pause = FIRST_BACK_OFF
        while True:
            try:
                await work()
                self._trouble = ""
                return
            except Unavailable as error:
                self._count_retry("dependency")
                if not self._trouble:
                    log.warning("waiting until it can go on", action=self.name, reason=error.explained)
                self._trouble = error.detail
            if await self._stopping_within(pause):
                raise Stopping
            pause = min(2 * pause, LONGEST_BACK_OFF)

    @contextlib.asynccontextmanager
    async def _with_heartbeats(self) -> AsyncIterator[None]:
        """The consumer stays a member, however long the batch takes."""
        heartbeats = asyncio.create_task(self._heartbeat())
        try:
            yield
        finally:
            await cancel(heartbeats)

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._breath)
            with contextlib.suppress(Unavailable):  # the batch goes on
                await self._consumer.heartbeat()

    def _count_retry(self, reason: str) -> None:
        self._retries += 1
        WORKER_RETRIES.labels(self.name, reason).inc()

    async def _watch_lag(self) -> None:
        lags: dict[str, int] = {}
        while True:
            try:
                ends = await self._consumer.ends()
                lags = dict.fromkeys(lags, 0)  # what was given away lags somewhere else
                for (topic, _), (committed, end) in ends.items():
                    lags[topic] = lags.get(topic, 0) + max(0, end - committed)
                for topic, lag in lags.items():
                    CONSUMER_LAG.labels(self.name, topic).set(lag)
                await self._consumer.check(ends)
            except Exception as error:
                log.debug("the lag is not known", action=self.name, reason=str(error))
            await asyncio.sleep(LAG_SECONDS)
