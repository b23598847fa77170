"""Presence: who is online, when somebody last was, and what did not get through to those who are gone."""

from collections.abc import Sequence
from contextlib import suppress

import structlog

from readstate.api import PresenceView, PutPresence
from readstate.domain.errors import Invalid, ReadstateError
from readstate.domain.model import FOREVER, Undelivered
from readstate.domain.rules import check_id, check_user_id
from readstate.ports import Bus, Clock, Departure, Devices, DurableUsers, HotBadges

from .loading import Loader
from .undelivered import LateBadges

log = structlog.get_logger()


class UserPresence:
    """Connections of devices, as this process or a product with connections of its own sees them."""

    def __init__(
        self,
        devices: Devices,
        loader: Loader,
        durable: DurableUsers,
        badges: HotBadges,
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._devices = devices
        self._loader = loader
        self._durable = durable
        self._late = LateBadges(durable, badges, bus)
        self._clock = clock

    async def get(self, user: str) -> PresenceView:
        """Online while at least one device is connected."""
        await self.expire(check_user_id(user, "user"))
        devices = await self._devices.devices(user)
        seen = self._clock() if devices else (await self._durable.activity(user)).last_seen
        return PresenceView(bool(devices), seen or None, devices)

    async def put(self, user: str, request: PutPresence) -> PresenceView:
        """A device is connected, or gone."""
        await self.expire(check_user_id(user, "user"))
        device = check_id(request.device, "device")
        focus = None if request.focus is None else check_id(request.focus, "focus")
        if focus is not None:
            await self._loader.user_room(user, focus)
        now = self._clock()
        if request.online:
            await self._devices.connect(user, device, now + request.ttl * 1000, focus)
        elif focus is not None:
            raise Invalid("a device that is gone has nothing open", field="focus")
        elif (gone := await self._devices.disconnect(user, device)) is not None:
            await self._departed([gone])
        return await self.get(user)

    async def connected(self, user: str, device: str, connection: str) -> None:
        """A device has a connection to this instance, until it says otherwise."""
        await self._devices.connect(user, device, FOREVER, None, connection)

    async def focus(self, user: str, device: str, connection: str, channel: str | None) -> None:
        """A device has a channel open, or none; anew, also if it was the same."""
        if channel is not None:
            await self._loader.user_room(user, check_id(channel, "channel_id"))
        await self._devices.connect(user, device, FOREVER, None, connection)
        if channel is not None:
            await self._devices.connect(user, device, FOREVER, channel, connection)

    def alive(self, user: str) -> None:
        """A device has given a sign of life: what was sent to it has got through."""
        self._devices.proven(user)

    async def disconnected(self, user: str, device: str, connection: str) -> None:
        """A connection to this instance has ended."""
        if (gone := await self._devices.disconnect(user, device, connection)) is not None:
            await self._departed([gone])

    async def expire(self, user: str | None = None) -> None:
        """Let go of devices (of one user) that were not reported in time."""
        await self._departed(await self._devices.expire(user))

    async def close(self) -> None:
        """Note what could not be noted yet."""
        with suppress(ReadstateError):
            await self.expire()

    async def _note(self, unproven: Sequence[Undelivered]) -> None:
        """Never fails: what is not noted is kept beside the devices, and told again."""
        if not unproven:
            return
        try:
            await self._late.save(unproven)
            await self._devices.noted(unproven)
        except ReadstateError as error:
            log.warning("undelivered messages are not noted yet", action="badge", count=len(unproven), code=error.code)

    async def _departed(self, departures: Sequence[Departure]) -> None:
        """Users are gone: what may not have got through is undelivered. That is noted first."""
        await self._note([one for departure in departures for one in departure.unproven])
        for departure in departures:
            if departure.since:
                await self._durable.save_seen(departure.user_id, departure.since)
