"""The log of the cluster profile: Kafka, and for reads a spool on the local disk while Kafka does not acknowledge."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from msgspec.structs import replace

from readstate.domain.announcements import Announcement
from readstate.domain.errors import LogUnavailable, ReadstateError, Stopping, TooLarge
from readstate.domain.events import AnyChannelEvent, MessageEvent, ReadEvent
from readstate.domain.facts import Effect
from readstate.domain.rooms import partition_of
from readstate.telemetry import KAFKA_FALLBACK
from readstate.timings import KafkaTimings

from .backlog import Backlog
from .sender import Sender
from .spool import Spool
from .topics import MOST_BYTES
from .waits import Waits
from .watcher import Watcher
from .wire import channel_record

Applied = Callable[[], Awaitable[Mapping[int, int]]]
"""The next offset to apply in each partition of `messages`."""

log = structlog.get_logger()


@dataclass(eq=False, repr=False)
class SpooledReads:
    """Owns the spool. `note_spool` brings the note about the spool up to date; `produce_timeout` is in seconds."""

    _sender: Sender
    _spool: Spool
    _note_spool: Callable[[], Awaitable[None]]
    _produce_timeout: float
    _timings: KafkaTimings

    def keep_draining(self) -> None:
        self._spool.keep_draining(self._sender.send_reads, self._timings.drain)

    async def append(self, events: Sequence[ReadEvent]) -> None:
        """Return when they are durable, in Kafka or on the local disk."""
        if not events:
            return
        may_send = not self._sender.late or not self._sender.busy
        if may_send and await self._in_time(self._sender.begin_reads(events)):
            return
        await self._spool.append(events)
        await self._note_spool()
        KAFKA_FALLBACK.inc(len(events))

    async def flush(self) -> None:
        """Stop the background drain and send the rest. Reads that Kafka does not acknowledge soon stay in the spool."""
        await self._spool.stop_draining()
        if self._spool.depth and not self._sender.late:
            with contextlib.suppress(ReadstateError, TimeoutError):
                await asyncio.wait_for(self._spool.drain(self._sender.send_reads), self._timings.close)
        await self._note_spool()  # drops the note if the spool is empty, else extends it

    async def close(self) -> None:
        await self._spool.close()

    async def _in_time(self, sending: "asyncio.Task[None]") -> bool:
        """Whether Kafka acknowledged within the produce timeout. While Kafka is late, this does not wait."""
        if not self._sender.late:
            await asyncio.wait([sending], timeout=self._produce_timeout)
        if not sending.done():
            self._sender.late = True
            return False
        failure = sending.exception()
        if failure is not None and not isinstance(failure, LogUnavailable):
            raise failure  # the event is at fault, not Kafka: the spool could never send it
        return failure is None


@dataclass(eq=False, repr=False)
class KafkaLog:
    """Acknowledged means durable, in Kafka or (reads only) on the local disk. `wait_timeout` is in seconds."""

    _sender: Sender
    _reads: SpooledReads
    _backlog: Backlog
    _watcher: Watcher
    _applied: Applied
    _waits: Waits
    _wait_timeout: float
    _timings: KafkaTimings
    _callers: int = 0
    _closed: bool = False
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._idle.set()

    async def start(self) -> None:
        """Connect to the brokers if they answer, and start to drain the spool."""
        await self._sender.connect()
        self._reads.keep_draining()

    async def reads(self, events: Sequence[ReadEvent]) -> None:
        with self._calling():
            await self._reads.append(events)

    async def channel_events(self, events: Sequence[AnyChannelEvent], wait: bool = True) -> Sequence[Effect | None]:
        with self._calling():
            if not wait:
                await self._append(events)
                return [None] * len(events)
            waiting = self._waits.open(len(events))
            try:
                await self._append([replace(event, ref=ref) for event, ref in zip(events, waiting.refs, strict=True)])
                if events:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(waiting.done.wait(), self._wait_timeout)
                return waiting.effects
            finally:
                self._waits.close(waiting)

    def on_announcements(self, announcements: Sequence[Announcement]) -> None:
        """Take outcomes of events that a request of this process waits for."""
        self._waits.on_announcements(announcements)

    async def settled(self, channels: Collection[str]) -> bool:
        parts = {partition_of(channel, self._sender.partitions) for channel in channels}
        try:
            async with asyncio.timeout(self._wait_timeout):
                ends = await self._watcher.ends(self._sender.topics.messages)
                while True:
                    applied = await self._applied()
                    if all(applied.get(part, 0) >= ends.get(part, 0) for part in parts):
                        return True
                    await asyncio.sleep(self._timings.applied_poll)
        except Exception as error:  # Kafka or the hot store does not answer: the caller goes on with what there is
            log.debug("cannot tell whether the log is applied", action="kafka", reason=repr(error))
        return True

    async def close(self) -> None:
        """Refuse new calls and finish those in flight. Reads that Kafka does not acknowledge soon stay in the spool."""
        self._closed = True
        self._waits.give_up()
        await self._idle.wait()
        await self._reads.flush()
        await self._sender.close()
        await self._reads.close()

    async def _append(self, events: Sequence[AnyChannelEvent]) -> None:
        records = [channel_record(event, self._sender.partitions) for event in events]
        if any(len(record.value) > MOST_BYTES for record in records):
            raise TooLarge(f"an event of the log has at most {MOST_BYTES} bytes; nothing was done")
        if self._sender.down and self._sender.busy:
            raise LogUnavailable("Kafka takes no events right now; nothing was done")
        # Edits, deletes and member changes are few, and callers wait for their effects: only messages are refused.
        added = zip(events, records, strict=True)
        self._backlog.check({record.partition for event, record in added if isinstance(event, MessageEvent)})
        await self._sender.send(self._sender.topics.messages, records)

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Count a call, so that `close` waits for it."""
        if self._closed:
            raise Stopping
        self._callers += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._callers -= 1
            if not self._callers:
                self._idle.set()
