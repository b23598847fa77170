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

from .producer import ANSWER_SECONDS, TRY_SECONDS, Faults, Options, client

T = TypeVar("T")
_OLDEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_NEXT: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]


AGAIN_SECONDS = 0.1
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

    def __init__(self, options: Options, partitions: int) -> None:
        self._options = options
        self._partitions = partitions
        self._faults = Faults()
        self._admin: AdminClient | None = None
        self._doubted: AdminClient | None = None
        """A client whose caller was cancelled before the answer: it may be waiting for a broker that is gone."""
        self._making = asyncio.Lock()
        self._onlookers: dict[str, Consumer] = {}
        self._asking = asyncio.Lock()

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

    async def spans(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        """(oldest offset, next offset) by (topic, partition)."""
        wanted = [TopicPartition(*place) for place in places]
        if not wanted:
            return {}

        async def both(admin: AdminClient) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
            return await asyncio.gather(_offsets(admin, wanted, _OLDEST), _offsets(admin, wanted, _NEXT))

        oldest, ends = await self._ask(both)
        return {(place.topic, place.partition): (oldest[place], ends[place]) for place in wanted}

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
        async with self._making:
            await self._drop()
        async with self._asking:
            for onlooker in self._onlookers.values():
                await asyncio.to_thread(onlooker.close)
            self._onlookers.clear()

    # ------------------------------------------------------------ how

    async def _ask(self, question: Callable[[AdminClient], Awaitable[T]]) -> T:
        admin = await self._open()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while True:
                    try:
                        return await question(admin)
                    except KafkaException as error:
                        if error.args[0].code() not in _PASSING | _OUTDATED:
                            raise
                        if error.args[0].code() in _OUTDATED:
                            await self._forget(admin)
                            admin = await self._open()
                    await asyncio.sleep(AGAIN_SECONDS)
        except asyncio.CancelledError:
            self._doubted = admin
            raise
        except (KafkaException, TimeoutError) as error:
            await self._forget(admin)
            reason = self._faults.explain(error.args[0]) if isinstance(error, KafkaException) else "it takes too long"
            raise LogUnavailable("Kafka does not answer", reason=reason) from error

    async def _open(self) -> AdminClient:
        async with self._making:
            if self._admin is self._doubted:
                await self._drop()
            if self._admin is None:
                self._faults = faults = Faults()
                self._admin = await asyncio.to_thread(self._introduced, faults)
            return self._admin

    def _introduced(self, faults: Faults) -> AdminClient:
        """A client that has fetched metadata: asked for leaders before that, librdkafka may not answer for seconds."""
        admin = client(AdminClient, self._options, faults)
        with contextlib.suppress(KafkaException):  # the question that follows reports it
            admin.list_topics(timeout=TRY_SECONDS)
        return admin

    async def _forget(self, admin: AdminClient) -> None:
        """Drop this client, unless another caller has replaced it already."""
        async with self._making:
            if self._admin is admin:
                await self._drop()

    async def _drop(self) -> None:
        if self._admin is not None:
            last, self._admin, self._doubted = [self._admin], None, None
            await asyncio.to_thread(last.clear)  # the destructor joins threads

    async def _offsets(self, admin: AdminClient, topic: str, spec: Any) -> dict[int, int]:
        found = await _offsets(admin, [TopicPartition(topic, partition) for partition in range(self._partitions)], spec)
        return {place.partition: offset for place, offset in found.items()}

    async def _committed(self, admin: AdminClient, group: str, topic: str) -> dict[int, int]:
        places = [TopicPartition(topic, partition) for partition in range(self._partitions)]
        oldest = await self._offsets(admin, topic, _OLDEST)
        async with self._asking:
            found = await asyncio.to_thread(self._of_group, group, places)
        ends = await self._offsets(admin, topic, _NEXT)  # asked last: an intact log ends at or after every commit
        for place in found:
            if place.error is not None:
                raise KafkaException(place.error)
            if place.offset <= ends[place.partition]:  # else the log has lost its tail: all of it is read again
                oldest[place.partition] = max(oldest[place.partition], place.offset)  # negative: nothing committed
        return oldest

    def _of_group(self, group: str, places: list[TopicPartition]) -> list[TopicPartition]:
        """Ask through a consumer that never joins the group.

        librdkafka's admin client crashes on an answer from a broker that no longer coordinates the group.
        """
        onlooker = self._onlookers.get(group)
        if onlooker is None:
            options: Options = {**self._options, "group.id": group, "enable.auto.commit": False}
            onlooker = self._onlookers[group] = client(Consumer, options, self._faults)
        found: list[TopicPartition] = onlooker.committed(places, timeout=ANSWER_SECONDS)
        return found

    async def _topic_id(self, admin: AdminClient, topic: str) -> str:
        [answer] = admin.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_SECONDS).values()
        return str((await asyncio.wrap_future(answer)).topic_id)


async def _offsets(admin: AdminClient, places: Sequence[TopicPartition], spec: Any) -> dict[TopicPartition, int]:
    answers: Mapping[TopicPartition, Any] = admin.list_offsets(
        dict.fromkeys(places, spec), isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=ANSWER_SECONDS
    )
    found = await asyncio.gather(*(asyncio.wrap_future(answer) for answer in answers.values()))
    offsets = {place: result.offset for place, result in zip(answers, found, strict=True)}
    if spec in {_OLDEST, _NEXT} and min(offsets.values(), default=0) < 0:
        # Just after a broker started, librdkafka answers -1001 without an error. As an end it would say that
        # everything is done; as an end before the applied offset, that the log has lost its tail.
        raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))
    return offsets
