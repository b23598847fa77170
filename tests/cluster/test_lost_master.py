"""One of three masters is lost: users of its slots are stale, and wait until they are whole. Others notice nothing."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from readstate.services.cursors import SyncCursor
from readstate.stack import ValkeyCluster
from readstate.workers import MESSAGE_WRITER, RECEIPT_PERSISTER
from tests.slots import room_in, user_in
from tests.valkey_postgres.on_servers import Held

from .fleet import Backends, shared_backends
from .hard import Instance, LocalCluster, is_written, local_cluster

LOST = 1
"""The master that is lost."""
LOSER, KEEPERS = user_in(LOST), (user_in(0), user_in(2))
EVERYONE = (LOSER, *KEEPERS)
SMALL, BIG = room_in(0), room_in(LOST)
"""A channel with ledgers on a master that stays, and one with a timeline on the master that is lost."""
LEFT = ["m2", "m4", "m5"]


@pytest.fixture(scope="module")
def valkeys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    with ValkeyCluster(tmp_path_factory.mktemp("masters") / "cluster", persistent=False) as valkeys:
        for node in valkeys.nodes:
            node.demand("CONFIG", "SET", "cluster-require-full-coverage", "no")
        yield valkeys


@pytest.fixture
async def cluster(tmp_path: Path, valkeys: ValkeyCluster) -> AsyncIterator[LocalCluster]:
    """Its hot store loses the state of one master only."""
    backends: Backends = await asyncio.to_thread(shared_backends)
    backends = backends._replace(valkey=valkeys.nodes[LOST], hot_url=valkeys.url)
    async with local_cluster(tmp_path, backends) as cluster:
        yield cluster


@pytest.fixture
async def one(cluster: LocalCluster, worker: Instance) -> Instance:
    """Everyone has read everything there, and marked it unread from m2 on: only the log knows that."""
    one = await cluster.open("one")
    await one.chat.open_channel(*EVERYONE, channel=SMALL)
    await one.chat.open_channel("alice", "carol", "dave", *EVERYONE, channel=BIG)
    for room in (SMALL, BIG):
        names = [f"m{n}" for n in range(1, 6)]
        await one.chat.post_all(
            {"channel_id": room, "sender_id": "alice", "id": name, "outside": True} for name in names
        )
    await cluster.all_done(one, MESSAGE_WRITER)
    for user in EVERYONE:
        for room in (SMALL, BIG):
            await one.chat.read(user, room)
            await one.chat.mark_unread(user, "m2", room)
    return one


class Loads:
    """Users whom processes load from the database."""

    def __init__(self, *instances: Instance) -> None:
        self.users: Counter[str] = Counter()
        for instance in instances:
            self._watch(instance.rs.durable)

    def _watch(self, durable: Any) -> None:
        load = durable.load_user

        async def load_user(user: str) -> Any:
            self.users[user] += 1
            return await load(user)

        durable.load_user = load_user


async def lose(cluster: LocalCluster, valkeys: ValkeyCluster, how: str) -> None:
    if how == "emptied":
        cluster.lose_hot_store()
        return
    await asyncio.to_thread(valkeys.nodes[LOST].stop)
    await asyncio.to_thread(valkeys.start)


async def is_exact(user: str, unread: int, *instances: Instance) -> None:
    for instance in instances:
        for room in (SMALL, BIG):
            assert await instance.chat.count(user, room) == unread
        page = await instance.chat.sync(user)
        assert [(row["exact"], row["unread"]) for row in page["channels"]] == [(True, unread)] * 2
        assert page["totals"]["unread"] == 2 * unread
        assert "reason" not in page["totals"]


async def is_stale(user: str, *instances: Instance) -> None:
    for instance in instances:
        for room in (SMALL, BIG):
            answer = await instance.chat.unread(user, room)
            assert (answer["exact"], answer["reason"]) == (False, "stale")


@pytest.mark.parametrize("how", ["emptied", "restarted"])
async def test_only_users_of_the_lost_master_are_stale_wait_and_are_loaded_again(
    cluster: LocalCluster, valkeys: ValkeyCluster, worker: Instance, one: Instance, two: Instance, how: str
) -> None:
    """Nobody brings reads to the database until the others have read: they wait for nothing of it."""
    for user in EVERYONE:
        await is_exact(user, 4, one, two)
    loads = Loads(worker, one, two)
    await lose(cluster, valkeys, how)

    for user in KEEPERS:
        await is_exact(user, 4, one, two)
    totals = await one.rs.unread.totals([LOSER])  # the first that this process hears of it
    assert not totals[LOSER].exact
    await two.rs.unread.totals([LOSER])
    await is_stale(LOSER, one, two)
    for user in KEEPERS:
        await is_exact(user, 4, one, two)

    waits = Held(one.rs.cluster.freshness, "caught_up", only_first=True)
    reading = asyncio.create_task(one.chat.read(LOSER, SMALL, messages=["m3"]))
    await waits.reached()
    waits.let_go()
    for user in KEEPERS:
        for instance, room in ((one, SMALL), (two, BIG)):
            await instance.chat.read(user, room, messages=["m3"])
        await is_exact(user, 3, one, two)
    assert not reading.done()
    await is_stale(LOSER, one, two)

    await is_written(cluster, worker)
    await reading
    await one.is_fresh()
    await two.is_fresh()
    assert await two.chat.count(LOSER, BIG) == 4
    await two.chat.read(LOSER, BIG, messages=["m3"])
    for user in EVERYONE:
        await is_exact(user, 3, one, two)
        for room in (SMALL, BIG):
            assert await two.chat.waiting(user, channel=room, order="oldest") == LEFT
    assert loads.users[LOSER] > 0
    assert [loads.users[user] for user in KEEPERS] == [0, 0]

    await cluster.all_done(one, RECEIPT_PERSISTER)
    await lose(cluster, valkeys, how)
    await one.rs.unread.totals([LOSER])
    await two.rs.unread.totals([LOSER])
    await one.is_fresh()
    await two.is_fresh()
    for user in EVERYONE:
        await is_exact(user, 3, one, two)
    assert [loads.users[user] for user in KEEPERS] == [0, 0]


async def test_reads_of_users_of_other_masters_do_not_wait_for_one_that_is_down(
    cluster: LocalCluster, valkeys: ValkeyCluster, one: Instance
) -> None:
    """Reads of all of them arrive together, and share batches."""
    for user in EVERYONE:
        await one.chat.unread(user, SMALL)
    await asyncio.to_thread(valkeys.nodes[LOST].stop)
    try:
        lost = []
        for message in ("m3", "m4", "m5"):
            lost += [asyncio.create_task(one.chat.read(LOSER, SMALL, messages=[message])) for _ in range(3)]
            await asyncio.gather(*(one.chat.read(user, SMALL, messages=[message]) for user in KEEPERS))
        await asyncio.gather(*lost, return_exceptions=True)
        for user in KEEPERS:
            assert await one.chat.count(user, SMALL) == 1
    finally:
        await asyncio.to_thread(valkeys.start)


# ---------------------------------------------------------------- one answer about several users


@pytest.fixture
async def lost(cluster: LocalCluster, one: Instance, two: Instance) -> None:
    """Both processes know of the loss, and nobody brings reads to the database."""
    for instance in (one, two):
        for user in EVERYONE:
            await instance.chat.unread(user, SMALL)
    cluster.lose_hot_store()
    for instance in (one, two):
        await instance.knows_of_the_loss()


@pytest.mark.usefixtures("lost")
async def test_totals_of_many_are_stale_user_by_user(one: Instance, two: Instance) -> None:
    for instance in (one, two):
        answer = await instance.chat.ask("POST", "/v1/unread/batch", {"users": EVERYONE})
        reasons = {user: totals.get("reason") for user, totals in answer["users"].items()}
        assert reasons == {LOSER: "stale"} | dict.fromkeys(KEEPERS)
        assert {answer["users"][user]["unread"] for user in KEEPERS} == {8}


@pytest.mark.usefixtures("lost")
async def test_reads_of_many_in_one_request_are_done_before_it_waits_for_some_of_them(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance
) -> None:
    waits = Held(one.rs.cluster.freshness, "caught_up", only_first=True)
    reads = [{"user_id": user, "channel_id": SMALL, "messages": ["m3"]} for user in EVERYONE]
    reading = asyncio.create_task(one.chat.read_many(*reads))
    await waits.reached()
    for user in KEEPERS:
        assert await two.chat.count(user, SMALL) == 3
    await is_stale(LOSER, two)
    waits.let_go()

    await is_written(cluster, worker)
    assert [(result["status"], result["changed"]) for result in await reading] == [("ok", True)] * 3
    await two.is_fresh()
    for user in EVERYONE:
        assert await two.chat.waiting(user, channel=SMALL, order="oldest") == LEFT


# ---------------------------------------------------------------- cursors


@pytest.mark.usefixtures("lost")
async def test_only_cursors_of_users_of_the_lost_master_are_in_doubt(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance
) -> None:
    """One that is in doubt brings everything again; one that is not brings what has changed since."""
    cursors = {}
    for user in EVERYONE:
        pages = [
            await one.chat.inbox(user),
            await one.chat.sync(user),
            await one.chat.sync(user, only_unread="false"),
        ]
        for page in pages:
            cursors[user] = page["sync"]
            assert one.rs.cursors.decode(cursors[user], SyncCursor, user).sure is (user != LOSER)

    await is_written(cluster, worker)
    await two.is_fresh()
    for user in EVERYONE:
        delta = await two.chat.sync(user, since=cursors[user])
        changed = {row["channel_id"]: row["unread"] for row in delta["channels"]}
        assert changed == ({SMALL: 4, BIG: 4} if user == LOSER else {})


async def test_a_cursor_is_in_doubt_if_the_loss_comes_while_its_page_is_made(
    cluster: LocalCluster, one: Instance
) -> None:
    """The rows are of the time after the loss: a read that only the log has is not among them."""
    await one.chat.unread(LOSER, SMALL)
    waits = Held(one.rs.inbox, "rows", only_first=True)
    asking = asyncio.create_task(one.chat.inbox(LOSER))
    await waits.reached()
    cluster.lose_hot_store()
    await one.knows_of_the_loss()
    waits.let_go()
    page = await asking
    assert page["reason"] == "stale"
    assert not one.rs.cursors.decode(page["sync"], SyncCursor, LOSER).sure
