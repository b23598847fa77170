"""Kafka: topics, a producer whose answers mean durable, and how its library is spoken to.

librdkafka has threads of its own. Its acknowledgements are fetched in the event loop, a poll at a time, which costs
less than a thread that wakes the loop up; every call that may block is made in a thread.
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
"""`min.insync.replicas` of topics with three: what is acknowledged survives the loss of any one broker."""
ANSWER_SECONDS = 10.0
DELIVERY_SECONDS = 8.0
"""The library looks for what is over once a second, so that everybody has an answer within ANSWER_SECONDS."""
TRY_SECONDS = 1.0
LEADER_SECONDS = 0.01
POLL_SECONDS = 0.001
IDLE_SECONDS = 1.0
"""Between two polls while nothing is under way: the library may have something to tell."""
QUIET_SECONDS = 10.0
MOST_BYTES = 1_000_000
"""Of an event. What holds another one (a dead letter) may be larger."""
MOST_BYTES_OF_ALL = 4 * MOST_BYTES

Options = Mapping[str, str | int | bool]
"""Of librdkafka: where the brokers are, TLS and SASL."""
T = TypeVar("T")

log = structlog.get_logger()


class Record(NamedTuple):
    """What is written. Records with one key are in one order."""

    key: bytes
    value: bytes
    partition: int = -1
    """-1: by the key."""


# ---------------------------------------------------------------- the library


class Faults:
    """What the library last told about its connections: errors of calls often say no more than that it took long."""

    def __init__(self) -> None:
        self.last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Is told of one."""
        if self.last is None or error.code() != KafkaError._ALL_BROKERS_DOWN:  # that one says only what follows
            self.last = error

    @property
    def refused(self) -> bool:
        """Whether it is about who we are, so that trying again is of no use."""
        if self.last is None:
            return False
        # Since TLS 1.3 a broker refuses a certificate after the handshake: for the library that is a connection lost.
        return self.last.code() in {KafkaError._AUTHENTICATION, KafkaError._SSL} or "SSL alert" in self.last.str()

    def explain(self, error: KafkaError) -> str:
        """What is known about an error."""
        if self.last is None or self.last.code() == error.code():
            return error.str()
        return f"{error.str()} ({self.last.str()})"


class _Told:
    """Takes what the library logs to where ours goes. It calls this as it would the standard library's logger.

    While it tries to connect it may repeat itself a hundred times a second: of one kind, a line in a while is told.
    """

    def __init__(self) -> None:
        self._again: dict[object, float] = {}
        self._untold = 0

    def log(self, level: int, form: str, *words: object) -> None:
        """One line; the first word is its kind."""
        now = time.monotonic()
        if now < self._again.get(words[0], 0):
            self._untold += 1
            return
        self._again[words[0]] = now + QUIET_SECONDS
        line, untold, self._untold = form % words, self._untold, 0
        log.log(min(level, logging.WARNING), "kafka's library says", action="kafka", line=line, untold=untold)


def client(kind: Callable[[dict[str, Any]], T], options: Options, faults: Faults) -> T:
    """A client of the library; options that it can't use are refused with the reason."""
    config = {"reconnect.backoff.max.ms": 1_000, **options, "logger": _Told(), "error_cb": faults}
    try:
        return kind(config)
    except KafkaException as error:
        raise ConfigurationError(f"Kafka can't be spoken to as configured: {error.args[0].str()}") from error


# ---------------------------------------------------------------- topics


def make_topics(options: Options, names: Iterable[str], partitions: int) -> None:
    """Make the topics that are missing. One that is there with another number of partitions is refused. Blocks."""
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
            if found not in {0, partitions}:  # 0: another process has just made it
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
    """How topics are made. A replica that is not in sync never leads: it would lose what was acknowledged."""
    config = {
        "retention.ms": str(RETENTION_MS),
        "max.message.bytes": str(MOST_BYTES_OF_ALL),
        "unclean.leader.election.enable": "false",
    }
    return config | {"min.insync.replicas": str(LEAST_IN_SYNC)} if replicas >= MOST_REPLICAS else config


def _partitions(admin: AdminClient, faults: Faults, name: str) -> int:
    """How many a topic has. One that was just made is given a moment until brokers are found that lead them: whoever
    asks the library for one without a leader waits for seconds.
    """
    end = time.monotonic() + TRY_SECONDS
    while True:
        found = _metadata(admin, faults, name).topics[name].partitions
        if (found and all(one.leader >= 0 for one in found.values())) or time.monotonic() > end:
            return len(found)
        time.sleep(LEADER_SECONDS)


def _metadata(admin: AdminClient, faults: Faults, name: str | None = None) -> Any:
    """In short tries: one that is refused is told at once, not when the time is over."""
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
    """Records that are waited for together."""

    def __init__(self, size: int, landed: Callable[[KafkaError | None], None]) -> None:
        self.taken = 0
        """Those that the library has."""
        self._left = size
        self._landed = landed
        self._error: KafkaError | None = None
        self._uncertain = False
        self.ends: dict[int, int] = {}
        """The offset after the last record in each partition."""
        self.done: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()

    @property
    def uncertain(self) -> bool:
        """Whether something of it may be in the log although there was an error."""
        return self._uncertain

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Called for each record, from the producer's poll. Records of a partition come in their order."""
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
    """Writes records. What is acknowledged is on all replicas in sync, once, and in order. Made in an event loop."""

    def __init__(self, options: Options) -> None:
        self._options: Options = {
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": "lz4",
            "message.max.bytes": MOST_BYTES_OF_ALL,
            "delivery.timeout.ms": int(DELIVERY_SECONDS * 1000),
            "allow.auto.create.topics": False,  # brokers would give it their own number of partitions
            **options,
        }
        self._faults = Faults()
        self._producer: Producer | None = client(Producer, self._options, self._faults)
        self._spent: list[Producer] = []
        """Those that have failed for good, until all that they had under way has its answer."""
        self._under_way = 0
        self._something, self._nothing = asyncio.Event(), asyncio.Event()
        self._nothing.set()
        self._polling = asyncio.create_task(self._poll())

    async def meet(self, seconds: float = ANSWER_SECONDS) -> None:
        """Learn where the partitions are, so that the first record need not wait for it. Raises LogUnavailable."""
        try:
            await asyncio.to_thread(self._open().list_topics, timeout=seconds)
        except KafkaException as error:
            self._open().poll(0)
            raise LogUnavailable("Kafka does not answer", reason=self._faults.explain(error.args[0])) from error

    async def send(self, topic: str, records: Sequence[Record]) -> dict[int, int]:
        """Return when all of them are durable. After an error some may be: sending them again must be harmless.

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
                error = await asyncio.shield(batch.done)  # whoever is cancelled here has sent it all the same
        except TimeoutError:  # a producer that fails for good may leave records without an answer
            raise self._refusal(KafkaError(KafkaError._MSG_TIMED_OUT), uncertain=True) from None
        if error is not None:
            raise self._refusal(error, batch.uncertain)
        return batch.ends

    async def close(self, seconds: float = ANSWER_SECONDS) -> None:
        """Wait for what was sent, then stop. What is not acknowledged by then fails."""
        if self._producer is None:
            return
        await self._until_landed(seconds)
        if self._under_way:
            await asyncio.to_thread(self._producer.purge)
            await self._until_landed(TRY_SECONDS)
        await cancel(self._polling)
        last = [self._producer, *self._spent]
        self._producer, self._spent = None, []
        await asyncio.to_thread(last.clear)  # its end joins threads

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
        """Hand what is left of a batch to the library; why it does not take the next one, or None."""
        produce, delivered = self._open().produce, batch.delivered
        for record in records[batch.taken :]:
            try:
                produce(topic, record.value, record.key, record.partition, on_delivery=delivered)
            except (BufferError, KafkaException) as error:
                return error
            batch.taken += 1
        return None

    async def _overcome(self, hindrance: BufferError | KafkaException, *, uncertain: bool, in_time: bool) -> None:
        """Wait for room, which comes by what is under way, or go on with another producer; raises what is final."""
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
        """An idempotent producer that has lost its place in the log can't go on; another one can."""
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
        """Fetch acknowledgements as long as some are to come."""
        while True:
            try:
                self._open().poll(0)
            except KafkaException as error:  # so the library tells of a failure for good
                self._faults(error.args[0])
                self._renew()
            for spent in self._spent:
                with contextlib.suppress(KafkaException):  # it tells once more
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
