"""Freshness: whether state loaded from the durable store may lack reads that only the log has.

A read is acknowledged when the log has it, and reaches the durable store later. When a part of the hot store has lost
its state, the state loaded instead may be older than what callers have already seen. So the users of that part are
*behind*: the generation of their slot is above the highest one that is fresh. A generation is fresh, and all lower ones
with it, once the persister has passed the end that the log had when the generation was known, and no instance has reads
in its spool.

Until then the persister also merges the reads of these users that it writes into the hot store, so that those who are
already loaded get them too. The first process that finds a generation fresh notes that in the durable store, and the
others skip the check.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog

from readstate.domain.errors import HotStoreUnavailable, ReadstateError, Unavailable
from readstate.domain.model import NO_GENERATION, Generation
from readstate.ports import Stale
from readstate.tasks import cancel
from readstate.timings import ServiceTimings

log = structlog.get_logger()

FIRST_GENERATION = Generation(1)
"""It follows no loss of the hot store."""


class _Unchanging:
    is_behind: bool
    always: Stale

    def behind(self, users: Iterable[str]) -> bool:
        return self.is_behind

    def stale(self, user: str) -> Stale:
        return self.always

    async def caught_up(self, users: Collection[str]) -> None:
        if self.is_behind:
            raise HotStoreUnavailable

    async def passed(self) -> bool:
        return not self.is_behind

    async def stored_soon(self) -> bool:
        return not self.is_behind


class AlwaysFresh(_Unchanging):
    """For a process that has its stores to itself: its log is applied at once."""

    is_behind = False
    always = Stale(False, frozenset(), 1)


class NeverFresh(_Unchanging):
    """For answers from the durable store alone, while the hot store is down."""

    is_behind = True
    always = Stale(True, frozenset(), 1)


class Notes(Protocol):
    """The generations of the hot store. A slot that is lost gets a number above all others."""

    async def generation(self, users: Collection[str] | None = None) -> Generation:
        """The highest generation. Calls the hot store, so a loss in the slots of these users is noticed; None: any."""

    def seen(self) -> Generation:
        """The highest generation of the last call, without a call."""

    def of_user(self, user: str) -> Generation:
        """The generation of the user's slot, without a call."""


class FreshNote(Protocol):
    """The durable note of which generation is fresh: see `Durable`."""

    async def fresh(self) -> Generation:
        """The highest generation that was found fresh. It covers all lower ones."""

    async def note_fresh(self, number: Generation) -> None:
        """Note that this generation is fresh. A higher one stays."""


Lagging = Callable[[], frozenset[int]]
"""The partitions of `messages` in which accepted events have waited too long."""
Offsets = Callable[[], Awaitable[Mapping[int, int]]]


class ReadLogProgress(NamedTuple):
    """Where the log of reads ends, and how far the persister has come."""

    spooled: Callable[[], Awaitable[bool]]
    """Whether any instance has reads in its spool."""
    ends: Offsets
    """The next offset of each partition of `read-receipts`."""
    committed: Offsets
    """The next offset that the persister has to process."""


@dataclass(eq=False, repr=False)
class Trailing:
    """Follows the generations of the hot store and the offsets of the persister.

    `lagging` returns the partitions in which messages wait, out of `partitions`.
    """

    _notes: Notes
    _note: FreshNote
    _progress: ReadLogProgress
    _timings: ServiceTimings
    _patience: float
    _lagging: Lagging = frozenset
    _partitions: int = 1

    def __post_init__(self) -> None:
        self._fresh = NO_GENERATION
        self._fresh_before: list[tuple[float, Generation]] = []
        """When a generation became fresh here, and which one was fresh until then."""
        self._became_fresh = asyncio.Condition()
        self._persister = _Persister(self._progress, self._timings.freshness_poll)

    def behind(self, users: Iterable[str]) -> bool:
        if (seen := self._notes.seen()) and seen <= self._fresh:
            return False
        return not seen or any(self._notes.of_user(user) > self._fresh for user in users)

    def stale(self, user: str) -> Stale:
        return Stale(self.behind([user]), self._lagging(), self._partitions)

    async def caught_up(self, users: Collection[str]) -> None:
        try:
            async with asyncio.timeout(self._patience), self._became_fresh:
                await self._became_fresh.wait_for(lambda: not self.behind(users))
        except TimeoutError:
            raise Unavailable(
                "the hot store was lost, and the database does not have all reads of the log yet; try again"
            ) from None

    async def passed(self) -> bool:
        return await self._passed(self._timings.settle, self._timings.persister)

    async def stored_soon(self) -> bool:
        return await self._passed(0, self._timings.persister_in_request)

    async def _passed(self, settle: float, patience: float | None) -> bool:
        """`settle`: seconds for reads in flight, and for the notes about spools."""
        try:
            async with asyncio.timeout(patience):
                await asyncio.sleep(settle)
                await self._persister.passed()
        except TimeoutError:
            return False
        return True

    async def to_merge(self, users: Collection[str]) -> set[str]:
        """Those of these users who may be in the hot store without what is in the database now."""
        number = await self._notes.generation(users)
        now = asyncio.get_running_loop().time()
        self._fresh_before = [one for one in self._fresh_before if now < one[0] + self._timings.late_reads]
        sure = min([self._fresh, *(fresh for _, fresh in self._fresh_before)])
        return {user for user in users if self._notes.of_user(user) > sure} if number > sure else set()

    async def run(self) -> None:
        while True:
            try:
                number = await self._notes.generation()
                if number > self._fresh:
                    await self._follow(number)
            except ReadstateError as error:
                log.debug("the freshness check failed", action="freshness", reason=error.explained)
            await asyncio.sleep(self._timings.freshness_poll)

    async def _follow(self, number: Generation) -> None:
        """Returns when the generation is fresh, or a higher one has begun."""
        if await self._note.fresh() < number:
            passed = asyncio.create_task(self._passed(await self._settle(number), patience=None))
            try:
                while not passed.done():
                    await asyncio.wait([passed], timeout=self._timings.freshness_poll)
                    if await self._notes.generation() != number:
                        return
            finally:
                await cancel(passed)
            await self._note.note_fresh(number)
        async with self._became_fresh:
            self._fresh_before.append((asyncio.get_running_loop().time(), self._fresh))
            self._fresh = number
            self._became_fresh.notify_all()

    async def _settle(self, number: Generation) -> float:
        """Seconds until every instance has reported its spool. Before the first read there is nothing to report."""
        is_new = number == FIRST_GENERATION and not any((await self._progress.ends()).values())
        return 0 if is_new else self._timings.settle


class _Persister:
    """Looks at the log once per `interval` for all waiting callers together, however many there are."""

    def __init__(self, progress: ReadLogProgress, interval: float) -> None:
        self._progress = progress
        self._interval = interval
        self._callers: dict[asyncio.Future[None], Mapping[int, int] | None] = {}
        """Each waits until the persister passes an end of the log that was seen after the call."""
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = 0.0

    async def passed(self) -> None:
        """Return when the persister has passed everything acknowledged by now."""
        caller = asyncio.get_running_loop().create_future()
        self._callers[caller] = None
        if self._looking is None:
            self._looking = asyncio.create_task(self._keep_looking())
        try:
            await caller
        finally:
            del self._callers[caller]

    async def _keep_looking(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._callers:
                await asyncio.sleep(self._looked_at + self._interval - loop.time())
                self._looked_at = loop.time()
                with contextlib.suppress(ReadstateError):  # a server is down
                    await self._look()
                await asyncio.sleep(0)  # callers that are done leave the list
        finally:
            self._looking = None

    async def _look(self) -> None:
        callers = list(self._callers)  # later ones wait for a later end
        if await self._progress.spooled():
            self._callers = dict.fromkeys(self._callers)  # a spool is appended after the end that was seen
            return
        if any(self._callers.get(caller) is None for caller in callers):
            end = await self._progress.ends()
            self._callers |= {one: seen or end for one, seen in self._callers.items() if one in callers}
        done = await self._progress.committed()
        for caller in callers:
            ends = self._callers.get(caller)  # None: it has gone
            passed = ends is not None and all(done.get(part, 0) >= end for part, end in ends.items())
            if passed and not caller.done():
                caller.set_result(None)
