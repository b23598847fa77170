"""A device that comes back is told what it missed: all of it, in order, before anything newer."""

import asyncio
import itertools
from pathlib import Path

import pytest

from readstate.api.frames import Event
from readstate.domain.errors import StorageUnavailable
from readstate.services.cursors import SyncCursor
from tests.conftest import GENERAL, Chat, Clock

from .actions import bring
from .conftest import LiveService, live_service
from .device import Device, Frame
from .state import Follower


def messages(events: list[Frame]) -> list[str]:
    return [event["message_id"] for event in events if event["type"] == "message.new"]


async def test_a_device_without_a_cursor_is_told_the_badge_and_then_what_happens(service: LiveService) -> None:
    await service.chat.send("alice", "m1")

    bob = await service.device("bob")
    await service.chat.send("alice", "m2")

    badge, message = await bob.heard()
    assert (badge["type"], badge["senders"], badge["label"]) == ("badge.updated", 1, "1")
    assert message["message_id"] == "m2"


async def test_ready_repeats_the_cursor_that_was_given(service: LiveService) -> None:
    sync = (await service.chat.sync("bob"))["sync"]

    bob = await service.device("bob", resume=sync)

    assert bob.ready["resume"] == sync


async def test_a_device_comes_again_when_what_it_missed_cannot_be_looked_up(
    service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = (await service.chat.sync("bob"))["sync"]
    await service.chat.send("alice", "m1")

    async def failing(_user: str, _start: SyncCursor) -> list[Event] | None:
        raise StorageUnavailable

    with monkeypatch.context() as trouble:
        trouble.setattr(service.rs.catch_up, "_events", failing)
        bob = await service.device("bob", hello=False)
        await bob.say("hello", device="phone", resume=sync)
        assert await bob.ended() == 1013

    back = await service.device("bob", resume=bob.resume)
    assert messages(await back.heard()) == ["m1"]


async def test_a_device_comes_back_with_the_last_cursor_it_has_seen(either: LiveService) -> None:
    bob = await either.fresh("bob")
    await either.chat.send("alice", "m1")
    await bob.heard()
    await bob.cut()
    await either.chat.send("alice", "m2", "m3")
    await either.chat.reply("alice", "m1", "r1")
    await either.chat.read("bob", up_to="m1")

    back = await either.device("bob", resume=bob.resume)

    *missed, badge = await back.heard()
    again = messages(missed)[:-3]  # a device may hear twice what came last
    assert messages(missed) == [*again, "m2", "m3", "r1"]
    assert again in ([], ["m1"])
    assert not any(event["counts"] for event in missed if event["type"] == "message.new")
    [unread] = [event for event in missed if event["type"] == "unread.updated"]
    assert (unread["unread"], unread["last_read"]["id"], unread["latest"]["id"]) == (2, "m1", "m3")
    assert badge["type"] == "badge.updated"


async def test_a_device_starts_from_a_sync_over_http(either: LiveService) -> None:
    await either.chat.send("alice", "m1")
    sync = (await either.chat.sync("bob"))["sync"]
    await either.chat.send("alice", "m2")

    bob = await either.device("bob", resume=sync)

    assert messages(await bob.heard()) == ["m2"]


async def test_a_device_that_missed_nothing_is_told_nothing(either: LiveService) -> None:
    await either.chat.send("alice", "m1")
    sync = (await either.chat.sync("bob"))["sync"]

    bob = await either.device("bob", resume=sync)

    assert await bob.kinds() == ["badge.updated"]


async def test_every_cursor_on_the_way_leads_on(either: LiveService) -> None:
    """Whichever event was the last that got through, nothing after it is lost."""
    bob = await either.fresh("bob")
    for number in range(1, 6):
        await either.chat.send("alice", f"m{number}")
        await either.chat.read("carol")
    events = await bob.heard("message.new")
    assert messages(events) == ["m1", "m2", "m3", "m4", "m5"]

    for index, event in enumerate(events, 1):
        back = await either.device("bob", "tablet", resume=event["resume"])
        told = messages(await back.heard())
        assert told[-(5 - index) :] == [f"m{number}" for number in range(index + 1, 6)] or index == 5
        await back.close()


async def test_until_all_is_told_missed_events_repeat_the_old_cursor(either: LiveService) -> None:
    sync = (await either.chat.sync("bob"))["sync"]
    await either.chat.send("alice", "m1", "m2", "m3")

    bob = await either.device("bob", resume=sync)

    *missed, last, _badge = await bob.heard()
    assert missed
    assert {event["resume"] for event in missed} == {sync}
    assert last["resume"] != sync


async def test_a_device_cut_while_it_is_told_loses_nothing(either: LiveService) -> None:
    sync = (await either.chat.sync("bob"))["sync"]
    await either.chat.send("alice", "m1", "m2", "m3")
    first = await either.device("bob", resume=sync)
    halfway = (await first.heard())[1]["resume"]
    await first.cut()

    again = await either.device("bob", resume=halfway)

    assert messages(await again.heard()) == ["m1", "m2", "m3"]


async def test_what_was_missed_comes_before_anything_newer(either: LiveService) -> None:
    """While somebody writes without a pause, a device that comes back hears everything once, in order."""
    bob = await either.fresh("bob")
    await bob.cut()
    await either.chat.send("alice", *(f"m{number}" for number in range(1, 21)))
    writing = asyncio.create_task(either.chat.send("alice", *(f"m{number}" for number in range(21, 61))))

    back = await either.device("bob", resume=bob.resume)
    await writing

    seqs = [event["seq"] for event in await back.heard("message.new")]
    assert list(dict.fromkeys(seqs)) == list(range(1, 61))


async def test_nothing_is_missed_by_a_device_that_is_cut_again_and_again(either: LiveService) -> None:
    follower = await Follower(either, "bob", "phone").start()
    done = asyncio.Event()

    async def write() -> None:
        for number in range(1, 151):
            await either.chat.send(("alice", "carol")[number % 2], f"m{number}")
        done.set()

    async def wander() -> None:
        for turn in itertools.count():
            await follower.drop(politely=turn % 3 == 0)
            await follower.come_back()
            if done.is_set():
                return

    async with asyncio.TaskGroup() as together:
        together.create_task(write())
        together.create_task(wander())

    await follower.comes_to_agree()  # what a cut device did not confirm may still be on its way to the badge
    assert list(dict.fromkeys(message["seq"] for message in follower.messages)) == list(range(1, 151))
    assert follower.state.channels[GENERAL]["unread"] == 150


async def test_receipts_that_were_missed_are_told(either: LiveService) -> None:
    await either.chat.send("alice", "m1", "m2")
    alice = await either.fresh("alice")
    await alice.cut()
    await either.chat.read("bob", up_to="m1")
    await either.chat.read("bob", up_to="m2")
    await either.chat.settled()

    back = await either.device("alice", resume=alice.resume)

    told = [(e["user_id"], e["last_read_seq"]) for e in await back.heard("receipt.updated")]
    assert told == [("bob", 2)]


async def test_a_receipt_taken_back_meanwhile_is_told(either: LiveService) -> None:
    await either.chat.send("alice", "m1", "m2")
    await either.chat.read("bob")
    await either.chat.settled()
    alice = await either.fresh("alice")
    await alice.cut()
    await either.chat.mark_unread("bob", "m2")
    await either.chat.settled()

    back = await either.device("alice", resume=alice.resume)

    told = [(e["user_id"], e["last_read_seq"]) for e in await back.heard("receipt.updated")]
    assert told == [("bob", 1)]


async def test_channels_joined_left_and_renamed_meanwhile_are_told(either: LiveService) -> None:
    for channel in ("left", "renamed"):
        await either.chat.open_channel("alice", "bob", channel=channel)
    bob = await either.fresh("bob")
    await bob.cut()
    await either.chat.open_channel("alice", "bob", channel="new", name="New")
    await either.chat.leave("bob", channel="left")
    await either.chat.change_channel("renamed", name="Another name")
    await either.chat.prefer("bob", pinned=True)

    events = await (await either.device("bob", resume=bob.resume)).heard()

    assert [e["channel_id"] for e in events if e["type"] == "channel.removed"] == ["left"]
    updated = {e["channel_id"]: e for e in events if e["type"] == "channel.updated"}
    assert set(updated) == {"new", "renamed", GENERAL}
    assert updated["new"]["conversation"]["name"] == "New"
    assert updated["renamed"]["conversation"]["name"] == "Another name"
    assert updated[GENERAL]["preferences"]["pinned"] is True


async def test_threads_followed_read_and_unfollowed_meanwhile_are_told(either: LiveService) -> None:
    await either.chat.send("bob", "one", "two", "three")
    for root in ("one", "two"):
        await either.chat.reply("alice", root, f"reply to {root}")
    bob = await either.fresh("bob")
    await bob.cut()
    await either.chat.read_thread("bob", "one")
    await either.chat.unfollow("bob", "two")
    await either.chat.reply("alice", "three", "reply to three")

    events = await (await either.device("bob", resume=bob.resume)).heard("thread.updated")

    told = {event["thread_id"]: (event["followed"], event["unread"]) for event in events}
    assert told["one"] == (True, 0)
    assert told["two"][0] is False
    assert told["three"] == (True, 1)


async def test_a_mute_that_ended_meanwhile_is_told(tmp_path: Path) -> None:
    clock = Clock()
    async with live_service(tmp_path, clock=clock) as service:
        await service.chat.open_channel("alice", "bob")
        await service.chat.prefer("bob", muted=clock() + 60_000)
        bob = await service.fresh("bob")
        await bob.close()
        clock.advance(seconds=61)

        back = await service.device("bob", resume=bob.resume)

        assert (await back.first("unread.updated"))["muted"] is False


# ---------------------------------------------------------------- what can't be given whole


async def must_sync(service: LiveService, device: Device) -> None:
    """The device is told to sync; it stays connected, and a sync leads on."""
    await device.first("sync.required")
    sync = (await service.chat.sync(device.user))["sync"]
    await service.chat.send("alice", "afterwards")
    again = await service.device(device.user, "again", resume=sync)
    assert messages(await again.heard()) == ["afterwards"]


@pytest.mark.parametrize("cursor", ["", "junk", "x" * 5000, "\u2603", "AAAA", "gqFz"])
async def test_a_cursor_that_is_none_leads_to_a_sync(service: LiveService, cursor: str) -> None:
    bob = await service.device("bob", hello=False)
    await bob.hello(resume=cursor)

    await must_sync(service, bob)


async def test_a_cursor_of_somebody_else_leads_to_a_sync(service: LiveService) -> None:
    cursor = (await service.chat.sync("alice"))["sync"]

    bob = await service.device("bob", resume=cursor)

    await must_sync(service, bob)


async def test_a_cursor_of_another_list_leads_to_a_sync(service: LiveService) -> None:
    for channel in ("a", "b"):
        await service.chat.open_channel("alice", "bob", channel=channel)
    cursor = (await service.chat.inbox("bob", limit=1))["cursor"]
    assert cursor

    bob = await service.device("bob", resume=cursor)

    await must_sync(service, bob)


async def test_a_cursor_from_a_database_that_is_gone_leads_to_a_sync(tmp_path: Path) -> None:
    async with live_service(tmp_path / "old") as old:
        await old.chat.open_channel("alice", "bob")
        await old.chat.send("alice", "m1", "m2", "m3")
        cursor = (await old.chat.sync("bob"))["sync"]
    async with live_service(tmp_path / "new") as new:
        await new.chat.open_channel("alice", "bob")

        await must_sync(new, await new.device("bob", resume=cursor))


async def test_such_a_cursor_leads_to_a_sync_also_when_the_new_database_has_gone_further(tmp_path: Path) -> None:
    async with live_service(tmp_path / "old") as old:
        await old.chat.open_channel("alice", "bob")
        cursor = (await old.chat.sync("bob"))["sync"]
    async with live_service(tmp_path / "new") as new:
        await new.chat.open_channel("alice", "bob", channel="another")
        await new.chat.open_channel("alice", "bob")
        await new.chat.send("alice", "m1", "m2", "m3")

        await must_sync(new, await new.device("bob", resume=cursor))


async def write_many(chat: Chat, count: int) -> None:
    for start in range(0, count, 1000):
        batch = [{"channel_id": GENERAL, "sender_id": "alice"} for _ in range(start, min(count, start + 1000))]
        await chat.post_all(batch)


async def test_more_than_a_thousand_missed_events_lead_to_a_sync(service: LiveService) -> None:
    bob = await service.fresh("bob")
    await bob.cut()
    await write_many(service.chat, 1001)

    await must_sync(service, await service.device("bob", resume=bob.resume))


async def test_receipts_that_are_too_many_lead_to_a_sync(either: LiveService, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cursor beyond receipts that were left out would never bring them."""
    monkeypatch.setattr("readstate.live.catch_up.MAX_EVENTS", 2)
    await either.chat.open_channel("alice", "bob", "carol", "dave", channel="few")
    await either.chat.send("alice", "f1", channel="few")
    alice = await either.fresh("alice")
    await alice.cut()
    for reader in ("bob", "carol", "dave"):
        await either.chat.read(reader, "few")
    await either.chat.settled()

    back = await either.device("alice", resume=alice.resume)

    await back.first("sync.required")


async def test_nearly_a_thousand_missed_events_are_told(either: LiveService) -> None:
    bob = await either.fresh("bob")
    await bob.cut()
    await write_many(either.chat, 990)

    back = await either.device("bob", resume=bob.resume)

    events = await back.heard()
    assert [e["seq"] for e in events if e["type"] == "message.new"] == list(range(1, 991))
    assert [e["unread"] for e in events if e["type"] == "unread.updated"] == [990]


async def test_after_it_was_told_to_sync_a_device_hears_what_happens(service: LiveService) -> None:
    bob = await service.device("bob", resume="junk")
    await bob.heard()

    await service.chat.send("alice", "m1")

    assert messages(await bob.heard()) == ["m1"]


async def test_an_import_leads_to_a_sync(service: LiveService) -> None:
    bob, stranger = await service.fresh("bob"), await service.fresh("stranger")

    member = {"type": "member", "channel_id": "moved", "user_id": "bob"}
    await bring(service.chat, {"type": "channel", "channel_id": "moved", "kind": "group"}, member)

    await must_sync(service, bob)
    assert await stranger.heard() == []
