"""What a message does to the counts: `counts` says it, and where that is not enough, figures follow."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GENERAL

from .conftest import LiveService, live_service
from .device import Device


async def counts(device: Device) -> list[bool]:
    """For each message that came, whether it adds one."""
    return [event["counts"] for event in await device.heard("message.new")]


async def test_a_message_adds_one_for_everybody_else(either: LiveService) -> None:
    alice, bob = await either.fresh("alice"), await either.fresh("bob")

    await either.chat.send("alice", "m1")

    assert await counts(bob) == [True]
    assert await counts(alice) == [False]


async def test_a_silent_message_adds_nothing(either: LiveService) -> None:
    bob = await either.fresh("bob")

    await either.chat.send("alice", "m1", silent=True, mentions=["bob"])

    [told] = await bob.heard("message.new")
    assert (told["counts"], told["silent"], told["seq"]) == (False, True, 1)
    assert await either.chat.count("bob") == 0


async def test_a_reply_adds_only_where_it_stands_in_the_channel(either: LiveService) -> None:
    await either.chat.send("alice", "root")
    bob = await either.fresh("bob")

    await either.chat.reply("alice", "root", "r1")
    await either.chat.reply("alice", "root", "r2", also_to_channel=True)

    thread_only, both = await bob.heard("message.new")
    assert (thread_only["counts"], thread_only["seq"], thread_only["thread_seq"]) == (False, None, 1)
    assert (both["counts"], both["seq"], both["thread_id"], both["thread_seq"]) == (True, 2, "root", 2)


async def test_a_mention_says_so(either: LiveService) -> None:
    bob, carol = await either.fresh("bob"), await either.fresh("carol")

    await either.chat.send("alice", "m1", mentions=["bob"])
    await either.chat.send("alice", "m2", mentions=["@channel"])
    await either.chat.send("bob", "m3", mentions=["bob", "@channel"])

    assert [event["mentions_me"] for event in await bob.heard("message.new")] == [True, True, False]
    assert [event["mentions_me"] for event in await carol.heard("message.new")] == [False, True, True]


async def test_here_mentions_those_who_are_online(service: LiveService) -> None:
    bob = await service.fresh("bob")

    await service.chat.send("alice", "m1", mentions=["@here"])

    assert [event["mentions_me"] for event in await bob.heard("message.new")] == [True]
    assert (await service.chat.unread("bob"))["mentions"] == 1
    assert (await service.chat.unread("carol"))["mentions"] == 0


async def test_in_focus_on_any_device_a_message_adds_nothing_on_all_of_them(either: LiveService) -> None:
    phone, laptop = await either.fresh("bob", "phone"), await either.fresh("bob", "laptop")
    await phone.ask("channel.focus", channel_id=GENERAL)

    await either.chat.send("alice", "m1")

    assert await counts(phone) == [False]
    assert await counts(laptop) == [False]


async def test_in_a_muted_channel_a_message_adds_one_and_its_figures_follow(either: LiveService) -> None:
    await either.chat.prefer("bob", muted=True)
    bob = await either.fresh("bob")

    await either.chat.send("alice", "m1")

    message, unread = await bob.heard()
    assert (message["type"], message["counts"]) == ("message.new", True)
    assert (unread["type"], unread["unread"], unread["muted"]) == ("unread.updated", 1, True)


@pytest.mark.parametrize(
    ("wanted", "mentions", "unread"), [("mentions", [], 0), ("mentions", ["bob"], 1), ("none", ["bob"], 0)]
)
async def test_by_preference_a_message_may_add_nothing(
    either: LiveService, wanted: str, mentions: list[str], unread: int
) -> None:
    await either.chat.prefer("bob", count=wanted)
    bob = await either.fresh("bob")

    await either.chat.send("alice", "m1", mentions=mentions)

    message, *figures = await bob.heard()
    after = {"unread": 0, "has_unread": False, "mentions": 0}
    if message["counts"]:
        after = {"unread": 1, "has_unread": True, "mentions": int(message["mentions_me"])}
    if figures:
        after = {name: figures[-1][name] for name in after}
    assert after == {"unread": unread, "has_unread": True, "mentions": len(mentions)}


async def test_a_batch_counts_message_by_message(either: LiveService) -> None:
    bob = await either.fresh("bob")
    plain: dict[str, Any] = {"channel_id": GENERAL, "text": "x"}

    await either.chat.post_all(
        [
            plain | {"sender_id": "alice"},
            plain | {"sender_id": "alice", "silent": True},
            plain | {"sender_id": "bob"},
            plain | {"sender_id": "carol"},
            plain | {"sender_id": "alice"},
        ]
    )

    told = await bob.heard("message.new")
    assert [event["seq"] for event in told] == [1, 2, 3, 4, 5]
    assert [event["counts"] for event in told][1:] == [False, False, True, True]
    assert await either.chat.count("bob") == 2


async def test_a_repeated_message_is_told_once(either: LiveService) -> None:
    bob = await either.fresh("bob")

    await either.chat.send("alice", "m1")
    assert (await either.chat.post("alice", id="m1", text="again"))["status"] == "duplicate"

    assert await counts(bob) == [True]


async def test_the_epoch_of_a_message_is_the_users_own(either: LiveService) -> None:
    await either.chat.send("alice", "m1")
    await either.chat.mark_unread("bob", "m1")
    epoch = (await either.chat.unread("bob"))["last_read"]["epoch"]
    bob, carol = await either.fresh("bob"), await either.fresh("carol")

    await either.chat.send("alice", "m2")

    assert [event["epoch"] for event in await bob.heard("message.new")] == [epoch]
    assert [event["epoch"] for event in await carol.heard("message.new")] == [0]


# ---------------------------------------------------------------- at the cap


@pytest.fixture
async def capped(tmp_path: Path, mode: str) -> AsyncIterator[LiveService]:
    """Counts above three are lower bounds."""
    async with live_service(tmp_path, unread_cap=3, fanout_max_members=100 if mode == "ledger" else 1) as service:
        await service.chat.open_channel("alice", "bob")
        yield service


async def test_at_the_cap_devices_and_http_say_the_same(capped: LiveService) -> None:
    bob = await capped.fresh("bob")
    unread, exact = 0, True
    for number in range(1, 8):
        await capped.chat.send("alice", f"m{number}")

        for event in await bob.heard():
            if event["type"] == "message.new":
                unread += event["counts"]
            elif event["type"] == "unread.updated":
                unread, exact = event["unread"], event["exact"]
        truth = await capped.chat.unread("bob")
        assert (unread, exact) == (truth["unread"], truth["exact"]), f"after {number} messages"
    assert exact is False


async def test_after_a_read_at_the_cap_counts_are_exact_again(capped: LiveService) -> None:
    await capped.chat.send("alice", *(f"m{number}" for number in range(1, 7)))
    bob, laptop = await capped.fresh("bob"), await capped.fresh("bob", "laptop")

    ack = await bob.ask("mark_read", channel_id=GENERAL, up_to="m5")

    [told] = await laptop.heard("read_pointer.updated")
    assert (ack["unread"], ack["exact"]) == (1, True)
    assert (told["unread"], told["exact"]) == (1, True)
