"""Unread counts: of one channel, of all channels of a user (sync), and totals of many users."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET, Struct

from readstate.api import Sync, Totals, Unread, UserTotals
from readstate.domain.rules import check_id, check_size, check_user_id, check_user_room
from readstate.ports import Durable, Stale, UnreadSummary
from readstate.settings import Settings

from .badge import OfflineBadge
from .changes import Changes, stable
from .counting import Counting, any_unread, flagged, reason
from .cursors import Cursors, SyncCursor, SyncPage, page_size
from .loading import Loader
from .unread_rooms import UnreadRooms

Key = tuple[bool, int, str]
"""(read, minus the time of the latest message, channel): unread first, then the latest activity, then by id."""


class _Question(Struct, frozen=True):
    """A decoded sync request."""

    user: str
    sync: str
    since: str | None
    start: SyncCursor | None
    after: Key | None
    limit: int
    only_unread: bool
    wanted: frozenset[str] | None


@dataclass(eq=False, repr=False)
class UnreadCounts:
    """Counts are exact at some time between request and answer, unless they say otherwise."""

    _rooms: UnreadRooms
    _changes: Changes
    _loader: Loader
    _counting: Counting
    _badge: OfflineBadge
    _durable: Durable
    _cursors: Cursors
    _settings: Settings

    async def of_channel(self, user: str, channel: str) -> Unread:
        check_user_room(user, channel)
        before = self._counting.stale()
        user_room = await self._loader.user_room(user, channel)
        return (await self._counting.unread(user, [user_room], [await self._loader.channel(channel)], before))[0]

    async def totals(self, users: Sequence[str]) -> dict[str, UserTotals]:
        """Totals of many users, for push notifications."""
        check_size(users, self._settings.max_batch, "users")
        for user in users:
            check_user_id(user, "users")
        return {user: await self._totals(user) for user in users}

    async def _totals(self, user: str) -> UserTotals:
        before = self._counting.stale()
        summary = await self._loader.unread_summary(user)
        totals, capped = await self._rooms.totals(user, summary)
        threads = await self._rooms.thread_totals(user, summary)
        badge = await self._badge.count(user)
        why = reason(any(await self._rooms.stale_totals(user, before)), capped)
        return UserTotals(
            totals.unread, totals.mentions, totals.channels, threads.unread, badge, exact=why is UNSET, reason=why
        )

    # ------------------------------------------------------------ sync

    async def sync(
        self,
        user: str,
        *,
        channels: Sequence[str] | None = None,
        only_unread: bool = True,
        since: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Sync:
        """Channels, unread first, then by latest activity; with `since`, only those that changed since."""
        check_user_id(user, "user")
        check_size(channels or (), self._settings.max_batch, "channels")
        wanted = None if channels is None else frozenset(check_id(name, "channels") for name in channels)
        page = None if cursor is None else self._cursors.decode(cursor, SyncPage, user)
        since = page.since if page is not None else since
        question = _Question(
            user=user,
            sync=await self._changes.encoded_cursor(user) if page is None else page.sync,
            since=since,
            start=None if since is None else await self._changes.decode(user, since),
            after=None if page is None else (page.read, -page.at, page.channel_id),
            limit=page_size(limit, 1000, self._settings.max_page),
            only_unread=only_unread,
            wanted=wanted,
        )
        # Made again if something changed meanwhile, so that totals and rows are of one point in time.
        return await stable(lambda: self._changes.now(user), lambda: self._answer(question))

    async def _answer(self, q: _Question) -> Sync:
        before = self._counting.stale()
        summary = await self._loader.unread_summary(q.user)
        removed: list[str] = []
        if q.start is None and q.wanted is None and q.only_unread:
            after = None if q.after is None else q.after[1:]
            names = [name for _, name in await self._rooms.unread(q.user, after, q.limit + 1)]
            user_rooms, channels = await self._loader.member_rooms(q.user, names)
            rows = await self._counting.unread(q.user, user_rooms, channels, before)
            return await self._made(q, summary, [row for row in rows if row.has_unread], removed, before)
        if q.start is not None:
            found = await self._changes.changed(q.user, q.start)
            names = found.channels
            removed = [name for name in found.removed if q.wanted is None or name in q.wanted]
        else:
            names = await self._loader.member_of(q.user, q.wanted)
            removed = sorted(q.wanted - set(names)) if q.wanted is not None else []
        return await self._made(q, summary, await self._rows(q, names, before), removed, before)

    async def _made(
        self, q: _Question, summary: UnreadSummary, rows: list[Unread], removed: list[str], before: Stale
    ) -> Sync:
        everything = q.start is None and q.after is None and q.wanted is None and len(rows) <= q.limit
        totals, capped = _totals(rows) if everything else await self._rooms.totals(q.user, summary)
        threads = await self._rooms.thread_totals(q.user, summary)
        stale_channels, stale_threads = await self._rooms.stale_totals(q.user, before)
        stale = before.everything or self._counting.stale().everything or any(row.reason == "stale" for row in rows)
        return Sync(
            totals=flagged(totals, reason(stale_channels, capped)),
            threads=flagged(threads, reason(stale_threads, False)),
            channels=rows[: q.limit],
            removed=removed,
            cursor=self._page(q, rows[q.limit - 1]) if len(rows) > q.limit else None,
            sync=self._cursors.in_doubt(q.sync, q.user) if stale else q.sync,
        )

    def _page(self, q: _Question, last: Unread) -> str:
        at = last.latest.at if last.latest else 0
        return self._cursors.encode(SyncPage(q.sync, q.since, not last.has_unread, at, last.channel_id), q.user)

    async def _rows(self, q: _Question, names: Sequence[str], before: Stale) -> list[Unread]:
        """The rows of a page in order, and one more if another page follows."""
        if q.wanted is not None:
            names = [name for name in names if name in q.wanted]
        rooms = []
        for user_room, channel, count in await self._counting.rooms(q.user, names):
            read = not any_unread(count)
            key = (read, -channel.latest_at, channel.channel_id)
            if (q.after is None or key > q.after) and not (read and q.only_unread and q.start is None):
                rooms.append((key, user_room, channel))
        chosen = sorted(rooms, key=lambda room: room[0])[: q.limit + 1]
        user_rooms, channels = [user_room for _, user_room, _ in chosen], [channel for _, _, channel in chosen]
        return await self._counting.unread(q.user, user_rooms, channels, before)


def _totals(rows: Sequence[Unread]) -> tuple[Totals, bool]:
    """The sums of `UnreadRooms.totals`, over rows that are complete and at hand."""
    counted = [row for row in rows if row.has_unread and not row.muted and row.archived is UNSET]
    sums = Totals(sum(row.unread for row in counted), sum(row.mentions for row in counted), len(counted))
    return sums, any(row.reason == "capped" for row in counted)
