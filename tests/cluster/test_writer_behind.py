"""The message writer is behind: counts of the channels that wait say so, and all of it ends when it has caught up."""

from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import generate_latest

from readstate import telemetry
from readstate.adapters.kafka.channel_events import ChannelEvents, Finish
from readstate.domain.events import Consumed
from readstate.domain.rooms import partition_of
from readstate.workers import MESSAGE_WRITER
from tests.conftest import check_problem, eventually

from .fleet import PARTITIONS
from .hard import Instance, LocalCluster
from .test_live_after_a_loss import synced

HERE = "here"
PARTITION = partition_of(HERE, PARTITIONS)
ELSEWHERE = next(name for name in map("room-{}".format, range(100)) if partition_of(name, PARTITIONS) != PARTITION)
SOON = {"stale_after": 1}


@pytest.fixture
async def one(cluster: LocalCluster, worker: Instance) -> Instance:
    """Bob has read nothing in two channels of different partitions, and follows a thread; dave is in the second one."""
    one = await cluster.open("one", **SOON)
    await one.chat.open_channel("alice", "bob", channel=HERE)
    await one.chat.open_channel("alice", "bob", "dave", channel=ELSEWHERE)
    await one.chat.send("alice", "m1", channel=HERE)
    await one.chat.send("alice", "m1", channel=ELSEWHERE)
    await one.chat.post("bob", HERE, id="r1", thread_id="m1")
    await one.chat.post("alice", HERE, id="r2", thread_id="m1")
    await cluster.all_done(one, MESSAGE_WRITER)
    return one


async def unread(instance: Instance, channel: str) -> Any:
    return await instance.chat.ask("GET", f"/v1/users/bob/channels/{channel}/unread")


async def exact(instance: Instance, channel: str = HERE) -> tuple[bool, str | None]:
    row = await unread(instance, channel)
    return row["exact"], row.get("reason")


async def becomes(instance: Instance, expected: bool) -> None:
    async def is_so() -> bool:
        return (await exact(instance))[0] is expected

    await eventually(is_so, f"exact is {expected}")


async def falls_behind(worker: Instance, one: Instance) -> None:
    """Nobody writes messages, and one is accepted; returns when the count says that it is old."""
    await worker.stop_workers()
    await one.accept("alice", "m2", HERE)
    await becomes(one, False)


async def test_counts_of_channels_that_wait_are_stale_until_the_writer_has_caught_up(
    cluster: LocalCluster, worker: Instance, one: Instance
) -> None:
    two = await cluster.open("two", **SOON)  # it never sends a message itself
    await falls_behind(worker, one)
    await becomes(two, False)

    for instance in (one, two):
        row = await unread(instance, HERE)
        assert (row["unread"], row["exact"], row["reason"]) == (1, False, "stale")
        assert await exact(instance, ELSEWHERE) == (True, None)

    worker.start_worker(MESSAGE_WRITER)
    for instance in (one, two):
        await becomes(instance, True)
        assert (await unread(instance, HERE))["unread"] == 2


async def test_every_answer_that_counts_says_so(worker: Instance, one: Instance) -> None:
    ask, users = one.chat.ask, ["bob", "dave"]
    assert "exact" not in (await one.chat.sync("bob"))["totals"]
    await falls_behind(worker, one)

    sync = await one.chat.sync("bob")
    assert {row["channel_id"]: row["exact"] for row in sync["channels"]} == {HERE: False, ELSEWHERE: True}
    assert [(sync[name]["exact"], sync[name]["reason"]) for name in ("totals", "threads")] == [(False, "stale")] * 2
    assert "exact" not in (await one.chat.sync("dave"))["totals"]

    totals = (await ask("POST", "/v1/unread/batch", {"users": users}))["users"]
    assert [(totals[name]["exact"], totals[name].get("reason")) for name in users] == [(False, "stale"), (True, None)]

    rows = (await ask("GET", "/v1/users/bob/inbox"))["conversations"]
    assert {row["channel_id"]: row.get("reason") for row in rows} == {HERE: "stale", ELSEWHERE: None}

    threads = await ask("GET", "/v1/users/bob/threads")
    assert threads["totals"] == {"unread": 1, "threads": 1, "exact": False, "reason": "stale"}
    assert [(row["exact"], row["reason"]) for row in threads["threads"]] == [(False, "stale")]

    explained = [await ask("GET", f"/v1/users/bob/channels/{name}/explain") for name in (HERE, ELSEWHERE)]
    assert [(one["exact"], one.get("reason")) for one in explained] == [(False, "stale"), (True, None)]


async def test_it_is_ready_and_says_that_it_is_behind(worker: Instance, one: Instance) -> None:
    ready = await one.chat.ask("GET", "/readyz")
    assert (ready["status"], ready["dependencies"]["messages"]) == ("ok", "ok")
    await falls_behind(worker, one)

    ready = await one.chat.ask("GET", "/readyz")
    assert ready["status"] == "behind"
    assert ready["dependencies"]["messages"].startswith("behind: messages have waited for ")
    assert ready["dependencies"]["messages"].endswith(f" in 1 of {PARTITIONS} partitions")
    assert ready["dependencies"]["log"] == "ok"
    assert _metric("readstate_apply_lag_seconds") > 0

    worker.start_worker(MESSAGE_WRITER)
    await becomes(one, True)
    assert (await one.chat.ask("GET", "/readyz"))["status"] == "ok"


async def test_messages_are_refused_while_too_much_waits(
    cluster: LocalCluster, worker: Instance, one: Instance
) -> None:
    strict = await cluster.open("strict", **SOON, max_lag=1)
    await falls_behind(worker, one)
    body = {"channel_id": HERE, "sender_id": "alice", "id": "m3"}

    async def is_refused() -> bool:
        return (await strict.chat.call("POST", "/v1/messages", body, headers={"prefer": ""})).status_code == 503

    await eventually(is_refused, "messages are refused")
    check_problem(await strict.chat.call("POST", "/v1/messages", body), 503, "messages_behind")
    both = {"messages": [{**body, "channel_id": ELSEWHERE, "id": "with"}, body]}
    check_problem(await strict.chat.call("POST", "/v1/messages", both), 503, "messages_behind")
    await strict.accept("alice", "m2", ELSEWHERE)
    await one.accept("alice", "m4", HERE)  # it has no limit

    worker.start_worker(MESSAGE_WRITER)
    await becomes(strict, True)
    await strict.chat.send("alice", "m5", channel=HERE)
    waiting = await strict.chat.waiting("bob", channel=HERE, order="oldest")
    assert (waiting[:2], waiting[-2:]) == (["m1", "m2"], ["m4", "m5"])
    assert await strict.chat.waiting("bob", channel=ELSEWHERE, order="oldest") == ["m1", "m2"]


async def test_a_process_that_starts_meanwhile_knows_it_at_once(
    cluster: LocalCluster, worker: Instance, one: Instance
) -> None:
    await falls_behind(worker, one)

    late = await cluster.open("late", **SOON)

    assert late.rs.cluster.backlog.stale() == {PARTITION}
    await late.is_fresh()
    assert await exact(late) == (False, "stale")
    assert await exact(late, ELSEWHERE) == (True, None)


async def test_a_writer_that_is_stuck_on_one_event_is_behind_too(
    worker: Instance, one: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = ChannelEvents.begin
    faulty = True

    async def fail(self: ChannelEvents, records: Sequence[Consumed]) -> Finish:
        if faulty and any(b"odd" in record.value for record in records):
            raise ValueError("it can't be applied")
        return await begin(self, records)

    await worker.stop_workers()
    monkeypatch.setattr(ChannelEvents, "begin", fail)
    worker.start_worker(MESSAGE_WRITER)
    await one.accept("alice", "odd", HERE)
    await becomes(one, False)
    assert await exact(one, ELSEWHERE) == (True, None)

    faulty = False
    await becomes(one, True)


async def test_devices_that_were_told_old_numbers_are_told_the_exact_ones(worker: Instance, one: Instance) -> None:
    screen = await synced(one)
    await screen.connect(one)
    await falls_behind(worker, one)
    await one.chat.read("bob", HERE)
    await one.chat.read("bob", ELSEWHERE)
    await one.rs.live.flushed("bob")
    assert screen.doubtful == [HERE]

    worker.start_worker(MESSAGE_WRITER)

    async def is_sure() -> bool:
        return not screen.doubtful

    await eventually(is_sure, "the device has exact numbers")
    await screen.shows_what_is_there(one)
    assert screen.state.channels[HERE]["unread"] == 1


def _metric(name: str) -> float:
    lines = generate_latest(telemetry.REGISTRY).decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))
