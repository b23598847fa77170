"""Hard cases of reading, with several processes: what is acknowledged is in the log, and is never lost again."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from readstate.domain.errors import LogUnavailable
from readstate.domain.events import ReadEvent
from readstate.domain.model import NO_CHANGE
from readstate.workers import MESSAGE_WRITER, RECEIPT_PERSISTER
from tests.conftest import check_problem, eventually, of
from tests.valkey_postgres.on_servers import Held

from .hard import BIG, ROOMS, SMALL, Instance, LocalCluster, Unplugged, is_left, is_written, manual_writer

LOOKS = 20
"""Of somebody who looks five times a second: longer than it takes to be sure that nothing is on its way."""

# ---------------------------------------------------------------- 1: acknowledged, and only in the log


@pytest.fixture(params=[SMALL, BIG])
async def marked(request: pytest.FixtureRequest, cluster: LocalCluster, one: Instance, two: Instance) -> str:
    """Bob has read everything there, and marked it unread from m2 on: only the log knows that."""
    room: str = request.param
    await one.chat.read("bob", room)
    await cluster.all_done(one, MESSAGE_WRITER)
    await two.chat.mark_unread("bob", "m2", room)
    return room


async def reads_m3(instance: Instance, room: str) -> None:
    await instance.chat.read("bob", room, messages=["m3"])


async def marks_m4_unread(instance: Instance, room: str) -> None:
    await instance.chat.mark_unread("bob", "m4", room)


Act = Callable[[Instance, str], Coroutine[Any, Any, None]]
ACTS = pytest.mark.parametrize(
    ("act", "left"), [(reads_m3, ["m2", "m4", "m5"]), (marks_m4_unread, ["m2", "m3", "m4", "m5"])]
)


@ACTS
async def test_case_1_after_the_loss_bob_waits_until_the_database_has_his_mark_unread(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, marked: str, act: Act, left: list[str]
) -> None:
    cluster.lose_hot_store()
    totals = await one.rs.unread.totals(["bob"])  # the first that this process hears of it
    assert not totals["bob"].exact
    for instance in (one, two):
        answer = await instance.chat.unread("bob", marked)
        assert (answer["exact"], answer["reason"]) == (False, "stale")
    waits = Held(one.rs.cluster.freshness, "caught_up", only_first=True)
    acting = asyncio.create_task(act(one, marked))
    await waits.reached()
    waits.let_go()

    worker.start_worker(RECEIPT_PERSISTER)
    await acting

    await is_left(marked, left, one, two)
    await cluster.all_done(one, RECEIPT_PERSISTER)
    cluster.lose_hot_store()
    await is_left(marked, left, two, one)


LOSSES = pytest.mark.parametrize("loss", ["before", "after"])
"""The hot store is lost before something is accepted, or after that and before it is written."""


async def is_done_through_a_loss(
    cluster: LocalCluster, worker: Instance, act: Coroutine[Any, Any, Any], loss: str
) -> None:
    """What bob does is accepted, then written, and then the database gets what he had marked unread before."""
    if loss == "before":
        cluster.lose_hot_store()
    await worker.stop_workers()
    before = len(await cluster.records(cluster.stores.topics.messages))
    waiting = asyncio.create_task(act)

    async def accepted() -> bool:
        return len(await cluster.records(cluster.stores.topics.messages)) > before

    await eventually(accepted, "the log has it")
    if loss == "after":
        cluster.lose_hot_store()
    worker.start_worker(MESSAGE_WRITER)
    await is_written(cluster, worker)
    await waiting


@LOSSES
async def test_case_1_by_sending_bob_reads_in_the_epoch_that_only_the_log_has(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, marked: str, loss: str
) -> None:
    await is_done_through_a_loss(cluster, worker, one.chat.send("bob", "mine", channel=marked), loss)
    await is_left(marked, [], one, two)


@LOSSES
async def test_case_1_by_joining_bob_reads_in_the_epoch_that_only_the_log_has(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, marked: str, loss: str
) -> None:
    await one.chat.leave("bob", channel=marked)
    await is_done_through_a_loss(cluster, worker, one.chat.join("bob", channel=marked), loss)
    await is_left(marked, [], one, two)


async def test_case_1_a_spool_is_known_of_when_its_process_and_the_hot_store_are_gone(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance
) -> None:
    Unplugged(one)
    await one.chat.read("bob", SMALL)
    await one.rs.close()
    cluster.lose_hot_store()
    looks: list[bool] = []
    persister = two.rs.cluster.freshness._persister
    ask = persister._progress.spooled

    async def asked() -> bool:
        looks.append(await ask())
        return looks[-1]

    persister._progress = persister._progress._replace(spooled=asked)
    await two.knows_of_the_loss()
    worker.start_worker(RECEIPT_PERSISTER)

    async def looked_often() -> bool:
        return len(looks) > LOOKS

    await eventually(looked_often, "somebody asks whether all is there", 30)
    assert all(looks)
    assert two.is_behind

    again = await cluster.open("one")
    await is_left(SMALL, [], two, again)


@ACTS
@pytest.mark.parametrize("step", ["generation", "move", "dropped"])
async def test_case_1_the_loss_comes_at_any_step_of_what_bob_does_next(
    cluster: LocalCluster,
    worker: Instance,
    one: Instance,
    two: Instance,
    marked: str,
    act: Act,
    left: list[str],
    step: str,
) -> None:
    """And somebody else has him loaded at once, without what only the log has."""
    held = Held(one.rs.hot.users, step, only_first=True)
    acting = asyncio.create_task(act(one, marked))
    await held.reached()
    cluster.lose_hot_store()
    assert (await two.chat.unread("bob", marked))["reason"] == "stale"
    waits = Held(one.rs.cluster.freshness, "caught_up", only_first=True)
    held.let_go()
    await waits.reached()
    waits.let_go()

    worker.start_worker(RECEIPT_PERSISTER)
    await acting

    await is_left(marked, left, one, two)
    await cluster.all_done(one, RECEIPT_PERSISTER)
    cluster.lose_hot_store()
    await is_left(marked, left, two, one)


async def test_case_1_where_the_persister_does_not_come_bob_is_asked_to_come_again(
    cluster: LocalCluster, worker: Instance, one: Instance, marked: str
) -> None:
    hasty = await cluster.open("hasty", wait_timeout=1)
    cluster.lose_hot_store()
    for path, body in (("read", {"messages": ["m3"]}), ("unread", {"from": "m4"})):
        check_problem(await hasty.chat.call("POST", f"{of('bob', marked)}/{path}", body), 503, "unavailable")
    many = {"reads": [{"user_id": "bob", "channel_id": marked, "up_to": "m5"}]}
    check_problem(await hasty.chat.call("POST", "/v1/reads", many), 503, "unavailable")

    worker.start_worker(RECEIPT_PERSISTER)
    await is_left(marked, ["m2", "m3", "m4", "m5"], one, hasty)
    await reads_m3(hasty, marked)
    await is_left(marked, ["m2", "m4", "m5"], one, hasty)


# ---------------------------------------------------------------- 2: what nobody has written down


async def test_case_2_a_read_that_changes_nothing_is_kept_although_the_one_before_it_failed(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance
) -> None:
    produces = Held(one.rs.cluster.log, "reads", only_first=True)
    first = asyncio.create_task(one.chat.call("POST", f"{of('bob', SMALL)}/read", {"up_to": "m3"}))
    await produces.reached()

    second = await two.chat.read("bob", SMALL, up_to="m3")
    produces.fail(LogUnavailable("neither Kafka nor the disk takes it"))

    assert second["changed"] is False
    check_problem(await first, 503, "log_unavailable")
    await is_written(cluster, worker)
    cluster.lose_hot_store()
    await is_left(SMALL, ["m4", "m5"], one, two)


async def test_case_2_a_read_that_changes_nothing_finds_one_that_only_a_spool_has(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance
) -> None:
    """The process with the spool is gone before it can send it: the second read has brought the state to the log."""
    cable = Unplugged(one)
    await one.chat.read("bob", SMALL, up_to="m3")
    assert one.rs.cluster.spool.depth == 1

    second = await two.chat.read("bob", SMALL, up_to="m3")

    assert second["changed"] is False
    await is_written(cluster, worker)
    assert (await cluster.receipts())["bob", SMALL][1] == 3
    await cable.mend()
    await is_left(SMALL, ["m4", "m5"], one, two)


@ACTS
async def test_case_1_a_mark_unread_that_only_a_spool_has_is_waited_for_too(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, act: Act, left: list[str]
) -> None:
    await one.chat.read("bob", SMALL)
    await is_written(cluster, worker)
    cable = Unplugged(one)
    await one.chat.mark_unread("bob", "m2", SMALL)
    assert one.rs.cluster.spool.depth == 1
    hasty = await cluster.open("hasty", wait_timeout=2)  # longer than it takes to settle
    cluster.lose_hot_store()

    check_problem(await hasty.chat.call("POST", f"{of('bob', SMALL)}/read", {"up_to": "m5"}), 503, "unavailable")
    assert (await two.chat.unread("bob", SMALL))["reason"] == "stale"
    await cable.mend()
    await act(two, SMALL)

    await is_left(SMALL, left, one, two)
    await cluster.all_done(one, RECEIPT_PERSISTER)
    cluster.lose_hot_store()
    await is_left(SMALL, left, two, one)


# ---------------------------------------------------------------- 5 and 6: what is counted once, and read once


@ROOMS
async def test_case_5_a_message_read_one_by_one_and_then_deleted_is_taken_away_once(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, room: str
) -> None:
    await one.chat.read("bob", room, messages=["m2"])
    await two.chat.delete("m2", room)
    assert [await instance.chat.count("bob", room) for instance in (one, two)] == [4, 4]

    await is_written(cluster, worker)
    cluster.lose_hot_store()
    await is_left(room, ["m1", "m3", "m4", "m5"], one, two)


@ROOMS
async def test_case_6_an_own_send_whose_read_comes_late_reads_nothing_again(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, room: str
) -> None:
    """Bob writes, and marks all unread before that is stored; and again before the writer says what he has read."""
    await worker.stop_workers()
    writer = await cluster.open("writer")
    says = Held(writer.rs.cluster.log, "reads")
    await one.accept("bob", "own", room)
    await two.chat.mark_unread("bob", "m2", room)
    writer.start_worker(MESSAGE_WRITER)
    await says.reached()

    await two.chat.mark_unread("bob", "m1", room)
    says.let_go()

    await cluster.all_done(one, MESSAGE_WRITER)
    assert (await one.chat.post("bob", room, id="own"))["status"] == "duplicate"
    await is_left(room, ["m1", "m2", "m3", "m4", "m5"], one, two)
    await is_written(cluster, worker)
    cluster.lose_hot_store()
    await is_left(room, ["m1", "m2", "m3", "m4", "m5"], one, two)


@ROOMS
async def test_case_6_a_join_that_is_repeated_after_a_mark_unread_reads_nothing_again(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, room: str
) -> None:
    """Once by whoever calls, once by a writer that has died before it could say how far it had come."""
    await one.chat.join("frank", channel=room)
    await cluster.all_done(one, MESSAGE_WRITER)
    await two.chat.mark_unread("frank", "m4", room)

    assert (await two.chat.join("frank", channel=room))["added"] == 0
    await worker.stop_workers()
    for record in await cluster.records(cluster.stores.topics.messages):
        await manual_writer(worker).handle([record])

    assert [await instance.chat.count("frank", room) for instance in (one, two)] == [2, 2]
    await is_written(cluster, worker)
    cluster.lose_hot_store()
    for instance in (one, two):
        await instance.is_fresh()
        assert await instance.chat.count("frank", room) == 2


@ROOMS
async def test_case_6_a_mark_unread_ends_reading_by_focus_also_for_a_message_on_its_way(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, room: str
) -> None:
    """The writer has seen that bob looks at the channel; before it reads for him, he marks everything unread."""
    await one.chat.comes_online("bob", focus=room)
    await one.chat.send("alice", "seen", channel=room)
    await has_read(one, room, 6)
    looks = Held(worker.rs.hot.presence, "focused", with_answer=True, only_first=True)
    await one.accept("alice", "m7", room)
    await looks.reached()

    await two.chat.mark_unread("bob", "m2", room)
    looks.let_go()
    await cluster.all_done(one, MESSAGE_WRITER)
    await one.chat.send("alice", "m8", channel=room)

    left = ["m2", "m3", "m4", "m5", "seen", "m7", "m8"]
    await is_left(room, left, one, two)
    await one.chat.comes_online("bob", focus=room)
    await one.chat.goes_away("bob")
    await one.chat.comes_online("bob", focus=room)
    await one.chat.send("alice", "m9", channel=room)
    await has_read(two, room, 9)


async def has_read(instance: Instance, room: str, seq: int) -> None:
    """Returns when bob has read so far."""

    async def read() -> bool:
        return int((await instance.chat.unread("bob", room))["last_read"]["seq"]) == seq

    await eventually(read, f"bob has read up to {seq}")


# ---------------------------------------------------------------- 15 and 16: undo, and merging


@ROOMS
async def test_case_15_an_undo_keeps_what_was_read_one_by_one_since(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, room: str
) -> None:
    await one.chat.read("bob", room, messages=["m2"])
    token = (await two.chat.read_all("bob"))["undo"]
    await one.chat.send("alice", "m6", "m7", channel=room)
    await one.chat.read("bob", room, messages=["m7"])
    await is_written(cluster, worker)
    cluster.lose_hot_store()

    assert (await two.chat.undo("bob", token))["changed"] == 2

    await is_left(room, ["m1", "m3", "m4", "m5", "m6"], one, two)
    check_problem(await one.chat.call("POST", "/v1/users/bob/read/undo", {"undo": token}), 404, "undo_not_found")


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("together", [True, False])
async def test_case_16_two_states_of_one_epoch_merge_in_any_order(
    cluster: LocalCluster, worker: Instance, one: Instance, order: int, together: bool
) -> None:
    now = one.rs.clock()
    events = [
        ReadEvent("bob", SMALL, 7, 10, (15,), "x", now, now, NO_CHANGE, now),
        ReadEvent("bob", SMALL, 7, 12, (), "y", now, now, NO_CHANGE, now),
    ][::order]
    if together:
        await one.rs.cluster.sender.send_reads(events)
        await is_written(cluster, worker)
    else:
        worker.start_worker(RECEIPT_PERSISTER)
        for event in events:
            await one.rs.cluster.sender.send_reads([event])
            await cluster.all_done(one, RECEIPT_PERSISTER)
    assert (await cluster.receipts())["bob", SMALL] == (7, 12, frozenset({15}))
