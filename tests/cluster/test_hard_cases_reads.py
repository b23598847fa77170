"""Hard cases of reading, with several processes: what is acknowledged is in the log, and is never lost again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from readstate.workers import MESSAGE_WRITER, RECEIPT_PERSISTER
from tests.conftest import check_problem, of
from tests.integration.on_servers import Held

from .hard import BIG, SMALL, City, Instance, a_city, two_rooms


@pytest.fixture
async def city(tmp_path: Path) -> AsyncIterator[City]:
    async with a_city(tmp_path) as city:
        yield city


@pytest.fixture
async def worker(city: City) -> Instance:
    """Writes messages; nobody brings reads to the database yet."""
    return await city.open("worker", MESSAGE_WRITER)


@pytest.fixture
async def one(city: City, worker: Instance) -> Instance:
    """Bob has five unread messages in each of two channels."""
    one = await city.open("one")
    await two_rooms(one.chat)
    return one


@pytest.fixture
async def two(city: City, one: Instance) -> Instance:
    return await city.open("two")


# ---------------------------------------------------------------- 1: acknowledged, and only in the log


@pytest.fixture(params=[SMALL, BIG])
async def marked(request: pytest.FixtureRequest, city: City, one: Instance, two: Instance) -> str:
    """Bob has read everything there, and marked it unread from m2 on: only the log knows that."""
    room: str = request.param
    await one.chat.read("bob", room)
    await city.all_done(one, MESSAGE_WRITER)
    await two.chat.mark_unread("bob", "m2", room)
    return room


async def reads_m3(instance: Instance, room: str) -> None:
    await instance.chat.read("bob", room, messages=["m3"])


async def marks_m4_unread(instance: Instance, room: str) -> None:
    await instance.chat.mark_unread("bob", "m4", room)


Act = Callable[[Instance, str], Awaitable[None]]
ACTS = pytest.mark.parametrize(
    ("act", "left"), [(reads_m3, ["m2", "m4", "m5"]), (marks_m4_unread, ["m2", "m3", "m4", "m5"])]
)


async def is_left(room: str, left: list[str], *instances: Instance) -> None:
    """This is unread for bob, whoever is asked."""
    for instance in instances:
        await instance.is_fresh()
        assert await instance.chat.count("bob", room) == len(left)
        assert await instance.chat.waiting("bob", channel=room, order="oldest") == left


@ACTS
async def test_case_1_after_the_loss_bob_waits_until_the_database_has_his_mark_unread(
    city: City, worker: Instance, one: Instance, two: Instance, marked: str, act: Act, left: list[str]
) -> None:
    city.lose_hot_store()
    totals = await one.rs.unread.totals(["bob"])  # the first that this process hears of it
    assert not totals["bob"].exact
    for instance in (one, two):
        answer = await instance.chat.unread("bob", marked)
        assert (answer["exact"], answer["reason"]) == (False, "stale")
    waits = Held(one.rs.cluster.freshness, "caught_up", only_first=True)
    acting = asyncio.create_task(act(one, marked))
    await waits.reached()
    waits.let_go()

    worker.hire(RECEIPT_PERSISTER)
    await acting

    await is_left(marked, left, one, two)
    await city.all_done(one, RECEIPT_PERSISTER)
    city.lose_hot_store()
    await is_left(marked, left, two, one)


@ACTS
@pytest.mark.parametrize("step", ["generation", "move", "dropped"])
async def test_case_1_the_loss_comes_at_any_step_of_what_bob_does_next(
    city: City, worker: Instance, one: Instance, two: Instance, marked: str, act: Act, left: list[str], step: str
) -> None:
    """And somebody else has him loaded at once, without what only the log has."""
    held = Held(one.rs.hot.users, step, only_first=True)
    acting = asyncio.create_task(act(one, marked))
    await held.reached()
    city.lose_hot_store()
    assert (await two.chat.unread("bob", marked))["reason"] == "stale"
    waits = Held(one.rs.cluster.freshness, "caught_up", only_first=True)
    held.let_go()
    await waits.reached()
    waits.let_go()

    worker.hire(RECEIPT_PERSISTER)
    await acting

    await is_left(marked, left, one, two)
    await city.all_done(one, RECEIPT_PERSISTER)
    city.lose_hot_store()
    await is_left(marked, left, two, one)


async def test_case_1_where_the_persister_does_not_come_bob_is_asked_to_come_again(
    city: City, worker: Instance, one: Instance, marked: str
) -> None:
    hasty = await city.open("hasty", wait_timeout=1)
    city.lose_hot_store()
    for path, body in (("read", {"messages": ["m3"]}), ("unread", {"from": "m4"})):
        check_problem(await hasty.chat.call("POST", f"{of('bob', marked)}/{path}", body), 503, "unavailable")
    many = {"reads": [{"user_id": "bob", "channel_id": marked, "up_to": "m5"}]}
    check_problem(await hasty.chat.call("POST", "/v1/reads", many), 503, "unavailable")

    worker.hire(RECEIPT_PERSISTER)
    await is_left(marked, ["m2", "m3", "m4", "m5"], one, hasty)
    await reads_m3(hasty, marked)
    await is_left(marked, ["m2", "m4", "m5"], one, hasty)
