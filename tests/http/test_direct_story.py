"""A direct channel has two members at most, however many are added at once."""

import asyncio
import json
from typing import Any

import pytest

from tests.conftest import Chat, check_problem

PAIR = "pair"
PATH = f"/v1/channels/{PAIR}"
FULL = (409, "direct_channel_full")


@pytest.fixture
async def pair(chat: Chat) -> Chat:
    """Ann and bob have a direct channel."""
    await chat.open_channel("ann", "bob", channel=PAIR, type="direct", name="two of us")
    return chat


async def people(chat: Chat, channel: str = PAIR) -> list[str]:
    return [member["user_id"] for member in (await chat.members(channel))["members"]]


async def test_a_new_one_takes_no_three(chat: Chat) -> None:
    body = {"type": "direct", "members": ["ann", "bob", "cid"]}
    check_problem(await chat.call("PUT", PATH, body), *FULL, "members")
    check_problem(await chat.call("GET", PATH), 404, "channel_not_found")

    await chat.open_channel("ann", "ann", "bob", channel=PAIR, type="direct")
    assert await people(chat) == ["ann", "bob"]


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("PUT", PATH, {"name": "three of us", "members": ["cid"]}, "members"),
        ("PUT", PATH, {"name": "three of us", "type": "direct", "members": ["ann", "cid"]}, "members"),
        ("POST", f"{PATH}/members", {"add": ["cid"]}, "add"),
        ("POST", f"{PATH}/members", {"add": ["ann", "cid"]}, "add"),
        ("POST", f"{PATH}/members", {"add": ["cid", "dan"], "remove": ["ann"]}, "add"),
    ],
)
async def test_a_third_is_refused_and_nothing_changes(
    pair: Chat, method: str, path: str, body: Any, field: str
) -> None:
    before = await pair.snapshot(["ann", "bob", "cid"], [PAIR])
    check_problem(await pair.call(method, path, body), *FULL, field)
    assert await pair.snapshot(["ann", "bob", "cid"], [PAIR]) == before
    [row] = (await pair.inbox("ann"))["conversations"]
    assert row["peer_id"] == "bob"


async def test_one_may_come_for_another_and_whoever_is_there_may_be_added_again(pair: Chat) -> None:
    assert (await pair.join("ann", "bob", channel=PAIR))["added"] == 0
    changed = await pair.ask("POST", f"{PATH}/members", {"add": ["cid"], "remove": ["bob"]})
    assert (changed["added"], changed["removed"], changed["member_count"]) == (1, 1, 2)
    await pair.leave("ann", channel=PAIR)
    await pair.join("bob", channel=PAIR)
    assert await people(pair) == ["bob", "cid"]


async def test_a_channel_of_three_does_not_become_direct_and_a_direct_one_may_become_a_group(pair: Chat) -> None:
    await pair.open_channel("ann", "bob", "cid", channel="group")
    check_problem(await pair.call("PUT", "/v1/channels/group", {"type": "direct"}), *FULL, "type")
    answer = await pair.call("PUT", "/v1/channels/group", {"type": "direct", "name": "x", "members": ["ann"]})
    check_problem(answer, *FULL, "type")
    assert [(await pair.channel("group"))[name] for name in ("type", "name")] == ["group", None]
    await pair.leave("cid", channel="group")
    assert (await pair.change_channel("group", type="direct"))["type"] == "direct"

    await pair.open_channel("cid", channel=PAIR, type="group")
    assert await people(pair) == ["ann", "bob", "cid"]


async def test_of_many_who_come_at_once_the_order_of_the_channel_takes_the_first(chat: Chat) -> None:
    await chat.open_channel("ann", channel=PAIR, type="direct")
    comers = [f"comer {n}" for n in range(8)]
    half = len(comers) // 2
    calls = [chat.call("POST", f"{PATH}/members", {"add": [user]}) for user in comers[:half]]
    calls += [chat.call("PUT", PATH, {"members": [user]}) for user in comers[half:]]

    answers = await asyncio.gather(*calls)

    taken = [user for user, answer in zip(comers, answers, strict=True) if answer.is_success]
    assert len(taken) == 1
    assert await people(chat) == ["ann", *taken]
    assert (await chat.channel(PAIR))["member_count"] == 2
    for answer in answers:
        if not answer.is_success:
            check_problem(answer, *FULL)


async def test_who_comes_while_a_group_becomes_direct_is_taken_or_the_group_stays(chat: Chat) -> None:
    for number in range(5):
        name = f"room {number}"
        await chat.open_channel("ann", "bob", channel=name)
        path = f"/v1/channels/{name}"
        both = chat.call("PUT", path, {"type": "direct"}), chat.call("POST", f"{path}/members", {"add": ["cid"]})
        typed, joined = await asyncio.gather(*both)
        assert {typed.is_success, joined.is_success} == {True, False}
        refused = joined if typed.is_success else typed
        check_problem(refused, *FULL)
        channel = await chat.channel(name)
        assert (channel["type"], channel["member_count"]) in [("direct", 2), ("group", 3)]


async def test_an_import_takes_two(chat: Chat) -> None:
    records: list[dict[str, Any]] = [
        {"type": "readstate", "version": 1},
        {"type": "channel", "channel_id": PAIR, "kind": "direct"},
        {"type": "member", "channel_id": PAIR, "user_id": "ann"},
        {"type": "member", "channel_id": PAIR, "user_id": "gone", "active": False},
        {"type": "member", "channel_id": PAIR, "user_id": "bob"},
        {"type": "member", "channel_id": PAIR, "user_id": "cid"},
        {"type": "member", "channel_id": PAIR, "user_id": "ann", "active": False},
        {"type": "member", "channel_id": PAIR, "user_id": "dan", "joined_at": 5},
    ]
    body = "\n".join(map(json.dumps, records)).encode()
    for _ in range(2):
        answer = await chat.call("POST", "/v1/import", content=body, headers={"content-type": "application/x-ndjson"})
        [refused] = answer.json()["refused"]
        assert refused["line"] == 6
        assert "two members" in refused["reason"]
        assert await people(chat) == ["bob", "dan"]
    check_problem(await chat.call("POST", f"{PATH}/members", {"add": ["eve"]}), *FULL)
