"""A user's preferences for one channel (mute, counting, receipts, pin, archive) and for all channels."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET
from msgspec.structs import replace

from readstate.api import PreferencesView, PutPreferences, PutUserPreferences, UserPreferencesView
from readstate.api.preferences import plain
from readstate.domain.announcements import UserRoomChanged
from readstate.domain.errors import Unavailable
from readstate.domain.model import FOREVER, Preferences
from readstate.domain.rules import check_user_id, check_user_room, mute_end
from readstate.ports import Bus, Clock, Durable, HotUsers, UserRoom
from readstate.ports.consistency import Consistency

from .loading import MAX_TRIES, Loader
from .pending_writes import PendingWrites


@dataclass(eq=False, repr=False)
class ChannelPreferences:
    _users: HotUsers
    _durable: Durable
    _loader: Loader
    _bus: Bus
    _pending_writes: PendingWrites
    _consistency: Consistency
    _clock: Clock

    async def get(self, user: str, channel: str) -> PreferencesView:
        check_user_room(user, channel)
        return await self.view(user, await self._loader.user_room(user, channel))

    async def view(self, user: str, user_room: UserRoom) -> PreferencesView:
        wanted = user_room.preferences
        until = wanted.muted_until
        muted = until > self._clock()
        shown = plain(wanted, PreferencesView) | {"muted_until": until if muted and until != FOREVER else None}
        return PreferencesView(muted=muted, archived=bool(await self.archived(user, [user_room])), **shown)

    async def put(self, user: str, channel: str, request: PutPreferences) -> PreferencesView:
        """Change only the given fields. Concurrent changes of other fields survive."""
        check_user_room(user, channel)
        for _ in range(MAX_TRIES):
            known = (await self._loader.user_room(user, channel)).preferences
            wanted = await self._changed(channel, known, request)
            if await self._save(user, channel, known, wanted):
                return await self.get(user, channel)
        raise Unavailable("the user's state changed meanwhile; try again")

    async def _changed(self, channel: str, known: Preferences, request: PutPreferences) -> Preferences:
        changes = plain(request, Preferences)
        if request.muted is not UNSET:
            changes["muted_until"] = mute_end(request.muted, "muted")
        if request.archived is not UNSET:
            changes["archived_seq"] = (await self._loader.channel(channel)).last_seq if request.archived else -1
        return replace(known, **changes)

    async def _save(self, user: str, channel: str, known: Preferences, wanted: Preferences) -> bool:
        """Replace `known` in the hot state, then in the durable store. False: newer preferences are set."""
        generation = await self._users.generation([user])
        change = await self._users.prefer(user, channel, wanted, known.change)
        if change is None:
            return False
        try:
            with self._pending_writes.of({user}):
                await self._durable.save_preferences(user, channel, wanted, change)
                if await self._users.dropped(generation, [user]):
                    await self._consistency.repair_preferences(self._users, user, channel, wanted, change)
        except BaseException:
            await self._consistency.repair_preferences(self._users, user, channel, known, change)
            raise
        await self._bus.publish([UserRoomChanged(user, channel, conversation=True)])
        return True

    async def get_user(self, user: str) -> UserPreferencesView:
        return UserPreferencesView((await self._durable.activity(check_user_id(user, "user"))).receipts)

    async def put_user(self, user: str, request: PutUserPreferences) -> UserPreferencesView:
        check_user_id(user, "user")
        if request.receipts is not UNSET:
            change = await self._loader.of_user(user, lambda: self._users.take_number(user))
            with self._pending_writes.of({user}):
                await self._durable.save_receipts(user, request.receipts, change)
        return await self.get_user(user)

    async def archived(self, user: str, user_rooms: Sequence[UserRoom]) -> set[str]:
        """The channels among these that the user archived and in which no other user has written since."""
        marked = {one.channel_id: seq for one in user_rooms if (seq := one.preferences.archived_seq) >= 0}
        if not marked:
            return set()
        channels = zip(marked.items(), await self._loader.channels(list(marked)), strict=True)
        moved = [(name, seq) for (name, seq), channel in channels if channel is not None and channel.last_seq > seq]
        back = set(await self._durable.wrote_since(user, moved)) if moved else set()
        return set(marked) - back
