"""Read receipts: who has seen what."""

from collections.abc import Sequence

from ..announcements import PointerMoved
from ..api import Reader, Receipt, Receipts, Seen
from ..errors import MessageDeleted, MessageNotFound, MessageWithoutSeq
from ..model import SeenPlace
from ..ports import Durable
from ..rules import check_id, seen_place
from .loading import Loader


class ReadReceipts:
    """Answers leave out readers who keep their receipts private, and what a join alone marked as read."""

    def __init__(self, durable: Durable, loader: Loader, *, receipts_max_members: int) -> None:
        self._durable = durable
        self._loader = loader
        self._limit = receipts_max_members

    async def seen(self, channel: str, message_id: str) -> Seen:
        """Who has seen a message; in large channels only how many."""
        check_id(channel, "channel")
        id_ = check_id(message_id, "id")
        info = await self._loader.channel(channel)
        message = (await self._durable.by_id([(channel, id_)])).get((channel, id_))
        if message is None or not message.sender_id:
            raise MessageNotFound(f"there is no message {id_!r} in channel {channel!r}", field="id")
        if message.deleted:
            raise MessageDeleted(f"message {id_!r} is deleted", field="id")
        if message.seq is None:
            raise MessageWithoutSeq(field="id")
        seats = (await self._loader.view(message.sender_id, [channel])).seats
        of = info.member_count - bool(seats and seats[0].member)
        if info.member_count > self._limit:
            return Seen(await self._durable.seen_count(channel, message.sender_id, message.seq), of, None)
        readers = await self._durable.seen_by(channel, message.sender_id, message.seq)
        return Seen(len(readers), of, [Reader(user, read_at) for user, read_at in readers])

    async def visible(self, moved: Sequence[PointerMoved]) -> list[SeenPlace]:
        """How far these have read, as the other members may see it: not above the limit, not if it is private."""
        channels = await self._loader.channels([one.channel_id for one in moved])
        small = [
            one
            for one, channel in zip(moved, channels, strict=True)
            if channel is not None and channel.member_count <= self._limit
        ]
        public = await self._durable.public_readers([(one.user_id, one.channel_id) for one in small]) if small else {}
        return [
            seen_place(one.user_id, one.channel_id, one.pointer.place, one.pointer.read_at, skipped)
            for one in small
            if (skipped := public.get((one.user_id, one.channel_id))) is not None
        ]

    async def of_channel(self, channel: str) -> Receipts:
        """How far everyone has read, for a whole screen of messages; empty in large channels."""
        info = await self._loader.channel(check_id(channel, "channel"))
        if info.member_count > self._limit:
            return Receipts([])
        rows = await self._durable.receipts(channel)
        return Receipts([Receipt(user, seq, read_at) for user, seq, read_at in rows])
