"""Unread counts: of one channel, of all channels of a user (sync), and totals of many users."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from msgspec import UNSET, Struct

from readstate.api import Sync, ThreadTotals, Totals, Unread, UserTotals
from readstate.domain.errors import InvalidCursor
from readstate.domain.model import NO_PREFERENCES, Channel, Preferences
from readstate.domain.rooms import channel_and_thread, is_thread
from readstate.domain.rules import check_id, check_size, check_user_id
from readstate.ports import Clock, Durable, HotChannels, HotUsers, Stale, UnreadSummary, UserRoom

from .counting import Counting, flagged, reason, shown
from .cursors import Cursors, SyncCursor, SyncPage, page_size
from .loading import MAX_TRIES, Loader, overtaken
from .pending_writes import PendingWrites

MAX_LOOKS = 5
"""An answer is made again if something changed meanwhile, so that totals and rows are of one point in time."""
CLOCKS_MS = 60_000
"""The clocks of two instances differ by less than this."""


Key = tuple[bool, int, str]
"""(read, minus the time of the latest message, channel): unread first, then the latest activity, then by id."""


class Line(NamedTuple):
    """The counts of a channel with unread messages."""

    name: str
    unread: int
    mentions: int
    capped: bool
    preferences: Preferences


class Changed(NamedTuple):
    channels: list[str]
    removed: list[str]
    """Channels left or deleted."""
    threads: list[str]
    """Room names of threads, also of those no longer followed."""


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


class UnreadCounts:
    """Counts are exact at some time between request and answer, unless they say otherwise."""

    def __init__(
        self,
        users: HotUsers,
        channels: HotChannels,
        loader: Loader,
        counting: Counting,
        pending_writes: PendingWrites,
        badge: Callable[[str], Awaitable[int]],
        clock: Clock,
        durable: Durable,
        cursors: Cursors,
        *,
        store_id: int,
        max_page: int,
        max_batch: int,
    ) -> None:
        self._users = users
        self._channels = channels
        self._loader = loader
        self._counting = counting
        self._pending_writes = pending_writes
        self._badge = badge
        self._clock = clock
        self._durable = durable
        self._cursors = cursors
        self.store_id = store_id
        self._max_page = max_page
        self._max_batch = max_batch

    async def of_channel(self, user: str, channel: str) -> Unread:
        check_user_id(user, "user")
        check_id(channel, "channel")
        before = self._counting.stale()
        user_room = await self._loader.user_room(user, channel)
        return (await self._counting.unread(user, [user_room], [await self._loader.channel(channel)], before))[0]

    async def totals(self, users: Sequence[str]) -> dict[str, UserTotals]:
        """Totals of many users, for push notifications."""
        check_size(users, self._max_batch, "users")
        for user in users:
            check_user_id(user, "users")
        answer = {}
        for user in users:
            before = self._counting.stale()
            unread_summary = await self._loader.unread_summary(user)
            sums, capped = await self._sums(user, unread_summary)
            threads = await self._thread_totals(user, unread_summary)
            badge = await self._badge(user)
            why = reason(any(await self._stale_sums(user, before)), capped)
            answer[user] = UserTotals(
                sums.unread, sums.mentions, sums.channels, threads.unread, badge, why is UNSET, why
            )
        return answer

    # ------------------------------------------------------------ sums

    async def _sums(self, user: str, unread_summary: UnreadSummary) -> tuple[Totals, bool]:
        """Sums over channels that are not muted or archived, and whether one of them is a lower bound."""
        unread, mentions, channels, capped = unread_summary.plain
        view = await self._loader.view(user, [])
        lines = [Line(*count, view.preferences.get(count[0], NO_PREFERENCES)) for count in unread_summary.special]
        lines += await self._timeline_lines(user, view.timelines)
        for line in lines:
            if not self._counting.muted(line.preferences):
                unread += shown(line.preferences, line.unread, line.mentions)
                mentions += line.mentions
                channels += 1
                capped = capped or line.capped
        return Totals(unread, mentions, channels), capped

    async def _stale_sums(self, user: str, before: Stale) -> tuple[bool, bool]:
        """Whether the sums over channels are stale, and whether those over threads are."""
        stale = before.or_by(self._counting.stale())
        if stale.everything or not stale.partitions:
            return stale.everything, stale.everything
        await self._loader.view(user, [])
        rooms = await self._users.rooms(user) or ()
        return (
            stale.any_of(room for room in rooms if not is_thread(room)),
            stale.any_of(room for room in rooms if is_thread(room)),
        )

    async def _timeline_lines(self, user: str, names: Sequence[str]) -> list[Line]:
        """Timeline channels with unread messages, without archived ones."""
        if not names:
            return []
        user_rooms, channels = await self.user_rooms(user, names)
        counts = await self._counting.counts(user, user_rooms, channels)
        return [
            Line(channel.channel_id, count.count, count.mentions, count.capped, user_room.preferences)
            for user_room, channel, count in zip(user_rooms, channels, counts, strict=True)
            if (count.count or count.capped) and not channel.archived
        ]

    async def _thread_totals(self, user: str, unread_summary: UnreadSummary) -> ThreadTotals:
        """Sums over followed threads, in channels that the user is a member of."""
        names = list({channel_and_thread(room)[0] for room, _, _ in unread_summary.threads})
        user_rooms = (await self._loader.view(user, names)).user_rooms if names else []
        members = {user_room.channel_id for user_room in user_rooms if user_room.member}
        counts = [count for room, count, _ in unread_summary.threads if channel_and_thread(room)[0] in members]
        return ThreadTotals(sum(counts), len(counts))

    async def user_rooms(self, user: str, names: Sequence[str]) -> tuple[list[UserRoom], list[Channel]]:
        """User rooms of a member, with ledgers, and their channels, in the order of the names."""
        view = await self._loader.counted(user, names)
        user_rooms = [user_room for user_room in view.user_rooms if user_room.member]
        channels = await self._loader.channels([user_room.channel_id for user_room in user_rooms])
        pairs = [
            (user_room, channel) for user_room, channel in zip(user_rooms, channels, strict=True) if channel is not None
        ]
        return [user_room for user_room, _ in pairs], [channel for _, channel in pairs]

    # ------------------------------------------------------------ which channels, in which order

    async def unread_keys(self, user: str, after: tuple[int, str] | None, limit: int) -> list[tuple[int, str]]:
        """Channels with unread messages by latest activity, as (minus the time, channel), after such a pair."""
        timelines = (await self._loader.ready(user)).timelines
        found = await self.recent(user, after, limit, only_unread=True)
        if not timelines:
            return found
        user_rooms, channels = await self.user_rooms(user, timelines)
        counts = await self._counting.counts(user, user_rooms, channels)
        found += [
            (-_latest_at(channel), channel.channel_id)
            for channel, count in zip(channels, counts, strict=True)
            if count.count or count.capped
        ]
        return sorted(key for key in found if after is None or key > after)[:limit]

    async def recent(
        self, user: str, after: tuple[int, str] | None, limit: int, only_unread: bool
    ) -> list[tuple[int, str]]:
        """Ledger channels by latest activity, as (minus the time, channel), after such a pair."""
        for _ in range(MAX_TRIES):
            keys = await self._users.inbox(user, after, limit, only_unread)
            if keys is not None:
                return keys
            await self._loader.load_users([user])
        raise overtaken(user)

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
        check_size(channels or (), self._max_batch, "channels")
        wanted = None if channels is None else frozenset(check_id(name, "channels") for name in channels)
        page = None if cursor is None else self._cursors.decode(cursor, SyncPage, user)
        since = page.since if page is not None else since
        question = _Question(
            user=user,
            sync=await self.moment(user) if page is None else page.sync,
            since=since,
            start=None if since is None else await self._start(user, since),
            after=None if page is None else (page.read, -page.at, page.channel_id),
            limit=page_size(limit, 1000, self._max_page),
            only_unread=only_unread,
            wanted=wanted,
        )
        for _ in range(MAX_LOOKS):
            before = await self._now(user)
            answer = await self._answer(question)
            if await self._now(user) == before:
                break
        return answer

    async def _start(self, user: str, since: str) -> SyncCursor:
        start = self._cursors.decode(since, SyncCursor, user, "since")
        known = start.store == self.store_id and len(start.positions) == len(await self._channels.positions())
        if not known or await self.erased_since(user, start):
            raise InvalidCursor("what changed since then is not known: sync without since", field="since")
        return start

    async def erased_since(self, user: str, start: SyncCursor) -> bool:
        """Whether the user was or may have been erased after a cursor: an erase leaves no trace of what it removed.

        An erase drops the user's hot state. So the database is asked only if the user was loaded after the cursor.
        """
        if start.change >= (await self._loader.view(user, [])).complete_since:
            return False
        erased = await self._durable.erased_until(user)
        return erased > 0 and start.at <= erased + CLOCKS_MS

    async def moment(self, user: str) -> str:
        """A cursor for `since`. Everything up to it is durable, and in every answer made after it."""
        return self._cursors.encode(await self.cursor(user), user)

    async def cursor(self, user: str) -> SyncCursor:
        """As `moment`, not encoded."""
        positions = await self._channels.positions()
        await self._pending_writes.settled(user)
        change = (await self._loader.view(user, [])).change
        return SyncCursor(change, positions, self._clock(), self.store_id, sure=not self._counting.behind)

    async def _now(self, user: str) -> tuple[int, tuple[int, ...]]:
        """Differs after every change that the user may see."""
        return (await self._loader.view(user, [])).change, await self._channels.positions()

    async def _answer(self, q: _Question) -> Sync:
        before = self._counting.stale()
        unread_summary = await self._loader.unread_summary(q.user)
        removed: list[str] = []
        if q.start is None and q.wanted is None and q.only_unread:
            after = None if q.after is None else q.after[1:]
            names = [name for _, name in await self.unread_keys(q.user, after, q.limit + 1)]
            user_rooms, channels = await self.user_rooms(q.user, names)
            rows = await self._counting.unread(q.user, user_rooms, channels, before)
            return await self._made(q, unread_summary, [row for row in rows if row.has_unread], removed, before)
        if q.start is not None:
            found = await self.changed(q.user, q.start)
            names = found.channels
            removed = [name for name in found.removed if q.wanted is None or name in q.wanted]
        else:
            names = await self.member_of(q.user, q.wanted)
            removed = sorted(q.wanted - set(names)) if q.wanted is not None else []
        return await self._made(q, unread_summary, await self._rows(q, names, before), removed, before)

    async def _made(
        self, q: _Question, unread_summary: UnreadSummary, rows: list[Unread], removed: list[str], before: Stale
    ) -> Sync:
        everything = q.start is None and q.after is None and q.wanted is None and len(rows) <= q.limit
        totals, capped = _totals(rows) if everything else await self._sums(q.user, unread_summary)
        threads = await self._thread_totals(q.user, unread_summary)
        stale_channels, stale_threads = await self._stale_sums(q.user, before)
        stale = before.everything or self._counting.behind or any(row.reason == "stale" for row in rows)
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
        user_rooms, channels = await self.user_rooms(q.user, names)
        counts = await self._counting.counts(q.user, user_rooms, channels)
        keys = []
        for index, (channel, count) in enumerate(zip(channels, counts, strict=True)):
            read = not (count.count or count.capped)
            key = (read, -_latest_at(channel), channel.channel_id)
            if (q.after is None or key > q.after) and not (read and q.only_unread and q.start is None):
                keys.append((key, index))
        chosen = [index for _, index in sorted(keys)[: q.limit + 1]]
        return await self._counting.unread(
            q.user, [user_rooms[i] for i in chosen], [channels[i] for i in chosen], before
        )

    async def member_of(self, user: str, wanted: frozenset[str] | None) -> list[str]:
        """The user's channels, without threads; only those in `wanted`, if given."""
        view = await self._loader.view(user, "all" if wanted is None else list(wanted))
        return [
            user_room.channel_id
            for user_room in view.user_rooms
            if user_room.member and not is_thread(user_room.channel_id)
        ]

    async def changed(self, user: str, start: SyncCursor) -> Changed:
        user_rooms = await self._perhaps_changed(user, start)
        channels = await self._loader.channels([user_room.channel_id for user_room in user_rooms])
        found = Changed([], [], [])
        for user_room, channel in zip(user_rooms, channels, strict=True):
            name = user_room.channel_id
            here = (
                not start.sure or user_room.pointer.change > start.change or self._unmuted(user_room.preferences, start)
            )
            if channel is None or not user_room.member:
                if here or await self._position(name) > start.position_of(name):
                    (found.threads if is_thread(name) else found.removed).append(name)
            elif here or channel.position > start.position_of(name):
                (found.threads if is_thread(name) else found.channels).append(name)
        return found

    def _unmuted(self, preferences: Preferences, start: SyncCursor) -> bool:
        """Whether a mute has expired since the cursor."""
        return start.at < preferences.muted_until <= self._clock()

    async def _perhaps_changed(self, user: str, start: SyncCursor) -> list[UserRoom]:
        """The user rooms to check: all, if the user was loaded after the cursor, or the cursor is not `sure`."""
        view = await self._loader.view(user, start.change)
        if start.change < view.complete_since or not start.sure:
            return (await self._loader.view(user, "all")).user_rooms
        known = {user_room.channel_id for user_room in view.user_rooms}
        others = [name for name in (*view.timelines, *view.preferences) if name not in known]
        return view.user_rooms + (await self._loader.view(user, others)).user_rooms

    async def _position(self, channel: str) -> int:
        found = (await self._channels.channels([channel]))[0]
        return 0 if found is None else found.position


def _totals(rows: Sequence[Unread]) -> tuple[Totals, bool]:
    """Sums over rows that are complete, and whether one of them is a lower bound."""
    counted = [row for row in rows if row.has_unread and not row.muted and row.archived is UNSET]
    sums = Totals(sum(row.unread for row in counted), sum(row.mentions for row in counted), len(counted))
    return sums, any(row.reason == "capped" for row in counted)


def _latest_at(channel: Channel) -> int:
    return channel.latest.at if channel.latest else 0
