"""Applies what happens in channels: first the durable store, then the hot state, then devices."""

from collections.abc import Awaitable, Callable, Sequence

from ..events import Delivery, ReadEvent, read_event
from ..fold import Effect
from ..ports import Clock, DurableWrites, HotChannels, HotUsers


class MessageWriter:
    """Consumer of the topic `messages`. Every step is safe to repeat."""

    def __init__(
        self,
        durable: DurableWrites,
        users: HotUsers,
        channels: HotChannels,
        log_reads: Callable[[Sequence[ReadEvent]], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._durable = durable
        self._users = users
        self._channels = channels
        self._log_reads = log_reads
        self._clock = clock

    async def handle(self, deliveries: Sequence[Delivery]) -> list[Effect]:
        """Apply a batch, and say what became of each event."""
        effects = await self._durable.apply(deliveries)
        await self._channels.apply([step for effect in effects for step in effect.channel_steps])
        moved = await self._users.apply([step for effect in effects for step in effect.user_steps])
        if moved:
            now = self._clock()
            await self._log_reads([read_event(one.user_id, one.channel_id, one.pointer, now) for one in moved])
        return effects
