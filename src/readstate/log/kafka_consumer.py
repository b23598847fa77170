"""A consumer that gives batches, and whose offsets move only when the work is done."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from ..errors import LogUnavailable
from .kafka import ANSWER_SECONDS, Faults, Options, client
from .watcher import Watcher

BREATH = 100
IDLE_SECONDS = 0.1
"""So long the first record is waited for at least: a look that finds nothing costs as much as one that does."""
T = TypeVar("T")
Place = tuple[str, int]
"""A topic and a partition of it."""

log = structlog.get_logger()


class Consumed(NamedTuple):
    """What is read."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes


class KafkaConsumer:
    """A member of a consumer group. Its offsets move only when it says so.

    How far the log goes it asks of a watcher, its own if none is given: over its own connection each question would
    wait behind a fetch, half a second for every partition.
    """

    def __init__(self, options: Options, group: str, topics: Sequence[str], watcher: Watcher | None = None) -> None:
        self._faults = Faults()
        self._watcher = watcher or Watcher(options, 0)
        self._closes_watcher = watcher is None
        self._consumer = client(
            Consumer,
            {
                "group.id": group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "cooperative-sticky",
                **options,
            },
            self._faults,
        )
        # The library wants one thread at a time, and a consumer that waits must not take one from others.
        self._thread = ThreadPoolExecutor(1, f"kafka-{group}")
        self._mine: set[Place] = set()
        self._new: set[Place] = set()
        self._kept: list[Message] = []
        self._done: dict[Place, int] = {}
        """Offsets that the group has not taken yet: it does not while it shares its partitions out anew."""
        self._coming: asyncio.Future[list[Message]] | None = None
        self._consumer.subscribe(list(topics), on_assign=self._assigned, on_revoke=self._gone, on_lost=self._gone)

    async def batch(self, most: int, seconds: float) -> list[Consumed]:
        """What has come, at most so much and after so long; partitions are given away in here and in `breathe`."""
        self._coming = self._coming or self._run(lambda: self._consume(most, seconds))
        try:
            found = await asyncio.shield(self._coming)
        except KafkaException as error:
            self._coming = None
            raise LogUnavailable(f"Kafka cannot be read: {self._faults.explain(error.args[0])}") from error
        # Not in a finally: whoever is cancelled above leaves the batch to the next call.
        self._coming = None
        return self._records(found)

    async def breathe(self) -> None:
        """Stay a member while a batch is worked on for long, and take nothing new. What comes all the same is kept."""
        try:
            await self._run(self._breathe)
        except KafkaException as error:
            raise LogUnavailable(f"Kafka cannot be read: {self._faults.explain(error.args[0])}") from error

    def assigned(self) -> frozenset[Place]:
        """The partitions that it has."""
        return frozenset(self._mine)

    def taken(self) -> frozenset[Place]:
        """Those of them that have come since the last call."""
        new, self._new = self._new, set()
        return frozenset(new)

    async def commit(self, records: Sequence[Consumed]) -> None:
        """Everything up to these is done. One that was given away meanwhile is left to its new owner.

        What the group does not take because it is being shared out is told again with the next batch, if there is any.
        """
        ends: dict[Place, int] = {}
        for record in records:
            place = (record.topic, record.partition)
            ends[place] = max(ends.get(place, 0), record.offset + 1)
        try:
            await self._run(lambda: self._commit(ends))
        except KafkaException as error:
            reason = self._faults.explain(error.args[0])
            raise LogUnavailable(f"Kafka has not taken an offset: {reason}") from error

    async def ends(self) -> dict[Place, tuple[int, int]]:
        """(committed, end) of the partitions that it has."""
        try:
            committed = await self._run(self._committed)
        except KafkaException as error:
            raise LogUnavailable(f"Kafka does not answer: {self._faults.explain(error.args[0])}") from error
        spans = await self._watcher.spans(committed)
        return {place: (max(oldest, committed[place]), end) for place, (oldest, end) in spans.items()}

    async def close(self) -> None:
        """Leave the group: others take over at once."""
        closing = self._run(self._consumer.close)
        done, _ = await asyncio.wait([closing], timeout=ANSWER_SECONDS)
        self._thread.shutdown(wait=False)
        if self._closes_watcher:
            await self._watcher.close()
        if not done:
            log.warning("a consumer can't leave its group; the group notices by itself", action="kafka")

    # ------------------------------------------------------------ in the thread

    def _run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _consume(self, most: int, seconds: float) -> list[Message]:
        if self._done:
            self._commit({})
        if self._kept:
            found, self._kept = self._kept[:most], self._kept[most:]
            return found
        if seconds >= IDLE_SECONDS:
            return self._consumer.consume(most, seconds)
        first = self._consumer.consume(1, IDLE_SECONDS)
        if not first or most == 1:
            return first
        self._kept = first  # should the next call fail, or give its partition away
        more = self._consumer.consume(most - 1, seconds)
        found, self._kept = self._kept + more, []
        return found

    def _breathe(self) -> None:
        paused = self._consumer.assignment()
        self._consumer.pause(paused)
        try:
            self._kept += self._consumer.consume(BREATH, 0)
        finally:
            self._consumer.resume(paused)  # also what was just given away: it would still be paused when it comes back

    def _commit(self, ends: dict[Place, int]) -> None:
        """Not where it is another's: the group would take it, and step back."""
        self._done |= {place: offset for place, offset in ends.items() if place in self._mine}
        if not self._done:
            return
        offsets = [TopicPartition(*place, offset) for place, offset in self._done.items()]
        try:
            for place in self._consumer.commit(offsets=offsets, asynchronous=False):
                if place.error is not None:
                    raise KafkaException(place.error)
        except KafkaException as error:
            if error.args[0].code() not in _SHARED_OUT:
                raise
        else:
            self._done.clear()

    def _committed(self) -> dict[Place, int]:
        """Of the partitions that it has; a negative number where there is none yet."""
        found = self._consumer.committed(self._consumer.assignment(), timeout=ANSWER_SECONDS)
        return {(place.topic, place.partition): place.offset for place in found}

    def _assigned(self, _: Consumer, places: list[TopicPartition]) -> None:
        came = {(place.topic, place.partition) for place in places}
        self._mine, self._new = self._mine | came, self._new | came

    def _gone(self, _: Consumer, places: list[TopicPartition]) -> None:
        """What was kept of them is left to the new owner: should they come back, it comes again."""
        gone = {(place.topic, place.partition) for place in places}
        self._mine, self._new = self._mine - gone, self._new - gone
        self._kept = [message for message in self._kept if (message.topic(), message.partition()) not in gone]
        self._done = {place: offset for place, offset in self._done.items() if place not in gone}

    def _records(self, found: list[Message]) -> list[Consumed]:
        records, failure = [], None
        for message in found:
            error = message.error()
            if error is not None:
                if not error.retriable() and error.code() != KafkaError._PARTITION_EOF:
                    failure = failure or error
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if topic is not None and partition is not None and offset is not None:
                records.append(Consumed(topic, partition, offset, _bytes(message.key()), _bytes(message.value())))
        if failure is not None and not records:  # what came beside it must not be passed over
            raise LogUnavailable(f"Kafka cannot be read: {self._faults.explain(failure)}")
        return records


_SHARED_OUT = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._NO_OFFSET,
    }
)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else b"" if value is None else str(value).encode()
