"""Hard cases of what happens in channels, with several processes: one order, whoever is late."""

import asyncio

import pytest

from readstate.domain.events import Consumed, DeadLetter
from readstate.domain.rooms import partition_of
from readstate.telemetry import WORKER_RETRIES
from readstate.workers import DEAD_LETTERS, MESSAGE_WRITER, RECEIPT_PERSISTER
from tests.conftest import check_problem, eventually, of
from tests.contract import postgres
from tests.postgres.test_postgres_outages import Wire
from tests.valkey_postgres.on_servers import Held

from .fleet import PARTITIONS
from .hard import BIG, ROOMS, SMALL, Instance, LocalCluster, Unplugged, is_left, is_written, manual_writer


async def new_records(cluster: LocalCluster, known: list[Consumed]) -> list[Consumed]:
    return [record for record in await cluster.records(cluster.stores.topics.messages) if record not in known]


# ---------------------------------------------------------------- 3: whoever wakes up late


@ROOMS
@pytest.mark.parametrize("part", ["channels", "users"])
async def test_case_3_a_writer_that_was_replaced_wakes_up_late(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, room: str, part: str
) -> None:
    """What was read, deleted and left meanwhile stays so: its transaction is done, its hot steps come last."""
    await one.chat.join("zoe", channel=room)
    await cluster.all_done(one, MESSAGE_WRITER)
    await worker.stop_workers()
    known = await cluster.records(cluster.stores.topics.messages)
    for name in ("m6", "m7", "m8"):
        await one.accept("alice", name, room)
    paused = await cluster.open("paused")
    held = Held(getattr(paused.rs.hot, part), "apply")
    late = asyncio.create_task(manual_writer(paused).handle(await new_records(cluster, known)))
    await held.reached()

    worker.start_worker(MESSAGE_WRITER)
    await cluster.all_done(one, MESSAGE_WRITER)
    await one.chat.read("bob", room, messages=["m6"])
    await two.chat.delete("m7", room)
    await two.chat.leave("zoe", channel=room)
    held.let_go()
    await late

    left = ["m1", "m2", "m3", "m4", "m5", "m8"]
    await is_left(room, left, one, two)
    assert (await one.chat.sync("zoe", only_unread="false"))["channels"] == []
    await is_written(cluster, worker)
    cluster.lose_hot_store()
    await is_left(room, left, one, two)


# ---------------------------------------------------------------- 4: loaders


@ROOMS
async def test_case_4_a_deleted_message_does_not_come_back_with_a_load_that_is_older(
    cluster: LocalCluster, one: Instance, two: Instance, room: str
) -> None:
    for number, name in enumerate(("load_user", "load_ledgers", "load_timeline", "load_channels")):
        cluster.lose_hot_store()
        await one.is_fresh()
        if name != "load_user":
            await one.rs.loader.view("bob", [room])
        held = Held(one.rs.durable, name, with_answer=True, only_first=True)
        look = asyncio.create_task(one.chat.unread("bob", room))
        loads = await held.is_reached_before(look)  # else this kind of channel is not loaded that way
        await two.chat.delete(f"m{5 - number}", room)
        held.let_go()
        await look
        assert await one.chat.count("bob", room) == 4 - number, name
        assert loads or name in {"load_ledgers", "load_timeline", "load_channels"}
    await is_left(room, ["m1"], one, two)


# ---------------------------------------------------------------- 10: since


def two_parts() -> tuple[str, str]:
    """Channels that have their order in different parts of the log."""
    other = next(name for name in map("room{}".format, range(100)) if is_elsewhere(name))
    return "first", other


def is_elsewhere(name: str) -> bool:
    return partition_of(name, PARTITIONS) != partition_of("first", PARTITIONS)


STEPS = [
    ("durable", "apply", False),
    ("durable", "apply", True),
    ("channels", "apply", False),
    ("users", "apply", False),
    ("channels", "passed", False),
]


@pytest.mark.parametrize("big", [False, True], ids=["ledgers", "timelines"])
@pytest.mark.parametrize(("part", "step", "with_answer"), STEPS)
async def test_case_10_a_change_that_is_done_after_a_later_one_was_seen_is_not_skipped(
    cluster: LocalCluster,
    worker: Instance,
    one: Instance,
    two: Instance,
    part: str,
    step: str,
    with_answer: bool,
    big: bool,
) -> None:
    first, second = two_parts()
    members = ("alice", "bob", "carol", "dave") if big else ("alice", "bob")
    for name in (first, second):
        await one.chat.open_channel(*members, channel=name)
    await cluster.all_done(one, MESSAGE_WRITER)
    await worker.stop_workers()
    known = await cluster.records(cluster.stores.topics.messages)
    before = (await one.chat.sync("bob"))["sync"]
    for name in (first, second):
        await one.accept("alice", "new", name)
    records = {record.partition: record for record in await new_records(cluster, known)}
    paused = await cluster.open("paused")
    owner = paused.rs.durable if part == "durable" else getattr(paused.rs.hot, part)
    held = Held(owner, step, with_answer=with_answer)
    late = asyncio.create_task(manual_writer(paused).handle([records[partition_of(first, PARTITIONS)]]))
    await held.reached()

    await manual_writer(worker).handle([records[partition_of(second, PARTITIONS)]])
    seen = await two.chat.sync("bob", since=before)
    held.let_go()
    await late
    then = await one.chat.sync("bob", since=seen["sync"])

    unread = {row["channel_id"]: row["unread"] for row in [*seen["channels"], *then["channels"]]}
    assert second in {row["channel_id"] for row in seen["channels"]}
    assert (unread[first], unread[second]) == (1, 1)


# ---------------------------------------------------------------- 11: settings that differ


async def test_case_11_a_channel_outgrows_the_limit_with_instances_whose_settings_differ(
    cluster: LocalCluster, worker: Instance, one: Instance
) -> None:
    """Whoever writes decides, once; everybody else goes by what the channel says."""
    await worker.stop_workers()
    loose = await cluster.open("loose", MESSAGE_WRITER, fanout_max_members=100)
    await one.chat.open_channel("alice", "bob", "carol", "dave", "erin", channel="room")
    await one.chat.send("alice", "m1", "m2", "m3", channel="room")
    await loose.chat.read("bob", "room", up_to="m1")
    assert await modes(one, loose) == ["ledger", "ledger"]
    await cluster.all_done(one, MESSAGE_WRITER)
    await loose.stop_workers()

    tight = await cluster.open("tight", fanout_max_members=3)
    switches = Held(tight.rs.hot.users, "apply", only_first=True)
    tight.start_worker(MESSAGE_WRITER)
    joins = asyncio.create_task(loose.chat.join("frank", channel="room", history="unread"))
    await switches.reached()
    await one.chat.read("bob", "room", messages=["m3"])
    for instance in (one, loose, tight):
        answer = await instance.chat.unread("bob", "room")
        assert (answer["unread"], answer["exact"]) == (1, True)
    switches.let_go()
    await joins
    assert await modes(one, loose, tight) == ["timeline"] * 3
    await cluster.all_done(one, MESSAGE_WRITER)
    await tight.stop_workers()

    loose.start_worker(MESSAGE_WRITER)
    await one.chat.leave("carol", "dave", "erin", channel="room")
    await one.chat.send("alice", "m4", channel="room", mentions=["bob"])
    assert await modes(one, loose, tight) == ["timeline"] * 3
    await is_left("room", ["m2", "m4"], one, loose, tight)
    assert (await tight.chat.unread("bob", "room"))["mentions"] == 1
    assert await one.chat.count("frank", "room") == 4
    await is_written(cluster, worker)
    cluster.lose_hot_store()
    await is_left("room", ["m2", "m4"], loose, tight, one)
    assert await tight.chat.count("frank", "room") == 4


async def modes(*instances: Instance) -> list[str]:
    return [(await instance.chat.explain("bob", "room"))["mode"] for instance in instances]


# ---------------------------------------------------------------- 12: what is gone


@ROOMS
@pytest.mark.parametrize("where", ["in the log", "on its way to the log", "in a spool"])
async def test_case_12_late_reads_of_a_deleted_channel_hide_nothing_in_the_new_one(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, room: str, where: str
) -> None:
    held = Held(one.rs.cluster.log, "reads") if where == "on its way to the log" else None
    cable = Unplugged(one) if where == "in a spool" else None
    read = asyncio.create_task(one.chat.call("POST", f"{of('bob', room)}/read", {}))
    if held is not None:
        await held.reached()
    else:
        await read
    await two.chat.delete_channel(room)
    await two.chat.open_channel("alice", "bob", *(("carol", "dave", "erin") if room == BIG else ()), channel=room)
    await two.chat.send("alice", "m1", channel=room)

    if held is not None:
        held.let_go()
    if cable is not None:
        await cable.mend()
    await read
    await is_written(cluster, worker)

    await is_left(room, ["m1"], one, two)
    cluster.lose_hot_store()
    await is_left(room, ["m1"], one, two)


@pytest.mark.parametrize("where", ["the log", "a spool", "a dead letter"])
async def test_case_12_late_reads_of_somebody_who_was_erased_bring_nothing_back(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, where: str
) -> None:
    cable = Unplugged(one) if where == "a spool" else None
    await one.chat.read("bob", SMALL, up_to="m3")
    topics, now = cluster.stores.topics, one.rs.clock()
    if where == "a dead letter":
        value = (await cluster.records(topics.reads))[0].value.decode()
        assert '"bob"' in value
        await one.rs.cluster.sender.dead(topics.reads, [DeadLetter(value, "refused", 3, topics.reads, 0, 0, now)])

    await two.chat.ask("DELETE", "/v1/users/bob")
    if cable is not None:
        await cable.mend()
    worker.start_worker(DEAD_LETTERS)
    await is_written(cluster, worker)
    await dead_letters_are_done(cluster, worker)

    assert [key for key in await cluster.receipts() if key[0] == "bob"] == []
    assert await cluster.sql("SELECT event FROM dead_letters") == []
    for instance in (one, two):
        assert (await instance.chat.sync("bob", only_unread="false"))["channels"] == []
    assert await one.chat.receipts(SMALL) == {"alice": 5}


async def dead_letters_are_done(cluster: LocalCluster, instance: Instance) -> None:
    topics, watcher = cluster.stores.topics, instance.rs.cluster.watcher

    async def done() -> bool:
        return not await watcher.lag(topics.dead_letters, topics.dead(topics.reads))

    await eventually(done, "the dead letters are done")


async def test_case_12_a_join_and_a_mention_that_are_written_after_somebody_was_erased(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance
) -> None:
    await one.chat.open_channel("alice", "carol", channel="later")
    writes = Held(worker.rs.durable, "apply")
    joins = asyncio.create_task(one.chat.join("bob", channel="later", history="unread"))
    await writes.reached()
    await one.accept("alice", "hello", "later", mentions=["bob"])
    erases = Held(two.rs.cluster.durable.transfer, "erase", with_answer=True, only_first=True)
    erased = asyncio.create_task(two.chat.ask("DELETE", "/v1/users/bob"))
    await erases.reached()

    writes.let_go()
    erases.let_go()
    await asyncio.gather(erased, joins)
    await cluster.all_done(one, MESSAGE_WRITER)

    members = {member["user_id"] for member in (await one.chat.members("later"))["members"]}
    assert members == {"alice", "carol"}
    assert (await two.chat.sync("bob", only_unread="false"))["channels"] == []
    await one.is_fresh()  # an erase drops all that is hot
    assert await one.chat.count("carol", "later") == 1
    assert await cluster.sql("SELECT FROM members WHERE user_id = 'bob'") == []


# ---------------------------------------------------------------- 13: not there yet, and there no more


async def test_case_13_a_reply_to_and_a_read_up_to_a_message_in_the_log_wait_for_it(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance
) -> None:
    await worker.stop_workers()
    await one.accept("alice", "m6")
    waits = [Held(instance.rs.cluster.log, "settled", only_first=True) for instance in (one, two)]
    reply = asyncio.create_task(one.chat.post("bob", SMALL, id="r1", thread_id="m6"))
    reads = asyncio.create_task(two.chat.read("bob", SMALL, up_to="m6"))
    for wait in waits:
        await wait.reached()
        wait.let_go()

    worker.start_worker(MESSAGE_WRITER)

    assert (await reads)["last_read"]["seq"] == 6
    assert (await reply)["thread_seq"] == 1
    await is_left(SMALL, [], one, two)
    assert await one.chat.unread_replies("alice") == {"m6": 1}


async def test_case_13_but_not_for_ever(cluster: LocalCluster, worker: Instance, one: Instance) -> None:
    await worker.stop_workers()
    hasty = await cluster.open("hasty", wait_timeout=1)
    await one.accept("alice", "m6")
    check_problem(
        await hasty.chat.call("POST", f"{of('bob', SMALL)}/read", {"up_to": "m6"}), 404, "message_not_found", "up_to"
    )
    reply = {"channel_id": SMALL, "sender_id": "bob", "thread_id": "m6"}
    check_problem(await hasty.chat.call("POST", "/v1/messages", reply), 404, "thread_not_found")


async def test_case_13_a_message_whose_sender_was_removed_before_it_is_written_is_written(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance
) -> None:
    writes = Held(worker.rs.durable, "apply")
    leaves = asyncio.create_task(one.chat.leave("bob", channel=SMALL))
    await writes.reached()
    await two.accept("bob", "my last word")

    writes.let_go()
    await leaves
    await cluster.all_done(one, MESSAGE_WRITER)

    assert await one.chat.waiting("alice", channel=SMALL) == ["my last word"]
    assert await two.chat.count("alice", SMALL) == 1
    assert {member["user_id"] for member in (await one.chat.members(SMALL))["members"]} == {"alice"}


@ROOMS
async def test_case_13_a_message_that_is_replayed_after_its_delete_stays_deleted(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, room: str
) -> None:
    await one.chat.delete("late", room)
    await two.chat.post("alice", room, id="late", text="replayed", mentions=["bob"])
    await one.chat.delete("m5", room)
    for record in await cluster.records(cluster.stores.topics.messages):  # as somebody would who plays a letter again
        await one.rs.cluster.sender.again(record.topic, [record.value])
    await cluster.all_done(one, MESSAGE_WRITER)

    left = ["m1", "m2", "m3", "m4"]
    await is_left(room, left, one, two)
    assert (await one.chat.unread("bob", room))["mentions"] == 0
    cluster.lose_hot_store()
    await is_left(room, left, one, two)


class Line(Wire):
    """The way to the database, which can be down."""

    down = False

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.down:
            writer.close()
            return
        await super()._connect(reader, writer)

    def goes_down(self) -> None:
        self.down = True
        self.cut_all()


async def test_case_13_an_outage_of_the_database_uses_up_no_tries(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance
) -> None:
    await worker.stop_workers()
    url = worker.rs.settings.database_url
    line = Line(postgres.server().port)
    async with line:
        before, _, after = url.rpartition(str(postgres.server().port))
        far = await cluster.open("far", database_url=f"{before}{line.port}{after}?sslmode=disable")
        roles = (MESSAGE_WRITER, RECEIPT_PERSISTER)
        far.start_worker(*roles)
        await cluster.all_done(one, *roles)
        line.goes_down()
        tries = {role: WORKER_RETRIES.labels(role, "dependency")._value.get() for role in roles}
        await one.accept("alice", "m6")
        await two.chat.read("bob", SMALL, up_to="m4")

        async def tried_more_than_three_times() -> bool:
            return all(WORKER_RETRIES.labels(role, "dependency")._value.get() >= tries[role] + 5 for role in roles)

        await eventually(tried_more_than_three_times, "both have tried again and again")
        line.down = False

        await cluster.all_done(one, *roles)
        topics, watcher = cluster.stores.topics, one.rs.cluster.watcher
        for topic in (topics.messages, topics.reads):
            assert not any((await watcher.ends(topics.dead(topic))).values())
        assert (await cluster.receipts())["bob", SMALL][1] == 4
        await is_left(SMALL, ["m5", "m6"], one, two)
        await far.stop_workers()
