"""How far the log goes and how far its consumers are, as the brokers tell."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo  # type: ignore[attr-defined]

from readstate.adapters.kafka.client import Options
from readstate.adapters.kafka.consumer import KafkaConsumer
from readstate.adapters.kafka.producer import KafkaProducer, Record
from readstate.adapters.kafka.topics import make_topics
from readstate.adapters.kafka.watcher import Watcher
from readstate.domain.errors import LogUnavailable
from readstate.domain.events import Consumed
from tests.conftest import eventually
from tests.contract import kafka

IMPATIENT = replace(kafka.TIMINGS, answer=0.5)

DEADLINE = 60
PARTITIONS = 3


@pytest.fixture(scope="module")
def options() -> Options:
    return {"bootstrap.servers": kafka.mortal().url}


@pytest.fixture
def topic(options: Options) -> str:
    name = kafka.topic()
    make_topics(options, [name], PARTITIONS, kafka.TIMINGS)
    return name


@pytest.fixture
async def watcher(options: Options) -> AsyncIterator[Watcher]:
    watcher = Watcher(options, PARTITIONS, kafka.TIMINGS)
    yield watcher
    await watcher.close()


async def write(options: Options, topic: str, *partitions: int) -> None:
    producer = KafkaProducer(options, kafka.TIMINGS)
    await producer.send(topic, [Record(b"", b"%d" % partition, partition) for partition in partitions])
    await producer.close()


async def consume(options: Options, topic: str, group: str, count: int) -> list[Consumed]:
    """Read so many, and commit the first of each partition."""
    consumer = KafkaConsumer(options, group, [topic], kafka.TIMINGS)
    found: list[Consumed] = []
    async with asyncio.timeout(DEADLINE):
        while len(found) < count:
            found += await consumer.batch(100, 0.1)
    await consumer.commit([record for record in found if record.offset == 0])
    await consumer.close()
    return found


async def test_an_offset_that_the_broker_does_not_know_yet_is_asked_for_again(
    options: Options, topic: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka answers -1001 then, and no error: taken as an end, nothing would wait and nothing be left."""
    await write(options, topic, 0, 0)
    asked = 0
    list_offsets = AdminClient.list_offsets

    def unknown_at_first(self: AdminClient, *args: Any, **kwargs: Any) -> Any:
        nonlocal asked
        asked += 1
        answers = list_offsets(self, *args, **kwargs)
        if asked > 2:
            return answers
        unknown: Future[Any] = Future()
        unknown.set_result(ListOffsetsResultInfo(OFFSET_INVALID, -1, -1))
        return dict.fromkeys(answers, unknown)

    monkeypatch.setattr(AdminClient, "list_offsets", unknown_at_first)

    assert await watcher.ends(topic) == {0: 2, 1: 0, 2: 0}
    assert asked == 3
    asked = 0
    assert await watcher.lag(kafka.topic(), topic) == 2


async def test_ends_and_lag_are_told_to_whoever_is_no_member(options: Options, topic: str, watcher: Watcher) -> None:
    group = kafka.topic()
    assert await watcher.ends(topic) == {0: 0, 1: 0, 2: 0}
    assert await watcher.lag(group, topic) == 0

    await write(options, topic, 0, 0, 2, 2, 2)

    assert await watcher.ends(topic) == {0: 2, 1: 0, 2: 3}
    assert await watcher.committed(group, topic) == {0: 0, 1: 0, 2: 0}
    assert await watcher.lag(group, topic) == 5  # a group that is not there yet has everything to do

    await consume(options, topic, group, 5)

    assert await watcher.committed(group, topic) == {0: 1, 1: 0, 2: 1}
    assert await watcher.lag(group, topic) == 3


async def test_what_is_gone_from_the_log_is_not_still_to_be_done(
    options: Options, topic: str, watcher: Watcher
) -> None:
    await write(options, topic, 0, 0, 0)
    admin = AdminClient(dict(options))
    for removed in admin.delete_records([TopicPartition(topic, 0, 2)]).values():
        await asyncio.to_thread(removed.result)
    assert await watcher.committed(kafka.topic(), topic) == {0: 2, 1: 0, 2: 0}
    assert await watcher.lag(kafka.topic(), topic) == 1


async def test_a_topic_that_is_made_again_has_another_id(options: Options, topic: str, watcher: Watcher) -> None:
    other = kafka.topic()
    await asyncio.to_thread(make_topics, options, [other], PARTITIONS, kafka.TIMINGS)
    first = await watcher.topic_id(topic)
    assert first
    assert first == await watcher.topic_id(topic)
    assert first != await watcher.topic_id(other)
    with pytest.raises(LogUnavailable):
        await watcher.topic_id("there is none")


@contextmanager
def paused() -> Iterator[None]:
    kafka.mortal().pause()
    try:
        yield
    finally:
        kafka.mortal().resume()


async def refused(question: Awaitable[object]) -> bool:
    try:
        await question
    except LogUnavailable:
        return True
    return False


async def test_it_begins_anew_after_a_failure(
    options: Options, topic: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await watcher.ends(topic) == {0: 0, 1: 0, 2: 0}
    with paused(), monkeypatch.context() as impatient:
        impatient.setattr(watcher, "_timings", IMPATIENT)
        await eventually(lambda: refused(watcher.ends(topic)), "the broker stands still")
        assert await refused(watcher.lag("group", topic))

    async def answers() -> bool:
        try:
            return await watcher.ends(topic) == {0: 0, 1: 0, 2: 0}
        except LogUnavailable:
            return False

    await eventually(answers, "the broker is back")
    await write(options, topic, 1)
    assert await watcher.ends(topic) == {0: 0, 1: 1, 2: 0}
    assert await watcher.lag("nobody", topic) == 1


async def test_nobody_there() -> None:
    lonely = Watcher({"bootstrap.servers": "127.0.0.1:1"}, PARTITIONS, IMPATIENT)
    with pytest.raises(LogUnavailable, match="does not answer"):
        await lonely.ends("t")
    await lonely.close()
