"""The hard cases of the design in the cluster profile, each forced: a step is held where it hurts, never a sleep.

Cases are `test_case_<number>_*` in the file that is named: reads is `test_hard_cases_reads.py`, channels is
`test_hard_cases_channels.py`, here is this one. What is in brackets goes through more orders of the same case.

| case | what it is about | forced in |
| --- | --- | --- |
| 1 | a mark-unread that only the log or a spool has, and the hot store is emptied | reads |
| 2 | a read that changes nothing, after one whose produce failed | reads |
| 3 | a writer that was replaced wakes up late | channels (tests/model/test_repeats.py: dies anywhere) |
| 4 | a loader against a delete | channels (tests/valkey/test_servers_orders.py: every order) |
| 5 | read one by one, then deleted | reads |
| 6 | own sends, joins and focus after a mark-unread | reads |
| 7 | a thousand messages in one millisecond, and a tap | tests/valkey_postgres/test_badge_at_scale.py |
| 8 | a tap against the write replica, in every order | tests/valkey_postgres/test_badge_replica.py |
| 9 | who was away: repeats, losses, deaths | here; the badge: as 7; presence: tests/valkey/test_presence_valkey.py |
| 10 | a change that is done after a later one was seen | channels |
| 11 | a channel grows past the limit, with settings that differ | channels |
| 12 | late events of who or what is gone | channels |
| 13 | messages that are not there yet, or no more; outages of the database | channels |
| 14 | a database that trails is no difference | here |
| 15 | undo keeps what was read since | reads |
| 16 | two states of one epoch, in any order | reads (test_orders.py: at random) |
| 17 | one process, or many | here (tests/http/test_hard_cases.py: the embedded profile) |
| 18 | the number of partitions | here |
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from readstate import Readstate
from readstate.adapters.valkey.presence import ValkeyPresence
from readstate.domain.errors import ConfigurationError
from readstate.tasks import cancel
from readstate.workers import MESSAGE_WRITER, STATUS_UPDATE
from tests.conftest import eventually
from tests.servers import Server
from tests.valkey_postgres.on_servers import Held

from .fleet import HASTY, PARTITIONS
from .hard import BIG, ROOMS, SMALL, Instance, LocalCluster, Unplugged, is_left, is_written, manual_writer

TRIO = "trio"

# ---------------------------------------------------------------- 9: who was away


@pytest.fixture
async def trio(cluster: LocalCluster, worker: Instance, one: Instance, two: Instance) -> None:
    """Bob has a connection to the second process, carol has none anywhere."""
    worker.start_worker(STATUS_UPDATE)
    await one.chat.open_channel("alice", "bob", "carol", channel=TRIO)
    await two.rs.presence.connected("bob", "phone", "k1")
    await cluster.all_done(one, MESSAGE_WRITER, STATUS_UPDATE)
    await one.chat.tap("bob")
    await one.chat.tap("carol")
    assert [await one.chat.badge(user) for user in ("bob", "carol")] == [0, 0]


@pytest.mark.usefixtures("trio")
async def test_case_9_nobody_becomes_away_by_a_loss_of_the_hot_store(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance
) -> None:
    """The writer is about to ask who is there when everything is lost."""
    asks = Held(worker.rs.hot.presence, "online", only_first=True)
    await one.accept("alice", "hello", TRIO)
    await asks.reached()
    cluster.lose_hot_store()
    asks.let_go()
    await cluster.all_done(one, MESSAGE_WRITER, STATUS_UPDATE)

    assert [await two.chat.badge(user) for user in ("bob", "carol")] == [0, 1]
    assert await cluster.sql("SELECT receiver_id FROM undelivered WHERE message_id = 'hello'") == [("carol",)]


@pytest.mark.usefixtures("trio")
async def test_case_9_a_batch_that_is_repeated_after_presence_has_changed_decides_nothing_again(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance
) -> None:
    """The first writer is held after its transaction; the next one does it all again."""
    await worker.stop_workers()
    known = await cluster.records(cluster.stores.topics.messages)
    await one.accept("alice", "hello", TRIO)
    records = [record for record in await cluster.records(cluster.stores.topics.messages) if record not in known]
    paused = await cluster.open("paused")
    held = Held(paused.rs.hot.channels, "apply")
    late = asyncio.create_task(manual_writer(paused).handle(records))
    await held.reached()

    await one.rs.presence.connected("carol", "phone", "k2")
    worker.start_worker(MESSAGE_WRITER, STATUS_UPDATE)
    await cluster.all_done(one, MESSAGE_WRITER)
    held.let_go()
    await late
    await cluster.all_done(one, STATUS_UPDATE)

    assert [await two.chat.badge(user) for user in ("bob", "carol")] == [0, 1]
    assert await cluster.sql("SELECT receiver_id FROM undelivered WHERE message_id = 'hello'") == [("carol",)]


@pytest.mark.usefixtures("trio")
@pytest.mark.parametrize("proven", [False, True])
async def test_case_9_what_an_instance_that_dies_has_not_proven_delivered_was_not(
    cluster: LocalCluster, one: Instance, proven: bool
) -> None:
    doomed = await cluster.open("doomed")
    await doomed.rs.presence.connected("carol", "phone", "k2")
    await one.chat.send("alice", "hello", channel=TRIO)
    presence = one.rs.cluster.hot.presence
    if proven:

        async def kept() -> bool:
            return bool(await presence.unproven("carol"))

        await eventually(kept, "it is kept until it is proven")
        doomed.rs.cluster.hot.presence.sent(await presence.unproven("carol"))
        doomed.rs.presence.alive("carol")

        async def noted() -> bool:
            return not await presence.unproven("carol")

        await eventually(noted, "it is proven")
    await dies(doomed)

    async def is_gone() -> bool:
        return not (await one.chat.presence("carol"))["online"]

    await eventually(is_gone, "carol is known to be gone")
    expected = 0 if proven else 1

    async def badge() -> bool:
        return await one.chat.badge("carol") == expected

    await eventually(badge, f"the badge is {expected}")


async def dies(instance: Instance) -> None:
    """From now on it says nothing to anybody."""
    presence = instance.rs.cluster.hot.presence
    assert isinstance(presence, ValkeyPresence)
    assert presence._task is not None
    await cancel(presence._task)  # and stays there, so that no late message starts another one


# ---------------------------------------------------------------- 14: the database trails


@ROOMS
async def test_case_14_reads_that_only_the_log_has_are_no_difference(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, room: str
) -> None:
    """Whatever compares or recounts goes by the merge of both, and takes nothing of it away."""
    timings = replace(HASTY, services=replace(HASTY.services, persister=1.0))
    impatient = await cluster.open("impatient", timings=timings)
    await one.chat.read("bob", room)
    await one.chat.mark_unread("bob", "m2", room)
    await two.chat.read("bob", room, messages=["m4"])
    assert ("bob", room) not in await cluster.receipts()

    left = ["m2", "m3", "m5"]
    for instance in (one, two):
        why = await instance.chat.explain("bob", room)
        assert (why["hot"], why["durable"], why["agrees"]) == (3, 3, True)
        assert await instance.chat.recount("bob", room) == {"before": 3, "after": 3}
        await is_left(room, left, instance)
        assert (await instance.rs.audit.run(100, 1.0)).drift == []
    await two.chat.prefer("bob", room, muted=True)
    report = await impatient.rs.repair.reconcile()
    assert (report.database_behind, report.hot_store_behind) == (0, 0)
    assert report.undecided > 0
    await is_left(room, left, one, two)

    await is_written(cluster, worker)
    report = await two.rs.repair.reconcile()
    assert (report.database_behind, report.hot_store_behind, report.undecided) == (0, 0, 0)
    await is_left(room, left, one, two)


@ROOMS
async def test_case_14_preferences_that_could_not_be_kept_take_no_read_along(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, room: str
) -> None:
    await one.chat.read("bob", room)
    await one.chat.mark_unread("bob", "m2", room)
    saves = Held(two.rs.durable, "save_preferences", only_first=True)
    muting = asyncio.create_task(two.chat.call("PUT", f"/v1/users/bob/channels/{room}/preferences", {"muted": True}))
    await saves.reached()
    saves.fail(OSError("the database is gone"))
    assert (await muting).status_code >= 500

    assert (await one.chat.unread("bob", room))["muted"] is False
    await one.chat.read("bob", room, messages=["m3"])
    await is_left(room, ["m2", "m4", "m5"], one, two)
    await is_written(cluster, worker)
    cluster.lose_hot_store()
    await is_left(room, ["m2", "m4", "m5"], one, two)


# ---------------------------------------------------------------- 17 and 18: how many


async def test_case_17_many_processes_share_a_data_directory_each_with_a_spool_of_its_own(
    cluster: LocalCluster, worker: Instance, one: Instance
) -> None:
    shared = [await cluster.open(name, data_dir=one.rs.settings.data_dir, workers=2) for name in ("third", "fourth")]
    processes = [one, *shared]
    cables = [Unplugged(process) for process in processes]
    for process, name in zip(processes, ("m1", "m3", "m5"), strict=True):
        await process.chat.read("bob", SMALL, messages=[name])
    assert [process.rs.cluster.spool.depth for process in processes] == [1, 1, 1]

    for cable in cables:
        await cable.mend()
    await is_written(cluster, worker)
    cluster.lose_hot_store()
    await is_left(SMALL, ["m2", "m4"], *processes)


async def test_case_18_a_start_with_another_number_of_partitions_is_refused_with_the_reason(
    cluster: LocalCluster, worker: Instance, one: Instance, tmp_path: Path
) -> None:
    settings = cluster.stores.settings(cluster.backends, partitions=PARTITIONS + 1)
    with pytest.raises(ConfigurationError, match=f"has {PARTITIONS} partitions, not {PARTITIONS + 1}"):
        await Readstate.open(data_dir=str(tmp_path / "another"), **settings)
    home = tmp_path / "process"
    home.mkdir()
    process = Server(home, **settings)
    process.launch()
    assert await asyncio.to_thread(process.wait_for_exit) != 0
    assert f"has {PARTITIONS} partitions, not {PARTITIONS + 1}" in "".join(process.log)

    ends = await one.rs.cluster.watcher.ends(cluster.stores.topics.messages)
    assert sorted(ends) == list(range(PARTITIONS))
    await one.chat.send("alice", "m6", channel=BIG)
    assert await one.chat.count("bob", BIG) == 6
