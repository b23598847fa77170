"""How long accepted events of the topic `messages` have waited for the message writer, in each partition.

A look compares the end of each partition with the offset that the writer's group has committed. Ages are taken by this
process's monotonic clock: a mark says that everything from an offset on was appended after a moment. So the age of the
oldest event that waits is at most the age of the newest mark at or below it. Only where there was no look for a while
(at a start, or after Kafka was away) the timestamps of the records fill the gap, and the clocks of producers matter.

While Kafka does not answer, nothing is accepted. What is known to be accepted (seen by a look, or sent by this process)
is then compared with the positions in the hot store.

Asking for the state costs no call to a server.
"""

import asyncio
import contextlib
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple

import structlog

from readstate.domain.errors import MessagesBehind, ReadstateError
from readstate.telemetry import APPLY_LAG

LOOK_SECONDS = 1.0
LOOKS = 5
"""In the times that STALE_AFTER and MAX_LAG say, at least."""
GAP_LOOKS = 3
"""Marks that are older than this many pauses between looks say too little."""
FIRST_SECONDS = 2.0
MAX_MARKS = 600
NOTHING: frozenset[int] = frozenset()

Offsets = Mapping[int, int]
"""An offset of each partition."""

log = structlog.get_logger()


class Sources(NamedTuple):
    """Where a look finds its numbers."""

    ends: Callable[[], Awaitable[Offsets]]
    """The next offset of each partition."""
    committed: Callable[[], Awaitable[Offsets]]
    """The next offset that the message writer has to apply."""
    ends_before: Callable[[float], Awaitable[Offsets]]
    """The first offsets whose records are at most this many seconds old; none where all records are older."""
    applied: Callable[[], Awaitable[Offsets]]
    """What the hot store knows to be applied. It may lack partitions."""


class _Mark(NamedTuple):
    end: int
    at: float
    """Everything from `end` on was appended later."""


class _Partition:
    """What is known of one partition."""

    def __init__(self) -> None:
        self.end = self.applied = 0
        self.sent_at = float("-inf")
        self.marks: list[_Mark] = []

    def seen(self, end: int, at: float) -> None:
        """The log ended here at a moment. If it is shorter than before, its offsets begin anew."""
        if self.marks and end < self.marks[-1].end:
            self.marks.clear()
        if len(self.marks) > 1 and self.marks[-1].end == end:
            self.marks.pop()  # the first stays: something before it may wait
        self.marks.append(_Mark(end, at))
        if len(self.marks) > MAX_MARKS:
            del self.marks[1:-1:2]  # ages get a little less precise, never too low
        self.end = max(end, self.end) if self.sent_at >= at else end

    def sent(self, end: int, at: float) -> None:
        """This process has appended up to here."""
        self.end, self.sent_at = max(self.end, end), at
        if not self.marks:
            self.marks.append(_Mark(end, at))

    def fill_gap(self, end: int, at: float) -> None:
        """A mark by the timestamps of records."""
        self.marks = sorted([*self.marks, _Mark(end, at)], key=lambda mark: mark.at)

    def waiting_since(self) -> float | None:
        """Since when, at the earliest, the oldest event waits; None: none does."""
        useful = max((index for index, mark in enumerate(self.marks) if mark.end <= self.applied), default=0)
        del self.marks[:useful]
        return None if self.applied >= self.end else self.marks[0].at


class Backlog:
    """What waits in each partition, as this process knows it. Times are in seconds.

    After `stale_after`, counts of a partition's channels are not exact; after `max_lag` (0: never) it takes no more
    messages.
    """

    def __init__(
        self,
        sources: Sources,
        partitions: int,
        *,
        stale_after: float,
        max_lag: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = sources
        self._partitions = {number: _Partition() for number in range(partitions)}
        self._stale_after = stale_after
        self._max_lag = max_lag
        self._now = now
        self._pause = min(LOOK_SECONDS, stale_after / LOOKS, (max_lag or stale_after) / LOOKS)
        self._looked_at = float("-inf")
        """When the ends were last seen."""
        self._since: dict[int, float] = {}
        self._oldest = float("inf")
        self._first = asyncio.Event()

    # ------------------------------------------------------------ questions

    @property
    def age(self) -> float:
        """Of the oldest event that waits; 0: none does."""
        return max(0.0, self._now() - self._oldest)

    def stale(self) -> frozenset[int]:
        """The partitions where something has waited for too long."""
        return self._older_than(self._stale_after)

    def check(self, partitions: Collection[int]) -> None:
        """Refuse messages to partitions where something has waited for far too long."""
        if self._max_lag and not self._older_than(self._max_lag).isdisjoint(partitions):
            raise MessagesBehind(
                f"accepted messages have waited for more than {self._max_lag:g} s; nothing was done, try again"
            )

    def state(self) -> str:
        """`ok`, or how far behind the message writer is."""
        if not (stale := self.stale()):
            return "ok"
        return (
            f"behind: messages have waited for {self.age:.0f} s in {len(stale)} of {len(self._partitions)} partitions"
        )

    def _older_than(self, seconds: float) -> frozenset[int]:
        limit = self._now() - seconds
        if self._oldest >= limit:
            return NOTHING
        return frozenset(number for number, since in self._since.items() if since < limit)

    # ------------------------------------------------------------ what is learned

    def sent(self, ends: Offsets) -> None:
        """This process has appended events, up to these offsets."""
        now = self._now()
        for number, end in ends.items():
            partition = self._partitions[number]
            partition.sent(end, now)
            if end > partition.applied and number not in self._since:
                self._since[number] = now
                self._oldest = min(self._oldest, now)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:
                log.error("a look at the log failed", action="backlog", traceback=traceback.format_exc())
            self._first.set()
            await asyncio.sleep(self._pause)

    async def looked(self) -> None:
        """Wait for the first look, but not long for brokers that are away."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._first.wait(), FIRST_SECONDS)

    async def look(self) -> None:
        """Learn what is appended and applied. Never fails: what can't be learned stays as it was known."""
        begun = self._now()
        try:
            ends = await self._sources.ends()
            for number, end in ends.items():
                self._partitions[number].seen(end, begun)
            await self._learn_applied()
            if begun - self._looked_at > GAP_LOOKS * self._pause:
                await self._fill_gap(ends, begun)
            self._looked_at = begun
        except ReadstateError as error:
            log.debug("the end of the log is not known", action="backlog", reason=error.detail)
            await self._learn_applied_from_hot_store()
        found = {number: partition.waiting_since() for number, partition in self._partitions.items()}
        self._since = {number: since for number, since in found.items() if since is not None}
        self._oldest = min(self._since.values(), default=float("inf"))
        APPLY_LAG.set(self.age)

    async def _learn_applied(self) -> None:
        for number, offset in (await self._sources.committed()).items():
            self._partitions[number].applied = offset

    async def _learn_applied_from_hot_store(self) -> None:
        try:
            known = await self._sources.applied()
            for number, partition in self._partitions.items():
                partition.applied = max(partition.applied, known.get(number, 0))
        except ReadstateError as error:
            log.debug("it is not known what is applied", action="backlog", reason=error.detail)

    async def _fill_gap(self, ends: Offsets, now: float) -> None:
        """By the timestamps of records: which are under way, and which have an age that something depends on."""
        waiting = [number for number, partition in self._partitions.items() if partition.waiting_since() is not None]
        if not waiting:
            return
        for seconds in {self._pause, self._stale_after, self._max_lag} - {0}:
            before = await self._sources.ends_before(seconds)
            for number in waiting:
                self._partitions[number].fill_gap(before.get(number, ends[number]), now - seconds)
