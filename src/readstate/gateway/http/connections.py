"""What the connections of one server share: limits, deadlines, and how often the log speaks of them."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from readstate.settings import Settings

log = structlog.get_logger("readstate")

SWEEP_SECONDS: Final = 0.5
"""Deadlines are looked at this often: one timer for all connections, and none while nothing waits."""
LOG_SECONDS: Final = 60.0


class Watched(Protocol):
    """A connection that something is expected of."""

    def waits(self, now: float) -> bool:
        """Act on a deadline that has passed. False when nothing is expected any more."""


class Seldom:
    """A warning that is logged at most once a minute, with how often it was due."""

    def __init__(self) -> None:
        self._count = 0
        self._next = 0.0

    def warn(self, event: str, **fields: Any) -> None:
        """Count it, and log it unless that was done less than a minute ago."""
        self._count += 1
        if (now := time.monotonic()) >= self._next:
            log.warning(event, times=self._count, **fields)
            self._count, self._next = 0, now + LOG_SECONDS


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that bound a connection."""

    max_connections: int
    max_header_bytes: int
    header_timeout: int
    body_timeout: int

    @classmethod
    def of(cls, settings: Settings) -> "Limits":
        """The limits that the settings name."""
        return cls(settings.max_connections, settings.max_header_bytes, settings.header_timeout, settings.body_timeout)


class Deadlines:
    """One periodic sweep over the connections that something is expected of."""

    def __init__(self) -> None:
        self._watched: set[Watched] = set()

    def watch(self, connection: Watched) -> None:
        """Ask the connection from now on, until it waits for nothing."""
        if not self._watched:
            asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        self._watched.add(connection)

    def forget(self, connection: Watched) -> None:
        """The connection is gone."""
        self._watched.discard(connection)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._watched):
            if not connection.waits(now):
                self._watched.discard(connection)
        if self._watched:
            loop.call_later(SWEEP_SECONDS, self._sweep)
