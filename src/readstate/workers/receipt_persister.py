"""Brings read states to the durable store: folded, so that each user and channel is written once a batch."""

from collections.abc import Sequence
from time import perf_counter

from ..events import ReadEvent
from ..fold_reads import fold_reads
from ..ports import DurableWrites
from ..telemetry import DEDUP_RATIO, PERSIST_BATCH, PERSIST_SECONDS


class ReceiptPersister:
    """Consumer of the topic `read-receipts`."""

    def __init__(self, durable: DurableWrites) -> None:
        self._durable = durable
        self._ratio = 0.0

    async def handle(self, events: Sequence[ReadEvent]) -> None:
        """Merge a batch into the durable store; returns when it is committed."""
        states = fold_reads(events)
        started = perf_counter()
        await self._durable.merge(states)
        PERSIST_SECONDS.observe(perf_counter() - started)
        PERSIST_BATCH.observe(len(events))
        self._ratio += 0.05 * (1 - len(states) / len(events) - self._ratio)
        DEDUP_RATIO.set(self._ratio)
