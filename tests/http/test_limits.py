"""Limits are settings: rates per principal, sizes of bodies, texts and batches, origins of browsers."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from readstate import Readstate
from readstate.gateway import asgi_app
from tests.conftest import JWT_SECRET, SERVICE_KEY, WAIT, Chat, check_problem, eventually, in_process, of, token_for
from tests.servers import Server, serving

OTHER_KEY = "another-service-key-of-the-tests"
MESSAGE = {"channel_id": "general", "sender_id": "alice"}


async def until_limited(chat: Chat, path: str) -> int:
    """How many requests are answered before one is refused as too many."""
    for number in range(1000):
        answer = await chat.call("GET", path)
        if answer.status_code == 429:
            check_problem(answer, 429, "rate_limited")
            return number
        assert answer.is_success, answer.text
    pytest.fail("a thousand requests were answered at once")


async def test_a_user_is_limited_alone(tmp_path: Path) -> None:
    async with in_process(tmp_path, rate_limit=1) as chat:
        await chat.open_channel("alice", "bob")

        assert await until_limited(chat.as_user("alice"), "/v1/users/me/unread") >= 1

        assert (await chat.as_user("bob").call("GET", "/v1/users/me/unread")).status_code == 200
        for _ in range(20):
            assert (await chat.call("GET", "/v1/channels/general")).status_code == 200
        assert (await chat.with_token(None).call("GET", "/healthz")).status_code == 200


async def test_two_tokens_of_a_user_share_its_rate(tmp_path: Path) -> None:
    async with in_process(tmp_path, rate_limit=1) as chat:
        await until_limited(chat.as_user("alice"), "/v1/users/me/unread")
        other = chat.with_token(token_for("alice", device="phone"))
        answers = [await other.call("GET", "/v1/users/alice/unread") for _ in range(3)]

        assert 429 in {answer.status_code for answer in answers}


async def test_a_service_key_is_limited_alone(tmp_path: Path) -> None:
    keys = (SERVICE_KEY, OTHER_KEY)
    async with in_process(tmp_path, service_rate_limit=2, service_keys=keys) as chat:
        assert await until_limited(chat, "/v1/users/bob/unread") >= 2

        assert (await chat.with_token(OTHER_KEY).call("GET", "/v1/users/bob/unread")).status_code == 200
        for _ in range(20):
            assert (await chat.as_user("bob").call("GET", "/v1/users/me/unread")).status_code == 200


async def test_whoever_waits_as_told_is_served_again_and_a_refused_send_is_not_done(tmp_path: Path) -> None:
    async with in_process(tmp_path, rate_limit=1) as chat:
        await chat.open_channel("alice", "bob")
        alice = chat.as_user("alice")
        statuses: list[int] = []

        async def is_served_six_times() -> bool:
            statuses.append((await alice.call("POST", "/v1/messages", MESSAGE)).status_code)
            return statuses.count(202) == 6

        await eventually(is_served_six_times, "alice is served again")

        assert set(statuses) == {202, 429}
        assert await chat.count("bob") == 6


async def test_without_a_limit_nobody_is_limited(tmp_path: Path) -> None:
    async with in_process(tmp_path) as chat:
        for _ in range(200):
            assert (await chat.as_user("bob").call("GET", "/v1/users/me/unread")).status_code == 200


# ---------------------------------------------------------------- sizes


async def test_the_limit_on_bodies_is_a_setting(tmp_path: Path) -> None:
    async with in_process(tmp_path, max_body=1024) as chat:
        await chat.open_channel("alice", "bob")
        room = 1024 - len(json.dumps(MESSAGE | {"text": ""}, separators=(",", ":")))

        fits = await chat.call("POST", "/v1/messages", MESSAGE | {"text": "x" * room})
        over = await chat.call("POST", "/v1/messages", MESSAGE | {"text": "x" * (room + 1)})

        assert fits.status_code == 202
        check_problem(over, 413, "too_large")
        assert await chat.count("bob") == 1


async def test_the_limits_on_texts_batches_and_mentions_are_settings(tmp_path: Path) -> None:
    async with in_process(tmp_path, max_text=10, max_batch=3, max_mentions=2) as chat:
        await chat.open_channel("alice", "bob")
        for fits in (
            MESSAGE | {"text": "é" * 5},
            MESSAGE | {"mentions": ["bob", "alice"]},
            {"messages": [MESSAGE] * 3},
        ):
            assert (await chat.call("POST", "/v1/messages", fits)).status_code == 202
        for over in (
            MESSAGE | {"text": "é" * 5 + "x"},
            MESSAGE | {"mentions": ["bob", "alice", "carol"]},
            {"messages": [MESSAGE] * 4},
        ):
            check_problem(await chat.call("POST", "/v1/messages", over), 413, "too_large")
        [good, bad] = await chat.post_all([MESSAGE, MESSAGE | {"text": "x" * 11}])
        assert (good["status"], bad["status"], bad["code"]) == ("accepted", "rejected", "too_large")
        assert await chat.count("bob") == 6


MANY = 40_000
TOO_MANY = {
    "items": ("POST", "/v1/users/{}/read", {"items": [{"channel_id": "x"}] * MANY}, None),
    "messages": ("POST", "/v1/users/{}/channels/nowhere/read", {"messages": ["x"] * MANY}, None),
    "reads": ("POST", "/v1/reads", {"reads": [{"user_id": "u", "channel_id": "x"}] * 20_000}, None),
    "users": ("POST", "/v1/unread/batch", {"users": ["u"] * MANY}, None),
    "add": ("POST", "/v1/channels/nowhere/members", {"add": ["u"] * MANY}, None),
    "remove": ("POST", "/v1/channels/nowhere/members", {"remove": ["u"] * MANY}, None),
    "members": ("PUT", "/v1/channels/nowhere", {"members": ["u"] * MANY}, None),
    "channels": ("GET", "/v1/users/{}/unread", None, {"channels": ",".join(["nowhere"] * 1001)}),
}
FOR_USERS = ("items", "channels")


@pytest.mark.parametrize("field", TOO_MANY)
async def test_what_is_too_large_is_refused_before_anything_is_looked_up(tmp_path: Path, field: str) -> None:
    """None of what these name is there: a look would find that first."""
    method, path, body, params = TOO_MANY[field]
    async with in_process(tmp_path) as chat:
        answer = await chat.call(method, path.format("bob"), body, params=params)
        check_problem(answer, 413, "too_large", field)
        if field in FOR_USERS:
            answer = await chat.as_user("bob").call(method, path.format("me"), body, params=params)
            check_problem(answer, 413, "too_large", field)


async def test_many_items_are_judged_before_any_of_them_is_looked_up(tmp_path: Path) -> None:
    async with in_process(tmp_path) as chat:
        await chat.open_channel("alice", "bob")
        await chat.send("alice", "m1")
        for late, code, field in (
            ({"channel_id": "general", "messages": ["m1"] * 1001}, 413, "items[1].messages"),
            ({"channel_id": "general", "up_to": "m1", "up_to_seq": 1}, 422, "items[1].up_to_seq"),
            ({"channel_id": "line\nbreak"}, 422, "items[1].channel_id"),
        ):
            body = {"items": [{"channel_id": "nowhere"}, late]}
            for principal in (chat, chat.as_user("bob")):
                answer = await principal.call("POST", "/v1/users/bob/read", body)
                check_problem(answer, code, answer.json()["code"], field)
        answer = await chat.call("POST", "/v1/unread/batch", {"users": ["bob", "@here"]})
        check_problem(answer, 422, "invalid_id", "users")


async def test_of_a_foreign_channel_nothing_is_told_by_reads_in_a_list(tmp_path: Path) -> None:
    async with in_process(tmp_path) as chat:
        await chat.open_channel("alice", channel="theirs")
        await chat.send("alice", "m1", channel="theirs")
        bob = chat.as_user("bob")
        for channel in ("theirs", "nowhere"):
            for up_to in ("m1", "m9"):
                body = {"items": [{"channel_id": channel, "up_to": up_to}]}
                check_problem(await bob.call("POST", "/v1/users/me/read", body), 403, "forbidden")


async def test_the_limit_on_pages_is_a_setting(tmp_path: Path) -> None:
    async with in_process(tmp_path, max_page=5) as chat:
        await chat.open_channel(*(f"u{number}" for number in range(8)))

        assert len((await chat.members(limit=5))["members"]) == 5
        answer = await chat.call("GET", "/v1/channels/general/members", params={"limit": 6})
        check_problem(answer, 422, "invalid", "limit")
        assert len((await chat.members())["members"]) == 5


@pytest.mark.parametrize("fanout", [100, 1])
async def test_a_count_over_the_cap_says_that_it_is_a_lower_bound(tmp_path: Path, fanout: int) -> None:
    async with in_process(tmp_path, unread_cap=10, fanout_max_members=fanout, display_cap=9) as chat:
        await chat.open_channel("alice", "bob")
        await chat.post_all(MESSAGE | {"id": f"m{number}"} for number in range(1, 16))

        answer = await chat.unread("bob")

        assert (answer["exact"], answer["reason"]) == (False, "capped")
        assert 10 <= answer["unread"] <= 15
        assert answer["label"] == "9+"
        await chat.read("bob", up_to_seq=8)
        assert await chat.count("bob") == 7
        assert "reason" not in await chat.unread("bob")


@pytest.mark.parametrize("fanout", [100, 1])
async def test_a_count_is_exact_again_when_all_that_was_let_go_is_read(tmp_path: Path, fanout: int) -> None:
    """Also if the pointer stops before a message that was read one by one."""
    async with in_process(tmp_path, unread_cap=6, fanout_max_members=fanout) as chat:
        await chat.open_channel("alice", "bob")
        await chat.post_all(MESSAGE | {"id": f"m{number}"} for number in range(1, 13))
        await chat.read("bob", messages=["m6"])
        await chat.evict()
        assert (await chat.unread("bob"))["reason"] == "capped"

        await chat.read("bob", up_to="m5")

        assert await chat.count("bob") == 6


@pytest.mark.parametrize("fanout", [100, 1])
async def test_the_unread_view_shows_also_what_a_count_over_the_cap_let_go(tmp_path: Path, fanout: int) -> None:
    async with in_process(tmp_path, unread_cap=2, fanout_max_members=fanout) as chat:
        for channel in ("long", "short"):
            await chat.open_channel("alice", "bob", channel=channel)
        everything = ["long1", "short1", "long2", "short2", "long3", "long4"]
        for second, name in enumerate(everything):
            await chat.send("alice", name, channel=name[:-1], at=1_700_000_000_000 + second * 1000)
        assert (await chat.unread("bob", "long"))["reason"] == "capped"

        for shown in range(1, 7):
            assert await chat.waiting("bob", order="oldest", limit=shown) == everything[:shown]
            assert await chat.waiting("bob", order="newest", limit=shown) == everything[::-1][:shown]


@pytest.mark.parametrize(
    ("keep", "text", "preview"),
    [("full", "Hello, this is long", "Hello"), ("preview", None, "Hello"), ("none", None, None)],
)
async def test_no_more_of_a_text_is_kept_than_asked(
    tmp_path: Path, keep: str, text: str | None, preview: str | None
) -> None:
    async with in_process(tmp_path, store_text=keep, preview_length=5) as chat:
        await chat.open_channel("alice", "bob")
        await chat.post("alice", text="Hello, this is long")

        [message] = await chat.all_waiting("bob", "general")

        assert (message["text"], message["preview"]) == (text, preview)
        assert (await chat.channel())["latest"]["preview"] == preview
    if keep != "full":
        assert b"this is long" not in bytes_under(tmp_path)


def bytes_under(directory: Path) -> bytes:
    """Everything that the service has written."""
    return b"".join(file.read_bytes() for file in directory.iterdir() if file.is_file())


# ---------------------------------------------------------------- browsers

ORIGIN = "https://chat.example"


async def test_a_browser_of_a_known_origin_may_ask(tmp_path: Path) -> None:
    async with in_process(tmp_path, cors_origins=(ORIGIN,)) as chat:
        ask = {"origin": ORIGIN, "access-control-request-method": "POST"}
        ask["access-control-request-headers"] = "authorization,content-type"

        preflight = await chat.with_token(None).call("OPTIONS", f"{of('bob')}/read", headers=ask)
        answer = await chat.call("GET", "/v1/users/bob/unread", headers={"origin": ORIGIN})
        refused = await chat.with_token(None).call("GET", "/v1/users/bob/unread", headers={"origin": ORIGIN})

        assert preflight.status_code == 204
        assert "POST" in preflight.headers["access-control-allow-methods"]
        allowed = preflight.headers["access-control-allow-headers"].lower()
        assert "authorization" in allowed
        assert "content-type" in allowed
        for told in (preflight, answer, refused):
            assert told.headers["access-control-allow-origin"] == ORIGIN
            assert "origin" in told.headers["vary"].lower()
        check_problem(refused, 401, "unauthenticated")


async def test_the_case_of_an_origin_does_not_matter(tmp_path: Path) -> None:
    async with in_process(tmp_path, cors_origins=("HTTPS://Chat.Example",)) as chat:
        for origin in (ORIGIN, "https://CHAT.example", "HTTPS://Chat.Example"):
            answer = await chat.call("GET", "/v1/users/bob/unread", headers={"origin": origin})
            assert answer.headers["access-control-allow-origin"] == origin


async def test_answers_are_kept_nowhere_and_are_what_they_say(tmp_path: Path) -> None:
    async with in_process(tmp_path, cors_origins=(ORIGIN,)) as chat:
        await chat.open_channel("alice", "bob")
        ask = {"origin": ORIGIN, "access-control-request-method": "POST"}
        for method, path, status in (
            ("GET", "/v1/users/bob/unread", 200),
            ("POST", f"{of('bob')}/read", 200),
            ("GET", "/v1/export", 200),
            ("GET", "/metrics", 200),
            ("GET", "/openapi.json", 200),
            ("GET", "/healthz", 200),
            ("OPTIONS", "/v1/messages", 204),
            ("GET", "/v1/surprise", 404),
            ("GET", "/v1/channels/unknown", 404),
            ("POST", "/v1/messages", 422),
        ):
            answer = await chat.call(method, path, headers=ask if method == "OPTIONS" else {})
            assert answer.status_code == status, path
            assert answer.headers["cache-control"] == "no-store", path
            assert answer.headers["x-content-type-options"] == "nosniff", path
        page = await chat.call("GET", "/docs")
        assert page.headers.get_list("cache-control") == ["no-cache"]
        assert page.headers.get_list("x-content-type-options") == ["nosniff"]


async def test_a_browser_of_another_origin_is_told_nothing(tmp_path: Path) -> None:
    async with in_process(tmp_path, cors_origins=(ORIGIN,)) as chat:
        for other in ("https://evil.example", ORIGIN + ".evil.example", "http://chat.example", "null"):
            headers = {"origin": other, "access-control-request-method": "POST"}
            preflight = await chat.call("OPTIONS", f"{of('bob')}/read", headers=headers)
            answer = await chat.call("GET", "/v1/users/bob/unread", headers={"origin": other})
            assert "access-control-allow-origin" not in preflight.headers
            assert "access-control-allow-origin" not in answer.headers


async def test_any_origin_may_be_allowed_and_none_is_by_default(tmp_path: Path) -> None:
    async with in_process(tmp_path / "any", cors_origins=("*",)) as chat:
        answer = await chat.call("GET", "/healthz", headers={"origin": ORIGIN})
        assert answer.headers["access-control-allow-origin"] in {"*", ORIGIN}
        assert "access-control-allow-credentials" not in answer.headers
    async with in_process(tmp_path / "none") as chat:
        answer = await chat.call("GET", "/healthz", headers={"origin": ORIGIN})
        assert not [name for name in answer.headers if name.startswith("access-control")]


# ---------------------------------------------------------------- on the wire


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("wire") / "data"
    with serving(data_dir, max_body=65_536, service_keys=SERVICE_KEY, jwt_secret=JWT_SECRET) as server:
        yield server


@pytest.fixture
async def wire(server: Server) -> AsyncIterator[Chat]:
    async with httpx.AsyncClient(base_url=server.url, headers=WAIT, timeout=30) as http:
        yield Chat(http)


def talk(server: Server, *parts: bytes, timeout: float = 20.0) -> bytes:
    """Sends raw bytes and returns all that comes back until the service closes or falls silent."""
    place = urlsplit(server.url)
    received = b""
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=timeout) as wire:
        try:
            for part in parts:
                wire.sendall(part)
            while not (b"\r\n\r\n" in received and _is_whole(received)):
                if not (more := wire.recv(65_536)):
                    break
                received += more
        except (BrokenPipeError, ConnectionResetError):
            pass
    return received


def _is_whole(received: bytes) -> bool:
    head, _, body = received.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return not lengths or len(body) >= int(lengths[0].split(b":")[1])


def request(method: bytes, path: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    """A whole request as bytes, with a service key, that waits for the place of what it sends."""
    lines = [method + b" " + path + b" HTTP/1.1", b"Host: test"]
    lines += [b"Authorization: Bearer " + SERVICE_KEY.encode(), b"Prefer: wait", *headers]
    return b"\r\n".join([*lines, b"", body])


JSON_TYPE = b"Content-Type: application/json"


def test_a_body_announced_as_too_large_is_refused_before_it_comes(server: Server) -> None:
    answer = talk(server, request(b"POST", b"/v1/messages", JSON_TYPE, b"Content-Length: 65537"))

    assert answer.startswith(b"HTTP/1.1 413"), answer[:200]
    assert b'"too_large"' in answer


def test_a_body_without_a_length_is_refused_when_it_has_become_too_large(server: Server) -> None:
    head = request(b"POST", b"/v1/messages", JSON_TYPE, b"Transfer-Encoding: chunked")
    chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"

    answer = talk(server, head, *[chunk] * 40)

    assert answer.startswith(b"HTTP/1.1 413"), answer[:200]


async def test_a_chunked_body_that_fits_is_taken(wire: Chat) -> None:
    await wire.open_channel("alice", "bob", channel="chunked")

    async def parts() -> AsyncIterator[bytes]:
        for byte in b'{"channel_id": "chunked", "sender_id": "alice"}':
            yield bytes([byte])

    answer = await wire.call("POST", "/v1/messages", content=parts(), headers={"content-type": "application/json"})

    assert answer.status_code == 202, answer.text
    assert await wire.count("bob", "chunked") == 1


JUNK_REQUESTS: dict[str, bytes] = {
    "no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
    "raw bytes in the path": request(b"GET", b"/v1/channels/\xff\xfe"),
    "a space in the path": request(b"GET", b"/v1/channels/a b"),
    "a length that is no number": request(b"POST", b"/v1/messages", JSON_TYPE, b"Content-Length: many"),
    "a negative length": request(b"POST", b"/v1/messages", JSON_TYPE, b"Content-Length: -1"),
    "a length beyond all bounds": request(b"POST", b"/v1/messages", JSON_TYPE, b"Content-Length: 9" + b"9" * 30),
    "two lengths": request(b"POST", b"/v1/messages", b"Content-Length: 2", b"Content-Length: 3", body=b"{}"),
    "length and chunks": request(
        b"POST", b"/v1/messages", b"Content-Length: 2", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"
    ),
    "a chunk that is no number": request(b"POST", b"/v1/messages", b"Transfer-Encoding: chunked", body=b"zz\r\n"),
    "a NUL in a header": request(b"GET", b"/v1/channels/x", b"X-Header: a\0b"),
    "a broken percent": request(b"GET", b"/v1/channels/%"),
    "a broken percent at the end": request(b"GET", b"/v1/channels/x%2"),
}


@pytest.mark.parametrize("junk", JUNK_REQUESTS.values(), ids=JUNK_REQUESTS)
async def test_junk_on_the_wire_is_refused_and_harms_nobody(server: Server, wire: Chat, junk: bytes) -> None:
    answer = await asyncio.to_thread(talk, server, junk)

    assert answer.startswith(b"HTTP/1.1 400"), answer[:200]
    assert b"application/problem+json" in answer
    assert b"Traceback" not in answer
    assert await wire.ask("GET", "/healthz") == {"status": "ok"}


async def test_huge_headers_harm_nobody(server: Server, wire: Chat) -> None:
    huge = request(b"GET", b"/healthz", b"X-Huge: " + b"x" * 2**20)
    many = request(b"GET", b"/healthz", *(b"X-%d: x" % number for number in range(20_000)))

    for flood in (huge, many):
        answer = await asyncio.to_thread(talk, server, flood)
        assert answer.startswith(b"HTTP/1.1 431"), answer[:200]

    assert await wire.ask("GET", "/healthz") == {"status": "ok"}


async def test_a_client_that_goes_away_in_the_middle_leaves_nothing_behind(server: Server, wire: Chat) -> None:
    await wire.open_channel("alice", "bob", channel="gone")
    place = urlsplit(server.url)
    body = json.dumps({"channel_id": "gone", "sender_id": "alice"}).encode()
    head = request(b"POST", b"/v1/messages", JSON_TYPE, b"Content-Length: %d" % len(body))

    for kept in range(0, len(body), 7):
        with socket.create_connection((place.hostname or "", place.port or 0)) as leaving:
            leaving.sendall(head + body[:kept])

    assert await wire.count("bob", "gone") == 0
    assert not any("Traceback" in line for line in server.log)


async def test_requests_in_one_breath_are_answered_in_order(server: Server, wire: Chat) -> None:
    await wire.open_channel("alice", "bob", channel="pipe")
    bodies = [b'{"channel_id": "pipe", "sender_id": "alice", "id": "m%d"}' % number for number in range(5)]
    sends: list[Any] = [
        request(b"POST", b"/v1/messages", JSON_TYPE, b"Content-Length: %d" % len(body), body=body) for body in bodies
    ]
    last = request(b"GET", b"/healthz", b"Connection: close")

    await asyncio.to_thread(talk_to_the_end, server, b"".join(sends) + last)

    assert [m["seq"] for m in await wire.all_waiting("bob", "pipe")] == [1, 2, 3, 4, 5]
    assert [m["id"] for m in await wire.all_waiting("bob", "pipe")] == ["m0", "m1", "m2", "m3", "m4"]


def talk_to_the_end(server: Server, request: bytes) -> bytes:
    """Sends raw bytes and returns all that comes back until the service closes."""
    place = urlsplit(server.url)
    received = b""
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=20) as wire:
        wire.sendall(request)
        while more := wire.recv(65_536):
            received += more
    return received


async def test_a_request_that_a_stop_does_not_wait_for_is_answered(tmp_path: Path) -> None:
    reading = asyncio.Event()
    sent: list[Any] = []

    async def receive() -> Any:
        reading.set()
        await asyncio.Event().wait()

    async def send(event: Any) -> None:
        sent.append(event)

    headers = [(b"authorization", f"Bearer {SERVICE_KEY}".encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/messages", "query_string": b"", "headers": headers}
    async with Readstate.open(data_dir=str(tmp_path), service_keys=(SERVICE_KEY,)) as rs:
        request = asyncio.ensure_future(asgi_app(rs)(scope, receive, send))
        await reading.wait()
        request.cancel()
        await asyncio.wait([request])

    assert request.cancelled()
    start, body = sent
    assert (start["status"], json.loads(body["body"])["retry"]) == (503, True)
