"""The inbox: conversations by latest activity, pins, archives, filters, and what each row shows."""

from typing import Any

import pytest

from tests.conftest import Chat, Clock, check_problem

FOUR = ["a", "b", "c", "d"]


@pytest.fixture(autouse=True)
async def _four_conversations(chat: Chat, clock: Clock) -> None:
    """Alice has written to bob in a, b, c and d, in this order; bob has read b and d."""
    for channel in FOUR:
        await chat.open_channel("alice", "bob", channel=channel)
        clock.advance(seconds=1)
        await chat.send("alice", f"{channel}1", channel=channel)
    for channel in ("b", "d"):
        await chat.read("bob", channel)


async def row_of(chat: Chat, channel: str, user: str = "bob") -> Any:
    """A user's row of a conversation."""
    rows = (await chat.inbox(user))["conversations"]
    return next(row for row in rows if row["channel_id"] == channel)


async def test_the_latest_activity_comes_first_and_moves_with_every_message(chat: Chat, clock: Clock) -> None:
    assert await chat.conversations("bob") == ["d", "c", "b", "a"]
    clock.advance(seconds=1)
    await chat.send("bob", "a2", channel="a")
    assert await chat.conversations("bob") == ["a", "d", "c", "b"]
    assert await chat.conversations("alice") == ["a", "d", "c", "b"]


async def test_unread_first_and_unread_only(chat: Chat) -> None:
    assert await chat.conversations("bob", order="unread_first") == ["c", "a", "d", "b"]
    assert await chat.conversations("bob", filter="unread") == ["c", "a"]
    assert await chat.conversations("bob", order="unread_first", limit=1) == ["c"]
    await chat.mark_unread("bob", "b1", "b")
    assert await chat.conversations("bob", order="unread_first") == ["c", "b", "a", "d"]
    await chat.read_all("bob")
    assert await chat.conversations("bob", order="unread_first") == ["d", "c", "b", "a"]
    assert await chat.conversations("bob", filter="unread") == []


async def test_pins_come_first_in_every_order(chat: Chat) -> None:
    await chat.prefer("bob", "a", pinned=True)
    await chat.prefer("bob", "b", pinned=True)
    assert await chat.conversations("bob") == ["b", "a", "d", "c"]
    assert await chat.conversations("bob", order="unread_first") == ["a", "b", "c", "d"]
    assert await chat.conversations("bob", filter="unread") == ["a", "c"]
    assert [row["pinned"] for row in (await chat.inbox("bob"))["conversations"]] == [True, True, False, False]
    assert await chat.conversations("alice") == ["d", "c", "b", "a"]
    await chat.prefer("bob", "b", pinned=False)
    assert await chat.conversations("bob") == ["a", "d", "c", "b"]


async def test_an_archived_one_comes_back_when_somebody_else_writes_and_not_when_oneself_does(
    chat: Chat, clock: Clock
) -> None:
    assert (await chat.prefer("bob", "c", archived=True))["archived"] is True
    assert await chat.conversations("bob") == ["d", "b", "a"]
    assert await chat.conversations("bob", filter="unread") == ["a"]
    assert await chat.conversations("bob", filter="archived") == ["c"]

    clock.advance(seconds=1)
    await chat.send("bob", "own", channel="c")
    assert await chat.conversations("bob", filter="archived") == ["c"]

    await chat.send("alice", "c2", channel="c")
    assert await chat.conversations("bob") == ["c", "d", "b", "a"]
    assert await chat.conversations("bob", filter="archived") == []
    assert (await chat.ask("GET", "/v1/users/bob/channels/c/preferences"))["archived"] is False


async def test_archived_ones_come_in_the_order_asked_for(chat: Chat) -> None:
    for channel in FOUR:
        await chat.prefer("bob", channel, archived=True)
    await chat.prefer("bob", "b", pinned=True)
    assert await chat.conversations("bob", filter="archived") == ["b", "d", "c", "a"]
    found: list[str] = []
    more: dict[str, Any] = {}
    for _ in FOUR:
        page = await chat.inbox("bob", filter="archived", order="unread_first", limit=1, **more)
        found += [row["channel_id"] for row in page["conversations"]]
        more = {"cursor": page["cursor"]}
    assert (found, more) == (["b", "c", "a", "d"], {"cursor": None})


async def test_an_archive_is_ones_own_and_can_be_taken_back(chat: Chat) -> None:
    await chat.prefer("bob", "c", archived=True)
    assert await chat.conversations("alice") == ["d", "c", "b", "a"]
    await chat.prefer("bob", "c", archived=False)
    assert await chat.conversations("bob") == ["d", "c", "b", "a"]


async def test_a_pinned_and_archived_one_is_archived(chat: Chat) -> None:
    await chat.prefer("bob", "c", pinned=True, archived=True)
    assert await chat.conversations("bob") == ["d", "b", "a"]
    assert await chat.conversations("bob", filter="archived") == ["c"]
    await chat.send("alice", "c2", channel="c")
    assert await chat.conversations("bob") == ["c", "d", "b", "a"]


async def test_a_reply_in_a_thread_alone_moves_nothing_and_brings_nothing_back(chat: Chat, clock: Clock) -> None:
    await chat.prefer("bob", "c", archived=True)
    clock.advance(seconds=1)
    await chat.reply("alice", "a1", "in the thread", channel="a")
    await chat.reply("alice", "c1", "in that thread", channel="c")
    assert await chat.conversations("bob") == ["d", "b", "a"]
    await chat.reply("alice", "a1", "in both", channel="a", also_to_channel=True)
    assert await chat.conversations("bob") == ["a", "d", "b"]


async def test_the_last_message_is_right_after_deletes_and_edits(chat: Chat, clock: Clock) -> None:
    clock.advance(seconds=1)
    await chat.send("alice", "a2", channel="a")
    assert (await row_of(chat, "a"))["last_message"]["id"] == "a2"
    await chat.edit("a2", "a", text="better said")
    assert (await row_of(chat, "a"))["last_message"]["preview"] == "better said"

    await chat.delete("a2", "a")
    assert (await row_of(chat, "a"))["last_message"]["id"] == "a1"
    assert await chat.conversations("bob") == ["d", "c", "b", "a"]
    await chat.delete("a1", "a")
    assert (await row_of(chat, "a"))["last_message"] is None
    assert await chat.conversations("bob") == ["d", "c", "b", "a"]


async def test_a_row_shows_everything_that_a_list_of_chats_needs(chat: Chat, clock: Clock) -> None:
    clock.advance(seconds=1)
    await chat.open_channel("carol", "bob", channel="dm", type="direct", name="Carol", avatar="carol.png")
    await chat.send("carol", "hi", channel="dm", mentions=["bob"])
    await chat.prefer("bob", "dm", muted=True, pinned=True)
    assert await row_of(chat, "dm") == {
        "channel_id": "dm",
        "type": "direct",
        "name": "Carol",
        "avatar": "carol.png",
        "peer_id": "carol",
        "last_message": {"id": "hi", "seq": 1, "at": clock(), "sender_id": "carol", "preview": "this is hi"},
        "unread": 1,
        "label": "1",
        "has_unread": True,
        "mentions": 1,
        "muted": True,
        "pinned": True,
    }
    assert (await row_of(chat, "dm", "carol"))["peer_id"] == "bob"
    assert (await row_of(chat, "a"))["peer_id"] is None


async def test_rows_agree_with_the_counts_of_their_channels(chat: Chat) -> None:
    await chat.prefer("bob", "a", count="none")
    await chat.prefer("bob", "c", count="mentions")
    for channel in FOUR:
        row, unread = await row_of(chat, channel), await chat.unread("bob", channel)
        for field in ("unread", "label", "has_unread", "mentions", "muted"):
            assert row[field] == unread[field], (channel, field)
        assert row["last_message"] == unread["latest"]


async def test_conversations_that_were_left_deleted_or_are_empty(chat: Chat) -> None:
    await chat.leave("bob", channel="d")
    await chat.delete_channel("c")
    await chat.open_channel("bob", channel="empty")
    assert await chat.conversations("bob") == ["b", "a", "empty"]
    await chat.join("bob", channel="d")
    assert await chat.conversations("bob") == ["d", "b", "a", "empty"]
    assert await chat.conversations("nobody") == []


async def test_big_channels_stand_among_the_small_ones(chat: Chat, clock: Clock) -> None:
    others = [f"one of many {n}" for n in range(120)]
    await chat.open_channel("alice", "bob", *others, channel="big")
    clock.advance(seconds=1)
    await chat.send("alice", "to all", channel="big")
    clock.advance(seconds=1)
    await chat.send("alice", "b2", channel="b")
    assert await chat.conversations("bob") == ["b", "big", "d", "c", "a"]
    assert await chat.conversations("bob", filter="unread") == ["b", "big", "c", "a"]
    first = await chat.inbox("bob", limit=2)
    rest = await chat.conversations("bob", limit=9, cursor=first["cursor"])
    assert [row["channel_id"] for row in first["conversations"]] + rest == ["b", "big", "d", "c", "a"]
    await chat.prefer("bob", "big", archived=True)
    assert await chat.conversations("bob") == ["b", "d", "c", "a"]


async def test_the_inbox_is_the_same_after_a_loss_of_memory(chat: Chat) -> None:
    await chat.prefer("bob", "a", pinned=True)
    await chat.prefer("bob", "c", archived=True)
    queries = [{}, {"order": "unread_first"}, {"filter": "unread"}, {"filter": "archived"}]
    before = [(await chat.inbox("bob", **query))["conversations"] for query in queries]
    await chat.evict()
    assert [(await chat.inbox("bob", **query))["conversations"] for query in queries] == before


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"order": "oldest"}, "order"),
        ({"filter": "pinned"}, "filter"),
        ({"limit": "0"}, "limit"),
        ({"limit": "a few"}, "limit"),
        ({"cursor": "nonsense"}, "cursor"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_an_inbox_that_cannot_be(chat: Chat, params: dict[str, str], field: str) -> None:
    answer = await chat.call("GET", "/v1/users/bob/inbox", params=params)
    assert answer.status_code in {400, 422}, answer.text
    check_problem(answer, answer.status_code, answer.json()["code"], field)


async def test_a_cursor_is_good_for_its_own_user_order_and_filter_only(chat: Chat) -> None:
    cursor = (await chat.inbox("bob", limit=2))["cursor"]
    sync = (await chat.sync("bob", limit=1, only_unread="false"))["cursor"]
    for user, params in [
        ("alice", {"cursor": cursor}),
        ("bob", {"cursor": cursor, "order": "unread_first"}),
        ("bob", {"cursor": cursor, "filter": "unread"}),
        ("bob", {"cursor": sync}),
    ]:
        answer = await chat.call("GET", f"/v1/users/{user}/inbox", params=params)
        assert answer.status_code in {400, 422}, answer.text
        check_problem(answer, answer.status_code, answer.json()["code"], "cursor")


async def test_a_user_sees_only_the_own_inbox(chat: Chat) -> None:
    assert await chat.as_user("bob").conversations("me") == ["d", "c", "b", "a"]
    check_problem(await chat.as_user("bob").call("GET", "/v1/users/alice/inbox"), 403, "forbidden")
