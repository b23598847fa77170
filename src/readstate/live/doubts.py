"""Users whose devices got stale counts.

The hot store may lack reads or messages that only the log has. Counts say `stale` then, and a catch-up may miss changes
that the hot store does not show. Once the hot store is fresh again, these devices get the counts again.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct, field

from readstate.api.frames import Event, ReadPointerUpdated, ThreadUpdated, UnreadUpdated
from readstate.domain.errors import Unavailable
from readstate.domain.rooms import thread_room
from readstate.ports import Clock, Freshness
from readstate.tasks import cancel

PAUSE_SECONDS = 1.0


class Doubt(Struct):
    since: int
    """Time (ms) of the first stale event: what was announced before is certain."""
    rooms: set[str] = field(default_factory=set)
    """Channels and threads whose counts were sent as stale."""


class Doubts:
    """Calls `dispel` with the doubts that are over. Freshness is checked about once a second while there are any."""

    def __init__(self, freshness: Freshness, clock: Clock, dispel: Callable[[Mapping[str, Doubt]], None]) -> None:
        self._freshness = freshness
        self._clock = clock
        self._dispel = dispel
        self._doubts: dict[str, Doubt] = {}
        self._waiting: asyncio.Task[None] | None = None

    def has(self, user: str) -> bool:
        return user in self._doubts

    def note(self, user: str, events: Iterable[Event], sure: bool = True) -> bool:
        """Note what is sent to a user; returns whether any of it is in doubt.

        `sure=False`: the lookup that made the events may have missed others.
        """
        rooms = {room for event in events if (room := _doubtful(event)) is not None}
        if sure and not rooms:
            return False
        self._doubts.setdefault(user, Doubt(self._clock())).rooms |= rooms
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._wait())
        return True

    def forget(self, user: str) -> None:
        self._doubts.pop(user, None)

    async def close(self) -> None:
        if self._waiting is not None:
            await cancel(self._waiting)

    async def _wait(self) -> None:
        try:
            while self._doubts:
                try:
                    await self._freshness.caught_up()
                except Unavailable:
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                stale = self._freshness.stale()
                over = {user: doubt for user, doubt in self._doubts.items() if not stale.any_of(doubt.rooms)}
                if over:
                    self._doubts = {user: doubt for user, doubt in self._doubts.items() if user not in over}
                    self._dispel(over)
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self._waiting = None


def _doubtful(event: Event) -> str | None:
    """The room of an event with stale counts, else None."""
    match event:
        case ThreadUpdated(reason="stale"):
            return thread_room(event.channel_id, event.thread_id)
        case UnreadUpdated(reason="stale") | ReadPointerUpdated(reason="stale"):
            return event.channel_id
        case _:
            return None
