"""Devices that hang on a server by WebSocket, and connections that send messages to them.

The devices cost little: they find the ends of frames and the type of each, and read no JSON. One process and one
event loop hold all of them.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import cast

from ..load import HOST, PATIENCE, BenchmarkError, Reply, encode
from ..servers import Server
from ..world import message_batch, message_id

SENDERS = 8
"""Connections that send messages."""
BATCH = 10
"""Messages in a request, each to another channel."""
WINDOW = 20_000
"""So many frames may be under way; then senders wait, so that nothing piles up in buffers of the system."""

TYPE, NEW, ID = b'"type":"', b"message.new", b'"message_id":"'
ID_LENGTH = len(message_id(0, 0))
CLOSE, PING = 0x88, 0x89
UPGRADE = (
    "GET /v1/ws HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\nupgrade: websocket\r\n"
    "connection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)


class Talk:
    """Channels, whose turn it is to hear something, and how many frames that makes."""

    def __init__(self, members: dict[int, Sequence[str]]) -> None:
        self.members = members
        self.said = dict.fromkeys(members, 0)
        self._turns = cycle(members)

    def batch(self) -> tuple[list[tuple[int, int]], int]:
        """(channel, number) of the next messages, and how many frames they become."""
        places = []
        for channel in islice(self._turns, BATCH):
            self.said[channel] += 1
            places.append((channel, self.said[channel]))
        return places, sum(len(self.members[channel]) for channel, _ in places)

    def heard(self) -> Counter[str]:
        """How many messages each user must have got."""
        heard: Counter[str] = Counter()
        for channel, users in self.members.items():
            for user in users:
                heard[user] += self.said[channel]
        return heard


@dataclass
class Flow:
    """What a stretch of sending came to."""

    messages: int
    frames: int
    """Of messages; all other events are in `others`."""
    others: Counter[str]
    seconds: float
    """From the first request to the last frame."""
    server_cpu: float
    """Seconds of processor time of the server; 0 where the system does not tell."""
    generator_cpu: float
    after_answer: list[float]
    """Seconds from the answer of a request to each of its frames, in ascending order; below 0 if a frame was first."""
    after_request: list[float]
    """Seconds from the moment at which the request was due to each of its frames."""

    @property
    def rate(self) -> float:
        """Frames of messages in a second."""
        return self.frames / self.seconds


@dataclass
class Tally:
    """What all devices together have got."""

    frames: int = 0
    others: Counter[str] = field(default_factory=Counter)
    size: int = 0
    """Bytes of the payload of the newest frame of a message."""
    last: float = 0
    """When the newest frame of a message came."""
    seen: list[tuple[bytes, float]] | None = None
    """Message id and time of every frame, if somebody wants to know."""
    fault: str = ""
    """Why there is no figure."""

    def check(self) -> None:
        """BenchmarkError if a device was lost."""
        if self.fault:
            raise BenchmarkError(self.fault)


class Device(asyncio.Protocol):
    """One connection: says hello, counts what comes, answers pings."""

    def __init__(self, user: str, token: str, tally: Tally) -> None:
        self.user = user
        self.frames = 0
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._token = token
        self._tally = tally
        self._rest = b""
        self._upgraded = self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(UPGRADE.format(token=self._token).encode())

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._rest:
            data = self._rest + data
        at = self._count(data, 0, now) if self._upgraded else self._upgrade(data, now)
        self._rest = data[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"lost the connection of a device: {exc}")

    def close(self) -> None:
        """Hang up."""
        self._closing = True
        self._transport.close()

    def _upgrade(self, data: bytes, now: float) -> int:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return 0
        if b" 101 " not in data[:end].split(b"\r\n", 1)[0]:
            self._fail(f"no WebSocket: {data[:500]!r}")
            return len(data)
        self._upgraded = True
        self._send(0x81, b'{"type":"hello","device":"%b"}' % self.user.encode())
        return self._count(data, end + 4, now)

    def _count(self, data: bytes, at: int, now: float) -> int:
        """Take whole frames from here on; returns where the first one begins that is not whole."""
        size, tally, before = len(data), self._tally, self.frames
        while size - at >= 4 or (size - at >= 2 and data[at + 1] <= size - at - 2):
            length, start = data[at + 1], at + 2
            if length == 126:
                length, start = data[at + 2] << 8 | data[at + 3], at + 4
            elif length == 127:
                length, start = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
            end = start + length
            if end > size:
                break
            kind = data.find(TYPE, start, end) + len(TYPE)
            if data.startswith(NEW, kind):
                self.frames += 1
                if tally.seen is not None:
                    found = data.find(ID, start, end) + len(ID)
                    tally.seen.append((data[found : found + ID_LENGTH], now))
                tally.size = length
            else:
                self._take_other(data[at], data[start:end])
            at = end
        if self.frames > before:
            tally.frames += self.frames - before
            tally.last = now
        return at

    def _take_other(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self._send(0x8A, payload)
        elif opcode == CLOSE:
            self._fail(f"a device was closed: {int.from_bytes(payload[:2], 'big')} {payload[2:]!r}")
        else:
            kind = payload.partition(TYPE)[2].partition(b'"')[0].decode()
            if kind in {"error", "sync.required"}:
                self._fail(f"a device got {payload[:500]!r}")
            elif kind == "badge.updated" and not self.ready.done():
                self.ready.set_result(None)
            elif kind != "ready":
                self._tally.others[kind] += 1

    def _send(self, opcode: int, payload: bytes) -> None:
        """A short frame, masked with zeros as it must be masked with something."""
        self._transport.write(bytes((opcode, 0x80 | len(payload), 0, 0, 0, 0)) + payload)

    def _fail(self, why: str) -> None:
        if self._closing:
            return
        self._tally.fault = self._tally.fault or why
        if not self.ready.done():
            self.ready.set_exception(BenchmarkError(why))


class Sender(asyncio.Protocol):
    """Sends a request and waits for its answer."""

    def __init__(self) -> None:
        self._reply = Reply()
        self._answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    async def send(self, request: bytes) -> float:
        """Returns when it was answered; BenchmarkError if not every message was accepted."""
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        async with asyncio.timeout(PATIENCE):
            return await self._answer

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        reply = self._reply.feed(data)
        if reply is None or self._answer.done():
            return
        status, body = reply
        if status >= 300 or body.count(b'"accepted"') != BATCH:
            self._answer.set_exception(BenchmarkError(f"{status} {body[:500]!r}"))
        else:
            self._answer.set_result(now)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(exc or BenchmarkError("the server closed the connection"))


class Crowd:
    """All devices of one server and those who send to them."""

    def __init__(self, server: Server, tokens: dict[str, str]) -> None:
        self.tally = Tally()
        self._server = server
        self._tokens = tokens
        self._devices: list[Device] = []
        self._senders: list[Sender] = []
        self._expected = 0

    async def connect(self) -> None:
        """Every user with one device, some at a time; returns when all are ready."""
        loop = asyncio.get_running_loop()
        self._devices = [Device(user, token, self.tally) for user, token in self._tokens.items()]
        for start in range(0, len(self._devices), 50):
            some = self._devices[start : start + 50]
            for device in some:
                await loop.create_connection(lambda made=device: made, HOST, self._server.port)  # type: ignore[misc]
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(device.ready for device in some))
        for _ in range(SENDERS):
            self._senders.append((await loop.create_connection(Sender, HOST, self._server.port))[1])

    async def close(self) -> None:
        """Hang up."""
        for device in self._devices:
            device.close()
        for sender in self._senders:
            sender.transport.close()

    async def flood(self, talk: Talk, seconds: float) -> Flow:
        """Every sender sends its next request when the last one is answered and not too much is under way."""
        stretch = _Stretch(self._server, self.tally)
        deadline = stretch.begin + seconds

        async def flood(sender: Sender) -> None:
            while time.perf_counter() < deadline:
                places = self._next(talk)
                await sender.send(encode("POST", "/v1/messages", message_batch(places), self._server.key))
                stretch.messages += len(places)
                while self._expected - self.tally.frames > WINDOW:
                    self.tally.check()
                    await asyncio.sleep(0.001)

        await asyncio.gather(*(flood(sender) for sender in self._senders))
        await self._delivered()
        return stretch.end()

    async def pace(self, talk: Talk, rate: float, seconds: float) -> Flow:
        """So many frames in a second, in requests at even distances, whether or not the last one is answered."""
        stretch = _Stretch(self._server, self.tally)
        self.tally.seen = []
        idle: asyncio.Queue[Sender] = asyncio.Queue()
        for sender in self._senders:
            idle.put_nowait(sender)

        async def post(due: float, places: list[tuple[int, int]]) -> None:
            sender = await idle.get()
            answered = await sender.send(encode("POST", "/v1/messages", message_batch(places), self._server.key))
            idle.put_nowait(sender)
            stretch.note(places, due, answered)

        due, posts = stretch.begin, []
        while due < stretch.begin + seconds:
            before = self._expected
            posts.append(asyncio.create_task(post(due, self._next(talk))))
            due += (self._expected - before) / rate
            await asyncio.sleep(due - time.perf_counter())
        await asyncio.gather(*posts)
        await self._delivered()
        return stretch.end()

    def check(self, *talks: Talk) -> None:
        """BenchmarkError unless every device got every message of its user once."""
        heard: Counter[str] = sum((talk.heard() for talk in talks), Counter())
        for device in self._devices:
            if device.frames != heard[device.user]:
                raise BenchmarkError(f"{device.user} got {device.frames} messages instead of {heard[device.user]}")

    def _next(self, talk: Talk) -> list[tuple[int, int]]:
        places, frames = talk.batch()
        self._expected += frames
        return places

    async def _delivered(self) -> None:
        """Returns when every frame is there."""
        deadline = time.perf_counter() + PATIENCE
        while self.tally.frames < self._expected:
            self.tally.check()
            if time.perf_counter() > deadline:
                raise BenchmarkError(f"{self._expected - self.tally.frames} frames did not come")
            await asyncio.sleep(0.001)
        self.tally.check()


class _Stretch:
    """Measures from its making to `end`."""

    def __init__(self, server: Server, tally: Tally) -> None:
        self.messages = 0
        self._tally = tally
        self._pid = server.pid
        self._frames, self._others = tally.frames, tally.others.copy()
        self._moments: dict[bytes, tuple[float, float]] = {}
        self._server_cpu, self._own_cpu = processor_time(self._pid), time.process_time()
        self.begin = time.perf_counter()

    def note(self, places: list[tuple[int, int]], due: float, answered: float) -> None:
        """A request was answered."""
        self.messages += len(places)
        for channel, number in places:
            self._moments[message_id(channel, number).encode()] = due, answered

    def end(self) -> Flow:
        seen, self._tally.seen = self._tally.seen or [], None
        moments = self._moments
        return Flow(
            self.messages,
            self._tally.frames - self._frames,
            self._tally.others - self._others,
            self._tally.last - self.begin,
            processor_time(self._pid) - self._server_cpu,
            time.process_time() - self._own_cpu,
            sorted(came - moments[name][1] for name, came in seen),
            sorted(came - moments[name][0] for name, came in seen),
        )


def processor_time(pid: int) -> float:
    """Seconds of processor time that a process has used; 0 where the system does not tell."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return 0
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    """Bytes of a process in memory; 0 where the system does not tell."""
    statm = Path(f"/proc/{pid}/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0
