"""Sends events to Kafka, and knows whether Kafka takes them.

Kafka is *late* after it failed to acknowledge something in time: reads then go straight to the spool. Kafka is *down*
after a send failed for good: messages are then refused at once, because nothing else could keep their order. Any
acknowledgement ends both. While either holds, one send is always in flight as a probe: the drain of the spool, or else
the next caller's send.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from readstate.domain.errors import LogUnavailable
from readstate.domain.events import DeadLetter, ReadEvent, UnsentMessage
from readstate.tasks import retrieve_exception
from readstate.telemetry import PRODUCE_FAILED, PRODUCED, UNSENT

from .backlog import Backlog
from .producer import KafkaProducer, Record
from .topics import Topics
from .wire import (
    NotAnEvent,
    channel_record,
    dead_letter_record,
    decode_channel_event,
    decode_reads,
    decode_unsents,
    read_record,
    read_records,
    unsent_record,
    unsent_records,
)

log = structlog.get_logger()


@dataclass(eq=False, repr=False)
class Sender:
    """Owns the producer. Sends nothing before the topics are checked: events could go to wrong partitions.

    `may_pack` says whether events may share records, which processes of an older version cannot read.
    """

    _producer: KafkaProducer
    topics: Topics
    partitions: int
    _topics_checked: asyncio.Event
    _backlog: Backlog
    _may_pack: Callable[[], bool]
    late: bool = False
    down: bool = False
    _sends: "set[asyncio.Task[None]]" = field(default_factory=set)

    @property
    def busy(self) -> bool:
        """Whether a send is in flight."""
        return bool(self._sends)

    async def connect(self) -> None:
        try:
            await self._producer.connect()
        except LogUnavailable as error:
            self.late = True
            log.warning("Kafka does not answer yet", action="kafka", reason=error.explained)

    def begin(self, topic: str, records: Sequence[Record]) -> "asyncio.Task[None]":
        """Send in a task of its own: a cancelled caller does not cancel the send."""
        task = asyncio.create_task(self._send(topic, records))
        self._sends.add(task)
        task.add_done_callback(self._ended)
        return task

    def begin_reads(self, events: Sequence[ReadEvent]) -> "asyncio.Task[None]":
        return self.begin(self.topics.reads, read_records(events, self.partitions, packed=self._may_pack()))

    async def send(self, topic: str, records: Sequence[Record]) -> None:
        await asyncio.shield(self.begin(topic, records))

    async def send_reads(self, events: Sequence[ReadEvent]) -> None:
        """Never to the spool."""
        await asyncio.shield(self.begin_reads(events))

    async def unsent(self, messages: Sequence[UnsentMessage]) -> None:
        await self.send(self.topics.unsent, unsent_records(messages, self.partitions, packed=self._may_pack()))
        UNSENT.inc(sum(len(one.receivers) for one in messages))

    async def dead(self, topic: str, letters: Sequence[DeadLetter]) -> None:
        await self.send(self.topics.dead(topic), [dead_letter_record(letter, self.partitions) for letter in letters])

    async def again(self, topic: str, values: Sequence[bytes]) -> None:
        """Append events again, byte for byte. Raises NotAnEvent, and appends none, if one of them cannot be decoded."""
        await self.send(topic, [self._record(topic, value) for value in values])

    def check_again(self, topic: str, value: bytes) -> None:
        """Raise NotAnEvent if `again` would refuse this value."""
        self._record(topic, value)

    async def close(self) -> None:
        await self._producer.close()
        await asyncio.gather(*self._sends, return_exceptions=True)

    def _record(self, topic: str, value: bytes) -> Record:
        match topic:
            case self.topics.reads:
                record = self._read_record(value)
            case self.topics.messages:
                record = channel_record(decode_channel_event(value), self.partitions)
            case self.topics.unsent:
                record = self._unsent_record(value)
            case _:
                raise NotAnEvent(f"{topic!r} is no topic of events")
        return record._replace(value=value)

    def _read_record(self, value: bytes) -> Record:
        """A packed record is among the dead letters if a process of an older version has put it there."""
        states = decode_reads(value)
        if not states:
            raise NotAnEvent("a packed record without states")
        record = read_record(states[0], self.partitions)
        return record if len(states) == 1 else record._replace(key=b"")

    def _unsent_record(self, value: bytes) -> Record:
        events = decode_unsents(value)
        if not events:
            raise NotAnEvent("a packed record without receivers")
        record = unsent_record(events[0], self.partitions)
        return record if len(events) == 1 else record._replace(key=b"")

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._sends.discard(task)
        retrieve_exception(task)  # the caller may have been cancelled

    async def _send(self, topic: str, records: Sequence[Record]) -> None:
        try:
            if not self._topics_checked.is_set():
                raise LogUnavailable("Kafka does not answer yet; nothing was done")
            ends = await self._producer.send(topic, records)
        except LogUnavailable as error:
            PRODUCE_FAILED.labels(topic).inc(len(records))
            if not self.down:
                log.warning("Kafka does not take events", action="kafka", topic=topic, reason=error.explained)
            self.late = self.down = True
            raise
        PRODUCED.labels(topic).inc(len(records))
        if topic == self.topics.messages:
            self._backlog.sent(ends)
        if self.down:
            log.info("Kafka takes events again", action="kafka")
        self.late = self.down = False
