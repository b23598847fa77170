"""The epochs that events carry to the writer: a user's mark-unreads may be only in the log so far."""

from msgspec.structs import replace

from readstate.domain.errors import NotAMember
from readstate.domain.events import MembersEvent, MessageEvent
from readstate.ports import DurableQueries, Freshness
from readstate.ports.consistency import Consistency

from .loading import Loader


class Epochs:
    """While the hot store is behind, its epochs may be too low: such events are `in_doubt`."""

    def __init__(self, loader: Loader, durable: DurableQueries, freshness: Freshness, consistency: Consistency) -> None:
        self._loader = loader
        self._durable = durable
        self._freshness = freshness
        self._consistency = consistency

    async def of_sender(self, event: MessageEvent) -> MessageEvent:
        """Raises NotAMember."""
        user, channel = event.sender_id, event.channel_id
        user_rooms = (await self._loader.view(user, [channel])).user_rooms
        if not user_rooms or not user_rooms[0].member:
            raise NotAMember(
                f"channel {channel!r} has no member {user!r}: add {user!r} first, "
                'or send with "outside": true (service keys only)',
                field="sender_id",
            )
        return replace(event, epoch=user_rooms[0].pointer.epoch, in_doubt=self._freshness.behind)

    async def of_returning(self, event: MembersEvent) -> MembersEvent:
        """Adds the epochs of members who come back."""
        return await self._consistency.before_append(event, self._of_returning)

    async def _of_returning(self, event: MembersEvent) -> MembersEvent:
        if not event.add:
            return event
        epochs = {}
        for user in await self._durable.once_members(event.channel_id, event.add):
            for user_room in (await self._loader.view(user, [event.channel_id])).user_rooms:
                epochs[user] = user_room.pointer.epoch
        return replace(event, epochs=epochs, in_doubt=bool(epochs) and self._freshness.behind)
