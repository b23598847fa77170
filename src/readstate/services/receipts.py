"""Read receipts: who has seen what.

A read is acknowledged when the log has it, and reaches the durable store shortly after. So the hot pointers are read
first and the durable store second: a read that has left the hot store is in the durable store. In the other order both
could miss a read. States are merged before anything is decided: a mark-unread that only the hot store has takes back a
receipt that the durable store still shows.

Above `receipts_max_members` only the durable store is read, after a short wait for the persister.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET
from msgspec.structs import replace

from readstate.api import Reader, Receipt, Receipts, Seen
from readstate.domain.announcements import PointerMoved
from readstate.domain.errors import MessageDeleted, MessageNotFound, MessageWithoutSeq
from readstate.domain.model import Message, Reading, SeenPosition
from readstate.domain.rules import check_id, has_seen, merged_pointer, seen_position
from readstate.ports import Clock, Durable, Freshness, HotUsers

from .loading import Loader


@dataclass(eq=False, repr=False)
class ReadReceipts:
    """Answers omit readers whose receipts are private (the durable store does not return them), and what only a join
    marked as read.
    """

    _users: HotUsers
    _durable: Durable
    _loader: Loader
    _freshness: Freshness
    _clock: Clock
    _receipts_max_members: int

    async def seen(self, channel: str, message_id: str) -> Seen:
        """Who has seen a message; in large channels only how many."""
        check_id(channel, "channel")
        id_ = check_id(message_id, "id")
        info = await self._loader.channel(channel)
        message = await self._message(channel, id_)
        sender, seq = message.sender_id, message.seq
        if seq is None:
            raise MessageWithoutSeq(field="id")
        user_rooms = (await self._loader.view(sender, [channel])).user_rooms
        of = info.member_count - bool(user_rooms and user_rooms[0].member)
        if info.member_count > self._receipts_max_members:
            exact = await self._freshness.stored_soon()
            count = await self._durable.seen_count(channel, sender, seq)
            return Seen(count, of, None, exact, UNSET if exact else "stale")
        readings, exact = await self._readings(channel)
        seen = [one for one in readings if one.user_id != sender and has_seen(one.pointer, seq, one.skipped)]
        readers = sorted((one.pointer.read_at, one.user_id) for one in seen)
        users = [Reader(user, read_at) for read_at, user in readers]
        return Seen(len(users), of, users, exact, UNSET if exact else "stale")

    async def _message(self, channel: str, id_: str) -> Message:
        message = (await self._durable.by_id([(channel, id_)])).get((channel, id_))
        if message is None or not message.sender_id:
            raise MessageNotFound(f"there is no message {id_!r} in channel {channel!r}", field="id")
        if message.deleted:
            raise MessageDeleted(f"message {id_!r} is deleted", field="id")
        return message

    async def _readings(self, channel: str) -> tuple[list[Reading], bool]:
        """How far members have read, and whether that includes every read acknowledged before the call."""
        members = [
            member.user_id for member in await self._durable.members(channel, "", 2 * self._receipts_max_members)
        ]
        stale = self._freshness.behind(members)
        pointers = dict(zip(members, await self._users.pointers_in(channel, members), strict=True))
        if None in pointers.values():
            await self._users.generation(members)  # calls the hot store: they may have been lost
            stale = stale or self._freshness.behind(members)
        now = self._clock()
        readings = []
        for one in await self._durable.readers(channel):
            hot = pointers.get(one.user_id)
            if hot is not None:
                ahead = replace(hot, read_at=hot.read_at or now)
                readings.append(replace(one, pointer=merged_pointer(one.pointer, ahead)))
            else:
                readings.append(one)
        return readings, not (stale or self._freshness.behind(members))

    async def visible(self, moved: Sequence[PointerMoved]) -> list[SeenPosition]:
        """How far these users have read, as other members may see it: not in large channels, not if private."""
        channels = await self._loader.channels([one.channel_id for one in moved])
        small = [
            one
            for one, channel in zip(moved, channels, strict=True)
            if channel is not None and channel.member_count <= self._receipts_max_members
        ]
        public = await self._durable.public_readers([(one.user_id, one.channel_id) for one in small]) if small else {}
        return [
            seen_position(one.user_id, one.channel_id, one.pointer.position, one.pointer.read_at, skipped)
            for one in small
            if (skipped := public.get((one.user_id, one.channel_id))) is not None
        ]

    async def of_channel(self, channel: str) -> Receipts:
        """How far each member has read, for a whole screen of messages; empty in large channels."""
        info = await self._loader.channel(check_id(channel, "channel"))
        if info.member_count > self._receipts_max_members:
            return Receipts([])
        readings, exact = await self._readings(channel)
        positions = [
            seen_position(r.user_id, channel, r.pointer.position, r.pointer.read_at, r.skipped) for r in readings
        ]
        receipts = [
            Receipt(one.user_id, one.last_read_seq, one.read_at, one.last_read_id)
            for one in sorted(positions, key=lambda one: one.user_id)
            if one.last_read_seq > 0
        ]
        return Receipts(receipts, exact, UNSET if exact else "stale")
