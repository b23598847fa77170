"""Topics, a producer whose acknowledgements mean durable, and the setup of librdkafka clients.

librdkafka has its own threads. The event loop polls for acknowledgements, which costs less than a thread that wakes the
loop; every call that may block runs in a thread.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from readstate.domain.errors import ConfigurationError, LogUnavailable, ReadstateError, Stopping, TooLarge
from readstate.tasks import cancel

RETENTION_MS = 2 * 24 * 3600 * 1000
MOST_REPLICAS = 3
LEAST_IN_SYNC = 2
"""`min.insync.replicas` of topics with three replicas: what is acknowledged survives the loss of any one broker."""
ANSWER_SECONDS = 10.0
DELIVERY_SECONDS = 8.0
"""`delivery.timeout.ms`. librdkafka checks for timeouts once a second: every caller has an answer in ANSWER_SECONDS."""
TRY_SECONDS = 1.0
LEADER_SECONDS = 0.01
POLL_SECONDS = 0.001
IDLE_SECONDS = 1.0
"""Between polls while nothing is in flight: librdkafka may still report errors."""
QUIET_SECONDS = 10.0
MOST_BYTES = 1_000_000
"""The largest event. A record that wraps another event (a dead letter) may be larger."""
MOST_BYTES_OF_ALL = 4 * MOST_BYTES

Options = Mapping[str, str | int | bool]
"""librdkafka options: brokers, TLS and SASL."""
T = TypeVar("T")

log = structlog.get_logger()


class Record(NamedTuple):
    """A record to write. Records with the same key keep their order."""

    key: bytes
    value: bytes
    partition: int = -1
    """-1: chosen by the key."""


# ---------------------------------------------------------------- the library


class Faults:
    """The last connection error that librdkafka reported: errors of calls often say only that they timed out."""

    def __init__(self) -> None:
        self.last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """librdkafka's `error_cb`."""
        if self.last is None or error.code() != KafkaError._ALL_BROKERS_DOWN:  # that one names no cause
            self.last = error

    @property
    def refused(self) -> bool:
        """Whether the broker refuses our identity (TLS, SASL), so that a retry is useless."""
        if self.last is None:
            return False
        # Since TLS 1.3 a broker refuses a certificate after the handshake: librdkafka sees only a lost connection.
        return self.last.code() in {KafkaError._AUTHENTICATION, KafkaError._SSL} or "SSL alert" in self.last.str()

    def explain(self, error: KafkaError) -> str:
        """The error's text, with the last connection error if that is another one."""
        if self.last is None or self.last.code() == error.code():
            return error.str()
        return f"{error.str()} ({self.last.str()})"


class _Told:
    """Forwards librdkafka's log lines to ours. librdkafka calls it like a logger of the standard library.

    While librdkafka reconnects it may repeat a line a hundred times a second: of each kind, one line per QUIET_SECONDS
    is logged, with the number of lines left out.
    """

    def __init__(self) -> None:
        self._again: dict[object, float] = {}
        self._untold = 0

    def log(self, level: int, form: str, *words: object) -> None:
        """The first word is the kind of the line."""
        now = time.monotonic()
        if now < self._again.get(words[0], 0):
            self._untold += 1
            return
        self._again[words[0]] = now + QUIET_SECONDS
        line, untold, self._untold = form % words, self._untold, 0
        log.log(min(level, logging.WARNING), "kafka's library says", action="kafka", line=line, untold=untold)


def client(kind: Callable[[dict[str, Any]], T], options: Options, faults: Faults) -> T:
    """Create a librdkafka client. Raises ConfigurationError for options that librdkafka refuses."""
    config = {"reconnect.backoff.max.ms": 1_000, **options, "logger": _Told(), "error_cb": faults}
    try:
        return kind(config)
    except KafkaException as error:
        raise ConfigurationError(f"Kafka can't be spoken to as configured: {error.args[0].str()}") from error


# ---------------------------------------------------------------- topics


def make_topics(options: Options, names: Iterable[str], partitions: int) -> None:
    """Create the topics that are missing. Raises ConfigurationError if one has another number of partitions. Blocks."""
    faults, names = Faults(), list(names)
    admin = client(AdminClient, options, faults)
    try:
        known = _metadata(admin, faults)
        replicas = min(MOST_REPLICAS, max(1, len(known.brokers)))
        missing = [name for name in names if name not in known.topics]
        wanted = [NewTopic(name, partitions, replicas, config=topic_config(replicas)) for name in missing]
        for made in admin.create_topics(wanted, operation_timeout=ANSWER_SECONDS).values() if wanted else ():
            _unless_there(made)
        for name in names:
            found = _partitions(admin, faults, name)
            if found not in {0, partitions}:  # 0: another process has just created it
                raise ConfigurationError(
                    f"topic {name!r} has {found} partitions, not {partitions}: with another number channels lose their "
                    "order. Set the number that the topic has, or use another topic_prefix"
                )
    except KafkaException as error:
        reason = faults.explain(error.args[0])
        if faults.refused:
            raise ConfigurationError(f"Kafka does not let us in: {reason}") from error
        raise LogUnavailable("Kafka does not answer", reason=reason) from error


def topic_config(replicas: int) -> dict[str, str]:
    """A replica that is not in sync never becomes leader: it would lose acknowledged records."""
    config = {
        "retention.ms": str(RETENTION_MS),
        "max.message.bytes": str(MOST_BYTES_OF_ALL),
        "unclean.leader.election.enable": "false",
    }
    return config | {"min.insync.replicas": str(LEAST_IN_SYNC)} if replicas >= MOST_REPLICAS else config


def _partitions(admin: AdminClient, faults: Faults, name: str) -> int:
    """The number of partitions of a topic.

    Waits up to TRY_SECONDS for leaders of a new topic: librdkafka blocks for seconds when asked about a partition
    without one.
    """
    end = time.monotonic() + TRY_SECONDS
    while True:
        found = _metadata(admin, faults, name).topics[name].partitions
        if (found and all(one.leader >= 0 for one in found.values())) or time.monotonic() > end:
            return len(found)
        time.sleep(LEADER_SECONDS)


def _metadata(admin: AdminClient, faults: Faults, name: str | None = None) -> Any:
    """Retry in short attempts, so that a refusal is reported at once and not after the whole timeout."""
    end = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            return admin.list_topics(name, timeout=TRY_SECONDS) if name else admin.list_topics(timeout=TRY_SECONDS)
        except KafkaException:
            admin.poll(0)
            if faults.refused or time.monotonic() > end:
                raise


def _unless_there(made: Any) -> None:
    try:
        made.result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


# ---------------------------------------------------------------- writing


class _Batch:
    """Records of one `send`."""

    def __init__(self, size: int, landed: Callable[[KafkaError | None], None]) -> None:
        self.taken = 0
        """How many records librdkafka has accepted."""
        self._left = size
        self._landed = landed
        self._error: KafkaError | None = None
        self._uncertain = False
        self.ends: dict[int, int] = {}
        """The offset after the last record in each partition."""
        self.done: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()

    @property
    def uncertain(self) -> bool:
        """Whether some of its records may be in the log despite an error."""
        return self._uncertain

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Called from the producer's poll for each record, in order within a partition."""
        self._landed(error)
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self.ends[partition] = offset + 1
        self._left -= 1
        if error is None or error.code() not in _NOT_TAKEN:
            self._uncertain = True
        self._error = self._error or error
        if self._left == 0 and not self.done.done():
            self.done.set_result(self._error)


class KafkaProducer:
    """Writes records. Acknowledged means on all in-sync replicas, once and in order. Needs a running event loop."""

    def __init__(self, options: Options) -> None:
        self._options: Options = {
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": "lz4",
            "message.max.bytes": MOST_BYTES_OF_ALL,
            "delivery.timeout.ms": int(DELIVERY_SECONDS * 1000),
            "allow.auto.create.topics": False,  # it would get the brokers' default number of partitions
            **options,
        }
        self._faults = Faults()
        self._producer: Producer | None = client(Producer, self._options, self._faults)
        self._spent: list[Producer] = []
        """Producers with a fatal error, until everything they had in flight is answered."""
        self._under_way = 0
        self._something, self._nothing = asyncio.Event(), asyncio.Event()
        self._nothing.set()
        self._polling = asyncio.create_task(self._poll())

    async def meet(self, seconds: float = ANSWER_SECONDS) -> None:
        """Fetch metadata, so that the first record does not wait for it. Raises LogUnavailable."""
        try:
            await asyncio.to_thread(self._open().list_topics, timeout=seconds)
        except KafkaException as error:
            self._open().poll(0)
            raise LogUnavailable("Kafka does not answer", reason=self._faults.explain(error.args[0])) from error

    async def send(self, topic: str, records: Sequence[Record]) -> dict[int, int]:
        """Return when all records are durable. After an error some may be durable: a retry must be harmless.

        Returns the offset after the last record in each partition.
        """
        if not records:
            return {}
        if max(len(record.key) + len(record.value) for record in records) > MOST_BYTES_OF_ALL:
            raise TooLarge("an event is larger than Kafka takes; nothing was sent")
        batch, end = _Batch(len(records), self._landed), time.monotonic() + DELIVERY_SECONDS
        self._expect(len(records))
        try:
            while (hindrance := self._put(topic, records, batch)) is not None:
                await self._overcome(hindrance, uncertain=batch.taken > 0, in_time=time.monotonic() < end)
        finally:
            self._expect(batch.taken - len(records))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                error = await asyncio.shield(batch.done)  # a cancelled caller has still sent the batch
        except TimeoutError:  # a producer with a fatal error may never answer for some records
            raise self._refusal(KafkaError(KafkaError._MSG_TIMED_OUT), uncertain=True) from None
        if error is not None:
            raise self._refusal(error, batch.uncertain)
        return batch.ends

    async def close(self, seconds: float = ANSWER_SECONDS) -> None:
        """Wait for records in flight, then stop. Records not acknowledged by then fail."""
        if self._producer is None:
            return
        await self._until_landed(seconds)
        if self._under_way:
            await asyncio.to_thread(self._producer.purge)
            await self._until_landed(TRY_SECONDS)
        await cancel(self._polling)
        last = [self._producer, *self._spent]
        self._producer, self._spent = None, []
        await asyncio.to_thread(last.clear)  # the destructor joins threads

    async def _until_landed(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._nothing.wait(), seconds)

    # ------------------------------------------------------------ how

    def _open(self) -> Producer:
        if self._producer is None:
            raise Stopping
        return self._producer

    def _expect(self, answers: int) -> None:
        self._under_way += answers
        if self._under_way:
            self._something.set()
            self._nothing.clear()
        else:
            self._nothing.set()

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

    async def _overcome(self, hindrance: BufferError | KafkaException, *, uncertain: bool, in_time: bool) -> None:
        """Wait for room in librdkafka's queue, or replace a producer with a fatal error. Raises whatever is final."""
        if isinstance(hindrance, BufferError):
            if not in_time:
                refusal = LogUnavailable("too much waits for Kafka already")
                refusal.uncertain = uncertain
                raise refusal from hindrance
            await asyncio.sleep(POLL_SECONDS)
        elif in_time and hindrance.args[0].code() == KafkaError._FATAL:
            self._renew()
        else:
            raise self._refusal(hindrance.args[0], uncertain) from hindrance

    def _refusal(self, error: KafkaError, uncertain: bool) -> ReadstateError:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return TooLarge("an event is larger than Kafka takes")
        reason = self._faults.explain(error)
        if not uncertain:
            return LogUnavailable("Kafka has not taken it", reason=reason)
        refusal = LogUnavailable(
            "Kafka has not acknowledged it. It may have been taken; safe to repeat with the same id", reason=reason
        )
        refusal.uncertain = True
        return refusal

    def _renew(self) -> None:
        """After a fatal error (such as lost sequence numbers) an idempotent producer cannot continue; a new one can."""
        spent, self._producer = self._open(), client(Producer, self._options, self._faults)
        spent.purge(blocking=False)
        self._spent.append(spent)
        log.error(
            "a producer of Kafka has failed for good and is replaced", action="kafka", reason=str(self._faults.last)
        )

    def _landed(self, error: KafkaError | None) -> None:
        self._under_way -= 1
        if error is None:
            self._faults.last = None
        if not self._under_way:
            self._nothing.set()

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
            if self._under_way:
                await asyncio.sleep(POLL_SECONDS)
            else:
                self._something.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._something.wait(), IDLE_SECONDS)


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
