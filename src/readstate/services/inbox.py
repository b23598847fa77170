"""The inbox: conversations by latest activity. Only the rows that a page shows are loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET, Struct

from readstate.api import Conversation, Inbox, Unread
from readstate.domain.errors import Invalid
from readstate.domain.model import MAX_NUMBER, Channel
from readstate.domain.rooms import is_thread
from readstate.domain.rules import check_user_id
from readstate.ports import UserRoom

from .changes import Changes
from .counting import Counting, any_unread, reason
from .cursors import Cursors, InboxAfter, page_size
from .loading import Loader
from .preferences import ChannelPreferences
from .unread_rooms import UnreadRooms

Order = Literal["recent", "unread_first"]
Filter = Literal["all", "unread", "archived"]
Key = tuple[int, int, int, str]
"""Sort key: (0 if pinned, 1 if read while unread ones come first, minus the time of the latest message, channel)."""


_PASSED = (MAX_NUMBER, "")
"""After every key of a section: the previous page ended in a later section."""


class _Source(Struct, frozen=True):
    """Where a page begins, and which conversations are listed apart."""

    user: str
    after: Key | None
    limit: int
    pinned: set[str]
    leave_out: set[str]
    """Pinned or archived."""
    unread_first: bool
    only_unread: bool

    def start(self, rank: int) -> tuple[int, str] | None:
        """Where the page continues among the unpinned conversations of this rank."""
        if self.after is None or self.after[:2] < (1, rank):
            return None
        return self.after[2:] if self.after[:2] == (1, rank) else _PASSED


@dataclass(eq=False, repr=False)
class UserInbox:
    """Merges the user's own sorted set (ledger channels) with the latest messages of the timeline channels."""

    _loader: Loader
    _counting: Counting
    _rooms: UnreadRooms
    _changes: Changes
    _preferences: ChannelPreferences
    _cursors: Cursors
    _max_page: int

    async def page(
        self,
        user: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        order: Order = "recent",
        filter: Filter = "all",  # noqa: A002 - the name of the query parameter
    ) -> Inbox:
        check_user_id(user, "user")
        limit = page_size(limit, 20, self._max_page)
        if order not in {"recent", "unread_first"}:
            raise Invalid("order must be recent or unread_first", field="order")
        if filter not in {"all", "unread", "archived"}:
            raise Invalid("filter must be all, unread or archived", field="filter")
        start = None if cursor is None else self._cursors.decode(cursor, InboxAfter, user)
        if start is not None and (start.order, start.filter) != (order, filter):
            raise Invalid("the cursor was made for another order or filter", field="cursor")
        before = self._counting.stale(user)
        sync = await self._changes.encoded_cursor(user) if start is None else start.sync
        after = None if start is None else (start.pinned, start.read, start.at, start.channel_id)
        keys = await self._keys(user, after, limit + 1, order, filter)
        rows = await self.rows(user, [key[3] for key in keys[:limit]])
        why = reason(before.or_by(self._counting.stale(user)).everything, False)
        if why is not UNSET:  # the rows may lack reads that only the log has, also if the cursor is from before a loss
            sync = self._cursors.in_doubt(sync, user)
        more = None
        if len(keys) > limit:
            more = self._cursors.encode(InboxAfter(order, filter, sync, *keys[limit - 1]), user)
        return Inbox(rows, more, sync, UNSET if why is UNSET else False, why)

    async def _keys(self, user: str, after: Key | None, limit: int, order: Order, filter_: Filter) -> list[Key]:
        """Keys of the next conversations: pinned ones, then unread ones if they come first, then the rest."""
        view = await self._loader.view(user, [])
        special = [
            name
            for name, wanted in view.preferences.items()
            if (wanted.pinned or wanted.archived_seq >= 0) and not is_thread(name)
        ]
        marked = [user_room for user_room in (await self._loader.view(user, special)).user_rooms if user_room.member]
        archived = await self._preferences.archived(user, marked)
        pinned = {user_room.channel_id for user_room in marked if user_room.preferences.pinned}
        source = _Source(user, after, limit, pinned, pinned | archived, order == "unread_first", filter_ == "unread")
        keys = await self._named(source, archived if filter_ == "archived" else pinned - archived)
        if filter_ != "archived":
            if source.unread_first or source.only_unread:
                keys += await self._unread_part(source)
            if not source.only_unread and len(keys) < limit:
                keys += await self._rest(source, view.timelines)
        return sorted(key for key in keys if after is None or key > after)[:limit]

    async def _named(self, source: _Source, names: set[str]) -> list[Key]:
        """Keys of the few conversations that the user has pinned or archived."""
        return [
            (
                int(channel.channel_id not in source.pinned),
                int(source.unread_first and not any_unread(count)),
                -channel.latest_at,
                channel.channel_id,
            )
            for _, channel, count in await self._counting.rooms(source.user, sorted(names))
            if not source.only_unread or any_unread(count)
        ]

    async def _unread_part(self, source: _Source) -> list[Key]:
        after = source.start(0)
        if after is _PASSED:
            return []
        found = await self._rooms.unread(source.user, after, source.limit + len(source.leave_out))
        return [(1, 0, at, name) for at, name in found if name not in source.leave_out]

    async def _rest(self, source: _Source, timelines: Sequence[str]) -> list[Key]:
        """The others by latest activity: ledger channels from the sorted set, timeline channels merged in."""
        rank = int(source.unread_first)
        after = source.start(rank)
        leave_out = source.leave_out
        if source.unread_first:
            leave_out = leave_out | {name for _, name in await self._rooms.unread(source.user, None, MAX_NUMBER)}
        found = await self._rooms.recent(source.user, after, source.limit + len(leave_out), only_unread=False)
        big = await self._loader.channels(timelines)
        found = found + [(-channel.latest_at, channel.channel_id) for channel in big if channel is not None]
        return [(1, rank, at, name) for at, name in found if name not in leave_out]

    async def rows(self, user: str, names: Sequence[str]) -> list[Conversation]:
        """One batched fetch of exactly these conversations."""
        return [_conversation(user, *row) for row in await self._counting.rows(user, names)]


def _conversation(user: str, user_room: UserRoom, channel: Channel, count: Unread) -> Conversation:
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
        pinned=user_room.preferences.pinned,
        exact=UNSET if count.exact else False,
        reason=count.reason,
    )
