"""What a connection may cost before anybody knows who it is: bytes and fields of headers, time, and its place."""

import itertools
import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import JWT_SECRET, SERVICE_KEY
from tests.servers import Server, serving, serving_hastily

from .wire import JSON_TYPE, Wire, head_of, request, until, wire_to, wires

LIMIT = 65_536
FIELDS = 128
HASTE = 1
"""Seconds that a request gets where tests wait for the end of them."""
MESSAGE = b'{"channel_id": "general", "sender_id": "alice"}'
CHUNKED = b"Transfer-Encoding: chunked"
UPGRADE = (
    *(b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"),
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("patient") / "data"
    with serving_hastily(data_dir, service_keys=SERVICE_KEY, jwt_secret=JWT_SECRET) as server:
        yield with_a_channel(server)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("hasty") / "data"
    keys = {"service_keys": SERVICE_KEY, "jwt_secret": JWT_SECRET}
    with serving_hastily(data_dir, header_timeout=HASTE, body_timeout=HASTE, **keys) as server:
        yield with_a_channel(server)


def with_a_channel(server: Server) -> Server:
    answer = httpx.put(
        f"{server.url}/v1/channels/general",
        json={"type": "group", "members": ["alice", "bob"]},
        headers={"authorization": f"Bearer {SERVICE_KEY}", "prefer": "wait"},
    )
    assert answer.is_success, answer.text
    return server


def unread(server: Server) -> int:
    found = httpx.get(
        f"{server.url}/v1/users/bob/channels/general/unread", headers={"authorization": f"Bearer {SERVICE_KEY}"}
    )
    count: int = found.json()["unread"]
    return count


def metric(server: Server, name: str) -> float:
    """The value of a metric, with its labels; 0 if it was never counted."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name), 0.0)


def refused(server: Server, reason: str) -> float:
    """How often, as of a second ago or later: metrics are made at most once a second."""
    return metric(server, f'readstate_http_refused_total{{reason="{reason}"}}')


def refused_so_far(server: Server, reason: str) -> float:
    """How often, from metrics that were made after the call."""
    asked = 'readstate_http_requests_total{method="GET",route="/healthz",status="200"}'
    known = metric(server, asked)
    assert answers(server)
    until(lambda: metric(server, asked) != known, "metrics are made anew")
    return refused(server, reason)


def answers(server: Server) -> bool:
    return httpx.get(f"{server.url}/healthz").status_code == 200


# ---------------------------------------------------------------- headers without end

START = request("POST", "/v1/messages", CHUNKED, JSON_TYPE)
FLOODS: dict[str, tuple[bytes, Callable[[], Iterator[bytes]]]] = {
    "a header": (b"GET / HTTP/1.1\r\nX-Long: ", lambda: itertools.repeat(b"x" * 16_384)),
    "the space before a header's value": (b"GET / HTTP/1.1\r\nX-Long:", lambda: itertools.repeat(b" " * 16_384)),
    "small headers": (b"GET / HTTP/1.1\r\n", lambda: (b"x-%d: y\r\n" % number for number in itertools.count())),
    "a request line": (b"GET /", lambda: itertools.repeat(b"x" * 16_384)),
    "empty lines before a request": (b"", lambda: itertools.repeat(b"\r\n" * 8_192)),
    "headers after a request": (
        request("GET", "/healthz") + b"GET / HTTP/1.1\r\nX-Long: ",
        lambda: itertools.repeat(b"x" * 16_384),
    ),
    "trailers": (
        START + b"0\r\n",
        lambda: (b"x-%d: y\r\n" % number for number in itertools.count()),
    ),
    "a trailer": (START + b"1\r\n \r\n0\r\nX-Long: ", lambda: itertools.repeat(b"x" * 16_384)),
    "a chunk's extension": (START + b"1;", lambda: itertools.repeat(b"x" * 16_384)),
    "a chunk's size": (START, lambda: itertools.repeat(b"0" * 16_384)),
    "chunks that are mostly extension": (START, lambda: itertools.repeat((b"1;" + b"x" * 200 + b"\r\n \r\n") * 100)),
    "headers of a WebSocket": (
        request("GET", "/v1/ws", *UPGRADE)[:-2] + b"X-Long: ",
        lambda: itertools.repeat(b"x" * 16_384),
    ),
}


@pytest.mark.parametrize(("start", "more"), FLOODS.values(), ids=FLOODS)
def test_what_has_no_end_is_refused_and_the_connection_closed(
    server: Server, start: bytes, more: Callable[[], Iterator[bytes]]
) -> None:
    before = refused_so_far(server, "headers_too_large")
    with wire_to(server.url) as wire:
        if start.startswith(b"GET /healthz"):  # its own answer comes first, and would end the flood
            wire.send(start)
            assert wire.reply().status == 200
            start = b""
        wire.flood(start, more())
        wire.reply().refusal(431, "headers_too_large")
        wire.ended()
    until(lambda: refused(server, "headers_too_large") == before + 1, "the refusals are counted")
    assert answers(server)


def test_the_limit_is_exact(server: Server) -> None:
    with wire_to(server.url) as wire:
        for _ in range(2):
            wire.send(head_of(LIMIT))
            assert wire.reply().status == 200
        wire.send(head_of(LIMIT + 1))
        wire.reply().refusal(431, "headers_too_large")


def test_so_is_the_number_of_fields(server: Server) -> None:
    def with_fields(count: int) -> bytes:
        return request("GET", "/healthz", *[b"X: y"] * (count - 1), key=None)

    with wire_to(server.url) as wire:
        wire.send(with_fields(FIELDS))
        assert wire.reply().status == 200
        wire.send(with_fields(FIELDS + 1))
        wire.reply().refusal(431, "headers_too_large")


def test_the_limit_is_a_setting(tmp_path: Path) -> None:
    with serving_hastily(tmp_path / "data", max_header_bytes=2_048) as server:
        for size, status in ((2_048, 200), (2_049, 431)):
            with wire_to(server.url) as wire:
                wire.send(head_of(size))
                assert wire.reply().status == status


def test_each_pipelined_request_has_the_whole_limit(server: Server) -> None:
    with wire_to(server.url) as wire:
        wire.send(head_of(40_000) * 10)
        assert [wire.reply().status for _ in range(10)] == [200] * 10
        wire.send(head_of(40_000) * 3 + head_of(2 * LIMIT) + head_of(1_000))
        assert [wire.reply().status for _ in range(4)] == [200, 200, 200, 431]
        wire.ended()


def test_a_pipelined_request_that_is_too_large_is_refused_also_within_one_read(tmp_path: Path) -> None:
    with serving_hastily(tmp_path / "data", max_header_bytes=1_024) as server, wire_to(server.url) as wire:
        wire.send(head_of(300) + head_of(1_400) + head_of(300))
        assert wire.reply().status == 200
        wire.reply().refusal(431, "headers_too_large")


def test_large_bodies_are_no_headers(server: Server) -> None:
    body = json.dumps({"channel_id": "no such channel", "sender_id": "alice", "text": "x" * 8_000}).encode()
    padded = body + b" " * (900_000 - len(body))
    tiny = b"".join(b"1\r\n%b\r\n" % padded[at : at + 1] for at in range(len(body), len(body) + 60_000))
    with wire_to(server.url) as wire:
        for one in (
            request("POST", "/v1/messages", JSON_TYPE, body=padded),
            request("POST", "/v1/messages", JSON_TYPE, CHUNKED, body=b"%x\r\n%b\r\n" % (len(body), body) + tiny)
            + b"0\r\n\r\n",
        ):
            wire.send(one)
            wire.reply().problem(404, "channel_not_found")


def test_only_so_many_requests_may_wait(server: Server) -> None:
    with wire_to(server.url) as wire:
        wire.send(request("GET", "/v1/users/bob/unread") * 20_000)
        statuses = []
        while (reply := wire.reply()).status == 200:
            statuses.append(200)

        assert 128 <= len(statuses) < 20_000
        reply.refusal(400, "bad_request")


# ---------------------------------------------------------------- what the parser refuses


def test_what_is_no_request_is_told_as_a_problem(server: Server) -> None:
    before = refused_so_far(server, "bad_request")
    junk = (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
        b"HELLO\r\n\r\n",
        b"GET / HTTP/3.7\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n",
        request("GET", "/v1/a b"),
        request("GET", "http://"),
        request("GET", "/healthz", b"No colon"),
        request("GET", "/healthz", b"X: a\0b"),
        request("POST", "/v1/messages", b"Content-Length: 2", b"Content-Length: 3", body=b"{}"),
        request("POST", "/v1/messages", b"Content-Length: 5", CHUNKED, body=b"0\r\n\r\n"),
        request("POST", "/v1/messages", b"Content-Length: many", body=b"{}"),
    )
    for one in junk:
        with wire_to(server.url) as wire:
            wire.send(one)
            wire.reply().refusal(400, "bad_request")
            assert wire.ended() == b""
    until(lambda: refused(server, "bad_request") == before + len(junk), "the refusals are counted")


def test_a_broken_chunk_is_told_and_nothing_is_done(server: Server) -> None:
    before = unread(server)
    with wire_to(server.url) as wire:
        wire.send(START + b"%x\r\n%b\r\n" % (len(MESSAGE), MESSAGE) + b"zz\r\n")
        wire.reply().refusal(400, "bad_request")
    assert unread(server) == before


def test_answers_that_are_due_come_before_a_refusal(server: Server) -> None:
    before = unread(server)
    message = request("POST", "/v1/messages", JSON_TYPE, b"Prefer: wait", body=MESSAGE)
    with wire_to(server.url) as wire:
        wire.send(message * 3 + b"JUNK\r\n\r\n" + message)
        assert [wire.reply().status for _ in range(3)] == [202] * 3
        wire.reply().refusal(400, "bad_request")
        assert wire.ended() == b""
    with wire_to(server.url) as wire:
        wire.send(message + START + b"zz\r\n")
        assert wire.reply().status == 202
        wire.reply().refusal(400, "bad_request")
    assert unread(server) == before + 4


def test_a_trailer_is_no_header(server: Server) -> None:
    body = b"%x\r\n%b\r\n0\r\n" % (len(MESSAGE), MESSAGE)
    trailer = b"Authorization: Bearer " + SERVICE_KEY.encode() + b"\r\n\r\n"
    with wire_to(server.url) as wire:
        wire.send(request("POST", "/v1/messages", CHUNKED, JSON_TYPE, key=None, body=body) + trailer)
        wire.reply().problem(401, "unauthenticated")
        wire.send(request("GET", "/v1/users/bob/unread", key=None))
        wire.reply().problem(401, "unauthenticated")


def test_an_offer_of_another_protocol_does_not_cost_the_body(server: Server) -> None:
    """Java's client offers HTTP/2 with its first request, whatever it is."""
    before = unread(server)
    offer = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk")
    send = request("POST", "/v1/messages", JSON_TYPE, b"Prefer: wait", *offer, body=MESSAGE)
    with wire_to(server.url) as wire:
        for _ in range(2):
            wire.send(send)
            assert wire.reply().status == 202
        wire.send(send[:-10])
        wire.send(send[-10:] + request("GET", "/healthz", *offer))
        assert [wire.reply().status, wire.reply().status] == [202, 200]
    assert unread(server) == before + 3


@pytest.mark.parametrize(
    "handshake",
    [
        pytest.param(request("GET", "/v1/ws", *UPGRADE, b"X-Long: " + b"x" * 10_000), id="a long line"),
        pytest.param(request("GET", "/v1/ws", *UPGRADE, b"Content-Length: 2", body=b"{}"), id="a body"),
    ],
)
def test_a_handshake_that_can_not_be_read_is_refused(server: Server, handshake: bytes) -> None:
    with wire_to(server.url) as wire:
        wire.send(handshake)
        wire.reply().refusal(400, "bad_request")
        wire.ended()


def test_an_upgrade_waits_for_the_answers_before_it(server: Server) -> None:
    with wire_to(server.url) as wire:
        wire.send(request("GET", "/v1/users/bob/unread") + request("GET", "/v1/ws", *UPGRADE))
        assert wire.reply().status == 200
        wire.reply().refusal(400, "bad_request")


def test_heads_and_connections_that_are_kept_work_as_ever(server: Server) -> None:
    with wire_to(server.url) as wire:
        for path in ("/healthz", "/v1/users/bob/unread") * 3:
            wire.send(request("GET", path))
            assert wire.reply().status == 200
        wire.send(request("HEAD", "/healthz"))
        head = wire.reply_without_body()
        wire.send(request("GET", "/healthz", b"Connection: close"))
        last = wire.reply()

        assert head.status in {200, 405}
        assert (last.status, last.headers["connection"]) == (200, "close")
        assert wire.ended() == b""


# ---------------------------------------------------------------- deadlines


def test_a_connection_that_says_nothing_is_closed(hasty: Server) -> None:
    before = refused_so_far(hasty, "header_timeout")
    with wires(hasty.url, 20) as silent:
        assert [wire.ended() for wire in silent] == [b""] * 20
    until(lambda: refused(hasty, "header_timeout") == before + 20, "the refusals are counted")


@pytest.mark.parametrize(
    "half",
    [
        pytest.param(b"\r\n", id="an empty line"),
        pytest.param(b"GET /heal", id="a request line"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: te", id="headers"),
        pytest.param(request("GET", "/v1/ws", *UPGRADE)[:-2], id="a WebSocket's headers"),
    ],
)
def test_a_head_that_does_not_end_is_given_up(hasty: Server, half: bytes) -> None:
    with wire_to(hasty.url) as wire:
        wire.send(half)
        assert wire.reply().refusal(408, "request_timeout")["retry"] is True
        wire.ended()


def test_a_pipelined_head_that_does_not_end_is_given_up(hasty: Server) -> None:
    with wire_to(hasty.url) as wire:
        wire.send(request("GET", "/healthz") + b"GET /heal")
        assert wire.reply().status == 200
        wire.reply().refusal(408, "request_timeout")


def test_a_head_that_drips_is_given_up(hasty: Server) -> None:
    with wire_to(hasty.url) as wire:
        wire.drip(b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 10_000)
        wire.reply().refusal(408, "request_timeout")


def test_a_connection_may_be_idle_but_not_stop_within_its_next_request(hasty: Server) -> None:
    with wires(hasty.url, 3) as (idle, half, silent):
        for wire in (idle, half):
            wire.send(request("GET", "/healthz"))
            assert wire.reply().status == 200
        half.send(b"GET /healthz HTTP/1.1\r\n")

        half.reply().refusal(408, "request_timeout")
        silent.ended()
        idle.send(request("GET", "/healthz"))
        assert idle.reply().status == 200


def test_a_body_that_stops_is_given_up_and_nothing_is_done(hasty: Server) -> None:
    before, late = unread(hasty), refused(hasty, "body_timeout")
    announced = request("POST", "/v1/messages", JSON_TYPE, b"Content-Length: 100", body=MESSAGE)
    for half in (announced, announced[: -len(MESSAGE)], START, START + b"2f\r\n" + MESSAGE):
        with wire_to(hasty.url) as wire:
            wire.send(half)
            assert wire.reply().refusal(408, "request_timeout")["retry"] is True
            wire.ended()
    assert unread(hasty) == before
    assert refused(hasty, "body_timeout") == late + 4


def test_a_body_that_is_slow_but_goes_on_is_taken(hasty: Server) -> None:
    before = unread(hasty)
    message = request("POST", "/v1/messages", JSON_TYPE, b"Prefer: wait", body=MESSAGE)
    with wire_to(hasty.url) as wire, wires(hasty.url, 1) as [silent]:
        wire.send(message[: -len(MESSAGE)])
        wire.drip(MESSAGE[:-1])
        silent.ended()
        wire.send(MESSAGE[-1:])
        assert wire.reply().status == 202
    assert unread(hasty) == before + 1


def test_a_body_that_nobody_reads_does_not_keep_the_connection(hasty: Server) -> None:
    with wire_to(hasty.url) as wire:
        wire.send(request("POST", "/v1/messages", b"Content-Length: 1000", key=None))
        wire.reply().problem(401, "unauthenticated")
        wire.drip(b" " * 900)
        assert wire.ended() == b""


def test_a_client_that_does_not_read_its_answers_is_let_go(hasty: Server) -> None:
    before = refused_so_far(hasty, "stalled")
    with wire_to(hasty.url, receive_buffer=4_096) as wire:
        wire.send(request("GET", "/openapi.json") * 100)
        until(lambda: refused(hasty, "stalled") > before, "the client is let go")


def test_a_client_that_does_not_read_an_export_is_let_go(hasty: Server) -> None:
    fill(hasty, 16 * 2**20)
    before = refused_so_far(hasty, "stalled")
    with wire_to(hasty.url, receive_buffer=4_096) as wire, wire_to(hasty.url, receive_buffer=65_536) as slow:
        for one in (wire, slow):
            one.send(request("GET", "/v1/export", b"Connection: close"))
        export = read_in_steps(slow, lambda: refused(hasty, "stalled") > before) + slow.ended()

    assert len(export) > 16 * 2**20
    assert export.endswith(b"0\r\n\r\n")
    until(lambda: refused(hasty, "stalled") == before + 1, "the refusals are counted")


def fill(server: Server, size: int) -> None:
    """Messages of so many bytes in all."""
    text = "x" * 8_000
    batch = [{"channel_id": "general", "sender_id": "alice", "text": text} for _ in range(100)]
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {SERVICE_KEY}"}, timeout=60) as http:
        for _ in range(size // (len(batch) * len(text)) + 1):
            assert http.post("/v1/messages", json={"messages": batch}).status_code == 202


def read_in_steps(wire: Wire, enough: Callable[[], bool]) -> bytes:
    """Read a little at a time until it is enough."""
    found = bytearray()
    while not enough():
        found += wire.socket.recv(16_384)
        wire.is_answered(0.1)
    return bytes(found)


# ---------------------------------------------------------------- connections


def test_one_connection_too_many_gets_503_until_another_one_ends(tmp_path: Path) -> None:
    with serving_hastily(tmp_path / "data", max_connections=4) as server, wires(server.url, 4) as held:
        for wire in held[:3]:
            wire.send(request("GET", "/healthz"))
            assert wire.reply().status == 200
        held[3].send(request("GET", "/v1/ws", *UPGRADE, key=None))
        assert held[3].reply_without_body().status == 101
        for _ in range(3):
            with wire_to(server.url) as wire:
                wire.send(request("GET", "/healthz"))
                reply = wire.reply()
                assert reply.refusal(503, "too_many_connections")["retry"] is True
                assert int(reply.headers["retry-after"]) >= 1
                assert wire.ended() == b""
        for wire in held[:3]:
            wire.send(request("GET", "/healthz"))
            assert wire.reply().status == 200
        held[0].close()
        until(lambda: answers(server), "there is room again")
        held[1].close()
        assert refused(server, "connections") >= 3
        assert [json.loads(line)["event"] for line in server.log if '"connections"' in line] == [
            "too many connections: new ones are refused"
        ]


def test_many_connections_too_many_do_no_harm(tmp_path: Path) -> None:
    with serving_hastily(tmp_path / "data", max_connections=10) as server:
        with wires(server.url, 10) as held:
            held[0].send(request("GET", "/healthz"))
            assert held[0].reply().status == 200
            with wires(server.url, 600) as more:
                for wire in more:
                    wire.ended()
            held[0].send(request("GET", "/healthz"))
            assert held[0].reply().status == 200
        until(lambda: answers(server), "there is room again")
        assert refused(server, "connections") == 600


def test_when_descriptors_run_out_it_is_told_and_connections_wait(tmp_path: Path) -> None:
    with serving_hastily(tmp_path / "data", header_timeout=600) as server:
        in_use = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (in_use + 10, in_use + 10))
        with wires(server.url, 40) as held:
            until(lambda: any('"EMFILE"' in line for line in server.log), "the log tells")
            for wire in held:
                wire.send(request("GET", "/healthz"))
            assert held[0].reply().status == 200
            for wire in held[:20]:
                wire.close()
            assert held[25].reply().status == 200
        until(lambda: answers(server), "there is room again")

        assert metric(server, 'readstate_accept_failed_total{error="EMFILE"}') >= 1
        assert sum('"EMFILE"' in line for line in server.log) == 1


def test_a_low_limit_of_descriptors_is_raised_or_told(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with serving(tmp_path / "data", max_connections=300) as server:
            raised, _ = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
            assert raised >= 300
            assert not any("file descriptors" in line for line in server.log)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with serving(tmp_path / "data", max_connections=10_000_000) as server:
        assert any("file descriptors" in line for line in server.log)
