"""Receipts, as they are told live: somebody has read, and others in the channel may see it.

A device that comes back looks for receipts from the time of its cursor on. So while some are not told yet, cursors
have a time from before them.
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
"""What the hot state shows is announced after so long at most."""

_encode = json.Encoder().encode


class _Gathered:
    """The last move of each pointer, and whoever waits until they are told."""

    def __init__(self) -> None:
        self.moved: dict[tuple[str, str], PointerMoved] = {}
        self.since = 0
        """When the first one came."""
        self.tried = asyncio.Event()


class LiveReceipts:
    """Looked up and told by one task, while the next ones are gathered."""

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
        """Somebody has read."""
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
        """The time before which everybody who has read was told of; that is now, if nothing is waiting."""
        return now if self._telling is None else min(now, self._telling.since - ON_THE_WAY_MS)

    async def tried(self) -> None:
        """Wait until what was added so far is told, or could not be."""
        last = self._gathered if self._gathered.moved else self._telling
        if last is not None:
            await last.tried.wait()

    def _next(self) -> None:
        """What was gathered is to be told now, if there is any."""
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
        finally:  # nobody is here any more, or it can't be done at all
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
