"""What is checked and added before an event goes to the log.

The writer may lack mark-unreads that only the log has so far, so events carry the epochs of their users. While the hot
store is behind, these may be too low: such events are `in_doubt`.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from readstate.domain.errors import NotAMember
from readstate.domain.events import MembersEvent, MessageEvent
from readstate.domain.folding.threads import root_error
from readstate.ports import DurableQueries, Freshness, UserRoom
from readstate.ports.consistency import Consistency

from .loading import Loader
from .positions import Positions

Member = tuple[str, str]
"""(user, channel)."""


@dataclass(eq=False, repr=False)
class EventChecks:
    _loader: Loader
    _positions: Positions
    _durable: DurableQueries
    _freshness: Freshness
    _consistency: Consistency

    async def members(self, pairs: Iterable[Member]) -> Mapping[Member, UserRoom]:
        """The user rooms of those (user, channel) who are members. All users are looked up at the same time."""
        rooms: dict[str, list[str]] = {}
        for user, channel in dict.fromkeys(pairs):
            rooms.setdefault(user, []).append(channel)
        views = await asyncio.gather(*(self._loader.view(user, names) for user, names in rooms.items()))
        return {
            (user, one.channel_id): one
            for user, view in zip(rooms, views, strict=True)
            for one in view.user_rooms
            if one.member
        }

    def sender(self, event: MessageEvent, members: Mapping[Member, UserRoom]) -> MessageEvent:
        """Raises NotAMember, or adds the sender's epoch."""
        user, channel = event.sender_id, event.channel_id
        user_room = members.get((user, channel))
        if user_room is None:
            raise NotAMember(
                f"channel {channel!r} has no member {user!r}: add {user!r} first, "
                'or send with "outside": true (service keys only)',
                field="sender_id",
            )
        return replace(event, epoch=user_room.pointer.epoch, in_doubt=self._freshness.behind([user]))

    async def root(self, event: MessageEvent, beside: set[tuple[str, str]]) -> MessageEvent:
        """Raises if the event is a reply without a valid root. `beside`: messages of the same request."""
        if event.thread_id is None or (event.channel_id, event.thread_id) in beside:
            return event
        return await self._consistency.before_append(event, partial(self._root, event.thread_id))

    async def _root(self, thread: str, event: MessageEvent) -> MessageEvent:
        key = (event.channel_id, thread)
        error = root_error(thread, (await self._positions.messages([key])).get(key))
        if error is not None:
            raise error
        return event

    async def returning(self, event: MembersEvent) -> MembersEvent:
        """Adds the epochs of members who come back."""
        return await self._consistency.before_append(event, self._returning) if event.add else event

    async def _returning(self, event: MembersEvent) -> MembersEvent:
        epochs = {}
        for user in await self._durable.once_members(event.channel_id, event.add):
            for user_room in (await self._loader.view(user, [event.channel_id])).user_rooms:
                epochs[user] = user_room.pointer.epoch
        return replace(event, epochs=epochs, in_doubt=bool(epochs) and self._freshness.behind(epochs))
