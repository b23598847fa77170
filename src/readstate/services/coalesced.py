"""Coalesced lookups: requests that arrive together share one call to a shared hot store.

A call for each read would cost four times as much as the read itself.
"""

from collections.abc import Sequence

from readstate.batching import Batcher, Batchers
from readstate.domain.model import Channel
from readstate.ports import Count, CountQuery
from readstate.ports.consistency import Lookups

MAX_LOOKUPS = 1_000
CONCURRENCY = 4
"""Calls in flight: a lookup that waits for a load must not block all the others."""


class CoalescedLookups:
    def __init__(self, direct: Lookups, batchers: Batchers) -> None:
        self._direct = direct
        self._channels: Batcher[str, Channel | None] = batchers(
            self._look_up, max_items=MAX_LOOKUPS, concurrency=CONCURRENCY, name="channels"
        )
        self._counts: Batcher[CountQuery, Count] = batchers(
            direct.counts, max_items=MAX_LOOKUPS, concurrency=CONCURRENCY, name="counts"
        )

    async def channel(self, id_: str) -> Channel:
        [known] = await self._channels.submit([id_])
        return await self._direct.channel(id_) if known is None else known  # the direct call raises

    async def channels(self, ids: Sequence[str]) -> list[Channel | None]:
        return await self._direct.channels(ids)

    async def counts(self, queries: Sequence[CountQuery]) -> Sequence[Count]:
        return await self._counts.submit(queries)

    async def close(self) -> None:
        await self._channels.close()
        await self._counts.close()

    async def _look_up(self, ids: Sequence[str]) -> Sequence[Channel | None]:
        every = list(dict.fromkeys(ids))
        found = dict(zip(every, await self._direct.channels(every), strict=True))
        return [found[id_] for id_ in ids]
