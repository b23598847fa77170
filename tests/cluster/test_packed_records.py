"""Reads that share a record of the log: who may write such records, and what becomes of their states."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import json

from readstate.adapters.kafka.wire import read_records
from readstate.adapters.valkey.presence.instances import LEASE
from readstate.domain.events import ReadEvent
from readstate.domain.model import NO_CHANGE
from readstate.workers import DEAD_LETTERS, RECEIPT_PERSISTER
from tests import stores
from tests.conftest import eventually

from .conftest import WorkingService, listed, working_service
from .fleet import PARTITIONS
from .hard import Instance, LocalCluster
from .test_poison import allow, refuse, until_listed

NOW = 1_700_000_000_000
LATER = 60_000.0
READS = 40


def state(user: str, seq: int = 1, created_at: int = NOW, apart: tuple[int, ...] = ()) -> ReadEvent:
    return ReadEvent(user, "general", 1 << 20, seq, apart, f"m{seq}", NOW, NOW, NO_CHANGE, created_at)


def packed_value(*states: ReadEvent) -> bytes:
    [record] = read_records(states, 1, packed=True)
    assert json.decode(record.value)["v"] == 2
    return record.value


@pytest.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WorkingService]:
    """One that packs; everybody has two partitions."""
    monkeypatch.setattr(stores, "chosen", stores.CLUSTER)
    async with working_service(tmp_path, packed_records="on") as service:
        await service.chat.open_channel("alice", "bob")
        yield service


# ---------------------------------------------------------------- what is in a packed record is stored


async def test_the_states_of_a_record_are_stored_each_for_itself(service: WorkingService) -> None:
    states = [state(f"user {number}", number, apart=(number + 2,)) for number in range(1, 30)]
    await service.rs.cluster.log.reads(states)
    await service.all_done()
    ends = await service.rs.cluster.watcher.ends(service.topics.reads)
    assert sum(ends.values()) == stores.PARTITIONS
    assert await service.receipts() == {
        (one.user_id, "general"): (1 << 20, one.last_read_seq, frozenset(one.apart)) for one in states
    }


async def test_a_record_that_comes_again_changes_nothing(service: WorkingService) -> None:
    await service.put(service.topics.reads, packed_value(state("bob", 2), state("eve", 5)))
    await service.put(service.topics.reads, packed_value(state("bob", 4), state("eve", 5)))
    await service.put(service.topics.reads, packed_value(state("bob", 2), state("eve", 5)))
    await service.all_done()
    assert {user: seq for (user, _), (_, seq, _) in (await service.receipts()).items()} == {"bob": 4, "eve": 5}


async def test_what_a_user_read_before_an_erasure_is_left_out_and_nobody_elses_reads_are(
    service: WorkingService,
) -> None:
    at = service.rs.clock()
    await service.rs.durable.transfer.erase("bob", on_the_way=at)
    before = [state("bob", 9, at - 1), state("eve", 3, at - 1)]
    after = [ReadEvent("bob", "other", 1 << 20, 1, (), "m1", NOW, NOW, NO_CHANGE, at + 1), state("zoe", 4, at + 1)]
    await service.put(service.topics.reads, packed_value(*before, *after))
    await service.all_done()
    assert set(await service.receipts()) == {("eve", "general"), ("bob", "other"), ("zoe", "general")}


async def test_a_message_to_many_who_are_away_is_told_in_a_record_for_each_partition(service: WorkingService) -> None:
    receivers = [f"user {number}" for number in range(20)]
    await service.chat.open_channel("alice", *receivers, channel="crowd")
    await service.chat.send("alice", "m1", channel="crowd")
    await service.all_done()
    ends = await service.rs.cluster.watcher.ends(service.topics.unsent)
    assert sum(ends.values()) == stores.PARTITIONS
    assert [await service.chat.badge(user) for user in receivers] == [1] * len(receivers)


# ---------------------------------------------------------------- one state fails


async def test_one_state_that_fails_becomes_a_dead_letter_and_the_others_are_stored(service: WorkingService) -> None:
    await refuse(service, "read_receipts", "NEW.user_id = 'odd'")
    try:
        value = packed_value(*(state(user) for user in ("ann", "bob", "odd", "zoe")))
        await service.put(service.topics.reads, value)
        [(topic, error, event)] = await until_listed(service, 1)
        assert topic == service.topics.reads
        assert "refused by the test" in error
        assert (json.decode(event)["user_id"], json.decode(event)["v"]) == ("odd", 1)
        assert event.encode() in value
        [(place,)] = await service.sql("SELECT place FROM dead_letters")
        partition, offset, index, _ = place.split("/")
        assert (offset, index) == ("0", "2")
        assert f"{partition}/{offset}/{index}" in await service.command("dlt", "list")
        assert {user for user, _ in await service.receipts()} == {"ann", "bob", "zoe"}
    finally:
        await allow(service)

    assert "replayed 1" in await service.command("dlt", "replay", "--all")
    await service.all_done()
    assert {user for user, _ in await service.receipts()} == {"ann", "bob", "odd", "zoe"}
    assert await listed(service) == []


async def test_two_states_of_a_record_that_nobody_can_read_are_two_dead_letters(service: WorkingService) -> None:
    good = json.encode(state("bob", 3))
    odd = b'{"user_id":"odd","epoch":"one"}'
    await service.put(service.topics.reads, b'{"v":2,"states":[%b,%b,%b,null]}' % (odd, good, odd))
    letters = await until_listed(service, 3)
    assert {event for _, _, event in letters} == {odd.decode(), "null"}
    assert {user for user, _ in await service.receipts()} == {"bob"}


async def test_a_packed_record_that_is_cut_off_is_put_aside_whole(service: WorkingService) -> None:
    value = packed_value(state("ann"), state("bob"))[:-1]
    await service.put(service.topics.reads, value)
    [(_, _, event)] = await until_listed(service, 1)
    assert event.encode() == value
    await service.put(service.topics.reads, value + b"}")
    await service.all_done()
    assert {user for user, _ in await service.receipts()} == {"ann", "bob"}


# ---------------------------------------------------------------- who may write them


async def packs(instance: Instance) -> bool:
    """Whether a batch of reads shares records."""
    ends, topic = instance.rs.cluster.watcher.ends, instance.rs.cluster.topics.reads
    before = sum((await ends(topic)).values())
    await instance.rs.cluster.log.reads([state(f"user {number}") for number in range(READS)])
    records = sum((await ends(topic)).values()) - before
    assert records in {PARTITIONS, READS}
    return records == PARTITIONS


async def lease_of_an_older_process(instance: Instance, milliseconds: float) -> None:
    """As an older version takes it: its name says nothing of what it reads."""
    hot = instance.rs.hot
    backend = hot._backend  # type: ignore[attr-defined]
    leases = f"{backend.prefix}instances"
    keys = [leases, f"{backend.prefix}generations-began:{{{leases}}}"]
    await backend.one(LEASE, keys, "older:0123456789ab", int(milliseconds), 1)


async def test_records_are_packed_only_while_no_process_of_an_older_version_is_there(cluster: LocalCluster) -> None:
    cluster.timings = replace(cluster.timings, valkey=replace(cluster.timings.valkey, packed_after=0.5))
    one = await cluster.open("one")
    worker = await cluster.open("worker", RECEIPT_PERSISTER, DEAD_LETTERS)

    async def does() -> bool:
        return await packs(one)

    async def does_not() -> bool:
        return not await packs(one)

    await eventually(does, "all processes have said that they read packed records")
    await lease_of_an_older_process(worker, LATER)
    await eventually(does_not, "an older process has come")
    await asyncio.sleep(2 * cluster.timings.valkey.packed_after)
    assert await does_not(), "it is still there"
    await lease_of_an_older_process(worker, 0)
    await eventually(does, "it has gone")
    await cluster.all_done(one, RECEIPT_PERSISTER)
    assert len(await cluster.receipts()) == READS
    assert await cluster.sql("SELECT FROM dead_letters") == []


async def test_a_worker_has_a_lease_that_says_what_it_reads(cluster: LocalCluster) -> None:
    worker = await cluster.open("worker", RECEIPT_PERSISTER)
    other = await cluster.open("other")
    instances = other.rs.hot._presence._instances  # type: ignore[attr-defined]

    async def seen() -> bool:
        await instances.learn([])
        return {name.split(":")[0] for name in instances.live} == {"worker", "other"}

    await eventually(seen, "both have a lease")
    assert all(name.endswith(":2") for name in instances.live)
    assert worker.rs.settings.packed_records == "auto"


async def test_a_fresh_process_does_not_pack_before_it_has_listened_for_a_while(cluster: LocalCluster) -> None:
    one = await cluster.open("one")
    assert cluster.timings.valkey.packed_after == 60
    assert not await packs(one)


@pytest.mark.parametrize(("setting", "decided"), [("on", True), ("off", False)])
async def test_an_operator_can_decide(cluster: LocalCluster, setting: str, decided: bool) -> None:
    cluster.timings = replace(cluster.timings, valkey=replace(cluster.timings.valkey, packed_after=0.0))
    one = await cluster.open("one", packed_records=setting)
    if decided:
        await lease_of_an_older_process(one, LATER)
    assert await packs(one) is decided
