"""Freshness: whether state loaded from the durable store may lack reads that only the log has.

A read is acknowledged when the log has it, and reaches the durable store later. When the hot store has lost its state,
the state loaded instead may be older than what callers have already seen. So each new generation starts *behind*. It is
fresh once the persister has passed the end that the log had at that time, and no instance has reads in its spool.

Until then the persister also merges the reads that it writes into the hot store, so that users who are already loaded
get them too. The first process that finds a generation fresh notes that in the hot store, and the others skip the
check.
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
"""After a loss, every instance has reported within this time whether it has reads in its spool."""
LATE_SECONDS = 15.0
"""A read in flight to the log when the hot store was lost is there, or was refused, after this time."""
PASS_SECONDS = 60.0
"""How long repairs and exports wait for the persister."""
SOON_SECONDS = 2.0
"""How long a request waits for the persister."""


class AlwaysFresh:
    """For a process that has its stores to itself: its log is applied at once."""

    behind = False

    def stale(self) -> Stale:
        return FRESH

    async def caught_up(self) -> None:
        pass

    async def passed(self) -> bool:
        return True

    async def stored_soon(self) -> bool:
        return True


class NeverFresh:
    """For answers from the durable store alone, while the hot store is down."""

    behind = True

    def stale(self) -> Stale:
        return Stale(True, frozenset(), 1)

    async def caught_up(self) -> None:
        raise HotStoreUnavailable

    async def passed(self) -> bool:
        return False

    async def stored_soon(self) -> bool:
        return False


class Notes(Protocol):
    """Notes about generations, kept in the hot store and lost with it."""

    async def generation(self) -> int:
        """The current generation. Calls the hot store, so a loss is noticed."""

    def seen(self) -> int:
        """The generation of the last call, without a call."""

    async def fresh(self) -> int:
        """The newest generation that was found fresh."""

    async def note_fresh(self, generation: int) -> None:
        """Note that this generation is fresh."""


Lagging = Callable[[], frozenset[int]]
"""The partitions of `messages` in which accepted events have waited too long."""
Offsets = Callable[[], Awaitable[Mapping[int, int]]]
Spooled = Callable[[], Awaitable[bool]]
"""Whether any instance has reads in its spool."""


class Trailing:
    """Follows the generations of the hot store and the offsets of the persister.

    `lagging` returns the partitions in which messages wait, out of `partitions`.
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
        return self._notes.seen() != self._fresh

    def stale(self) -> Stale:
        return Stale(self.behind, self._lagging(), self._partitions)

    async def caught_up(self) -> None:
        try:
            async with asyncio.timeout(self._patience), self._news:
                await self._news.wait_for(lambda: not self.behind)
        except TimeoutError:
            raise Unavailable(
                "the hot store was lost, and the database does not have all reads of the log yet; try again"
            ) from None

    async def passed(self) -> bool:
        try:
            async with asyncio.timeout(PASS_SECONDS):
                await asyncio.sleep(SETTLE_SECONDS)  # for reads in flight, and for the notes about spools
                look = _Look(self._spooled, self._ends, self._committed, settled_at=0)
                while True:
                    with contextlib.suppress(ReadstateError):  # a server is down
                        if await look.has_passed():
                            return True
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            return False

    async def stored_soon(self) -> bool:
        return await self._looks.passed(SOON_SECONDS)

    async def must_merge(self) -> bool:
        """Whether users in the hot store may have been loaded without what is in the database now."""
        number = await self._notes.generation()
        return number != self._fresh or asyncio.get_running_loop().time() < self._fresh_at + LATE_SECONDS

    async def run(self) -> None:
        while True:
            try:
                number = await self._notes.generation()
                if number != self._fresh:
                    await self._follow(number)
            except ReadstateError as error:
                log.debug("it is not known whether the database is behind", action="freshness", reason=error.explained)
            await asyncio.sleep(LOOK_SECONDS)

    async def _follow(self, number: int) -> None:
        """Returns when the generation is fresh, or another one has begun."""
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
    """Whether the persister has passed what the log and all spools held at one point in time."""

    def __init__(self, spooled: Spooled, ends: Offsets, committed: Offsets, settled_at: float) -> None:
        self._spooled = spooled
        self._ends = ends
        self._committed = committed
        self._settled_at = settled_at
        self._end: Mapping[int, int] | None = None

    async def has_passed(self) -> bool:
        """Poll this until it returns True."""
        settled = asyncio.get_running_loop().time() >= self._settled_at
        if await self._spooled():
            self._end = None  # reads from a spool are appended after the end that was seen
            return False
        if self._end is None:
            end = await self._ends()
            if not any(end.values()):
                return True
            if not settled:  # a spool may be sent before its instance has noted it
                return False
            self._end = end
        done = await self._committed()
        return all(done.get(part, 0) >= end for part, end in self._end.items())


class _Waiting:
    """A caller that waits until the persister passes an end of the log seen after the call."""

    def __init__(self) -> None:
        self.end: Mapping[int, int] | None = None
        self.done = asyncio.get_running_loop().create_future()


class _SharedLooks:
    """Checks the log for all waiting callers together: five times a second, however many there are."""

    def __init__(self, spooled: Spooled, ends: Offsets, committed: Offsets) -> None:
        self._spooled = spooled
        self._ends = ends
        self._committed = committed
        self._waiting: list[_Waiting] = []
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = 0.0

    async def passed(self, patience: float) -> bool:
        """Whether the persister passes everything acknowledged by now within `patience` seconds."""
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
                with contextlib.suppress(ReadstateError):  # a server is down
                    await self._look_once()
                await asyncio.sleep(0)  # callers that are done leave the list
        finally:
            self._looking = None

    async def _look_once(self) -> None:
        waiting = list(self._waiting)
        if await self._spooled():
            for one in waiting:
                one.end = None  # reads from a spool are appended after the end that was seen
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
