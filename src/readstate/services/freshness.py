"""Whether what is loaded from the durable store can lack reads that only the log has yet.

A read is acknowledged when the log has it, and comes to the durable store later. So when the hot store has lost what it
held, what is loaded instead may be older than what callers were told. From then on (a new generation) everything is
*behind*, until the persister has passed the end that the log had then, and no instance has reads in its spool.

What the persister writes meanwhile it merges into the hot store as well: whoever was loaded before it gets it too.
Whoever finds a generation fresh notes that in the hot store, and nobody looks again.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import structlog

from readstate.domain.errors import HotStoreUnavailable, ReadstateError, Unavailable
from readstate.ports import FRESH, Stale

log = structlog.get_logger()

LOOK_SECONDS = 0.2
SETTLE_SECONDS = 3.0
"""So long after a loss every instance has said whether it has reads in its spool."""
LATE_SECONDS = 15.0
"""A read that was on its way to the log when the hot store was lost is there, or was refused, after so long."""
PASS_SECONDS = 60.0
"""Whoever looks for differences waits so long for the persister."""
SOON_SECONDS = 2.0
"""A caller who waits for an answer waits so long for the persister."""


class AlwaysFresh:
    """The log of a process that has its stores to itself is applied at once."""

    behind = False

    def stale(self) -> Stale:
        """Nothing is."""
        return FRESH

    async def caught_up(self) -> None:
        """It is."""

    async def passed(self) -> bool:
        """It is."""
        return True

    async def stored_soon(self) -> bool:
        """It is."""
        return True


class NeverFresh:
    """What is made from the durable store alone, while the hot store is away."""

    behind = True

    def stale(self) -> Stale:
        """Everything is."""
        return Stale(True, frozenset(), 1)

    async def caught_up(self) -> None:
        """It never is."""
        raise HotStoreUnavailable

    async def passed(self) -> bool:
        """Nobody knows."""
        return False

    async def stored_soon(self) -> bool:
        """Nobody knows."""
        return False


class Notes(Protocol):
    """What is noted in the hot store itself, and lost with it."""

    async def generation(self) -> int:
        """The number of the hot store's generation, after a look at it."""

    def seen(self) -> int:
        """The number as it was seen last, without a look."""

    async def fresh(self) -> int:
        """The newest generation that was found fresh."""

    async def note_fresh(self, generation: int) -> None:
        """This generation is fresh."""


Lagging = Callable[[], frozenset[int]]
"""Partitions of `messages` where something accepted has waited for too long."""
Offsets = Callable[[], Awaitable[Mapping[int, int]]]
Spooled = Callable[[], Awaitable[bool]]
"""Whether reads wait in a spool anywhere."""


class Trailing:
    """Follows the generations of the hot store and the offsets of the persister.

    `lagging` says where messages wait, of this many `partitions`.
    """

    def __init__(
        self,
        notes: Notes,
        spooled: Spooled,
        ends: Offsets,
        committed: Offsets,
        patience: float,
        lagging: Lagging = frozenset,
        partitions: int = 1,
    ) -> None:
        self._notes = notes
        self._spooled = spooled
        self._ends = ends
        self._committed = committed
        self._patience = patience
        self._lagging = lagging
        self._partitions = partitions
        self._fresh = 0
        self._fresh_at = 0.0
        self._news = asyncio.Condition()
        self._looks = _SharedLooks(spooled, ends, committed)

    @property
    def behind(self) -> bool:
        """Whether counts are the last known ones."""
        return self._notes.seen() != self._fresh

    def stale(self) -> Stale:
        """Which counts are the last known ones."""
        return Stale(self.behind, self._lagging(), self._partitions)

    async def caught_up(self) -> None:
        """Wait for the persister, but not for ever."""
        try:
            async with asyncio.timeout(self._patience), self._news:
                await self._news.wait_for(lambda: not self.behind)
        except TimeoutError:
            raise Unavailable(
                "the hot store was lost, and the database does not have all reads of the log yet; try again"
            ) from None

    async def passed(self) -> bool:
        """Wait until the persister has passed what is acknowledged now; False if that takes too long."""
        try:
            async with asyncio.timeout(PASS_SECONDS):
                await asyncio.sleep(SETTLE_SECONDS)  # for what is on its way, and for the notes about spools
                look = _Look(self._spooled, self._ends, self._committed, settled_at=0)
                while True:
                    with contextlib.suppress(ReadstateError):  # a server is away
                        if await look.has_passed():
                            return True
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            return False

    async def stored_soon(self) -> bool:
        """Wait until the persister has passed the end that the log has now; False after 2 s."""
        return await self._looks.passed(SOON_SECONDS)

    async def must_merge(self) -> bool:
        """Whether what is in the database now may be missing in what was loaded before."""
        number = await self._notes.generation()
        return number != self._fresh or asyncio.get_running_loop().time() < self._fresh_at + LATE_SECONDS

    async def run(self) -> None:
        """Follow, until cancelled."""
        while True:
            try:
                number = await self._notes.generation()
                if number != self._fresh:
                    await self._follow(number)
            except ReadstateError as error:
                log.debug("it is not known whether the database is behind", action="freshness", reason=error.explained)
            await asyncio.sleep(LOOK_SECONDS)

    async def _follow(self, number: int) -> None:
        """Returns when a generation is fresh, or another one has begun."""
        if await self._notes.fresh() < number:
            settled_at = asyncio.get_running_loop().time() + SETTLE_SECONDS
            look = _Look(self._spooled, self._ends, self._committed, settled_at)
            while not await look.has_passed():
                await asyncio.sleep(LOOK_SECONDS)
                if await self._notes.generation() != number:
                    return
            await self._notes.note_fresh(number)
        async with self._news:
            self._fresh, self._fresh_at = number, asyncio.get_running_loop().time()
            self._news.notify_all()


class _Look:
    """Whether the persister has passed what the log and all spools had at some moment."""

    def __init__(self, spooled: Spooled, ends: Offsets, committed: Offsets, settled_at: float) -> None:
        self._spooled = spooled
        self._ends = ends
        self._committed = committed
        self._settled_at = settled_at
        self._end: Mapping[int, int] | None = None

    async def has_passed(self) -> bool:
        """To be asked again and again."""
        settled = asyncio.get_running_loop().time() >= self._settled_at
        if await self._spooled():
            self._end = None  # what is sent from a spool comes after the end that was seen
            return False
        if self._end is None:
            end = await self._ends()
            if not any(end.values()):
                return True
            if not settled:  # a spool may be sent before anybody has noted it
                return False
            self._end = end
        done = await self._committed()
        return all(done.get(part, 0) >= end for part, end in self._end.items())


class _Waiting:
    """A caller who waits until the persister has passed an end of the log that was seen after the call."""

    def __init__(self) -> None:
        self.end: Mapping[int, int] | None = None
        self.done = asyncio.get_running_loop().create_future()


class _SharedLooks:
    """Looks at the log for all who wait at the same time: five times a second, however many they are."""

    def __init__(self, spooled: Spooled, ends: Offsets, committed: Offsets) -> None:
        self._spooled = spooled
        self._ends = ends
        self._committed = committed
        self._waiting: list[_Waiting] = []
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = 0.0

    async def passed(self, patience: float) -> bool:
        """Whether the persister passes what is acknowledged now, within this many seconds."""
        one = _Waiting()
        self._waiting.append(one)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(patience):
                await one.done
        except TimeoutError:
            return False
        finally:
            self._waiting.remove(one)
        return True

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                await asyncio.sleep(self._looked_at + LOOK_SECONDS - loop.time())
                self._looked_at = loop.time()
                with contextlib.suppress(ReadstateError):  # a server is away
                    await self._look_once()
                await asyncio.sleep(0)  # those who are done leave
        finally:
            self._looking = None

    async def _look_once(self) -> None:
        waiting = list(self._waiting)
        if await self._spooled():
            for one in waiting:
                one.end = None  # what is sent from a spool comes after the end that was seen
            return
        new = [one for one in waiting if one.end is None]
        if new:
            end = await self._ends()
            for one in new:
                one.end = end
        done = await self._committed()
        for one in waiting:
            if all(done.get(part, 0) >= end for part, end in (one.end or {}).items()) and not one.done.done():
                one.done.set_result(None)
