"""A frame that can't be done is answered by an error, or ends the connection, and changes nothing."""

import json
from typing import Any

import pytest

from tests.conftest import GENERAL, Chat, eventually

from .conftest import LiveService

NO_JSON = ["", " ", "hello", "{", '{"type": "ping"', '{"type": "ping"}}', "\u2603", "nul\x00", '{"type": "ping",}']
HALF_A_CHARACTER = ['{"type": "mark_read", "channel_id": "\\ud800"}']
NO_FRAME = ["null", "true", "7", '"ping"', "[]", '[{"type": "ping"}]', "{}", '{"ref": 1}']
NESTED = ["[" * 10_000, '{"type":' * 5_000, '{"type": "ping", "ref": ' + "[" * 5_000]

ROOM = f"{GENERAL}\x1fm1"
"""What a thread is called inside of the service."""

BAD_FRAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "an unknown type": ("unknown_frame", {"type": "shout"}),
    "a type of the service": ("unknown_frame", {"type": "message.new", "channel_id": GENERAL}),
    "a type that is no text": ("invalid", {"type": 7}),
    "a type that is null": ("invalid", {"type": None}),
    "a missing channel": ("invalid", {"type": "mark_read"}),
    "a missing message": ("invalid", {"type": "mark_unread", "channel_id": GENERAL}),
    "a missing token": ("invalid", {"type": "auth"}),
    "an empty token": ("invalid", {"type": "auth", "token": ""}),
    "an unknown field": ("invalid", {"type": "mark_read", "channel_id": GENERAL, "up_too": "m1"}),
    "an unknown field in a ping": ("invalid", {"type": "ping", "loud": True}),
    "a channel that is a list": ("invalid", {"type": "mark_read", "channel_id": [GENERAL]}),
    "a channel that is empty": ("invalid_id", {"type": "mark_read", "channel_id": ""}),
    "a channel that is too long": ("invalid_id", {"type": "mark_read", "channel_id": "x" * 129}),
    "a channel that is not printable": ("invalid_id", {"type": "channel.focus", "channel_id": "a\x1fb"}),
    **{
        f"a {kind} of the room of a thread": ("invalid_id", {"type": kind, "channel_id": ROOM} | more)
        for kind, more in {
            "channel.focus": {},
            "channel.blur": {},
            "mark_read": {},
            "mark_unread": {"from": "r1"},
        }.items()
    },
    "a thread of the room of a thread": ("invalid_id", {"type": "mark_read", "channel_id": ROOM, "thread_id": "m1"}),
    "a thread that is not printable": (
        "invalid_id",
        {"type": "mark_read", "channel_id": GENERAL, "thread_id": "m1\x1f"},
    ),
    "a message that is not printable": ("invalid_id", {"type": "mark_read", "channel_id": GENERAL, "up_to": "m\x1f1"}),
    "a seq that is a text": ("invalid", {"type": "mark_read", "channel_id": GENERAL, "up_to_seq": "3"}),
    "a seq below zero": ("invalid", {"type": "mark_read", "channel_id": GENERAL, "up_to_seq": -1}),
    "a seq that is no whole number": ("invalid", {"type": "mark_read", "channel_id": GENERAL, "up_to_seq": 1.5}),
    "a seq beyond all numbers": ("invalid", {"type": "mark_read", "channel_id": GENERAL, "up_to_seq": 2**64}),
    "a time that is none": ("invalid", {"type": "mark_read", "channel_id": GENERAL, "up_to_time": "soon"}),
    "two targets": ("invalid", {"type": "mark_read", "channel_id": GENERAL, "up_to": "m1", "up_to_seq": 1}),
    "messages that are a text": ("invalid", {"type": "mark_read", "channel_id": GENERAL, "messages": "m1"}),
    "too many messages": ("too_large", {"type": "mark_read", "channel_id": GENERAL, "messages": ["m1"] * 1001}),
    "too many messages of a foreign channel": (
        "too_large",
        {"type": "mark_read", "channel_id": "others", "messages": ["o1"] * 1001},
    ),
    "one message that is unknown": (
        "message_not_found",
        {"type": "mark_read", "channel_id": GENERAL, "messages": ["m1", "nothing"]},
    ),
    "a read of an unknown message": ("message_not_found", {"type": "mark_read", "channel_id": GENERAL, "up_to": "x"}),
    "a read of a message elsewhere": ("message_not_found", {"type": "mark_read", "channel_id": GENERAL, "up_to": "o1"}),
    "a read up to a reply": ("message_without_seq", {"type": "mark_read", "channel_id": GENERAL, "up_to": "r1"}),
    "an epoch that is a text": ("invalid", {"type": "mark_read", "channel_id": GENERAL, "epoch": "0"}),
    "a read of a foreign channel": ("forbidden", {"type": "mark_read", "channel_id": "others"}),
    "a read of no channel": ("forbidden", {"type": "mark_read", "channel_id": "nowhere"}),
    "mark unread in a foreign channel": ("forbidden", {"type": "mark_unread", "channel_id": "others", "from": "o1"}),
    "mark unread of an unknown one": ("message_not_found", {"type": "mark_unread", "channel_id": GENERAL, "from": "x"}),
    "mark unread of a deleted one": ("message_deleted", {"type": "mark_unread", "channel_id": GENERAL, "from": "m2"}),
    "mark unread of a reply": ("message_without_seq", {"type": "mark_unread", "channel_id": GENERAL, "from": "r1"}),
    "focus on a foreign channel": ("forbidden", {"type": "channel.focus", "channel_id": "others"}),
    "focus on no channel": ("forbidden", {"type": "channel.focus", "channel_id": "nowhere"}),
    "focus that reads perhaps": ("invalid", {"type": "channel.focus", "channel_id": GENERAL, "read": "perhaps"}),
    "a read of an unknown thread": (
        "thread_not_found",
        {"type": "mark_read", "channel_id": GENERAL, "thread_id": "nothing"},
    ),
    "a read of a thread of others": ("forbidden", {"type": "mark_read", "channel_id": "others", "thread_id": "o1"}),
    "a thread read by seq": (
        "invalid",
        {"type": "mark_read", "channel_id": GENERAL, "thread_id": "m1", "up_to_seq": 1},
    ),
    "a thread read up to no reply": (
        "message_not_found",
        {"type": "mark_read", "channel_id": GENERAL, "thread_id": "m1", "up_to": "m3"},
    ),
    "hello once more": ("invalid", {"type": "hello", "device": "phone"}),
}


@pytest.fixture
async def place(service: LiveService) -> LiveService:
    """Bob has read one of three messages, one of which is deleted; he is not in the channel others."""
    await service.chat.open_channel("alice", "carol", channel="others")
    await service.chat.send("alice", "o1", channel="others")
    await service.chat.send("alice", "m1", "m2", "m3")
    await service.chat.reply("bob", "m1", "r1")
    await service.chat.reply("alice", "m1", "r2")
    await service.chat.delete("m2")
    await service.chat.read("bob", up_to="m1")
    return service


async def everything(chat: Chat) -> list[Any]:
    """All that a frame of bob's could have changed."""
    return [
        await chat.snapshot(["alice", "bob", "carol"], [GENERAL, "others"]),
        await chat.receipts(),
        await chat.receipts("others"),
        await chat.unread_replies("bob"),
        (await chat.presence("bob"))["devices"],
        await chat.badge("bob"),
        (await chat.conversations("bob")),
    ]


async def check_nothing_in_focus(service: LiveService) -> None:
    """What comes is unread."""
    unread = (await service.chat.unread("bob"))["unread"]
    await service.chat.send("alice", "afterwards")
    assert (await service.chat.unread("bob"))["unread"] == unread + 1


async def test_a_bad_frame_gets_an_error_with_its_ref_and_changes_nothing(place: LiveService) -> None:
    bob = await place.fresh("bob")
    before = await everything(place.chat)
    for name, (code, frame) in BAD_FRAMES.items():
        await bob.socket.send(json.dumps({"ref": name} | frame))
        await bob.quiet()

        [answer] = [one for one in bob.frames if one["type"] == "error"]
        assert (answer["code"], answer["ref"], answer["retry"]) == (code, name, False)
        assert answer["detail"], name
        assert await everything(place.chat) == before, name
        assert await bob.heard() == [], name
        bob.frames.clear()
    await check_nothing_in_focus(place)


async def test_what_is_no_frame_gets_an_error_and_changes_nothing(place: LiveService) -> None:
    bob = await place.fresh("bob")
    before = await everything(place.chat)
    for text in NO_JSON + HALF_A_CHARACTER + NO_FRAME + NESTED:
        await bob.socket.send(text)
        await bob.quiet()

        [answer] = [one for one in bob.frames if one["type"] == "error"]
        assert answer["code"] in {"broken_json", "invalid"}, text[:40]
        assert answer["detail"], text[:40]
        bob.frames.clear()
    assert await everything(place.chat) == before
    assert await bob.heard() == []
    await check_nothing_in_focus(place)


@pytest.mark.parametrize("ref", [True, 1.5, [1], {"a": 1}])
async def test_a_ref_is_a_text_or_a_whole_number(place: LiveService, ref: object) -> None:
    bob = await place.fresh("bob")

    await bob.socket.send(json.dumps({"type": "mark_read", "channel_id": GENERAL, "ref": ref}))
    await bob.quiet()

    assert bob.frames[0]["type"] == "error"
    assert "ref" not in bob.frames[0]
    assert await place.chat.count("bob") == 1


async def test_a_frame_needs_no_ref(place: LiveService) -> None:
    bob = await place.fresh("bob")

    await bob.say("mark_read", channel_id=GENERAL)
    await bob.quiet()

    assert bob.frames[0]["type"] == "ack"
    assert "ref" not in bob.frames[0]


async def test_a_ref_comes_back_as_it_was(place: LiveService) -> None:
    bob = await place.fresh("bob")
    for ref in ("", "x" * 1000, 0, -1, 2**53, '\u2603"\\'):
        await bob.say("mark_read", channel_id=GENERAL, ref=ref)
        await bob.quiet()

        assert bob.frames[0]["ref"] == ref
        bob.frames.clear()


async def test_frames_are_text(place: LiveService) -> None:
    bob = await place.fresh("bob")
    before = await everything(place.chat)

    await bob.socket.send(b'{"type": "mark_read", "channel_id": "general"}')
    await bob.quiet()

    assert bob.frames[0]["type"] == "error"
    assert await everything(place.chat) == before


async def test_a_frame_that_is_too_large_ends_the_connection(place: LiveService) -> None:
    bob = await place.fresh("bob")
    before = await everything(place.chat)
    frame = {"type": "mark_read", "channel_id": GENERAL, "messages": ["m3"] * 20_000}

    await bob.socket.send(json.dumps(frame))

    assert await bob.ended() == 1009
    await place.fresh("bob")
    assert await everything(place.chat) == before


async def test_a_frame_in_many_pieces_is_as_large_as_all_of_them(place: LiveService) -> None:
    bob = await place.fresh("bob")

    await bob.socket.send("x" * 1000 for _ in range(100))

    assert await bob.ended() == 1009


async def test_frames_are_answered_in_order(place: LiveService) -> None:
    bob = await place.fresh("bob")
    frames = [("ping", {}), ("mark_read", {"channel_id": GENERAL}), ("shout", {}), ("badge.tap", {})]

    for number in range(20):
        kind, fields = frames[number % 4]
        await bob.say(kind, ref=number, **fields)
    await bob.quiet()

    assert [frame["ref"] for frame in bob.frames if isinstance(frame.get("ref"), int)] == list(range(20))


async def test_the_largest_frame_is_still_done(place: LiveService) -> None:
    bob = await place.fresh("bob")
    frame = json.dumps({"type": "mark_read", "channel_id": GENERAL, "ref": "r"})
    padded = frame[:-1] + " " * (place.rs.settings.max_frame - len(frame)) + "}"

    await bob.socket.send(padded)
    await bob.quiet()

    assert bob.frames[0]["type"] == "ack"


async def test_text_that_is_no_utf8_ends_the_connection(place: LiveService) -> None:
    bob = await place.fresh("bob")

    await bob.socket.send(b"\xff\xfe", text=True)

    assert await bob.ended() == 1007


async def test_a_close_code_that_a_device_makes_up_has_no_count_of_its_own(service: LiveService) -> None:
    before = await service.metric("readstate_ws_closed_total", code="other")
    bob = await service.device("bob")

    await bob.socket.close(3777)

    async def counted() -> bool:
        return await service.metric("readstate_ws_closed_total", code="other") == before + 1

    await eventually(counted, "it is counted")
    assert await service.metric("readstate_ws_closed_total", code="3777") == 0
