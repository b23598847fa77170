"""Online by a connection, and gone without a word: what may not have got through counts for the badge."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.conftest import GENERAL, SERVICE_KEY, eventually

from .conftest import LiveService, live_service
from .device import Device


@asynccontextmanager
async def gone(service: LiveService, user: str = "bob") -> AsyncIterator[None]:
    """After what is done here, the user goes offline."""
    yield

    async def offline() -> bool:
        return not (await service.chat.presence(user))["online"]

    await eventually(offline, f"{user} is offline")


async def badge_becomes(service: LiveService, senders: int, user: str = "bob") -> None:
    async def counted() -> bool:
        return bool((await service.chat.ask("GET", f"/v1/users/{user}/badge"))["senders"] == senders)

    await eventually(counted, f"the badge of {user} is {senders}")
    assert await service.chat.badge(user) == senders


async def in_the_tunnel(service: LiveService, device: Device) -> None:
    """The device has shown that it is there; what is sent from now on it does not confirm."""
    await device.quiet()
    device.socket.transport.pause_reading()


async def test_online_from_hello_to_the_end(service: LiveService) -> None:
    assert (await service.chat.presence("bob")) == {"online": False, "last_seen": None, "devices": []}

    bob = await service.device("bob", hello=False)
    assert (await service.chat.presence("bob"))["online"] is False

    await bob.hello()
    there = await service.chat.presence("bob")
    assert (there["online"], there["devices"]) == (True, ["phone"])

    async with gone(service):
        await bob.close()
    assert (await service.chat.presence("bob"))["last_seen"] >= there["last_seen"]


async def test_what_a_device_without_goodbye_did_not_confirm_counts(service: LiveService) -> None:
    bob = await service.fresh("bob")
    await in_the_tunnel(service, bob)
    await service.chat.send("alice", "m1")
    await service.chat.send("carol", "m2")

    async with gone(service):
        await bob.cut()

    await badge_becomes(service, 2)
    assert {one["sender_id"] for one in (await service.chat.tap("bob"))["by_sender"]} == {"alice", "carol"}


async def test_what_it_has_confirmed_does_not_count(service: LiveService) -> None:
    bob = await service.fresh("bob")
    await service.chat.send("alice", "m1")
    await bob.quiet()
    await in_the_tunnel(service, bob)
    await service.chat.send("carol", "m2")

    async with gone(service):
        await bob.cut()

    await badge_becomes(service, 1)


async def test_after_a_goodbye_nothing_counts(service: LiveService) -> None:
    bob = await service.fresh("bob")
    await service.chat.send("alice", "m1")

    async with gone(service):
        await bob.close()

    assert await service.chat.badge("bob") == 0


async def test_with_another_device_nothing_counts(service: LiveService) -> None:
    phone, laptop = await service.fresh("bob", "phone"), await service.fresh("bob", "laptop")
    await in_the_tunnel(service, phone)
    await service.chat.send("alice", "m1")
    await phone.cut()

    await laptop.quiet()
    async with gone(service):
        await laptop.close()

    assert await service.chat.badge("bob") == 0


async def test_only_watched_by_a_service_what_was_not_confirmed_counts(service: LiveService) -> None:
    """Who watches a user is no device of the user's: the last one has gone all the same."""
    watcher = await service.fresh("bob", token=SERVICE_KEY, path="/v1/ws?user=bob")
    bob = await service.fresh("bob")
    await watcher.heard()
    await in_the_tunnel(service, bob)
    await service.chat.send("alice", "m1")

    async with gone(service):
        await bob.cut()

    await badge_becomes(service, 1)
    assert (await watcher.first("badge.updated", senders=1))["label"] == "1"


async def test_what_would_not_count_for_somebody_away_does_not_count_for_somebody_lost(service: LiveService) -> None:
    await service.chat.prefer("bob", muted=True)
    await service.chat.open_channel("alice", "bob", channel="open", type="channel")
    bob = await service.fresh("bob")
    await in_the_tunnel(service, bob)
    await service.chat.send("alice", "m1")
    await service.chat.send("alice", "o1", channel="open")
    await service.chat.send("carol", "m2", mentions=["bob"])

    async with gone(service):
        await bob.cut()

    await badge_becomes(service, 1)


async def test_a_device_that_answers_pings_stays(tmp_path: Path) -> None:
    async with live_service(tmp_path, heartbeat=5) as service:
        await service.chat.open_channel("alice", "bob", "carol")
        silent, there = await service.fresh("bob"), await service.fresh("carol")
        silent.socket.transport.pause_reading()

        async with gone(service):
            await service.chat.send("alice", "m1")

        assert (await service.chat.presence("carol"))["online"] is True
        await there.quiet()
        await badge_becomes(service, 1)
        assert await service.chat.badge("carol") == 0
        await silent.cut()


async def test_focus_of_a_lost_device_ends(either: LiveService) -> None:
    phone, laptop = await either.fresh("bob", "phone"), await either.fresh("bob", "laptop")
    await phone.ask("channel.focus", channel_id=GENERAL)

    await phone.cut()

    async def laptop_alone() -> bool:
        return bool((await either.chat.presence("bob"))["devices"] == ["laptop"])

    await eventually(laptop_alone, "the phone is gone")
    await either.chat.send("alice", "m1")
    assert [event["counts"] for event in await laptop.heard("message.new")] == [True]
    assert await either.chat.count("bob") == 1


@pytest.mark.parametrize("how", ["tap", "badge.tap"])
async def test_a_tap_forgets_what_was_not_confirmed_before_it(service: LiveService, how: str) -> None:
    """What was accepted before the tap must not bring the badge back."""
    phone = await service.fresh("bob")
    await service.chat.send("alice", "m1")
    await phone.first("message.new")
    if how == "tap":
        await service.chat.tap("bob")
    else:
        await phone.ask("badge.tap")

    async with gone(service):
        await phone.cut()

    await service.rs.live.close()
    assert await service.chat.badge("bob") == 0
