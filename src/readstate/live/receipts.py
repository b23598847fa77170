"""Sends receipts live: a user has read, and other members of the channel may see it.

One task looks up which receipts are visible and sends them, while the next ones are gathered; of several moves of one
pointer only the last is sent. A device that reconnects looks for receipts from the time in its cursor on. So while
receipts wait to be sent, cursors carry a time from before them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog
from msgspec import json

from readstate.domain.announcements import PointerMoved
from readstate.domain.errors import ReadstateError
from readstate.ports import Clock
from readstate.services.receipts import ReadReceipts

from .catch_up import receipt_updated
from .sessions import ConnectedUsers

log = structlog.get_logger()

RETRY_SECONDS = 1.0
ON_THE_WAY_MS = 10_000
"""Upper bound for the time from a change in the hot store to the arrival of its announcement."""

_encode = json.Encoder().encode


class _Gathered:
    """The last move of each pointer."""

    def __init__(self) -> None:
        self.moved: dict[tuple[str, str], PointerMoved] = {}
        self.since = 0
        """When the first move arrived (ms)."""
        self.tried = asyncio.Event()


class LiveReceipts:
    def __init__(
        self,
        connected: ConnectedUsers,
        receipts: ReadReceipts,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        send: Callable[[], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._connected = connected
        self._receipts = receipts
        self._clock = clock
        self._spawn = spawn
        self._send = send
        self._gathered = _Gathered()
        self._telling: _Gathered | None = None

    def add(self, moved: PointerMoved) -> None:
        if (moved.before.epoch, moved.before.seq) == (moved.pointer.epoch, moved.pointer.seq):
            return
        if all(user.id == moved.user_id for user in self._connected.members(moved.channel_id)):
            return
        if not self._gathered.moved:
            self._gathered.since = self._clock()
        self._gathered.moved[moved.user_id, moved.channel_id] = moved
        if self._telling is None:
            self._next()
            self._spawn(self._tell())

    def told_until(self, now: int) -> int:
        """The time (ms) before which all receipts were sent; `now` if none waits."""
        return now if self._telling is None else min(now, self._telling.since - ON_THE_WAY_MS)

    async def tried(self) -> None:
        """Wait until the receipts added so far are sent, or one attempt has failed."""
        last = self._gathered if self._gathered.moved else self._telling
        if last is not None:
            await last.tried.wait()

    def _next(self) -> None:
        self._telling = None
        if self._gathered.moved:
            self._telling, self._gathered = self._gathered, _Gathered()

    async def _tell(self) -> None:
        try:
            while (some := self._telling) is not None and self._connected:
                if await self._tell_some(some):
                    self._next()
                    await self._send()
                some.tried.set()
        finally:  # no user is connected any longer, or an unexpected error ends the task
            for some in (self._telling, self._gathered):
                if some is not None:
                    some.tried.set()
            self._telling, self._gathered = None, _Gathered()

    async def _tell_some(self, some: _Gathered) -> bool:
        try:
            seen = await self._receipts.visible(list(some.moved.values()))
        except ReadstateError as error:
            log.warning("receipts are not told yet", action="live", code=error.code)
            some.tried.set()
            await asyncio.sleep(RETRY_SECONDS)
            return False
        for one in seen:
            event = _encode(receipt_updated(one))
            for user in self._connected.members(one.channel_id):
                if user.id != one.user_id:
                    self._connected.tell(user, event)
        return True
