"""A producer whose acknowledgements mean durable.

librdkafka has its own threads. The event loop polls for acknowledgements, which costs less than a thread that wakes the
loop; every call that may block runs in a thread.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from readstate.domain.errors import LogUnavailable, ReadstateError, Stopping, TooLarge
from readstate.tasks import cancel
from readstate.timings import KafkaTimings

from .client import Faults, Options, client
from .stopping import StopDeadline, in_daemon_thread
from .topics import MOST_BYTES_OF_ALL

log = structlog.get_logger()


class Record(NamedTuple):
    """A record to write. Records with the same key keep their order."""

    key: bytes
    value: bytes
    partition: int = -1
    """-1: chosen by the key."""


class _Batch:
    """Records of one `send`."""

    def __init__(self, size: int, answered: Callable[[KafkaError | None], None]) -> None:
        self.taken = 0
        """How many records librdkafka has accepted."""
        self._left = size
        self._answered = answered
        self._error: KafkaError | None = None
        self.uncertain = False
        """Whether some of its records may be in the log despite an error."""
        self.ends: dict[int, int] = {}
        """The offset after the last record in each partition."""
        self.done: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Called from the producer's poll for each record, in order within a partition."""
        self._answered(error)
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self.ends[partition] = offset + 1
        self._left -= 1
        if error is None or error.code() not in _NOT_TAKEN:
            self.uncertain = True
        self._error = self._error or error
        if self._left == 0 and not self.done.done():
            self.done.set_result(self._error)


class KafkaProducer:
    """Writes records. Acknowledged means on all in-sync replicas, once and in order. Needs a running event loop."""

    def __init__(self, options: Options, timings: KafkaTimings, stop: StopDeadline | None = None) -> None:
        self._timings = timings
        self._stop = stop or StopDeadline(timings)
        self._options: Options = {
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": "0.5",  # callers gather their records: more would only delay the answer
            "compression.type": "lz4",
            "message.max.bytes": MOST_BYTES_OF_ALL,
            "delivery.timeout.ms": int(timings.delivery * 1000),
            "allow.auto.create.topics": False,  # it would get the brokers' default number of partitions
            **options,
        }
        self._faults = Faults()
        self._producer: Producer | None = client(Producer, self._options, self._faults)
        self._spent: list[Producer] = []
        """Producers with a fatal error, until everything they had in flight is answered."""
        self._in_flight = 0
        """Records that librdkafka has, or is about to get, and has not answered for."""
        self._some_in_flight, self._none_in_flight = asyncio.Event(), asyncio.Event()
        self._none_in_flight.set()
        self._polling = asyncio.create_task(self._poll())

    async def connect(self) -> None:
        """Fetch metadata, so that the first record does not wait for it. Raises LogUnavailable."""
        try:
            await asyncio.to_thread(self._open().list_topics, timeout=self._timings.connect)
        except KafkaException as error:
            self._open().poll(0)
            raise self._faults.unavailable("Kafka does not answer", error) from error

    async def send(self, topic: str, records: Sequence[Record]) -> dict[int, int]:
        """Return when all records are durable. After an error some may be durable: a retry must be harmless.

        Returns the offset after the last record in each partition.
        """
        if not records:
            return {}
        if max(len(record.key) + len(record.value) for record in records) > MOST_BYTES_OF_ALL:
            raise TooLarge("an event is larger than Kafka takes; nothing was sent")
        batch, end = _Batch(len(records), self._answered), time.monotonic() + self._timings.delivery
        self._expect(len(records))
        try:
            while (refusal := self._put(topic, records, batch)) is not None:
                in_time = time.monotonic() < end and not self._stop.begun
                await self._recover(refusal, uncertain=batch.taken > 0, in_time=in_time)
        finally:
            self._expect(batch.taken - len(records))
        try:
            async with self._stop.timeout(self._timings.answer):
                error = await asyncio.shield(batch.done)  # a cancelled caller has still sent the batch
        except TimeoutError:  # a producer with a fatal error may never answer for some records
            raise self._error(KafkaError(KafkaError._MSG_TIMED_OUT), uncertain=True) from None
        if error is not None:
            raise self._error(error, batch.uncertain)
        return batch.ends

    async def close(self) -> None:
        """Wait for records in flight, then stop. Records not acknowledged by then fail."""
        if self._producer is None:
            return
        await self._until_answered(self._stop.left(self._timings.close))
        if self._in_flight:
            await asyncio.to_thread(self._producer.purge)
            await self._until_answered(self._timings.attempt)
        await cancel(self._polling)
        last = [self._producer, *self._spent]
        self._producer, self._spent = None, []
        dropped = in_daemon_thread(last.clear)  # the destructor joins threads
        await asyncio.wait([dropped], timeout=self._stop.left(self._timings.close))

    async def _until_answered(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._none_in_flight.wait(), seconds)

    def _open(self) -> Producer:
        if self._producer is None:
            raise Stopping
        return self._producer

    def _expect(self, answers: int) -> None:
        self._in_flight += answers
        if self._in_flight:
            self._some_in_flight.set()
            self._none_in_flight.clear()
        else:
            self._none_in_flight.set()

    def _put(self, topic: str, records: Sequence[Record], batch: _Batch) -> BufferError | KafkaException | None:
        """Hand the rest of a batch to librdkafka; returns why it refuses the next record, or None."""
        produce, delivered = self._open().produce, batch.delivered
        for record in records[batch.taken :]:
            try:
                produce(topic, record.value, record.key, record.partition, on_delivery=delivered)
            except (BufferError, KafkaException) as error:
                return error
            batch.taken += 1
        return None

    async def _recover(self, refusal: BufferError | KafkaException, *, uncertain: bool, in_time: bool) -> None:
        """Wait for room in librdkafka's queue, or replace a producer with a fatal error. Raises whatever is final."""
        if isinstance(refusal, BufferError):
            if not in_time:
                raise LogUnavailable("too many events wait for Kafka") from refusal
            await asyncio.sleep(self._timings.poll)
        elif in_time and refusal.args[0].code() == KafkaError._FATAL:
            self._renew()
        else:
            raise self._error(refusal.args[0], uncertain) from refusal

    def _error(self, error: KafkaError, uncertain: bool) -> ReadstateError:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return TooLarge("an event is larger than Kafka takes")
        detail = "Kafka has not taken it"
        if uncertain:
            detail = "Kafka has not acknowledged it. It may have been taken; safe to repeat with the same id"
        return LogUnavailable(detail, reason=self._faults.explain(error))

    def _renew(self) -> None:
        """After a fatal error (such as lost sequence numbers) an idempotent producer cannot continue; a new one can."""
        spent, self._producer = self._open(), client(Producer, self._options, self._faults)
        spent.purge(blocking=False)
        self._spent.append(spent)
        log.error("a Kafka producer has a fatal error and is replaced", action="kafka", reason=str(self._faults.last))

    def _answered(self, error: KafkaError | None) -> None:
        self._expect(-1)
        if error is None:
            self._faults.last = None

    async def _poll(self) -> None:
        while True:
            try:
                self._open().poll(0)
            except KafkaException as error:  # librdkafka reports a fatal error here
                self._faults(error.args[0])
                self._renew()
            for spent in self._spent:
                with contextlib.suppress(KafkaException):  # the same fatal error again
                    spent.poll(0)
            self._spent = [spent for spent in self._spent if len(spent)]
            if self._in_flight:
                await asyncio.sleep(self._timings.poll)
            else:
                self._some_in_flight.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._some_in_flight.wait(), self._timings.idle_poll)


_NOT_TAKEN = frozenset(
    {
        KafkaError._PURGE_QUEUE,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Errors of records that are certainly not in the log."""
