"""Merges read states into the durable store, which folds a batch first: each user and channel is written once."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import structlog

from readstate.domain.announcements import UserRoomChanged
from readstate.domain.errors import Unavailable
from readstate.domain.events import ReadEvent
from readstate.domain.hot_updates import Merged
from readstate.ports import Bus, Clock, DurableReads, HotUsers
from readstate.telemetry import DEDUP_RATIO, PERSIST_BATCH, PERSIST_LAG, PERSIST_SECONDS

SLICE_SECONDS = 0.1
"""A limited rate is kept within this time, not only on average."""
LAG_SAMPLES = 20

log = structlog.get_logger()


class ReceiptPersister:
    """Consumer of read states. Idempotent: states merge."""

    def __init__(self, durable: DurableReads) -> None:
        self._durable = durable
        self._ratio = 0.0

    async def handle(self, events: Sequence[ReadEvent]) -> None:
        """Merge a batch into the durable store; returns when it is committed."""
        await self.persist(events)

    async def persist(self, events: Sequence[ReadEvent]) -> Sequence[ReadEvent]:
        """Like `handle`, and returns the states that the store took."""
        if not events:
            return []
        started = perf_counter()
        states = await self._merge(events)
        PERSIST_SECONDS.observe(perf_counter() - started)
        PERSIST_BATCH.observe(len(events))
        self._ratio += 0.05 * (1 - len(states) / len(events) - self._ratio)
        DEDUP_RATIO.set(self._ratio)
        return states

    async def _merge(self, states: Sequence[ReadEvent]) -> Sequence[ReadEvent]:
        """Write states; returns those that the store took."""
        return await self._durable.merge(states)


class TopicPersister(ReceiptPersister):
    """For the topic `read-receipts`: other processes made the states, and may not know yet that a user was erased."""

    async def _merge(self, states: Sequence[ReadEvent]) -> Sequence[ReadEvent]:
        return await self._durable.merge_unless_erased(states)


@dataclass(eq=False, repr=False)
class SharedPersister:
    """The persister of a cluster: limits its rate, and merges into the hot store too, which may have lost the reads.

    `rate` is in rows per second; 0: no limit. `rest` waits for some seconds, and may raise to give up the batch.
    """

    _persister: ReceiptPersister
    _users: HotUsers
    _to_merge: Callable[[Collection[str]], Awaitable[Collection[str]]]
    """Those of these users who may be in the hot store without their reads."""
    _clock: Clock
    _rate: int
    _rest: Callable[[float], Awaitable[None]] = asyncio.sleep
    _free_at: float = 0.0

    async def handle(self, events: Sequence[ReadEvent]) -> None:
        """If it fails, some of them may be stored."""
        for some in self._slices(events):
            await self._rest(self._free_at - asyncio.get_running_loop().time())
            await self._store(some)
        now = self._clock()
        for event in events[:: max(1, len(events) // LAG_SAMPLES)]:
            PERSIST_LAG.observe(max(0, now - event.created_at) / 1000)

    async def _store(self, events: Sequence[ReadEvent]) -> None:
        """First the durable store. The merge into the hot store is for users who were loaded before that."""
        states = await self._persister.persist(events)
        if lost := await self._to_merge({one.user_id for one in states}):
            late = [Merged(one.channel_id, one.user_id, one.pointer) for one in states if one.user_id in lost]
            await self._users.apply(late)
        if self._rate:
            now = asyncio.get_running_loop().time()
            self._free_at = max(now, self._free_at) + len(states) / self._rate

    def _slices(self, events: Sequence[ReadEvent]) -> Iterator[Sequence[ReadEvent]]:
        """As much at once as the rate allows in `SLICE_SECONDS`. States that fold into one row come together."""
        if not self._rate:
            yield events
            return
        ordered = sorted(events, key=lambda event: (event.user_id, event.channel_id))
        size = max(1, int(self._rate * SLICE_SECONDS))
        for start in range(0, len(ordered), size):
            yield ordered[start : start + size]


@dataclass(eq=False, repr=False)
class SpoolRestorer:
    """Writes reads that a dead process left in its spool to the stores directly, not through the log.

    Other instances wait for such a spool only for a limited time. After that the hot store may count as fresh
    without these reads, and the persister no longer merges what it reads from the log into the hot store. So they go to
    the durable store, and then to the users in the hot store who were loaded before.
    """

    _persister: SharedPersister
    _send_reads: Callable[[Sequence[ReadEvent]], Awaitable[None]]
    _bus: Bus

    async def restore(self, events: Sequence[ReadEvent]) -> None:
        try:
            await self._persister.handle(events)
        except Unavailable:
            raise
        except Exception:  # an event fails by itself: the persister's runner finds it and dead-letters it
            log.error(
                "reads of a spool can't be stored and are sent to Kafka",
                action="spool",
                traceback=traceback.format_exc(),
            )
            await self._send_reads(events)
        await self._bus.publish([UserRoomChanged(event.user_id, event.channel_id) for event in events])
