"""The inbox: conversations by latest activity, only as many rows as a page shows."""

from collections.abc import Sequence
from typing import Literal

from ..api import Conversation, Inbox, Unread
from ..errors import Invalid
from ..model import Channel
from ..ports import HotUsers, Seat
from ..rules import check_user_id
from .counting import Counting
from .cursors import InboxAfter, decode, encode, page_size
from .loading import MAX_TRIES, Loader
from .preferences import ChannelPreferences
from .unread import UnreadCounts

Order = Literal["recent", "unread_first"]
Filter = Literal["all", "unread", "archived"]
Key = tuple[int, int, int, str]
"""(0 if pinned, 0 if unread comes first and it is, minus the time of the latest message, channel)."""


class UserInbox:
    """Merges the user's own sorted set (ledger channels) with the latest of the timeline channels."""

    def __init__(
        self,
        users: HotUsers,
        loader: Loader,
        counting: Counting,
        unread: UnreadCounts,
        preferences: ChannelPreferences,
        *,
        max_page: int,
    ) -> None:
        self._users = users
        self._loader = loader
        self._counting = counting
        self._unread = unread
        self._preferences = preferences
        self._max_page = max_page

    async def page(
        self,
        user: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        order: Order = "recent",
        filter: Filter = "all",  # noqa: A002 - the name of the query parameter
    ) -> Inbox:
        """The top of the inbox, or what comes after a cursor."""
        check_user_id(user, "user")
        limit = page_size(limit, 20, self._max_page)
        if order not in {"recent", "unread_first"}:
            raise Invalid("order must be recent or unread_first", field="order")
        if filter not in {"all", "unread", "archived"}:
            raise Invalid("filter must be all, unread or archived", field="filter")
        start = None if cursor is None else decode(cursor, InboxAfter, user)
        if start is not None and (start.order, start.filter) != (order, filter):
            raise Invalid("the cursor was made for another order or filter", field="cursor")
        sync = await self._unread.moment(user) if start is None else start.sync
        after = None if start is None else (start.pinned, start.read, start.at, start.channel_id)
        keys = await self._keys(user, after, limit + 1, order, filter)
        rows = await self._rows(user, [key[3] for key in keys[:limit]])
        more = encode(InboxAfter(order, filter, sync, *keys[limit - 1]), user) if len(keys) > limit else None
        return Inbox(rows, more, sync)

    async def _keys(self, user: str, after: Key | None, limit: int, order: Order, filter_: Filter) -> list[Key]:
        """The keys of the next conversations, in order."""
        survey = await self._loader.survey(user)
        special = [name for name, wanted in survey.preferences.items() if wanted.pinned or wanted.archived_seq >= 0]
        marked = [seat for seat in (await self._loader.view(user, special)).seats if seat.member]
        archived = await self._preferences.archived(user, marked)
        pinned = {seat.channel_id for seat in marked if seat.preferences.pinned}
        lines = {line.channel.channel_id: line.channel for line in await self._unread.lines(user)}
        first = set(lines) if order == "unread_first" else set()

        def key(at: int, name: str) -> Key:
            return (int(name not in pinned), int(bool(first) and name not in first), at, name)

        if filter_ == "archived":
            known = await self._loader.channels(sorted(archived))
            found = [key(-_at(channel), channel.channel_id) for channel in known if channel is not None]
        elif filter_ == "unread":
            found = [key(-_at(channel), name) for name, channel in lines.items() if name not in archived]
        else:
            apart = [*pinned, *first, *survey.timelines]
            known = await self._loader.channels([name for name in dict.fromkeys(apart) if name not in archived])
            found = [key(-_at(channel), channel.channel_id) for channel in known if channel is not None]
            found += await self._recent(user, after, limit, set(apart) | archived, bool(first))
        return sorted(one for one in found if after is None or one > after)[:limit]

    async def _recent(
        self, user: str, after: Key | None, limit: int, leave_out: set[str], unread_first: bool
    ) -> list[Key]:
        """The next ledger channels that are neither pinned nor, if that matters, unread."""
        rest = (1, int(unread_first))
        start = (after[2], after[3]) if after is not None and after[:2] == rest else None
        found: list[Key] = []
        for _ in range(MAX_TRIES):
            step = await self._users.inbox(user, start, limit + len(leave_out))
            if step is None:
                await self._loader.load_users([user])
                continue
            found += [(*rest, at, name) for at, name in step if name not in leave_out]
            if len(found) >= limit or len(step) < limit + len(leave_out):
                break
            start = step[-1]
        return found[:limit]

    async def _rows(self, user: str, names: Sequence[str]) -> list[Conversation]:
        """The conversations by name: one batched fetch of just these."""
        seats = [seat for seat in (await self._loader.counted(user, names)).seats if seat.member]
        channels = await self._loader.channels([seat.channel_id for seat in seats])
        pairs = [(seat, channel) for seat, channel in zip(seats, channels, strict=True) if channel is not None]
        counts = await self._counting.unread([seat for seat, _ in pairs], [channel for _, channel in pairs])
        return [_conversation(user, seat, channel, count) for (seat, channel), count in zip(pairs, counts, strict=True)]


def _at(channel: Channel) -> int:
    return channel.latest.at if channel.latest is not None else 0


def _conversation(user: str, seat: Seat, channel: Channel, count: Unread) -> Conversation:
    assert channel.type != "thread"
    return Conversation(
        channel_id=channel.channel_id,
        type=channel.type,
        name=channel.name,
        avatar=channel.avatar,
        peer_id=next((peer for peer in channel.peers if peer != user), None),
        last_message=channel.latest,
        unread=count.unread,
        label=count.label,
        has_unread=count.has_unread,
        mentions=count.mentions,
        muted=count.muted,
        pinned=seat.preferences.pinned,
    )
