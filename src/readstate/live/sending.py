"""Pushes events to the devices of connected users, and renders what is dirty."""

import asyncio
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from msgspec import json

from readstate.api import Unread
from readstate.api.frames import BadgeUpdated, Event
from readstate.domain.errors import ReadstateError
from readstate.ports.consistency import Consistency
from readstate.services.cursors import SyncCursor
from readstate.services.pending_writes import PendingWrites
from readstate.telemetry import WS_SENT
from readstate.timings import LiveTimings

from .cursors import LiveCursors
from .late_corrections import LateCorrections
from .rendering import TO_ALL, Dirty, EventRenderer, To
from .sessions import NO_CURSOR, ConnectedUsers, UserSession

log = structlog.get_logger()

encode_event = json.Encoder().encode


@dataclass(eq=False, repr=False)
class EventSender:
    _connected: ConnectedUsers
    _renderer: EventRenderer
    _cursors: LiveCursors
    _corrections: LateCorrections
    _pending_writes: PendingWrites
    _consistency: Consistency
    _timings: LiveTimings

    async def send(self) -> None:
        """Push the events that are queued, and start rendering for users with dirty marks."""
        touched = self._connected.take_touched()
        for user in touched:
            for meanwhile in user.catching_up.values():
                meanwhile.out += [event for event, _ in user.out]
                meanwhile.dirty.add(user.dirty)
        ready = [user for user in touched if user.out]
        if ready:
            await self._push_all(ready)
        for user in touched:
            if user.dirty:
                self.start_rendering(user)

    async def send_to(self, user_id: str, events: Sequence[Event]) -> None:
        for user in self._connected.of([user_id]):
            for one in events:
                self._connected.queue(user, encode_event(one))
        await self.send()

    # ------------------------------------------------------------ pushing

    async def _push_all(self, users: Sequence[UserSession]) -> None:
        reached = await self._cursors.reached([user.id for user in users])
        WS_SENT.inc(sum(len(user.out) * len(user.devices) for user in users))
        for user, cursor in zip(users, reached, strict=True):
            self._push(user, cursor)

    def _push(self, user: UserSession, reached: SyncCursor | None) -> None:
        """Push a user's events to the devices. The last event carries a new cursor if the user is settled."""
        out, user.out = user.out, []
        before = user.resume
        if reached is not None and self._is_settled(user):
            user.resume = self._cursors.advance(user.id, user.cursor_history, reached) or before
        end = len(out) - 1
        for index, (event, to) in enumerate(out):
            frame = event.replace(NO_CURSOR, user.resume if index == end else before, 1)
            for name, device in user.devices.items():
                if to is TO_ALL or to.reaches(name):
                    device.push(frame)
        if user.devices:
            self._connected.report_deliveries(user)

    def _is_settled(self, user: UserSession) -> bool:
        """Whether every device has everything that happened, and all of it is certain.

        A device that is catching up gets later what the other devices get now, so the cursor waits for it.
        """
        if user.dirty or user.rendering or user.catching_up:
            return False
        return not (self._pending_writes.has(user.id) or self._corrections.has_stale_counts(user.id))

    # ------------------------------------------------------------ rendering

    def start_rendering(self, user: UserSession) -> None:
        if user.render_task is None and user.devices:
            user.render_task = self._connected.spawn(self._render_all(user))

    async def _render_all(self, user: UserSession) -> None:
        try:
            while user.dirty and user.devices:
                await self._pending_writes.quiet(user.id)
                with user.render_pass():
                    rendered = await self._render_once(user)
                if not rendered:
                    await asyncio.sleep(self._timings.retry)
        finally:
            user.render_task = None
            with user.render_pass():  # no other pass follows
                pass

    async def _render_once(self, user: UserSession) -> bool:
        dirty, user.dirty = user.dirty, Dirty()
        rooms = set(user.rooms)
        user.rendering = True
        try:
            rendered = await self._renderer.render(user.id, dirty)
        except Exception as error:  # a mark that gets lost would never reach the devices
            if isinstance(error, ReadstateError):
                log.warning("counts could not be rendered yet", action="live", code=error.code)
            else:
                log.error("counts could not be rendered", action="live", traceback=traceback.format_exc())
            user.dirty.add(dirty)
            return False
        finally:
            user.rendering = False
        left = rooms - user.rooms  # during the rendering; the devices already got channel.removed
        rendered = [one for one in rendered if getattr(one[0], "channel_id", None) not in left]
        self._corrections.note_counts(user.id, (event for event, _ in rendered))
        for channel, end in dirty.ends.items():
            self._consistency.note_rendered(user.rendered_seq, channel, end)
        user.out += [(encode_event(event), self._audience(user, event, to, dirty)) for event, to in rendered]
        if user.out:
            await self._push_all([user])
        return True

    def showed(self, user_id: str, counts: Unread) -> None:
        """A device gets counts of a channel in an answer; they may include messages up to the latest one."""
        channel = counts.channel_id
        if (user := self._connected.get(user_id)) is None or channel not in user.rooms:
            return
        if counts.latest is not None:
            self._consistency.note_rendered(user.rendered_seq, channel, counts.latest.seq)
        if counts.reason == "stale":
            self._corrections.note_stale(user_id, {channel})

    @staticmethod
    def _audience(user: UserSession, event: Event, to: To, dirty: Dirty) -> To:
        """An unchanged badge goes only to connections that have not received it yet."""
        if not isinstance(event, BadgeUpdated):
            return to
        known, user.badge = user.badge, event.senders
        return To(only=frozenset(dirty.newcomers)) if event.senders == known else to
