"""Applies the events of channels: to the durable store, then to the hot store, then as announcements.

A crash between two of these repeats the batch. The durable store recognizes replays, the hot store ignores change
numbers that it has passed, and devices ignore repeated seqs.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog

from readstate.domain.errors import StorageUnavailable, Unavailable
from readstate.domain.events import Delivery, ReadEvent, read_event
from readstate.domain.facts import Effect
from readstate.domain.hot_updates import Gone
from readstate.domain.model import Position, Undelivered
from readstate.ports import Bus, Clock, CountDelta, Durable, HotBadges, HotChannels, HotUsers, Moved, Presence, Seen
from readstate.services.pending_writes import UnannouncedWrites
from readstate.services.undelivered import LateBadges

from .announcing import announcements, outcome

log = structlog.get_logger()

NoteAway = Callable[[Sequence[Effect]], Awaitable[None]]
"""Records messages for receivers who were away. Idempotent."""


class MessageWriter:
    """Consumer of the topic `messages`. Idempotent."""

    def __init__(
        self,
        durable: Durable,
        users: HotUsers,
        channels: HotChannels,
        badges: HotBadges,
        presence: Presence,
        bus: Bus,
        log_reads: Callable[[Sequence[ReadEvent]], Awaitable[None]],
        note_away: NoteAway,
        read_in_focus: Callable[[Sequence[Seen]], Awaitable[None]],
        drop_hot: Callable[[], Awaitable[None]] | None,
        unannounced: UnannouncedWrites,
        clock: Clock,
        instance_id: str,
    ) -> None:
        self._durable = durable
        self._users = users
        self._channels = channels
        self._badges = badges
        self._presence = presence
        self._bus = bus
        self._log_reads = log_reads
        self._note_away = note_away
        self._read_in_focus = read_in_focus
        self._drop_hot = drop_hot
        """Clears the hot state after it missed an update. None in a cluster: there the caller retries the batch."""
        self._unannounced = unannounced
        self._clock = clock
        self._instance = instance_id
        self._late = LateBadges(durable, badges, bus)
        self._seen_to: dict[int, int] = {}
        """By partition: the log position up to which this process has finished delivery tracking."""

    async def handle(self, deliveries: Sequence[Delivery], source: str = "") -> list[Effect]:
        effects = await self._store(deliveries, source)
        await self._leave_to_others(deliveries, effects)
        with self._unannounced.batch():
            moved, generation = await self._heat_and_tell(deliveries, effects)
        if moved:
            await self._log_moved(moved, generation)
        return effects

    async def _heat_and_tell(
        self, deliveries: Sequence[Delivery], effects: Sequence[Effect]
    ) -> tuple[list[Moved], int]:
        try:
            moved, generation = await self._heat(effects)
        except Unavailable as error:
            if self._drop_hot is None:
                raise
            # The durable store has the batch, so it succeeded; the hot state is reloaded when it is back.
            log.warning("the hot state has missed messages", action="write", code=error.code)
            with suppress(Unavailable):
                await self._drop_hot()
            moved, generation = [], 0
        lost = await self._presence.reached([one for effect in effects for one in effect.reached])
        told = _zip(deliveries, effects)
        news = [one for delivery, effect in told for one in announcements(delivery.event, effect, self._instance)]
        answers = [outcome(delivery.event.ref, effect) for delivery, effect in told if delivery.event.ref is not None]
        await self._bus.publish([*news, *answers])
        await self._note_lost(lost)
        self._see_to(told)
        return moved, generation

    async def _note_lost(self, lost: Sequence[Undelivered]) -> None:
        """Receivers who were online when the message was stored and are offline now count as undelivered after all.

        In a cluster a failure here raises, and the batch is retried; otherwise the writer keeps them for `tend`.
        """
        if self._drop_hot is None:
            await self._late.save(lost)
        else:
            await self._late.note(lost)

    async def tend(self) -> None:
        """Retry what `_note_lost` could not save. Does not raise when a store is down."""
        await self._late.note()

    async def _leave_to_others(self, deliveries: Sequence[Delivery], effects: Sequence[Effect]) -> None:
        """Skip delivery tracking for replayed events that were completed before.

        Otherwise a receiver who got the message and disconnected since would get it on the badge.
        """
        repeated = [
            (one.part, effect) for one, effect in _zip(deliveries, effects) if effect.repeated and effect.reached
        ]
        if not repeated:
            return
        ends = await self._channels.positions()
        for part, effect in repeated:
            if effect.position <= max(self._seen_to.get(part, 0), ends[part] if part < len(ends) else 0):
                effect.reached = []

    def _see_to(self, told: Sequence[tuple[Delivery, Effect]]) -> None:
        for delivery, effect in told:
            if delivery.part >= 0 and effect.reached:
                self._seen_to[delivery.part] = max(self._seen_to.get(delivery.part, 0), effect.position)

    async def _heat(self, effects: Sequence[Effect]) -> tuple[list[Moved], int]:
        """Update the hot store; returns the pointers that moved, and the generation before that."""
        await self._channels.apply([update for effect in effects for update in effect.channel_updates])
        generation = await self._users.generation()
        moved = await self._users.apply([update for effect in effects for update in effect.user_updates])
        await self._note_away(effects)
        # Last: the batch that deletes a channel may also have messages in it.
        for gone in (update for effect in effects for update in effect.user_updates if isinstance(update, Gone)):
            for user in gone.users:
                await self._badges.forget(user)
        if places := await self._in_focus(effects):
            await self._read_in_focus(places)
        return moved, generation

    async def _store(self, deliveries: Sequence[Delivery], source: str) -> list[Effect]:
        try:
            return await self._durable.apply(deliveries, self._presence.online, source)
        except StorageUnavailable as error:
            if error.uncertain and self._drop_hot is not None:  # committed or not: the hot state may lack it
                with suppress(Unavailable):
                    await self._drop_hot()
            raise

    async def _log_moved(self, moved: Sequence[Moved], generation: int) -> None:
        """Append moved pointers to the log.

        If the log refuses them, or the hot state was lost meanwhile, these users are reloaded. Not in a cluster: there
        a reload may lack reads that only the log has.
        """
        now = self._clock()
        events = [read_event(one.user_id, one.channel_id, one.pointer, now) for one in moved]
        if self._drop_hot is None:  # cluster: a reload may lack what only the log has
            await self._log_reads(events)
            return
        uncertain = {one.user_id for one in moved}
        try:
            await self._log_reads(events)
            uncertain = await self._users.dropped(generation, uncertain)
        finally:
            for user in uncertain:
                await self._users.forget(user)

    async def _in_focus(self, effects: Sequence[Effect]) -> list[Seen]:
        """The messages that are read at once, because a device has the channel open."""
        ends = {
            effect.message.channel_id: Position(effect.message.seq, effect.message.id, effect.message.at)
            for effect in effects
            if effect.message is not None and effect.message.seq is not None and not effect.duplicate
        }
        focused = await self._presence.focused(ends)
        if not focused:
            return []
        epochs = {channel: await self._epochs(channel, ends[channel], users) for channel, users in focused.items()}
        # Marking unread ends the focus before it raises the epoch. So a user who still has the channel open was in the
        # epoch read above, and a later mark-unread has a higher epoch, which wins.
        still = await self._presence.focused(focused)
        return [
            Seen(user, channel, ends[channel], epochs[channel][user])
            for channel, users in still.items()
            for user in users
            if user in epochs[channel]
        ]

    async def _epochs(self, channel: str, place: Position, users: Sequence[str]) -> dict[str, int | None]:
        """The epoch of each user in the channel; None: not loaded."""
        epochs: dict[str, int | None] = {}
        found = await self._users.count_delta(channel, place, frozenset(), users)
        for user, (count_delta, epoch) in zip(users, found, strict=True):
            epochs[user] = epoch
            if count_delta is CountDelta.LOOK and not epoch:  # 0 may also mean: not known
                view = await self._users.view(user, [channel])
                epochs[user] = None if view is None or not view.user_rooms else view.user_rooms[0].pointer.epoch
        return epochs


def _zip(deliveries: Sequence[Delivery], effects: Sequence[Effect]) -> list[tuple[Delivery, Effect]]:
    return list(zip(deliveries, effects, strict=True))
