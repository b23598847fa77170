"""What the connections of one server share: deadlines and throttled warnings."""

import asyncio
import time
from typing import Any, Protocol

import structlog

log = structlog.get_logger("readstate")


class Watched(Protocol):
    """A connection with a deadline."""

    def waits(self, now: float) -> bool:
        """Act on a deadline that has passed. False: the connection no longer has one."""


class Seldom:
    """A warning that is logged once in an interval at most, with the number of occurrences."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._count = 0
        self._next = 0.0

    def warn(self, event: str, **fields: Any) -> None:
        self._count += 1
        if (now := time.monotonic()) >= self._next:
            log.warning(event, times=self._count, **fields)
            self._count, self._next = 0, now + self._interval


class Deadlines:
    """One periodic sweep over the connections that have a deadline."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._watched: set[Watched] = set()

    def watch(self, connection: Watched) -> None:
        """Check the connection from now on, until it has no deadline."""
        if not self._watched:
            asyncio.get_running_loop().call_later(self._interval, self._sweep)
        self._watched.add(connection)

    def forget(self, connection: Watched) -> None:
        self._watched.discard(connection)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._watched):
            if not connection.waits(now):
                self._watched.discard(connection)
        if self._watched:
            loop.call_later(self._interval, self._sweep)
