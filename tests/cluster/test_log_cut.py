"""A broker comes back without the end of its log: the topic is the same, and its offsets are used again."""

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from readstate.domain.rooms import partition_of
from readstate.stack import Kafka
from readstate.workers import MESSAGE_WRITER, RECEIPT_PERSISTER
from tests.conftest import eventually
from tests.contract import kafka

from .fleet import PARTITIONS, shared_backends
from .hard import SMALL, Instance, LocalCluster, is_left, local_cluster

FIRST_SEGMENT = "00000000000000000000.log"
BATCH = struct.Struct(">qi")
"""The head of a batch of records: its first offset, and its length after the head."""
LOST = 3


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """With a Kafka that only this process uses."""
    own = await asyncio.to_thread(kafka.mortal)
    async with local_cluster(tmp_path, await asyncio.to_thread(shared_backends, own)) as cluster:
        yield cluster


def batches(path: Path) -> list[tuple[int, int]]:
    """(first offset, place in the file) of the batches of a segment."""
    data, at, found = path.read_bytes(), 0, []
    while at + BATCH.size <= len(data):
        offset, length = BATCH.unpack_from(data, at)
        if length <= 0:
            break
        found.append((offset, at))
        at += BATCH.size + length
    return found


def lose_end(log: Kafka, topic: str, partition: int, lost: int = LOST) -> int:
    """The broker dies, and comes back without its last batches. Returns where the partition ends then."""
    log.kill()
    path = log.data / f"{topic}-{partition}" / FIRST_SEGMENT
    end, size = batches(path)[-lost]
    with path.open("r+b") as segment:
        segment.truncate(size)
    log.start()
    return end


async def is_cut(cluster: LocalCluster, instance: Instance, topic: str, partition: int) -> None:
    """The partition has lost its last batches."""
    watcher = instance.rs.cluster.watcher
    before = (await watcher.ends(topic))[partition]
    end = await asyncio.to_thread(lose_end, cluster.backends.kafka, topic, partition)
    assert end < before

    async def is_back() -> bool:
        try:
            return (await watcher.ends(topic))[partition] == end
        except Exception:  # the broker is not ready
            return False

    await eventually(is_back, "the broker knows less than before")


async def is_accepted(instance: Instance, name: str) -> None:
    async def accepted() -> bool:
        body = {"channel_id": SMALL, "sender_id": "alice", "id": name}
        answer = await instance.chat.call("POST", "/v1/messages", body, headers={"prefer": ""})
        return answer.status_code == 202

    await eventually(accepted, f"Kafka takes {name}")


async def are_written(cluster: LocalCluster, *names: str) -> None:
    async def written() -> bool:
        found = await cluster.sql("SELECT id FROM messages ORDER BY seq")
        return [name for (name,) in found] == list(names)

    await eventually(written, f"{names} are written")


async def is_exact(instance: Instance) -> None:
    """After the cut everything counts as not applied, until the writer's next commit is seen."""

    async def exact() -> bool:
        return not instance.rs.cluster.backlog.stale()

    await eventually(exact, "counts are exact again")


async def begun(cluster: LocalCluster, worker: Instance) -> Instance:
    """Bob has five unread messages, each in a batch of its own."""
    one = await cluster.open("one")
    await one.chat.open_channel("alice", "bob", channel=SMALL)
    await one.chat.send("alice", "m1", "m2", "m3", "m4", "m5", channel=SMALL)
    await cluster.all_done(worker, MESSAGE_WRITER)
    return one


async def test_what_comes_at_offsets_that_are_used_again_is_written(cluster: LocalCluster) -> None:
    worker = await cluster.open("worker", MESSAGE_WRITER, RECEIPT_PERSISTER)
    one = await begun(cluster, worker)
    await is_cut(cluster, one, cluster.stores.topics.messages, partition_of(SMALL, PARTITIONS))
    await is_accepted(one, "m6")
    await are_written(cluster, "m1", "m2", "m3", "m4", "m5", "m6")
    await is_exact(one)
    await is_left(SMALL, ["m1", "m2", "m3", "m4", "m5", "m6"], one)
    assert (await one.chat.post("alice", SMALL, id="m7"))["seq"] == 7


async def test_a_log_that_has_passed_its_old_end_meanwhile_is_written(cluster: LocalCluster) -> None:
    worker = await cluster.open("worker", MESSAGE_WRITER, RECEIPT_PERSISTER)
    one = await begun(cluster, worker)
    await worker.stop_workers()
    await is_cut(cluster, one, cluster.stores.topics.messages, partition_of(SMALL, PARTITIONS))
    later = [f"m{n}" for n in range(6, 6 + 2 * LOST)]
    for name in later:
        await is_accepted(one, name)
    worker.start_worker(MESSAGE_WRITER, RECEIPT_PERSISTER)
    await are_written(cluster, "m1", "m2", "m3", "m4", "m5", *later)
    await is_exact(one)
    await is_left(SMALL, ["m1", "m2", "m3", "m4", "m5", *later], one)


async def test_reads_at_offsets_that_are_used_again_are_written(cluster: LocalCluster) -> None:
    worker = await cluster.open("worker", MESSAGE_WRITER, RECEIPT_PERSISTER)
    one = await begun(cluster, worker)
    topic = cluster.stores.topics.reads
    for seq in (1, 2, 3):
        await one.chat.read("bob", SMALL, up_to_seq=seq)
        await cluster.all_done(worker, RECEIPT_PERSISTER)
    await worker.stop_workers()
    ends = await one.rs.cluster.watcher.ends(topic)
    partition = max(ends, key=lambda part: ends[part])
    await is_cut(cluster, one, topic, partition)
    for seq in (4, 5):
        await one.chat.read("bob", SMALL, up_to_seq=seq)
    worker.start_worker(MESSAGE_WRITER, RECEIPT_PERSISTER)

    async def written() -> bool:
        return (await cluster.receipts())["bob", SMALL][1] == 5

    await eventually(written, "the reads are written")
