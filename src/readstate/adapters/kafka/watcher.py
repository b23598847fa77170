"""Ends of partitions and committed offsets of groups, asked of the brokers without joining any group."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from readstate.domain.errors import LogUnavailable
from readstate.timings import KafkaTimings

from .client import Faults, Options, client
from .stopping import StopDeadline, in_daemon_thread

T = TypeVar("T")
TopicPart = tuple[str, int]
"""(topic, partition)."""
_OLDEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_NEXT: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]

_PASSING = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,  # a new leader does not know its followers' offsets yet
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError._NOENT,  # "no leaders found"
    }
)
"""The brokers have not agreed yet on who leads or coordinates, as after a topic was made: retry."""
_OUTDATED = frozenset({KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH})
"""Leaders changed since the client fetched its metadata: retry with a new client."""


class Watcher:
    """Asks with one request per broker. After a failure it makes a new client: the old one's metadata may be stale."""

    def __init__(
        self, options: Options, partitions: int, timings: KafkaTimings, stop: StopDeadline | None = None
    ) -> None:
        self._options = options
        self._partitions = partitions
        self._timings = timings
        self._stop = stop or StopDeadline(timings)
        self._faults = Faults()
        """Of all its clients; cleared with each new admin client."""
        self._admin: AdminClient | None = None
        self._cancelled: AdminClient | None = None
        """A client whose caller was cancelled before the answer: it may be waiting for a broker that is gone."""
        self._opening = asyncio.Lock()
        self._group_readers: dict[str, Consumer] = {}
        """By group: consumers that never join it and only read its committed offsets."""
        self._reading_groups = asyncio.Lock()
        self._reading: asyncio.Future[list[TopicPartition]] | None = None
        """The last question to a group reader."""

    async def ends(self, topic: str) -> dict[int, int]:
        """The next offset of each partition."""
        return await self._ask(lambda admin: self._offsets(admin, topic, _NEXT))

    async def ends_before(self, topic: str, seconds: float) -> dict[int, int]:
        """The first offset of each partition whose record is at most this old; none where all records are older.

        Goes by record timestamps, which come from the producers' clocks.
        """
        since = OffsetSpec.for_timestamp(int((time.time() - seconds) * 1000))
        found = await self._ask(lambda admin: self._offsets(admin, topic, since))
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    async def spans(self, parts: Collection[TopicPart]) -> dict[TopicPart, tuple[int, int]]:
        """(oldest offset, next offset) of each partition."""
        wanted = [TopicPartition(*part) for part in parts]
        if not wanted:
            return {}

        async def both(admin: AdminClient) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
            return await asyncio.gather(self._list(admin, wanted, _OLDEST), self._list(admin, wanted, _NEXT))

        oldest, ends = await self._ask(both)
        return {(part.topic, part.partition): (oldest[part], ends[part]) for part in wanted}

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        """The next offset that a group has to process, per partition; the oldest one if it has committed nothing."""
        return await self._ask(lambda admin: self._committed(admin, group, topic))

    async def lag(self, group: str, topic: str) -> int:
        done = await self.committed(group, topic)
        ends = await self.ends(topic)
        return sum(max(0, end - done[partition]) for partition, end in ends.items())

    async def topic_id(self, topic: str) -> str:
        """Distinguishes a topic from an earlier one of the same name."""
        return await self._ask(lambda admin: self._topic_id(admin, topic))

    async def close(self) -> None:
        async with self._opening:
            await self._drop()
        async with self._reading_groups:
            if self._reading is not None:
                await asyncio.wait([self._reading], timeout=self._stop.left(self._timings.answer))
                if not self._reading.done():  # a reader in use can't be closed; it ends with the process
                    return
            for reader in self._group_readers.values():
                await asyncio.wait([in_daemon_thread(reader.close)], timeout=self._stop.left(self._timings.answer))
            self._group_readers.clear()

    async def _ask(self, question: Callable[[AdminClient], Awaitable[T]]) -> T:
        admin = await self._open()
        try:
            async with self._stop.timeout(self._timings.answer):
                while True:
                    try:
                        return await question(admin)
                    except KafkaException as error:
                        if error.args[0].code() not in _PASSING | _OUTDATED:
                            raise
                        if error.args[0].code() in _OUTDATED:
                            await self._forget(admin)
                            admin = await self._open()
                    await asyncio.sleep(self._timings.retry)
        except asyncio.CancelledError:
            self._cancelled = admin
            raise
        except (KafkaException, TimeoutError) as error:
            await self._forget(admin)
            reason = self._faults.explain(error.args[0]) if isinstance(error, KafkaException) else "timed out"
            raise LogUnavailable("Kafka does not answer", reason=reason) from error

    async def _open(self) -> AdminClient:
        async with self._opening:
            if self._admin is self._cancelled:
                await self._drop()
            if self._admin is None:
                self._faults.last = None
                self._admin = await in_daemon_thread(self._connected)
            return self._admin

    def _connected(self) -> AdminClient:
        """A client that has fetched metadata: asked for leaders before that, librdkafka may not answer for seconds."""
        admin = client(AdminClient, self._options, self._faults)
        with contextlib.suppress(KafkaException):  # the question that follows reports it
            admin.list_topics(timeout=self._timings.attempt)
        return admin

    async def _forget(self, admin: AdminClient) -> None:
        """Drop this client, unless another caller has replaced it already."""
        async with self._opening:
            if self._admin is admin:
                await self._drop()

    async def _drop(self) -> None:
        if self._admin is not None:
            last, self._admin, self._cancelled = [self._admin], None, None
            dropped = in_daemon_thread(last.clear)  # the destructor joins threads
            await asyncio.wait([dropped], timeout=self._stop.left(self._timings.answer))

    def _parts(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, partition) for partition in range(self._partitions)]

    async def _offsets(self, admin: AdminClient, topic: str, spec: Any) -> dict[int, int]:
        found = await self._list(admin, self._parts(topic), spec)
        return {part.partition: offset for part, offset in found.items()}

    async def _committed(self, admin: AdminClient, group: str, topic: str) -> dict[int, int]:
        oldest = await self._offsets(admin, topic, _OLDEST)
        async with self._reading_groups:
            if self._reading is not None:  # its caller was cancelled
                await asyncio.wait([self._reading])
            self._reading = in_daemon_thread(lambda: self._of_group(group, self._parts(topic)))
            found = await asyncio.shield(self._reading)
        ends = await self._offsets(admin, topic, _NEXT)  # asked last: an intact log ends at or after every commit
        for part in found:
            if part.error is not None:
                raise KafkaException(part.error)
            if part.offset <= ends[part.partition]:  # else the log has lost its tail: all of it is read again
                oldest[part.partition] = max(oldest[part.partition], part.offset)  # negative: nothing committed
        return oldest

    def _of_group(self, group: str, parts: list[TopicPartition]) -> list[TopicPartition]:
        """Ask through a consumer: librdkafka's admin client crashes if the broker no longer coordinates the group."""
        reader = self._group_readers.get(group)
        if reader is None:
            options: Options = {**self._options, "group.id": group, "enable.auto.commit": False}
            reader = self._group_readers[group] = client(Consumer, options, self._faults)
        found: list[TopicPartition] = reader.committed(parts, timeout=self._timings.answer)
        return found

    async def _topic_id(self, admin: AdminClient, topic: str) -> str:
        [answer] = admin.describe_topics(TopicCollection([topic]), request_timeout=self._timings.answer).values()
        return str((await asyncio.wrap_future(answer)).topic_id)

    async def _list(self, admin: AdminClient, parts: Sequence[TopicPartition], spec: Any) -> dict[TopicPartition, int]:
        answers: Mapping[TopicPartition, Any] = admin.list_offsets(
            dict.fromkeys(parts, spec),
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=self._timings.answer,
        )
        found = await asyncio.gather(*(asyncio.wrap_future(answer) for answer in answers.values()))
        offsets = {part: result.offset for part, result in zip(answers, found, strict=True)}
        if spec in {_OLDEST, _NEXT} and min(offsets.values(), default=0) < 0:
            # Just after a broker started, librdkafka answers -1001 without an error. As an end it would say that
            # everything is done; as an end before the applied offset, that the log has lost its tail.
            raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))
        return offsets
