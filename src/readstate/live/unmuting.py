"""Mutes expire without an announcement. A timer per connected user marks the channel's counts as dirty then."""

import asyncio
from dataclasses import dataclass

import structlog

from readstate.domain.errors import ReadstateError
from readstate.domain.model import FOREVER
from readstate.ports import Clock
from readstate.services.loading import Loader
from readstate.timings import LiveTimings

from .sending import EventSender
from .sessions import ConnectedUsers, UserSession

log = structlog.get_logger()


@dataclass(eq=False, repr=False)
class Unmuting:
    """One timer per user, for the mute that expires next."""

    _connected: ConnectedUsers
    _loader: Loader
    _sender: EventSender
    _clock: Clock
    _timings: LiveTimings

    def schedule(self, user: UserSession) -> None:
        """Look at the user's mutes again, after they may have changed."""
        self.stop(user)
        self._connected.spawn(self._mark_expired(user))

    @staticmethod
    def stop(user: UserSession) -> None:
        if user.mute_timer is not None:
            user.mute_timer.cancel()
            user.mute_timer = None

    async def _mark_expired(self, user: UserSession) -> None:
        """Mark channels whose mute has expired, and set the timer for the next one."""
        while self._connected.has(user):
            try:
                preferences = (await self._loader.view(user.id, [])).preferences
                break
            except ReadstateError as error:
                log.debug("mutes could not be looked up yet", action="live", reason=error.explained)
                await asyncio.sleep(self._timings.retry)
        if not self._connected.has(user):
            return
        now = self._clock()
        for name, wanted in preferences.items():
            if user.unmuted_until < wanted.muted_until <= now:
                self._connected.mark(user, name)
        user.unmuted_until = now
        ends = [wanted.muted_until for wanted in preferences.values() if now < wanted.muted_until < FOREVER]
        if ends:
            self.stop(user)
            delay = min((min(ends) - now) / 1000, self._timings.max_mute_timer)
            user.mute_timer = asyncio.get_running_loop().call_later(delay, self.schedule, user)
        await self._sender.send()
