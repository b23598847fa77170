"""Reads messages at once for users who have the channel open."""

from collections.abc import Awaitable, Callable, Sequence

from readstate.domain.facts import Effect
from readstate.domain.model import Position
from readstate.ports import CountDelta, HotUsers, Presence, Seen

ReadInFocus = Callable[[Sequence[Seen]], Awaitable[None]]


class FocusedReads:
    def __init__(self, users: HotUsers, presence: Presence, read: ReadInFocus) -> None:
        self._users = users
        self._presence = presence
        self._read = read

    async def read(self, effects: Sequence[Effect]) -> None:
        ends = {
            effect.message.channel_id: Position(effect.message.seq, effect.message.id, effect.message.at)
            for effect in effects
            if effect.message is not None and effect.message.seq is not None and not effect.duplicate
        }
        focused = await self._presence.focused(ends)
        if not focused:
            return
        epochs = {channel: await self._epochs(channel, ends[channel], users) for channel, users in focused.items()}
        # Marking unread ends the focus before it raises the epoch. So a user who still has the channel open was in the
        # epoch read above, and a later mark-unread has a higher epoch, which wins.
        still = await self._presence.focused(focused)
        seen = [
            Seen(user, channel, ends[channel], epochs[channel][user])
            for channel, users in still.items()
            for user in users
            if user in epochs[channel]
        ]
        if seen:
            await self._read(seen)

    async def _epochs(self, channel: str, end: Position, users: Sequence[str]) -> dict[str, int | None]:
        """The epoch of each user in the channel; None: not loaded."""
        epochs: dict[str, int | None] = {}
        found = await self._users.count_delta(channel, end, frozenset(), users)
        for user, (count_delta, epoch) in zip(users, found, strict=True):
            epochs[user] = epoch
            if count_delta is CountDelta.LOOK and not epoch:  # 0 may also mean: not known
                view = await self._users.view(user, [channel])
                epochs[user] = None if view is None or not view.user_rooms else view.user_rooms[0].pointer.epoch
        return epochs
