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
from typing import NamedTuple, Protocol

import structlog

from readstate.domain.errors import HotStoreUnavailable, ReadstateError, Unavailable
from readstate.ports import FRESH, Stale
from readstate.timings import ServiceTimings

log = structlog.get_logger()


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


class ReadLogProgress(NamedTuple):
    """Where the log of reads ends, and how far the persister has come."""

    spooled: Callable[[], Awaitable[bool]]
    """Whether any instance has reads in its spool."""
    ends: Offsets
    committed: Offsets


class Trailing:
    """Follows the generations of the hot store and the offsets of the persister.

    `lagging` returns the partitions in which messages wait, out of `partitions`.
    """

    def __init__(
        self,
        notes: Notes,
        progress: ReadLogProgress,
        timings: ServiceTimings,
        patience: float,
        lagging: Lagging = frozenset,
        partitions: int = 1,
    ) -> None:
        self._notes = notes
        self._progress = progress
        self._timings = timings
        self._patience = patience
        self._lagging = lagging
        self._partitions = partitions
        self._fresh = 0
        self._fresh_at = 0.0
        self._news = asyncio.Condition()
        self._waits = _SharedWaits(progress, timings.freshness_poll)

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
        await asyncio.sleep(self._timings.settle)  # for reads in flight, and for the notes about spools
        return await self._waits.passed(self._timings.persister - self._timings.settle)

    async def stored_soon(self) -> bool:
        return await self._waits.passed(self._timings.persister_in_request)

    async def must_merge(self) -> bool:
        """Whether users in the hot store may have been loaded without what is in the database now."""
        number = await self._notes.generation()
        return number != self._fresh or _now() < self._fresh_at + self._timings.late_reads

    async def run(self) -> None:
        while True:
            try:
                number = await self._notes.generation()
                if number != self._fresh:
                    await self._follow(number)
            except ReadstateError as error:
                log.debug("the freshness check failed", action="freshness", reason=error.explained)
            await asyncio.sleep(self._timings.freshness_poll)

    async def _follow(self, number: int) -> None:
        """Returns when the generation is fresh, or another one has begun."""
        if await self._notes.fresh() < number:
            check = _Check(self._progress, settled_at=_now() + self._timings.settle)
            while not await check.has_passed():
                await asyncio.sleep(self._timings.freshness_poll)
                if await self._notes.generation() != number:
                    return
            await self._notes.note_fresh(number)
        async with self._news:
            self._fresh, self._fresh_at = number, _now()
            self._news.notify_all()


def _passed(end: Mapping[int, int], committed: Mapping[int, int]) -> bool:
    return all(committed.get(part, 0) >= offset for part, offset in end.items())


def _now() -> float:
    return asyncio.get_running_loop().time()


class _Check:
    """Whether the persister has passed what the log and all spools held at one point in time."""

    def __init__(self, progress: ReadLogProgress, settled_at: float) -> None:
        self._progress = progress
        self._settled_at = settled_at
        self._end: Mapping[int, int] | None = None

    async def has_passed(self) -> bool:
        """Poll this until it returns True."""
        settled = _now() >= self._settled_at
        if await self._progress.spooled():
            self._end = None  # reads from a spool are appended after the end that was seen
            return False
        if self._end is None:
            end = await self._progress.ends()
            if not any(end.values()):
                return True
            if not settled:  # a spool may be sent before its instance has noted it
                return False
            self._end = end
        return _passed(self._end, await self._progress.committed())


class _Waiting:
    """A caller that waits until the persister passes an end of the log seen after the call."""

    def __init__(self) -> None:
        self.end: Mapping[int, int] | None = None
        self.done = asyncio.get_running_loop().create_future()


class _SharedWaits:
    """Checks the log for all waiting callers together: every `poll` seconds, however many there are."""

    def __init__(self, progress: ReadLogProgress, poll: float) -> None:
        self._progress = progress
        self._poll = poll
        self._waiting: list[_Waiting] = []
        self._checking: asyncio.Task[None] | None = None
        self._checked_at = 0.0

    async def passed(self, patience: float) -> bool:
        """Whether the persister passes everything acknowledged by now within `patience` seconds."""
        one = _Waiting()
        self._waiting.append(one)
        if self._checking is None:
            self._checking = asyncio.create_task(self._check_all())
        try:
            async with asyncio.timeout(patience):
                await one.done
        except TimeoutError:
            return False
        finally:
            self._waiting.remove(one)
        return True

    async def _check_all(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(self._checked_at + self._poll - _now())
                self._checked_at = _now()
                with contextlib.suppress(ReadstateError):  # a server is down
                    await self._check()
                await asyncio.sleep(0)  # callers that are done leave the list
        finally:
            self._checking = None

    async def _check(self) -> None:
        waiting = list(self._waiting)
        if await self._progress.spooled():
            for one in waiting:
                one.end = None  # reads from a spool are appended after the end that was seen
            return
        new = [one for one in waiting if one.end is None]
        if new:
            end = await self._progress.ends()
            for one in new:
                one.end = end
        done = await self._progress.committed()
        for one in waiting:
            if _passed(one.end or {}, done) and not one.done.done():
                one.done.set_result(None)
