"""Read receipts: who has seen what, when, out of how many, and who keeps it private."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conftest import Chat, Clock, check_problem, in_process, message_path


@pytest.fixture(autouse=True)
async def _a_group(chat: Chat, clock: Clock) -> None:
    """Alice has written m1 to m5, a second apart; bob, carol and dave have not read anything."""
    await chat.open_channel("alice", "bob", "carol", "dave")
    for n in range(1, 6):
        clock.advance(seconds=1)
        await chat.send("alice", f"m{n}")


async def test_who_has_seen_a_message_and_when_out_of_the_others(chat: Chat, clock: Clock) -> None:
    clock.advance(seconds=1)
    first = clock()
    await chat.read("carol", up_to="m2")
    clock.advance(seconds=1)
    await chat.read("bob")

    seen = await chat.seen("m2")
    assert seen == {
        "count": 2,
        "of": 3,
        "users": [{"user_id": "carol", "read_at": first}, {"user_id": "bob", "read_at": clock()}],
        "exact": True,
    }
    assert await chat.seen_by("m3") == ["bob"]
    assert await chat.receipts() == {"alice": 5, "bob": 5, "carol": 2}


async def test_repeated_and_late_reads_change_no_receipt(chat: Chat, clock: Clock) -> None:
    await chat.read("bob", up_to="m4")
    before = await chat.seen("m4")
    clock.advance(seconds=5)
    await chat.read("bob", up_to="m4")
    await chat.read("bob", up_to="m1")
    assert await chat.seen("m4") == before


async def test_what_is_read_one_by_one_is_seen_and_not_before_it_was_read(chat: Chat, clock: Clock) -> None:
    await chat.read("bob", up_to="m1")
    clock.advance(seconds=9)
    await chat.read("bob", messages=["m4"])
    assert [await chat.seen_by(f"m{n}") for n in (1, 2, 4, 5)] == [["bob"], [], ["bob"], []]
    [reader] = (await chat.seen("m4"))["users"]
    assert reader["read_at"] == clock()


async def test_writing_is_reading(chat: Chat) -> None:
    await chat.send("carol", "answer")
    assert await chat.seen_by("m3") == ["carol"]
    assert await chat.seen("answer") == {"count": 0, "of": 3, "users": [], "exact": True}


@pytest.mark.parametrize("history", ["read", 2])
async def test_joining_is_no_receipt(chat: Chat, history: str | int) -> None:
    await chat.join("erin", history=history)
    assert await chat.seen_by("m1") == []
    assert "erin" not in await chat.receipts()
    await chat.send("alice", "m6")
    await chat.read("erin")
    assert await chat.seen_by("m1") == []
    assert await chat.seen_by("m6") == ["erin"]
    assert (await chat.receipts())["erin"] == 6


async def test_joining_again_is_no_receipt_either_and_takes_none_away(chat: Chat) -> None:
    await chat.read("bob", up_to="m1")
    await chat.read("bob", messages=["m3"])
    await chat.leave("bob")
    assert await chat.seen_by("m1") == []
    await chat.join("bob")
    await chat.leave("bob")
    await chat.send("alice", "m6")
    await chat.join("bob")
    assert [await chat.seen_by(f"m{n}") for n in (1, 2, 3, 6)] == [["bob"], [], ["bob"], []]
    assert (await chat.receipts())["bob"] in {1, 3}


async def test_two_joins_and_nothing_read_is_no_receipt(chat: Chat) -> None:
    await chat.join("erin")
    await chat.leave("erin")
    await chat.send("alice", "m6")
    await chat.join("erin")
    assert "erin" not in await chat.receipts()


async def test_marking_unread_takes_the_receipt_back_and_reading_again_gives_it_again(chat: Chat) -> None:
    await chat.read("bob")
    await chat.mark_unread("bob", "m3")
    assert [await chat.seen_by(f"m{n}") for n in (2, 3, 5)] == [["bob"], [], []]
    assert (await chat.receipts())["bob"] == 2
    await chat.read("bob")
    assert await chat.seen_by("m5") == ["bob"]


async def test_marking_unread_gives_no_receipt_of_what_a_join_had_marked(chat: Chat) -> None:
    await chat.join("erin")
    await chat.mark_unread("erin", "m4")
    assert await chat.seen_by("m2") == []
    assert "erin" not in await chat.receipts()
    await chat.read("erin")
    assert [await chat.seen_by(f"m{n}") for n in (2, 4)] == [[], ["erin"]]


async def test_an_undo_takes_the_receipts_of_mark_all_read_back_and_gives_none(chat: Chat) -> None:
    await chat.join("erin")
    await chat.send("alice", "m6")
    done = await chat.read_all("erin")
    assert await chat.seen_by("m6") == ["erin"]
    await chat.undo("erin", done["undo"])
    assert [await chat.seen_by(f"m{n}") for n in (2, 6)] == [[], []]
    assert "erin" not in await chat.receipts()


@pytest.mark.parametrize("where", ["in this channel", "everywhere"])
async def test_private_readers_are_in_no_answer(chat: Chat, where: str) -> None:
    await chat.read("bob")
    await chat.read("carol")

    async def keep(receipts: str) -> None:
        if where == "everywhere":
            assert await chat.prefer_everywhere("bob", receipts=receipts) == {"receipts": receipts}
        else:
            assert (await chat.prefer("bob", receipts=receipts))["receipts"] == receipts

    await keep("private")
    assert await chat.seen_by("m1") == ["carol"]
    assert (await chat.seen("m1"))["of"] == 3
    assert "bob" not in await chat.receipts()
    await chat.evict()
    assert await chat.seen_by("m1") == ["carol"]

    await keep("public")
    assert await chat.seen_by("m1") == ["bob", "carol"]


async def test_private_in_one_channel_is_public_in_the_others(chat: Chat) -> None:
    await chat.open_channel("alice", "bob", channel="other")
    await chat.send("alice", "o1", channel="other")
    await chat.prefer("bob", receipts="private")
    await chat.read_all("bob")
    assert await chat.seen_by("m1") == []
    assert await chat.seen_by("o1", "other") == ["bob"]


async def test_whoever_has_left_has_seen_nothing_and_is_not_counted(chat: Chat) -> None:
    await chat.read("bob")
    await chat.leave("bob", "alice")
    assert await chat.seen("m1") == {"count": 0, "of": 2, "users": [], "exact": True}
    assert await chat.receipts() == {}


async def test_messages_without_receipts(chat: Chat) -> None:
    await chat.reply("bob", "m1", "reply")
    await chat.delete("m2")
    for message, status, code in [
        ("never sent", 404, "message_not_found"),
        ("m2", 409, "message_deleted"),
        ("reply", 409, "message_without_seq"),
    ]:
        answer = await chat.call("GET", f"{message_path('general', message)}/seen")
        check_problem(answer, answer.status_code, code)
        assert answer.status_code in {status, 422}
    check_problem(await chat.call("GET", "/v1/channels/nowhere/receipts"), 404, "channel_not_found")
    check_problem(await chat.call("GET", f"{message_path('nowhere', 'm1')}/seen"), 404, "channel_not_found")


async def test_only_members_may_look(chat: Chat) -> None:
    await chat.read("bob")
    assert await chat.as_user("carol").seen_by("m1") == ["bob"]
    stranger = chat.as_user("mallory")
    for path in (f"{message_path('general', 'm1')}/seen", "/v1/channels/general/receipts"):
        answer = await stranger.call("GET", path)
        assert answer.status_code in {403, 404}, answer.text


class TestInALargeChannel:
    """Above `receipts_max_members` only how many."""

    @pytest.fixture
    async def chat(self, tmp_path: Path, clock: Clock, mode: str) -> AsyncIterator[Chat]:
        limit = 100 if mode == "ledger" else 1
        options = {"clock": clock, "fanout_max_members": limit, "receipts_max_members": 3}
        async with in_process(tmp_path, **options) as chat:
            yield chat

    async def test_seen_by_n_of_m_alone(self, chat: Chat) -> None:
        await chat.read("bob", up_to="m2")
        await chat.read("carol")
        await chat.prefer("carol", receipts="private")
        assert await chat.seen("m2") == {"count": 1, "of": 3, "users": None, "exact": True}
        assert await chat.receipts() == {}

        await chat.leave("dave")
        assert await chat.seen_by("m2") == ["bob"]
        assert await chat.receipts() == {"alice": 5, "bob": 2}
