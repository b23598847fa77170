"""Presence as one object, and the background task that keeps the hot store informed."""

import asyncio
import traceback
from contextlib import suppress
from time import monotonic

import structlog

from readstate.adapters.valkey import Backend, Call
from readstate.domain.errors import ReadstateError
from readstate.domain.model import NO_GENERATION
from readstate.tasks import cancel

from .calls import PresenceCalls
from .deliveries import Deliveries
from .departures import Departures
from .devices import Devices, OwnDevices, Written
from .instances import Instances, ListedUsers

log = structlog.get_logger()


class ValkeyPresence:
    """Implements `HotPresence`."""

    is_local = False

    def __init__(self, backend: Backend, instance_id: str) -> None:
        self._generation = backend.generation
        self._timings = backend.timings
        self._task: asyncio.Task[None] | None = None
        self._written_in = NO_GENERATION
        """The highest generation in which everything of this process was written again."""
        self._instances = Instances(backend, instance_id)
        self._users = ListedUsers(backend, self._instances)
        self._calls = PresenceCalls(backend, self._instances)
        self._own = OwnDevices()
        self._devices = devices = Devices(self._calls, self._own)
        self.online, self.devices = devices.online, devices.devices
        self.focused, self.blur = devices.focused, devices.blur
        self._deliveries = deliveries = Deliveries(self._calls, self._own, self._users)
        self.reached, self.unproven = deliveries.reached, deliveries.unproven
        self.sent, self.proven, self.noted = deliveries.sent, deliveries.proven, deliveries.noted
        self._departures = Departures(self._calls, self._own, deliveries, self._users, self.join)
        self.disconnect, self.expire = self._departures.disconnect, self._departures.expire

    async def connect(self, user: str, device: str, until: int, focus: str | None, connection: str = "") -> None:
        written = self._own.put(user, (device, connection), until, focus or "")
        await self.join()
        if connection:
            self._users.changed(user)
        await self._write([written])

    async def drop(self, user: str) -> None:
        self._own.drop(user)
        self._deliveries.drop(user)
        slot, keys = self._calls.keys_of(user)
        await self._calls.commands([Call(slot, [key], ["UNLINK"]) for key in keys])

    async def close(self) -> None:
        """Stop. Other processes expire the devices that are still connected here, at once."""
        if self._task is not None:
            await cancel(self._task)
            with suppress(ReadstateError, TimeoutError):
                async with asyncio.timeout(self._timings.presence_close):
                    await self._flush()
                    await self._instances.leave()

    @property
    def all_read_packed(self) -> bool:
        return self._instances.all_read_packed

    async def join(self) -> None:
        """Take a lease before anything is written under its name, and start the background task."""
        await self._instances.join()
        if self._task is None:
            self._written_in = self._generation.number  # nothing was written before
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        renewed_at = opened_at = monotonic()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, renewed_at + self._timings.heartbeat - monotonic())):
                    await self._users.wake.wait()
            try:
                if monotonic() >= renewed_at + self._timings.heartbeat:
                    renewed_at = monotonic()
                    await self._renew()
                if monotonic() >= opened_at + self._timings.focus_renewal:
                    opened_at = monotonic()
                    await self._devices.open(list(self._own))
                if self._users.wake.is_set():
                    await asyncio.sleep(self._timings.gather)
                    self._users.wake.clear()
                await self._flush()
            except ReadstateError as error:
                log.debug("presence is not written yet", action="presence", reason=error.explained)
                await asyncio.sleep(self._timings.gather)
            except Exception:
                log.error("presence could not be written", action="presence", traceback=traceback.format_exc())
                await asyncio.sleep(self._timings.heartbeat)

    async def _renew(self) -> None:
        """Renew the lease. If it, or any slot, was lost, write everything again."""
        number = await self._generation.check([self._instances.slot])
        if not await self._instances.renew() or number != self._written_in:
            self._own.are_lost = True
        if self._own.are_lost:
            self._users.begin_anew([*(one.user for one in self._own), *self._deliveries.unstored])
            await self._write(list(self._own))
            await self._deliveries.write_all()
            self._own.are_lost = False
            self._written_in = number
        await self._users.renew()

    async def _flush(self) -> None:
        """Update the list of users, and remove proven messages from the hot store."""
        departing = self._departures.users() | self._deliveries.unstored.keys()
        await self._users.flush(lambda user: user in departing or self._own.is_connected(user))
        await self._deliveries.flush()

    async def _write(self, devices: list[Written]) -> None:
        await self._devices.open(devices)
        await self._devices.write(devices)
        self._departures.written_late(devices)
