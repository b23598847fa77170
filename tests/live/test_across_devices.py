"""What one device does, or the backend, reaches all the others that it concerns."""

import time
from typing import Any

import pytest

from readstate.domain.model import Undelivered
from readstate.ports import Stale
from readstate.services.freshness import AlwaysFresh
from tests.conftest import GENERAL

from .conftest import LiveService
from .device import Device, Frame


async def both_of_bob(service: LiveService) -> tuple[Device, Device]:
    """Bob's phone and laptop, with three messages waiting."""
    await service.chat.send("alice", "m1", "m2", "m3")
    return await service.fresh("bob", "phone"), await service.fresh("bob", "laptop")


def only(events: list[Frame]) -> Frame:
    assert len(events) == 1, events
    return events[0]


# ---------------------------------------------------------------- reading


async def test_a_read_on_one_device_reaches_the_others(either: LiveService) -> None:
    phone, laptop = await both_of_bob(either)

    ack = await phone.ask("mark_read", channel_id=GENERAL, up_to="m2")

    assert (ack["unread"], ack["label"], ack["changed"]) == (1, "1", True)
    assert (ack["last_read"]["id"], ack["first_unread"]["id"]) == ("m2", "m3")
    told = only(await laptop.heard())
    assert told["type"] == "read_pointer.updated"
    assert (told["channel_id"], told["last_read_id"], told["last_read_seq"]) == (GENERAL, "m2", 2)
    assert (told["unread"], told["label"], told["mentions"], told["has_unread"]) == (1, "1", 0, True)
    assert told["first_unread"]["id"] == "m3"
    assert told["epoch"] == ack["last_read"]["epoch"]
    assert told["instance_id"] == either.rs.instance_id


async def test_a_read_does_not_come_back_to_where_it_was_done(either: LiveService) -> None:
    phone, _ = await both_of_bob(either)

    await phone.ask("mark_read", channel_id=GENERAL)

    assert await phone.heard() == []


async def test_a_read_on_the_only_device_is_not_rendered_again(
    either: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await either.chat.send("alice", "m1", "m2", "m3")
    phone = await either.fresh("bob")
    rendered: list[str] = []
    real = either.rs.renderer.render

    async def render(user: str, dirty: Any) -> Any:
        rendered.append(user)
        return await real(user, dirty)

    monkeypatch.setattr(either.rs.renderer, "render", render)

    ack = await phone.ask("mark_read", channel_id=GENERAL, up_to="m2")
    assert (ack["unread"], await phone.heard(), rendered) == (1, [], [])

    laptop = await either.fresh("bob", "laptop")
    rendered.clear()
    ack = await phone.ask("mark_read", channel_id=GENERAL)
    assert [event["unread"] for event in await laptop.heard("read_pointer.updated")] == [ack["unread"]] == [0]
    assert rendered == ["bob"]


async def test_a_stale_answer_to_the_only_device_is_followed_by_exact_counts(
    service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.chat.send("alice", "m1", "m2")
    phone = await service.fresh("bob")
    with monkeypatch.context() as behind:
        behind.setattr(AlwaysFresh, "stale", lambda *_: Stale(True, frozenset(), 1))
        ack = await phone.ask("mark_read", channel_id=GENERAL, up_to="m1")
        assert (ack["unread"], ack["exact"], ack["reason"]) == (1, False, "stale")

    told = await phone.first("unread.updated", channel_id=GENERAL)
    assert (told["unread"], told["exact"]) == (1, True)


async def test_a_read_that_changes_nothing_is_not_told(either: LiveService) -> None:
    phone, laptop = await both_of_bob(either)
    await phone.ask("mark_read", channel_id=GENERAL)
    await laptop.heard()

    ack = await phone.ask("mark_read", channel_id=GENERAL, up_to="m1")

    assert ack["changed"] is False
    assert ack["last_read"]["id"] == "m3"
    assert await laptop.heard() == []


async def test_messages_read_one_by_one_reach_the_others(either: LiveService) -> None:
    phone, laptop = await both_of_bob(either)

    ack = await phone.ask("mark_read", channel_id=GENERAL, messages=["m2"])

    told = only(await laptop.heard("read_pointer.updated"))
    assert (ack["unread"], told["unread"]) == (2, 2)
    assert told["first_unread"]["id"] == "m1"
    assert await either.chat.waiting("bob") == ["m3", "m1"]


async def test_mark_unread_reaches_the_others(either: LiveService) -> None:
    phone, laptop = await both_of_bob(either)
    await phone.ask("mark_read", channel_id=GENERAL)
    await laptop.heard()

    ack = await phone.ask("mark_unread", channel_id=GENERAL, **{"from": "m2"})

    told = only(await laptop.heard("read_pointer.updated"))
    assert (ack["unread"], told["unread"], told["first_unread"]["id"]) == (2, 2, "m2")
    assert told["epoch"] == ack["last_read"]["epoch"]
    assert told["epoch"] > 0
    assert await phone.heard() == []


async def test_a_late_read_of_an_old_epoch_changes_nothing_on_any_device(either: LiveService) -> None:
    phone, laptop = await both_of_bob(either)
    old = (await phone.ask("mark_read", channel_id=GENERAL))["last_read"]["epoch"]
    await laptop.ask("mark_unread", channel_id=GENERAL, **{"from": "m1"})
    await laptop.heard()

    ack = await phone.ask("mark_read", channel_id=GENERAL, epoch=old)

    assert (ack["changed"], ack["unread"]) == (False, 3)
    assert await laptop.heard() == []


@pytest.mark.parametrize("body", [{}, {"up_to": "m2"}, {"up_to_seq": 2}, {"messages": ["m2"]}])
async def test_a_read_over_http_reaches_all_devices(either: LiveService, body: dict[str, Any]) -> None:
    devices = await both_of_bob(either)

    answer = await either.chat.read("bob", **body)

    for device in devices:
        assert only(await device.heard())["unread"] == answer["unread"]


async def test_reads_of_the_backend_reach_all_devices(service: LiveService) -> None:
    devices = await both_of_bob(service)

    await service.chat.read_many({"user_id": "bob", "channel_id": GENERAL, "up_to": "m1"})

    for device in devices:
        assert only(await device.heard())["unread"] == 2


async def test_mark_all_read_and_its_undo_reach_all_devices(either: LiveService) -> None:
    devices = await both_of_bob(either)
    await either.chat.open_channel("alice", "bob", channel="side")
    await either.chat.send("alice", "s1", channel="side")
    for device in devices:
        await device.heard()

    undo = (await either.chat.read_all("bob"))["undo"]

    for device in devices:
        told = await device.heard("read_pointer.updated")
        assert {(e["channel_id"], e["unread"]) for e in told} == {(GENERAL, 0), ("side", 0)}

    await either.chat.undo("bob", undo)

    for device in devices:
        told = await device.heard("read_pointer.updated")
        assert {(e["channel_id"], e["unread"]) for e in told} == {(GENERAL, 3), ("side", 1)}


async def test_a_thread_read_on_one_device_reaches_the_others(either: LiveService) -> None:
    await either.chat.send("bob", "root")
    await either.chat.reply("alice", "root", "r1", "r2")
    phone, laptop = await either.fresh("bob", "phone"), await either.fresh("bob", "laptop")

    ack = await phone.ask("mark_read", channel_id=GENERAL, thread_id="root", up_to="r1")

    assert (ack["unread"], ack["changed"]) == (1, True)
    told = only(await laptop.heard())
    assert (told["type"], told["thread_id"], told["channel_id"]) == ("thread.updated", "root", GENERAL)
    assert (told["unread"], told["label"], told["last_read"]["id"]) == (1, "1", "r1")
    assert await either.chat.unread_replies("bob") == {"root": 1}


async def test_sending_reads_on_all_devices_of_the_sender(either: LiveService) -> None:
    devices = await both_of_bob(either)

    await either.chat.send("bob", "mine")

    for device in devices:
        message, read = await device.heard()
        assert (message["type"], message["counts"], message["sender_id"]) == ("message.new", False, "bob")
        assert (read["type"], read["unread"], read["last_read_id"]) == ("read_pointer.updated", 0, "mine")


# ---------------------------------------------------------------- messages change


async def test_a_message_comes_with_what_a_client_needs(either: LiveService) -> None:
    bob = await either.fresh("bob")

    await either.chat.send("alice", "m1", mentions=["bob"])

    told = only(await bob.heard())
    assert (told["type"], told["channel_id"], told["message_id"], told["seq"]) == ("message.new", GENERAL, "m1", 1)
    assert (told["sender_id"], told["preview"], told["silent"]) == ("alice", "this is m1", False)
    assert (told["counts"], told["mentions_me"], told["epoch"]) == (True, True, 0)
    assert told["at"] == (await either.chat.channel())["latest"]["at"]
    assert told["resume"]
    assert "thread_id" not in told


async def test_a_delete_is_told_with_the_new_figures(either: LiveService) -> None:
    phone, laptop = await both_of_bob(either)

    await either.chat.delete("m3")

    for device in (phone, laptop):
        told = only(await device.heard())
        assert (told["type"], told["unread"], told["latest"]["id"]) == ("unread.updated", 2, "m2")


async def test_an_edit_of_a_mention_is_told_with_the_new_figures(either: LiveService) -> None:
    phone, _ = await both_of_bob(either)

    await either.chat.edit("m2", mentions=["bob"])
    assert only(await phone.heard("unread.updated"))["mentions"] == 1

    await either.chat.edit("m2", mentions=[])
    assert only(await phone.heard("unread.updated"))["mentions"] == 0


async def test_an_edit_of_the_latest_text_is_told(either: LiveService) -> None:
    phone, _ = await both_of_bob(either)

    await either.chat.edit("m3", text="better")

    assert only(await phone.heard("unread.updated"))["latest"]["preview"] == "better"


async def test_a_recount_is_told(either: LiveService) -> None:
    phone, _ = await both_of_bob(either)

    await either.chat.recount("bob")

    assert only(await phone.heard("unread.updated"))["unread"] == 3


# ---------------------------------------------------------------- preferences


@pytest.mark.parametrize(
    ("wanted", "figures"),
    [
        ({"muted": True}, {"muted": True, "unread": 3}),
        ({"count": "none"}, {"unread": 0, "label": "", "has_unread": True}),
        ({"count": "mentions"}, {"unread": 0, "has_unread": True}),
    ],
)
async def test_a_preference_reaches_all_devices_with_its_figures(
    either: LiveService, wanted: dict[str, Any], figures: Frame
) -> None:
    for device in await both_of_bob(either):
        await either.chat.prefer("bob", **wanted)

        channel, unread = (await device.heard())[-2:]
        assert channel["type"] == "channel.updated"
        assert wanted.items() <= channel["preferences"].items()
        assert unread["type"] == "unread.updated"
        assert figures.items() <= unread.items()


async def test_a_pin_reaches_all_devices(service: LiveService) -> None:
    phone, laptop = await both_of_bob(service)

    await service.chat.as_user("bob").prefer("me", pinned=True)

    for device in (phone, laptop):
        told = only(await device.heard("channel.updated"))
        assert told["conversation"]["pinned"] is True
        assert told["preferences"]["pinned"] is True


async def test_preferences_are_nobody_elses_business(service: LiveService) -> None:
    alice = await service.fresh("alice")

    await service.chat.prefer("bob", muted=True, receipts="private")

    assert await alice.heard() == []


async def test_a_mute_that_ends_by_itself_is_told(either: LiveService) -> None:
    phone, laptop = await both_of_bob(either)
    await either.chat.prefer("bob", muted=int(time.time() * 1000) + 400)

    for device in (phone, laptop):
        assert (await device.first("unread.updated", muted=False))["unread"] == 3


async def test_mutes_that_end_together_are_all_told(service: LiveService) -> None:
    for channel in (GENERAL, "side", "third"):
        await service.chat.open_channel("alice", "bob", channel=channel)
        await service.chat.prefer("bob", channel, muted=True)
    phone = await service.fresh("bob")
    end = int(time.time() * 1000) + 500
    for channel in (GENERAL, "side", "third"):
        await service.chat.prefer("bob", channel, muted=end)

    for channel in (GENERAL, "side", "third"):
        await phone.first("unread.updated", channel_id=channel, muted=False)


async def test_a_mute_that_was_set_before_the_device_came_ends_for_it_too(service: LiveService) -> None:
    before = (await service.chat.sync("bob"))["sync"]
    await service.chat.prefer("bob", muted=int(time.time() * 1000) + 500)
    phone = await service.device("bob", resume=before)  # even if it comes so late that the mute has ended

    assert (await phone.first("unread.updated", muted=False))["channel_id"] == GENERAL


# ---------------------------------------------------------------- channels and members


async def test_a_join_brings_the_channel(either: LiveService) -> None:
    await either.chat.open_channel("alice", channel="club", type="channel", name="The club")
    await either.chat.send("alice", "c1", "c2", channel="club")
    bob = await either.fresh("bob")

    await either.chat.join("bob", channel="club", history="unread")
    channel, unread = await bob.heard()
    await either.chat.send("alice", "c3", channel="club")
    [message] = await bob.heard()

    assert (channel["type"], channel["channel_id"]) == ("channel.updated", "club")
    assert (channel["conversation"]["name"], channel["conversation"]["unread"]) == ("The club", 2)
    assert channel["preferences"]["count"] == "all"
    assert (unread["type"], unread["unread"], unread["first_unread"]["id"]) == ("unread.updated", 2, "c1")
    assert (message["type"], message["message_id"], message["counts"]) == ("message.new", "c3", True)


async def test_a_new_name_reaches_all_members(either: LiveService) -> None:
    devices = [await either.fresh(user) for user in ("alice", "bob", "carol")]

    await either.chat.change_channel(name="Another name", avatar="https://pictures.example/1")

    for device in devices:
        told = only(await device.heard("channel.updated"))
        assert told["conversation"]["name"] == "Another name"
        assert told["conversation"]["avatar"] == "https://pictures.example/1"


async def test_an_archived_channel_leaves_the_totals_and_comes_back(either: LiveService) -> None:
    phone, _ = await both_of_bob(either)

    await either.chat.change_channel(archived=True)
    gone = await phone.heard()
    assert any(event.get("archived") or event.get("conversation", {}).get("archived") for event in gone)

    await either.chat.change_channel(archived=False)
    back = await phone.heard()
    assert back
    assert not any(event.get("archived") or event.get("conversation", {}).get("archived") for event in back)


async def test_leaving_takes_the_channel_away(either: LiveService) -> None:
    phone, laptop = await both_of_bob(either)

    await either.chat.leave("bob")

    for device in (phone, laptop):
        told = only(await device.heard())
        assert (told["type"], told["channel_id"]) == ("channel.removed", GENERAL)


async def test_a_deleted_channel_is_taken_from_all_members(either: LiveService) -> None:
    devices = [await either.fresh(user) for user in ("alice", "bob", "carol")]

    await either.chat.delete_channel()

    for device in devices:
        assert only(await device.heard("channel.removed"))["channel_id"] == GENERAL


# ---------------------------------------------------------------- threads and the badge


async def test_a_reply_reaches_members_and_counts_for_followers(either: LiveService) -> None:
    await either.chat.send("bob", "root")
    bob, carol = await either.fresh("bob"), await either.fresh("carol")

    await either.chat.reply("alice", "root", "r1")

    message, thread = await bob.heard()
    assert (message["type"], message["message_id"], message["seq"]) == ("message.new", "r1", None)
    assert (message["thread_id"], message["thread_seq"], message["counts"]) == ("root", 1, False)
    assert (thread["type"], thread["thread_id"], thread["unread"]) == ("thread.updated", "root", 1)
    assert thread["latest"]["id"] == "r1"
    assert only(await carol.heard())["type"] == "message.new"


async def test_following_and_unfollowing_reach_the_users_devices(either: LiveService) -> None:
    await either.chat.send("bob", "root")
    await either.chat.reply("alice", "root", "r1")
    carol, bob = await either.fresh("carol"), await either.fresh("bob")

    await either.chat.follow("carol", "root")
    told = only(await carol.heard())
    assert (told["type"], told["thread_id"], told["unread"]) == ("thread.updated", "root", 0)
    assert told.get("followed", True) is True

    await either.chat.unfollow("carol", "root")
    told = only(await carol.heard())
    assert (told["type"], told["thread_id"], told["followed"]) == ("thread.updated", "root", False)

    await either.chat.reply("alice", "root", "r2")
    assert [e["type"] for e in await carol.heard()] == ["message.new"]
    assert "thread.updated" in await bob.kinds()


async def test_a_deleted_reply_is_told_to_followers(either: LiveService) -> None:
    await either.chat.send("bob", "root")
    await either.chat.reply("alice", "root", "r1", "r2")
    bob = await either.fresh("bob")

    await either.chat.delete("r2")

    told = only(await bob.heard("thread.updated"))
    assert (told["unread"], told["latest"]["id"]) == (1, "r1")


async def test_a_tap_clears_the_badge_on_all_devices(service: LiveService) -> None:
    await service.chat.send("alice", "m1")
    await service.chat.send("carol", "m2")
    phone, laptop = await service.fresh("bob", "phone"), await service.fresh("bob", "laptop")

    ack = await phone.ask("badge.tap")

    assert ack["senders"] == 2
    assert {one["sender_id"] for one in ack["by_sender"]} == {"alice", "carol"}
    for device in (phone, laptop):
        told = (await device.heard("badge.updated"))[-1]
        assert (told["senders"], told["label"]) == (0, "")
    assert await service.chat.count("bob") == 2


async def test_a_badge_that_changed_before_its_announcement_reaches_all_devices(service: LiveService) -> None:
    """The laptop connects between the change and its announcement, and gets the new number first."""
    phone = await service.fresh("bob", "phone")
    changed = Undelivered("bob", service.rs.clock(), "alice", GENERAL, "m1")
    assert await service.rs.hot.badges.add([changed]) == {"bob": True}

    laptop = await service.device("bob", "laptop")

    assert (await laptop.first("badge.updated"))["senders"] == 1
    assert [one["senders"] for one in await phone.heard("badge.updated")] == [1]


async def test_a_pong_comes_after_all_that_was_announced_before_the_ping(service: LiveService) -> None:
    alice, bob = await service.fresh("alice"), await service.fresh("bob")
    for number in range(1, 11):
        await service.chat.send("alice", f"m{number}")
        await service.chat.read("bob")
        await bob.say("ping", ref=f"p{number}")
        await alice.say("ping", ref=f"p{number}")
        for device in (alice, bob):
            await device.until(lambda: device.frames[-1].get("ref") == f"p{number}", "the pong")  # noqa: B023
            kinds = [frame["type"] for frame in device.frames]
            assert "message.new" in kinds
            assert ("receipt.updated" if device is alice else "read_pointer.updated") in kinds
            device.frames.clear()
