"""Renders what a device missed since a cursor as events.

Removed channels come first; then the new messages of each changed channel by seq, with `counts: false`; then the
current counts of channels and threads; then receipts. Intermediate states are lost.
"""

from collections.abc import Sequence

from readstate.api.frames import ChannelRemoved, Event, MessageNew, ReceiptUpdated
from readstate.domain.model import SeenPlace
from readstate.ports import Durable
from readstate.services.changes import Changed, Changes
from readstate.services.cursors import SyncCursor

from .rendering import LATER, Dirty, EventRenderer, Marks, mentions, message_new

MAX_EVENTS = 1_000


class CatchUp:
    def __init__(
        self,
        durable: Durable,
        changes: Changes,
        renderer: EventRenderer,
        *,
        receipts_max_members: int,
    ) -> None:
        self._durable = durable
        self._changes = changes
        self._renderer = renderer
        self._receipts_limit = receipts_max_members

    async def since(self, user: str, start: SyncCursor) -> list[Event] | None:
        """The events, in order, without their cursors; None if they can't be given completely.

        That is so for more than 1,000 events, and when the user leaves a channel during the lookup.
        """
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
        if len(await self._changes.member_of(user, frozenset(changed.channels))) < len(changed.channels):
            return None  # the user left a channel meanwhile: the messages found may be newer than that
        events += await self._standing(user, changed)
        receipts = await self.receipts(user, start.at)
        if receipts is None:
            return None
        events += receipts
        return events if len(events) <= MAX_EVENTS else None

    async def receipts(self, user: str, since: int) -> list[ReceiptUpdated] | None:
        """Receipts of others since a time (ms), as far as the durable store has them; None if there are too many."""
        seen = await self._durable.receipts_since(user, since, self._receipts_limit, MAX_EVENTS)
        return None if seen is None else list(map(receipt_updated, seen))

    async def _messages(
        self, user: str, channel: str, start: SyncCursor, join: tuple[int, int] | None, most: int
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

    async def _standing(self, user: str, changed: Changed) -> Sequence[Event]:
        """The current state of everything that changed, including threads of channels that the user joined again."""
        marks = {name: Marks(counts=True, conversation=True) for name in changed.channels}
        dirty = Dirty(marks, set(changed.threads), rejoined=set(changed.channels))
        return [event for event, _ in await self._renderer.render(user, dirty)]


def receipt_updated(seen: SeenPlace) -> ReceiptUpdated:
    return ReceiptUpdated(
        channel_id=seen.channel_id,
        user_id=seen.user_id,
        last_read_id=seen.last_read_id,
        last_read_seq=seen.last_read_seq,
        read_at=seen.read_at,
        resume=LATER,
    )
