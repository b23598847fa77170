"""The log of the cluster profile: what it acknowledges is kept, whatever Kafka does."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from readstate.adapters.kafka.backlog import Backlog, Sources
from readstate.adapters.kafka.client import Options
from readstate.adapters.kafka.consumer import KafkaConsumer
from readstate.adapters.kafka.log import KafkaLog, SpooledReads
from readstate.adapters.kafka.producer import KafkaProducer
from readstate.adapters.kafka.sender import Sender
from readstate.adapters.kafka.spool import Spool
from readstate.adapters.kafka.topics import Topics, make_topics
from readstate.adapters.kafka.waits import Waits
from readstate.adapters.kafka.watcher import Watcher
from readstate.adapters.kafka.wire import (
    NotAnEvent,
    decode_channel_event,
    decode_dead_letter,
    decode_read,
    decode_reads,
    decode_unsent,
    read_records,
)
from readstate.domain.announcements import Outcome
from readstate.domain.errors import (
    ChannelArchived,
    Invalid,
    LogUnavailable,
    ReadstateError,
    Stopping,
    TooLarge,
    Unavailable,
)
from readstate.domain.events import AnyChannelEvent, Consumed, DeadLetter, MessageEvent, ReadEvent, UnsentMessage
from readstate.domain.facts import Effect
from readstate.domain.model import ChangeNumber
from readstate.domain.rooms import partition_of, thread_room
from tests.conftest import eventually
from tests.contract import kafka

DEADLINE = 90
PARTITIONS = 4
NOW = 1_700_000_000_000
IMPATIENT = replace(kafka.TIMINGS, delivery=1.5, drain=0.5, close=2.0)
"""So that nobody waits for long in a test for what does not come."""


@pytest.fixture(scope="module")
def options() -> Options:
    return {"bootstrap.servers": kafka.mortal().url}


@pytest.fixture(scope="module")
def shared(options: Options) -> Topics:
    """For tests that tell what is theirs from what is others'."""
    return made(options)


@pytest.fixture
def topics(options: Options) -> Topics:
    return made(options)


def made(options: Options) -> Topics:
    topics = Topics(f"{kafka.topic()}-")
    make_topics(options, topics.all, PARTITIONS, kafka.TIMINGS)
    return topics


async def nothing(*_: object) -> dict[int, int]:
    """Nobody looks at what waits."""
    return {}


class Cluster:
    """A log, and a writer's place in it, as the hot store would tell."""

    sender: Sender
    spool: Spool

    def __init__(self, options: Options, topics: Topics, directory: Path) -> None:
        self.options, self.topics, self.directory = options, topics, directory
        self.applied: dict[int, int] = {}
        self.broken: Exception | None = None
        self.noted: list[int] = []

    async def places(self) -> Mapping[int, int]:
        if self.broken:
            raise self.broken
        return self.applied

    @asynccontextmanager
    async def log(
        self,
        *,
        produce_timeout: float = DEADLINE,
        wait_timeout: float = DEADLINE,
        spool_bytes: int = 2**20,
        packed: bool = False,
    ) -> AsyncIterator[KafkaLog]:
        spool = self.spool = Spool.open(self.directory, max_bytes=spool_bytes)

        async def note() -> None:
            self.noted.append(spool.depth)

        timings = IMPATIENT
        producer = KafkaProducer({**self.options, "request.timeout.ms": 1_000}, timings)
        watcher = Watcher(self.options, PARTITIONS, timings)
        backlog = Backlog(Sources(nothing, nothing, nothing, nothing), PARTITIONS, timings, stale_after=5, max_lag=0)
        checked = asyncio.Event()
        checked.set()
        sender = self.sender = Sender(producer, self.topics, PARTITIONS, checked, backlog, lambda: packed)
        reads = SpooledReads(sender, spool, note, produce_timeout, timings)
        log = KafkaLog(sender, reads, backlog, watcher, self.places, Waits("here"), wait_timeout, timings)
        await log.start()
        try:
            yield log
        finally:
            await log.close()
            await watcher.close()

    @asynccontextmanager
    async def consumer(self, topic: str) -> AsyncIterator[KafkaConsumer]:
        consumer = KafkaConsumer(self.options, kafka.topic(), [topic], replace(kafka.TIMINGS, stuck=10))
        try:
            yield consumer
        finally:
            await consumer.close()

    async def read(self, topic: str, count: int) -> list[Consumed]:
        """The first so many records of a topic."""
        async with self.consumer(topic) as consumer:
            found: list[Consumed] = []
            async with asyncio.timeout(DEADLINE):
                while len(found) < count:
                    found += await next_batch(consumer)
            return found

    async def states(self, events: Sequence[ReadEvent]) -> None:
        """Return when all of these are in Kafka, however often."""
        async with self.consumer(self.topics.reads) as consumer, asyncio.timeout(DEADLINE):
            missing = set(events)
            while missing:
                found = await next_batch(consumer)
                missing -= {event for record in found for event in decode_reads(record.value)}


async def next_batch(consumer: KafkaConsumer) -> list[Consumed]:
    """As a worker reads: it notices a consumer that stands still after its broker did."""
    found = await consumer.batch(500, 0.1)
    if not found:
        with suppress(LogUnavailable):
            await consumer.check(await consumer.ends())
    return found


@pytest.fixture
def cluster(options: Options, topics: Topics, tmp_path: Path) -> Cluster:
    return Cluster(options, topics, tmp_path / "spool")


@pytest.fixture
def sharing(options: Options, shared: Topics, tmp_path: Path) -> Cluster:
    return Cluster(options, shared, tmp_path / "spool")


@contextmanager
def paused() -> Iterator[None]:
    """While the broker stands still."""
    kafka.mortal().pause()
    try:
        yield
    finally:
        kafka.mortal().resume()


def message(channel: str, number: int, text: str = "hi") -> MessageEvent:
    return MessageEvent(channel_id=channel, created_at=NOW, id=f"m{number}", sender_id="ann", at=NOW, text=text)


def state(user: str, channel: str, seq: int) -> ReadEvent:
    return ReadEvent(user, channel, 0, seq, (seq + 2,), f"m{seq}", NOW, NOW, ChangeNumber(seq), NOW)


async def refused(log: KafkaLog) -> str:
    """Why a message is refused."""
    with pytest.raises(LogUnavailable) as caught:
        await log.channel_events([message("c", 1)])
    return caught.value.detail


# ---------------------------------------------------------------- what is acknowledged


async def test_what_is_acknowledged_is_in_kafka_and_a_channel_has_one_order(cluster: Cluster) -> None:
    channels = [f"channel {number}" for number in range(6)]
    async with cluster.log() as log:
        for start in range(0, 60, 20):
            calls = [
                log.channel_events([message(channel, n) for n in range(start, start + 20)], wait=False)
                for channel in channels
            ]
            assert await asyncio.gather(*calls) == [[None] * 20] * 6
        found = await cluster.read(cluster.topics.messages, 360)
    for channel in channels:
        mine = [
            (record.partition, decode_channel_event(record.value)) for record in found if record.key == channel.encode()
        ]
        assert [event for _, event in mine] == [message(channel, number) for number in range(60)]
        assert {partition for partition, _ in mine} == {partition_of(channel, PARTITIONS)}


async def test_a_thread_is_named_beside_its_channel_and_shares_its_key(cluster: Cluster) -> None:
    states = [state("bob", "general", 3), state("bob", thread_room("general", "m1"), 4)]
    async with cluster.log() as log:
        await log.reads(states)
        assert cluster.spool.depth == 0
    first, second = await cluster.read(cluster.topics.reads, 2)
    assert [decode_read(first.value), decode_read(second.value)] == states
    assert first.key == second.key == b"bob:general"
    assert b'"channel_id":"general"' in second.value
    assert b'"thread_id":"m1"' in second.value


async def test_reads_of_one_partition_share_a_record_if_they_may(cluster: Cluster) -> None:
    states = [state(f"user {number}", "general", number) for number in range(1, 41)]
    async with cluster.log(packed=True) as log:
        await log.reads(states)
        await cluster.states(states)
        ends = await log._watcher.ends(cluster.topics.reads)
        [value] = {record.value for record in await cluster.read(cluster.topics.reads, PARTITIONS)} & {
            record.value for record in read_records(states, PARTITIONS, packed=True) if record.partition == 0
        }
        await cluster.sender.again(cluster.topics.reads, [value])
        again = await log._watcher.ends(cluster.topics.reads)
    assert ends == dict.fromkeys(range(PARTITIONS), 1)
    assert again == ends | {0: 2}, "what is played again goes to its partition"


async def test_what_waited_in_the_spool_shares_records_too(cluster: Cluster) -> None:
    states = [state(f"user {number}", "c", number) for number in range(1, 41)]
    async with cluster.log(produce_timeout=0.1, packed=True) as log:
        with paused():
            await log.reads(states)
            assert cluster.spool.depth == len(states)
        await cluster.states(states)


async def test_events_of_workers_come_back_as_they_were(cluster: Cluster) -> None:
    unsent = UnsentMessage("ann", "m1", "c", NOW, NOW, NOW, ("bob",))
    topics = cluster.topics
    poison = (
        b'{"kind":"message","id":"m1","channel_id":"c","created_at":1,"sender_id":"ann","at":1,"from":"a newer one"}'
    )
    letter = DeadLetter(poison.decode(), "it would not go", 3, topics.messages, 2, 7, NOW)
    async with cluster.log():
        await cluster.sender.unsent([unsent])
        await cluster.sender.dead(topics.messages, [letter])
        await cluster.sender.again(topics.messages, [letter.event.encode()])
        with pytest.raises(NotAnEvent, match="kind"):
            await cluster.sender.again(topics.messages, [poison, b"{}"])
    assert decode_unsent((await cluster.read(topics.unsent, 1))[0].value) == unsent.event("bob")
    [put_aside] = await cluster.read(topics.dead(topics.messages), 1)
    assert decode_dead_letter(put_aside.value) == letter
    assert put_aside.partition == 2
    [replayed] = await cluster.read(topics.messages, 1)
    assert replayed.value == poison
    assert (replayed.key, replayed.partition) == (b"c", partition_of("c", PARTITIONS))


async def test_what_kafka_would_never_take_is_not_tried(sharing: Cluster) -> None:
    async with sharing.log() as log:
        with pytest.raises(TooLarge):
            await log.channel_events([message("c", 1), message("c", 2, "x" * 2_000_000)])


async def test_after_the_end_nothing_is_taken(sharing: Cluster) -> None:
    async with sharing.log() as log:
        await log.close()
        with pytest.raises(Stopping):
            await log.reads([state("bob", "c", 1)])
        with pytest.raises(Stopping):
            await log.channel_events([message("c", 1)])


# ---------------------------------------------------------------- waiting for effects


async def answered(
    cluster: Cluster, log: KafkaLog, events: Sequence[AnyChannelEvent], outcomes: Sequence[Outcome]
) -> Sequence[Effect | None]:
    """What a caller is told when a writer answers its events with these."""
    calling = asyncio.ensure_future(log.channel_events(events))
    records = await cluster.read(cluster.topics.messages, len(events))
    refs = {
        event.id: event.ref
        for event in (decode_channel_event(r.value) for r in records)
        if isinstance(event, MessageEvent)
    }
    told = []
    for event, outcome in zip(events, outcomes, strict=False):
        assert isinstance(event, MessageEvent)
        ref = refs[event.id]
        assert ref is not None
        assert ref.startswith("here:")
        told.append(
            Outcome(ref, outcome.code, outcome.detail, outcome.field, duplicate=outcome.duplicate, added=outcome.added)
        )
    log.on_announcements(
        [*reversed(told), Outcome("here:1"), Outcome("elsewhere:5")]
    )  # in any order, among those of others
    return await calling


async def test_the_outcome_of_each_event_comes_back_to_whoever_waits(cluster: Cluster) -> None:
    outcomes = [
        Outcome("", added=2),
        Outcome("", duplicate=True),
        Outcome("", "channel_archived", "no more here"),
        Outcome("", "invalid", "too long", "text"),
        Outcome("", "of_a_newer_version", "whatever"),
    ]
    async with cluster.log() as log:
        effects = await answered(cluster, log, [message("c", number) for number in range(5)], outcomes)
    assert None not in effects
    assert [(effect.added, effect.duplicate) for effect in effects if effect] == [
        (2, False),
        (0, True),
        (0, False),
        (0, False),
        (0, False),
    ]
    errors = [effect.error for effect in effects if effect]
    assert [type(error) for error in errors] == [type(None), type(None), ChannelArchived, Invalid, ReadstateError]
    assert [error.detail for error in errors[2:] if error] == [
        "no more here",
        "too long",
        "whatever (of_a_newer_version)",
    ]
    assert errors[3] is not None
    assert errors[3].field == "text"


async def test_what_is_not_known_in_time_is_not_known(sharing: Cluster) -> None:
    async with sharing.log(wait_timeout=0.1) as log:
        assert await log.channel_events([message("c", 1), message("c", 2)]) == [None, None]


async def test_whoever_waits_at_the_end_is_let_go(cluster: Cluster) -> None:
    async with cluster.log() as log:
        calling = asyncio.ensure_future(log.channel_events([message("c", 1)]))
        await cluster.read(cluster.topics.messages, 1)
    assert await calling == [None]


async def test_what_a_channel_had_in_the_log_is_waited_for(cluster: Cluster) -> None:
    async with cluster.log() as log:
        await log.channel_events([message("c", number) for number in range(3)], wait=False)
        waiting = asyncio.ensure_future(log.settled(["c", thread_room("c", "m1")]))
        part = partition_of("c", PARTITIONS)
        for place in (0, 1, 2):
            cluster.applied[part] = place
            await asyncio.wait([waiting], timeout=0.1)
            assert not waiting.done()
        cluster.applied[part] = 3
        await asyncio.wait_for(waiting, DEADLINE)
        await log.channel_events([message("c", 3)], wait=False)
        cluster.broken = RuntimeError("the hot store is away")
        await asyncio.wait_for(log.settled(["c"]), DEADLINE)
        await log.settled([])


# ---------------------------------------------------------------- Kafka is away


async def test_kafka_stands_still_and_no_read_is_lost(cluster: Cluster) -> None:
    states = [state(f"user {number}", "c", number) for number in range(1, 41)]
    async with cluster.log(produce_timeout=0.1) as log:
        with paused():
            sending = asyncio.ensure_future(refused(log))
            await asyncio.sleep(0)  # it is tried: Kafka has refused nothing yet
            await asyncio.gather(*(log.reads([one]) for one in states[:10]))
            assert cluster.spool.depth == 10
            assert "safe to repeat" in await sending
            assert {one async for batch in cluster.spool.pending() for one in batch} == set(states[:10])
            await asyncio.gather(*(log.reads([one]) for one in states[10:20]))
            assert cluster.spool.depth == 20

            async def turned_away_at_once() -> bool:
                return "right now" in await refused(log)

            await eventually(turned_away_at_once, "messages are refused without a try")
        await cluster.states(states[:20])

        async def drained() -> bool:
            return cluster.spool.depth == 0

        await eventually(drained, "the spool is empty")

        async def taken_again() -> bool:
            try:
                return await log.channel_events([message("c", 2)], wait=False) == [None]
            except LogUnavailable:
                return False

        await eventually(taken_again, "messages are taken")


async def test_topics_that_are_missing_are_as_kafka_away_until_they_are_made(options: Options, tmp_path: Path) -> None:
    topics = Topics(f"{kafka.topic()}-")
    states = [state("bob", f"c{number}", 1) for number in range(8)]  # in all partitions
    missing = Cluster(options, topics, tmp_path / "spool")
    async with missing.log() as log:
        await log.reads(states)
        assert missing.spool.depth == len(states)
        assert await refused(log)

        await asyncio.to_thread(make_topics, options, topics.all, PARTITIONS, kafka.TIMINGS)

        async def all_is_taken() -> bool:
            try:
                await log.channel_events([message("c1", 1)], wait=False)
            except LogUnavailable:
                return False
            return not missing.spool.depth

        await eventually(all_is_taken, "messages are taken, and the spool is sent")
    await missing.states(states)


async def test_what_waits_in_the_spool_outlives_the_process(cluster: Cluster) -> None:
    states = [state(f"user {number}", "c", number) for number in range(1, 31)]
    with paused():
        async with cluster.log(produce_timeout=0.1) as log:
            reading = [asyncio.ensure_future(log.reads([one])) for one in states]
            await asyncio.sleep(0)  # all of them have begun
        await asyncio.gather(*reading)
    async with cluster.log() as log:
        assert cluster.spool.depth == 30
        await cluster.states(states)


async def test_what_is_sent_at_the_end_is_not_waited_for(cluster: Cluster) -> None:
    async with cluster.log(produce_timeout=0.1) as log:
        with paused():
            await log.reads([state("bob", "c", 1)])
            assert cluster.noted == [1]

        async def taken() -> bool:
            try:
                return await log.channel_events([message("c", 1)], wait=False) == [None]
            except LogUnavailable:
                return False

        await eventually(taken, "Kafka is there again")
    assert cluster.noted[-1] == 0
    await cluster.states([state("bob", "c", 1)])


async def test_a_full_spool_refuses(cluster: Cluster) -> None:
    kept: list[ReadEvent] = []

    async def read_on(log: KafkaLog) -> None:
        for number in range(100):
            one = state(f"user {number}", "c", 1)
            await log.reads([one])
            kept.append(one)

    async with cluster.log(produce_timeout=0.1, spool_bytes=1_000) as log:
        with paused():
            with pytest.raises(Unavailable, match="full") as caught:
                await read_on(log)
            assert caught.value.code == "unavailable"
            assert kept
            assert cluster.spool.depth == len(kept)
    async with cluster.log():
        await cluster.states(kept)
