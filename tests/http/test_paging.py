"""Paging of inbox and sync while messages arrive: nothing that stood still is repeated or skipped, and what
moved comes with `since` of the first page."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.conftest import Chat, Clock

Pager = Callable[..., Awaitable[Any]]
MANY = [f"c{n:02}" for n in range(24)]


@pytest.fixture(autouse=True)
async def _many_conversations(chat: Chat, clock: Clock) -> None:
    """Bob is in many channels, each with one message; every third he has read."""
    for number, channel in enumerate(MANY):
        await chat.open_channel("alice", "bob", channel=channel)
        clock.advance(seconds=1)
        await chat.send("alice", f"{channel}-1", channel=channel)
        if number % 3 == 0:
            await chat.read("bob", channel)


def inbox(chat: Chat, **query: Any) -> Pager:
    """Pages of the inbox: (channels, page)."""

    async def page(**params: Any) -> tuple[list[str], Any]:
        answer = await chat.inbox("bob", limit=5, **query, **params)
        return [row["channel_id"] for row in answer["conversations"]], answer

    return page


def sync(chat: Chat) -> Pager:
    """Pages of the bulk sync: (channels, page)."""

    async def page(**params: Any) -> tuple[list[str], Any]:
        answer = await chat.sync("bob", limit=5, only_unread="false", **params)
        return [row["channel_id"] for row in answer["channels"]], answer

    return page


async def all_pages(pager: Pager, between: Callable[[int], Awaitable[None]]) -> tuple[list[str], str]:
    """Everything that the pages list, with something happening before each next one; and the first page's sync."""
    found, answer = await pager()
    first = answer["sync"]
    for number in range(100):
        if answer["cursor"] is None:
            return found, first
        await between(number)
        names, answer = await pager(cursor=answer["cursor"])
        assert answer["sync"] == first
        found += names
    raise AssertionError("the pages don't end")


async def check_whole(chat: Chat, found: list[str], first: str, moved: set[str]) -> None:
    """What stood still is listed once; what moved comes with `since`."""
    still = [name for name in found if name not in moved]
    assert sorted(still) == sorted(set(MANY) - moved)
    changed = {row["channel_id"] for row in (await chat.sync("bob", since=first))["channels"]}
    assert moved <= changed


def pagers(chat: Chat) -> dict[str, Pager]:
    return {
        "recent": inbox(chat),
        "unread_first": inbox(chat, order="unread_first"),
        "sync": sync(chat),
    }


WAYS = ["recent", "unread_first", "sync"]


@pytest.mark.parametrize("way", WAYS)
async def test_while_messages_arrive_on_seen_and_unseen_pages(chat: Chat, clock: Clock, way: str) -> None:
    moved: set[str] = set()

    async def messages_arrive(number: int) -> None:
        for channel in (MANY[-1 - number], MANY[number * 2]):
            clock.advance(seconds=1)
            await chat.post("alice", channel)
            moved.add(channel)

    found, first = await all_pages(pagers(chat)[way], messages_arrive)
    await check_whole(chat, found, first, moved)


@pytest.mark.parametrize("way", WAYS)
async def test_while_the_user_reads_and_marks_unread(chat: Chat, way: str) -> None:
    moved: set[str] = set()

    async def the_user_reads(number: int) -> None:
        await chat.read("bob", MANY[number * 3 + 1])
        await chat.mark_unread("bob", f"{MANY[number * 3]}-1", MANY[number * 3])
        moved.update({MANY[number * 3 + 1], MANY[number * 3]})

    found, first = await all_pages(pagers(chat)[way], the_user_reads)
    await check_whole(chat, found, first, moved)


async def test_unread_first_when_the_last_unread_one_is_read_between_pages(chat: Chat) -> None:
    await chat.read_all("bob")
    await chat.mark_unread("bob", f"{MANY[3]}-1", MANY[3])

    async def the_last_one_is_read(_: int) -> None:
        await chat.read("bob", MANY[3])

    found, first = await all_pages(inbox(chat, order="unread_first"), the_last_one_is_read)
    await check_whole(chat, found, first, {MANY[3]})


async def test_unread_first_when_the_first_unread_one_comes_between_pages(chat: Chat, clock: Clock) -> None:
    await chat.read_all("bob")

    async def something_comes(number: int) -> None:
        if number == 0:
            clock.advance(seconds=1)
            await chat.post("alice", MANY[2])

    found, first = await all_pages(inbox(chat, order="unread_first"), something_comes)
    await check_whole(chat, found, first, {MANY[2]})


@pytest.mark.parametrize("way", ["recent", "unread_first"])
async def test_while_conversations_are_pinned_archived_and_left(chat: Chat, way: str) -> None:
    moved: set[str] = set()

    async def the_user_tidies_up(number: int) -> None:
        pinned, archived, left = MANY[number], MANY[8 + number], MANY[16 + number]
        await chat.prefer("bob", pinned, pinned=True)
        await chat.prefer("bob", archived, archived=True)
        await chat.leave("bob", channel=left)
        moved.update({pinned, archived, left})

    found, first = await all_pages(pagers(chat)[way], the_user_tidies_up)
    still = [name for name in found if name not in moved]
    assert sorted(still) == sorted(set(MANY) - moved)
    delta = await chat.sync("bob", since=first)
    assert moved <= {row["channel_id"] for row in delta["channels"]} | set(delta["removed"])


@pytest.mark.parametrize("way", WAYS)
async def test_while_memory_is_lost_between_pages(chat: Chat, way: str) -> None:
    async def memory_is_lost(_: int) -> None:
        await chat.evict()

    found, first = await all_pages(pagers(chat)[way], memory_is_lost)
    await check_whole(chat, found, first, set())
    assert len(found) == len(MANY)


@pytest.mark.parametrize("way", WAYS)
async def test_with_everything_at_the_same_time(chat: Chat, clock: Clock, way: str) -> None:
    busy = MANY[::4]

    async def everyone_writes() -> None:
        for _ in range(4):
            for channel in busy:
                clock.advance(ms=7)
                await chat.post("alice", channel)

    async def breathe(_: int) -> None:
        await asyncio.sleep(0)

    writing = asyncio.create_task(everyone_writes())
    walks: list[tuple[list[str], str]] = []
    while not writing.done() or not walks:
        walks.append(await all_pages(pagers(chat)[way], breathe))
    await writing
    for found, _ in walks:
        still = [name for name in found if name not in busy]
        assert sorted(still) == sorted(set(MANY) - set(busy))
    found, first = walks[0]
    changed = {row["channel_id"] for row in (await chat.sync("bob", since=first))["channels"]}
    assert set(busy) <= changed | set(found)


@pytest.mark.parametrize("order", ["newest", "oldest", "channel"])
async def test_the_unread_view_goes_on_to_its_end(chat: Chat, order: str) -> None:
    long = MANY[1]
    await chat.send("alice", *(f"{long}-{number}" for number in range(2, 9)), channel=long)
    for params in ({"order": order}, {"order": order, "channel": long}):
        expected = await chat.waiting("bob", limit=1000, **params)
        page = await chat.ask("GET", "/v1/users/bob/unread/messages", params={**params, "limit": 3})
        found = page["messages"]
        while page["cursor"] is not None:
            query = {**params, "limit": 3, "cursor": page["cursor"]}
            page = await chat.ask("GET", "/v1/users/bob/unread/messages", params=query)
            found += page["messages"]
        assert [message["id"] for message in found] == expected
