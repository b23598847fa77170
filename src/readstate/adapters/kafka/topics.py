"""The topics: their names and consumer groups, how they are created, and how they are checked."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from readstate.domain.errors import ConfigurationError, LogUnavailable
from readstate.timings import KafkaTimings

from .client import Faults, Options, client
from .stopping import StopDeadline, in_daemon_thread

READS, MESSAGES, UNSENT = "read-receipts", "messages", "ON_MSG_UNSENT"
DEAD = "-dlt"
RETENTION_MS = 2 * 24 * 3600 * 1000
MOST_REPLICAS = 3
LEAST_IN_SYNC = 2
"""`min.insync.replicas` of topics with three replicas: what is acknowledged survives the loss of any one broker."""
MOST_BYTES = 1_000_000
"""The largest event. A record that wraps another event (a dead letter) may be larger."""
MOST_BYTES_OF_ALL = 4 * MOST_BYTES
LEADER_SECONDS = 0.01

log = structlog.get_logger()


class Topics:
    """Names of topics and consumer groups, with `topic_prefix` for brokers that several deployments share."""

    def __init__(self, prefix: str = "") -> None:
        self.reads = prefix + READS
        """Read states. Key: user and channel."""
        self.messages = prefix + MESSAGES
        """Everything that changes a channel. Key: the channel."""
        self.unsent = prefix + UNSENT
        """Messages whose receiver was away. Key: the receiver."""
        self.all = self.reads, self.messages, self.unsent, self.dead(self.reads), self.dead(self.messages)
        """All topics that must exist."""
        self.persister = prefix + "read-receipt-persister"
        self.writer = prefix + "message-writer"
        self.status_update = prefix + "status-update"
        self.dead_letters = prefix + "dead-letters"

    def dead(self, topic: str) -> str:
        return topic + DEAD


class TopicCheck:
    """Creates missing topics, and checks the number of partitions before anything is sent or consumed.

    With another number of partitions, events would go to wrong partitions and channels would lose their order.
    """

    def __init__(
        self, options: Options, topics: Topics, partitions: int, timings: KafkaTimings, stop: StopDeadline
    ) -> None:
        self._options = options
        self._stop = stop
        self._topics = topics
        self._partitions = partitions
        self._timings = timings
        self.done = asyncio.Event()

    async def attempt(self) -> None:
        """Leaves `done` unset if Kafka is unavailable. Raises ConfigurationError if it does not match the settings."""
        names, partitions = self._topics.all, self._partitions
        try:
            async with self._stop.timeout():
                await in_daemon_thread(lambda: make_topics(self._options, names, partitions, self._timings))
        except TimeoutError:
            log.warning("the topics are not checked yet", action="kafka", reason="the process stops")
        except LogUnavailable as error:
            log.warning("the topics are not checked yet", action="kafka", reason=error.explained)
        else:
            self.done.set()

    async def retry(self) -> None:
        while not self.done.is_set():
            await asyncio.sleep(self._timings.topics)
            await self.attempt()


def make_topics(options: Options, names: Iterable[str], partitions: int, timings: KafkaTimings) -> None:
    """Create the topics that are missing. Raises ConfigurationError if one has another number of partitions. Blocks."""
    faults, names = Faults(), list(names)
    admin = client(AdminClient, options, faults)
    try:
        known = _metadata(admin, faults, timings)
        replicas = min(MOST_REPLICAS, max(1, len(known.brokers)))
        missing = [name for name in names if name not in known.topics]
        wanted = [NewTopic(name, partitions, replicas, config=topic_config(replicas)) for name in missing]
        for made in admin.create_topics(wanted, operation_timeout=timings.answer).values() if wanted else ():
            _unless_there(made)
        for name in names:
            found = _partitions(admin, faults, timings, name)
            if found not in {0, partitions}:  # 0: another process has just created it
                raise ConfigurationError(
                    f"topic {name!r} has {found} partitions, not {partitions}: with another number channels lose their "
                    "order. Set the number that the topic has, or use another topic_prefix"
                )
    except KafkaException as error:
        if faults.refused:
            raise ConfigurationError(f"Kafka refuses the connection: {faults.explain(error.args[0])}") from error
        raise faults.unavailable("Kafka does not answer", error) from error


def topic_config(replicas: int) -> dict[str, str]:
    """A replica that is not in sync never becomes leader: it would lose acknowledged records."""
    config = {
        "retention.ms": str(RETENTION_MS),
        "max.message.bytes": str(MOST_BYTES_OF_ALL),
        "unclean.leader.election.enable": "false",
    }
    return config | {"min.insync.replicas": str(LEAST_IN_SYNC)} if replicas >= MOST_REPLICAS else config


def _partitions(admin: AdminClient, faults: Faults, timings: KafkaTimings, name: str) -> int:
    """The number of partitions of a topic.

    Waits a moment for leaders of a new topic: librdkafka blocks for seconds when asked about a partition without one.
    """
    end = time.monotonic() + timings.attempt
    while True:
        found = _metadata(admin, faults, timings, name).topics[name].partitions
        if (found and all(one.leader >= 0 for one in found.values())) or time.monotonic() > end:
            return len(found)
        time.sleep(LEADER_SECONDS)


def _metadata(admin: AdminClient, faults: Faults, timings: KafkaTimings, name: str | None = None) -> Any:
    """Retry in short attempts, so that a refusal is reported at once and not after the whole timeout."""
    end = time.monotonic() + timings.answer
    while True:
        try:
            return admin.list_topics(name, timeout=timings.attempt)
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
