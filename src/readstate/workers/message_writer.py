"""Applies the events of channels: to the durable store, then to the hot store, then as announcements.

A crash between two of these repeats the batch. The durable store recognizes replays, the hot store ignores change
numbers that it has passed, and devices ignore repeated seqs.

The work has two halves: `store` is the transaction, `spread` everything after its commit. In a cluster the transaction
of a batch runs while the batch before is still being spread (`overlap.py`). What a transaction decides does not depend
on that: it reads the durable store, and who is online was asked before (`online_before.py`).
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from readstate.domain.errors import StorageUnavailable, Unavailable
from readstate.domain.events import Delivery
from readstate.domain.facts import Effect
from readstate.domain.hot_updates import Gone
from readstate.domain.model import NO_POSITION, DropNumber, LogPosition
from readstate.ports import Bus, Durable, Hot, Moved
from readstate.services.pending_writes import UnannouncedWrites

from .announcing import announcements, badges_changed, outcome
from .focused_reads import FocusedReads
from .on_failure import OnFailure
from .online_before import OnlineBefore

NoteAway = Callable[[Sequence[Effect]], Awaitable[None]]
"""Records messages for receivers who were away. Idempotent."""


@dataclass(eq=False, repr=False)
class MessageWriter:
    """Consumer of the topic `messages`. Idempotent."""

    _durable: Durable
    _hot: Hot
    _bus: Bus
    _note_away: NoteAway
    _focused_reads: FocusedReads
    _on_failure: OnFailure
    _unannounced: UnannouncedWrites
    _instance: str
    _complete: dict[int, LogPosition] = field(default_factory=dict)
    """By partition: the log position up to which this process has finished delivery tracking."""

    def __post_init__(self) -> None:
        self._online = OnlineBefore(self._hot.presence)

    async def handle(self, deliveries: Sequence[Delivery], source: str = "") -> list[Effect]:
        effects = await self.store(deliveries, source)
        await self.spread(deliveries, effects)
        return effects

    async def store(self, deliveries: Sequence[Delivery], source: str = "") -> list[Effect]:
        try:
            effects = await self._online.during(
                deliveries, lambda online: self._durable.apply(deliveries, online, source, self._complete)
            )
            self._online.learn(effects)
            return effects
        except StorageUnavailable as error:
            if error.uncertain:
                await self._on_failure.commit_uncertain()
            raise

    async def spread(self, deliveries: Sequence[Delivery], effects: Sequence[Effect]) -> None:
        """Update the hot store and announce. Batches are spread in the order in which they were stored."""
        batch = list(zip(deliveries, effects, strict=True))
        await self._skip_tracked(batch)
        with self._unannounced.batch():
            moved, generation = await self._update_hot_store(effects)
            lost = await self._hot.presence.reached([one for effect in effects for one in effect.reached])
            await self._announce(batch)
            await self._on_failure.save_late_badges(lost)
            self._note_complete(batch)
        if moved:
            await self._on_failure.log_moved(moved, generation)

    async def _update_hot_store(self, effects: Sequence[Effect]) -> tuple[list[Moved], DropNumber]:
        """Returns the pointers that moved, and the drop number from before that."""
        user_updates = [update for effect in effects for update in effect.user_updates]
        try:
            await self._hot.channels.apply([update for effect in effects for update in effect.channel_updates])
            generation = await self._hot.users.generation(())
            moved = await self._hot.users.apply(user_updates)
            await self._note_away(effects)
            # Last: the batch that deletes a channel may also have messages in it.
            for user in (user for update in user_updates if isinstance(update, Gone) for user in update.users):
                await self._hot.badges.forget(user)
            await self._focused_reads.read(effects)
            return moved, generation
        except Unavailable as error:
            await self._on_failure.update_missed(error)
            return [], DropNumber(0)

    async def _announce(self, batch: Sequence[tuple[Delivery, Effect]]) -> None:
        news = [one for delivery, effect in batch for one in announcements(delivery.event, effect, self._instance)]
        answers = [outcome(delivery.event.ref, effect) for delivery, effect in batch if delivery.event.ref is not None]
        await self._bus.publish([*news, *badges_changed(effect for _, effect in batch), *answers])

    async def _skip_tracked(self, batch: Sequence[tuple[Delivery, Effect]]) -> None:
        """Skip delivery tracking for replayed events that were completed before.

        Otherwise a receiver who got the message and disconnected since would get it on the badge.
        """
        replayed = [(one.part, effect) for one, effect in batch if effect.repeated and effect.reached]
        if not replayed:
            return
        ends = await self._hot.channels.positions()
        for part, effect in replayed:
            if effect.position <= max(self._complete.get(part, 0), ends[part] if part < len(ends) else 0):
                effect.reached = []

    def _note_complete(self, batch: Sequence[tuple[Delivery, Effect]]) -> None:
        for delivery, effect in batch:
            if delivery.part >= 0:
                self._complete[delivery.part] = max(self._complete.get(delivery.part, NO_POSITION), effect.position)
