"""Reads as devices make them: `mark_read` frames over WebSockets, beside the same reads as HTTP requests."""

import asyncio
import secrets
import time
from collections.abc import Iterator, Sequence
from statistics import median

import jwt
import uvloop

from ..cluster import use
from ..load import HOST, PATIENCE, BenchmarkError, Load, burst, encode
from ..report import Result, number, times
from ..servers import Server, on_cores, readstate, two_cores
from ..world import Town, channel_id, check_pointers, user_id, wake
from . import Setting
from .live_devices import Device, Tally

DEVICES = 64
TARGET, AIM = 2, 3
CHANGED = b'"changed":true'
ABOUT = (
    f"{DEVICES} users of the people and channels of reads_batch, embedded, SQLite; the server on one core, the load on "
    "the other. Frames: each user has one device at `/v1/ws` that sends its next `mark_read` when the `ack` to the "
    "last one is there, which holds the channel's figures as they stand then. Requests: "
    f"`POST /v1/users/…/channels/…/read` for the same users over {DEVICES} connections, while no device is connected. "
    "In turns; every read moves a pointer by one message. At the end the server is killed (`SIGKILL`) and started "
    "again, and every pointer must be where it was acknowledged."
)


class Reader(Device):
    """Reads one place after another, until they are used up or the time is over."""

    def begin(self, places: Iterator[tuple[int, int]], deadline: float) -> "asyncio.Future[None]":
        """Returns what is done when the last answer is there."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []
        self._places = places
        self._deadline = deadline
        self._next(time.perf_counter())
        return self.done

    def _next(self, now: float) -> None:
        place = next(self._places, None) if now < self._deadline else None
        if place is None:
            self.done.set_result(None)
            return
        self._sent = now
        words = channel_id(place[0]).encode(), place[1]
        self._send(0x81, b'{"type":"mark_read","channel_id":"%b","up_to_seq":%d}' % words)

    def _take_other(self, opcode: int, payload: bytes) -> None:
        if b'"type":"ack"' not in payload[:100]:
            super()._take_other(opcode, payload)
        elif CHANGED not in payload:
            self.done.set_exception(BenchmarkError(f"a read changed nothing: {payload[:500]!r}"))
        else:
            now = time.perf_counter()
            self.latencies.append(now - self._sent)
            self._next(now)


class Readings:
    """Where the users are in their channels."""

    def __init__(self, town: Town) -> None:
        self.channels: list[list[int]] = [[] for _ in range(DEVICES)]
        for user, channel in town.pairs:
            if user < DEVICES:
                self.channels[user].append(channel)
        self._read = [0] * DEVICES
        """How many reads each user has made."""

    def places(self, user: int, messages: int) -> Iterator[tuple[int, int]]:
        """The next (channel, seq) of a user, one channel after another."""
        channels = self.channels[user]
        start = self._read[user]
        return (
            (channels[read % len(channels)], read // len(channels) + 1)
            for read in range(start, len(channels) * messages)
        )

    def acknowledge(self, answered: Sequence[int]) -> None:
        for user, count in enumerate(answered):
            self._read[user] += count

    def expected(self) -> dict[str, dict[str, int]]:
        """Where every pointer must be: by user, then by channel."""
        return {
            user_id(user): {
                channel_id(channel): (self._read[user] - place + len(channels) - 1) // len(channels)
                for place, channel in enumerate(channels)
            }
            for user, channels in enumerate(self.channels)
        }


def run(setting: Setting) -> Result:
    """Frames and requests, in turns."""
    secret = secrets.token_urlsafe(32)
    server = readstate(setting.directory, jwt_secret=secret)
    server.start(two_cores()[0])
    try:
        return _measure(setting, server, secret)
    finally:
        server.stop()


def _measure(setting: Setting, server: Server, secret: str) -> Result:
    rounds, seconds, messages = (1, 0.5, 5) if setting.quick else (3, 2.0, 120)
    town = Town()
    setting.say("making channels")
    wire = server.wire()
    town.build(wire)
    wake(wire, [user_id(user) for user in range(DEVICES)])
    readings = Readings(town)
    claims = {"exp": int(time.time()) + 3600}
    tokens = [jwt.encode({"sub": user_id(user)} | claims, secret, "HS256") for user in range(DEVICES)]
    loads: dict[str, list[Load]] = {"frames": [], "requests": []}
    cpu = dict.fromkeys(loads, 0.0)
    for turn in range(1, rounds + 1):
        for name, taken in loads.items():
            setting.say(f"round {turn} of {rounds}, sending messages")
            town.talk([wire], messages)
            setting.say(f"round {turn} of {rounds}, {name}")
            places = [readings.places(user, town.head) for user in range(DEVICES)]
            with on_cores(two_cores()[1]):
                if name == "frames":
                    load, used = uvloop.run(_frames(server, tokens, places, seconds))
                else:
                    requests, before = _requests(server, places), use(server.pid).cpu
                    load = burst(server.port, requests, lambda body: CHANGED in body, seconds)
                    used = use(server.pid).cpu - before
            cpu[name] += used
            readings.acknowledge(load.answered)
            taken.append(load)
    setting.say("killing the server, looking for every read")
    server.kill()
    server.start()
    return _result(loads, cpu, check_pointers(server.wire(), readings.expected()))


def _requests(server: Server, places: Sequence[Iterator[tuple[int, int]]]) -> list[list[bytes]]:
    return [
        [
            encode(
                "POST", f"/v1/users/{user_id(user)}/channels/{channel_id(channel)}/read", b'{"up_to_seq":%d}' % seq, key
            )
            for channel, seq in mine
        ]
        for user, mine in enumerate(places)
        for key in (server.key,)
    ]


async def _frames(
    server: Server, tokens: Sequence[str], places: Sequence[Iterator[tuple[int, int]]], seconds: float
) -> tuple[Load, float]:
    """With the processor time of the server, once all are connected."""
    loop, tally = asyncio.get_running_loop(), Tally()
    readers = [Reader(user_id(user), token, tally) for user, token in enumerate(tokens)]
    for reader in readers:
        await loop.create_connection(lambda made=reader: made, HOST, server.port)  # type: ignore[misc]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(reader.ready for reader in readers))
    before, begin = use(server.pid).cpu, time.perf_counter()
    async with asyncio.timeout(seconds + PATIENCE):
        await asyncio.gather(*(one.begin(mine, begin + seconds) for one, mine in zip(readers, places, strict=True)))
    elapsed, used = time.perf_counter() - begin, use(server.pid).cpu - before
    tally.check()
    for reader in readers:
        reader.close()
    latencies = sorted(latency for reader in readers for latency in reader.latencies)
    return Load(len(latencies), elapsed, latencies, [len(reader.latencies) for reader in readers]), used


def _result(loads: dict[str, list[Load]], cpu: dict[str, float], checked: int) -> Result:
    result = Result(ABOUT)
    frames, requests = (median(load.rate for load in taken) for taken in loads.values())
    target = f"{TARGET}× or more (aim {AIM}×)"
    ratio = frames / requests
    what = "durable reads in a second: frames beside requests"
    result.add(what, number(frames), f"{number(requests)} requests", times(ratio), target, ratio >= TARGET)
    ours, theirs = (
        " / ".join(number(median(load.latency(p) for load in taken)) for p in (50, 95, 99)) + " ms"
        for taken in loads.values()
    )
    result.add("P50 / P95 / P99", ours, f"{theirs} requests")
    frame, request = (1e6 * cpu[name] / sum(load.requests for load in taken) for name, taken in loads.items())
    what = "µs of the server's processor time for a read"
    result.add(what, number(frame), f"{number(request)} requests", times(request / frame))
    result.add("pointers lost by SIGKILL", f"0 of {checked:,}", target="0", met=True)
    return result
