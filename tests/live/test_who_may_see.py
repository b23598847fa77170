"""Exactly those hear of something who may see it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GENERAL

from .conftest import LiveService, live_service
from .device import Device

# ---------------------------------------------------------------- channels


async def everything_happens(service: LiveService, channel: str) -> None:
    chat = service.chat
    await chat.send("alice", "x1", "x2", channel=channel, mentions=["@channel"])
    await chat.reply("carol", "x1", "x3", channel=channel)
    await chat.edit("x2", channel, text="another text")
    await chat.read("carol", channel)
    await chat.mark_unread("carol", "x1", channel)
    await chat.prefer("carol", channel, muted=True)
    await chat.change_channel(channel, name="Another name")
    await chat.delete("x2", channel)
    await chat.leave("carol", channel=channel)
    await chat.delete_channel(channel)


async def test_who_is_not_in_a_channel_hears_nothing_of_it(either: LiveService) -> None:
    stranger = await either.fresh("stranger")
    bob = await either.fresh("bob")
    await either.chat.open_channel("alice", "carol", channel="theirs")

    await everything_happens(either, "theirs")

    assert await stranger.heard() == []
    assert await bob.heard() == []


async def test_who_has_left_hears_nothing_more(either: LiveService) -> None:
    await either.chat.send("bob", "mine")
    await either.chat.reply("carol", "mine", "r1")
    bob = await either.fresh("bob")
    await either.chat.leave("bob")
    await bob.heard()

    await either.chat.reply("carol", "mine", "r2")
    await everything_happens(either, GENERAL)

    assert {event["type"] for event in await bob.heard()} <= {"badge.updated"}


async def test_who_comes_back_after_leaving_hears_nothing_that_was_missed_there(either: LiveService) -> None:
    await either.chat.send("bob", "mine")
    bob = await either.fresh("bob")
    await bob.close()
    await either.chat.send("alice", "before")
    await either.chat.leave("bob")
    await either.chat.send("alice", "after")
    await either.chat.reply("alice", "mine", "r1")
    await either.chat.read("alice")

    back = await either.device("bob", resume=bob.resume)

    events = await back.heard()
    assert {event["type"] for event in events} <= {"channel.removed", "badge.updated"}
    assert [event["channel_id"] for event in events if event["type"] == "channel.removed"] == [GENERAL]
    assert "this is r1" not in str(events)


async def test_threads_of_a_channel_that_was_left_are_in_no_frame_and_come_back_with_it(either: LiveService) -> None:
    await either.chat.send("bob", "mine")
    await either.chat.reply("carol", "mine", "r1")
    here, away = await either.fresh("bob"), await either.fresh("bob", "tablet")
    await away.close()
    await either.chat.leave("bob")
    assert [event["type"] for event in await here.heard()] == ["channel.removed"]

    await either.chat.reply("carol", "mine", "r2", mentions=["bob"])
    await either.chat.edit("r1", text="another text")
    await either.chat.delete("r2")
    await either.chat.reply("alice", "mine", "r3")
    for frame in ({}, {"up_to": "r3"}):
        answer = await here.do("mark_read", channel_id=GENERAL, thread_id="mine", **frame)
        assert (answer["type"], answer["code"]) == ("error", "forbidden")
    back = await either.device("bob", "tablet", resume=away.resume)
    watching = await either.device("bob", "watch", resume=away.resume)

    assert await here.heard() == []
    for device in (back, watching):
        events = await device.heard()
        assert {event["type"] for event in events} == {"channel.removed", "badge.updated"}
        assert "another text" not in str(device.frames)

    await either.chat.join("bob")

    for device in (here, back):
        told = await device.first("thread.updated")
        assert (told["thread_id"], told["unread"], told["followed"]) == ("mine", 2, True)
        assert told["latest"]["id"] == "r3"


async def test_who_leaves_while_it_is_looked_up_what_was_missed_hears_nothing_of_after_that(
    service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = await service.fresh("bob")
    await bob.close()
    await service.chat.send("alice", "before")
    look_up, left = service.rs.durable.messages_since, False

    async def after_leaving(*args: Any) -> Any:
        nonlocal left
        if not left:
            left = True
            await service.chat.leave("bob")
            await service.chat.send("alice", "after")
        return await look_up(*args)

    monkeypatch.setattr(service.rs.durable, "messages_since", after_leaving)
    back = await service.device("bob", resume=bob.resume)

    told = {event["type"] for event in await back.heard()}
    assert left
    assert "this is after" not in str(back.frames)
    assert "sync.required" in told


async def test_a_tap_shows_a_device_nothing_of_a_channel_that_was_left(either: LiveService) -> None:
    await either.chat.open_channel("alice", "bob", channel="pair")
    await either.chat.send("carol", "m1", mentions=["bob"])
    await either.chat.send("alice", "p1", channel="pair", mentions=["bob"])
    await either.chat.leave("bob")
    assert await either.chat.badge("bob") == 2
    bob = await either.fresh("bob")

    tapped = await bob.ask("badge.tap")

    assert tapped["senders"] == 2
    assert [one["sender_id"] for one in tapped["by_sender"]] == ["alice"]
    assert "this is m1" not in str(bob.frames)


async def test_someone_who_was_mentioned_but_is_no_member_hears_nothing(service: LiveService) -> None:
    stranger = await service.fresh("stranger")

    await service.chat.send("alice", "m1", mentions=["stranger"])
    await service.chat.send("alice", "m2")
    await service.chat.reply("alice", "m2", "r1", mentions=["stranger"])

    assert await stranger.heard() == []


async def test_a_backfill_is_news_to_nobody(service: LiveService) -> None:
    bob = await service.fresh("bob")

    await service.chat.post("alice", id="old", text="from long ago", backfill=True, at=1_700_000_000_000)

    assert [e for e in await bob.heard() if e["type"] == "message.new" and e["counts"]] == []
    assert await service.chat.count("bob") == 0


# ---------------------------------------------------------------- receipts


async def seen(device: Device) -> list[tuple[str, int]]:
    """Who was told to have read, and how far."""
    return [(event["user_id"], event["last_read_seq"]) for event in await device.heard("receipt.updated")]


async def test_others_are_told_who_has_read(either: LiveService) -> None:
    await either.chat.send("alice", "m1", "m2")
    alice, carol, bob = [await either.fresh(user) for user in ("alice", "carol", "bob")]

    await bob.ask("mark_read", channel_id=GENERAL, up_to="m1")

    for device in (alice, carol):
        [told] = await device.heard("receipt.updated")
        assert (told["channel_id"], told["user_id"]) == (GENERAL, "bob")
        assert (told["last_read_id"], told["last_read_seq"]) == ("m1", 1)
        assert told["read_at"] > 0
    assert await seen(bob) == []


async def test_mark_unread_takes_the_receipt_back(either: LiveService) -> None:
    await either.chat.send("alice", "m1", "m2", "m3")
    alice = await either.fresh("alice")

    await either.chat.read("bob")
    assert await seen(alice) == [("bob", 3)]

    await either.chat.mark_unread("bob", "m2")
    assert await seen(alice) == [("bob", 1)]
    assert (await either.chat.receipts())["bob"] == 1


async def test_to_write_is_to_have_read(either: LiveService) -> None:
    await either.chat.send("alice", "m1")
    alice = await either.fresh("alice")

    await either.chat.send("bob", "m2")

    assert await seen(alice) == [("bob", 2)]


async def test_what_is_read_in_focus_is_told(either: LiveService) -> None:
    alice, bob = await either.fresh("alice"), await either.fresh("bob")
    await bob.ask("channel.focus", channel_id=GENERAL)

    await either.chat.send("alice", "m1")

    assert (await alice.first("receipt.updated", user_id="bob"))["last_read_id"] == "m1"


async def test_a_thread_is_read_in_private(either: LiveService) -> None:
    await either.chat.send("bob", "root")
    await either.chat.reply("alice", "root", "r1")
    alice, away = await either.fresh("alice"), await either.fresh("alice", "tablet")
    await away.close()

    await either.chat.read_thread("bob", "root")

    assert await alice.heard() == []
    assert await seen(await either.device("alice", "tablet", resume=away.resume)) == []


async def test_a_private_reader_is_not_told_of(either: LiveService) -> None:
    await either.chat.open_channel("alice", "bob", channel="side")
    await either.chat.send("alice", "m1")
    await either.chat.send("alice", "s1", channel="side")
    await either.chat.prefer("bob", receipts="private")
    alice = await either.fresh("alice")

    await either.chat.read("bob")
    await either.chat.mark_unread("bob", "m1")
    assert await seen(alice) == []

    await either.chat.read("bob", "side")
    assert await seen(alice) == [("bob", 1)]


async def test_a_reader_who_is_private_everywhere_is_not_told_of(either: LiveService) -> None:
    await either.chat.send("alice", "m1")
    await either.chat.prefer_everywhere("bob", receipts="private")
    alice = await either.fresh("alice")

    await either.chat.read("bob")
    await either.chat.send("bob", "m2")

    assert await seen(alice) == []


async def test_a_private_reader_is_not_told_of_afterwards(either: LiveService) -> None:
    await either.chat.send("alice", "m1")
    await either.chat.prefer("bob", receipts="private")
    await either.chat.prefer_everywhere("carol", receipts="private")
    alice = await either.fresh("alice")
    await alice.close()
    await either.chat.read("bob")
    await either.chat.read("carol")

    back = await either.device("alice", resume=alice.resume)

    assert await seen(back) == []


async def test_what_a_join_marked_as_read_is_not_told_as_read(either: LiveService) -> None:
    await either.chat.send("alice", "m1", "m2")
    alice = await either.fresh("alice")
    await alice.close()
    again = await either.fresh("alice")

    await either.chat.join("dave")

    assert await seen(again) == []
    back = await either.device("alice", "tablet", resume=alice.resume)
    assert await seen(back) == []
    await either.chat.send("alice", "m3")
    await either.chat.read("dave")
    assert await seen(again) == [("dave", 3)]


@pytest.fixture
async def crowd(tmp_path: Path, mode: str) -> AsyncIterator[LiveService]:
    """Receipts are told in channels of up to two members."""
    limit = 100 if mode == "ledger" else 1
    async with live_service(tmp_path, receipts_max_members=2, fanout_max_members=limit) as service:
        yield service


async def test_in_a_large_channel_nobody_is_told_who_has_read(crowd: LiveService) -> None:
    await crowd.chat.open_channel("alice", "bob", "carol")
    await crowd.chat.open_channel("alice", "bob", channel="pair", type="direct")
    for channel in (GENERAL, "pair"):
        await crowd.chat.send("alice", "m1", channel=channel)
    alice, away = await crowd.fresh("alice"), await crowd.fresh("alice", "tablet")
    await away.close()

    await crowd.chat.read("bob")
    await crowd.chat.read("bob", "pair")
    await crowd.chat.settled()

    for device in (alice, await crowd.device("alice", "tablet", resume=away.resume)):
        assert [event["channel_id"] for event in await device.heard("receipt.updated")] == ["pair"]
