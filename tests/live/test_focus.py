"""An open channel is read: at once, on every device, and until it is not open any more."""

import asyncio

import pytest

from readstate.domain.errors import HotStoreUnavailable, StorageUnavailable
from readstate.domain.model import Position
from readstate.ports import Seen
from tests.conftest import GENERAL

from .conftest import LiveService
from .device import Device
from .test_store_away import Away


async def unread_everywhere(service: LiveService, *devices: Device) -> set[int]:
    """Every unread count that anybody could have seen of general since the last look."""
    seen = {(await service.chat.unread("bob"))["unread"], (await service.chat.totals("bob"))["unread"]}
    for device in devices:
        for event in await device.heard():
            if event["type"] == "message.new":
                seen.add(int(event["counts"]))
            seen |= {event["unread"]} if "unread" in event else set()
    return seen


async def test_opening_a_channel_reads_what_is_there(either: LiveService) -> None:
    await either.chat.send("alice", "m1", "m2", "m3")
    await either.chat.read("bob", up_to="m1")
    phone, laptop = await either.fresh("bob", "phone"), await either.fresh("bob", "laptop")

    ack = await phone.ask("channel.focus", channel_id=GENERAL)

    assert (ack["channel_id"], ack["unread"], ack["first_unread"]["id"]) == (GENERAL, 2, "m2")
    assert (ack["last_read"]["id"], ack["latest"]["id"], ack["muted"]) == ("m1", "m3", False)
    assert (ack["after"]["unread"], ack["after"]["last_read"]["id"]) == (0, "m3")
    assert await either.chat.count("bob") == 0
    [told] = await laptop.heard("read_pointer.updated")
    assert told["unread"] == 0
    assert await phone.heard("read_pointer.updated") == []


async def test_what_arrives_in_focus_is_never_unread_anywhere(either: LiveService) -> None:
    phone, laptop = await either.fresh("bob", "phone"), await either.fresh("bob", "laptop")
    await phone.ask("channel.focus", channel_id=GENERAL)

    for number in range(1, 6):
        await either.chat.send("alice", f"m{number}", mentions=["bob"])
        assert await unread_everywhere(either, phone, laptop) == {0}

    await laptop.until(
        lambda: any(e.get("last_read_id") == "m5" for e in laptop.frames), "the pointer is at the newest"
    )
    assert (await either.chat.unread("bob"))["last_read"]["id"] == "m5"
    assert await either.chat.count("bob") == 0


async def test_a_batch_in_focus_is_never_unread_anywhere(either: LiveService) -> None:
    phone, laptop = await either.fresh("bob", "phone"), await either.fresh("bob", "laptop")
    await phone.ask("channel.focus", channel_id=GENERAL)

    await either.chat.post_all([{"channel_id": GENERAL, "sender_id": "alice", "text": "x"} for _ in range(20)])

    assert await unread_everywhere(either, phone, laptop) == {0}


async def test_other_channels_are_not_in_focus(either: LiveService) -> None:
    await either.chat.open_channel("alice", "bob", channel="side")
    phone = await either.fresh("bob")
    await phone.ask("channel.focus", channel_id=GENERAL)

    await either.chat.send("alice", "s1", channel="side")

    assert [event["counts"] for event in await phone.heard("message.new")] == [True]


async def test_focus_is_nobody_elses(either: LiveService) -> None:
    bob, carol = await either.fresh("bob"), await either.fresh("carol")
    await bob.ask("channel.focus", channel_id=GENERAL)

    await either.chat.send("alice", "m1")

    assert [event["counts"] for event in await carol.heard("message.new")] == [True]
    assert await either.chat.count("carol") == 1


async def test_looking_without_reading_leaves_the_pointer_alone(either: LiveService) -> None:
    await either.chat.send("alice", "m1", "m2")
    phone, laptop = await either.fresh("bob", "phone"), await either.fresh("bob", "laptop")

    ack = await phone.ask("channel.focus", channel_id=GENERAL, read=False)

    assert (ack["unread"], ack["after"]["unread"]) == (2, 2)
    assert await either.chat.count("bob") == 2
    assert await laptop.heard() == []


async def counts_again(service: LiveService, *devices: Device) -> None:
    """The next message is unread, everywhere."""
    for device in devices:
        await device.heard()
    before = (await service.chat.unread("bob"))["unread"]
    await service.chat.send("alice", "afterwards")
    for device in devices:
        assert [event["counts"] for event in await device.heard("message.new")] == [True]
    assert await service.chat.count("bob") == before + 1


async def test_focus_ends_with_blur(either: LiveService) -> None:
    phone, laptop = await either.fresh("bob", "phone"), await either.fresh("bob", "laptop")
    await phone.ask("channel.focus", channel_id=GENERAL)

    await phone.ask("channel.blur", channel_id=GENERAL)

    await counts_again(either, phone, laptop)


async def test_blur_of_another_channel_does_not_end_it(either: LiveService) -> None:
    await either.chat.open_channel("alice", "bob", channel="side")
    phone = await either.fresh("bob")
    await phone.ask("channel.focus", channel_id=GENERAL)

    await phone.ask("channel.blur", channel_id="side")
    await either.chat.send("alice", "m1")

    assert await unread_everywhere(either, phone) == {0}


async def test_focus_ends_when_another_channel_is_opened(either: LiveService) -> None:
    await either.chat.open_channel("alice", "bob", channel="side")
    phone, laptop = await either.fresh("bob", "phone"), await either.fresh("bob", "laptop")
    await phone.ask("channel.focus", channel_id=GENERAL)

    await phone.ask("channel.focus", channel_id="side")

    await counts_again(either, phone, laptop)


async def test_focus_ends_with_the_connection(either: LiveService) -> None:
    phone, laptop = await either.fresh("bob", "phone"), await either.fresh("bob", "laptop")
    await phone.ask("channel.focus", channel_id=GENERAL)

    await phone.close()

    await counts_again(either, laptop)


async def test_focus_counts_per_connection(either: LiveService) -> None:
    phone, laptop = await either.fresh("bob", "phone"), await either.fresh("bob", "laptop")
    await phone.ask("channel.focus", channel_id=GENERAL)
    await laptop.ask("channel.focus", channel_id=GENERAL)

    await phone.ask("channel.blur", channel_id=GENERAL)
    await either.chat.send("alice", "m1")
    assert await unread_everywhere(either, phone, laptop) == {0}

    await laptop.ask("channel.blur", channel_id=GENERAL)
    await counts_again(either, phone, laptop)


async def test_two_tabs_of_one_device_are_two_connections(either: LiveService) -> None:
    first, second = await either.fresh("bob", "browser"), await either.fresh("bob", "browser")
    await first.ask("channel.focus", channel_id=GENERAL)

    await second.close()
    await either.chat.send("alice", "m1")

    assert await unread_everywhere(either, first) == {0}


async def test_focus_ends_with_mark_unread_on_the_same_device(either: LiveService) -> None:
    await either.chat.send("alice", "m1", "m2")
    phone, laptop = await either.fresh("bob", "phone"), await either.fresh("bob", "laptop")
    await phone.ask("channel.focus", channel_id=GENERAL)

    ack = await phone.ask("mark_unread", channel_id=GENERAL, **{"from": "m2"})

    assert ack["unread"] == 1
    await counts_again(either, phone, laptop)


async def test_focus_ends_with_mark_unread_on_another_device(either: LiveService) -> None:
    await either.chat.send("alice", "m1", "m2")
    phone, laptop = await either.fresh("bob", "phone"), await either.fresh("bob", "laptop")
    await phone.ask("channel.focus", channel_id=GENERAL)

    await laptop.ask("mark_unread", channel_id=GENERAL, **{"from": "m1"})

    await counts_again(either, phone, laptop)
    assert await either.chat.count("bob") == 3


async def test_focus_ends_with_mark_unread_over_http(either: LiveService) -> None:
    await either.chat.send("alice", "m1", "m2")
    phone = await either.fresh("bob")
    await phone.ask("channel.focus", channel_id=GENERAL)

    await either.chat.mark_unread("bob", "m1")

    await counts_again(either, phone)


async def test_focus_ends_with_mark_unread_also_of_what_is_unread(either: LiveService) -> None:
    await either.chat.send("alice", "m1", "m2")
    phone = await either.fresh("bob")
    await phone.ask("channel.focus", channel_id=GENERAL, read=False)

    await phone.ask("mark_unread", channel_id=GENERAL, **{"from": "m1"})

    await counts_again(either, phone)


async def test_after_mark_unread_the_channel_can_be_opened_again(either: LiveService) -> None:
    await either.chat.send("alice", "m1", "m2")
    phone = await either.fresh("bob")
    await phone.ask("channel.focus", channel_id=GENERAL)
    await phone.ask("mark_unread", channel_id=GENERAL, **{"from": "m1"})

    await phone.ask("channel.focus", channel_id=GENERAL)
    await either.chat.send("alice", "m3")

    assert await either.chat.count("bob") == 0


async def test_focus_ends_with_membership(either: LiveService) -> None:
    phone = await either.fresh("bob")
    await phone.ask("channel.focus", channel_id=GENERAL)

    await either.chat.leave("bob")
    await either.chat.send("alice", "m1")
    await either.chat.join("bob", history="unread")

    assert await either.chat.count("bob") == 1


# ---------------------------------------------------------------- what could not be done


async def refused(*_: object) -> None:
    raise StorageUnavailable


async def test_a_channel_that_could_not_be_read_is_not_open(
    either: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await either.chat.open_channel("alice", "bob", channel="other")
    bob = await either.fresh("bob")
    await bob.ask("channel.focus", channel_id=GENERAL)
    with monkeypatch.context() as full:
        full.setattr(either.rs.reads, "read", refused)
        error = await bob.do("channel.focus", channel_id="other")

    assert (error["type"], error["code"]) == ("error", "storage_unavailable")
    await either.chat.send("alice", "o1", channel="other")
    await either.chat.send("alice", "m1")
    assert {event["channel_id"]: event["counts"] for event in await bob.heard("message.new")} == {
        "other": True,
        GENERAL: False,
    }
    assert await either.chat.count("bob", "other") == 1
    assert await either.chat.count("bob") == 0


async def test_a_focus_that_cannot_be_taken_back_ends_with_its_connection(
    service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = await service.fresh("bob")
    focus = service.rs.presence.focus
    with monkeypatch.context() as full:
        full.setattr(service.rs.reads, "read", refused)
        full.setattr(service.rs.presence, "focus", lambda *place: focus(*place) if place[-1] else refused())
        await bob.say("channel.focus", channel_id=GENERAL)

        assert await bob.ended() == 1013

    await service.chat.send("alice", "m1")
    assert await service.chat.count("bob") == 1


async def test_a_read_by_focus_that_failed_holds_nobody_up(
    service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = await service.fresh("bob")
    await bob.ask("channel.focus", channel_id=GENERAL)
    away = Away(service.rs.hot.users, "move", 1, monkeypatch)
    with pytest.raises(HotStoreUnavailable):
        await service.rs.focus.read([Seen("bob", GENERAL, Position(1, "m1", 1), 0)])
    assert not away.left

    async with asyncio.timeout(60):
        await service.chat.sync("bob")
        await service.fresh("bob", "laptop")
