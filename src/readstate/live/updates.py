"""What the gateway and the bus call. Announcements become queued events and dirty marks of connected users.

The package docstring (`live/__init__.py`) states the algorithm, its races and the errors it accepts.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from readstate.api.frames import ChannelRemoved, SyncRequired
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
from readstate.domain.model import Message, Pointer, Position
from readstate.domain.rooms import is_thread
from readstate.domain.rules import EVERYONE
from readstate.ports import MAX_UNPROVEN, CountDelta, HotUsers

from .devices import LiveDevices
from .late_corrections import LateCorrections
from .receipts import LiveReceipts
from .rendering import LATER, TO_ALL, Dirty, To, mentions, message_new
from .sending import EventSender, encode_event
from .sessions import ConnectedUsers, UserSession
from .unmuting import Unmuting


@dataclass(eq=False, repr=False)
class Live:
    _connected: ConnectedUsers
    _users: HotUsers
    _devices: LiveDevices
    _receipts: LiveReceipts
    _unmuting: Unmuting
    _corrections: LateCorrections
    _sender: EventSender

    def __post_init__(self) -> None:
        self.attach = self._devices.attach
        self.detach = self._devices.detach
        self.on_gap = self._devices.on_gap
        self.showed = self._sender.showed
        self._corrections.subscribe(self._devices.recount, self._sender.send_to)

    def is_idle(self) -> bool:
        return not self._connected

    async def flushed(self, user_id: str) -> None:
        """Wait until everything announced to a user so far was sent, or one attempt has failed.

        Announcements that arrive while this waits are not waited for.
        """
        await self._receipts.tried()
        user = self._connected.get(user_id)
        while user is not None and user.repairs:
            await asyncio.wait(user.repairs)
        if user is not None and user.render_task is not None:
            await user.rendered_once()

    async def close(self) -> None:
        """Stop waiting for freshness, and finish the tasks in flight."""
        await self._corrections.close()
        await self._connected.finish_tasks()

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
                    self._members(one)
                case StateReplaced():
                    await self._replaced(one)
                case Outcome():
                    pass  # for the request that waits for it
                case _:
                    self._mark(one)
        await self._sender.send()

    def _mark(self, one: ChannelTouched | ThreadTouched | UserRoomChanged | BadgeChanged) -> None:
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
        deliveries = self._connected.deliveries_of(came)
        if not members:
            return
        names_anyone, seq = bool(message.mentions), message.seq
        variants: dict[tuple[CountDelta, int | None, bool], tuple[bytes, To]] = {}
        for user, (count_delta, epoch) in zip(members, await self._count_deltas(message, members), strict=True):
            variant = (count_delta, epoch, names_anyone and mentions(message, user.id))
            if (event := variants.get(variant)) is None:
                counts = count_delta is CountDelta.ONE_MORE or count_delta is CountDelta.ONE_MORE_MUTED
                event = variants[variant] = (encode_event(message_new(message, counts, variant[2], epoch)), TO_ALL)
            user.out.append(event)
            if (delivery := deliveries.get(user.id)) is not None:
                user.unreported.append(delivery)
                del user.unreported[:-MAX_UNPROVEN]
            if (
                count_delta is CountDelta.LOOK
                or count_delta is CountDelta.ONE_MORE_MUTED
                or user.catching_up
                or (seq and user.rendered_seq and seq <= user.rendered_seq.get(message.channel_id, 0))
            ):
                self._connected.mark(user, message.channel_id)
        self._connected.touch(members)
        if seq is not None:
            self._own_message(came)

    async def _count_deltas(
        self, message: Message, members: Sequence[UserSession]
    ) -> Sequence[tuple[CountDelta, int | None]]:
        if message.seq is None:
            return [(CountDelta.NOTHING, None)] * len(members)
        named = None if EVERYONE in message.mentions else frozenset(message.mentions)
        names = [user.id for user in members]
        position = Position(message.seq, message.id, message.at)
        found = await self._users.count_delta(message.channel_id, position, named, names)
        return [(CountDelta.NOTHING, epoch) for _, epoch in found] if message.silent else found

    def _own_message(self, came: MessageCame) -> None:
        """Sending a message reads the channel up to it: update the sender's devices.

        The other members get a receipt only if the sender had unread messages before it; otherwise the message says the
        same.
        """
        message = came.message
        self._mark_pointer(message.sender_id, message.channel_id, came.instance_id, None)
        if came.read_before and message.seq is not None:
            pointer = Pointer(0, message.seq, id=message.id, at=message.at, read_at=message.at)
            self._receipts.add(
                PointerMoved(message.sender_id, message.channel_id, Pointer(), pointer, came.instance_id)
            )

    def _pointer(self, moved: PointerMoved) -> None:
        self._mark_pointer(moved.user_id, moved.channel_id, moved.instance_id, moved.origin)
        self._receipts.add(moved)

    def _mark_pointer(self, user_id: str, room: str, instance_id: str, origin: str | None) -> None:
        user = self._connected.get(user_id)
        if user is None:
            return
        if is_thread(room):
            user.dirty.threads.add(room)
        elif origin is not None and user.has_only(origin):
            return  # it gets the counts with its answer
        else:
            user.dirty.pointer(room, instance_id, origin)
        self._connected.touch([user])

    def _members(self, changed: MembersChanged) -> None:
        for user in self._connected.of(changed.left):
            if changed.channel_id not in user.rooms:  # the user left before the channel was deleted
                continue
            self._connected.leave(user, changed.channel_id)
            user.dirty.channels.pop(changed.channel_id, None)
            self._connected.queue(user, encode_event(ChannelRemoved(channel_id=changed.channel_id, resume=LATER)))
        for user in self._connected.of(changed.joined):
            self._connected.enter(user, changed.channel_id)
            self._connected.mark(user, changed.channel_id, conversation=True)
            user.dirty.rejoined.add(changed.channel_id)

    async def _replaced(self, replaced: StateReplaced) -> None:
        event = encode_event(SyncRequired(reason=replaced.reason, resume=LATER))
        for user in self._connected.of(replaced.users):
            for room in list(user.rooms):
                self._connected.leave(user, room)
            await self._connected.enter_channels(user)
            user.dirty = Dirty()
            self._connected.queue(user, event)
