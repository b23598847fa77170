"""Coalesced lookups: single reads that arrive together share one call to a shared hot store.

A call for each read would cost four times as much as the read itself.
"""

from collections.abc import Sequence

from readstate.batching import Batcher, Batchers
from readstate.domain.model import Channel
from readstate.ports import Count, CountQuery

from .loading import Loader

MAX_QUESTIONS = 1_000
UNDER_WAY = 4
"""Calls in flight: a lookup that waits for a load must not block all the others."""


class CoalescedLookups:
    """Looks up channels and counts. A process with its own hot state (`alone`) gains nothing and asks directly."""

    def __init__(self, loader: Loader, batchers: Batchers, *, alone: bool) -> None:
        self._loader = loader
        self._alone = alone
        self._channels: Batcher[str, Channel | None] = batchers(
            self._look_up, max_items=MAX_QUESTIONS, concurrency=UNDER_WAY, name="channels"
        )
        self._counts: Batcher[CountQuery, Count] = batchers(
            loader.counts, max_items=MAX_QUESTIONS, concurrency=UNDER_WAY, name="counts"
        )

    async def channel(self, name: str) -> Channel:
        if not self._alone:
            [known] = await self._channels.submit([name])
            if known is not None:
                return known
        return await self._loader.channel(name)

    async def count(self, query: CountQuery) -> Count:
        [count] = await (self._loader.counts([query]) if self._alone else self._counts.submit([query]))
        return count

    async def close(self) -> None:
        await self._channels.close()
        await self._counts.close()

    async def _look_up(self, names: Sequence[str]) -> Sequence[Channel | None]:
        every = list(dict.fromkeys(names))
        found = dict(zip(every, await self._loader.channels(every), strict=True))
        return [found[name] for name in names]
