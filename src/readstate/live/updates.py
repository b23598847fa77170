"""Takes announcements from the bus and sends frames to the devices of this instance.

The package docstring (`live/__init__.py`) states the algorithm, its races and the errors it accepts.
"""

import asyncio
import traceback
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import structlog
from msgspec import json
from msgspec.structs import replace

from readstate.api.frames import BadgeUpdated, ChannelRemoved, Event, SyncRequired
from readstate.domain.announcements import (
    Announcement,
    BadgeChanged,
    ChannelTouched,
    MembersChanged,
    MessageCame,
    Outcome,
    PointerMoved,
    StateReplaced,
    ThreadTouched,
    UserRoomChanged,
)
from readstate.domain.errors import ReadstateError
from readstate.domain.model import Message, Pointer, Position, Undelivered
from readstate.domain.rooms import is_thread
from readstate.domain.rules import EVERYONE
from readstate.ports import MAX_UNPROVEN, Clock, CountDelta, Deliveries, Freshness, HotChannels, HotUsers
from readstate.services.changes import Changes
from readstate.services.cursors import Cursors, SyncCursor
from readstate.services.loading import Loader
from readstate.services.pending_writes import PendingWrites, UnannouncedWrites
from readstate.services.receipts import ReadReceipts
from readstate.telemetry import WS_SENT

from .catch_up import CatchUp
from .doubts import Doubt, Doubts
from .late_receipts import LateReceipts
from .receipts import ON_THE_WAY_MS, LiveReceipts
from .rendering import LATER, TO_ALL, Dirty, EventRenderer, To, mentions, message_new
from .sessions import NO_CURSOR, CatchingUp, ConnectedUsers, DeviceSession, UserSession
from .unmuting import Unmuting

log = structlog.get_logger()

RETRY_SECONDS = 1.0
MAX_CATCHING_UP = 8
"""Users who catch up at the same time: a gap concerns all connected users, who would load the stores at once."""

_encode = json.Encoder().encode
_MUST_SYNC = (SyncRequired(reason="what was missed can't be given whole", resume=LATER),)


class Live:
    def __init__(
        self,
        users: HotUsers,
        channels: HotChannels,
        deliveries: Deliveries,
        loader: Loader,
        changes: Changes,
        receipts: ReadReceipts,
        renderer: EventRenderer,
        missed: CatchUp,
        pending_writes: PendingWrites,
        unannounced: UnannouncedWrites,
        freshness: Freshness,
        clock: Clock,
        cursors: Cursors,
        *,
        alone: bool,
    ) -> None:
        self._hot_users = users
        self._hot_channels = channels
        self._deliveries = deliveries
        self._loader = loader
        self._changes = changes
        self._renderer = renderer
        self._missed = missed
        self._pending_writes = pending_writes
        self._unannounced = unannounced
        self._clock = clock
        self._cursors = cursors
        self._alone = alone
        self._doubts = Doubts(freshness, clock, self._dispel)
        self._late = LateReceipts(freshness, missed.receipts, self._tell_late)
        self._connected = ConnectedUsers()
        self._unmuting = Unmuting(self._connected, loader, clock, self._spawn, self._send)
        self._receipts = LiveReceipts(self._connected, receipts, self._spawn, self._send, clock)
        self._catching_up = asyncio.Semaphore(MAX_CATCHING_UP)
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------ devices

    async def attach(self, user_id: str, device: DeviceSession, start: SyncCursor | None) -> bool:
        """Send a device what it missed since `start`, and from then on every update.

        Returns False if the missed events can't be sent completely, or `start` is None (the device's cursor is
        invalid). The device then gets `sync.required`, and still receives every update from now on.
        """
        user = self._connected.add(user_id)
        user.catching_up[device.connection_id] = CatchingUp()
        await self._loader.ready(user_id)
        await self._enter_rooms(user)
        await self._is_to_prove(user)
        begun, reached, missed = await self._since(user_id, start)
        self._repair(user, self._join(user, device, missed, begun, reached))
        return begun is start

    async def _since(self, user_id: str, start: SyncCursor | None) -> tuple[SyncCursor, SyncCursor, Sequence[Event]]:
        """Returns the cursor to begin with, the cursor reached, and the events between them.

        If the events can't be given completely, both cursors are the end, and the only event is `sync.required`. The
        end is taken before the lookup: what changes later is found by the lookup, or announced, or both.
        """
        reached = await self._changes.cursor(user_id)
        if start is not None and start.is_before(reached) and not await self._changes.erased_since(user_id, start):
            missed = await self._missed.since(user_id, start)
            if missed is not None:
                return start, reached, missed
        return reached, reached, _MUST_SYNC

    def _join(
        self, user: UserSession, device: DeviceSession, missed: Sequence[Event], start: SyncCursor, reached: SyncCursor
    ) -> int | None:
        """Send the missed events, then those that arrived during the lookup, and add the device to the user's devices.

        Nothing is awaited here, so no event falls in between. An event that arrived during the lookup may be among the
        missed ones in another form; it is sent again, and counts follow. If the bus reported a gap during the lookup,
        returns the time up to which announcements are complete.
        """
        meanwhile = user.catching_up.pop(device.connection_id, None)
        if meanwhile is None:  # the device has disconnected
            return None
        if not self._alone and missed is not _MUST_SYNC:
            self._late.expect(user.id, start.at, missed)
        if self._doubts.note(user.id, missed, reached.sure):
            reached = replace(reached, sure=False)
        before, after = self._resume(user.id, start), self._resume(user.id, reached)
        told = list(map(_encode, missed))
        for index, event in enumerate(told):
            device.push(event.replace(NO_CURSOR, before if index < len(told) - 1 else after, 1))
        for event in meanwhile.out:
            if event not in told:
                device.push(event.replace(NO_CURSOR, after, 1))
        if not user.devices:
            user.resume, user.unmuted_until = after, reached.at
        user.cursor_history.begin(reached)
        user.devices[device.connection_id] = device
        self._sent(user)
        user.dirty.add(meanwhile.dirty)
        user.dirty.newcomers.add(device.connection_id)
        self._unmuting.schedule(user)
        self._start_rendering(user)
        return meanwhile.heard_until

    async def on_gap(self, seconds: float) -> None:
        """Catch all devices up: announcements of the last `seconds` may be lost.

        They catch up like devices that reconnect. Announcements that arrive after this returns are sent after that.
        """
        heard_until = self._clock() - int(seconds * 1000) - ON_THE_WAY_MS
        for user in self._connected.everyone():
            for meanwhile in user.catching_up.values():
                known = meanwhile.heard_until
                meanwhile.heard_until = heard_until if known is None else min(known, heard_until)
            self._repair(user, heard_until)

    def _repair(self, user: UserSession, heard_until: int | None) -> None:
        """Hold back a user's devices and catch them up from the last certain cursor before `heard_until` (ms).

        None: nothing is missing.
        """
        if heard_until is None or not user.devices:
            return
        held, user.devices = user.devices, {}
        for name in held:
            user.catching_up[name] = CatchingUp(event for event, _ in user.out)
        user.repair = self._spawn(self._catch_up(user, held, user.cursor_history.before(heard_until)))

    async def _catch_up(self, user: UserSession, held: dict[str, DeviceSession], start: SyncCursor | None) -> None:
        gone: set[str] = set()
        while True:
            try:
                async with self._catching_up:
                    await self._loader.ready(user.id)
                    gone |= await self._enter_rooms(user)
                    await self._is_to_prove(user)
                    begun, reached, missed = await self._since(user.id, start)
                break
            except Exception as error:  # any error: devices held back forever would be worse
                log.warning("what was missed could not be looked up yet", action="live", reason=repr(error))
                await asyncio.sleep(RETRY_SECONDS)
            if not self._connected.has(user):  # all devices have disconnected
                return
        if not gone <= {event.channel_id for event in missed if isinstance(event, ChannelRemoved)}:
            begun, missed = reached, _MUST_SYNC  # an erase leaves no trace of removed channels
        again = [self._join(user, device, missed, begun, reached) for device in held.values()]
        if user.devices.keys() <= held.keys() and not user.catching_up:
            user.cursor_history.renew(reached)
        self._repair(user, min((one for one in again if one is not None), default=None))

    def _dispel(self, doubts: Mapping[str, Doubt]) -> None:
        """The hot store is fresh again: render the stale counts again, and catch up on what was not visible then."""
        for name, doubt in doubts.items():
            for user in self._connected.of([name]):
                for room in doubt.rooms:
                    self._connected.mark(user, room, conversation=True)
                self._repair(user, doubt.since - ON_THE_WAY_MS)

    async def _enter_rooms(self, user: UserSession) -> set[str]:
        """Subscribe the user to exactly the channels that the user is in now; returns those that were left."""
        before = set(user.rooms)
        while (found := await self._hot_users.rooms(user.id)) is None:
            await self._loader.ready(user.id)
        if not self._connected.has(user):  # disconnected during the lookup
            return set()
        rooms = {room for room in found if not is_thread(room)}
        for room in rooms:
            self._connected.enter(user, room)
        for room in before - rooms:
            self._connected.leave(user, room)
        return before - rooms

    async def _is_to_prove(self, user: UserSession) -> None:
        """Collect the user's unproven deliveries before the lookup.

        Their messages are stored already, so the lookup finds them even if their announcements never arrive.
        """
        user.sending = list(dict.fromkeys([*await self._deliveries.unproven(user.id), *user.sending]))

    def _sent(self, user: UserSession) -> None:
        """Report the deliveries that were just pushed; the device's next sign of life proves them."""
        if user.sending:
            self._deliveries.sent(user.sending)
            user.sending = []

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
        self._doubts.forget(user_id)
        self._late.forget(user_id)

    def is_idle(self) -> bool:
        return not self._connected

    async def flushed(self, user_id: str) -> None:
        """Wait until everything announced to a user so far was sent, or one attempt has failed.

        Announcements that arrive while this waits are not waited for.
        """
        await self._receipts.tried()
        user = self._connected.get(user_id)
        while user is not None and user.repair is not None and not user.repair.done():
            await asyncio.wait([user.repair])
        if user is not None and user.render_task is not None:
            await user.rendered_once()

    async def close(self) -> None:
        """Stop waiting for freshness, and finish the tasks in flight."""
        await self._doubts.close()
        await self._late.close()
        while self._tasks:
            await asyncio.wait(self._tasks)

    # ------------------------------------------------------------ announcements

    async def on_announcements(self, announcements: Sequence[Announcement]) -> None:
        """Send or mark what was announced, in order.

        Raises when a store fails. The bus then reports a gap, and the devices catch up.
        """
        for one in announcements:
            match one:
                case PointerMoved():
                    self._pointer(one)
                case MessageCame():
                    await self._message(one)
                case MembersChanged():
                    await self._members(one)
                case StateReplaced():
                    await self._replaced(one)
                case Outcome():
                    pass  # for the request that waits for it
                case _:
                    self._note(one)
        await self._send()

    def _note(self, one: ChannelTouched | ThreadTouched | UserRoomChanged | BadgeChanged) -> None:
        """Announcements that change only counts: mark them, to be rendered later."""
        match one:
            case ChannelTouched():
                for user in self._connected.members(one.channel_id):
                    self._connected.mark(user, one.channel_id, conversation=one.what == "conversation")
            case ThreadTouched():
                for user in self._connected.of(one.users):
                    self._connected.mark(user, one.room)
            case UserRoomChanged():
                for user in self._connected.of([one.user_id]):
                    self._connected.mark(user, one.channel_id, one.conversation)
                    self._unmuting.schedule(user)
            case BadgeChanged():
                for user in self._connected.of([one.user_id]):
                    user.dirty.badge = True
                    self._connected.touch([user])

    async def _message(self, came: MessageCame) -> None:
        message = came.message
        members = list(self._connected.members(message.channel_id))
        reached = self._reached_by(came)
        if not members:
            return
        names_anyone = bool(message.mentions)
        variants: dict[tuple[CountDelta, int | None, bool], tuple[bytes, To]] = {}
        for user, (count_delta, epoch) in zip(members, await self._count_deltas(message, members), strict=True):
            variant = (count_delta, epoch, names_anyone and mentions(message, user.id))
            if (event := variants.get(variant)) is None:
                counts = count_delta is CountDelta.ONE_MORE or count_delta is CountDelta.ONE_MORE_MUTED
                event = variants[variant] = (_encode(message_new(message, counts, variant[2], epoch)), TO_ALL)
            user.out.append(event)
            if (noted := reached.get(user.id)) is not None:
                user.sending.append(noted)
                del user.sending[:-MAX_UNPROVEN]
            if count_delta is CountDelta.LOOK or count_delta is CountDelta.ONE_MORE_MUTED or user.catching_up:
                self._connected.mark(user, message.channel_id)
            elif (
                message.seq is not None
                and user.rendered_seq
                and message.seq <= user.rendered_seq.get(message.channel_id, 0)
            ):
                self._connected.mark(user, message.channel_id)  # counts sent before may or may not include it
        self._connected.touch(members)
        if message.seq is not None:
            self._own_message(came)

    def _reached_by(self, came: MessageCame) -> dict[str, Undelivered]:
        """The deliveries to track for the connected members who get this message, by user."""
        reached = {}
        for noted in came.reached:
            user = self._connected.get(noted.receiver_id)
            if user is None:
                continue
            if noted.channel_id in user.rooms:
                reached[user.id] = noted
            elif user.catching_up:  # the message is among the missed events
                user.sending.append(noted)
            else:  # a user who left does not get the message, so it is not undelivered either
                self._deliveries.sent([noted])
        return reached

    async def _count_deltas(
        self, message: Message, members: Sequence[UserSession]
    ) -> Sequence[tuple[CountDelta, int | None]]:
        if message.seq is None:
            return [(CountDelta.NOTHING, None)] * len(members)
        named = None if EVERYONE in message.mentions else frozenset(message.mentions)
        names = [user.id for user in members]
        place = Position(message.seq, message.id, message.at)
        found = await self._hot_users.count_delta(message.channel_id, place, named, names)
        return [(CountDelta.NOTHING, epoch) for _, epoch in found] if message.silent else found

    def _own_message(self, came: MessageCame) -> None:
        """Sending a message reads the channel up to it: update the sender's devices.

        The other members get a receipt only if the sender had unread messages before it; otherwise the message says the
        same.
        """
        message = came.message
        for user in self._connected.of([message.sender_id]):
            user.dirty.pointer(message.channel_id, came.instance_id, None)
            self._connected.touch([user])
        if came.read_before and message.seq is not None:
            pointer = Pointer(0, message.seq, id=message.id, at=message.at, read_at=message.at)
            self._receipts.add(
                PointerMoved(message.sender_id, message.channel_id, Pointer(), pointer, came.instance_id)
            )

    def _pointer(self, moved: PointerMoved) -> None:
        user = self._connected.get(moved.user_id)
        if user is not None:
            if is_thread(moved.channel_id):
                user.dirty.threads.add(moved.channel_id)
            else:
                user.dirty.pointer(moved.channel_id, moved.instance_id, moved.origin)
            self._connected.touch([user])
        self._receipts.add(moved)

    async def _members(self, changed: MembersChanged) -> None:
        for user in self._connected.of(changed.left):
            if changed.channel_id not in user.rooms:  # the user left before the channel was deleted
                continue
            self._connected.leave(user, changed.channel_id)
            user.dirty.channels.pop(changed.channel_id, None)
            self._connected.tell(user, _encode(ChannelRemoved(channel_id=changed.channel_id, resume=LATER)))
        for user in self._connected.of(changed.joined):
            self._connected.enter(user, changed.channel_id)
            self._connected.mark(user, changed.channel_id, conversation=True)
            user.dirty.rejoined.add(changed.channel_id)

    async def _replaced(self, replaced: StateReplaced) -> None:
        event = _encode(SyncRequired(reason=replaced.reason, resume=LATER))
        for user in self._connected.of(replaced.users):
            for room in list(user.rooms):
                self._connected.leave(user, room)
            await self._loader.view(user.id, [])
            await self._enter_rooms(user)
            user.dirty = Dirty()
            self._connected.tell(user, event)

    # ------------------------------------------------------------ sending

    async def _send(self) -> None:
        """Push the events that are ready, and start rendering for users with dirty marks."""
        touched = self._connected.take_touched()
        for user in touched:
            for meanwhile in user.catching_up.values():
                meanwhile.out += [event for event, _ in user.out]
                meanwhile.dirty.add(user.dirty)
        ready = [user for user in touched if user.out]
        if ready:
            reached = await self._reached(ready)
            WS_SENT.inc(sum(len(user.out) * len(user.devices) for user in ready))
            for user, cursor in zip(ready, reached, strict=True):
                self._push(user, cursor)
        for user in touched:
            if user.dirty:
                self._start_rendering(user)

    async def _reached(self, users: Sequence[UserSession]) -> list[SyncCursor | None]:
        """For each user the cursor up to which everything is announced; None if it can't be known now.

        It is None while the message writer has shown a batch that it has not announced, or did so during the lookup.
        """
        moment = self._unannounced.moment()
        try:
            changes = await self._hot_users.changes([user.id for user in users])
            positions, now, store = await self._hot_channels.positions(), self._clock(), self._changes.store_id
        except ReadstateError as error:  # the events need not wait for a newer cursor
            log.debug("cursors stay where they are", action="live", reason=error.explained)
            return [None] * len(users)
        if moment is None or self._unannounced.moment() != moment:
            return [None] * len(users)
        at = self._receipts.told_until(now)
        return [None if change is None else SyncCursor(change, positions, at, store) for change in changes]

    def _push(self, user: UserSession, reached: SyncCursor | None) -> None:
        """Push a user's events to the devices. The last event carries a new cursor if the user is settled."""
        out, user.out = user.out, []
        before = user.resume
        if reached is not None and not self._is_unsettled(user):
            user.cursor_history.note(reached)
            sure = reached if self._alone else user.cursor_history.before(reached.at - ON_THE_WAY_MS)
            if sure is not None:
                user.resume = self._resume(user.id, sure)
        end = len(out) - 1
        for index, (event, to) in enumerate(out):
            frame = event.replace(NO_CURSOR, user.resume if index == end else before, 1)
            for name, device in user.devices.items():
                if to is TO_ALL or to.reaches(name):
                    device.push(frame)
        if user.devices:
            self._sent(user)

    def _resume(self, user: str, cursor: SyncCursor) -> bytes:
        return b'"resume":"%b"' % self._cursors.encode_bytes(cursor, user)

    def _is_unsettled(self, user: UserSession) -> bool:
        """Whether a device still lacks something that happened, or something that was sent is not certain.

        A device that is catching up gets later what the other devices get now, so the cursor waits for it.
        """
        if user.dirty or user.rendering or user.catching_up:
            return True
        return self._pending_writes.has(user.id) or self._doubts.has(user.id)

    def _start_rendering(self, user: UserSession) -> None:
        if user.render_task is None and user.devices:
            user.render_task = self._spawn(self._render_all(user))

    async def _render_all(self, user: UserSession) -> None:
        try:
            while user.dirty and user.devices:
                await self._pending_writes.quiet(user.id)
                with user.rendering_once():
                    rendered_seq = await self._render_once(user)
                if not rendered_seq:
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            user.render_task = None
            user.release()

    async def _render_once(self, user: UserSession) -> bool:
        dirty, user.dirty = user.dirty, Dirty()
        rooms = set(user.rooms)
        user.rendering = True
        try:
            rendered = await self._renderer.render(user.id, dirty)
        except Exception as error:  # a mark that gets lost would never reach the devices
            if isinstance(error, ReadstateError):
                log.warning("counts are not rendered yet", action="live", code=error.code)
            else:
                log.error("counts could not be rendered", action="live", traceback=traceback.format_exc())
            user.dirty.add(dirty)
            return False
        finally:
            user.rendering = False
        left = rooms - user.rooms  # during the rendering; the devices already got channel.removed
        rendered = [one for one in rendered if getattr(one[0], "channel_id", None) not in left]
        self._doubts.note(user.id, (event for event, _ in rendered))
        for channel, end in dirty.ends.items():
            self._note_rendered(user, channel, end)
        user.out += [(_encode(event), self._audience(user, event, to, dirty)) for event, to in rendered]
        if user.out:
            WS_SENT.inc(len(user.out) * len(user.devices))
            self._push(user, (await self._reached([user]))[0])
        return True

    def showed(self, user_id: str, channel: str, seq: int) -> None:
        """A device got counts of a channel in an answer; they may include messages up to `seq`."""
        if (user := self._connected.get(user_id)) is not None and channel in user.rooms:
            self._note_rendered(user, channel, seq)

    def _note_rendered(self, user: UserSession, channel: str, seq: int) -> None:
        """Remember the newest message that rendered counts may include.

        Where other processes write, the hot store shows a message before its announcement arrives. When it arrives,
        `_message` has counts up to this seq rendered again.
        """
        if not self._alone:
            user.rendered_seq[channel] = max(seq, user.rendered_seq.get(channel, 0))

    @staticmethod
    def _audience(user: UserSession, event: Event, to: To, dirty: Dirty) -> To:
        """An unchanged badge goes only to connections that have not received it yet."""
        if not isinstance(event, BadgeUpdated):
            return to
        known, user.badge = user.badge, event.senders
        return To(only=frozenset(dirty.newcomers)) if event.senders == known else to

    async def _tell_late(self, user_id: str, events: Sequence[Event]) -> None:
        for user in self._connected.of([user_id]):
            for one in events:
                self._connected.tell(user, _encode(one))
        await self._send()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
