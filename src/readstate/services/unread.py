"""Unread counts: of one channel, of all channels of a user (sync), and totals of many users."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET, Struct
from msgspec.structs import replace

from readstate.api import Sync, ThreadTotals, Totals, Unread, UserTotals
from readstate.domain.model import Channel, Mode
from readstate.domain.rules import check_id, check_size, check_user_id, check_user_room
from readstate.ports import Count, Durable, Stale, UnreadOverview, UserRoom
from readstate.settings import Settings

from .badge import OfflineBadge
from .changes import MAX_LOOKS, Changes, stable
from .counting import Counting, any_unread, flagged, reason
from .cursors import Cursors, SyncCursor, SyncPage, page_size
from .loading import Loader
from .unread_rooms import UnreadRooms, channels_of_threads, sums_of_threads

Key = tuple[bool, int, str]
"""(read, minus the time of the latest message, channel): unread first, then the latest activity, then by id."""


_Room = tuple[UserRoom, Channel, Count]


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
        return (await self._counting.room_at(user, channel))[0]

    async def totals(self, users: Sequence[str]) -> dict[str, UserTotals]:
        """Totals of many users, for push notifications."""
        check_size(users, self._settings.max_batch, "users")
        for user in users:
            check_user_id(user, "users")
        return {user: await self._totals(user) for user in users}

    async def _totals(self, user: str) -> UserTotals:
        before = self._counting.stale(user)
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
        size = page_size(limit, 1000, self._settings.max_page)
        if since is None and wanted is None and only_unread:
            start = await self._changes.cursor_before_load(user) if page is None else None
            return await (
                self._unread_page(user, page, size) if start is None else self._before_load(user, start, size)
            )
        question = _Question(
            user=user,
            sync=await self._changes.encoded_cursor(user) if page is None else page.sync,
            since=since,
            start=None if since is None else await self._changes.decode(user, since),
            after=None if page is None else (page.read, -page.at, page.channel_id),
            limit=size,
            only_unread=only_unread,
            wanted=wanted,
        )
        # Made again if something changed meanwhile, so that totals and rows are of one point in time.
        return await stable(lambda: self._changes.now(user), lambda: self._answer(question))

    async def _before_load(self, user: str, start: SyncCursor, limit: int) -> Sync:
        """The first page of a user who is not loaded, as the durable store has it. The user is loaded behind it."""
        before = self._counting.stale(user)
        page = await self._durable.unread_page(user, limit + 1, self._settings.unread_cap)
        self._loader.load_behind(user)
        user_rooms, channels = [room for room, _ in page.rooms], [channel for _, channel in page.rooms]
        rows = await self._counting.unread(user, user_rooms, channels, before)
        special = [(wanted, Count(some, named, None, more)) for wanted, some, named, more in page.special]
        totals, capped = self._rooms.sums(page.plain, special)
        after = before.or_by(self._counting.stale(user))
        stale = after.everything or bool(after.partitions)
        sync = self._cursors.encode(replace(start, sure=False) if stale else start, user)
        question = _Question(user, sync, None, None, None, limit, True, None)
        return Sync(
            totals=flagged(totals, reason(stale, capped)),
            threads=flagged(ThreadTotals(*page.threads), reason(stale, False)),
            channels=rows[:limit],
            removed=[],
            cursor=self._page(question, rows[limit - 1]) if len(rows) > limit else None,
            sync=sync,
        )

    async def _unread_page(self, user: str, page: SyncPage | None, limit: int) -> Sync:
        """A page of unread channels of a loaded user, in three looks at the hot store, each of several calls at once.

        The cursor is that of the first look. It may have seen the positions of the log after the user; then the last
        look differs from it, and the page is made again, after both.
        """
        after = None if page is None else (-page.at, page.channel_id)
        sync = "" if page is None else page.sync
        for _ in range(MAX_LOOKS):
            before = self._counting.stale(user)
            await self._changes.settled(user)
            overview, positions = await asyncio.gather(
                self._loader.unread_overview(user, after, limit + 1), self._changes.positions()
            )
            now = overview.change, positions
            sync = sync or self._changes.encoded(user, now)
            passed = None if after is None else (False, *after)
            question = _Question(user, sync, None, None, passed, limit, True, None)
            answer = await self._of_overview(question, overview, before)
            if await self._changes.now(user) == now:
                break
        return answer

    async def _of_overview(self, q: _Question, overview: UnreadOverview, before: Stale) -> Sync:
        listed = dict.fromkeys([name for _, name in overview.rooms] + list(overview.timelines))
        threaded = channels_of_threads(overview.summary)
        names = [*listed, *(threaded - listed.keys())]
        user_rooms, channels, known = await self._loader.member_rooms_at_once(q.user, names, overview)
        counts = await self._counting.counts(q.user, user_rooms, channels, known)
        rooms = zip(user_rooms, channels, counts, strict=True)
        unread = [room for room in rooms if any_unread(room[2]) and room[0].channel_id in listed]
        timelines = [room for room in unread if room[0].mode is Mode.TIMELINE] if overview.timelines else []
        if timelines:  # the others are in order, and after the page before
            unread = sorted((room for room in unread if q.after is None or _place(room) > q.after[1:]), key=_place)
        chosen = unread[: q.limit + 1]
        rows = await self._counting.shown(q.user, *_columns(chosen), before)
        everything = q.after is None and len(rows) <= q.limit
        totals = (
            _totals(rows) if everything else self._rooms.sums_with(overview.summary, overview.preferences, timelines)
        )
        members = {user_room.channel_id for user_room in user_rooms} if threaded else set()
        return await self._made(q, totals, sums_of_threads(overview.summary, members), rows, [], before)

    async def _answer(self, q: _Question) -> Sync:
        before = self._counting.stale(q.user)
        summary = await self._loader.unread_summary(q.user)
        removed: list[str] = []
        if q.start is not None:
            found = await self._changes.changed(q.user, q.start)
            names = found.channels
            removed = [name for name in found.removed if q.wanted is None or name in q.wanted]
        else:
            names = await self._loader.member_of(q.user, q.wanted)
            removed = sorted(q.wanted - set(names)) if q.wanted is not None else []
        rows = await self._rows(q, names, before)
        everything = q.start is None and q.after is None and q.wanted is None and len(rows) <= q.limit
        totals = _totals(rows) if everything else await self._rooms.totals(q.user, summary)
        threads = await self._rooms.thread_totals(q.user, summary)
        return await self._made(q, totals, threads, rows, removed, before)

    async def _made(
        self,
        q: _Question,
        sums: tuple[Totals, bool],
        threads: ThreadTotals,
        rows: list[Unread],
        removed: list[str],
        before: Stale,
    ) -> Sync:
        totals, capped = sums
        stale_channels, stale_threads = await self._rooms.stale_totals(q.user, before)
        stale = (
            before.everything or self._counting.stale(q.user).everything or any(row.reason == "stale" for row in rows)
        )
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


def _place(room: _Room) -> tuple[int, str]:
    """In the order by latest activity."""
    return -room[1].latest_at, room[1].channel_id


def _columns(rooms: Sequence[_Room]) -> tuple[list[UserRoom], list[Channel], list[Count]]:
    return [room[0] for room in rooms], [room[1] for room in rooms], [room[2] for room in rooms]


def _totals(rows: Sequence[Unread]) -> tuple[Totals, bool]:
    """The sums of `UnreadRooms.totals`, over rows that are complete and at hand."""
    counted = [row for row in rows if row.has_unread and not row.muted and row.archived is UNSET]
    sums = Totals(sum(row.unread for row in counted), sum(row.mentions for row in counted), len(counted))
    return sums, any(row.reason == "capped" for row in counted)
