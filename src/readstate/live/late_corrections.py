"""What devices got before the stores had everything that is in the log, and get corrected later.

Counts: the hot store may lack reads or messages that only the log has. Counts say `stale` then, and a catch-up may miss
changes that the hot store does not show. Once the hot store is fresh, these users get the counts again.

Receipts: a read is announced at once and stored a little later. A device that connects in between misses the
announcement and does not find the receipt. So receipts are looked up again once the durable store has everything that
was acknowledged at that time. A device may get a receipt twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog
from msgspec import Struct, field

from readstate.api.frames import Event, ReadPointerUpdated, ReceiptUpdated, SyncRequired, ThreadUpdated, UnreadUpdated
from readstate.domain.errors import ReadstateError, Unavailable
from readstate.domain.rooms import thread_room
from readstate.ports import Freshness
from readstate.ports.consistency import Consistency
from readstate.tasks import cancel
from readstate.timings import LiveTimings

from .catch_up import CatchUp
from .cursors import LiveCursors
from .rendering import LATER

log = structlog.get_logger()

T = TypeVar("T")


class StaleCounts(Struct):
    announced_until: int
    """Announcements from before this time (ms) had arrived when the first stale event was sent."""
    rooms: set[str] = field(default_factory=set)
    """Channels and threads whose counts were sent as stale."""


class _Receipts(Struct):
    since: int
    sent: set[ReceiptUpdated]


Recount = Callable[[str, StaleCounts], None]
Send = Callable[[str, Sequence[Event]], Awaitable[None]]


@dataclass(eq=False, repr=False)
class LateCorrections:
    _freshness: Freshness
    _catch_up: CatchUp
    _cursors: LiveCursors
    _consistency: Consistency
    _timings: LiveTimings

    def __post_init__(self) -> None:
        self._counts = _Watch[StaleCounts](self._correct_counts, self._timings.correction_check)
        self._receipts = _Watch[_Receipts](self._correct_receipts, self._timings.correction_check)

    def subscribe(self, recount: Recount, send: Send) -> None:
        """`recount` gets users whose stale counts are exact again, `send` the receipts that a user lacks."""
        self._recount = recount
        self._send = send

    def has_stale_counts(self, user: str) -> bool:
        return user in self._counts.entries

    def note_counts(self, user: str, events: Iterable[Event], sure: bool = True) -> bool:
        """Note what is sent to a user; returns whether any of it is stale.

        `sure=False`: the lookup that made the events may have missed others.
        """
        rooms = {room for event in events if (room := _stale_room(event)) is not None}
        if sure and not rooms:
            return False
        self.note_stale(user, rooms)
        return True

    def note_stale(self, user: str, rooms: Set[str]) -> None:
        """A device of the user gets stale counts of these rooms."""
        self._counts.entries.setdefault(user, StaleCounts(self._cursors.announced_until())).rooms |= rooms
        self._counts.start()

    def expect_receipts(self, user: str, since: int, events: Iterable[Event]) -> None:
        """A device of this user caught up from `since` (ms) on, and got these events."""
        receipts = {event for event in events if isinstance(event, ReceiptUpdated)}
        self._consistency.look_up_late_receipts(lambda: self._look_up_again(user, since, receipts))

    def _look_up_again(self, user: str, since: int, receipts: set[ReceiptUpdated]) -> None:
        if (known := self._receipts.entries.get(user)) is not None:  # one device may lack what another got
            since, receipts = min(known.since, since), known.sent & receipts
        self._receipts.entries[user] = _Receipts(since, receipts)
        self._receipts.start()

    def forget(self, user: str) -> None:
        self._counts.entries.pop(user, None)
        self._receipts.entries.pop(user, None)

    async def close(self) -> None:
        await self._counts.close()
        await self._receipts.close()

    async def _correct_counts(self) -> None:
        try:
            await self._freshness.caught_up(list(self._counts.entries))
        except Unavailable:
            return
        for user, counts in list(self._counts.entries.items()):
            if not self._freshness.stale(user).any_of(counts.rooms):
                del self._counts.entries[user]
                self._recount(user, counts)

    async def _correct_receipts(self) -> None:
        """Skips users who have disconnected. If another device connects meanwhile, the next look covers it."""
        entries = self._receipts.entries
        expected = dict(entries)
        if not await self._freshness.passed():
            return
        for user, one in expected.items():
            if entries.get(user) is one and await self._send_receipts(user, one) and entries.get(user) is one:
                del entries[user]

    async def _send_receipts(self, user: str, expected: _Receipts) -> bool:
        """Send the receipts that were not sent before; False if the lookup failed."""
        try:
            found = await self._catch_up.receipts(user, expected.since)
            if found is None:
                await self._send(user, [SyncRequired(reason="too many receipts were missed", resume=LATER)])
            elif late := [one for one in found if one not in expected.sent]:
                await self._send(user, late)
        except ReadstateError as error:
            log.debug("late receipts could not be looked up", action="live", reason=error.explained)
            return False
        return True


class _Watch(Generic[T]):
    """Entries by user, and one task that checks them again and again while there are any."""

    def __init__(self, check: Callable[[], Awaitable[None]], pause: float) -> None:
        self._check = check
        self._pause = pause
        self._task: asyncio.Task[None] | None = None
        self.entries: dict[str, T] = {}

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            await cancel(self._task)

    async def _run(self) -> None:
        try:
            while self.entries:
                await self._check()
                await asyncio.sleep(self._pause)
        finally:
            self._task = None


def _stale_room(event: Event) -> str | None:
    """The room of an event with stale counts, else None."""
    match event:
        case ThreadUpdated(reason="stale"):
            return thread_room(event.channel_id, event.thread_id)
        case UnreadUpdated(reason="stale") | ReadPointerUpdated(reason="stale"):
            return event.channel_id
        case _:
            return None
