"""What a device has missed since a cursor, as events: delta sync told as a story."""

from collections.abc import Sequence

from readstate.api.frames import ChannelRemoved, Event, MessageNew, ReceiptUpdated
from readstate.domain.model import SeenPlace
from readstate.ports import Durable
from readstate.services.cursors import SyncCursor
from readstate.services.unread import Changed, UnreadCounts

from .rendering import LATER, Dirty, EventRenderer, Marks, mentions, message_new

MAX_EVENTS = 1_000


class CatchUp:
    """Per changed channel the new messages by seq, then how it stands; then threads and receipts."""

    def __init__(
        self,
        durable: Durable,
        unread: UnreadCounts,
        renderer: EventRenderer,
        *,
        receipts_max_members: int,
    ) -> None:
        self._durable = durable
        self._unread = unread
        self._renderer = renderer
        self._receipts_limit = receipts_max_members

    async def since(self, user: str, start: SyncCursor) -> list[Event] | None:
        """The events, in order, without their cursors; None if they are too many to be given whole."""
        changed = await self._unread.changed(user, start)
        room = MAX_EVENTS - 2 * len(changed.channels) - len(changed.removed) - len(changed.threads)
        events: list[Event] = [ChannelRemoved(channel_id=name, resume=LATER) for name in changed.removed]
        joins = await self._durable.joins(user, changed.channels)
        for name in changed.channels:
            messages = await self._messages(user, name, start, joins.get(name), room) if room >= 0 else None
            if messages is None:
                return None
            events += messages
            room -= len(messages)
        if len(await self._unread.member_of(user, frozenset(changed.channels))) < len(changed.channels):
            return None  # the user has left a channel meanwhile: its messages may be of after that
        events += await self._standing(user, changed)
        events += await self.receipts(user, start.at)
        return events if len(events) <= MAX_EVENTS else None

    async def receipts(self, user: str, since: int) -> list[ReceiptUpdated]:
        """What others have read since, as far as it is stored."""
        seen = await self._durable.receipts_since(user, since, self._receipts_limit, MAX_EVENTS)
        return list(map(receipt_updated, seen))

    async def _messages(
        self, user: str, channel: str, start: SyncCursor, join: tuple[int, int] | None, most: int
    ) -> list[MessageNew] | None:
        """Messages from before the user joined, or joined again, are none of those that the user missed."""
        if join is None:  # left just now
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
        """How everything that changed stands now; a thread may be back with its channel."""
        marks = {name: Marks(counts=True, conversation=True) for name in changed.channels}
        dirty = Dirty(marks, set(changed.threads), rejoined=set(changed.channels))
        return [event for event, _ in await self._renderer.render(user, dirty)]


def receipt_updated(seen: SeenPlace) -> ReceiptUpdated:
    """A receipt as others are told of it."""
    return ReceiptUpdated(
        channel_id=seen.channel_id,
        user_id=seen.user_id,
        last_read_id=seen.last_read_id,
        last_read_seq=seen.last_read_seq,
        read_at=seen.read_at,
        resume=LATER,
    )
