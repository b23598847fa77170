"""Says what one instance announces, in order, without keeping anybody waiting.

What is announced waits in a bounded queue, and goes in packs. A pack whose answer does not come is sent again with
the same numbers, so that those who have heard it skip it. What is given up leaves a gap in the numbers: those who
see it look for themselves what has happened.
"""

import asyncio
import contextlib
import time
import traceback
from collections import deque
from collections.abc import Sequence

import structlog
from msgspec import Struct

from readstate.domain.announcements import Announcement
from readstate.telemetry import BUS_LOST, BUS_PUBLISHED

from .connections import BROKEN, Line, Lines, pause
from .wire import encode, runs, without_text

log = structlog.get_logger()

MAX_QUEUED = 10_000
MAX_PACK = 500
MAX_TRIES = 5
"""A pack that was refused so often never gets through."""
SIGN_OF_LIFE_SECONDS = 1.0
NAME = "readstate-bus-sender"


class _Pack(Struct):
    """What is sent at once."""

    commands: list[tuple[str, str, bytes]] = []
    announcements: int = 0
    up_to: int = 0
    """The last number that was given when it was made."""
    is_last: bool = False
    tries: int = 0


class Sender:
    """The numbers, the queue and the connection of one publisher."""

    def __init__(self, lines: Lines, publisher: str, reads: str, others: str) -> None:
        self._lines = lines
        self._publisher = publisher
        self._command = "SPUBLISH" if lines.clustered else "PUBLISH"
        self._reads, self._others = reads, others
        self._queue: deque[Announcement] = deque()
        self._news = asyncio.Event()
        self._closing = False
        self._number = 0
        self._handed_over = 0
        """All up to this number have reached the server; or those who listen were told that they have not."""
        self._pack = _Pack()
        self._failures = 0
        """In a row."""
        self.connected = False
        self.answered_at = 0.0
        """When the server last took something."""

    def put(self, announcements: Sequence[Announcement]) -> None:
        """To be told soon; or never, if too much waits already."""
        if len(self._queue) + len(announcements) > MAX_QUEUED:
            self._number += 1
            BUS_LOST.labels("overflow").inc(len(announcements))
        else:
            self._queue.extend(map(without_text, announcements))
        self._news.set()

    def finish(self) -> None:
        """`run` returns when what waits is told, and a farewell."""
        self._closing = True
        self._news.set()

    async def run(self) -> None:
        """Tell what is put, and come again when the connection breaks."""
        while True:
            try:
                async with self._lines.open(self._reads, NAME) as line:
                    await self._talk(line)
                    return
            except BROKEN as error:
                if not self._failures:
                    log.warning("the other instances can't be told", action="bus", reason=str(error))
            except Exception:
                log.error("the other instances were not told", action="bus", traceback=traceback.format_exc())
            finally:
                self.connected = False
            self._give_up_in_time()
            self._failures += 1
            await pause(self._failures)

    async def _talk(self, line: Line) -> None:
        """Until the farewell. The first word on a new connection is not waited for."""
        while True:
            if not self._pack.commands:
                if self.connected:
                    await self._wait()
                self._pack = self._fill()
            self._pack.tries += 1
            await line.ask(*self._pack.commands)
            self.connected, self._failures, self.answered_at = True, 0, time.monotonic()
            BUS_PUBLISHED.inc(self._pack.announcements)
            self._handed_over = self._pack.up_to
            done, self._pack = self._pack.is_last, _Pack()
            if done:
                return

    async def _wait(self) -> None:
        """Until there is something to say, or it is time for a sign of life."""
        if not self._queue and not self._closing:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SIGN_OF_LIFE_SECONDS):
                    await self._news.wait()

    def _fill(self) -> "_Pack":
        """The next pack: what waits, or a sign of life."""
        some = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_PACK))]
        commands = []
        for reads, said in runs(some):
            self._number += 1
            commands.append(self._say(self._reads if reads else self._others, said))
        is_last = self._closing and not self._queue
        if is_last or not some:
            commands.append(self._say(self._others, bye=is_last))
        return _Pack(commands, len(some), self._number, is_last)

    def _say(self, channel: str, said: Sequence[Announcement] = (), bye: bool = False) -> tuple[str, str, bytes]:
        return self._command, channel, encode(self._publisher, self._number, self._handed_over, said, bye)

    def _give_up_in_time(self) -> None:
        """What was under way is sent again, but not for ever; a sign of life is not."""
        if not self._pack.announcements:
            self._pack = _Pack()
        elif self._pack.tries >= MAX_TRIES:
            BUS_LOST.labels("failed").inc(self._pack.announcements)
            self._pack = _Pack()
