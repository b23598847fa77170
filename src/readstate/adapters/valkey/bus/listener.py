"""Receives the batches of other instances and detects lost ones.

An instance also receives its own batches, as a probe: heartbeats that the server accepted must come back. This detects
a connection that still answers but leads to a node that no longer owns the channels.

A process listens to reads only while it holds devices. The first device waits until the server has confirmed that, and
looks for what it missed afterwards. Meanwhile gaps in the numbers mean nothing: the numbers of reads are lacking.
"""

import asyncio
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from readstate.domain.announcements import Announcement, OnAnnouncements, OnGap
from readstate.domain.errors import ReadstateError
from readstate.tasks import retrieve_exception
from readstate.telemetry import BUS_GAPS, BUS_SKIPPED

from .connections import BusConnection, BusServers, Reconnecting
from .numbers import Numbers
from .sender import Sender
from .wire import decode, skim

log = structlog.get_logger()

NAME = "readstate-bus-listener"


class Listener(Reconnecting):
    """One subscription, renewed whenever it breaks."""

    def __init__(
        self,
        servers: BusServers,
        channels: Sequence[str],
        sender: Sender,
        on_announcements: OnAnnouncements,
        missed: OnGap,
        is_idle: Callable[[], bool],
    ) -> None:
        super().__init__(servers, channels[0], NAME)
        self._channels = channels
        self._reads = channels[0].encode()
        self._sender = sender
        """Of this instance."""
        self._on_announcements = on_announcements
        self._missed = missed
        self.is_idle = is_idle
        self._numbers = Numbers(self._timings.bus_silent)
        self._answer_at = self._batch_at = self._echo_at = self._checked_at = time.monotonic()
        """When the server last sent anything, any batch, a batch of this instance; when silence was last checked."""
        self._listened = False
        self._connection: BusConnection | None = None
        self._asked = False
        """Whether reads are subscribed, or will be when the server confirms it."""
        self._hearing = asyncio.Event()
        """Set while reads are subscribed."""
        self._late = False
        """A device did not wait for the confirmation: it must look again after it."""
        self._idle_at = self._busy_at = 0.0
        """When this process last held no device, and when it last held one."""
        self._leaving = 0
        """Subscriptions that this process has ended, and that the server has not confirmed yet."""

    async def attend(self) -> None:
        """Return when reads are subscribed. If that takes too long, devices look again later."""
        if self._hearing.is_set() or not self.connected:  # a new connection is a gap, after which devices look
            return
        self._ask_for_reads()
        try:
            async with asyncio.timeout(self._timings.bus_answer):
                await self._hearing.wait()
        except TimeoutError:
            self._late = True

    async def deliver(self, announcements: Sequence[Announcement]) -> None:
        """Deliver announcements of any instance. Never fails: what cannot be delivered counts as missed."""
        try:
            await self._on_announcements(announcements)
            return
        except ReadstateError as error:  # a store is down: devices catch up when it is back
            log.warning("announcements are not delivered to devices yet", action="live", code=error.code)
        except Exception:
            log.error(
                "announcements could not be delivered to devices", action="live", traceback=traceback.format_exc()
            )
        await self._missed(0.0)

    async def _work(self, connection: BusConnection) -> None:
        await self._subscribe(connection)
        now = time.monotonic()
        while True:
            message = await connection.read(self._timings.bus_check)
            before, now = now, time.monotonic()
            if now - before > 2 * self._timings.bus_check:
                self._numbers.excuse(now)
            if message is None:
                await self._check(connection, now)
            else:
                self._answer_at = now
                await self._take(message, now)
            await self._follow_devices(connection, now)
            if now - self._checked_at > self._timings.bus_check:
                self._checked_at, self._failures = now, 0
                if (since := self._numbers.silent(now)) is not None:
                    await self._report_gap("silence", now - since)

    async def _subscribe(self, connection: BusConnection) -> None:
        self._connection, self._asked, self._late, self._leaving = connection, not self.is_idle(), False, 0
        self._idle_at = self._busy_at = time.monotonic()
        self._hearing.clear()
        await connection.subscribe(self._command("SUBSCRIBE"), self._channels if self._asked else self._channels[1:])
        now = time.monotonic()
        self._numbers.listen(now)
        if self._listened:
            await self._report_gap("connection", now - self._batch_at)
        else:  # nothing was delivered before, but a device may have connected meanwhile
            await self._catch_up(now - self._batch_at)
        self._listened = True
        self._answer_at = self._batch_at = self._echo_at = self._checked_at = now
        self.connected = True
        if self._asked:
            self._hearing.set()

    def _command(self, name: str) -> str:
        return f"S{name}" if self._servers.is_cluster else name

    def _ask_for_reads(self) -> None:
        """In a task of its own: a device that leaves meanwhile must not break the connection."""
        if self._asked or self._connection is None:
            return
        self._asked = True
        self._asking = asyncio.create_task(self._connection.send((self._command("SUBSCRIBE"), self._channels[0])))
        self._asking.add_done_callback(retrieve_exception)  # a connection that breaks is noticed by its reader

    async def _follow_devices(self, connection: BusConnection, now: float) -> None:
        """Stop to listen to reads when this process has held no device for a while."""
        if not self.is_idle():
            self._busy_at = now
            if not self._asked:  # a device came while the connection was made
                self._late = True
                self._ask_for_reads()
            return
        self._idle_at = now
        if self._hearing.is_set() and now - self._busy_at > self._timings.bus_silent:
            self._asked = False
            self._hearing.clear()
            self._leaving += 1
            await connection.send((self._command("UNSUBSCRIBE"), self._channels[0]))

    async def _check(self, connection: BusConnection, now: float) -> None:
        """Nothing arrived: check that the server answers and that this instance receives its own batches."""
        if now - self._answer_at > self._timings.bus_deaf:
            raise ConnectionError("the server does not answer")
        if self._sender.answered_at - self._echo_at > self._timings.bus_deaf:
            raise ConnectionError("this instance does not receive its own batches")
        await connection.send(("PING",))

    async def _take(self, message: Any, now: float) -> None:
        kind = message[0]
        if kind in {b"unsubscribe", b"sunsubscribe"}:
            if message[1] != self._reads or not self._leaving:
                raise ConnectionError("the channel has moved")
            self._leaving -= 1
        if kind in {b"subscribe", b"ssubscribe"}:
            await self._heard_reads(now)
        if kind not in {b"message", b"smessage"}:
            return
        self._batch_at = now
        _, channel, data = message
        received = skim(data)
        if received is not None and received.head.publisher == self._sender.publisher:
            self._echo_at = now
            return
        if received is None or not self.is_idle() or channel != self._reads:  # reads concern devices only
            received = decode(data)
        if received is None:
            BUS_SKIPPED.labels("malformed").inc()
            return
        BUS_SKIPPED.labels("unknown").inc(received.skipped)
        fresh, since = self._numbers.take(received, now)
        if since is not None and self._hearing.is_set():
            await self._report_gap("number", now - since)
        if fresh and received.announcements:
            await self.deliver(received.announcements)

    async def _heard_reads(self, now: float) -> None:
        """The server has confirmed the subscription to reads."""
        self._numbers.listen(now)
        self._hearing.set()
        if self._late:
            self._late = False
            await self._catch_up(now - self._idle_at)

    async def _report_gap(self, sign: str, seconds: float) -> None:
        BUS_GAPS.labels(sign).inc()
        log.info("announcements may have been missed", action="bus", sign=sign, seconds=round(seconds, 1))
        await self._catch_up(seconds)

    async def _catch_up(self, seconds: float) -> None:
        try:
            await self._missed(seconds)
        except Exception:
            log.error("devices could not catch up", action="live", traceback=traceback.format_exc())
