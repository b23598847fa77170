"""The first page of a user who is not in memory comes from one statement; the user is loaded behind it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from readstate import Readstate
from readstate.api import ChangeMembers, MarkUnread, NewMessage, PutChannel, PutPreferences, ReadTarget, Sync
from readstate.domain.errors import StorageUnavailable
from tests.conftest import eventually
from tests.contract import postgres

from .test_memory_lost import Held

CAP = 5


@pytest.fixture(params=["ledger", "timeline", "postgres"])
async def rs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Readstate]:
    """The hot state in memory, whatever the stores of other tests are: only memory answers before a load."""
    where: dict[str, Any] = {"database_url": await postgres.take_database()} if request.param == "postgres" else {}
    largest = 1 if request.param == "timeline" else 100
    async with Readstate.open(data_dir=str(tmp_path), fanout_max_members=largest, unread_cap=CAP, **where) as rs:
        yield rs


async def make(rs: Readstate, channel: str, *said: str, **options: Any) -> None:
    members = ("alice", "bob", "carol")
    await rs.channels.put(channel, PutChannel(type="group", members=members))
    await say(rs, channel, *said, **options)


async def say(rs: Readstate, channel: str, *said: str, sender: str = "alice", **options: Any) -> None:
    messages = [NewMessage(channel_id=channel, sender_id=sender, id=one, text=one, **options) for one in said]
    assert all(result.status == "accepted" for result in await rs.messages.send(messages))


async def before_load(rs: Readstate, limit: int | None = None) -> Sync:
    """Bob's first page while he is not in memory, and he is loaded behind it."""
    await loaded(rs)
    await rs.evict()
    page = await rs.unread.sync("bob", limit=limit)
    assert await rs.hot.users.changes(["bob"]) == [None]
    return page


async def loaded(rs: Readstate) -> None:
    async def idle() -> bool:
        return await rs.hot.users.changes(["bob"]) != [None] and not rs.loader._behind

    await rs.loader.ready("bob")
    await eventually(idle, "bob is loaded")


def without_cursors(page: Sync) -> Sync:
    return replace(page, sync="", cursor=page.cursor and "")


async def scene(rs: Readstate) -> None:
    """Channels with everything that a count depends on, and two threads."""
    await make(rs, "plain", "p1", "p2", "p3")
    await make(rs, "read", "r1")
    await rs.reads.mark_read("bob", "read", ReadTarget(up_to="r1"))
    await make(rs, "half", "h1", "h2", "h3", "h4")
    await rs.reads.mark_read("bob", "half", ReadTarget(up_to="h1"))
    await rs.reads.mark_read("bob", "half", ReadTarget(messages=("h3",)))
    await make(rs, "again", "a1", "a2", "a3")
    await rs.reads.mark_read("bob", "again", ReadTarget(up_to="a3"))
    await rs.reads.mark_unread("bob", "again", MarkUnread(from_="a2"))
    await make(rs, "named", "n1")
    await say(rs, "named", "n2", mentions=("bob",))
    await say(rs, "named", "n3", mentions=("@channel", "bob"))
    await say(rs, "named", "n4", mentions=("carol",))
    await make(rs, "quiet", "q1", silent=True)
    await make(rs, "gone", "g1", "g2")
    await rs.messages.delete("gone", "g2")
    await make(rs, "own", "o1")
    await say(rs, "own", "o2", sender="bob")
    await say(rs, "own", "o3")
    await make(rs, "muted", "u1")
    await rs.preferences.put("bob", "muted", PutPreferences(muted=True))
    await make(rs, "only-names", "y1")
    await say(rs, "only-names", "y2", mentions=("bob",))
    await rs.preferences.put("bob", "only-names", PutPreferences(count="mentions"))
    await make(rs, "nothing", "z1")
    await rs.preferences.put("bob", "nothing", PutPreferences(count="none", pinned=True))
    await make(rs, "shelved", "s1")
    await rs.channels.put("shelved", PutChannel(archived=True))
    await make(rs, "left", "l1")
    await rs.channels.change_members("left", ChangeMembers(remove=("bob",)))
    await make(rs, "deleted", "d1")
    await rs.channels.delete("deleted")
    for thread, channel in (("p1", "plain"), ("l2", "left-later")):
        if channel == "left-later":
            await make(rs, channel, thread)
        await rs.threads.follow("bob", channel, thread)
        await say(rs, channel, f"{thread}-1", f"{thread}-2", thread_id=thread)
    await rs.channels.change_members("left-later", ChangeMembers(remove=("bob",)))


async def test_it_is_what_a_loaded_user_gets(rs: Readstate) -> None:
    await scene(rs)

    page = await before_load(rs)

    await loaded(rs)
    assert without_cursors(page) == without_cursors(await rs.unread.sync("bob"))
    assert (page.threads.unread, page.threads.threads) == (2, 1)
    assert len(page.channels) == 10


async def test_the_next_page_continues_it(rs: Readstate) -> None:
    await scene(rs)
    page = await before_load(rs, limit=3)
    names = [row.channel_id for row in page.channels]

    while page.cursor is not None:
        page = await rs.unread.sync("bob", limit=3, cursor=page.cursor)
        names += [row.channel_id for row in page.channels]

    assert names == [row.channel_id for row in (await rs.unread.sync("bob")).channels]


async def test_a_count_above_the_cap_is_a_lower_bound(rs: Readstate) -> None:
    await make(rs, "many", *(f"m{number}" for number in range(CAP + 3)))
    await make(rs, "full", *(f"f{number}" for number in range(CAP)))

    full, many = (await before_load(rs)).channels
    assert (many.unread, many.exact, many.reason) == (CAP, False, "capped")
    assert many.first_unread is not None
    assert many.first_unread.id == "m3"
    assert (full.unread, full.exact) == (CAP, True)
    page = await before_load(rs)
    assert (page.totals.unread, page.totals.exact, page.totals.reason) == (2 * CAP, False, "capped")


async def test_above_the_cap_it_names_the_mentions_that_a_loaded_user_gets(rs: Readstate) -> None:
    await make(rs, "many", *(f"m{number}" for number in range(CAP + 2)), mentions=("bob",))

    page = await before_load(rs)
    await loaded(rs)

    assert [row.mentions for row in page.channels] == [CAP]
    assert without_cursors(page) == without_cursors(await rs.unread.sync("bob"))


async def test_what_happens_while_it_is_made_comes_with_since(rs: Readstate) -> None:
    for channel in ("early", "late", "read", "muted", "same"):
        await make(rs, channel, f"{channel}-1")
    await loaded(rs)
    await rs.evict()
    pages = Held(rs, "unread_page", with_answer=True)
    asked = asyncio.create_task(rs.unread.sync("bob"))
    await pages.reached(1)
    await say(rs, "early", "early-2")
    await rs.reads.mark_read("bob", "read", ReadTarget(up_to="read-1"))
    pages.let_all_go()
    page = await asked
    await say(rs, "late", "late-2")
    await rs.preferences.put("bob", "muted", PutPreferences(muted=True))
    await make(rs, "new", "new-1")

    delta = await rs.unread.sync("bob", since=page.sync)

    assert {row.channel_id for row in page.channels} == {"early", "late", "read", "muted", "same"}
    assert {row.channel_id for row in delta.channels} == {"early", "late", "read", "muted", "new"}


async def test_a_message_during_the_load_behind_it_comes_with_since(rs: Readstate) -> None:
    await make(rs, "general", "m1")
    await loaded(rs)
    await rs.evict()
    await rs.unread.of_channel("alice", "general")  # she writes while bob's load is held
    loads = Held(rs, "load_user", with_answer=True)
    page = await rs.unread.sync("bob")
    await loads.reached(1)
    await say(rs, "general", "m2")
    loads.let_all_go()

    delta = await rs.unread.sync("bob", since=page.sync)

    assert [(row.channel_id, row.unread) for row in delta.channels] == [("general", 2)]
    assert (await rs.unread.sync("bob", since=delta.sync)).channels == []


async def test_an_acknowledged_read_is_in_it_while_another_is_not_stored_yet(rs: Readstate) -> None:
    await make(rs, "general", "m1", "m2")
    await loaded(rs)
    await rs.reads.mark_read("bob", "general", ReadTarget(up_to="m1"))
    merges = Held(rs, "merge")
    read = asyncio.create_task(rs.reads.mark_read("bob", "general", ReadTarget(up_to="m2")))
    await merges.reached(1)
    await rs.evict()
    asked = asyncio.create_task(rs.unread.sync("bob"))
    await asyncio.sleep(0)
    merges.let_all_go()

    await read
    page = await asked

    assert page.totals.unread == 0  # its cursor is after the read, so the page shows it
    assert (await rs.unread.sync("bob", since=page.sync)).channels == []


async def test_a_page_of_a_loaded_user_waits_for_a_read_that_is_not_stored_yet(rs: Readstate) -> None:
    """Its cursor must not be after a read that may still be refused."""
    await make(rs, "general", "m1")
    await loaded(rs)
    merges = Held(rs, "merge")
    read = asyncio.create_task(rs.reads.mark_read("bob", "general", ReadTarget(up_to="m1")))
    await merges.reached(1)
    asked = asyncio.create_task(rs.unread.sync("bob"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not asked.done()
    merges.let_all_go()

    await read
    assert (await asked).totals.unread == 0


async def test_two_at_once_share_one_load(rs: Readstate) -> None:
    await make(rs, "general", "m1")
    await loaded(rs)
    await rs.evict()
    loads = Held(rs, "load_user", with_answer=True)

    pages = await asyncio.gather(rs.unread.sync("bob"), rs.unread.sync("bob"))

    assert [page.totals.unread for page in pages] == [1, 1]
    await loads.reached(1)
    loads.let_all_go()
    await loaded(rs)
    assert loads.calls == 1


async def test_a_load_behind_it_that_fails_is_made_again_on_use(rs: Readstate, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(user: str) -> object:
        raise StorageUnavailable("the disk has failed")

    await make(rs, "general", "m1")
    await loaded(rs)
    await rs.evict()
    with monkeypatch.context() as patched:
        patched.setattr(rs.durable, "load_user", fail)
        assert (await rs.unread.sync("bob")).totals.unread == 1

        async def failed() -> bool:
            return not rs.loader._behind

        await eventually(failed, "the load has failed")

    assert (await rs.unread.of_channel("bob", "general")).unread == 1


async def test_a_service_that_closes_does_not_wait_for_a_load_behind_it(tmp_path: Path) -> None:
    async with Readstate.open(data_dir=str(tmp_path)) as rs:
        await make(rs, "general", "m1")
        await rs.evict()
        loads = Held(rs, "load_user", with_answer=True)
        assert (await rs.unread.sync("bob")).totals.unread == 1
        await loads.reached(1)
