"""How long accepted messages have waited, by one process's clock."""

import pytest

from readstate.adapters.kafka.backlog import MAX_MARKS, Backlog, Sources
from readstate.domain.errors import HotStoreUnavailable, LogUnavailable, MessagesBehind
from readstate.domain.rooms import partition_of, thread_room
from readstate.ports import Stale
from readstate.timings import KafkaTimings

STALE_AFTER, MAX_LAG = 5, 60


class Servers:
    """A topic of two partitions, its writer, and the clock of the process that looks."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.records: dict[int, list[float]] = {0: [], 1: []}
        """When each was appended."""
        self.committed = {0: 0, 1: 0}
        self.in_hot_store: dict[int, int] = {}
        self.kafka = self.hot_store = self.group = True
        self.asked_for_times = 0

    def append(self, partition: int, times: int = 1) -> None:
        self.records[partition] += [self.now] * times

    def apply(self, partition: int, offset: int | None = None) -> None:
        self.committed[partition] = len(self.records[partition]) if offset is None else offset

    async def ends(self) -> dict[int, int]:
        if not self.kafka:
            raise LogUnavailable
        return {number: len(records) for number, records in self.records.items()}

    async def of_group(self) -> dict[int, int]:
        if not self.kafka or not self.group:
            raise LogUnavailable
        return dict(self.committed)

    async def ends_before(self, seconds: float) -> dict[int, int]:
        self.asked_for_times += 1
        found = {}
        for number, records in self.records.items():
            young = [offset for offset, at in enumerate(records) if at >= self.now - seconds]
            if young:
                found[number] = young[0]
        return found

    async def applied(self) -> dict[int, int]:
        if not self.hot_store:
            raise HotStoreUnavailable
        return self.in_hot_store

    def process(self, max_lag: int = MAX_LAG) -> Backlog:
        sources = Sources(self.ends, self.of_group, self.ends_before, self.applied)
        return Backlog(sources, 2, KafkaTimings(), stale_after=STALE_AFTER, max_lag=max_lag, now=lambda: self.now)


@pytest.fixture
def servers() -> Servers:
    return Servers()


async def seconds_go_by(servers: Servers, backlog: Backlog, seconds: int) -> None:
    """With a look in each, as it runs."""
    for _ in range(seconds):
        servers.now += 1
        await backlog.look()


async def test_a_partition_is_stale_when_its_oldest_event_has_waited_too_long(servers: Servers) -> None:
    backlog = servers.process()
    await backlog.look()
    servers.now += 1
    servers.append(0)
    await seconds_go_by(servers, backlog, STALE_AFTER - 1)
    assert backlog.stale() == frozenset()
    assert backlog.state() == "ok"

    servers.now += 1.1
    assert backlog.stale() == {0}  # without another look
    assert backlog.state() == "behind: messages have waited for 6 s in 1 of 2 partitions"

    servers.apply(0)
    await backlog.look()
    assert backlog.stale() == frozenset()
    assert backlog.age == 0


async def test_a_busy_partition_whose_writer_keeps_up_is_not_stale(servers: Servers) -> None:
    backlog = servers.process()
    for _ in range(3 * STALE_AFTER):
        servers.append(0, 100)
        servers.apply(0, len(servers.records[0]) - 50)  # there is always something under way
        await backlog.look()
        assert backlog.stale() == frozenset()
        servers.now += 1


async def test_a_writer_that_is_slower_than_what_comes_falls_behind_and_catches_up(servers: Servers) -> None:
    backlog = servers.process()
    await backlog.look()
    for second in range(1, 120):
        servers.append(0, 300)
        servers.apply(0, second * 150)
        await seconds_go_by(servers, backlog, 1)
    assert backlog.stale() == {0}
    assert backlog.age == pytest.approx(60, abs=3)
    servers.now += 5
    with pytest.raises(MessagesBehind):
        backlog.check({0, 1})
    backlog.check({1})

    servers.apply(0)
    await backlog.look()
    backlog.check({0, 1})


async def test_without_a_limit_nothing_is_refused(servers: Servers) -> None:
    backlog = servers.process(max_lag=0)
    servers.append(0)
    await backlog.look()
    servers.now += 100_000
    assert backlog.stale() == {0}
    backlog.check({0})


async def test_a_process_that_starts_knows_how_old_is_what_waits(servers: Servers) -> None:
    servers.append(0)
    servers.now += 100
    servers.append(1)
    servers.now += 1

    backlog = servers.process()
    await backlog.look()

    servers.now += 0.1
    assert backlog.stale() == {0}
    with pytest.raises(MessagesBehind):
        backlog.check({0})
    backlog.check({1})


async def test_after_kafka_was_away_what_has_just_come_is_not_old(servers: Servers) -> None:
    backlog = servers.process()
    await backlog.look()
    servers.kafka = False
    await seconds_go_by(servers, backlog, 100)
    servers.kafka = True
    servers.append(0)
    await seconds_go_by(servers, backlog, 1)
    assert backlog.stale() == frozenset()

    await seconds_go_by(servers, backlog, STALE_AFTER)
    assert backlog.stale() == {0}


async def test_times_of_records_are_asked_for_only_after_a_gap(servers: Servers) -> None:
    backlog = servers.process()
    await backlog.look()
    servers.append(0)
    await seconds_go_by(servers, backlog, 100)
    assert not servers.asked_for_times


async def test_while_kafka_is_away_what_was_applied_counts(servers: Servers) -> None:
    backlog = servers.process()
    servers.append(0)
    servers.append(1)
    await backlog.look()
    servers.kafka = False
    servers.in_hot_store = {0: 1}
    await seconds_go_by(servers, backlog, STALE_AFTER + 1)
    assert backlog.stale() == {1}

    servers.hot_store = False
    await seconds_go_by(servers, backlog, 1)
    assert backlog.stale() == {1}


async def test_what_this_process_has_sent_is_known_before_the_next_look(servers: Servers) -> None:
    backlog = servers.process()
    await backlog.look()
    servers.append(0)
    backlog.sent({0: 1})
    servers.kafka = False  # nobody gets it from there
    await seconds_go_by(servers, backlog, STALE_AFTER + 1)
    assert backlog.stale() == {0}

    servers.kafka = True
    servers.apply(0)
    await seconds_go_by(servers, backlog, 1)
    assert backlog.stale() == frozenset()


async def test_a_group_that_cant_be_asked_leaves_the_hot_store(servers: Servers) -> None:
    backlog = servers.process()
    await backlog.look()
    servers.group = False
    for _ in range(3 * STALE_AFTER):
        servers.append(0, 2)
        servers.in_hot_store = {0: len(servers.records[0]) - 1}
        await seconds_go_by(servers, backlog, 1)
        assert backlog.stale() == frozenset()


async def test_a_log_that_begins_anew_forgets_what_was_before(servers: Servers) -> None:
    backlog = servers.process()
    servers.append(0, 10)
    servers.apply(0)
    await backlog.look()
    servers.records[0], servers.committed[0] = [], 0
    servers.append(0)
    await seconds_go_by(servers, backlog, 1)
    assert backlog.stale() == frozenset()

    await seconds_go_by(servers, backlog, STALE_AFTER + 1)
    assert backlog.stale() == {0}


async def test_what_was_sent_and_lost_by_the_log_does_not_wait_for_ever(servers: Servers) -> None:
    backlog = servers.process()
    await backlog.look()
    backlog.sent({0: 5})  # the log has lost them since
    await seconds_go_by(servers, backlog, 2 * STALE_AFTER)
    assert backlog.stale() == frozenset()


async def test_marks_are_bounded_and_ages_are_never_too_low(servers: Servers) -> None:
    backlog = servers.process()
    await backlog.look()
    begun = servers.now
    for _ in range(3 * MAX_MARKS):
        servers.append(0)
        await seconds_go_by(servers, backlog, 1)
    assert len(backlog._partitions[0].marks) <= MAX_MARKS
    assert backlog.age >= servers.now - begun - 1

    servers.apply(0, 2 * MAX_MARKS)
    await backlog.look()
    assert MAX_MARKS - 1 <= backlog.age <= MAX_MARKS + 10


def test_a_thread_is_as_stale_as_its_channel() -> None:
    here = partition_of("general", 8)
    stale = Stale(False, frozenset({here}), 8)
    assert stale.has("general")
    assert stale.has(thread_room("general", "m1"))
    others = [name for name in map(str, range(50)) if partition_of(name, 8) != here]
    assert not stale.any_of(others)
    assert stale.any_of([*others, "general"])
    assert stale.or_by(Stale(True, frozenset(), 1)).any_of(others)
