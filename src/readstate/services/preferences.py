"""A user's preferences for one channel (mute, counting, receipts, pin, archive) and for all channels."""

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from readstate.api import PreferencesView, PutPreferences, PutUserPreferences, UserPreferencesView
from readstate.api.preferences import plain
from readstate.domain.announcements import UserRoomChanged
from readstate.domain.errors import Unavailable
from readstate.domain.model import FOREVER, Preferences
from readstate.domain.rules import check_id, check_user_id, mute_end
from readstate.ports import Bus, Clock, Durable, DurableReceipts, DurableUsers, DurableWrites, HotUsers, UserRoom

from .loading import MAX_TRIES, Loader
from .pending_writes import PendingWrites


class ChannelPreferences:
    def __init__(
        self,
        users: HotUsers,
        durable: Durable,
        loader: Loader,
        bus: Bus,
        pending_writes: PendingWrites,
        clock: Clock,
        *,
        alone: bool,
    ) -> None:
        self._users = users
        self._durable: DurableWrites = durable
        self._activity: DurableUsers = durable
        self._receipts: DurableReceipts = durable
        self._loader = loader
        self._bus = bus
        self._pending_writes = pending_writes
        self._clock = clock
        self._alone = alone

    async def get(self, user: str, channel: str) -> PreferencesView:
        check_user_id(user, "user")
        check_id(channel, "channel")
        return await self.view(user, await self._loader.user_room(user, channel))

    async def view(self, user: str, user_room: UserRoom) -> PreferencesView:
        wanted = user_room.preferences
        until = wanted.muted_until
        muted = until > self._clock()
        shown = plain(wanted, PreferencesView) | {"muted_until": until if muted and until != FOREVER else None}
        return PreferencesView(muted=muted, archived=bool(await self.archived(user, [user_room])), **shown)

    async def put(self, user: str, channel: str, request: PutPreferences) -> PreferencesView:
        """Change only the given fields. Concurrent changes of other fields survive."""
        check_user_id(user, "user")
        check_id(channel, "channel")
        for _ in range(MAX_TRIES):
            known = (await self._loader.user_room(user, channel)).preferences
            wanted = await self._changed(channel, known, request)
            if await self._save(user, channel, known, wanted):
                return await self.get(user, channel)
        raise _overtaken()

    async def _changed(self, channel: str, known: Preferences, request: PutPreferences) -> Preferences:
        changes = plain(request, Preferences)
        if request.muted is not UNSET:
            changes["muted_until"] = mute_end(request.muted, "muted")
        if request.archived is not UNSET:
            changes["archived_seq"] = (await self._loader.channel(channel)).last_seq if request.archived else -1
        return replace(known, **changes)

    async def _save(self, user: str, channel: str, known: Preferences, wanted: Preferences) -> bool:
        """Replace `known` in the hot state, then in the durable store. False: newer preferences are set."""
        generation = await self._users.generation()
        change = await self._users.prefer(user, channel, wanted, known.change)
        if change is None:
            return False
        try:
            with self._pending_writes.of({user}):
                await self._durable.save_preferences(user, channel, wanted, change)
                if await self._users.dropped(generation, [user]):
                    await self._look_again(user, channel, wanted, change)
        except BaseException:
            await self._look_again(user, channel, known, change)
            raise
        await self._bus.publish([UserRoomChanged(user, channel, conversation=True)])
        return True

    async def _look_again(self, user: str, channel: str, preferences: Preferences, change: int) -> None:
        """Repair hot state that may differ from the durable store.

        A process with its own hot state reloads the user. A shared hot store may have reads that only the log has, so
        it keeps the user and takes these preferences, unless newer ones than those of `change` are set.
        """
        if self._alone:
            await self._users.forget(user)
        else:
            await self._users.prefer(user, channel, preferences, change)

    async def get_user(self, user: str) -> UserPreferencesView:
        return UserPreferencesView((await self._activity.activity(check_user_id(user, "user"))).receipts)

    async def put_user(self, user: str, request: PutUserPreferences) -> UserPreferencesView:
        check_user_id(user, "user")
        if request.receipts is not UNSET:
            change = await self._take_number(user)
            with self._pending_writes.of({user}):
                await self._activity.save_receipts(user, request.receipts, change)
        return await self.get_user(user)

    async def _take_number(self, user: str) -> int:
        for _ in range(MAX_TRIES):
            change = await self._users.take_number(user)
            if change is not None:
                return change
            await self._loader.load_users([user])
        raise _overtaken()

    async def archived(self, user: str, user_rooms: Sequence[UserRoom]) -> set[str]:
        """The channels among these that the user archived and in which no other user has written since."""
        marked = {
            user_room.channel_id: user_room for user_room in user_rooms if user_room.preferences.archived_seq >= 0
        }
        if not marked:
            return set()
        names = list(marked)
        channels = await self._loader.channels(names)
        moved = [
            (name, marked[name].preferences.archived_seq)
            for name, channel in zip(names, channels, strict=True)
            if channel is not None and channel.last_seq > marked[name].preferences.archived_seq
        ]
        back = set(await self._receipts.wrote_since(user, moved)) if moved else set()
        return set(names) - back


def _overtaken() -> Unavailable:
    return Unavailable("the user's state changed meanwhile; try again")
