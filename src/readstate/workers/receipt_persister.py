"""Merges read states into the durable store. A batch is folded first: each user and channel is written once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter

from readstate.domain.events import ReadEvent
from readstate.domain.folding.reads import fold_reads
from readstate.domain.hot_updates import Merged
from readstate.domain.model import Pointer
from readstate.ports import Clock, HotUsers
from readstate.telemetry import DEDUP_RATIO, PERSIST_BATCH, PERSIST_LAG, PERSIST_SECONDS

Merge = Callable[[Sequence[ReadEvent]], Awaitable[Sequence[ReadEvent]]]
"""Returns the states that the store took."""


class ReceiptPersister:
    """Consumer of the topic `read-receipts`. Idempotent: states merge.

    `merge`: of the durable store, one of its two ways to merge.
    """

    def __init__(self, merge: Merge) -> None:
        self._merge = merge
        self._ratio = 0.0

    async def handle(self, events: Sequence[ReadEvent]) -> None:
        """Merge a batch into the durable store; returns when it is committed."""
        await self.persist(events)

    async def persist(self, events: Sequence[ReadEvent]) -> Sequence[ReadEvent]:
        """Like `handle`, and returns the states that the store took."""
        states = fold_reads(events)
        started = perf_counter()
        taken = await self._merge(states)
        PERSIST_SECONDS.observe(perf_counter() - started)
        PERSIST_BATCH.observe(len(events))
        self._ratio += 0.05 * (1 - len(states) / len(events) - self._ratio)
        DEDUP_RATIO.set(self._ratio)
        return taken


class SharedPersister:
    """The persister of a cluster: limits its rate, and merges into the hot store too, which may have lost the reads."""

    def __init__(
        self,
        persister: ReceiptPersister,
        users: HotUsers,
        must_merge: Callable[[], Awaitable[bool]],
        clock: Clock,
        rows_per_second: int,
    ) -> None:
        self._persister = persister
        self._users = users
        self._must_merge = must_merge
        self._clock = clock
        self._rate = rows_per_second
        self._free_at = 0.0

    async def handle(self, events: Sequence[ReadEvent]) -> None:
        """First the durable store. The merge into the hot store is for users who were loaded before that."""
        states = await self._persister.persist(events)
        if await self._must_merge():
            await self._users.apply([Merged(one.channel_id, one.user_id, pointer_of(one)) for one in states])
        self._spent(len(states))
        now = self._clock()
        for event in events[:: max(1, len(events) // 20)]:
            PERSIST_LAG.observe(max(0, now - event.created_at) / 1000)

    def throttle_delay(self) -> float:
        """Seconds until the rows written so far are within `rows_per_second`; 0 or less: no delay."""
        return self._free_at - asyncio.get_running_loop().time()

    def _spent(self, rows: int) -> None:
        if self._rate:
            now = asyncio.get_running_loop().time()
            self._free_at = max(now, self._free_at) + rows / self._rate


def pointer_of(event: ReadEvent) -> Pointer:
    return Pointer(
        event.epoch,
        event.last_read_seq,
        frozenset(event.apart),
        event.last_read_id,
        event.last_read_at,
        event.read_at,
        event.change,
    )
