"""Presence: who is online, when a user was last online, and which messages did not reach users who are gone."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from readstate.api import PresenceView, PutPresence
from readstate.domain.errors import Invalid, ReadstateError
from readstate.domain.model import FOREVER
from readstate.domain.rules import check_id, check_user_id
from readstate.ports import Clock, Departure, Devices, DurableUsers

from .loading import Loader
from .undelivered import LateBadges

log = structlog.get_logger()


@dataclass(eq=False, repr=False)
class UserPresence:
    """Connections of devices: to this instance, or as reported by a product with connections of its own."""

    _devices: Devices
    _loader: Loader
    _durable: DurableUsers
    _late: LateBadges
    _clock: Clock

    async def get(self, user: str) -> PresenceView:
        """A user is online while at least one device is connected."""
        await self.expire(check_user_id(user, "user"))
        devices = await self._devices.devices(user)
        seen = self._clock() if devices else (await self._durable.activity(user)).last_seen
        return PresenceView(bool(devices), seen or None, devices)

    async def put(self, user: str, request: PutPresence) -> PresenceView:
        """Take a report that a device is connected or gone."""
        await self.expire(check_user_id(user, "user"))
        device = check_id(request.device, "device")
        focus = None if request.focus is None else check_id(request.focus, "focus")
        if focus is not None:
            await self._loader.user_room(user, focus)
        now = self._clock()
        if request.online:
            await self._devices.connect(user, device, now + request.ttl * 1000, focus)
        elif focus is not None:
            raise Invalid("a disconnected device has no focus", field="focus")
        elif (gone := await self._devices.disconnect(user, device)) is not None:
            await self._departed([gone])
        return await self.get(user)

    async def connected(self, user: str, device: str, connection: str) -> None:
        """The device is connected to this instance until `disconnected`."""
        await self._devices.connect(user, device, FOREVER, None, connection)

    async def focus(self, user: str, device: str, connection: str, channel: str | None) -> None:
        """Set or clear the channel that a device has open. The same channel again counts as opened anew."""
        if channel is not None:
            await self._loader.user_room(user, check_id(channel, "channel_id"))
        await self._devices.connect(user, device, FOREVER, None, connection)
        if channel is not None:
            await self._devices.connect(user, device, FOREVER, channel, connection)

    def alive(self, user: str) -> None:
        """The user's device has given a sign of life: everything sent before it has arrived."""
        self._devices.proven(user)

    async def disconnected(self, user: str, device: str, connection: str) -> None:
        if (gone := await self._devices.disconnect(user, device, connection)) is not None:
            await self._departed([gone])

    async def expire(self, user: str | None = None) -> None:
        """Drop devices (of one user) that are overdue."""
        await self._departed(await self._devices.expire(user))

    async def close(self) -> None:
        """Try once more to save undelivered messages that could not be saved before."""
        with suppress(ReadstateError):
            await self.expire()

    async def _departed(self, departures: Sequence[Departure]) -> None:
        """Save messages that may not have arrived as undelivered; then save when the users were last online.

        Messages that cannot be saved stay with the devices, and `expire` returns them again.
        """
        unproven = [one for departure in departures for one in departure.unproven]
        try:
            if unproven:
                await self._late.save(unproven)
                await self._devices.noted(unproven)
        except ReadstateError as error:
            log.warning("undelivered messages are not noted yet", action="badge", count=len(unproven), code=error.code)
        for departure in departures:
            if departure.since:
                await self._durable.save_seen(departure.user_id, departure.since)
