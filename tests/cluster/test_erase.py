"""Erasing one user in a cluster: nobody else's hot state is dropped, and nothing of the erased user comes back."""

from collections.abc import Callable
from typing import Any

import pytest

from readstate.telemetry import LOADS
from readstate.workers import MESSAGE_WRITER, RECEIPT_PERSISTER, STATUS_UPDATE
from tests.contract import valkey

from .hard import BIG, SMALL, Instance, LocalCluster, two_rooms

OTHERS = ["alice", "carol"]


def loads() -> dict[str, float]:
    return {kind: LOADS.labels(kind)._value.get() for kind in ("user", "ledger", "timeline")}


@pytest.fixture(params=["single", "cluster"])
async def pair(request: pytest.FixtureRequest, cluster: LocalCluster) -> tuple[Instance, Instance]:
    """Two processes. Carol has read and marked unread what nobody has brought to the database yet; so has bob."""
    server: Callable[[], Any] = getattr(valkey, request.param)
    one = await cluster.open("one", MESSAGE_WRITER, STATUS_UPDATE, hot_url=server().url)
    two = await cluster.open("two", hot_url=server().url)
    await two_rooms(one.chat)
    await one.chat.open_channel("bob", "alice", channel="direct", type="direct")
    await one.chat.send("bob", "hello", channel="direct")
    for user in ("bob", "carol"):
        await two.chat.read(user, BIG, up_to="m4")
        await two.chat.mark_unread(user, "m3", BIG)
    for user in ("alice", "bob", "carol"):
        await two.chat.sync(user)
    await cluster.all_done(one, MESSAGE_WRITER, STATUS_UPDATE)
    return one, two


async def test_nobody_else_is_loaded_again(pair: tuple[Instance, Instance]) -> None:
    one, two = pair
    before = {user: await two.chat.sync(user, only_unread=False) for user in OTHERS}
    generation, loaded = one.rs.cluster.notes.seen(), loads()

    await one.chat.ask("DELETE", "/v1/users/bob")

    for instance in pair:
        assert await instance.rs.cluster.notes.generation() == generation
        assert not instance.is_behind
        for user in OTHERS:
            after = await instance.chat.sync(user, only_unread=False)
            assert "exact" not in after["totals"], "only what is not exact says so"
            assert all(row["exact"] for row in after["channels"])
            assert after["channels"] == before[user]["channels"]
    assert loads() == loaded


async def test_nothing_of_the_erased_user_comes_back(cluster: LocalCluster, pair: tuple[Instance, Instance]) -> None:
    one, two = pair
    await one.chat.ask("DELETE", "/v1/users/bob")
    one.start_worker(RECEIPT_PERSISTER)
    await cluster.all_done(one, RECEIPT_PERSISTER)

    for table in ("members", "read_receipts", "user_activity", "undo"):
        assert await cluster.sql(f"SELECT FROM {table} WHERE user_id = 'bob'") == []
    assert ("carol", BIG) in await cluster.receipts()
    for instance in (one, two):
        assert (await instance.chat.sync("bob", only_unread=False))["channels"] == []
        assert await instance.chat.badge("alice") == 0
        for room in (SMALL, BIG):
            answer = await instance.chat.ask("GET", f"/v1/channels/{room}/receipts")
            assert "bob" not in {receipt["user_id"] for receipt in answer["receipts"]}
        [row] = [row for row in (await instance.chat.inbox("alice"))["conversations"] if row["channel_id"] == "direct"]
        assert row["peer_id"] is None
        assert (await instance.chat.channel(BIG))["member_count"] == 4


async def test_nothing_is_left_in_the_hot_store(cluster: LocalCluster, pair: tuple[Instance, Instance]) -> None:
    one, _ = pair
    client = one.rs.hot._client  # type: ignore[attr-defined]

    async def keys() -> set[str]:
        found: set[str] = set()
        for node in (await client.masters()).values():
            found |= {
                key.decode() async for key in node.scan_iter(match=f"{cluster.stores.key_prefix}*bob*", count=1000)
            }
        return {key.removeprefix(cluster.stores.key_prefix) for key in found}

    assert f"unread:{{bob}}:{SMALL}" in await keys()

    await one.chat.ask("DELETE", "/v1/users/bob")

    assert await keys() <= {"read-pointer:{bob}"}  # the change number, which must never fall
