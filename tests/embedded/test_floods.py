"""A WebSocket client with bad manners, on a raw socket: what it sends and does not read is bounded in the service."""

import base64
import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.conftest import JWT_SECRET, token_for
from tests.servers import DEADLINE, Server, serving, wait_until

TEXT, CONTINUATION, CLOSE, PING, PONG = 0x1, 0x0, 0x8, 0x9, 0xA
MIB = 1 << 20
FLOOD = 48 * MIB
"""More than the buffers of both kernels and of the service hold together."""
BLOCKED_SECONDS = 5.0
"""A service that reads takes something within this."""


class Raw:
    """A WebSocket connection that does only what it is told."""

    def __init__(self, server: Server, user: str | None) -> None:
        place = urlsplit(server.url)
        self.socket = socket.create_connection((place.hostname, place.port), DEADLINE)
        key = base64.b64encode(os.urandom(16)).decode()
        token = "" if user is None else f"Authorization: Bearer {token_for(user)}\r\n"
        self.socket.sendall(
            f"GET /v1/ws HTTP/1.1\r\nHost: {place.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n{token}\r\n".encode()
        )
        self._in = bytearray()
        while b"\r\n\r\n" not in self._in:
            self._read()
        head, _, rest = bytes(self._in).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101"), head
        self._in = bytearray(rest)

    def _read(self) -> bool:
        data = self.socket.recv(MIB)
        self._in += data
        return bool(data)

    def take(self) -> tuple[int, bytes] | None:
        """The next frame of the service: its opcode and content; None at the end."""
        while (frame := self._frame()) is None:
            if not self._read():
                return None
        return frame

    def _frame(self) -> tuple[int, bytes] | None:
        if len(self._in) < 2:
            return None
        size, start = self._in[1] & 0x7F, 2
        if size >= 126:
            start = 4 if size == 126 else 10
            size = int.from_bytes(self._in[2:start]) if len(self._in) >= start else 1 << 62
        if len(self._in) < start + size:
            return None
        opcode, content = self._in[0] & 0x0F, bytes(self._in[start : start + size])
        del self._in[: start + size]
        return opcode, content

    def until_closed(self) -> int:
        """The code with which the service closes."""
        while (frame := self.take()) is not None:
            if frame[0] == CLOSE:
                return int(struct.unpack("!H", frame[1][:2])[0])
        raise AssertionError("the connection ended without a close")


def frame(opcode: int, content: bytes = b"", *, last: bool = True) -> bytes:
    """A frame as a client sends it, with a mask that changes nothing."""
    assert len(content) < 126
    return bytes([opcode | (0x80 if last else 0), 0x80 | len(content)]) + b"\0\0\0\0" + content


@contextmanager
def raw(server: Server, user: str | None = "bob") -> Iterator[Raw]:
    """A connection; without a user it has no token."""
    client = Raw(server, user)
    try:
        yield client
    finally:
        client.socket.close()


def pour(client: Raw, data: bytes, most: int = FLOOD) -> int:
    """Send over and over, and read nothing, until the service takes no more or closes; returns the bytes sent."""
    client.socket.setblocking(False)
    stream, sent = memoryview(data), 0
    try:
        while sent < most:
            _, writable, _ = select.select([], [client.socket], [], BLOCKED_SECONDS)
            if not writable:
                return sent
            sent += client.socket.send(stream[sent % len(data) :])
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        client.socket.settimeout(DEADLINE)
    return sent


def memory(server: Server) -> int:
    """Bytes that the process holds."""
    pages = Path(f"/proc/{server.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A service without limits on rates: only buffers bound what it takes."""
    with serving(tmp_path / "data", jwt_secret=JWT_SECRET, heartbeat=600, hello_timeout=600) as server:
        yield server


def test_a_client_that_sends_pings_and_reads_nothing_is_not_read_on(server: Server) -> None:
    before = memory(server)
    ping = frame(PING, b"x" * 125)
    with raw(server) as client:
        sent = pour(client, ping * 1000)

        assert sent < FLOOD, "the service reads on, though its answers are not taken"
        assert memory(server) - before < FLOOD / 2
        assert httpx.get(f"{server.url}/healthz").status_code == 200

        whole, part = divmod(sent, len(ping))
        for _ in range(whole):  # whoever reads is read again
            assert client.take() == (PONG, b"x" * 125)
        client.socket.sendall(ping[part:])
        assert client.take() == (PONG, b"x" * 125)


def test_two_sides_that_wait_for_each_other_do_not_wait_for_ever(tmp_path: Path) -> None:
    """A client that reads nothing until it is read: the heartbeat ends it."""
    with serving(tmp_path / "data", jwt_secret=JWT_SECRET, heartbeat=1, hello_timeout=600) as server:
        with raw(server) as client:
            pour(client, frame(PING, b"x" * 125) * 1000)

            wait_until(lambda: connections(server) == 0, "the connection is given up")

        assert httpx.get(f"{server.url}/healthz").status_code == 200


def connections(server: Server) -> float:
    """Live connections that are open."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("readstate_ws_connections "))


def test_a_message_that_never_ends_is_given_up(server: Server) -> None:
    """Empty parts take no bytes of the bound on a message."""
    with raw(server) as client:
        client.socket.sendall(frame(TEXT, last=False))

        pour(client, frame(CONTINUATION, last=False) * 1000)

        assert client.until_closed() == 4429
        assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_messages_in_parts_are_whole_as_long_as_there_are_not_too_many(server: Server) -> None:
    with raw(server) as client:
        hello = b'{"type": "hello", "device": "phone"}'
        client.socket.sendall(frame(TEXT, hello[:1], last=False))
        for byte in hello[1:-1]:
            client.socket.sendall(frame(CONTINUATION, bytes([byte]), last=False) + frame(PING, b"?"))
        client.socket.sendall(frame(CONTINUATION, hello[-1:]))

        frames = [client.take() for _ in range(len(hello) - 1)]

        assert frames[:-1] == [(PONG, b"?")] * (len(hello) - 2)
        assert frames[-1] is not None
        assert b'"ready"' in frames[-1][1]


FLOODS = {
    "pings": frame(PING),
    "pongs": frame(PONG),
    "parts": frame(TEXT, last=False) + frame(CONTINUATION, last=False) * 100 + frame(CONTINUATION),
    "frames": frame(TEXT, b"{}"),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_every_frame_counts_against_the_rate(tmp_path: Path, flood: str) -> None:
    with serving(tmp_path / "data", jwt_secret=JWT_SECRET, rate_limit=50) as server, raw(server) as client:
        client.socket.sendall(frame(TEXT, b'{"type": "hello", "device": "phone"}'))

        pour(client, FLOODS[flood] * 1000)

        assert client.until_closed() == 4429
        assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_frames_count_before_it_is_known_whose_they_are(tmp_path: Path) -> None:
    settings = {"jwt_secret": JWT_SECRET, "rate_limit": 50, "hello_timeout": 600}
    with serving(tmp_path / "data", **settings) as server, raw(server, None) as client:
        pour(client, frame(PING) * 1000)

        assert client.until_closed() == 4429
