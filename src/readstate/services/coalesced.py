"""What single reads ask of the hot store. Where that is shared, those who come at the same time ask together.

A question of its own for each read costs four times as much as the read.
"""

from collections.abc import Sequence

from readstate.batching import Batcher, Batchers
from readstate.domain.model import Channel
from readstate.ports import Count, CountQuery

from .loading import Loader

MAX_QUESTIONS = 1_000
UNDER_WAY = 4
"""So that one who has to wait for something to be loaded does not keep all the others waiting."""


class CoalescedLookups:
    """Channels and counts. A process that has its hot state to itself (`alone`) has nothing to gain by it."""

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
        """A channel that exists."""
        if not self._alone:
            [known] = await self._channels.submit([name])
            if known is not None:
                return known
        return await self._loader.channel(name)

    async def count(self, query: CountQuery) -> Count:
        """What a timeline has for somebody."""
        [count] = await (self._loader.counts([query]) if self._alone else self._counts.submit([query]))
        return count

    async def close(self) -> None:
        """Finish what was asked."""
        await self._channels.close()
        await self._counts.close()

    async def _look_up(self, names: Sequence[str]) -> Sequence[Channel | None]:
        every = list(dict.fromkeys(names))
        found = dict(zip(every, await self._loader.channels(every), strict=True))
        return [found[name] for name in names]
