"""The door: who may come in and how, what is refused, and that what is refused changes nothing."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus

from tests.conftest import SERVICE_KEY, eventually, token_for

from .conftest import Town, a_town
from .device import DEADLINE, Device, Frame, open_device, open_socket


async def code_of(socket: ClientConnection) -> int | None:
    async with asyncio.timeout(DEADLINE):
        await socket.wait_closed()
    return socket.close_code


async def hear(socket: ClientConnection) -> Frame:
    async with asyncio.timeout(DEADLINE):
        frame: Frame = json.loads(await socket.recv())
    return frame


# ---------------------------------------------------------------- who may come in


@pytest.mark.parametrize("offered", [["bearer.{}"], ["readstate", "bearer.{}"]])
async def test_a_browser_gives_its_token_as_a_subprotocol(town: Town, offered: list[str]) -> None:
    token = token_for("bob")
    socket = await open_socket(town.url, subprotocols=[one.format(token) for one in offered])
    assert socket.subprotocol == offered[0].format(token)
    await socket.send('{"type": "hello", "device": "tab"}')
    assert (await hear(socket))["user_id"] == "bob"
    await socket.close()


async def test_a_token_may_come_with_hello(town: Town) -> None:
    socket = await open_socket(town.url)
    await socket.send(json.dumps({"type": "hello", "device": "phone", "token": token_for("bob")}))
    ready = await hear(socket)
    assert (ready["type"], ready["user_id"], ready["display_cap"]) == ("ready", "bob", 99)
    assert ready["expires_at"] > ready["server_time"]
    await socket.close()


@pytest.mark.parametrize(
    "token", ["nonsense", token_for("bob", secret="another-secret-that-is-long-enough-too"), token_for("bob", ttl=-1)]
)
async def test_a_token_that_is_no_good_is_refused(town: Town, token: str) -> None:
    in_header = await open_socket(town.url, additional_headers={"Authorization": f"Bearer {token}"})
    assert await code_of(in_header) == 4401
    in_hello = await open_socket(town.url)
    await in_hello.send(json.dumps({"type": "hello", "device": "phone", "token": token}))
    assert await code_of(in_hello) == 4401


@pytest.mark.parametrize("frame", ['{"type": "hello", "device": "phone"}', '{"type": "ping"}', "nonsense", "[]"])
async def test_without_a_token_the_first_frame_must_bring_one(town: Town, frame: str) -> None:
    socket = await open_socket(town.url)
    await socket.send(frame)
    assert await code_of(socket) == 4401


async def test_whoever_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    async with a_town(tmp_path, hello_timeout=1) as town:
        silent = await open_socket(town.url)
        with_token = await open_device(town.url, "bob", hello=False)
        assert await code_of(silent) == 4401
        assert await with_token.ended() == 4401


async def test_other_frames_wait_for_hello_and_hello_is_said_once(town: Town) -> None:
    device = await open_device(town.url, "bob", hello=False)
    assert (await device.do("ping"))["code"] == "invalid"
    await device.hello()
    again = await device.do("hello", device="phone")
    assert (again["type"], again["code"]) == ("error", "invalid")
    await device.quiet()
    await device.close()


async def test_a_connection_ends_when_its_token_expires(town: Town) -> None:
    device = await town.device("bob", token=token_for("bob", ttl=2))
    assert await device.ended() == 4403
    assert not (await town.chat.presence("bob"))["online"]


async def test_a_new_token_keeps_a_connection_open(town: Town) -> None:
    device = await town.device("bob", token=token_for("bob", ttl=3))
    other = await town.device("bob", "laptop", token=token_for("bob", ttl=3))
    assert (await device.ask("auth", token=token_for("bob", ttl=600)))["expires_at"] > device.ready["expires_at"]
    assert await other.ended() == 4403
    await device.quiet()


async def test_a_new_token_must_be_good_and_the_same_users(town: Town) -> None:
    device = await town.device("bob")
    assert (await device.do("auth", token="nonsense"))["code"] == "invalid_token"
    assert (await device.do("auth", token=token_for("alice")))["code"] == "forbidden"
    assert (await device.do("auth", token=SERVICE_KEY))["code"] == "forbidden"
    await device.quiet()


async def test_a_service_key_looks_on_and_is_no_device(town: Town) -> None:
    watcher = await town.fresh("bob", token=SERVICE_KEY, path="/v1/ws?user=bob")
    assert watcher.ready["user_id"] == "bob"
    assert watcher.ready["expires_at"] is None
    assert not (await town.chat.presence("bob"))["online"]
    await town.chat.send("alice", "a1")
    assert [event["type"] for event in await watcher.heard()][:1] == ["message.new"]
    assert await town.chat.badge("bob") == 1
    assert (await watcher.do("channel.focus", channel_id="general"))["code"] == "forbidden"


async def test_a_service_key_must_say_whom_it_watches(town: Town) -> None:
    for path in ("/v1/ws", "/v1/ws?user=", "/v1/ws?user=@all"):
        socket = await open_socket(town.url, path, additional_headers={"Authorization": f"Bearer {SERVICE_KEY}"})
        assert await code_of(socket) == 4401


@pytest.mark.parametrize(("origin", "allowed"), [("https://chat.example", True), ("https://elsewhere.example", False)])
async def test_only_pages_that_may_call_may_connect(tmp_path: Path, origin: str, allowed: bool) -> None:
    async with a_town(tmp_path, cors_origins=("https://chat.example",)) as town:
        if allowed:
            await (await open_socket(town.url, origin=origin)).close()
        else:
            with pytest.raises(InvalidStatus) as refused:
                await open_socket(town.url, origin=origin)
            assert refused.value.response.status_code == 403
        await (await open_socket(town.url, origin=town.url)).close()


async def test_there_is_no_other_path(town: Town) -> None:
    with pytest.raises(InvalidStatus):
        await open_socket(town.url, "/v1/elsewhere")


# ---------------------------------------------------------------- bad frames


async def everything(town: Town, user: str) -> Any:
    """All that a bad frame could have changed."""
    chat = town.chat
    receipts = await chat.ask("GET", "/v1/channels/general/receipts")
    sync = await chat.sync(user, only_unread="false")
    devices = (await chat.presence(user))["devices"]
    return sync["totals"], sync["channels"], receipts, await chat.badge(user), devices


@pytest.fixture
async def bob(town: Town) -> Device:
    """bob's device; three messages wait, one of them deleted, and there is a channel that bob is not in."""
    await town.chat.send("alice", "a1", "a2", "a3")
    await town.chat.delete("a2")
    await town.chat.open_channel("alice", "carol", channel="private")
    await town.chat.send("alice", "p1", channel="private")
    return await town.fresh("bob")


BAD = {
    "not JSON": ("nonsense", "broken_json"),
    "no JSON at all": ("", "broken_json"),
    "not an object": ("[1]", "invalid"),
    "a text": ('"ping"', "invalid"),
    "null": ("null", "invalid"),
    "no type": ("{}", "invalid"),
    "a type that is a number": ('{"type": 7}', "invalid"),
    "unknown type": ('{"type": "mark_all", "ref": 1}', "unknown_frame"),
    "missing field": ('{"type": "mark_read", "ref": 1}', "invalid"),
    "unknown field": ('{"type": "mark_read", "ref": 1, "channel_id": "general", "upto": "a1"}', "invalid"),
    "two targets": (
        '{"type": "mark_read", "ref": 1, "channel_id": "general", "up_to": "a1", "up_to_seq": 1}',
        "invalid",
    ),
    "a field of another type": ('{"type": "mark_read", "ref": 1, "channel_id": ["general"]}', "invalid"),
    "a seq that is a text": ('{"type": "mark_read", "ref": 1, "channel_id": "general", "up_to_seq": "1"}', "invalid"),
    "a huge number": ('{"type": "mark_read", "ref": 1, "channel_id": "general", "up_to_seq": 1e400}', None),
    "an empty id": ('{"type": "mark_read", "ref": 1, "channel_id": ""}', "invalid_id"),
    "another's channel": ('{"type": "mark_read", "ref": 1, "channel_id": "private"}', "forbidden"),
    "another's channel, opened": ('{"type": "channel.focus", "ref": 1, "channel_id": "private"}', "forbidden"),
    "another's message": ('{"type": "mark_unread", "ref": 1, "channel_id": "private", "from": "p1"}', "forbidden"),
    "no such channel": ('{"type": "channel.focus", "ref": 1, "channel_id": "nowhere"}', "forbidden"),
    "no such message": ('{"type": "mark_read", "ref": 1, "channel_id": "general", "up_to": "x"}', "message_not_found"),
    "deleted message": ('{"type": "mark_unread", "ref": 1, "channel_id": "general", "from": "a2"}', "message_deleted"),
    "no such thread": (
        '{"type": "mark_read", "ref": 1, "channel_id": "general", "thread_id": "x"}',
        "thread_not_found",
    ),
    "a thread by seq": (
        '{"type": "mark_read", "ref": 1, "channel_id": "general", "thread_id": "a1", "up_to_seq": 1}',
        "invalid",
    ),
    "no token": ('{"type": "auth", "ref": 1, "token": ""}', "invalid"),
    "nested": ('{"type": ' + "[" * 20_000 + "]" * 20_000 + "}", "broken_json"),
    "nested in a field": ('{"type": "ping", "x": ' + '{"x": ' * 9_000 + "1" + "}" * 9_000 + "}", "broken_json"),
    "a lone surrogate": ('{"type": "mark_read", "ref": 1, "channel_id": "\\ud800"}', None),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_frame_is_answered_and_changes_nothing(town: Town, bob: Device, name: str) -> None:
    text, code = BAD[name]
    before = await everything(town, "bob")
    await bob.socket.send(text)
    await bob.quiet()
    errors = [frame for frame in bob.frames if frame["type"] == "error"]
    assert len(errors) == 1, bob.frames
    assert code in {None, errors[0]["code"]}, errors
    assert errors[0]["detail"]
    assert errors[0]["retry"] is False
    if '"ref": 1' in text and code is not None:
        assert errors[0]["ref"] == 1
    assert await everything(town, "bob") == before


async def test_a_binary_frame_is_answered_by_an_error(bob: Device) -> None:
    await bob.socket.send(b'{"type": "ping"}')
    await bob.quiet()
    assert [frame["code"] for frame in bob.frames if frame["type"] == "error"] == ["invalid"]


async def test_a_huge_frame_closes_the_connection(town: Town, bob: Device) -> None:
    before = await everything(town, "carol")
    await bob.socket.send('{"type": "mark_read", "channel_id": "general", "messages": ["%s"]}' % ("x" * 70_000))
    assert await bob.ended() == 1009
    assert await town.chat.count("bob") == 2
    assert await everything(town, "carol") == before


async def test_a_frame_in_many_pieces_is_as_long_as_all_of_them(bob: Device) -> None:
    await bob.socket.send("x" * 1000 for _ in range(100))
    assert await bob.ended() == 1009


async def test_too_many_frames_close_the_connection(tmp_path: Path) -> None:
    async with a_town(tmp_path, frame_rate_limit=5) as town:
        await town.chat.open_channel("alice", "bob")
        noisy, calm = await town.fresh("bob"), await town.fresh("alice")
        before = await town.metric("readstate_ws_closed_total", code="4429")
        for _ in range(20):
            await noisy.say("ping")
        assert await noisy.ended() == 4429
        await calm.quiet()

        async def counted() -> bool:
            return await town.metric("readstate_ws_closed_total", code="4429") == before + 1

        await eventually(counted, "the closed connection is counted")


async def test_frames_are_answered_in_order(bob: Device) -> None:
    for number in range(20):
        await bob.say(
            "ping" if number % 2 else "mark_read", ref=number, **({} if number % 2 else {"channel_id": "general"})
        )
    await bob.quiet()
    assert [frame["ref"] for frame in bob.frames if isinstance(frame.get("ref"), int)] == list(range(20))
