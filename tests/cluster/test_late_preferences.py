"""Two processes write preferences at once: the hot store has them in order, and no late write undoes a newer one."""

import asyncio
from typing import Any

import httpx

from readstate.domain.errors import StorageUnavailable
from tests.valkey_postgres.on_servers import Held

from .hard import SMALL, Instance, LocalCluster

PATH = f"/v1/users/bob/channels/{SMALL}/preferences"
EVERYWHERE = "/v1/users/bob/preferences"


def puts(instance: Instance, path: str = PATH, **wanted: Any) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(instance.chat.call("PUT", path, wanted))


async def stands(cluster: LocalCluster, *instances: Instance, **wanted: Any) -> None:
    """Everybody says the same, before and after the hot store is loaded from the database."""
    for _ in range(2):
        for instance in instances:
            told = await instance.chat.ask("GET", PATH)
            assert {name: told[name] for name in wanted} == wanted
        cluster.lose_hot_store()


async def test_a_late_write_does_not_undo_a_newer_one(cluster: LocalCluster, one: Instance, two: Instance) -> None:
    saves = Held(one.rs.durable, "save_preferences", only_first=True)
    first = puts(one, muted=True, pinned=True)
    await saves.reached()
    await two.chat.prefer("bob", SMALL, muted=False, pinned=False)
    saves.let_go()

    assert (await first).status_code == 200
    await stands(cluster, one, two, muted=False, pinned=False)


async def test_a_late_write_for_all_channels_does_not_undo_a_newer_one(one: Instance, two: Instance) -> None:
    saves = Held(one.rs.durable, "save_receipts", only_first=True)
    first = puts(one, EVERYWHERE, receipts="private")
    await saves.reached()
    await two.chat.prefer_everywhere("bob", receipts="public")
    saves.let_go()

    assert (await first).status_code == 200
    for instance in (one, two):
        assert await instance.chat.ask("GET", EVERYWHERE) == {"receipts": "public"}


async def test_a_write_that_fails_late_takes_nothing_newer_back(
    cluster: LocalCluster, one: Instance, two: Instance
) -> None:
    saves = Held(one.rs.durable, "save_preferences", only_first=True)
    first = puts(one, count="none")
    await saves.reached()
    await two.chat.prefer("bob", SMALL, count="none", pinned=True)
    saves.fail(StorageUnavailable())

    assert (await first).status_code == 503
    await stands(cluster, one, two, count="none", pinned=True)


async def test_a_loss_of_the_hot_store_brings_no_older_ones_back(
    cluster: LocalCluster, one: Instance, two: Instance
) -> None:
    saves = Held(one.rs.durable, "save_preferences", with_answer=True, only_first=True)
    first = puts(one, pinned=True)
    await saves.reached()
    cluster.lose_hot_store()
    await two.chat.prefer("bob", SMALL, pinned=False)
    saves.let_go()

    assert (await first).status_code == 200
    await stands(cluster, one, two, pinned=False)


async def test_what_is_changed_at_the_same_time_stays(cluster: LocalCluster, one: Instance, two: Instance) -> None:
    prefers = Held(one.rs.hot.users, "prefer", only_first=True)
    first = puts(one, muted=True)
    await prefers.reached()
    await two.chat.prefer("bob", SMALL, pinned=True)
    prefers.let_go()

    assert (await first).json()["pinned"] is True
    await stands(cluster, one, two, muted=True, pinned=True)
