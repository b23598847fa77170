"""Presence: who is online, and when somebody last was."""

from ..api import PresenceView, PutPresence
from ..errors import Invalid
from ..model import FOREVER
from ..ports import Clock, Devices, DurableUsers
from ..rules import check_id, check_user_id
from .loading import Loader


class UserPresence:
    """Connections of devices, as this process or a product with connections of its own sees them."""

    def __init__(self, devices: Devices, loader: Loader, durable: DurableUsers, clock: Clock) -> None:
        self._devices = devices
        self._loader = loader
        self._durable = durable
        self._clock = clock

    async def get(self, user: str) -> PresenceView:
        """Online while at least one device is connected."""
        await self.expire(check_user_id(user, "user"))
        devices = self._devices.devices(user)
        seen = self._clock() if devices else (await self._durable.activity(user)).last_seen
        return PresenceView(bool(devices), seen or None, devices)

    async def put(self, user: str, request: PutPresence) -> PresenceView:
        """A device is connected, or gone."""
        await self.expire(check_user_id(user, "user"))
        device = check_id(request.device, "device")
        focus = None if request.focus is None else check_id(request.focus, "focus")
        if focus is not None:
            await self._loader.seat(user, focus)
        now = self._clock()
        if request.online:
            self._devices.connect(user, device, now + request.ttl * 1000, focus)
        elif focus is not None:
            raise Invalid("a device that is gone has nothing open", field="focus")
        elif self._devices.disconnect(user, device):
            await self._durable.save_seen(user, now)
        return await self.get(user)

    def connected(self, user: str, device: str, connection: str) -> None:
        """A device has a connection to this instance, until it says otherwise."""
        self._devices.connect(user, device, FOREVER, None, connection)

    async def focus(self, user: str, device: str, connection: str, channel: str | None) -> None:
        """A device has a channel open, or none; anew, also if it was the same."""
        if channel is not None:
            await self._loader.seat(user, channel)
        self._devices.connect(user, device, FOREVER, None, connection)
        self._devices.connect(user, device, FOREVER, channel, connection)

    async def disconnected(self, user: str, device: str, connection: str) -> None:
        """A connection to this instance has ended."""
        if self._devices.disconnect(user, device, connection):
            await self._durable.save_seen(user, self._clock())

    async def expire(self, user: str | None = None) -> None:
        """Let go of devices (of one user) that were not reported in time."""
        for gone, since in self._devices.expire(user):
            await self._durable.save_seen(gone, since)
