"""Kafka: topics, a producer whose answers mean durable, and a consumer that gives batches.

librdkafka has threads of its own; ours only carry its answers to the event loop.
"""

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ..errors import ConfigurationError, LogUnavailable

RETENTION_MS = 2 * 24 * 3600 * 1000
MOST_REPLICAS = 3
ANSWER_SECONDS = 10.0
POLL_SECONDS = 0.1

Options = Mapping[str, str | int | bool]
"""Of librdkafka: where the brokers are, TLS and SASL."""


class Record(NamedTuple):
    """What is written. Records with one key are in one order."""

    key: bytes
    value: bytes
    partition: int = -1
    """-1: by the key."""


class Consumed(NamedTuple):
    """What is read."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes


# ---------------------------------------------------------------- topics


def make_topics(options: Options, names: Iterable[str], partitions: int) -> None:
    """Make the topics that are missing. One that is there with another number of partitions is refused. Blocks."""
    admin, names = AdminClient(dict(options)), list(names)
    try:
        known = admin.list_topics(timeout=ANSWER_SECONDS)
        replicas = min(MOST_REPLICAS, max(1, len(known.brokers)))
        config = {"retention.ms": str(RETENTION_MS)}
        missing = [name for name in names if name not in known.topics]
        wanted = [NewTopic(name, partitions, replicas, config=config) for name in missing]
        for made in admin.create_topics(wanted, operation_timeout=ANSWER_SECONDS).values() if wanted else ():
            _unless_there(made)
        for name in names:
            found = len(admin.list_topics(name, timeout=ANSWER_SECONDS).topics[name].partitions)
            if found not in {0, partitions}:  # 0: another process has just made it
                raise ConfigurationError(
                    f"topic {name!r} has {found} partitions, not {partitions}: with another number channels lose their "
                    "order. Set the number that the topic has, or use another topic_prefix"
                )
    except KafkaException as error:
        raise LogUnavailable(f"Kafka does not answer: {error.args[0].str()}") from error


def _unless_there(made: Any) -> None:
    try:
        made.result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


# ---------------------------------------------------------------- writing


class _Batch:
    """Records that are waited for together."""

    def __init__(self, size: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._left = size
        self._error: KafkaError | None = None
        self.done: asyncio.Future[None] = self._loop.create_future()

    def delivered(self, error: KafkaError | None, _: Message) -> None:
        """Called for each record, in one thread."""
        self._left -= 1
        self._error = self._error or error
        if self._left == 0 and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        if self.done.done():
            return
        if self._error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(LogUnavailable(f"Kafka has not taken it: {self._error.str()}"))
            self.done.exception()  # whoever waits gets it; perhaps nobody does any more


class KafkaProducer:
    """Writes records. What is acknowledged is on all replicas in sync, once, and in order."""

    def __init__(self, options: Options) -> None:
        self._producer = Producer(
            {
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "compression.type": "lz4",
                "delivery.timeout.ms": int(ANSWER_SECONDS * 1000),
                **options,
            }
        )
        self._stopping = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="kafka-producer", daemon=True)
        self._poller.start()

    async def send(self, topic: str, records: Sequence[Record]) -> None:
        """Return when all of them are durable. After an error some may be: sending them again must be harmless."""
        if not records:
            return
        batch = _Batch(len(records))
        for index, record in enumerate(records):
            try:
                self._producer.produce(topic, record.value, record.key, record.partition, on_delivery=batch.delivered)
            except (BufferError, KafkaException) as error:
                for _ in records[index:]:
                    batch.delivered(KafkaError(KafkaError._QUEUE_FULL), None)  # type: ignore[arg-type]
                raise LogUnavailable(f"too much waits for Kafka already: {error}") from error
        await asyncio.shield(batch.done)

    async def close(self) -> None:
        """Wait for what was sent, then stop."""
        await asyncio.to_thread(self._producer.flush, ANSWER_SECONDS)
        self._stopping.set()
        await asyncio.to_thread(self._poller.join)

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self._producer.poll(POLL_SECONDS)


# ---------------------------------------------------------------- reading


class KafkaConsumer:
    """A member of a consumer group. Its offsets move only when it says so."""

    def __init__(self, options: Options, group: str, topics: Sequence[str]) -> None:
        self._consumer = Consumer(
            {
                "group.id": group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "cooperative-sticky",
                **options,
            }
        )
        self._consumer.subscribe(list(topics))
        self._coming: asyncio.Future[list[Message]] | None = None

    async def batch(self, most: int, seconds: float) -> list[Consumed]:
        """What has come, at most so much and after so long; partitions are given away in here only."""
        self._coming = self._coming or asyncio.ensure_future(asyncio.to_thread(self._consumer.consume, most, seconds))
        found = await asyncio.shield(self._coming)  # whoever is cancelled here leaves the batch to the next call
        self._coming = None
        records, failure = [], None
        for message in found:
            error = message.error()
            if error is not None:
                if error.retriable() or error.code() == KafkaError._PARTITION_EOF:
                    continue
                failure = failure or error
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if topic is not None and partition is not None and offset is not None:
                records.append(Consumed(topic, partition, offset, _bytes(message.key()), _bytes(message.value())))
        if failure is not None and not records:  # what came beside it must not be passed over
            raise LogUnavailable(f"Kafka cannot be read: {failure.str()}")
        return records

    async def commit(self, records: Sequence[Consumed]) -> None:
        """Everything up to these is done. One that was given away meanwhile is left to its new owner."""
        ends: dict[tuple[str, int], int] = {}
        for record in records:
            place = (record.topic, record.partition)
            ends[place] = max(ends.get(place, 0), record.offset + 1)
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]
        try:
            await asyncio.to_thread(self._consumer.commit, offsets=offsets, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in _GIVEN_AWAY:
                raise LogUnavailable(f"Kafka has not taken an offset: {error.args[0].str()}") from error

    async def ends(self) -> dict[tuple[str, int], tuple[int, int]]:
        """(committed, end) of the partitions that it has."""
        return await asyncio.to_thread(self._ends)

    def _ends(self) -> dict[tuple[str, int], tuple[int, int]]:
        found = {}
        for place in self._consumer.committed(self._consumer.assignment(), timeout=ANSWER_SECONDS):
            low, high = self._consumer.get_watermark_offsets(place, timeout=ANSWER_SECONDS, cached=False) or (0, 0)
            found[place.topic, place.partition] = (max(low, place.offset), high)
        return found

    async def close(self) -> None:
        """Leave the group: others take over at once."""
        await asyncio.to_thread(self._consumer.close)


_GIVEN_AWAY = frozenset({KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS})


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else b"" if value is None else str(value).encode()
