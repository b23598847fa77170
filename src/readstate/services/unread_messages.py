"""Lists unread messages, across channels or in one."""

from collections.abc import Sequence
from typing import Literal

from readstate.api import UnreadMessages
from readstate.domain.errors import Invalid
from readstate.domain.model import MAX_NUMBER, Message
from readstate.domain.rules import check_id, check_user_id
from readstate.ports import UserRoom

from .cursors import MessagesAfter, page_size
from .messages import message_view
from .unread import UnreadCounts

Order = Literal["newest", "oldest", "channel"]
_Source = tuple[int, int, UserRoom]
"""Where to look: (earliest time of the first unread message, time of the last message, user room)."""


class UnreadView(UnreadCounts):
    """Adds the messages behind the counts. A page reads from as few channels and rows as it needs."""

    async def messages(
        self,
        user: str,
        *,
        channel: str | None = None,
        order: Order = "newest",
        limit: int | None = None,
        cursor: str | None = None,
    ) -> UnreadMessages:
        """A page, newest or oldest first; or channel by channel, each oldest first."""
        check_user_id(user, "user")
        if channel is not None:
            check_id(channel, "channel")
        limit = page_size(limit, 100, self._settings.max_page)
        if order not in {"newest", "oldest", "channel"}:
            raise Invalid("order must be newest, oldest or channel", field="order")
        after = None if cursor is None else self._cursors.decode(cursor, MessagesAfter, user)
        if after is not None and after.order != order:
            raise Invalid("the cursor was made for another order", field="cursor")
        sources = await self._sources(user, channel)
        if order == "channel":
            found = await self._by_channel(user, sources, after, limit + 1)
        else:
            found = await self._by_time(user, sources, after, limit + 1, order == "newest")
        rows = found[:limit]
        more = None
        if len(found) > limit:
            more = self._cursors.encode(MessagesAfter(order, rows[-1].at, rows[-1].channel_id), user)
        return UnreadMessages(messages=[message_view(message) for message in rows], cursor=more)

    async def _sources(self, user: str, channel: str | None) -> list[_Source]:
        if channel is not None:
            user_room = await self._loader.user_room(user, channel)
            last_at = (await self._loader.channel(channel)).last_at
            return [(0, last_at, user_room)]
        names = [name for _, name in await self._rooms.unread(user, None, MAX_NUMBER)]
        user_rooms, channels = await self._loader.member_rooms(user, names)
        return [
            (_first_at(user_room), one.last_at, user_room) for user_room, one in zip(user_rooms, channels, strict=True)
        ]

    async def _by_time(
        self, user: str, sources: Sequence[_Source], after: MessagesAfter | None, limit: int, newest: bool
    ) -> list[Message]:
        """Merges channels, and queries only those that can still contribute."""
        found: list[Message] = []
        sign = -1 if newest else 1
        low, high = _bounds(after, newest)
        for first, last, room in sorted(sources, key=lambda s: -s[1] if newest else s[0]):
            if len(found) >= limit and (last < found[-1].at if newest else first > found[-1].at):
                break
            found += await self._durable.unread_messages(
                user, room.channel_id, room.pointer, low, high, newest, limit + 1
            )
            found = [m for m in found if after is None or _is_after(m, after, sign)]
            found = sorted(found, key=lambda m: (sign * m.at, m.channel_id))[:limit]
        return found

    async def _by_channel(
        self, user: str, sources: Sequence[_Source], after: MessagesAfter | None, limit: int
    ) -> list[Message]:
        """Goes through channels by id, so that a page continues where the last one ended."""
        found: list[Message] = []
        for _, _, room in sorted(sources, key=lambda s: s[2].channel_id):
            if len(found) >= limit:
                break
            low = -1
            if after is not None:
                if room.channel_id < after.channel_id:
                    continue
                low = after.at if room.channel_id == after.channel_id else -1
            rest = limit - len(found)
            found += await self._durable.unread_messages(
                user, room.channel_id, room.pointer, low, MAX_NUMBER, False, rest
            )
        return found


def _first_at(user_room: UserRoom) -> int:
    """A lower bound of the time of the first unread message, without a query."""
    ledger = user_room.ledger
    if ledger is None or ledger.named or ledger.capped or ledger.first is None or ledger.first.at is None:
        return user_room.pointer.at or 0
    return ledger.first.at


def _bounds(after: MessagesAfter | None, newest: bool) -> tuple[int, int]:
    """Exclusive time bounds. Messages of other channels may have the same time as the cursor's."""
    if after is None:
        return -1, MAX_NUMBER
    return (-1, after.at + 1) if newest else (after.at - 1, MAX_NUMBER)


def _is_after(message: Message, after: MessagesAfter, sign: int) -> bool:
    return (sign * message.at, message.channel_id) > (sign * after.at, after.channel_id)
