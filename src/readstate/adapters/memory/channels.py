"""Channels in the memory of one process: the reference implementation of the hot state of channels."""

from bisect import bisect_right
from collections.abc import Sequence

from msgspec import Struct

from readstate.adapters.words import channel_facts
from readstate.domain.hot_updates import ChannelHotUpdate
from readstate.domain.model import NO_POSITION, Channel, DropNumber, LogPosition, Mode
from readstate.ports import Clock, Count, CountQuery, StoredKey, TimelineLoad
from readstate.telemetry import EVICTIONS

from .ledger import Ledger

CHANNEL_BYTES = 700
TIMELINE_ENTRY_BYTES = 110


class _Timeline(Struct):
    messages: Ledger
    change: int


class MemoryChannels:
    def __init__(self, *, unread_cap: int, clock: Clock, position: LogPosition = NO_POSITION) -> None:
        self._cap = unread_cap
        self._clock = clock
        self._channels: dict[str, Channel] = {}
        self._timelines: dict[str, _Timeline] = {}
        self._used: dict[str, int] = {}
        self._position = position
        self._drops = DropNumber(0)

    async def channels(self, ids: Sequence[str]) -> list[Channel | None]:
        now = self._clock()
        if len(ids) < 100:
            self._used.update(dict.fromkeys(ids, now))
        return list(map(self._channels.get, ids))

    async def apply(self, updates: Sequence[ChannelHotUpdate]) -> None:
        now = self._clock()
        for update in updates:
            channel = update.channel
            self._keep(channel)
            self._used[channel.channel_id] = now
            self._position = max(self._position, channel.position)
            timeline = self._timelines.get(channel.channel_id)
            if timeline is None or update.change <= timeline.change:
                continue
            timeline.change = update.change
            if channel.deleted or update.reload:
                del self._timelines[channel.channel_id]
            elif update.put is not None:
                if update.put.seq > timeline.messages.floor:
                    timeline.messages.put(update.put, update.put.mention)
            elif update.remove:
                timeline.messages.remove(update.remove)

    async def stored(self, channel: str) -> list[StoredKey]:
        found = []
        if (known := self._channels.get(channel)) is not None:
            found.append(StoredKey("channel", None, channel_facts(known)))
        if (timeline := self._timelines.get(channel)) is not None:
            found.append(StoredKey("timeline", None, {**timeline.messages.facts(), "change": str(timeline.change)}))
        return found

    async def count(self, queries: Sequence[CountQuery]) -> list[Count | None]:
        return [self._count(query) for query in queries]

    def _count(self, query: CountQuery) -> Count | None:
        timeline = self._timelines.get(query.channel_id)
        if timeline is None:
            return None
        messages, seq, apart = timeline.messages, query.state.seq, query.state.apart
        start = messages.after(seq)
        count = len(messages) - start
        everyone = messages.named[bisect_right(messages.named, seq) :]
        named = {s for s in (*everyone, *query.named) if s not in apart and s in messages}
        first = start if count else None
        if apart and count:
            count -= sum(s in messages for s in apart)
            beyond = (index for index in range(start, len(messages)) if messages.seqs[index] not in apart)
            first = next(beyond, None)
        position = None if first is None else messages.position(first)
        return Count(count, len(named), position, seq < messages.floor, messages.floor not in apart)

    async def install(self, channels: Sequence[Channel], generation: DropNumber | None = None) -> bool:
        if generation is not None and generation != self._drops:
            return False
        for channel in channels:
            self._keep(channel)
        return True

    def _keep(self, channel: Channel) -> None:
        known = self._channels.get(channel.channel_id)
        if known is None or channel.change >= known.change:
            self._channels[channel.channel_id] = channel

    async def install_timeline(self, load: TimelineLoad) -> bool:
        channel = self._channels.get(load.channel_id)
        if channel is None or channel.change > load.change or channel.mode is not Mode.TIMELINE:
            return False
        messages = Ledger(self._cap)
        messages.floor = load.floor
        for entry in load.entries:
            messages.put(entry, entry.mention)
        self._timelines[load.channel_id] = _Timeline(messages, load.change)
        return True

    async def positions(self) -> tuple[LogPosition, ...]:
        """One log position: the log of the embedded profile has one partition."""
        return (self._position,)

    async def forget(self, channel: str) -> None:
        self._drops = DropNumber(self._drops + 1)
        self._channels.pop(channel, None)
        self._timelines.pop(channel, None)
        self._used.pop(channel, None)

    # ------------------------------------------------------------ memory

    def bytes(self) -> int:
        """The approximate memory of all channels."""
        entries = sum(len(timeline.messages) for timeline in self._timelines.values())
        return len(self._channels) * CHANNEL_BYTES + entries * TIMELINE_ENTRY_BYTES

    async def generation(self) -> DropNumber:
        return self._drops

    async def clear(self) -> None:
        self._drops = DropNumber(self._drops + 1)
        self._channels.clear()
        self._timelines.clear()
        self._used.clear()

    def by_use(self) -> list[str]:
        return sorted(self._channels, key=lambda channel: self._used.get(channel, 0))

    async def evict(self, channel: str) -> None:
        await self.forget(channel)
        EVICTIONS.labels("channel").inc()
