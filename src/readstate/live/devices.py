"""Connects devices, and catches them up: when they connect, after a gap, and once stale counts are exact."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog
from msgspec.structs import replace

from readstate.api.frames import ChannelRemoved
from readstate.services.cursors import SyncCursor
from readstate.timings import LiveTimings

from .catch_up import CatchUp, Missed
from .cursors import LiveCursors
from .late_corrections import LateCorrections, StaleCounts
from .sending import EventSender, encode_event
from .sessions import NO_CURSOR, CatchingUp, ConnectedUsers, DeviceSession, UserSession
from .unmuting import Unmuting

log = structlog.get_logger()

MAX_CATCHING_UP = 8
"""Users who catch up at the same time: a gap concerns all connected users, who would load the stores at once."""


@dataclass(eq=False, repr=False)
class LiveDevices:
    _connected: ConnectedUsers
    _catch_up: CatchUp
    _cursors: LiveCursors
    _corrections: LateCorrections
    _unmuting: Unmuting
    _sender: EventSender
    _timings: LiveTimings
    _attend: Callable[[], Awaitable[None]]
    """`Bus.attend`: a device looks for what it missed after that."""
    _repairs: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CATCHING_UP), init=False)

    async def attach(self, user_id: str, device: DeviceSession, start: SyncCursor | None) -> bool:
        """Send a device what it missed since `start`, and from then on every update.

        Returns False if the missed events can't be sent completely, or `start` is None (the device's cursor is
        invalid). The device then gets `sync.required`, and still receives every update from now on.
        """
        user = self._connected.add(user_id)
        user.catching_up[device.connection_id] = CatchingUp()
        await self._attend()
        await self._connected.begin_lookup(user)
        missed = await self._catch_up.since(user_id, start)
        self._repair(user, self._join(user, device, missed))
        return missed.complete

    def detach(self, user_id: str, device: DeviceSession) -> None:
        user = self._connected.get(user_id)
        if user is None:
            return
        user.devices.pop(device.connection_id, None)
        user.catching_up.pop(device.connection_id, None)
        if user.devices or user.catching_up:
            return
        self._connected.remove(user)
        self._unmuting.stop(user)
        self._corrections.forget(user_id)

    async def on_gap(self, seconds: float) -> None:
        """Catch all devices up: announcements of the last `seconds` may be lost.

        They catch up like devices that reconnect. Announcements that arrive after this returns are sent after that.
        """
        announced_until = self._cursors.announced_until(seconds)
        for user in self._connected.everyone():
            for meanwhile in user.catching_up.values():
                known = meanwhile.announced_until
                meanwhile.announced_until = announced_until if known is None else min(known, announced_until)
            self._repair(user, announced_until)

    def recount(self, user_id: str, stale: StaleCounts) -> None:
        """The hot store is fresh again: render the stale counts again, and catch up on what was not visible then."""
        for user in self._connected.of([user_id]):
            for room in stale.rooms:
                self._connected.mark(user, room, conversation=True)
            self._repair(user, stale.announced_until)

    def _join(self, user: UserSession, device: DeviceSession, missed: Missed) -> int | None:
        """Send the missed events, then those that arrived during the lookup, and add the device to the user's devices.

        Nothing is awaited here, so no event falls in between. An event that arrived during the lookup may be among the
        missed ones in another form; it is sent again, and counts follow. If the bus reported a gap during the lookup,
        returns the time up to which announcements are complete.
        """
        meanwhile = user.catching_up.pop(device.connection_id, None)
        if meanwhile is None:  # the device has disconnected
            return None
        reached = missed.reached
        if missed.complete:
            self._corrections.expect_receipts(user.id, missed.start.at, missed.events)
        if self._corrections.note_counts(user.id, missed.events, reached.sure):
            reached = replace(reached, sure=False)
        before, after = (self._cursors.resume_field(user.id, cursor) for cursor in (missed.start, reached))
        events = list(map(encode_event, missed.events))
        for index, event in enumerate(events):
            device.push(event.replace(NO_CURSOR, before if index < len(events) - 1 else after, 1))
        for event in meanwhile.out:
            if event not in events:
                device.push(event.replace(NO_CURSOR, after, 1))
        if not user.devices:
            user.resume, user.unmuted_until = after, reached.at
        user.cursor_history.begin(reached)
        user.devices[device.connection_id] = device
        self._connected.report_deliveries(user)
        user.dirty.add(meanwhile.dirty)
        user.dirty.newcomers.add(device.connection_id)
        self._unmuting.schedule(user)
        self._sender.start_rendering(user)
        return meanwhile.announced_until

    def _repair(self, user: UserSession, announced_until: int | None) -> None:
        """Hold back a user's devices and catch them up from the last certain cursor before this time (ms).

        None: nothing is missing.
        """
        if announced_until is None or not user.devices:
            return
        held, user.devices = user.devices, {}
        for name in held:
            user.catching_up[name] = CatchingUp([event for event, _ in user.out])
        start = user.cursor_history.before(announced_until)
        repair = self._connected.spawn(self._catch_up_held(user, held, start))
        user.repairs.add(repair)
        repair.add_done_callback(user.repairs.discard)

    async def _catch_up_held(self, user: UserSession, held: dict[str, DeviceSession], start: SyncCursor | None) -> None:
        left: set[str] = set()
        while True:
            try:
                async with self._repairs:
                    left |= await self._connected.begin_lookup(user)
                    missed = await self._catch_up.since(user.id, start)
                break
            except Exception as error:  # any error: devices held back forever would be worse
                log.warning("missed events could not be looked up yet", action="live", reason=repr(error))
                await asyncio.sleep(self._timings.retry)
            if not self._connected.has(user):  # all devices have disconnected
                return
        if not left <= {event.channel_id for event in missed.events if isinstance(event, ChannelRemoved)}:
            missed = Missed.incomplete(missed.reached)  # an erase leaves no trace of removed channels
        again = [self._join(user, device, missed) for device in held.values()]
        if user.devices.keys() <= held.keys() and not user.catching_up:
            user.cursor_history.renew(missed.reached)
        self._repair(user, min((one for one in again if one is not None), default=None))
