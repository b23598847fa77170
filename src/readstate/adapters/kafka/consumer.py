"""A Kafka consumer that returns batches and commits offsets only when the caller says so.

It also finds two faults that librdkafka does not report: a member that stands still although records wait, and a
partition that has lost its tail (records that the group had already consumed).
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from readstate.domain.errors import LogUnavailable
from readstate.domain.events import Consumed
from readstate.timings import KafkaTimings

from .client import Faults, Options, client
from .stopping import DaemonThread, StopDeadline
from .watcher import TopicPart, Watcher

MAX_KEPT = 100
"""Records that one heartbeat takes at most."""
T = TypeVar("T")

log = structlog.get_logger()


class KafkaConsumer:
    """A member of a consumer group. Its offsets move only by `commit`.

    Ends are asked of a watcher (its own if none is given): over the consumer's own connection each question would wait
    behind a fetch, half a second per partition.
    """

    def __init__(
        self,
        options: Options,
        group: str,
        topics: Sequence[str],
        timings: KafkaTimings,
        watcher: Watcher | None = None,
        stop: StopDeadline | None = None,
    ) -> None:
        self._options, self._group, self._topics = options, group, list(topics)
        self._timings = timings
        self._stop = stop or StopDeadline(timings)
        self._faults = Faults()
        self._watcher = watcher or Watcher(options, 0, timings, self._stop)
        self._closes_watcher = watcher is None
        self._rewound: dict[TopicPart, int] = {}
        """The committed offset at which a partition was found to have lost its tail, so that it is rewound once."""
        self._coming: asyncio.Future[list[Message]] | None = None
        self._join()

    def _join(self) -> None:
        """Begin as a member that knows nothing of its partitions."""
        self._assigned: set[TopicPart] = set()
        self._new: set[TopicPart] = set()
        self._kept: list[Message] = []
        self._done: dict[TopicPart, tuple[int, int]] = {}
        """(offset, leader epoch) that the group has not taken yet: it takes none while it rebalances."""
        self._last: dict[TopicPart, tuple[int, int]] = {}
        """For newly assigned partitions: (offset, leader epoch) of the last record that is done."""
        self._cut: set[TopicPart] = set()
        """Partitions that have lost their tail: they are read again from their oldest record."""
        self._given: dict[TopicPart, int] = {}
        """The offset after the last record that `batch` has returned. The caller may have it in work for long."""
        self._idle_since: float | None = None
        self._waiting: dict[TopicPart, tuple[int, float]] = {}
        """Where records wait: the committed offset, and since when it has stood there."""
        self._stuck = False
        self._consumer = client(
            Consumer,
            {
                "group.id": self._group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "cooperative-sticky",
                **self._options,
            },
            self._faults,
        )
        # librdkafka wants one thread at a time, and a consumer that waits must not occupy a shared one.
        self._thread = DaemonThread(f"kafka-{self._group}")
        self._consumer.subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    async def batch(self, most: int, seconds: float) -> list[Consumed]:
        """Return up to `most` records after at most `seconds`, but wait at least `timings.consume` for the first one.

        Partitions are assigned and revoked only in here and in `heartbeat`.
        """
        if self._stuck:
            await self._rejoin()
        self._coming = self._coming or self._thread.run(lambda: self._consume(most, seconds))
        try:
            async with self._stop.timeout():
                found = await asyncio.shield(self._coming)
        except TimeoutError:
            raise LogUnavailable("Kafka cannot be read", reason="timed out") from None
        except KafkaException as error:
            self._coming = None
            raise self._faults.unavailable("Kafka cannot be read", error) from error
        # Not in a finally: a cancelled caller leaves the batch to the next call.
        self._coming = None
        records = self._records(found)
        self._idle_since = None if records else self._idle_since or time.monotonic()
        return records

    async def heartbeat(self) -> None:
        """Stay a member while a batch takes long. Fetches nothing new; records that still arrive wait for `batch`."""
        await self._ask(self._heartbeat, "Kafka cannot be read")

    def assigned(self) -> frozenset[TopicPart]:
        return frozenset(self._assigned)

    def taken(self) -> frozenset[TopicPart]:
        """The partitions assigned since the last call."""
        new, self._new = self._new, set()
        return frozenset(new)

    async def commit(self, records: Sequence[Consumed]) -> None:
        """Everything up to these records is done. Partitions revoked meanwhile are left to their new owner.

        The next `batch` retries offsets that the group refused during a rebalance, unless their partition was revoked.
        """
        ends = {(one.topic, one.partition): (one.offset + 1, one.epoch) for one in records}
        await self._ask(lambda: self._commit(ends), "Kafka has not taken an offset")

    async def ends(self) -> dict[TopicPart, tuple[int, int]]:
        """(committed, end) of the assigned partitions."""
        committed = await self._ask(self._committed, "Kafka does not answer")
        spans = await self._watcher.spans(committed)
        return {part: (max(oldest, committed[part]), end) for part, (oldest, end) in spans.items()}

    async def check(self, ends: Mapping[TopicPart, tuple[int, int]]) -> None:
        """Given the result of `ends`: if records wait and none arrives, the next batch rejoins the group.

        After brokers were away, librdkafka may stand still without an error, with its partitions or without any. It
        also waits silently at a committed offset beyond the end of a partition that lost its tail: that partition is
        read from its oldest record.
        """
        for part, (committed, end) in ends.items():
            if committed > end and part in self._assigned and self._rewound.get(part) != committed:
                self._rewind(part, committed)
        now = time.monotonic()
        waiting = {}
        for part, (committed, end) in (ends or await self._of_group()).items():
            if max(committed, self._given.get(part, 0)) < end:
                known = self._waiting.get(part)
                waiting[part] = known if known and known[0] == committed else (committed, now)
        self._waiting = waiting
        idle = self._idle_since
        self._stuck = idle is not None and any(
            now - max(idle, since) >= self._timings.stuck for _, since in waiting.values()
        )

    async def close(self) -> None:
        """Leave the group, so that others take over at once."""
        await self._leave()
        if self._closes_watcher:
            await self._watcher.close()

    # ------------------------------------------------------------ membership

    async def _leave(self) -> None:
        """A member that can't leave is removed from the group when its session times out."""
        closing = self._thread.run(self._consumer.close)
        self._thread.stop()
        done, _ = await asyncio.wait([closing], timeout=self._stop.left(self._timings.answer))
        if not done:
            log.warning("a consumer could not leave its group in time", action="kafka")

    async def _rejoin(self) -> None:
        """Records that were fetched and not committed are replayed."""
        log.warning(
            "records wait but none arrives; the consumer joins its group again", action="kafka", group=self._group
        )
        await self._leave()
        self._join()

    async def _of_group(self) -> dict[TopicPart, tuple[int, int]]:
        """(committed, end) of all partitions, whichever member has them."""
        found: dict[TopicPart, tuple[int, int]] = {}
        for topic in self._topics:
            committed, ends = await asyncio.gather(
                self._watcher.committed(self._group, topic), self._watcher.ends(topic)
            )
            found |= {(topic, partition): (committed[partition], end) for partition, end in ends.items()}
        return found

    # ------------------------------------------------------------ in the thread

    async def _ask(self, work: Callable[[], T], detail: str) -> T:
        """librdkafka goes on with a call that has timed out."""
        if self._thread.stopped:
            raise LogUnavailable(detail, reason="the consumer leaves its group")
        try:
            async with self._stop.timeout(self._timings.answer):
                return await self._thread.run(work)
        except TimeoutError:
            raise LogUnavailable(detail, reason="timed out") from None
        except KafkaException as error:
            raise self._faults.unavailable(detail, error) from error

    def _consume(self, most: int, seconds: float) -> list[Message]:
        if self._done:
            self._commit({})
        for part in list(self._cut):
            self._kept = [message for message in self._kept if (message.topic(), message.partition()) != part]
            self._consumer.seek(TopicPartition(*part, OFFSET_BEGINNING))
            self._cut.discard(part)
        if self._kept:
            found, self._kept = self._kept[:most], self._kept[most:]
            return found
        if seconds >= self._timings.consume:
            return self._consumer.consume(most, seconds)
        first = self._consumer.consume(1, self._timings.consume)
        if not first or most == 1:
            return first
        self._kept = first  # in case the next call fails or revokes its partition
        more = self._consumer.consume(most - 1, seconds)
        found, self._kept = self._kept + more, []
        return found

    def _heartbeat(self) -> None:
        paused = self._consumer.assignment()
        self._consumer.pause(paused)
        try:
            self._kept += self._consumer.consume(MAX_KEPT, 0)
        finally:
            self._consumer.resume(paused)  # revoked ones too: they would still be paused when they come back

    def _commit(self, ends: dict[TopicPart, tuple[int, int]]) -> None:
        """Skip partitions that another member has: the broker would accept the commit and move the group's offset back.

        From the leader epoch a later member of the group sees whether the log has lost its tail since.
        """
        self._done |= {part: end for part, end in ends.items() if part in self._assigned}
        if not self._done:
            return
        offsets = [TopicPartition(*part, offset, leader_epoch=epoch) for part, (offset, epoch) in self._done.items()]
        try:
            for part in self._consumer.commit(offsets=offsets, asynchronous=False):
                if part.error is not None:
                    raise KafkaException(part.error)
        except KafkaException as error:
            if error.args[0].code() not in _REBALANCING:
                raise
        else:
            self._done.clear()

    def _committed(self) -> dict[TopicPart, int]:
        """Of the assigned partitions; negative where the group has committed nothing yet."""
        found = self._consumer.committed(self._consumer.assignment(), timeout=self._timings.answer)
        return {(part.topic, part.partition): part.offset for part in found}

    def _on_assign(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        if consumer is not self._consumer:  # an old member that could not leave in time
            return
        came = {(part.topic, part.partition) for part in parts}
        self._assigned, self._new = self._assigned | came, self._new | came
        if parts:
            consumer.incremental_assign(self._from_last_done(consumer, parts))

    def _from_last_done(self, consumer: Consumer, parts: list[TopicPartition]) -> list[TopicPartition]:
        """Begin one record before the committed offset, to detect a lost tail.

        If that record has a later leader epoch than the commit, it is a different record: the log has lost its tail,
        and records before it may be different as well.
        """
        try:
            found = consumer.committed(parts, timeout=self._timings.answer)
        except KafkaException:
            return parts
        begin = []
        for part in found:
            epoch = part.leader_epoch
            if part.error is None and part.offset > 0 and epoch is not None and epoch >= 0:
                self._last[part.topic, part.partition] = (part.offset - 1, epoch)
                begin.append(TopicPartition(part.topic, part.partition, part.offset - 1))
            else:
                begin.append(TopicPartition(part.topic, part.partition))
        return begin

    def _on_revoke(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        """Drop what was kept of revoked partitions: the new owner gets it, and if they come back it is replayed."""
        if consumer is not self._consumer:
            return
        gone = {(part.topic, part.partition) for part in parts}
        self._assigned, self._new, self._cut = self._assigned - gone, self._new - gone, self._cut - gone
        self._last = {part: last for part, last in self._last.items() if part not in gone}
        self._given = {part: end for part, end in self._given.items() if part not in gone}
        self._kept = [message for message in self._kept if (message.topic(), message.partition()) not in gone]
        self._done = {part: end for part, end in self._done.items() if part not in gone}

    def _is_to_do(self, record: Consumed) -> bool:
        """False for the record that is already done, and for partitions that lost their tail until they are rewound."""
        part = (record.topic, record.partition)
        last = self._last.pop(part, None)
        if last is not None and record.offset == last[0]:
            if record.epoch > last[1]:
                self._rewind(part, record.offset + 1)
            return False
        return part not in self._cut

    def _rewind(self, part: TopicPart, committed: int) -> None:
        log.warning(
            "a partition has lost its tail and is read from its oldest record",
            action="kafka",
            partition=part,
            committed=committed,
        )
        self._rewound[part] = committed
        self._last.pop(part, None)
        self._given.pop(part, None)
        self._cut.add(part)

    def _records(self, found: list[Message]) -> list[Consumed]:
        records, failure = [], None
        for message in found:
            error = message.error()
            if error is not None:
                if not error.retriable() and error.code() not in _PASSING:
                    failure = failure or error
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if topic is not None and partition is not None and offset is not None:
                epoch = message.leader_epoch()
                value = _bytes(message.key()), _bytes(message.value())
                record = Consumed(topic, partition, offset, *value, -1 if epoch is None else epoch)
                if self._is_to_do(record):
                    records.append(record)
                    self._given[topic, partition] = offset + 1
        if failure is not None and not records:  # records that arrived with it must not be skipped
            raise LogUnavailable("Kafka cannot be read", reason=self._faults.explain(failure))
        return records


_PASSING = frozenset(
    {
        KafkaError._PARTITION_EOF,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
"""librdkafka reports these, looks for the group's coordinator and goes on by itself. It marks none as retriable."""

_REBALANCING = frozenset(
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
