"""What devices were told while the hot state could lack reads or messages that only the log has yet.

Counts say `stale` then, and an announcement that was missed can't be looked up for sure. Once the hot state is whole
again, those who were told anything meanwhile are told how it stands.
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
    """What one user's devices can't be sure of."""

    since: int
    """What was heard of before is sure."""
    rooms: set[str] = field(default_factory=set)
    """Channels and threads whose figures were the last known ones."""


class Doubts:
    """Users of this instance who were told what may be old. `dispel` is called when it can be known better."""

    def __init__(self, freshness: Freshness, clock: Clock, dispel: Callable[[Mapping[str, Doubt]], None]) -> None:
        self._freshness = freshness
        self._clock = clock
        self._dispel = dispel
        self._doubts: dict[str, Doubt] = {}
        self._waiting: asyncio.Task[None] | None = None

    def has(self, user: str) -> bool:
        """Whether a user's devices were told what may be old."""
        return user in self._doubts

    def note(self, user: str, events: Iterable[Event], sure: bool = True) -> bool:
        """These events are told to a user; whether that is in doubt. `sure`: there are no others to be told."""
        rooms = {room for event in events if (room := _doubtful(event)) is not None}
        if sure and not rooms:
            return False
        self._doubts.setdefault(user, Doubt(self._clock())).rooms |= rooms
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._wait())
        return True

    def forget(self, user: str) -> None:
        """The user has no device here any more."""
        self._doubts.pop(user, None)

    async def close(self) -> None:
        """Waits for nothing any more."""
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
    """The room whose figures an event tells, if they are the last known ones."""
    match event:
        case ThreadUpdated(reason="stale"):
            return thread_room(event.channel_id, event.thread_id)
        case UnreadUpdated(reason="stale") | ReadPointerUpdated(reason="stale"):
            return event.channel_id
        case _:
            return None
