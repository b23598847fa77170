"""Sync cursors of users, and what has changed for a user since one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from readstate.domain.errors import InvalidCursor
from readstate.domain.model import NO_POSITION, ChangeNumber, LogPosition
from readstate.domain.rooms import is_thread
from readstate.ports import Clock, DurableUsers, Freshness, HotChannels, UserRoom

from .cursors import Cursors, SyncCursor
from .loading import Loader
from .pending_writes import PendingWrites

T = TypeVar("T")
Now = tuple[ChangeNumber, tuple[LogPosition, ...]]
"""A user's change number and the positions of the log."""

CLOCKS_MS = 60_000
"""The clocks of two instances differ by less than this."""

MAX_LOOKS = 5


class Changed(NamedTuple):
    channels: list[str]
    removed: list[str]
    """Channels left or deleted."""
    threads: list[str]
    """Room names of threads, also of those no longer followed."""


@dataclass(eq=False, repr=False)
class Changes:
    _channels: HotChannels
    _loader: Loader
    _durable: DurableUsers
    _pending_writes: PendingWrites
    _freshness: Freshness
    _cursors: Cursors
    _clock: Clock
    store_id: int

    async def cursor(self, user: str) -> SyncCursor:
        """Everything up to it is durable, and in every answer made after it."""
        positions = await self._channels.positions()
        await self._pending_writes.settled(user)
        change = (await self._loader.view(user, [])).change
        return SyncCursor(change, positions, self._clock(), self.store_id, sure=not self._freshness.behind([user]))

    async def cursor_before_load(self, user: str) -> SyncCursor | None:
        """As `cursor`, for what the durable store shows after it of a user who is not loaded; None: load first."""
        change = await self._loader.number_before_load(user)
        if change is None:
            return None
        positions = await self._channels.positions()
        await self._pending_writes.settled(user)
        return SyncCursor(change, positions, self._clock(), self.store_id, sure=not self._freshness.behind([user]))

    async def encoded_cursor(self, user: str) -> str:
        return self._cursors.encode(await self.cursor(user), user)

    def encoded(self, user: str, now: Now) -> str:
        """The cursor of this moment. Before it, the user's pending writes must be settled."""
        sure = not self._freshness.behind([user])
        return self._cursors.encode(SyncCursor(*now, self._clock(), self.store_id, sure=sure), user)

    async def now(self, user: str) -> Now:
        """Differs after every change that the user may see."""
        change, positions = await asyncio.gather(self._loader.change(user), self._channels.positions())
        return change, positions

    async def settled(self, user: str) -> None:
        """Wait until everything that the hot state shows of the user now is durable or taken back."""
        await self._pending_writes.settled(user)

    async def positions(self) -> tuple[LogPosition, ...]:
        return await self._channels.positions()

    async def decode(self, user: str, since: str) -> SyncCursor:
        """Raises InvalidCursor if the changes since the cursor are not known."""
        start = self._cursors.decode(since, SyncCursor, user, "since")
        known = start.store == self.store_id and len(start.positions) == len(await self._channels.positions())
        if not known or await self.erased_since(user, start):
            raise InvalidCursor("what changed since then is not known: sync without since", field="since")
        return start

    async def erased_since(self, user: str, start: SyncCursor) -> bool:
        """Whether the user was or may have been erased after a cursor: an erase leaves no trace of what it removed.

        An erase drops the user's hot state. So the database is asked only if the user was loaded after the cursor.
        """
        if start.change >= (await self._loader.view(user, [])).complete_since:
            return False
        erased = await self._durable.erased_until(user)
        return erased > 0 and start.at <= erased + CLOCKS_MS

    async def changed(self, user: str, start: SyncCursor) -> Changed:
        user_rooms = await self._perhaps_changed(user, start)
        channels = await self._loader.channels([user_room.channel_id for user_room in user_rooms])
        found = Changed([], [], [])
        for user_room, channel in zip(user_rooms, channels, strict=True):
            name = user_room.channel_id
            unmuted = start.at < user_room.preferences.muted_until <= self._clock()
            own = not start.sure or user_room.pointer.change > start.change or unmuted
            if channel is None or not user_room.member:
                if own or await self._position(name) > start.position_of(name):
                    (found.threads if is_thread(name) else found.removed).append(name)
            elif own or channel.position > start.position_of(name):
                (found.threads if is_thread(name) else found.channels).append(name)
        return found

    async def _perhaps_changed(self, user: str, start: SyncCursor) -> list[UserRoom]:
        """The user rooms to check: all, if the user was loaded after the cursor, or the cursor is not `sure`."""
        view = await self._loader.view(user, start.change)
        if start.change < view.complete_since or not start.sure:
            return (await self._loader.view(user, "all")).user_rooms
        known = {user_room.channel_id for user_room in view.user_rooms}
        others = [name for name in dict.fromkeys((*view.timelines, *view.preferences)) if name not in known]
        return view.user_rooms + (await self._loader.view(user, others)).user_rooms

    async def _position(self, channel: str) -> LogPosition:
        found = (await self._channels.channels([channel]))[0]
        return NO_POSITION if found is None else found.position


async def stable(numbers: Callable[[], Awaitable[object]], look: Callable[[], Awaitable[T]]) -> T:
    """The result of `look`, repeated while the change numbers move during it, but at most `MAX_LOOKS` times."""
    for _ in range(MAX_LOOKS):
        before = await numbers()
        found = await look()
        if await numbers() == before:
            break
    return found
