"""How long accepted events of the topic `messages` have waited for the message writer, per partition.

A look compares the end of each partition with the offset that the writer's group has committed. Ages come from this
process's monotonic clock: a mark (offset, time) says that everything from the offset on was appended after that time.
So the oldest waiting event is at most as old as the newest mark at or below its offset. Where there was no look for a
while (at the start, or after Kafka was away), record timestamps fill the gap; only there the producers' clocks matter.

While Kafka does not answer, nothing is accepted. Events known to be accepted (seen by a look, or sent by this process)
are then compared with the offsets in the hot store.

Reading the result costs no call to a server.
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
from readstate.timings import KafkaTimings

LOOKS = 5
"""At least this many looks within STALE_AFTER, and within MAX_LAG."""
GAP_LOOKS = 3
"""After this many pauses without a look, the marks say too little about ages."""
MAX_MARKS = 600
NOTHING: frozenset[int] = frozenset()

Offsets = Mapping[int, int]
"""Offset by partition."""

log = structlog.get_logger()


class Sources(NamedTuple):
    ends: Callable[[], Awaitable[Offsets]]
    """The next offset of each partition."""
    committed: Callable[[], Awaitable[Offsets]]
    """The next offset that the message writer has to apply."""
    ends_before: Callable[[float], Awaitable[Offsets]]
    """The first offset whose record is at most this many seconds old; none where all records are older."""
    applied: Callable[[], Awaitable[Offsets]]
    """The next offset to apply according to the hot store. It may lack partitions."""


class _Mark(NamedTuple):
    end: int
    at: float
    """Everything from `end` on was appended after this time."""


class _Partition:
    def __init__(self) -> None:
        self.end = self.applied = 0
        self.sent_at = float("-inf")
        self.marks: list[_Mark] = []

    def seen(self, end: int, at: float) -> None:
        """Note the end that a look found. An end below the last one means that the topic's offsets restarted."""
        if self.marks and end < self.marks[-1].end:
            self.marks.clear()
        if len(self.marks) > 1 and self.marks[-1].end == end:
            self.marks.pop()  # the first mark stays: an event before it may wait
        self.marks.append(_Mark(end, at))
        if len(self.marks) > MAX_MARKS:
            del self.marks[1:-1:2]  # ages lose some precision but are never too low
        self.end = max(end, self.end) if self.sent_at >= at else end

    def sent(self, end: int, at: float) -> None:
        self.end, self.sent_at = max(self.end, end), at
        if not self.marks:
            self.marks.append(_Mark(end, at))

    def fill_gap(self, end: int, at: float) -> None:
        self.marks = sorted([*self.marks, _Mark(end, at)], key=lambda mark: mark.at)

    def waiting_since(self) -> float | None:
        """The earliest time since when the oldest event may have waited; None: no event waits."""
        useful = max((index for index, mark in enumerate(self.marks) if mark.end <= self.applied), default=0)
        del self.marks[:useful]
        return None if self.applied >= self.end else self.marks[0].at


class Backlog:
    """The backlog of each partition as this process knows it. Times are in seconds.

    After `stale_after`, counts of the partition's channels are not exact; after `max_lag` (0: never), the partition
    accepts no messages.
    """

    def __init__(
        self,
        sources: Sources,
        partitions: int,
        timings: KafkaTimings,
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
        self._timings = timings
        self._pause = min(timings.backlog, stale_after / LOOKS, (max_lag or stale_after) / LOOKS)
        self._looked_at = float("-inf")
        """When a look last learned the ends."""
        self._since: dict[int, float] = {}
        self._oldest = float("inf")
        self._first = asyncio.Event()

    # ------------------------------------------------------------ questions

    @property
    def age(self) -> float:
        """The age of the oldest waiting event; 0: none waits."""
        return max(0.0, self._now() - self._oldest)

    def stale(self) -> frozenset[int]:
        return self._older_than(self._stale_after)

    def check(self, partitions: Collection[int]) -> None:
        """Raise MessagesBehind if an event has waited longer than `max_lag` in one of these partitions."""
        if self._max_lag and not self._older_than(self._max_lag).isdisjoint(partitions):
            raise MessagesBehind(
                f"accepted messages have waited for more than {self._max_lag:g} s; nothing was done, try again"
            )

    def state(self) -> str:
        """`ok`, or how far the message writer lags."""
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

    # ------------------------------------------------------------ updates

    def sent(self, ends: Offsets) -> None:
        now = self._now()
        for number, end in ends.items():
            partition = self._partitions[number]
            partition.sent(end, now)
            if end > partition.applied and number not in self._since:
                self._since[number] = now
                self._oldest = min(self._oldest, now)

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                log.error("a look at the log failed", action="backlog", traceback=traceback.format_exc())
            self._first.set()
            await asyncio.sleep(self._pause)

    async def looked(self) -> None:
        """Wait for the first look, but not long: the brokers may be away."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._first.wait(), self._timings.backlog_first)

    async def look(self) -> None:
        """Update ends, applied offsets and ages. A server that does not answer is no error: the old values stay."""
        begun = self._now()
        try:
            ends = await self._sources.ends()
            for number, end in ends.items():
                self._partitions[number].seen(end, begun)
            for number, offset in (await self._sources.committed()).items():
                self._partitions[number].applied = offset
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

    async def _learn_applied_from_hot_store(self) -> None:
        try:
            known = await self._sources.applied()
            for number, partition in self._partitions.items():
                partition.applied = max(partition.applied, known.get(number, 0))
        except ReadstateError as error:
            log.debug("the applied offsets are not known", action="backlog", reason=error.detail)

    async def _fill_gap(self, ends: Offsets, now: float) -> None:
        """Add marks from record timestamps, at the ages that decisions depend on."""
        waiting = [number for number, partition in self._partitions.items() if partition.waiting_since() is not None]
        if not waiting:
            return
        for seconds in {self._pause, self._stale_after, self._max_lag} - {0}:
            before = await self._sources.ends_before(seconds)
            for number in waiting:
                self._partitions[number].fill_gap(before.get(number, ends[number]), now - seconds)
