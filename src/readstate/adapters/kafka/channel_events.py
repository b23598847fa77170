"""The topic `messages` as the message writer consumes it.

Offsets restart when a topic is recreated and repeat when a partition loses its tail. So each partition has a base that
turns offsets into log positions that never fall.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from readstate.domain.events import AnyChannelEvent, Consumed, Delivery, MembersEvent, MessageEvent
from readstate.domain.facts import Effect
from readstate.domain.model import LogPosition
from readstate.ports import AppliedOffsets, DurableLog, Freshness
from readstate.services.freshness import Notes

from .consumer import KafkaConsumer
from .watcher import Watcher
from .wire import decode_channel_event

ACTION = "message-writer"

Store = Callable[[Sequence[Delivery], str], Awaitable[Sequence[Effect]]]
Finish = Callable[[], Awaitable[None]]
Spread = Callable[[Sequence[Delivery], Sequence[Effect]], Awaitable[None]]

log = structlog.get_logger()


@dataclass(eq=False, repr=False)
class LogPositions:
    """Publishes in the hot store what the message writer has applied, and notices when offsets start over."""

    _consumer: KafkaConsumer
    _watcher: Watcher
    _topic: str
    topic_id: str
    """The source of the offsets that `durable` has applied."""
    _durable: DurableLog
    _applied: AppliedOffsets
    _notes: Notes
    _interval: float
    _next: dict[int, int] = field(default_factory=dict)
    """The next offset of each partition, as far as this process has stored it."""
    _bases: dict[int, int] = field(default_factory=dict)

    async def check_topic(self, records: Sequence[Consumed]) -> None:
        """If a partition does not continue at the expected offset, check whether the topic was recreated.

        Its offsets restart then. Taken for offsets of the old topic, they would count as applied.
        """
        firsts = {one.partition: one.offset for one in reversed(records)}
        if not firsts.items() <= self._next.items():
            await self._was_recreated()

    def learn(self, deliveries: Sequence[Delivery], effects: Sequence[Effect]) -> None:
        """These are stored. Take the bases that the durable store used."""
        both = zip(deliveries, effects, strict=True)
        self._bases |= {one.part: effect.position - one.position - 1 for one, effect in both}
        self._next |= {one.part: one.position + 1 for one in deliveries}

    async def passed(self, deliveries: Sequence[Delivery], effects: Sequence[Effect]) -> None:
        """Publish that these events are done.

        Under the positions that they were stored with: the topic may have been recreated since, with another base.
        """
        both = zip(deliveries, effects, strict=True)
        await self._applied.passed({one.part: (effect.position, one.position + 1) for one, effect in both})

    async def skipped(self, record: Consumed) -> None:
        """Publish that this record is done, although it was not stored."""
        ends = {record.partition: record.offset + 1}
        await self._publish(ends)
        self._next |= ends

    async def keep(self) -> None:
        """Publish the positions of newly assigned partitions, and of all partitions when the hot store has lost them.

        Also looks for partitions that have lost their tail.
        """
        published = 0
        while True:
            try:
                await self._find_cuts()
                generation = await self._notes.generation()
                if self._consumer.taken() or generation != published:
                    ends = await self._consumer.ends()
                    await self._publish({part: done for (_, part), (done, end) in ends.items() if done <= end})
                    published = generation
            except Exception as error:
                log.debug("log positions are not published yet", action=ACTION, reason=repr(error))
            await asyncio.sleep(self._interval)

    async def _find_cuts(self) -> None:
        """A partition that ends before the applied offset has lost its tail: its next records are new, not replays.

        The applied offset is read before the end, so a partition that has lost nothing never appears to end before it.
        New records may already stand before that end, so nothing is published while there are records: the consumer
        reads them again from the oldest one, and their leader epochs show which of them are new.
        """
        mine = {part for _, part in self._consumer.assigned()}
        applied = {part: at for part, at in (await self._durable.positions(self.topic_id)).items() if part in mine}
        spans = await self._watcher.spans([(self._topic, part) for part in applied])
        cut = {part: span for (_, part), span in spans.items() if span[1] < applied[part][1]}
        if not cut or await self._was_recreated():
            return
        for part, (oldest, end) in cut.items():
            position, offset = applied[part]
            if await self._durable.cut(self.topic_id, part, end, applied[part]):
                log.warning(
                    "a partition has lost its tail: its offsets are reused",
                    action=ACTION,
                    part=part,
                    end=end,
                    applied=offset,
                )
                self._bases[part] = position - end
                if oldest == end:
                    await self._publish({part: end})

    async def _was_recreated(self) -> bool:
        topic_id = await self._watcher.topic_id(self._topic)
        if topic_id == self.topic_id:
            return False
        log.warning("the topic was recreated: its offsets restart", action=ACTION)
        self.topic_id, self._bases = topic_id, {}
        return True

    async def _publish(self, offsets: Mapping[int, int]) -> None:
        """Publish that everything before these offsets is applied."""
        bases = self._bases  # of this topic: a recreated one gets a new dict
        if not offsets.keys() <= bases.keys():
            known = await self._durable.positions(self.topic_id)
            bases |= {part: position - offset for part, (position, offset) in known.items()}
        await self._applied.passed(
            {part: (LogPosition(bases[part] + offset), offset) for part, offset in offsets.items() if part in bases}
        )


class ChannelEvents:
    """Hands records of the topic to the message writer."""

    def __init__(
        self, positions: LogPositions, store: Store, spread: Spread, notes: Notes, freshness: Freshness
    ) -> None:
        self._positions = positions
        self._store = store
        self._spread = spread
        self._notes = notes
        self._freshness = freshness

    async def handle(self, records: Sequence[Consumed]) -> None:
        finish = await self.begin(records)
        await finish()

    async def begin(self, records: Sequence[Consumed]) -> Finish:
        """Store a batch. What is returned spreads it, then publishes its log positions.

        Events with epochs that may be too low (`in_doubt`) wait until the hot store is fresh.
        """
        events = [Delivery(decode_channel_event(one.value), one.offset, one.partition, one.epoch) for one in records]
        if doubted := {user for one in events if one.event.in_doubt for user in _epochs_of(one.event)}:
            await self._notes.generation(doubted)
            await self._freshness.caught_up(doubted)
        await self._positions.check_topic(records)
        effects = await self._store(events, self._positions.topic_id)
        self._positions.learn(events, effects)

        async def finish() -> None:
            await self._spread(events, effects)
            await self._positions.passed(events, effects)

        return finish


def _epochs_of(event: AnyChannelEvent) -> Collection[str]:
    """The users whose epochs an event carries."""
    match event:
        case MessageEvent():
            return (event.sender_id,)
        case MembersEvent():
            return event.epochs
        case _:
            return ()
