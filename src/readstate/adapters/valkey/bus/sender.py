"""Publishes the announcements of one instance in order, without making callers wait.

Announcements wait in a bounded queue and are sent in packs. A pack whose answer is missing is sent again with the same
numbers, so that subscribers skip what they have. Announcements that are given up leave a gap in the numbers, and
subscribers that notice the gap look up what has happened.

Reads that nobody listens to are not published. The server is asked after they were queued, and so after they were done:
a process that subscribes later looks later, and finds them.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from msgspec import Struct
from redis.exceptions import ResponseError

from readstate.domain.announcements import Announcement, PointerMoved
from readstate.telemetry import BUS_LOST, BUS_PUBLISHED

from .connections import BusConnection, BusServers, Reconnecting
from .wire import encode, runs, without_text

MAX_QUEUED = 10_000
MAX_PACK = 500
MAX_TRIES = 5
"""Attempts before a pack is given up."""
NAME = "readstate-bus-sender"


class _Pack(Struct):
    """Batches that are sent in one round trip."""

    commands: list[tuple[str, str, bytes]] = []
    announcements: int = 0
    up_to: int = 0
    """The last number assigned when the pack was made."""
    is_last: bool = False
    tries: int = 0


class _Reads(NamedTuple):
    """Reads that are made into announcements only if a process listens to them."""

    most: int
    """How many there are at most."""
    make: Callable[[], Sequence[PointerMoved]]


class Sender(Reconnecting):
    """The numbers, the queue and the connection of one publisher. Publishes until `finish`."""

    def __init__(self, servers: BusServers, publisher: str, reads: str, others: str) -> None:
        super().__init__(servers, reads, NAME)
        self.publisher = publisher
        self._command = "SPUBLISH" if servers.is_cluster else "PUBLISH"
        self._count_listeners: list[tuple[str, ...]] = [("PUBSUB", "NUMSUB", reads), ("PUBSUB", "NUMPAT")]
        if servers.is_cluster:
            self._count_listeners = [("PUBSUB", "SHARDNUMSUB", reads)]
        self._reads, self._others = reads, others
        self._queue: deque[Announcement | _Reads] = deque()
        self._size = 0
        """How many announcements are queued."""
        self._queued = asyncio.Event()
        self._closing = False
        self._number = 0
        self._handed_over = 0
        """Batches up to this number have reached the server, or subscribers can see that they did not."""
        self._pack = _Pack()
        self._signed_at = 0.0
        """When a pack was last made that everyone receives, also processes that do not listen to reads (monotonic)."""
        self.answered_at = 0.0
        """When the server last accepted a pack (monotonic)."""

    def put(self, announcements: Sequence[Announcement]) -> None:
        """Queue announcements. A full queue drops them and skips a number, so that subscribers notice."""
        self._put(list(map(without_text, announcements)), len(announcements))

    def put_reads(self, count: int, make: Callable[[], Sequence[PointerMoved]]) -> None:
        self._put([_Reads(count, make)], count)

    def _put(self, entries: Sequence[Announcement | _Reads], count: int) -> None:
        if self._size + count > MAX_QUEUED:
            self._number += 1
            BUS_LOST.labels("overflow").inc(count)
        else:
            self._queue.extend(entries)
            self._size += count
        self._queued.set()

    def finish(self) -> None:
        """Make `run` return once the queue and a closing batch are published."""
        self._closing = True
        self._queued.set()

    async def _work(self, connection: BusConnection) -> None:
        """Send packs until the closing batch. On a new connection, the first pack is sent at once."""
        while True:
            if not self._pack.commands:
                if self.connected:
                    await self._wait()
                size = self._next_size()
                self._pack = self._fill(size, await self._are_reads_heard(connection, size))
                if not self._pack.commands:
                    continue
            self._pack.tries += 1
            await connection.ask(*self._pack.commands)
            self.connected, self._failures, self.answered_at = True, 0, time.monotonic()
            BUS_PUBLISHED.inc(self._pack.announcements)
            self._handed_over = self._pack.up_to
            done, self._pack = self._pack.is_last, _Pack()
            if done:
                return

    async def _wait(self) -> None:
        if not self._queue and not self._closing:
            self._queued.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timings.bus_heartbeat):
                    await self._queued.wait()

    def _next_size(self) -> int:
        """How many entries of the queue the next pack takes."""
        size = count = 0
        for entry in self._queue:
            if count >= MAX_PACK:
                break
            size, count = size + 1, count + _count(entry)
        return size

    async def _are_reads_heard(self, connection: BusConnection, size: int) -> bool:
        """Whether the first `size` entries of the queue include reads, and a process listens to those."""
        if not any(isinstance(one, PointerMoved | _Reads) for one in islice(self._queue, size)):
            return False
        try:
            counts = await connection.ask(*self._count_listeners)
        except ResponseError:  # an ACL may not allow the question
            return True
        return any(count[-1] if isinstance(count, list) else count for count in counts)

    def _fill(self, size: int, reads_are_heard: bool) -> "_Pack":
        """Take `size` entries from the queue; leave out reads without listeners; add a heartbeat if it is due."""
        some: list[Announcement] = []
        for entry in [self._queue.popleft() for _ in range(size)]:
            self._size -= _count(entry)
            if not isinstance(entry, _Reads):
                some.append(entry)
            elif reads_are_heard:
                some += entry.make()
        commands, published, now = [], 0, time.monotonic()
        for reads, announcements in runs(some):
            if reads and not reads_are_heard:
                continue
            published += len(announcements)
            for start in range(0, len(announcements), MAX_PACK):
                self._number += 1
                part = announcements[start : start + MAX_PACK]
                commands.append(self._publish(self._reads if reads else self._others, part))
            self._signed_at = self._signed_at if reads else now
        is_last = self._closing and not self._queue
        if is_last or not self.connected or now - self._signed_at >= self._timings.bus_heartbeat:
            commands.append(self._publish(self._others, bye=is_last))
            self._signed_at = now
        return _Pack(commands, published, self._number, is_last)

    def _publish(
        self, channel: str, announcements: Sequence[Announcement] = (), bye: bool = False
    ) -> tuple[str, str, bytes]:
        return self._command, channel, encode(self.publisher, self._number, self._handed_over, announcements, bye)

    def _broken(self) -> None:
        """Retry an unacknowledged pack up to `MAX_TRIES` times. A heartbeat is not retried."""
        if self._pack.announcements and self._pack.tries < MAX_TRIES:
            return
        BUS_LOST.labels("failed").inc(self._pack.announcements)
        self._pack = _Pack()


def _count(entry: Announcement | _Reads) -> int:
    """How many announcements it stands for, at most."""
    return entry.most if isinstance(entry, _Reads) else 1
