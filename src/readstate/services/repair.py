"""Finds differences between hot store and durable store, repairs them by merge, and loads what was lost.

In normal operation the durable store trails the hot one, because a read is acknowledged when the log has it. So a state
that only the hot store has is a difference only if the durable store still lacks it after the persister has passed the
log. The hot store trails briefly too: while a message or a join is applied, or while a new sender is in flight to a
badge. That is a difference only if it stands at a second check. A badge that differs is reloaded. All other repairs are
merges, so an unnecessary one does no harm.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct

from readstate.domain.announcements import BadgeChanged, UserRoomChanged
from readstate.domain.events import ReadEvent, read_event
from readstate.domain.hot_updates import Merged
from readstate.domain.model import Mode, Pointer
from readstate.ports import Bus, Clock, Durable, Freshness, Hot
from readstate.telemetry import RECONCILED

from .audit import Progress, badge_drift, each, lacks
from .loading import Loader
from .pending_writes import PendingWrites

PAGE = 200
MAX_SUSPECTS = 5_000
"""Differences collected before waiting for the persister."""


class Reconciled(Struct):
    """What a pass over all users found and repaired."""

    users: int = 0
    hot_users: int = 0
    """Users in the hot store, whose states were compared."""
    states: int = 0
    """Read states that were compared."""
    database_behind: int = 0
    """Read states that only the hot store had; the durable store has them now."""
    hot_store_behind: int = 0
    """Read states that only the durable store had; the hot store has them now."""
    undecided: int = 0
    """Read states that the durable store lacks while the persister is behind: not a fault yet."""
    badges: int = 0
    """Badges that differed from the durable store; they are reloaded."""


class Rebuilt(Struct):
    users: int = 0
    channels: int = 0


class _Suspect(NamedTuple):
    """A user room whose states differed at `looked_at`."""

    user_id: str
    channel_id: str
    hot: Pointer
    durable: Pointer
    looked_at: int


@dataclass(eq=False, repr=False)
class Repair:
    """Every method may run at any time, alongside live traffic, and several times at once."""

    _hot: Hot
    _durable: Durable
    _loader: Loader
    _freshness: Freshness
    _pending_writes: PendingWrites
    _bus: Bus
    _clock: Clock

    async def claim(self, what: str, every_seconds: float) -> bool:
        """Whether it is this process's turn at a job that one process runs every `every_seconds`."""
        return await self._durable.claim_turn(what, self._clock(), int(every_seconds * 1000))

    # ------------------------------------------------------------ reconcile

    async def reconcile(self, progress: Progress | None = None) -> Reconciled:
        """Compare the read states and badges in the hot store with the durable ones, and repair differences."""
        report = Reconciled()
        total = await self._durable.count_users() if progress else 0
        suspects: list[_Suspect] = []
        badges: list[str] = []
        async for users in _pages(self._durable.users_after):
            suspects += await self._compare(users, report)
            badges += [one.user_id for one in await badge_drift(self._hot, self._durable, users)]
            if len(suspects) >= MAX_SUSPECTS:
                await self._settle(suspects, report)
                suspects = []
            report.users += len(users)
            if progress:
                progress(report.users, max(total, report.users))
        await self._settle(suspects, report)
        await self._settle_badges(badges, report)
        return report

    async def _compare(self, users: Sequence[str], report: Reconciled) -> list[_Suspect]:
        changes = await self._hot.users.changes(users)
        loaded = [user for user, change in zip(users, changes, strict=True) if change is not None]
        found = await each(loaded, self._differences)
        report.hot_users += len(loaded)
        report.states += sum(count for count, _ in found)
        return [suspect for _, suspects in found for suspect in suspects]

    async def _differences(self, user: str) -> tuple[int, list[_Suspect]]:
        now = self._clock()
        hot = await self._hot.users.pointers(user) or {}
        user_rooms = await self._durable.load_user(user)
        pairs = [
            _Suspect(user, user_room.channel_id, hot[user_room.channel_id], user_room.pointer, now)
            for user_room in user_rooms
            if user_room.channel_id in hot
        ]
        return len(pairs), [pair for pair in pairs if pair.hot.state != pair.durable.state]

    async def _settle(self, suspects: Sequence[_Suspect], report: Reconciled) -> None:
        """Merge, both ways, what still differs after the persister has passed the log."""
        if not suspects:
            return
        passed = await self._freshness.passed()
        by_user: dict[str, list[_Suspect]] = {}
        for suspect in suspects:
            by_user.setdefault(suspect.user_id, []).append(suspect)

        await each(list(by_user.items()), lambda one: self._settle_user(*one, passed, report))

    async def _settle_user(self, user: str, suspects: Sequence[_Suspect], passed: bool, report: Reconciled) -> None:
        await self._pending_writes.settled(user)
        hot = await self._hot.users.pointers(user)
        durable = {user_room.channel_id: user_room.pointer for user_room in await self._durable.load_user(user)}
        events: list[ReadEvent] = []
        updates: list[Merged] = []
        for one in suspects:
            stored = durable.get(one.channel_id)
            if stored is None:
                continue  # erased meanwhile: no state may come back
            if lacks(stored, one.hot):
                events.append(read_event(user, one.channel_id, one.hot, one.looked_at))
            if hot is not None and lacks(hot.get(one.channel_id, Pointer()), one.durable):
                updates.append(Merged(one.channel_id, user, one.durable))
        if not passed:
            report.undecided += len(events)
            events = []
        await self._merge(user, events, updates)
        report.database_behind += len(events)
        report.hot_store_behind += len(updates)
        RECONCILED.labels("database").inc(len(events))
        RECONCILED.labels("hot_store").inc(len(updates))

    async def _merge(self, user: str, events: Sequence[ReadEvent], updates: Sequence[Merged]) -> None:
        if events:
            await self._durable.merge_unless_erased(events)
        if updates:
            now = self._clock()
            moved = await self._hot.users.apply(updates)
            if moved:  # each store had something that the other lacked
                both = [read_event(user, one.channel_id, one.pointer, now) for one in moved]
                await self._durable.merge_unless_erased(both)
            await self._bus.publish([UserRoomChanged(user, update.channel_id) for update in updates])

    async def _settle_badges(self, users: Sequence[str], report: Reconciled) -> None:
        """Drop badges that still differ, so that they are reloaded. For one that only trails this does no harm."""
        for page in range(0, len(users), PAGE):
            off = await badge_drift(self._hot, self._durable, users[page : page + PAGE])
            for one in off:
                await self._hot.badges.forget(one.user_id)
            report.badges += len(off)
            RECONCILED.labels("badge").inc(len(off))
            await self._bus.publish([BadgeChanged(one.user_id) for one in off])

    # ------------------------------------------------------------ rebuild

    async def rebuild(self, progress: Progress | None = None, *, clear: bool = False) -> Rebuilt:
        """Load every channel, and every user with all ledgers, so that no first use has to wait.

        With `clear`, drop the hot state first. Requests meanwhile load what they need, as always.
        """
        if clear:
            await self._hot.clear()
        report = Rebuilt()
        total = await self._durable.count_channels() + await self._durable.count_users() if progress else 0

        def show() -> None:
            done = report.channels + report.users
            if progress:
                progress(done, max(total, done))

        async for channels in _pages(self._durable.channels_after):
            found = await self._loader.channels(channels)
            big = [one.channel_id for one in found if one is not None and one.mode is Mode.TIMELINE]
            await each(big, self._loader.load_timeline)
            report.channels += len(channels)
            show()
        async for users in _pages(self._durable.users_after):
            await each(users, self._loader.ready)
            report.users += len(users)
            show()
        return report


async def _pages(page_after: Callable[[str, int], Awaitable[list[str]]]) -> AsyncIterator[list[str]]:
    after = ""
    while page := await page_after(after, PAGE):
        yield page
        after = page[-1]
