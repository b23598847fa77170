"""Renders what a device missed since a cursor as events.

Removed channels come first; then the new messages of each changed channel by seq, with `counts: false`; then the
current counts of channels and threads; then receipts. Intermediate states are lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import structs

from readstate.api.frames import ChannelRemoved, Event, MessageNew, ReceiptUpdated, SyncRequired
from readstate.domain.model import LogPosition, SeenPosition, Seq
from readstate.ports import Durable
from readstate.services.changes import Changed, Changes
from readstate.services.cursors import SyncCursor
from readstate.services.loading import Loader

from .rendering import LATER, Dirty, EventRenderer, Marks, mentions, message_new

MAX_EVENTS = 1_000


class Missed(NamedTuple):
    """The events between two cursors, in order, without their cursors."""

    start: SyncCursor
    reached: SyncCursor
    events: Sequence[Event]
    complete: bool = True

    @classmethod
    def incomplete(cls, reached: SyncCursor) -> "Missed":
        event = SyncRequired(reason="the missed events can't be sent completely", resume=LATER)
        return cls(reached, reached, (event,), complete=False)


@dataclass(eq=False, repr=False)
class CatchUp:
    _durable: Durable
    _loader: Loader
    _changes: Changes
    _renderer: EventRenderer
    _receipts_max_members: int

    async def since(self, user: str, start: SyncCursor | None) -> Missed:
        """What a device with the cursor `start` missed; None: its cursor is invalid.

        The end is taken before the lookup: what changes later is found by the lookup, or announced, or both.
        """
        reached = await self._changes.cursor(user)
        if start is not None and start.is_before(reached) and not await self._changes.erased_since(user, start):
            events = await self._events(user, start)
            if events is not None:
                return Missed(start, reached, events)
        return Missed.incomplete(reached)

    async def _events(self, user: str, start: SyncCursor) -> list[Event] | None:
        """None for more than 1,000 events, and when the user leaves a channel during the lookup."""
        changed = await self._changes.changed(user, start)
        room = MAX_EVENTS - 2 * len(changed.channels) - len(changed.removed) - len(changed.threads)
        events: list[Event] = [ChannelRemoved(channel_id=name, resume=LATER) for name in changed.removed]
        joins = await self._durable.joins(user, changed.channels)
        for name in changed.channels:
            messages = await self._messages(user, name, start, joins.get(name), room) if room >= 0 else None
            if messages is None:
                return None
            events += messages
            room -= len(messages)
        if len(await self._loader.member_of(user, frozenset(changed.channels))) < len(changed.channels):
            return None  # the user left a channel meanwhile: the messages found may be newer than that
        events += await self._current_state(user, changed)
        receipts = await self.receipts(user, start.at)
        if receipts is None:
            return None
        events += receipts
        return events if len(events) <= MAX_EVENTS else None

    async def receipts(self, user: str, since: int) -> list[ReceiptUpdated] | None:
        """Receipts of others since a time (ms), as far as the durable store has them; None if there are too many."""
        seen = await self._durable.receipts_since(user, since, self._receipts_max_members, MAX_EVENTS)
        return None if seen is None else list(map(receipt_updated, seen))

    async def _messages(
        self, user: str, channel: str, start: SyncCursor, join: tuple[Seq, LogPosition] | None, most: int
    ) -> list[MessageNew] | None:
        """New messages of a channel, none from before the user's last join; None if there are more than `most`."""
        if join is None:  # the user has just left
            return []
        seq, position = join
        found = await self._durable.messages_since(channel, max(position, start.position_of(channel)), most)
        if len(found) > most:
            return None
        return [
            message_new(m, counts=False, mentions_me=mentions(m, user))
            for m in found
            if not m.deleted and (m.seq is None or m.seq > seq)
        ]

    async def _current_state(self, user: str, changed: Changed) -> Sequence[Event]:
        """Of everything that changed, including threads of channels that the user joined again."""
        marks = {name: Marks(counts=True, conversation=True) for name in changed.channels}
        dirty = Dirty(marks, set(changed.threads), rejoined=set(changed.channels))
        return [event for event, _ in await self._renderer.render(user, dirty)]


def receipt_updated(seen: SeenPosition) -> ReceiptUpdated:
    return ReceiptUpdated(**structs.asdict(seen), resume=LATER)
