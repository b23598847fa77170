"""Receives the batches of other instances and detects lost ones.

An instance also receives its own batches, as a probe: heartbeats that the server accepted must come back. This detects
a connection that still answers but leads to a node that no longer owns the channels.
"""

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from readstate.domain.announcements import Announcement, OnAnnouncements, OnGap
from readstate.domain.errors import ReadstateError
from readstate.telemetry import BUS_GAPS, BUS_SKIPPED

from .connections import BROKEN, Line, Lines, pause
from .numbers import Numbers
from .wire import decode, said, skim

log = structlog.get_logger()

LOOK_SECONDS = 1.0
DEAF_SECONDS = 3.0
NAME = "readstate-bus-listener"


class Listener:
    """One subscription, renewed whenever it breaks."""

    def __init__(
        self,
        lines: Lines,
        channels: Sequence[str],
        myself: str,
        answered_at: Callable[[], float],
        on_announcements: OnAnnouncements,
        missed: OnGap,
        is_idle: Callable[[], bool],
    ) -> None:
        self._lines = lines
        self._channels = channels
        self._reads = channels[0].encode()
        self._myself = myself
        self._answered_at = answered_at
        """When the server last accepted a batch of this instance."""
        self._on_announcements = on_announcements
        self._missed = missed
        self._is_idle = is_idle
        self._numbers = Numbers()
        self._answer_at = self._news_at = self._echo_at = self._looked_at = time.monotonic()
        """When the server last sent anything, any batch, a batch of this instance; when silence was last checked."""
        self._listened = False
        self._failures = 0
        """Consecutive failures. A connection that breaks at once counts as one."""
        self.connected = False

    async def hand_on(self, announcements: Sequence[Announcement]) -> None:
        """Deliver announcements of any instance. Never fails: what cannot be delivered counts as missed."""
        try:
            await self._on_announcements(announcements)
            return
        except ReadstateError as error:  # a store is down: devices catch up when it is back
            log.warning("devices were not told yet", action="live", code=error.code)
        except Exception:
            log.error("devices were not told", action="live", traceback=traceback.format_exc())
        await self._missed(0.0)

    async def run(self) -> None:
        """Listen until cancelled; reconnect when the connection breaks."""
        while True:
            try:
                async with self._lines.open(self._channels[0], NAME) as line:
                    await self._subscribe(line)
                    await self._listen(line)
            except BROKEN as error:
                if not self._failures:
                    log.warning("the other instances can't be heard", action="bus", reason=str(error))
            except Exception:
                log.error("the other instances were not heard", action="bus", traceback=traceback.format_exc())
            finally:
                self.connected = False
            self._failures += 1
            await pause(self._failures)

    async def _subscribe(self, line: Line) -> None:
        await line.subscribe("SSUBSCRIBE" if self._lines.clustered else "SUBSCRIBE", self._channels)
        now = time.monotonic()
        self._numbers.listen(now)
        if self._listened:
            await self._tell_missed("connection", now - self._news_at)
        else:  # nothing was delivered before, but a device may have connected meanwhile
            await self._catch_up(now - self._news_at)
        self._listened = True
        self._answer_at = self._news_at = self._echo_at = self._looked_at = now
        self.connected = True

    async def _listen(self, line: Line) -> None:
        now = time.monotonic()
        while True:
            message = await line.read(LOOK_SECONDS)
            before, now = now, time.monotonic()
            if now - before > 2 * LOOK_SECONDS:
                self._numbers.excuse(now)
            if message is None:
                await self._make_sure(line, now)
            else:
                self._answer_at = now
                await self._take(message, now)
            if now - self._looked_at > LOOK_SECONDS:
                self._looked_at, self._failures = now, 0
                if (since := self._numbers.silent(now)) is not None:
                    await self._tell_missed("silence", now - since)

    async def _make_sure(self, line: Line, now: float) -> None:
        """Nothing arrived: check that the server answers and that this instance receives its own batches."""
        if now - self._answer_at > DEAF_SECONDS:
            raise ConnectionError("the server does not answer")
        if self._answered_at() - self._echo_at > DEAF_SECONDS:
            raise ConnectionError("what this instance says does not come back")
        await line.say(("PING",))

    async def _take(self, message: Any, now: float) -> None:
        kind = message[0]
        if kind in {b"unsubscribe", b"sunsubscribe"}:
            raise ConnectionError("the channel has moved")
        if kind not in {b"message", b"smessage"}:
            return
        self._news_at = now
        _, channel, data = message
        received = skim(data)
        if received is not None and received.batch.publisher == self._myself:
            self._echo_at = now
            return
        if received is None or not self._is_idle() or channel != self._reads:  # reads concern devices only
            received = decode(data)
        if received is None:
            BUS_SKIPPED.labels("malformed").inc()
            return
        BUS_SKIPPED.labels("unknown").inc(received.skipped)
        fresh, since = self._numbers.take(received, now)
        if since is not None:
            await self._tell_missed("number", now - since)
        if fresh and (announcements := said(received.batch)):
            await self.hand_on(announcements)

    async def _tell_missed(self, sign: str, seconds: float) -> None:
        BUS_GAPS.labels(sign).inc()
        log.info("announcements may have been missed", action="bus", sign=sign, seconds=round(seconds, 1))
        await self._catch_up(seconds)

    async def _catch_up(self, seconds: float) -> None:
        try:
            await self._missed(seconds)
        except Exception:
            log.error("devices were not caught up", action="live", traceback=traceback.format_exc())
