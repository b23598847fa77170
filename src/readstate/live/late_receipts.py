"""Receipts that the durable store did not have yet when a device caught up.

A read is announced at once and stored a little later. A device that connects in between misses the announcement and
does not find the receipt. So receipts are looked up again once the durable store has everything that was acknowledged
at that time. A device may get a receipt twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import structlog
from msgspec import Struct

from readstate.api.frames import Event, ReceiptUpdated, SyncRequired
from readstate.domain.errors import ReadstateError
from readstate.ports import Freshness
from readstate.tasks import cancel

from .rendering import LATER

PAUSE_SECONDS = 1.0

log = structlog.get_logger()

LookUp = Callable[[str, int], Awaitable[Sequence[ReceiptUpdated] | None]]
"""The receipts that a user may see, since a time (ms); None if they are too many."""
Tell = Callable[[str, Sequence[Event]], Awaitable[None]]


class _Expected(Struct):
    since: int
    told: set[ReceiptUpdated]


class LateReceipts:
    def __init__(self, freshness: Freshness, look_up: LookUp, tell: Tell) -> None:
        self._freshness = freshness
        self._look_up = look_up
        self._tell = tell
        self._expected: dict[str, _Expected] = {}
        self._waiting: asyncio.Task[None] | None = None

    def expect(self, user: str, since: int, told: Iterable[Event]) -> None:
        """A device of this user caught up from `since` (ms) on, and got these events."""
        receipts = {event for event in told if isinstance(event, ReceiptUpdated)}
        if (known := self._expected.get(user)) is not None:  # one device may lack what another got
            since, receipts = min(known.since, since), known.told & receipts
        self._expected[user] = _Expected(since, receipts)
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._wait())

    def forget(self, user: str) -> None:
        self._expected.pop(user, None)

    async def close(self) -> None:
        if self._waiting is not None:
            await cancel(self._waiting)

    async def _wait(self) -> None:
        try:
            while self._expected:
                expected = dict(self._expected)
                if await self._freshness.passed():
                    await self._find_all(expected)
                if self._expected:
                    await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self._waiting = None

    async def _find_all(self, expected: Mapping[str, _Expected]) -> None:
        """Skips users who have disconnected. If another device connects meanwhile, the next look covers it."""
        for user, one in expected.items():
            if self._expected.get(user) is one and await self._find(user, one) and self._expected.get(user) is one:
                del self._expected[user]

    async def _find(self, user: str, expected: _Expected) -> bool:
        """Send the receipts that were not sent before; False if the lookup failed."""
        try:
            found = await self._look_up(user, expected.since)
            if found is None:
                await self._tell(user, [SyncRequired(reason="too many receipts were missed", resume=LATER)])
            elif late := [one for one in found if one not in expected.told]:
                await self._tell(user, late)
        except ReadstateError as error:
            log.debug("late receipts are not told yet", action="live", reason=error.explained)
            return False
        return True
