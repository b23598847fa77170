"""The log in Kafka: acknowledged is durable, in order, and offsets move only when the work is done."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient

from readstate.adapters.kafka.client import Options
from readstate.adapters.kafka.consumer import KafkaConsumer
from readstate.adapters.kafka.producer import KafkaProducer, Record
from readstate.adapters.kafka.topics import make_topics
from readstate.adapters.kafka.watcher import Watcher
from readstate.domain.errors import ConfigurationError, LogUnavailable
from readstate.domain.events import Consumed
from tests.conftest import eventually
from tests.contract import kafka

DEADLINE = 90


@pytest.fixture(scope="module")
def options() -> Options:
    return {"bootstrap.servers": kafka.server().url}


@pytest.fixture
def topic(options: Options) -> str:
    name = kafka.topic()
    make_topics(options, [name], 3, kafka.TIMINGS)
    return name


@asynccontextmanager
async def producing(options: Options) -> AsyncIterator[KafkaProducer]:
    producer = KafkaProducer(options, kafka.TIMINGS)
    try:
        yield producer
    finally:
        await producer.close()


@asynccontextmanager
async def consuming(options: Options, topic: str, group: str = "readers") -> AsyncIterator[KafkaConsumer]:
    consumer = KafkaConsumer(options, group, [topic], kafka.TIMINGS)
    try:
        yield consumer
    finally:
        await consumer.close()


async def read(consumer: KafkaConsumer, count: int) -> list[Consumed]:
    """So many records, however they come."""
    found: list[Consumed] = []
    async with asyncio.timeout(DEADLINE):
        while len(found) < count:
            found += await consumer.batch(500, 0.2)
    return found


def values(records: list[Consumed]) -> list[bytes]:
    return [record.value for record in records]


async def test_what_is_acknowledged_is_read_in_order_by_key(options: Options, topic: str) -> None:
    async with producing(options) as producer, consuming(options, topic) as consumer:
        keys = [b"one", b"two", b"three"]
        records = [Record(key, b"%d" % number) for number in range(300) for key in keys]
        await asyncio.gather(*(producer.send(topic, records[start : start + 90]) for start in range(0, 900, 90)))
        found = await read(consumer, 900)
        for key in keys:
            assert [int(record.value) for record in found if record.key == key] == list(range(300))


async def test_a_record_goes_to_the_partition_that_it_names(options: Options, topic: str) -> None:
    async with producing(options) as producer, consuming(options, topic) as consumer:
        await producer.send(topic, [Record(b"key", b"%d" % partition, partition) for partition in (2, 0, 1, 2)])
        assert {(r.partition, r.value) for r in await read(consumer, 4)} == {(0, b"0"), (1, b"1"), (2, b"2")}


async def test_what_was_not_committed_comes_again(options: Options, topic: str) -> None:
    async with producing(options) as producer:
        await producer.send(topic, [Record(b"key", b"%d" % number) for number in range(6)])
    async with consuming(options, topic) as consumer:
        found = await read(consumer, 6)
        await consumer.commit(found[:4])
        assert sorted(await consumer.ends())[0][0] == topic
        assert sorted((await consumer.ends()).values())[-1] == (4, 6)
    async with consuming(options, topic) as successor:
        assert values(await read(successor, 2)) == [b"4", b"5"]


async def test_members_of_a_group_share_the_work_and_take_over(options: Options, topic: str) -> None:
    async with producing(options) as producer, consuming(options, topic) as stays:
        async with consuming(options, topic) as leaves:

            async def both_have_work() -> None:
                while not (await stays.ends() and await leaves.ends()):
                    await asyncio.gather(stays.batch(1, 0.2), leaves.batch(1, 0.2))

            await asyncio.wait_for(both_have_work(), DEADLINE)
        await producer.send(topic, [Record(b"", b"%d" % partition, partition) for partition in range(3)])
        assert set(values(await read(stays, 3))) == {b"0", b"1", b"2"}


async def test_topics_are_made_once_and_never_change_their_number_of_partitions(options: Options, topic: str) -> None:
    make_topics(options, [topic], 3, kafka.TIMINGS)
    with pytest.raises(ConfigurationError, match="3 partitions, not 4"):
        make_topics(options, [topic], 4, kafka.TIMINGS)


async def test_a_broker_that_is_away_refuses_and_then_goes_on() -> None:
    own = await asyncio.to_thread(kafka.mortal)
    options: Options = {"bootstrap.servers": own.url, "delivery.timeout.ms": 1000, "request.timeout.ms": 900}
    topic = kafka.topic()
    await asyncio.to_thread(make_topics, options, [topic], 1, kafka.TIMINGS)
    async with producing(options) as producer:

        async def insist(value: bytes) -> dict[int, int]:
            while True:
                try:
                    return await producer.send(topic, [Record(b"k", value)])
                except LogUnavailable:
                    continue

        await asyncio.wait_for(insist(b"before"), DEADLINE)
        await asyncio.to_thread(own.kill)
        with pytest.raises(LogUnavailable):
            await producer.send(topic, [Record(b"k", b"lost")])
        await asyncio.to_thread(own.start)
        await asyncio.wait_for(insist(b"after"), DEADLINE)
    async with consuming(options, topic) as consumer:
        found = values(await read(consumer, 2))
    assert found[0] == b"before"
    assert found[-1] == b"after"


async def test_a_topic_that_is_missing_is_not_made_by_whoever_writes_to_it(options: Options) -> None:
    """Brokers would give it a number of partitions of their own. It is waited for, as a broker that is away."""
    missing = kafka.topic()
    async with producing({**options, "delivery.timeout.ms": 1000, "request.timeout.ms": 900}) as producer:
        with pytest.raises(LogUnavailable):
            await producer.send(missing, [Record(b"k", b"before", 2)])
        assert missing not in AdminClient(dict(options)).list_topics(timeout=DEADLINE).topics
        await asyncio.to_thread(make_topics, options, [missing], 3, kafka.TIMINGS)

        async def is_taken() -> bool:
            with suppress(LogUnavailable):
                await producer.send(missing, [Record(b"k", b"after", 2)])
                return True
            return False

        await eventually(is_taken, "it is taken now")
    async with consuming(options, missing) as consumer:
        assert set(values(await read(consumer, 1))) <= {b"before", b"after"}


async def test_nobody_there() -> None:
    nowhere: Options = {"bootstrap.servers": "127.0.0.1:1", "request.timeout.ms": 400}
    producer = KafkaProducer(nowhere, replace(kafka.TIMINGS, delivery=0.5))
    with pytest.raises(LogUnavailable):
        await producer.send("t", [Record(b"k", b"v")])
    await producer.close()


async def test_a_partition_that_was_given_away_while_a_batch_took_long_is_read_when_it_comes_back(
    options: Options, topic: str
) -> None:
    async with producing(options) as producer, consuming(options, topic, "resting") as consumer:
        await until(lambda: len(consumer.assigned()) == 3, consumer.heartbeat)
        async with consuming(options, topic, "resting") as other:
            async with asyncio.timeout(DEADLINE):
                while not other.assigned() or len(consumer.assigned()) == 3:
                    await asyncio.gather(consumer.heartbeat(), other.batch(1, 0.1))
        await until(lambda: len(consumer.assigned()) == 3, lambda: consumer.batch(1, 0.1))
        await producer.send(topic, [Record(b"key", b"%d" % partition, partition) for partition in range(3)])
        assert sorted(values(await read(consumer, 3))) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("partitions_left", [True, False])
async def test_a_consumer_that_stands_still_is_replaced(options: Options, topic: str, partitions_left: bool) -> None:
    """As the library may do by itself after brokers were away; here it is told to."""
    watcher = Watcher(options, 3, kafka.TIMINGS)
    consumer = KafkaConsumer(options, kafka.topic(), [topic], replace(kafka.TIMINGS, stuck=0.5), watcher)
    try:
        async with producing(options) as producer:
            await producer.send(topic, [Record(b"key", b"first", 0)])
            await consumer.commit(await read(consumer, 1))
            still = consumer._consumer.pause if partitions_left else consumer._consumer.incremental_unassign
            await asyncio.to_thread(still, consumer._consumer.assignment())
            await producer.send(topic, [Record(b"key", b"second", 0)])
            stopped = consumer._consumer
            found: list[Consumed] = []
            async with asyncio.timeout(DEADLINE):
                while not found:
                    found = await consumer.batch(500, 0.1)
                    if consumer._consumer is not stopped:
                        consumer._timings = replace(
                            kafka.TIMINGS, stuck=DEADLINE
                        )  # the new one has the time that it needs to join
                    with suppress(LogUnavailable):  # while it is being replaced
                        await consumer.check(await consumer.ends())
            assert values(found) == [b"second"]
    finally:
        await consumer.close()
        await watcher.close()


async def test_a_consumer_whose_batch_takes_long_or_that_nothing_waits_for_is_not_replaced(
    options: Options, topic: str
) -> None:
    consumer = KafkaConsumer(options, kafka.topic(), [topic], replace(kafka.TIMINGS, stuck=0))
    try:
        async with producing(options) as producer:
            await until(lambda: len(consumer.assigned()) == 3, lambda: consumer.batch(1, 0.1))
            before = consumer._consumer
            await consumer.check(await consumer.ends())
            await consumer.batch(1, 0.1)
            await consumer.check(await consumer.ends())
            await producer.send(topic, [Record(b"key", b"%d" % number, 0) for number in range(2)])
            found = await read(consumer, 2)
            await consumer.check(await consumer.ends())
            await consumer.check(await consumer.ends())
            await consumer.commit(found)
            assert await consumer.batch(1, 0.1) == []
            assert consumer._consumer is before
    finally:
        await consumer.close()


async def test_a_consumer_is_not_replaced_while_what_it_has_given_out_is_not_done(options: Options, topic: str) -> None:
    """Its runner asks for more while a batch is under way, and a dependency of that batch may be down for long."""
    consumer = KafkaConsumer(options, kafka.topic(), [topic], replace(kafka.TIMINGS, stuck=0))
    try:
        async with producing(options) as producer:
            await until(lambda: len(consumer.assigned()) == 3, lambda: consumer.batch(1, 0.1))
            before = consumer._consumer
            await producer.send(topic, [Record(b"key", b"%d" % number, 0) for number in range(2)])
            found = await read(consumer, 2)
            for _ in range(2):
                assert await consumer.batch(1, 0.1) == []
                await consumer.check(await consumer.ends())
            assert consumer._consumer is before
            await consumer.commit(found)
    finally:
        await consumer.close()


async def test_what_is_asked_of_a_consumer_that_leaves_its_group_is_to_be_tried_again(
    options: Options, topic: str
) -> None:
    """A batch may be done just as the consumer joins its group again."""
    consumer = KafkaConsumer(options, kafka.topic(), [topic], kafka.TIMINGS)
    try:
        leaving = asyncio.create_task(consumer._rejoin())
        await asyncio.sleep(0)
        with pytest.raises(LogUnavailable):
            await consumer.commit([])
        await leaving
        await consumer.commit([])
    finally:
        await consumer.close()


async def until(condition: Callable[[], bool], turn: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await turn()
