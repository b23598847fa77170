"""A Kafka consumer that returns batches and commits offsets only when the caller says so.

It also finds two faults that librdkafka does not report: a member that stands still although records wait, and a
partition that has lost its tail (records that the group had already consumed).
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from readstate.domain.errors import LogUnavailable

from .producer import ANSWER_SECONDS, Faults, Options, client
from .watcher import Watcher

BREATH = 100
IDLE_SECONDS = 0.1
"""The least time to wait for the first record: an empty poll costs as much as one that finds records."""
PATIENCE_SECONDS = 60.0
"""If records wait this long while none arrives, librdkafka is taken to stand still."""
T = TypeVar("T")
Place = tuple[str, int]
"""(topic, partition)."""

log = structlog.get_logger()


class Consumed(NamedTuple):
    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes
    epoch: int = -1
    """The leader epoch under which the broker took the record; -1: not known."""


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
        watcher: Watcher | None = None,
        *,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._options, self._group, self._topics = options, group, list(topics)
        self._faults = Faults()
        self._watcher = watcher or Watcher(options, 0)
        self._closes_watcher = watcher is None
        self._patience = patience
        self._mine: set[Place] = set()
        self._new: set[Place] = set()
        self._kept: list[Message] = []
        self._done: dict[Place, tuple[int, int]] = {}
        """(offset, leader epoch) that the group has not taken yet: it takes none while it rebalances."""
        self._last: dict[Place, tuple[int, int]] = {}
        """For newly assigned partitions: (offset, leader epoch) of the last record that is done."""
        self._cut: set[Place] = set()
        """Partitions that have lost their tail: they are read again from their oldest record."""
        self._rewound: dict[Place, int] = {}
        """The committed offset at which a partition was found to have lost its tail, so that it is rewound once."""
        self._coming: asyncio.Future[list[Message]] | None = None
        self._idle_since: float | None = None
        self._waiting: dict[Place, tuple[int, float]] = {}
        """Where records wait: the committed offset, and since when it has stood there."""
        self._stands_still = False
        self._join()

    async def batch(self, most: int, seconds: float) -> list[Consumed]:
        """Return up to `most` records after at most `seconds`, but wait at least IDLE_SECONDS for the first one.

        Partitions are assigned and revoked only in here and in `heartbeat`.
        """
        if self._stands_still:
            await self._join_anew()
        self._coming = self._coming or self._run(lambda: self._consume(most, seconds))
        try:
            found = await asyncio.shield(self._coming)
        except KafkaException as error:
            self._coming = None
            raise LogUnavailable("Kafka cannot be read", reason=self._faults.explain(error.args[0])) from error
        # Not in a finally: a cancelled caller leaves the batch to the next call.
        self._coming = None
        self._idle_since = None if found else self._idle_since or time.monotonic()
        return self._records(found)

    async def heartbeat(self) -> None:
        """Stay a member while a batch takes long. Fetches nothing new; records that still arrive wait for `batch`."""
        try:
            await self._run(self._heartbeat)
        except KafkaException as error:
            raise LogUnavailable("Kafka cannot be read", reason=self._faults.explain(error.args[0])) from error

    def assigned(self) -> frozenset[Place]:
        return frozenset(self._mine)

    def taken(self) -> frozenset[Place]:
        """The partitions assigned since the last call."""
        new, self._new = self._new, set()
        return frozenset(new)

    async def commit(self, records: Sequence[Consumed]) -> None:
        """Everything up to these records is done. Partitions revoked meanwhile are left to their new owner.

        The next `batch` retries offsets that the group refused during a rebalance, unless their partition was revoked.
        """
        ends = {(one.topic, one.partition): (one.offset + 1, one.epoch) for one in records}
        try:
            await self._run(lambda: self._commit(ends))
        except KafkaException as error:
            reason = self._faults.explain(error.args[0])
            raise LogUnavailable("Kafka has not taken an offset", reason=reason) from error

    async def ends(self) -> dict[Place, tuple[int, int]]:
        """(committed, end) of the assigned partitions."""
        try:
            committed = await self._run(self._committed)
        except KafkaException as error:
            raise LogUnavailable("Kafka does not answer", reason=self._faults.explain(error.args[0])) from error
        spans = await self._watcher.spans(committed)
        return {place: (max(oldest, committed[place]), end) for place, (oldest, end) in spans.items()}

    async def check(self, ends: Mapping[Place, tuple[int, int]]) -> None:
        """Given the result of `ends`: if records wait and none arrives, the next batch rejoins the group.

        After brokers were away, librdkafka may stand still without an error, with its partitions or without any. It
        also waits silently at a committed offset beyond the end of a partition that lost its tail: that partition is
        read from its oldest record.
        """
        for place, (committed, end) in ends.items():
            if committed > end and place in self._mine and self._rewound.get(place) != committed:
                self._rewind(place, committed)
        now = time.monotonic()
        waiting = {}
        for place, (committed, end) in (ends or await self._of_group()).items():
            if committed < end:
                known = self._waiting.get(place)
                waiting[place] = known if known and known[0] == committed else (committed, now)
        self._waiting = waiting
        idle = self._idle_since
        self._stands_still = idle is not None and any(
            now - max(idle, since) >= self._patience for _, since in waiting.values()
        )

    async def close(self) -> None:
        """Leave the group, so that others take over at once."""
        await self._leave()
        if self._closes_watcher:
            await self._watcher.close()

    # ------------------------------------------------------------ membership

    def _join(self) -> None:
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
        self._thread = ThreadPoolExecutor(1, f"kafka-{self._group}")
        self._consumer.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._gone, on_lost=self._gone)

    async def _leave(self) -> None:
        closing = self._run(self._consumer.close)
        done, _ = await asyncio.wait([closing], timeout=ANSWER_SECONDS)
        self._thread.shutdown(wait=False)
        if not done:
            log.warning("a consumer can't leave its group; the group notices by itself", action="kafka")

    async def _join_anew(self) -> None:
        """Records that were fetched and not committed are replayed."""
        log.warning("records wait and none comes: the group is joined anew", action="kafka", group=self._group)
        await self._leave()
        self._mine, self._new, self._kept, self._done = set(), set(), [], {}
        self._last, self._cut = {}, set()
        self._idle_since, self._waiting, self._stands_still = None, {}, False
        self._join()

    async def _of_group(self) -> dict[Place, tuple[int, int]]:
        """(committed, end) of all partitions, whichever member has them."""
        found: dict[Place, tuple[int, int]] = {}
        for topic in self._topics:
            committed, ends = await asyncio.gather(
                self._watcher.committed(self._group, topic), self._watcher.ends(topic)
            )
            found |= {(topic, partition): (committed[partition], end) for partition, end in ends.items()}
        return found

    # ------------------------------------------------------------ in the thread

    def _run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _consume(self, most: int, seconds: float) -> list[Message]:
        if self._done:
            self._commit({})
        for place in list(self._cut):
            self._kept = [message for message in self._kept if (message.topic(), message.partition()) != place]
            self._consumer.seek(TopicPartition(*place, OFFSET_BEGINNING))
            self._cut.discard(place)
        if self._kept:
            found, self._kept = self._kept[:most], self._kept[most:]
            return found
        if seconds >= IDLE_SECONDS:
            return self._consumer.consume(most, seconds)
        first = self._consumer.consume(1, IDLE_SECONDS)
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
            self._kept += self._consumer.consume(BREATH, 0)
        finally:
            self._consumer.resume(paused)  # revoked ones too: they would still be paused when they come back

    def _commit(self, ends: dict[Place, tuple[int, int]]) -> None:
        """Skip partitions that another member has: the broker would accept the commit and move the group's offset back.

        From the leader epoch a later member of the group sees whether the log has lost its tail since.
        """
        self._done |= {place: end for place, end in ends.items() if place in self._mine}
        if not self._done:
            return
        offsets = [TopicPartition(*place, offset, leader_epoch=epoch) for place, (offset, epoch) in self._done.items()]
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
        """Of the assigned partitions; negative where the group has committed nothing yet."""
        found = self._consumer.committed(self._consumer.assignment(), timeout=ANSWER_SECONDS)
        return {(place.topic, place.partition): place.offset for place in found}

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        if consumer is not self._consumer:  # an old member that could not leave in time
            return
        came = {(place.topic, place.partition) for place in places}
        self._mine, self._new = self._mine | came, self._new | came
        if places:
            consumer.incremental_assign(self._from_last_done(consumer, places))

    def _from_last_done(self, consumer: Consumer, places: list[TopicPartition]) -> list[TopicPartition]:
        """Begin one record before the committed offset, to detect a lost tail.

        If that record has a later leader epoch than the commit, it is a different record: the log has lost its tail,
        and records before it may be different as well.
        """
        try:
            found = consumer.committed(places, timeout=ANSWER_SECONDS)
        except KafkaException:
            return places
        begin = []
        for place in found:
            epoch = place.leader_epoch
            if place.error is None and place.offset > 0 and epoch is not None and epoch >= 0:
                self._last[place.topic, place.partition] = (place.offset - 1, epoch)
                begin.append(TopicPartition(place.topic, place.partition, place.offset - 1))
            else:
                begin.append(TopicPartition(place.topic, place.partition))
        return begin

    def _gone(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """Drop what was kept of revoked partitions: the new owner gets it, and if they come back it is replayed."""
        if consumer is not self._consumer:
            return
        gone = {(place.topic, place.partition) for place in places}
        self._mine, self._new, self._cut = self._mine - gone, self._new - gone, self._cut - gone
        self._last = {place: last for place, last in self._last.items() if place not in gone}
        self._kept = [message for message in self._kept if (message.topic(), message.partition()) not in gone]
        self._done = {place: end for place, end in self._done.items() if place not in gone}

    def _is_to_do(self, record: Consumed) -> bool:
        """False for the record that is already done, and for partitions that lost their tail until they are rewound."""
        place = (record.topic, record.partition)
        last = self._last.pop(place, None)
        if last is not None and record.offset == last[0]:
            if record.epoch > last[1]:
                self._rewind(place, record.offset + 1)
            return False
        return place not in self._cut

    def _rewind(self, place: Place, committed: int) -> None:
        log.warning("a partition has lost its end and is read anew", action="kafka", place=place, committed=committed)
        self._rewound[place] = committed
        self._last.pop(place, None)
        self._cut.add(place)

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
                epoch = message.leader_epoch()
                value = _bytes(message.key()), _bytes(message.value())
                record = Consumed(topic, partition, offset, *value, -1 if epoch is None else epoch)
                if self._is_to_do(record):
                    records.append(record)
        if failure is not None and not records:  # records that arrived with it must not be skipped
            raise LogUnavailable("Kafka cannot be read", reason=self._faults.explain(failure))
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
