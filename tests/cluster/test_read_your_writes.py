"""What was acknowledged shows in every later answer of any process; or the answer says that it is stale."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from readstate.stack import Valkey
from readstate.workers import RECEIPT_PERSISTER, STATUS_UPDATE
from tests.conftest import Chat, eventually
from tests.valkey_postgres.on_servers import Held

from .hard import BIG, GUESTS, ROOMS, SMALL, Instance, LocalCluster, Unplugged, is_written

STALE = (False, "stale")
EXACT = (True, None)


def exactness(answer: Any) -> tuple[bool, str | None]:
    """Sums and lists say only if they are not exact."""
    return answer.get("exact", True), answer.get("reason")


async def seen_by(chat: Chat, message: str, room: str) -> list[str]:
    """Who has seen a message, in an answer that says that it is exact."""
    answer = await chat.seen(message, room)
    assert exactness(answer) == EXACT
    return sorted(reader["user_id"] for reader in answer["users"])


async def receipts(chat: Chat, room: str) -> dict[str, tuple[int, str | None]]:
    answer = await chat.ask("GET", f"/v1/channels/{room}/receipts")
    assert exactness(answer) == EXACT
    return {one["user_id"]: (one["last_read_seq"], one["last_read_id"]) for one in answer["receipts"]}


# ---------------------------------------------------------------- seen and receipts


@ROOMS
async def test_a_read_that_only_the_log_has_is_a_receipt(
    cluster: LocalCluster, one: Instance, two: Instance, room: str
) -> None:
    await one.chat.read("bob", room, up_to="m3")
    await two.chat.read("bob", room, messages=["m5"])

    assert ("bob", room) not in await cluster.receipts()
    for instance in (one, two):
        assert [await seen_by(instance.chat, f"m{n}", room) for n in (3, 4, 5)] == [["bob"], [], ["bob"]]
        assert (await receipts(instance.chat, room))["bob"] == (3, "m3")


@ROOMS
async def test_a_mark_unread_that_only_the_log_has_takes_a_receipt_back(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, room: str
) -> None:
    await one.chat.read("bob", room)
    await is_written(cluster, worker)
    await worker.stop_workers()
    await two.chat.mark_unread("bob", "m3", room)

    for instance in (one, two):
        assert [await seen_by(instance.chat, f"m{n}", room) for n in (2, 3, 5)] == [["bob"], [], []]
        assert (await receipts(instance.chat, room))["bob"] == (2, "m2")


LOOKS = pytest.mark.parametrize("look", ["pointers_in", "readers"])


@LOOKS
async def test_a_read_is_missed_by_no_order_of_looking(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, look: str
) -> None:
    """Before either look, the database gets the read and the hot store lets the reader go."""
    await two.chat.read("bob", SMALL)
    held = Held(one.rs.hot.users if look == "pointers_in" else one.rs.durable, look)
    asking = asyncio.create_task(seen_by(one.chat, "m5", SMALL))
    await held.reached()
    await is_written(cluster, worker)
    await two.rs.hot.users.forget("bob")
    held.let_go()

    assert await asking == ["bob"]


async def test_private_is_private_at_once(one: Instance, two: Instance) -> None:
    await one.chat.read("bob", SMALL)
    for private, public in [(one.chat.prefer, two.chat.prefer), (two.chat.prefer, one.chat.prefer)]:
        await private("bob", SMALL, receipts="private")
        assert [await seen_by(instance.chat, "m5", SMALL) for instance in (one, two)] == [[], []]
        await public("bob", SMALL, receipts="public")
        assert [await seen_by(instance.chat, "m5", SMALL) for instance in (one, two)] == [["bob"], ["bob"]]
    await two.chat.prefer_everywhere("bob", receipts="private")
    assert await seen_by(one.chat, "m5", SMALL) == []
    assert "bob" not in await receipts(one.chat, SMALL)


async def test_what_a_lost_hot_store_has_forgotten_is_called_stale(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance
) -> None:
    await one.chat.read("bob", SMALL)
    cluster.lose_hot_store()

    for instance in (one, two):
        assert exactness(await instance.chat.seen("m5", SMALL)) == STALE
        assert exactness(await instance.chat.ask("GET", f"/v1/channels/{SMALL}/receipts")) == STALE
    await is_written(cluster, worker)
    for instance in (one, two):
        await instance.is_fresh()
        assert await seen_by(instance.chat, "m5", SMALL) == ["bob"]


# ---------------------------------------------------------------- in large channels


@pytest.fixture
async def third(cluster: LocalCluster, one: Instance) -> Instance:
    """Tells only how many have seen a message in the big channel."""
    return await cluster.open("third", receipts_max_members=len(GUESTS))


async def test_a_large_channel_counts_what_the_database_has(
    cluster: LocalCluster, worker: Instance, one: Instance, third: Instance
) -> None:
    await one.chat.read("bob", BIG)
    answer = await third.chat.seen("m5", BIG)
    assert (answer["count"], answer["users"], *exactness(answer)) == (0, None, *STALE)

    worker.start_worker(RECEIPT_PERSISTER)

    async def counted() -> bool:
        answer = await third.chat.seen("m5", BIG)
        assert answer["count"] == answer["exact"]
        return exactness(answer) == EXACT

    await eventually(counted, "the read is counted")
    assert await third.chat.receipts(BIG) == {}


async def test_a_large_channel_is_not_exact_while_reads_wait_in_a_spool(
    cluster: LocalCluster, worker: Instance, one: Instance, third: Instance
) -> None:
    worker.start_worker(RECEIPT_PERSISTER)
    cable = Unplugged(one)
    await one.chat.read("bob", BIG)
    assert exactness(await third.chat.seen("m5", BIG)) == STALE

    await cable.mend()

    async def exact() -> bool:
        answer = await third.chat.seen("m5", BIG)
        return (answer["count"], *exactness(answer)) == (1, *EXACT)

    await eventually(exact, "the read is counted")


# ---------------------------------------------------------------- everything else


async def test_what_a_user_does_here_shows_there(one: Instance, two: Instance) -> None:
    for here, there in ((one.chat, two.chat), (two.chat, one.chat)):
        await here.read("bob", SMALL, up_to="m2")
        [row] = (await there.inbox("bob", filter="unread", limit=1))["conversations"]
        assert (row["channel_id"], row["unread"]) == (BIG, 5) or (row["channel_id"], row["unread"]) == (SMALL, 3)
        assert await there.count("bob", SMALL) == 3
        assert (await there.explain("bob", SMALL))["unread"] == 3
        assert (await there.ask("POST", "/v1/unread/batch", {"users": ["bob"]}))["users"]["bob"]["unread"] == 8
        await here.prefer("bob", BIG, muted=True, pinned=True)
        assert (await there.totals("bob"))["unread"] == 3
        assert [row["pinned"] for row in (await there.inbox("bob"))["conversations"]] == [True, False]
        await there.prefer("bob", BIG, muted=False, pinned=False)
        await here.mark_unread("bob", "m1", SMALL)
        assert await there.count("bob", SMALL) == 5


async def test_a_follow_shows_there(one: Instance, two: Instance) -> None:
    await one.chat.reply("alice", "m1", "r1", channel=SMALL)
    for here, there in ((one.chat, two.chat), (two.chat, one.chat)):
        await here.follow("bob", "m1", SMALL)
        assert [row["thread_id"] for row in (await there.threads("bob"))["threads"]] == ["m1"]
        await here.unfollow("bob", "m1", SMALL)
        assert (await there.threads("bob"))["threads"] == []


async def test_a_thread_that_is_read_here_is_read_there(one: Instance, two: Instance) -> None:
    await one.chat.follow("bob", "m1", SMALL)
    await one.chat.reply("alice", "m1", "r1", channel=SMALL)
    assert await two.chat.unread_replies("bob") == {"m1": 1}
    await one.chat.read_thread("bob", "m1", SMALL)
    assert await two.chat.unread_replies("bob") == {"m1": 0}
    assert (await two.chat.threads("bob"))["totals"] == {"unread": 0, "threads": 0}


async def test_a_tap_shows_there(worker: Instance, one: Instance, two: Instance) -> None:
    worker.start_worker(STATUS_UPDATE)

    async def badges() -> list[int]:
        return [(await chat.ask("GET", "/v1/users/bob/badge"))["senders"] for chat in (one.chat, two.chat)]

    async def counted() -> bool:
        return await badges() == [1, 1]

    for number, chat in enumerate((one.chat, two.chat)):
        await one.chat.send("alice", f"away{number}", channel=SMALL)
        await eventually(counted, "alice is on the badge")
        await chat.tap("bob")
        assert await badges() == [0, 0]
        batch = await one.chat.ask("POST", "/v1/unread/batch", {"users": ["bob"]})
        assert batch["users"]["bob"]["badge"] == 0


async def answers(chat: Chat) -> dict[str, Any]:
    """Everything that has counts of bob's in it."""
    batch = await chat.ask("POST", "/v1/unread/batch", {"users": ["bob"]})
    return {
        "unread": await chat.unread("bob", SMALL),
        "sync": (await chat.sync("bob"))["totals"],
        "inbox": await chat.inbox("bob"),
        "threads": (await chat.threads("bob"))["totals"],
        "explain": await chat.explain("bob", SMALL),
        "batch": batch["users"]["bob"],
        "seen": await chat.seen("m5", SMALL),
        "receipts": await chat.ask("GET", f"/v1/channels/{SMALL}/receipts"),
    }


async def test_every_answer_says_that_it_is_stale_while_reads_are_missing(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance
) -> None:
    await one.chat.read("bob", SMALL)
    exact = await answers(two.chat)
    assert {name: exactness(answer) for name, answer in exact.items()} == dict.fromkeys(exact, EXACT)
    cluster.lose_hot_store()
    await two.knows_of_the_loss()
    stale = await answers(two.chat)
    assert {name: exactness(answer) for name, answer in stale.items()} == dict.fromkeys(stale, STALE)
    await is_written(cluster, worker)
    await two.is_fresh()
    again = await answers(two.chat)
    assert {name: exactness(answer) for name, answer in again.items()} == dict.fromkeys(again, EXACT)


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[Valkey]:
    with Valkey(tmp_path / "valkey", persistent=False) as server:
        yield server


async def test_without_a_hot_store_the_database_answers_and_says_so(
    cluster: LocalCluster, worker: Instance, one: Instance, own_valkey: Valkey
) -> None:
    await one.chat.read("bob", SMALL)
    await is_written(cluster, worker)
    fourth = await cluster.open("fourth", hot_url=own_valkey.url, receipts_max_members=len(GUESTS))
    await fourth.is_fresh()
    assert await seen_by(fourth.chat, "m5", SMALL) == ["bob"]
    own_valkey.kill()

    answer = await fourth.chat.seen("m5", SMALL)
    assert (answer["count"], *exactness(answer)) == (1, *STALE)
    assert exactness(await fourth.chat.seen("m5", BIG)) == STALE
    assert exactness(await fourth.chat.ask("GET", f"/v1/channels/{SMALL}/receipts")) == STALE
