"""What reaches whom: across devices, in focus, among those who may see it, after being away."""

import asyncio
from pathlib import Path

import pytest

from tests.conftest import Clock, eventually

from .conftest import Town, a_town
from .device import Device


async def unread(device: Device, kind: str = "read_pointer.updated") -> list[int]:
    """The unread counts that a device has heard of in events of a kind."""
    return [event["unread"] for event in await device.heard(kind)]


# ---------------------------------------------------------------- across devices


async def test_a_read_on_one_device_reaches_the_others_and_does_not_echo(either: Town) -> None:
    await either.chat.send("alice", "a1", "a2", "a3")
    phone, laptop = await either.fresh("bob"), await either.fresh("bob", "laptop")

    ack = await phone.ask("mark_read", channel_id="general", up_to="a2")

    assert (ack["unread"], ack["label"], ack["has_unread"], ack["changed"]) == (1, "1", True, True)
    assert (ack["last_read"]["id"], ack["first_unread"]["id"]) == ("a2", "a3")
    [event] = await laptop.heard()
    assert event["type"] == "read_pointer.updated"
    assert (event["last_read_id"], event["last_read_seq"], event["unread"]) == ("a2", 2, 1)
    assert event["instance_id"] == laptop.ready["instance_id"] == either.rs.instance_id
    assert await phone.heard() == []


async def test_marking_unread_reaches_the_others_with_a_new_epoch(either: Town) -> None:
    await either.chat.send("alice", "a1", "a2", "a3")
    phone, laptop = await either.fresh("bob"), await either.fresh("bob", "laptop")
    await phone.ask("mark_read", channel_id="general")

    ack = await phone.ask("mark_unread", channel_id="general", **{"from": "a2"})

    assert ack["unread"] == 2
    read, unread = await laptop.heard("read_pointer.updated")
    assert (read["unread"], unread["unread"]) == (0, 2)
    assert unread["epoch"] > read["epoch"]
    late = await laptop.ask("mark_read", channel_id="general", epoch=read["epoch"])
    assert (late["changed"], late["unread"]) == (False, 2)


async def test_a_read_over_http_reaches_all_devices(town: Town) -> None:
    await town.chat.send("alice", "a1")
    phone, laptop = await town.fresh("bob"), await town.fresh("bob", "laptop")
    await town.chat.read("bob")
    assert await unread(phone) == await unread(laptop) == [0]


async def test_reading_all_and_taking_it_back_reach_all_devices(town: Town) -> None:
    await town.chat.open_channel("alice", "bob", channel="other")
    await town.chat.send("alice", "a1")
    await town.chat.send("alice", "o1", "o2", channel="other")
    phone = await town.fresh("bob")
    undo = (await town.chat.read_all("bob"))["undo"]
    assert await unread(phone) == [0, 0]
    await town.chat.undo("bob", undo)
    assert sorted(await unread(phone)) == [1, 2]


async def test_a_tap_reaches_the_other_devices(town: Town) -> None:
    await town.chat.send("alice", "a1")
    phone, laptop = await town.fresh("bob"), await town.fresh("bob", "laptop")
    tapped = await phone.ask("badge.tap")
    assert (tapped["senders"], tapped["by_sender"][0]["sender_id"]) == (1, "alice")
    assert [event["senders"] for event in await laptop.heard("badge.updated")] == [0]


async def test_a_mute_that_ends_by_itself_is_told(tmp_path: Path) -> None:
    clock = Clock()
    async with a_town(tmp_path, clock=clock) as town:
        await town.chat.open_channel("alice", "bob")
        await town.chat.send("alice", "a1")
        phone = await town.fresh("bob")
        await town.chat.prefer("bob", muted=clock.now + 300)
        assert [event["muted"] for event in await phone.heard("unread.updated")] == [True]
        clock.advance(ms=300)
        assert (await phone.first("unread.updated"))["muted"] is False


# ---------------------------------------------------------------- focus


async def test_what_arrives_in_focus_is_read_at_once_on_all_devices(either: Town) -> None:
    await either.chat.send("alice", "a1", "a2")
    phone, laptop = await either.fresh("bob"), await either.fresh("bob", "laptop")

    before = await phone.ask("channel.focus", channel_id="general")
    assert (before["unread"], before["first_unread"]["id"], before["after"]["unread"]) == (2, "a1", 0)
    for number in range(3, 8):
        await either.chat.send("alice", f"a{number}", mentions=["bob"])
        assert await either.chat.count("bob") == 0

    for device in (phone, laptop):
        events = await device.heard()
        assert [event["counts"] for event in events if event["type"] == "message.new"] == [False] * 5
        assert {event["unread"] for event in events if "unread" in event} <= {0}
    assert (await either.chat.unread("bob"))["last_read"]["id"] == "a7"


async def test_in_focus_nobody_can_ever_see_an_unread(either: Town) -> None:
    phone = await either.fresh("bob")
    await phone.ask("channel.focus", channel_id="general")
    seen: set[int] = set()

    async def look() -> None:
        while True:
            seen.add((await either.chat.unread("bob"))["unread"])
            seen.add((await either.chat.totals("bob"))["unread"])

    looking = asyncio.create_task(look())
    for number in range(50):
        await either.chat.send("alice", f"a{number}")
    looking.cancel()
    assert seen == {0}


@pytest.mark.parametrize("end", ["blur", "another", "close", "cut"])
async def test_focus_ends(town: Town, end: str) -> None:
    await town.chat.open_channel("alice", "bob", channel="other")
    phone, laptop = await town.fresh("bob"), await town.fresh("bob", "laptop")
    await phone.ask("channel.focus", channel_id="general")
    if end == "blur":
        await phone.ask("channel.blur", channel_id="general")
    elif end == "another":
        await phone.ask("channel.focus", channel_id="other")
    else:
        await (phone.close() if end == "close" else phone.cut())

        async def gone() -> bool:
            return bool((await town.chat.presence("bob"))["devices"] == ["laptop"])

        await eventually(gone, "the phone is gone")
    await town.chat.send("alice", "a1")
    assert [event["counts"] for event in await laptop.heard("message.new")] == [True]
    assert await town.chat.count("bob") == 1


async def test_hard_case_6_marking_unread_ends_focus_until_the_next_one(town: Town) -> None:
    await town.chat.send("alice", "a1")
    phone, laptop = await town.fresh("bob"), await town.fresh("bob", "laptop")
    await phone.ask("channel.focus", channel_id="general")
    await laptop.ask("mark_unread", channel_id="general", **{"from": "a1"})
    await town.chat.send("alice", "a2")
    assert await town.chat.count("bob") == 2
    await phone.ask("channel.focus", channel_id="general")
    await town.chat.send("alice", "a3")
    assert await town.chat.count("bob") == 0


async def test_opening_without_reading_leaves_the_pointer_until_something_comes(town: Town) -> None:
    await town.chat.send("alice", "a1", "a2")
    phone = await town.fresh("bob")
    before = await phone.ask("channel.focus", channel_id="general", read=False)
    assert before["unread"] == before["after"]["unread"] == 2
    assert await town.chat.count("bob") == 2
    await town.chat.send("alice", "a3")
    assert await town.chat.count("bob") == 0


# ---------------------------------------------------------------- whether a message counts


async def test_what_counts_and_what_does_not(either: Town) -> None:
    chat = either.chat
    await chat.send("alice", "root")
    bob, alice = await either.fresh("bob"), await either.fresh("alice")
    await chat.send("alice", "plain")
    await chat.send("alice", "named", mentions=["bob"])
    await chat.send("alice", "silent", silent=True)
    await chat.reply("carol", "root", "only in the thread")
    await chat.reply("carol", "root", "also here", also_to_channel=True)
    await chat.prefer("bob", muted=True)
    await chat.send("alice", "muted")
    await chat.prefer("bob", muted=False, count="mentions")
    await chat.send("alice", "no mention")
    await chat.send("alice", "all", mentions=["@channel"])
    await chat.prefer("bob", count="none")
    await chat.send("alice", "none", mentions=["bob"])
    heard = {event["message_id"]: event for event in await bob.heard("message.new")}
    assert {name for name, event in heard.items() if event["counts"]} == {"plain", "named", "also here", "muted", "all"}
    assert {name for name, event in heard.items() if event["mentions_me"]} == {"named", "all", "none"}
    assert heard["only in the thread"]["seq"] is None
    assert (heard["also here"]["thread_id"], heard["also here"]["thread_seq"]) == ("root", 2)
    own = await alice.heard("message.new")
    assert [event["counts"] for event in own if event["sender_id"] == "alice"] == [False] * 7


async def test_above_the_cap_nothing_is_added(tmp_path: Path) -> None:
    for fanout in (100, 1):
        async with a_town(tmp_path / str(fanout), unread_cap=3, fanout_max_members=fanout) as town:
            await town.chat.open_channel("alice", "bob")
            phone = await town.fresh("bob")
            await town.chat.send("alice", "a1", "a2", "a3", "a4")
            events = await phone.heard()
            last = [event for event in events if event["type"] == "unread.updated"][-1]
            assert (last["unread"], last["exact"], last["reason"]) == (3, False, "capped")
            assert [event["counts"] for event in events if event["type"] == "message.new"][-1] is False


# ---------------------------------------------------------------- who may see it


async def test_who_is_not_a_member_hears_nothing(either: Town) -> None:
    dave, carol = await either.fresh("dave"), await either.fresh("carol")
    await either.chat.leave("carol")
    assert await carol.kinds() == ["channel.removed"]
    await either.chat.send("alice", "a1")
    await either.chat.edit("a1", text="changed")
    await either.chat.read("bob")
    await either.chat.delete("a1")
    await either.chat.change_channel(name="New name")
    assert await dave.heard() == await carol.heard() == []


async def test_receipts_go_to_the_other_members(town: Town) -> None:
    await town.chat.send("alice", "a1", "a2")
    alice, carol, bob = await town.fresh("alice"), await town.fresh("carol"), await town.fresh("bob")
    await town.chat.read("bob", up_to="a2")
    for device in (alice, carol):
        event = await device.first("receipt.updated")
        assert (event["user_id"], event["last_read_id"], event["last_read_seq"]) == ("bob", "a2", 2)
    assert await bob.heard("receipt.updated") == []
    await town.chat.mark_unread("bob", "a2")
    taken_back = await alice.first("receipt.updated", last_read_seq=1)
    assert taken_back["user_id"] == "bob"


async def test_to_send_is_to_have_read(town: Town) -> None:
    alice = await town.fresh("alice")
    await town.chat.send("alice", "a1")
    await town.chat.send("bob", "b1")
    assert (await alice.first("receipt.updated"))["last_read_id"] == "b1"


async def test_private_readers_are_not_told_of(town: Town) -> None:
    await town.chat.send("alice", "a1")
    alice = await town.fresh("alice")
    await town.chat.prefer("bob", receipts="private")
    await town.chat.prefer_everywhere("carol", receipts="private")
    await town.chat.read("bob")
    await town.chat.read("carol")
    await town.chat.join("dave")
    await town.chat.read("dave")
    await town.chat.send("bob", "b1")
    await town.chat.send("dave", "d1")
    assert (await alice.first("receipt.updated"))["user_id"] == "dave"


async def test_what_a_join_marks_is_no_receipt(town: Town) -> None:
    await town.chat.send("alice", "a1")
    alice = await town.fresh("alice")
    await town.chat.join("dave")
    await town.chat.read("bob")
    assert (await alice.first("receipt.updated"))["user_id"] == "bob"


async def test_above_the_limit_there_are_no_receipts(tmp_path: Path) -> None:
    async with a_town(tmp_path, receipts_max_members=2) as town:
        await town.chat.open_channel("alice", "bob", "carol")
        await town.chat.open_channel("alice", "bob", channel="small")
        await town.chat.send("alice", "a1")
        await town.chat.send("alice", "s1", channel="small")
        alice = await town.fresh("alice")
        await town.chat.read("bob")
        await town.chat.read("bob", channel="small")
        assert (await alice.first("receipt.updated"))["channel_id"] == "small"


# ---------------------------------------------------------------- coming back


async def test_what_was_missed_comes_before_anything_newer(either: Town) -> None:
    phone = await either.fresh("bob")
    await either.chat.send("alice", "a1")
    await phone.quiet()
    await phone.cut()
    await either.chat.send("alice", "a2", "a3")
    await either.chat.delete("a2")
    back = await either.device("bob", resume=phone.resume)
    assert back.ready["resume"] == phone.resume
    await either.chat.send("alice", "a4")
    events = await back.heard()
    assert [event["message_id"] for event in events if event["type"] == "message.new"] == ["a3", "a4"]
    kinds = [event["type"] for event in events]
    assert kinds.index("unread.updated") < kinds.index("badge.updated")
    assert next(event["unread"] for event in events if event["type"] == "unread.updated") == 2


async def test_receipts_that_were_missed_are_told(town: Town) -> None:
    await town.chat.send("alice", "a1")
    phone = await town.fresh("alice")
    await phone.cut()
    await town.chat.read("bob")
    back = await town.device("alice", resume=phone.resume)
    assert (await back.first("receipt.updated", user_id="bob"))["last_read_id"] == "a1"


@pytest.mark.parametrize("cursor", ["nonsense", "", "alice's", "from the future"])
async def test_a_cursor_that_is_none_asks_for_a_sync(town: Town, cursor: str, tmp_path: Path) -> None:
    if cursor == "alice's":
        cursor = (await town.chat.sync("alice"))["sync"]
    elif cursor == "from the future":
        async with a_town(tmp_path / "another") as another:
            for name in ("x", "y", "z"):
                await another.chat.open_channel("bob", channel=name)
                await another.chat.send("bob", name, channel=name)
            cursor = (await another.chat.sync("bob"))["sync"]
    device = await town.device("bob", hello=False)
    await device.say("hello", device="phone", resume=cursor)
    await device.first("sync.required")
    await town.chat.send("alice", "a1")
    await device.first("message.new")


async def test_too_much_that_was_missed_asks_for_a_sync(town: Town) -> None:
    phone = await town.fresh("bob")
    await phone.cut()
    await town.chat.post_all({"channel_id": "general", "sender_id": "alice", "text": "x"} for _ in range(900))
    back = await town.device("bob", resume=phone.resume)
    assert len(await back.heard("message.new")) == 900
    await back.cut()
    for _ in range(2):
        await town.chat.post_all({"channel_id": "general", "sender_id": "alice", "text": "x"} for _ in range(550))
    again = await town.device("bob", resume=back.resume)
    assert [kind for kind in await again.kinds() if kind != "badge.updated"] == ["sync.required"]


async def test_nothing_is_missed_by_a_device_that_comes_and_goes_while_messages_flow(either: Town) -> None:
    done = asyncio.Event()

    async def write() -> None:
        for number in range(300):
            await either.chat.send("alice", f"a{number}")
        done.set()

    phone = await either.fresh("bob")
    writing = asyncio.create_task(write())
    heard: list[int] = []
    while True:
        over = done.is_set()
        await phone.quiet()
        await phone.cut()
        heard += [frame["seq"] for frame in phone.frames if frame["type"] == "message.new"]
        if over:
            break
        phone = await either.device("bob", resume=phone.resume)
    await writing
    assert sorted(set(heard)) == list(range(1, 301))


# ---------------------------------------------------------------- presence


async def test_a_user_is_online_while_any_device_is(town: Town) -> None:
    phone, laptop = await town.fresh("bob"), await town.fresh("bob", "laptop")
    twin = await town.fresh("bob", "laptop")
    assert (await town.chat.presence("bob"))["devices"] == ["laptop", "phone"]
    await laptop.close()
    await phone.close()

    async def one_left() -> bool:
        return bool((await town.chat.presence("bob"))["devices"] == ["laptop"])

    await eventually(one_left, "only the twin is left")
    await twin.close()

    async def away() -> bool:
        return not (await town.chat.presence("bob"))["online"]

    await eventually(away, "bob is away")
    assert (await town.chat.presence("bob"))["last_seen"] is not None


async def test_going_away_starts_the_badge(town: Town) -> None:
    phone = await town.fresh("bob")
    await town.chat.send("alice", "a1")
    assert await town.chat.badge("bob") == 0
    await phone.close()

    async def away() -> bool:
        return not (await town.chat.presence("bob"))["online"]

    await eventually(away, "bob is away")
    assert await town.chat.badge("bob") == 0
    await town.chat.send("alice", "a2")
    await town.chat.send("carol", "c1")
    assert await town.chat.badge("bob") == 2
    back = await town.device("bob")
    assert (await back.first("badge.updated"))["senders"] == 2


@pytest.mark.parametrize("proven", [True, False])
async def test_what_was_sent_after_the_last_sign_of_life_counts(town: Town, proven: bool) -> None:
    phone = await town.fresh("bob")
    await town.chat.send("alice", "a1")
    await phone.first("message.new")
    if proven:
        await phone.quiet()
    await phone.cut()

    async def counted() -> bool:
        away = not (await town.chat.presence("bob"))["online"]
        badge = await town.chat.ask("GET", "/v1/users/bob/badge")
        return away and badge["senders"] == (0 if proven else 1)

    await eventually(counted, "the badge says what did not get through")


async def test_a_device_that_answers_no_ping_is_gone(tmp_path: Path) -> None:
    async with a_town(tmp_path, heartbeat=1) as town:
        await town.chat.open_channel("alice", "bob")
        phone = await town.fresh("bob")
        phone.socket.transport.pause_reading()  # like a phone in a tunnel: the connection stands, nothing comes
        await town.chat.send("alice", "a1")

        async def away() -> bool:
            away = not (await town.chat.presence("bob"))["online"]
            return away and (await town.chat.ask("GET", "/v1/users/bob/badge"))["senders"] == 1

        await eventually(away, "the phone is given up, and its message counts")
        phone.socket.transport.abort()
