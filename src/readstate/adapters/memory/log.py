"""The log of the embedded profile: hands every batch to its consumer at once and stores nothing."""

from collections.abc import Awaitable, Callable, Collection, Sequence

from readstate.batching import Batcher, Batchers
from readstate.domain.events import AnyChannelEvent, Delivery, ReadEvent
from readstate.domain.facts import Effect
from readstate.domain.model import LogPosition

MAX_EVENTS = 2_000

MessageHandler = Callable[[Sequence[Delivery]], Awaitable[list[Effect]]]
ReadHandler = Callable[[Sequence[ReadEvent]], Awaitable[None]]


class LocalLog:
    """An event is acknowledged when its consumer has committed it."""

    def __init__(
        self,
        position: LogPosition,
        message_writer: MessageHandler,
        receipt_persister: ReadHandler,
        batchers: Batchers = Batcher,
    ) -> None:
        self._position = position
        self._write = message_writer
        self._persist = receipt_persister
        self._events: Batcher[AnyChannelEvent, Effect] = batchers(self._deliver, max_items=MAX_EVENTS, name="events")

    async def channel_events(self, events: Sequence[AnyChannelEvent], wait: bool = True) -> Sequence[Effect | None]:
        return await self._events.submit(events)

    async def reads(self, events: Sequence[ReadEvent]) -> None:
        await self._persist(events)

    async def settled(self, channels: Collection[str]) -> bool:
        """Acknowledged events are applied already."""
        return False

    async def close(self) -> None:
        await self._events.close()

    async def _deliver(self, events: Sequence[AnyChannelEvent]) -> list[Effect]:
        first = self._position + 1
        self._position = LogPosition(self._position + len(events))
        return await self._write([Delivery(event, first + index) for index, event in enumerate(events)])
