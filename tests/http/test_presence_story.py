"""Presence: who is online, when somebody last was, and what an open channel reads by itself."""

import pytest

from tests.conftest import Chat, Clock, check_problem


async def test_nobody_has_been_seen_at_first(chat: Chat) -> None:
    assert await chat.presence("bob") == {"online": False, "last_seen": None, "devices": []}


async def test_online_while_at_least_one_device_is_connected(chat: Chat, clock: Clock) -> None:
    await chat.comes_online("bob", "phone")
    both = await chat.comes_online("bob", "laptop")
    assert both == {"online": True, "last_seen": clock(), "devices": ["laptop", "phone"]}

    clock.advance(seconds=5)
    one = await chat.goes_away("bob", "phone")
    assert (one["online"], one["devices"]) == (True, ["laptop"])

    clock.advance(seconds=5)
    gone_at = clock()
    await chat.goes_away("bob", "laptop")
    clock.advance(seconds=60)
    assert await chat.presence("bob") == {"online": False, "last_seen": gone_at, "devices": []}


async def test_a_device_that_goes_twice_or_was_never_there_changes_nothing(chat: Chat, clock: Clock) -> None:
    await chat.comes_online("bob")
    await chat.goes_away("bob")
    seen = clock()
    clock.advance(seconds=9)
    assert (await chat.goes_away("bob"))["last_seen"] == seen
    assert (await chat.goes_away("bob", "unknown"))["last_seen"] == seen


async def test_a_device_must_be_reported_again_in_time(chat: Chat, clock: Clock) -> None:
    await chat.comes_online("bob", ttl=60)
    clock.advance(seconds=59)
    await chat.comes_online("bob", ttl=60)
    clock.advance(seconds=59)
    assert (await chat.presence("bob"))["online"] is True
    overdue = clock() + 1000
    clock.advance(seconds=30)
    assert await chat.presence("bob") == {"online": False, "last_seen": overdue, "devices": []}


async def test_an_overdue_device_does_not_hide_when_the_last_one_went(chat: Chat, clock: Clock) -> None:
    await chat.comes_online("bob", "forgotten", ttl=1)
    await chat.comes_online("bob", "phone")
    clock.advance(seconds=30)
    assert (await chat.goes_away("bob", "phone"))["last_seen"] == clock()


async def test_when_a_user_was_last_seen_survives_a_loss_of_memory(chat: Chat, clock: Clock) -> None:
    await chat.comes_online("bob")
    await chat.goes_away("bob")
    seen = clock()
    await chat.evict()
    assert (await chat.presence("bob"))["last_seen"] == seen


async def test_what_comes_into_an_open_channel_is_read_at_once(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.open_channel("alice", "bob", channel="other")
    await chat.comes_online("bob", focus="general")
    await chat.send("alice", "m1")
    await chat.send("alice", "o1", channel="other")
    assert await chat.count("bob") == 0
    assert await chat.count("bob", "other") == 1
    assert await chat.seen_by("m1") == ["bob"]

    await chat.comes_online("bob")
    await chat.send("alice", "m2")
    assert await chat.count("bob") == 1


async def test_marking_unread_ends_the_focus(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.comes_online("bob", focus="general")
    await chat.send("alice", "m1")
    await chat.mark_unread("bob", "m1")
    await chat.send("alice", "m2")
    assert await chat.count("bob") == 2


async def test_here_means_those_who_are_online(chat: Chat, mode: str) -> None:
    await chat.open_channel("alice", "bob", "carol")
    await chat.comes_online("bob")
    await chat.send("alice", "m1", mentions=["@here"])
    assert (await chat.unread("bob"))["mentions"] == 1
    assert (await chat.unread("carol"))["mentions"] == (0 if mode == "ledger" else 1)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"online": True}, "device"),
        ({"device": "phone"}, "online"),
        ({"device": "", "online": True}, "device"),
        ({"device": "phone", "online": "yes"}, "online"),
        ({"device": "phone", "online": True, "ttl": 0}, "ttl"),
        ({"device": "phone", "online": True, "ttl": 10**9}, "ttl"),
        ({"device": "phone", "online": False, "focus": "general"}, "focus"),
        ({"device": "phone", "online": True, "place": "here"}, "place"),
    ],
)
async def test_a_device_that_cannot_be(chat: Chat, body: dict[str, object], field: str) -> None:
    await chat.open_channel("bob")
    answer = await chat.call("PUT", "/v1/users/bob/presence", body)
    assert answer.status_code in {400, 422}, answer.text
    check_problem(answer, answer.status_code, answer.json()["code"])
    assert field in answer.text
    assert (await chat.presence("bob"))["devices"] == []


async def test_only_a_channel_that_one_is_in_can_be_open(chat: Chat) -> None:
    await chat.open_channel("alice")
    for channel, code in [("nowhere", "channel_not_found"), ("general", "not_a_member")]:
        body = {"device": "phone", "online": True, "focus": channel}
        check_problem(await chat.call("PUT", "/v1/users/bob/presence", body), 404, code)
    assert (await chat.presence("bob"))["devices"] == []


async def test_users_do_not_report_devices_themselves(chat: Chat) -> None:
    answer = await chat.as_user("bob").call("PUT", "/v1/users/me/presence", {"device": "phone", "online": True})
    check_problem(answer, 403, "forbidden")
