"""Gathers records into batches by what they hold, and the next batch while the one before is worked on."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from readstate.domain.errors import Unavailable
from readstate.domain.events import Consumed
from readstate.tasks import cancel, retrieve_exception

from .runner import Consumer

SLICE = 100
"""Records that are taken at once. A batch exceeds its size by less than these, of which each may hold many events."""


@dataclass(eq=False, repr=False)
class GatherAhead:
    """A consumer whose batches hold at most about `most` events, and are gathered ahead.

    `weigh` tells about how many events a record holds. A batch is gathered for at least `seconds` after its first
    record, and for as long as the one before is worked on. Other calls wait for `slice_seconds` at most.
    """

    _consumer: Consumer
    _weigh: Callable[[Consumed], int]
    _slice_seconds: float
    _coming: "asyncio.Task[list[Consumed]] | None" = None
    _wanted: bool = False

    async def batch(self, most: int, seconds: float) -> list[Consumed]:
        """Empty if nothing came for `seconds`."""
        coming = self._coming or self._begin(most, seconds)
        self._coming, self._wanted = coming, True
        try:
            found = await asyncio.shield(coming)  # a cancelled caller leaves the batch to the next call
        finally:
            self._wanted = False
            if coming.done():
                self._coming = None
        if found:
            self._coming = self._begin(most, seconds)
        return found

    async def commit(self, records: Sequence[Consumed]) -> None:
        await self._consumer.commit(records)

    async def heartbeat(self) -> None:
        """Needed only while no batch is being gathered: gathering keeps the membership alive."""
        if self._coming is None or self._coming.done():
            await self._consumer.heartbeat()

    async def ends(self) -> dict[tuple[str, int], tuple[int, int]]:
        return await self._consumer.ends()

    async def check(self, ends: dict[tuple[str, int], tuple[int, int]]) -> None:
        await self._consumer.check(ends)

    async def close(self) -> None:
        """What was gathered ahead is left to the members that take over."""
        if self._coming is not None:
            await cancel(self._coming)
        await self._consumer.close()

    def _begin(self, most: int, seconds: float) -> "asyncio.Task[list[Consumed]]":
        task = asyncio.create_task(self._gather(most, seconds))
        task.add_done_callback(retrieve_exception)  # not awaited after a stop
        return task

    async def _gather(self, most: int, seconds: float) -> list[Consumed]:
        found: list[Consumed] = []
        size, now = 0, asyncio.get_running_loop().time
        since = now()
        while size < most and not (self._wanted and now() - since >= seconds):
            try:
                some = await self._consumer.batch(SLICE, self._slice_seconds)
            except Unavailable:
                if not found:  # else they would be lost: the next batch begins behind them
                    raise
                break
            if some and not found:
                since = now()
            found += some
            size += sum(map(self._weigh, some))
        return found
