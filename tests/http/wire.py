"""A client that speaks raw bytes, with all the bad manners that a proper one lacks."""

import contextlib
import json
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.conftest import SERVICE_KEY

DEADLINE = 60.0
JSON_TYPE = b"Content-Type: application/json"


class Reply(NamedTuple):
    """One answer, as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    def problem(self, status: int, code: str) -> dict[str, Any]:
        """The answer is this problem, and nobody keeps it."""
        assert self.status == status, (self.status, self.body[:300])
        assert self.headers["content-type"] == "application/problem+json"
        assert self.headers["cache-control"] == "no-store"
        assert self.headers["x-content-type-options"] == "nosniff"
        problem: dict[str, Any] = json.loads(self.body)
        assert (problem["status"], problem["code"]) == (status, code)
        assert problem["title"]
        assert problem["detail"]
        return problem

    def refusal(self, status: int, code: str) -> dict[str, Any]:
        """The same, and the connection ends with it."""
        assert self.headers["connection"] == "close"
        return self.problem(status, code)


class Wire:
    """One connection."""

    def __init__(self, url: str, receive_buffer: int | None = None) -> None:
        place = urlsplit(url)
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(DEADLINE)
        self.socket.connect((place.hostname or "", place.port or 0))
        self._received = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def flood(self, start: bytes, more: Iterable[bytes], most: int = 2**26) -> None:
        """Send until the service answers or breaks off; fails if it takes more than `most` bytes."""
        self.send(start)
        sent = 0
        for piece in more:
            if self.is_answered():
                return
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.send(piece)
            sent += len(piece)
            assert sent < most, "the service takes it without end"
        assert self.is_answered(DEADLINE), "the service said nothing"

    def drip(self, data: bytes, pause: float = 0.2) -> None:
        """Send byte after byte, slowly, until the service answers."""
        for number in range(len(data)):
            if self.is_answered(pause):
                return
            self.send(data[number : number + 1])

    def is_answered(self, seconds: float = 0.0) -> bool:
        """Whether anything can be read, or will be within this time."""
        return bool(select.select([self.socket], [], [], seconds)[0])

    def reply(self) -> Reply:
        """The next answer."""
        status, headers, _ = self.reply_without_body()
        size = int(headers.get("content-length", "0"))
        return Reply(status, headers, self._until(lambda got: size if len(got) >= size else None))

    def reply_without_body(self) -> Reply:
        """The head of the next answer: all that a HEAD gets."""
        head = self._until(lambda got: (got.index(b"\r\n\r\n") + 4) if b"\r\n\r\n" in got else None).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        headers = {name.lower(): value for name, _, value in pairs}
        return Reply(int(first.split()[1]), headers, b"")

    def _until(self, end: Callable[[bytes], int | None]) -> bytes:
        while (at := end(self._received)) is None:
            more = self.socket.recv(65_536)
            assert more, f"the connection ended after {self._received[:200]!r}"
            self._received += more
        taken, self._received = self._received[:at], self._received[at:]
        return taken

    def ended(self) -> bytes:
        """What came before the service closed the connection."""
        with contextlib.suppress(ConnectionResetError):
            while more := self.socket.recv(65_536):
                self._received += more
        taken, self._received = self._received, b""
        return taken

    def close(self) -> None:
        self.socket.close()


@contextlib.contextmanager
def wires(url: str, count: int) -> Iterator[list[Wire]]:
    """Several connections that say nothing yet; those that are left open are closed with the block."""
    opened = [Wire(url) for _ in range(count)]
    try:
        yield opened
    finally:
        for wire in opened:
            wire.close()


@contextlib.contextmanager
def wire_to(url: str, receive_buffer: int | None = None) -> Iterator[Wire]:
    """One connection."""
    wire = Wire(url, receive_buffer)
    try:
        yield wire
    finally:
        wire.close()


def request(method: str, path: str, *headers: bytes, body: bytes = b"", key: str | None = SERVICE_KEY) -> bytes:
    """A whole request. A body brings its length, unless the headers say how it comes."""
    lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: test", *headers]
    if key is not None:
        lines.append(b"Authorization: Bearer " + key.encode())
    if body and not any(line.lower().startswith((b"content-length", b"transfer-encoding")) for line in headers):
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])


def head_of(size: int, method: str = "GET", path: str = "/healthz") -> bytes:
    """A request without a body, of exactly this many bytes."""
    start = request(method, path, key=None)[:-2]
    return start + b"X-Pad: " + b"x" * (size - len(start) - 11) + b"\r\n\r\n"


def until(condition: Callable[[], bool], what: str, deadline: float = DEADLINE) -> None:
    """Returns when the condition holds."""
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"waited {deadline} s for: {what}"
        time.sleep(0.02)
