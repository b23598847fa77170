"""Publishes the announcements of one instance in order, without making callers wait.

Announcements wait in a bounded queue and are sent in packs. A pack whose answer is missing is sent again with the same
numbers, so that subscribers skip what they have. Announcements that are given up leave a gap in the numbers, and
subscribers that notice the gap look up what has happened.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from readstate.domain.announcements import Announcement
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


class Sender(Reconnecting):
    """The numbers, the queue and the connection of one publisher. Publishes until `finish`."""

    def __init__(self, servers: BusServers, publisher: str, reads: str, others: str) -> None:
        super().__init__(servers, reads, NAME)
        self.publisher = publisher
        self._command = "SPUBLISH" if servers.is_cluster else "PUBLISH"
        self._reads, self._others = reads, others
        self._queue: deque[Announcement] = deque()
        self._queued = asyncio.Event()
        self._closing = False
        self._number = 0
        self._handed_over = 0
        """Batches up to this number have reached the server, or subscribers can see that they did not."""
        self._pack = _Pack()
        self.answered_at = 0.0
        """When the server last accepted a pack (monotonic)."""

    def put(self, announcements: Sequence[Announcement]) -> None:
        """Queue announcements. A full queue drops them and skips a number, so that subscribers notice."""
        if len(self._queue) + len(announcements) > MAX_QUEUED:
            self._number += 1
            BUS_LOST.labels("overflow").inc(len(announcements))
        else:
            self._queue.extend(map(without_text, announcements))
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
                self._pack = self._fill()
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

    def _fill(self) -> "_Pack":
        """What is queued, or a heartbeat."""
        some = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_PACK))]
        commands = []
        for reads, announcements in runs(some):
            self._number += 1
            commands.append(self._publish(self._reads if reads else self._others, announcements))
        is_last = self._closing and not self._queue
        if is_last or not some:
            commands.append(self._publish(self._others, bye=is_last))
        return _Pack(commands, len(some), self._number, is_last)

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
