"""The log of the cluster profile: Kafka, and a spool on the local disk for reads while Kafka is away.

The log tracks two states of Kafka. Kafka is *late* after it failed to acknowledge something in time: reads then go
straight to the spool. Kafka is *down* after a send failed for good: messages are then refused at once, because nothing
else could keep their order. Any acknowledgement ends both. While either holds, one send is always in flight as a probe:
the drain of the spool, or else the next caller's send.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence

import structlog
from msgspec.structs import replace

from readstate.domain.announcements import Announcement
from readstate.domain.errors import LogUnavailable, ReadstateError, Stopping, TooLarge
from readstate.domain.events import AnyChannelEvent, DeadLetter, MessageEvent, ReadEvent, UnsentEvent
from readstate.domain.facts import Effect
from readstate.domain.rooms import partition_of
from readstate.telemetry import KAFKA_FALLBACK, PRODUCE_FAILED, PRODUCED

from .backlog import Backlog
from .producer import MOST_BYTES, KafkaProducer, Record
from .spool import Spool
from .topics import Topics
from .waits import Waits
from .watcher import Watcher
from .wire import (
    NotAnEvent,
    channel_record,
    dead_letter_record,
    decode_channel_event,
    decode_read,
    decode_unsent,
    read_record,
    unsent_record,
)

MEET_SECONDS = 2.0
DRAIN_SECONDS = 5.0
LOOK_SECONDS = 0.02
CLOSE_SECONDS = 5.0

Applied = Callable[[], Awaitable[Mapping[int, int]]]
"""The next offset to apply in each partition of `messages`."""

log = structlog.get_logger()


class KafkaLog:
    """Owns producer and spool. Acknowledged means durable, in Kafka or (reads only) on the local disk. Times in s."""

    def __init__(
        self,
        producer: KafkaProducer,
        spool: Spool,
        topics: Topics,
        watcher: Watcher,
        backlog: Backlog,
        *,
        partitions: int,
        instance_id: str,
        produce_timeout: float,
        wait_timeout: float,
        applied: Applied,
        note_spool: Callable[[], Awaitable[None]],
        topics_seen: bool = True,
    ) -> None:
        self._producer = producer
        self._spool = spool
        self._topics = topics
        self._watcher = watcher
        self._backlog = backlog
        self._partitions = partitions
        self._produce_timeout = produce_timeout
        self._wait_timeout = wait_timeout
        self._applied = applied
        self._note_spool = note_spool
        self._waits = Waits(instance_id)
        self._late = self._down = False
        self.topics_seen = topics_seen
        """Nothing is sent before the topics' number of partitions is checked: events could go to wrong partitions."""
        self._sends: set[asyncio.Task[None]] = set()
        self._callers = 0
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Connect to the brokers if they answer, and start to drain the spool."""
        try:
            await self._producer.meet(MEET_SECONDS)
        except LogUnavailable as error:
            self._late = True
            log.warning("Kafka is not there yet", action="kafka", reason=error.explained)
        self._spool.keep_draining(self.send_reads, DRAIN_SECONDS)

    # ------------------------------------------------------------ events of channels

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
        parts = {partition_of(channel, self._partitions) for channel in channels}
        try:
            async with asyncio.timeout(self._wait_timeout):
                ends = await self._watcher.ends(self._topics.messages)
                while True:
                    applied = await self._applied()
                    if all(applied.get(part, 0) >= ends.get(part, 0) for part in parts):
                        return True
                    await asyncio.sleep(LOOK_SECONDS)
        except Exception as error:  # Kafka or the hot store does not answer: the caller goes on with what there is
            log.debug("it is not known whether the log is applied", action="kafka", reason=repr(error))
        return True

    async def _append(self, events: Sequence[AnyChannelEvent]) -> None:
        records = [channel_record(event, self._partitions) for event in events]
        if any(len(record.value) > MOST_BYTES for record in records):
            raise TooLarge(f"an event of the log has at most {MOST_BYTES} bytes; nothing was done")
        if self._down and self._sends:
            raise LogUnavailable("Kafka takes nothing right now; nothing was done")
        # Edits, deletes and member changes are few, and callers wait for their effects: only messages are refused.
        added = zip(events, records, strict=True)
        self._backlog.check({record.partition for event, record in added if isinstance(event, MessageEvent)})
        await asyncio.shield(self._begin(self._topics.messages, records))

    # ------------------------------------------------------------ reads

    async def reads(self, events: Sequence[ReadEvent]) -> None:
        with self._calling():
            if not events:
                return
            if not self._late or not self._sends:
                records = [read_record(event, self._partitions) for event in events]
                sending = self._begin(self._topics.reads, records)
                if await self._in_time(sending):
                    return
            await self._spool.append(events)
            await self._note_spool()
            KAFKA_FALLBACK.inc(len(events))

    async def _in_time(self, sending: "asyncio.Task[None]") -> bool:
        """Whether Kafka acknowledged within the produce timeout. While Kafka is late, this does not wait."""
        if not self._late:
            await asyncio.wait([sending], timeout=self._produce_timeout)
        if not sending.done():
            self._late = True
            return False
        failure = sending.exception()
        if failure is not None and not isinstance(failure, LogUnavailable):
            raise failure  # the event is at fault, not Kafka: the spool could never send it
        return failure is None

    @property
    def spooled(self) -> int:
        return self._spool.depth

    def pending_spool(self) -> AsyncIterator[list[ReadEvent]]:
        """The reads in the spool, in batches. A hot store that was emptied lacks them."""
        return self._spool.pending()

    async def send_reads(self, events: Sequence[ReadEvent]) -> None:
        """Append read states to Kafka, never to the spool."""
        await asyncio.shield(
            self._begin(self._topics.reads, [read_record(event, self._partitions) for event in events])
        )

    # ------------------------------------------------------------ events of workers

    async def unsent(self, events: Sequence[UnsentEvent]) -> None:
        records = [unsent_record(event, self._partitions) for event in events]
        await asyncio.shield(self._begin(self._topics.unsent, records))

    async def dead(self, topic: str, letters: Sequence[DeadLetter]) -> None:
        records = [dead_letter_record(letter, self._partitions) for letter in letters]
        await asyncio.shield(self._begin(self._topics.dead(topic), records))

    async def again(self, topic: str, values: Sequence[bytes]) -> None:
        """Append events again, byte for byte. Raises NotAnEvent, and appends none, if one of them cannot be decoded."""
        await asyncio.shield(self._begin(topic, [self._record(topic, value) for value in values]))

    def check_again(self, topic: str, value: bytes) -> None:
        """Raise NotAnEvent if `again` would refuse this value."""
        self._record(topic, value)

    def _record(self, topic: str, value: bytes) -> Record:
        match topic:
            case self._topics.reads:
                record = read_record(decode_read(value), self._partitions)
            case self._topics.messages:
                record = channel_record(decode_channel_event(value), self._partitions)
            case self._topics.unsent:
                record = unsent_record(decode_unsent(value), self._partitions)
            case _:
                raise NotAnEvent(f"{topic!r} is no topic of events")
        return record._replace(value=value)

    # ------------------------------------------------------------ sending

    def _begin(self, topic: str, records: Sequence[Record]) -> "asyncio.Task[None]":
        """Send in a task of its own: a cancelled caller does not cancel the send."""
        task = asyncio.create_task(self._send(topic, records))
        self._sends.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._sends.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the caller may have been cancelled

    async def _send(self, topic: str, records: Sequence[Record]) -> None:
        try:
            if not self.topics_seen:
                raise LogUnavailable("Kafka is not there yet; nothing was done")
            ends = await self._producer.send(topic, records)
        except LogUnavailable as error:
            PRODUCE_FAILED.labels(topic).inc(len(records))
            if not self._down:
                log.warning("Kafka does not take events", action="kafka", topic=topic, reason=error.explained)
            self._late = self._down = True
            raise
        PRODUCED.labels(topic).inc(len(records))
        if topic == self._topics.messages:
            self._backlog.sent(ends)
        if self._down:
            log.info("Kafka takes events again", action="kafka")
        self._late = self._down = False

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

    async def close(self) -> None:
        """Refuse new calls and finish those in flight. Reads that Kafka does not acknowledge soon stay in the spool."""
        self._closed = True
        self._waits.give_up()
        await self._idle.wait()
        await self._spool.stop_draining()
        if self._spool.depth and not self._late:
            with contextlib.suppress(ReadstateError, TimeoutError):
                await asyncio.wait_for(self._spool.drain(self.send_reads), CLOSE_SECONDS)
        await self._note_spool()  # drops the note if the spool is empty, else extends it
        await self._producer.close(CLOSE_SECONDS)
        await asyncio.gather(*self._sends, return_exceptions=True)
        await self._spool.close()
