"""Takes out of the hot state what an import or an erase has made stale. It is reloaded on use."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from readstate.domain.events import MembersEvent
from readstate.domain.hot_updates import FanOut
from readstate.domain.model import Channel
from readstate.domain.rooms import channel_and_thread
from readstate.ports import Clock, Hot, Log
from readstate.ports.consistency import Consistency

from .positions import Positions


@dataclass(eq=False, repr=False)
class HotCleanup:
    _hot: Hot
    _log: Log
    _positions: Positions
    _consistency: Consistency
    _clock: Clock

    async def drop_devices(self, user: str) -> None:
        await self._hot.presence.drop(user)

    async def drop_erased(self, user: str, rooms: Mapping[str, Channel], receivers: Collection[str]) -> None:
        """Drop only the erased user, and the badges that count the user: others may have reads that only the log has.

        The user's channels have fewer members now. In a direct channel, the members who stay have another peer, or
        none.
        """
        await self._consistency.update_erased_rooms(self._hot.channels, rooms.values())
        await self._hot.users.apply([_peers_changed(room) for room in rooms.values() if room.peers])
        await self._hot.users.erase(user, rooms)
        await self._hot.badges.forget(user)
        if rooms:
            await self._consistency.pass_erased_rooms(lambda: self.pass_log(next(iter(rooms))))
        for receiver in receivers:
            await self._hot.badges.forget(receiver)

    async def drop_imported(self, rooms: Mapping[str, int], users: Collection[str]) -> None:
        """Drop rooms, given with their change numbers after the import, and users with their badges."""
        self._positions.forget(rooms)
        await self._consistency.drop_imported(self._hot, rooms, users, lambda: self.pass_log(next(iter(rooms))))

    async def pass_log(self, room: str) -> None:
        """Append an event that does nothing but take the log position that changed rooms have noted.

        So the next change of a room gets a later position. When the event is answered, so is everything that was in
        flight.
        """
        channel, _ = channel_and_thread(room)
        await self._log.channel_events([MembersEvent(channel_id=channel, created_at=self._clock())])


def _peers_changed(room: Channel) -> FanOut:
    """Marks the channel as changed for the members who stay in a direct channel."""
    return FanOut(room.channel_id, room.change, room.peers, latest_at=room.latest_at, archived=room.archived)
