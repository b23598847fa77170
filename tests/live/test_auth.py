"""Who may connect, as whom, from where, and for how long."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import jwt
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from tests.conftest import JWT_SECRET, SERVICE_KEY, token_for

from .conftest import LiveService, live_service
from .device import Device, open_socket
from .test_presence import badge_becomes, gone

FOREIGN = "https://elsewhere.example"
FRIENDLY = "https://chat.example"

T = TypeVar("T")


async def bare(service: LiveService, path: str = "/v1/ws", **options: object) -> Device:
    """A connection without a token in its header, that has said nothing yet."""
    device = Device(await open_socket(service.url, path, **options), "bob", "phone")
    service.devices.append(device)
    return device


def token_until(user: str, moment: float) -> str:
    """A token that expires at a moment, to the millisecond."""
    return jwt.encode({"sub": user, "exp": moment}, JWT_SECRET, "HS256")


async def in_time(do: Callable[[float], Awaitable[T]]) -> T:
    """What is done before a moment that is near; the busier the machine, the less near it may be."""
    for seconds in (0.5, 2, 8):
        with contextlib.suppress(AssertionError, ConnectionClosed):
            return await do(time.time() + seconds)
    return await do(time.time() + 30)


# ---------------------------------------------------------------- ways to bring a token


async def test_a_token_comes_in_the_header(service: LiveService) -> None:
    bob = await service.device("bob")

    assert bob.ready["user_id"] == "bob"


async def test_a_token_alone_as_a_subprotocol_is_taken_and_does_not_come_back(service: LiveService) -> None:
    token = token_for("bob")

    bob = await bare(service, subprotocols=[Subprotocol(f"bearer.{token}")])
    await bob.hello()

    assert bob.ready["user_id"] == "bob"
    assert bob.socket.subprotocol is None
    assert bob.socket.response is not None
    assert token not in str(bob.socket.response.headers)


async def test_a_browser_brings_its_token_as_a_subprotocol_and_gets_the_name_of_the_protocol(
    service: LiveService,
) -> None:
    offered = [Subprotocol("readstate"), Subprotocol(f"bearer.{token_for('bob')}")]

    bob = await bare(service, subprotocols=offered)
    await bob.hello()

    assert bob.socket.subprotocol == "readstate"
    assert bob.ready["user_id"] == "bob"


async def test_the_name_of_the_protocol_is_chosen_in_whatever_order_it_is_offered(service: LiveService) -> None:
    offered = [Subprotocol(f"bearer.{token_for('bob')}"), Subprotocol("readstate")]

    bob = await bare(service, subprotocols=offered)
    await bob.hello()

    assert bob.socket.subprotocol == "readstate"


async def test_a_token_comes_in_hello(service: LiveService) -> None:
    bob = await bare(service)
    await bob.hello(token=token_for("bob"))

    assert bob.ready["user_id"] == "bob"


async def test_ready_says_who_where_and_until_when(service: LiveService) -> None:
    bob = await service.device("bob")

    assert bob.ready["instance_id"] == service.rs.instance_id
    assert bob.ready["expires_at"] > bob.ready["server_time"]
    assert bob.ready["display_cap"] == 99
    assert bob.ready["connection_id"]
    assert bob.ready["version"]
    assert bob.ready["resume"]


# ---------------------------------------------------------------- tokens that are none


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("no token at all", id="junk"),
        pytest.param(token_for("bob", secret="another-secret-that-is-long-enough-for-hs256"), id="another secret"),
        pytest.param(token_for("bob", ttl=-1), id="expired"),
        pytest.param(token_for("@bob"), id="no valid user id"),
        pytest.param("\u00fcml\u00e4ut", id="not ascii"),
    ],
)
async def test_a_token_that_is_none_is_not_authenticated(service: LiveService, token: str) -> None:
    in_hello = await bare(service)
    await in_hello.say("hello", device="phone", token=token)

    assert await in_hello.ended() == 4401
    if token.isascii() and " " not in token:
        in_header = await service.device("bob", token=token, hello=False)
        assert await in_header.ended() == 4401
        as_subprotocol = await bare(service, subprotocols=[Subprotocol(f"bearer.{token}")])
        assert await as_subprotocol.ended() == 4401


async def test_hello_without_any_token_is_not_authenticated(service: LiveService) -> None:
    device = await bare(service)
    await device.say("hello", device="phone")

    assert await device.ended() == 4401
    assert device.frames == []


async def test_without_a_token_the_first_frame_must_be_hello(service: LiveService) -> None:
    device = await bare(service)
    await device.say("mark_read", channel_id="general")

    assert await device.ended() == 4401


async def test_a_device_that_says_nothing_is_let_go(tmp_path: Path) -> None:
    async with live_service(tmp_path, hello_timeout=1) as service:
        silent = await bare(service)
        with_token = await service.device("bob", hello=False)

        assert await silent.ended() == 4401
        assert await with_token.ended() == 4401


# ---------------------------------------------------------------- tokens that expire, and are renewed


async def test_a_connection_ends_when_its_token_expires(service: LiveService) -> None:
    bob = await in_time(lambda end: service.device("bob", token=token_until("bob", end)))

    assert await bob.ended() == 4403


async def test_a_renewed_connection_outlives_its_first_token(service: LiveService) -> None:
    async def renew_one_of_two(end: float) -> tuple[Device, Device]:
        first, renewed = [
            await service.device("bob", name, token=token_until("bob", end)) for name in ("first", "second")
        ]
        ack = await renewed.ask("auth", token=token_until("bob", end + 3600))
        assert ack["expires_at"] == int((end + 3600) * 1000)
        return first, renewed

    first, renewed = await in_time(renew_one_of_two)

    assert await first.ended() == 4403
    await renewed.quiet()


async def test_a_renewed_connection_ends_with_its_new_token(service: LiveService) -> None:
    bob = await service.device("bob")
    await in_time(lambda end: bob.ask("auth", token=token_until("bob", end)))

    assert await bob.ended() == 4403


async def test_a_connection_is_not_renewed_with_a_token_of_somebody_else(service: LiveService) -> None:
    bob = await service.fresh("bob")

    answer = await bob.do("auth", token=token_for("alice"))

    assert (answer["type"], answer["code"]) == ("error", "forbidden")
    await service.chat.send("alice", "m1")
    assert (await bob.heard("message.new"))[0]["counts"] is True


@pytest.mark.parametrize("token", ["junk", token_for("bob", ttl=-1), SERVICE_KEY, "\ud83d\ude00"])
async def test_a_bad_renewal_leaves_the_connection_as_it_was(service: LiveService, token: str) -> None:
    bob = await service.device("bob")

    assert (await bob.do("auth", token=token))["type"] == "error"
    await bob.quiet()


# ---------------------------------------------------------------- a service that watches


async def test_a_service_watches_a_user(service: LiveService) -> None:
    watcher = await service.fresh("bob", token=SERVICE_KEY, path="/v1/ws?user=bob")
    await service.chat.send("alice", "m1")

    assert watcher.ready["user_id"] == "bob"
    assert watcher.ready["expires_at"] is None
    assert [e["message_id"] for e in await watcher.heard("message.new")] == ["m1"]


async def test_who_is_watched_is_not_online_by_it(service: LiveService) -> None:
    watcher = await service.fresh("bob", token=SERVICE_KEY, path="/v1/ws?user=bob")
    await service.chat.send("alice", "m1")

    assert (await service.chat.presence("bob"))["online"] is False
    assert await service.chat.badge("bob") == 1
    assert (await watcher.heard("badge.updated"))[-1]["senders"] == 1


async def test_a_service_must_say_whom_it_watches(service: LiveService) -> None:
    for path in ("/v1/ws", "/v1/ws?user=", "/v1/ws?user=@all"):
        device = await service.device("bob", token=SERVICE_KEY, path=path, hello=False)

        assert await device.ended() == 4401


async def test_a_service_has_nothing_open(service: LiveService) -> None:
    watcher = await service.device("bob", token=SERVICE_KEY, path="/v1/ws?user=bob")

    answer = await watcher.do("channel.focus", channel_id="general")

    assert answer["code"] == "forbidden"
    await service.chat.send("alice", "m1")
    assert await service.chat.count("bob") == 1


async def test_a_user_can_not_watch_another_one(service: LiveService) -> None:
    bob = await service.fresh("bob", path="/v1/ws?user=alice")

    assert bob.ready["user_id"] == "bob"


async def test_hello_may_name_a_user_on_a_connection_of_a_service(service: LiveService) -> None:
    """A proxy may put its own key into the header: who says hello with a token of a user is that user's device."""
    device = await service.device("alice", token=SERVICE_KEY, path="/v1/ws?user=bob", hello=False)
    await device.hello(token=token_for("alice"))

    assert device.ready["user_id"] == "alice"
    assert (await service.chat.presence("alice"))["online"] is True
    assert (await service.chat.presence("bob"))["online"] is False


# ---------------------------------------------------------------- the order of frames


async def test_before_hello_nothing_is_done(service: LiveService) -> None:
    await service.chat.send("alice", "m1")
    bob = await service.device("bob", hello=False)

    answer = await bob.do("mark_read", channel_id="general")

    assert answer["type"] == "error"
    assert await service.chat.count("bob") == 1
    await bob.hello()
    assert bob.ready["user_id"] == "bob"


async def test_hello_is_said_once(service: LiveService) -> None:
    bob = await service.fresh("bob")

    answer = await bob.do("hello", device="tablet")

    assert (answer["type"], answer["code"]) == ("error", "invalid")
    assert (await service.chat.presence("bob"))["devices"] == ["phone"]
    await bob.quiet()


@pytest.mark.parametrize("device", ["", "x" * 129, "two\nlines"])
async def test_a_device_has_a_proper_name(service: LiveService, device: str) -> None:
    bob = await service.device("bob", device, hello=False)

    answer = await bob.do("hello", device=device)

    assert answer["type"] == "error"
    assert (await service.chat.presence("bob"))["online"] is False


# ---------------------------------------------------------------- where a page comes from


@pytest.fixture
async def service_with_origin(tmp_path: Path) -> AsyncIterator[LiveService]:
    """A service that lets pages of one other origin call it."""
    async with live_service(tmp_path / "open", cors_origins=(FRIENDLY,)) as service:
        yield service


async def test_a_page_of_the_service_itself_may_connect(service: LiveService) -> None:
    bob = await service.device("bob", origin=service.url)

    assert bob.ready["user_id"] == "bob"


async def test_a_page_from_elsewhere_may_not(service: LiveService, service_with_origin: LiveService) -> None:
    for one in (service, service_with_origin):
        for origin in (FOREIGN, "null", f"{one.url}.evil.example"):
            with pytest.raises(InvalidStatus, match="403"):
                await one.device("bob", origin=origin)


async def test_a_page_that_is_allowed_may_connect(service_with_origin: LiveService) -> None:
    bob = await service_with_origin.device("bob", origin=FRIENDLY)

    assert bob.ready["user_id"] == "bob"


@pytest.mark.parametrize(
    ("configured", "origin"),
    [
        (FRIENDLY, "https://CHAT.example"),
        ("HTTPS://Chat.Example", FRIENDLY),
        ("https://Chat.example", "HTTPS://cHAT.EXAMPLE"),
    ],
)
async def test_the_case_of_an_origin_does_not_matter(tmp_path: Path, configured: str, origin: str) -> None:
    async with live_service(tmp_path, cors_origins=(configured,)) as service:
        bob = await service.device("bob", origin=origin)
        own = await service.device("bob", "laptop", origin=service.url.upper())

        assert bob.ready["user_id"] == own.ready["user_id"] == "bob"


@pytest.mark.parametrize(
    "origin", ["http://[::1", "https://[chat.example]", "http://[", "https://\u2100.example", "//"]
)
async def test_an_origin_that_is_none_is_refused(tmp_path: Path, origin: str) -> None:
    for number, allowed in enumerate([(), (FRIENDLY,)]):
        async with live_service(tmp_path / str(number), cors_origins=allowed) as service:
            refused = await handshake(service, "/v1/ws", "Origin: " + origin)

            assert problem_of(refused) == (403, "forbidden")


async def test_an_origin_that_can_not_be_read_is_refused_where_all_are_allowed(tmp_path: Path) -> None:
    async with live_service(tmp_path, cors_origins=("*",)) as service:
        refused = await handshake(service, "/v1/ws", "Origin: http://[::1")
        twice = await handshake(service, "/v1/ws", f"Origin: {FRIENDLY}", f"Origin: {FOREIGN}")

        assert problem_of(refused) == (403, "forbidden")
        assert twice.startswith(b"HTTP/1.1 4")


async def test_there_is_one_path(service: LiveService) -> None:
    for path in ("/", "/v1/wss", "/v1/ws/more", "/v1/ws/", "/x/v1/ws", "//v1/ws", "/v1/users/v1/ws", "/v1%2Fws"):
        assert problem_of(await handshake(service, path)) == (404, "not_found")
        with pytest.raises(InvalidStatus, match="404"):
            await service.device("bob", path=path)
    assert problem_of(await handshake(service, "/v1/ws%")) == (400, "bad_path")


async def test_a_refused_handshake_is_no_error_of_the_service(
    service: LiveService, caplog: pytest.LogCaptureFixture
) -> None:
    await handshake(service, "/v1/wss")

    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def handshake(service: LiveService, path: str, *headers: str) -> bytes:
    """What a handshake is answered, with headers that no proper client sends."""
    place = urlsplit(service.url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    lines = [f"GET {path} HTTP/1.1", f"Host: {place.netloc}", "Connection: Upgrade", "Upgrade: websocket", *headers]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", ""]
    writer.write("\r\n".join(lines).encode())
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    await writer.wait_closed()
    return answer


def problem_of(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head, answer
    return int(head.split()[1]), json.loads(body)["code"]


async def test_what_a_device_did_not_confirm_before_its_token_expired_counts(service: LiveService) -> None:
    async def in_the_tunnel_until(end: float) -> Device:
        bob = await service.device("bob", token=token_until("bob", end))
        await bob.quiet()
        bob.socket.transport.pause_reading()
        return bob

    bob = await in_time(in_the_tunnel_until)
    async with gone(service):
        await service.chat.send("alice", "m1")

    await badge_becomes(service, 1)
    await bob.cut()
