"""What a user wants of a channel."""

from msgspec import UNSET

from ..api import PreferencesView, PutPreferences
from ..errors import Unavailable
from ..model import FOREVER, Preferences
from ..ports import Clock, DurableWrites, HotUsers
from ..rules import parse_time
from .loading import Loader


class ChannelPreferences:
    """Mutes and counting, per user and channel."""

    def __init__(self, users: HotUsers, durable: DurableWrites, loader: Loader, clock: Clock) -> None:
        self._users = users
        self._durable = durable
        self._loader = loader
        self._clock = clock

    async def get(self, user: str, channel: str) -> PreferencesView:
        """What holds now."""
        return self._view((await self._loader.seat(user, channel)).preferences)

    async def put(self, user: str, channel: str, request: PutPreferences) -> PreferencesView:
        """Change what is given."""
        known = (await self._loader.seat(user, channel)).preferences
        muted_until = known.muted_until
        if isinstance(request.muted, bool):
            muted_until = FOREVER if request.muted else 0
        elif request.muted is not UNSET:
            muted_until = parse_time(request.muted, "muted")
        wanted = Preferences(muted_until, known.count if request.count is UNSET else request.count)
        change = await self._users.prefer(user, channel, wanted)
        if change is None:
            raise Unavailable("the user's state changed meanwhile; try again")
        try:
            await self._durable.save_preferences(user, channel, wanted, change)
        except BaseException:
            await self._users.forget(user)
            raise
        return self._view(wanted)

    def _view(self, preferences: Preferences) -> PreferencesView:
        until = preferences.muted_until
        muted = until > self._clock()
        return PreferencesView(muted, until if muted and until != FOREVER else None, preferences.count)
