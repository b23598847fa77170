"""A load generator that costs little: raw HTTP/1.1 over keep-alive connections, requests encoded beforehand.

Closed loop: every connection sends its next request when the answer to the last one is there.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import uvloop

HOST = "127.0.0.1"
PATIENCE = 30
"""Seconds after which an answer that is not there is an error."""

Check = Callable[[bytes], bool]
"""Whether the body of an answer is as it should be."""


class BenchmarkError(Exception):
    """A server answered with an error, so there is no figure."""


@dataclass(frozen=True)
class Load:
    """What a burst of requests came to."""

    requests: int
    seconds: float
    latencies: Sequence[float]
    """Seconds, in ascending order."""
    answered: Sequence[int]
    """How many requests of each source were answered."""

    @property
    def rate(self) -> float:
        """Requests in a second."""
        return self.requests / self.seconds

    def latency(self, percent: float) -> float:
        """Milliseconds in which this share of the requests was answered."""
        place = min(len(self.latencies) - 1, int(len(self.latencies) * percent / 100))
        return self.latencies[place] * 1000


def encode(method: str, path: str, body: bytes, key: str) -> bytes:
    """One request as it goes over the wire."""
    head = f"{method} {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
    if body:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


class Reply:
    """Puts an answer together from the pieces in which it arrives."""

    def __init__(self) -> None:
        self._data = b""
        self._body_at = self._end = -1

    def feed(self, data: bytes) -> tuple[int, bytes] | None:
        """Status and body, once the answer is whole."""
        self._data = self._data + data if self._data else data
        if self._end < 0 and not self._read_head():
            return None
        if len(self._data) < self._end:
            return None
        status, body = int(self._data[9:12]), self._data[self._body_at : self._end]
        self._data = b""
        self._body_at = self._end = -1
        return status, body

    def _read_head(self) -> bool:
        at = self._data.find(b"\r\n\r\n")
        if at < 0:
            return False
        head = self._data[:at].lower()
        start = head.find(b"content-length:") + len("content-length:")
        if start < len("content-length:"):
            raise BenchmarkError(f"an answer without content-length: {head!r}")
        end = head.find(b"\r\n", start)
        self._body_at = at + 4
        self._end = self._body_at + int(head[start : end if end > 0 else len(head)])
        return True


class _Connection(asyncio.Protocol):
    """Sends its requests one after another and notes how long each answer took."""

    def __init__(self, requests: Iterator[bytes], check: Check, deadline: float, interval: float = 0.0) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []
        self._requests = requests
        self._check = check
        self._deadline = deadline
        self._interval = interval
        """Seconds from one request to the next, if the answer is there by then."""
        self._reply = Reply()
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._next(time.perf_counter())

    def data_received(self, data: bytes) -> None:
        reply = self._reply.feed(data)
        if reply is None:
            return
        now = time.perf_counter()
        self.latencies.append(now - self._sent)
        status, body = reply
        if status >= 300 or not self._check(body):
            self._end(BenchmarkError(f"{status} {body[:500]!r}"))
        elif (pause := self._sent + self._interval - now) <= 0:
            self._next(now)
        elif now + pause < self._deadline:
            asyncio.get_running_loop().call_later(pause, self._next, now + pause)
        else:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or BenchmarkError("the server closed the connection"))

    def _next(self, now: float) -> None:
        request = next(self._requests, None) if now < self._deadline else None
        if request is None:
            self._end(None)
        else:
            self._sent = now
            self._transport.write(request)

    def _end(self, fault: Exception | None) -> None:
        if self.done.done():
            return
        if fault:
            self.done.set_exception(fault)
        else:
            self.done.set_result(None)
        self._transport.close()


def burst(port: int, sources: Sequence[Iterable[bytes]], check: Check, seconds: float) -> Load:
    """Sends from each source over its own connection until all are used up or the time is over.

    Raises BenchmarkError when any answer is an error or does not pass the check.
    """
    return uvloop.run(bursting(port, sources, check, seconds))


async def bursting(
    port: int, sources: Sequence[Iterable[bytes]], check: Check, seconds: float, rate: float = 0.0
) -> Load:
    """The same beside other things; with a rate, requests come at even distances, so many in a second."""
    loop = asyncio.get_running_loop()
    begin = time.perf_counter()
    connections: list[_Connection] = []
    for source in sources:
        connection = _Connection(iter(source), check, begin + seconds, len(sources) / rate if rate else 0.0)
        connections.append(connection)
        if rate:
            await asyncio.sleep(1 / rate)
        await loop.create_connection(lambda made=connection: made, HOST, port)  # type: ignore[misc]
    async with asyncio.timeout(seconds + PATIENCE):
        await asyncio.gather(*(connection.done for connection in connections))
    elapsed = time.perf_counter() - begin
    latencies = sorted(latency for connection in connections for latency in connection.latencies)
    answered = [len(connection.latencies) for connection in connections]
    return Load(len(latencies), elapsed, latencies, answered)


class Wire:
    """One blocking connection, for setting the scene and for timing single requests."""

    def __init__(self, port: int, key: str) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._key = key
        self._reply = Reply()

    def call(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of the answer; BenchmarkError when it is an error."""
        return self.exchange(encode(method, path, body, self._key))

    def exchange(self, request: bytes) -> bytes:
        """Like `call`, for a request that is already encoded."""
        self._socket.sendall(request)
        reply = None
        while reply is None:
            data = self._socket.recv(1 << 18)
            if not data:
                raise BenchmarkError("the server closed the connection")
            reply = self._reply.feed(data)
        status, body = reply
        if status >= 300:
            raise BenchmarkError(f"{status} {body[:500]!r}")
        return body

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
