"""What is unread: of one channel, of all of them, of many users."""

from collections.abc import Awaitable, Callable, Sequence
from heapq import nsmallest
from typing import NamedTuple

from ..api import Sync, ThreadTotals, Totals, Unread, UserTotals
from ..errors import TooLarge
from ..model import Channel, Preferences
from ..ports import HotChannels, Seat, Survey
from ..rooms import channel_and_thread, is_thread
from ..rules import check_id, check_user_id
from .counting import Counting, shown
from .cursors import SyncCursor, SyncPage, decode, encode, page_size
from .loading import Loader
from .reads import Reads

_DEFAULTS = Preferences()
MAX_LOOKS = 5
"""An answer is made again if something moved while it was made: totals and rows are of one moment."""


class Line(NamedTuple):
    """A channel with anything unread, in brief."""

    channel: Channel
    unread: int
    mentions: int
    capped: bool
    preferences: Preferences


class UnreadCounts:
    """Counts, exact at some moment between question and answer."""

    def __init__(
        self,
        channels: HotChannels,
        loader: Loader,
        counting: Counting,
        reads: Reads,
        badge: Callable[[str], Awaitable[int]],
        *,
        max_page: int,
        max_batch: int,
    ) -> None:
        self._badge = badge
        self._channels = channels
        self._loader = loader
        self._counting = counting
        self._reads = reads
        self._max_page = max_page
        self._max_batch = max_batch

    async def of_channel(self, user: str, channel: str) -> Unread:
        """Unread of one channel."""
        seat = await self._loader.seat(user, channel)
        return (await self._counting.unread([seat], [await self._loader.channel(channel)]))[0]

    async def totals(self, users: Sequence[str]) -> dict[str, UserTotals]:
        """Totals of many users, for push notifications."""
        if len(users) > self._max_batch:
            raise TooLarge(f"at most {self._max_batch} users in one request", field="users")
        answer = {}
        for user in users:
            survey = await self._loader.survey(check_user_id(user, "users"))
            lines = await self._lines(user, survey)
            sums, threads = self._sums(lines), await self._thread_totals(user, survey)
            exact = not any(line.capped for line in lines)
            badge = await self._badge(user)
            answer[user] = UserTotals(sums.unread, sums.mentions, sums.channels, threads.unread, badge, exact)
        return answer

    async def lines(self, user: str) -> list[Line]:
        """Every channel in which the user has anything unread. Costs as much as there is unread."""
        return await self._lines(user, await self._loader.survey(user))

    async def _lines(self, user: str, survey: Survey) -> list[Line]:
        wanted = survey.preferences
        small = await self._loader.channels([count[0] for count in survey.counts])
        lines = [
            Line(channel, count, mentions, capped, wanted.get(name, _DEFAULTS))
            for channel, (name, count, mentions, capped) in zip(small, survey.counts, strict=True)
            if channel is not None
        ]
        if survey.timelines:
            lines += await self._timeline_lines(user, survey.timelines)
        return lines

    async def _thread_totals(self, user: str, survey: Survey) -> ThreadTotals:
        """Sums over followed threads, in channels that the user is in."""
        names = list({channel_and_thread(room)[0] for room, _, _ in survey.threads})
        seats = (await self._loader.view(user, names)).seats if names else []
        members = {seat.channel_id for seat in seats if seat.member}
        counts = [count for room, count, _ in survey.threads if channel_and_thread(room)[0] in members]
        return ThreadTotals(sum(counts), len(counts))

    async def _timeline_lines(self, user: str, names: Sequence[str]) -> list[Line]:
        seats, channels = await self._seats(user, names)
        counts = await self._counting.counts(seats, channels)
        return [
            Line(channel, count.count, count.mentions, count.capped, seat.preferences)
            for seat, channel, count in zip(seats, channels, counts, strict=True)
            if count.count or count.capped
        ]

    async def _seats(self, user: str, names: Sequence[str]) -> tuple[list[Seat], list[Channel]]:
        """Members' seats with their ledgers, and their channels, in the order of the names."""
        view = await self._loader.counted(user, names)
        seats = [seat for seat in view.seats if seat.member]
        channels = await self._loader.channels([seat.channel_id for seat in seats])
        pairs = [(seat, channel) for seat, channel in zip(seats, channels, strict=True) if channel is not None]
        return [seat for seat, _ in pairs], [channel for _, channel in pairs]

    def _sums(self, lines: Sequence[Line]) -> Totals:
        counted = [line for line in lines if not line.channel.archived and not self._counting.muted(line.preferences)]
        unread = sum(shown(line.preferences, line.unread, line.mentions) for line in counted)
        return Totals(unread, sum(line.mentions for line in counted), len(counted))

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
        """All channels of a user, unread first, then by latest activity; or those changed since a cursor."""
        check_user_id(user, "user")
        limit = page_size(limit, 1000, self._max_page)
        page = None if cursor is None else decode(cursor, SyncPage, user)
        since = page.since if page is not None else since
        start = None if since is None else decode(since, SyncCursor, user, "since")
        sync = await self.moment(user) if page is None else page.sync
        wanted = None if channels is None else [check_id(name, "channels") for name in channels]
        for _ in range(MAX_LOOKS):
            before = await self._now(user)
            answer = await self._sync(user, wanted, only_unread, start, limit, page, (sync, since))
            if await self._now(user) == before:
                break
        return answer

    async def _sync(
        self,
        user: str,
        wanted: Sequence[str] | None,
        only_unread: bool,
        start: SyncCursor | None,
        limit: int,
        page: SyncPage | None,
        moments: tuple[str, str | None],
    ) -> Sync:
        survey = await self._loader.survey(user)
        lines = await self._lines(user, survey)
        removed: list[str] = []
        if start is not None:
            names, removed = await self._changed(user, start)
        elif only_unread:
            names = [line.channel.channel_id for line in lines]
        else:
            seats = (await self._loader.view(user, "all")).seats
            names = [seat.channel_id for seat in seats if seat.member and not is_thread(seat.channel_id)]
        if wanted is not None:
            removed = [name for name in removed if name in wanted] if start else await self._not_in(user, wanted)
            names = [name for name in names if name in set(wanted)]
        rows, more = await self._page(user, names, lines, page, limit)
        return Sync(
            totals=self._sums(lines),
            threads=await self._thread_totals(user, survey),
            channels=rows,
            removed=removed,
            cursor=_after(rows[-1], moments, user) if rows and more else None,
            sync=moments[0],
        )

    async def _now(self, user: str) -> tuple[int, int]:
        """Changes when anything does that the user may see."""
        return (await self._loader.view(user, [])).change, await self._channels.position()

    async def moment(self, user: str) -> str:
        """A cursor for `since`: everything up to it is in what is answered after it, and durable."""
        position = await self._channels.position()
        await self._reads.settled(user)
        change = (await self._loader.view(user, [])).change
        return encode(SyncCursor(change, position), user)

    async def _changed(self, user: str, start: SyncCursor) -> tuple[list[str], list[str]]:
        """Channels that changed for the user since a moment: those the user is in, and those left or deleted."""
        seats = await self._perhaps_changed(user, start)
        channels = await self._loader.channels([seat.channel_id for seat in seats])
        names, removed = [], []
        for seat, channel in zip(seats, channels, strict=True):
            if is_thread(seat.channel_id):
                continue
            if channel is None or not seat.member:
                if seat.pointer.change > start.change or await self._position(seat.channel_id) > start.position:
                    removed.append(seat.channel_id)
            elif seat.pointer.change > start.change or channel.position > start.position:
                names.append(seat.channel_id)
        return names, removed

    async def _perhaps_changed(self, user: str, start: SyncCursor) -> list[Seat]:
        """The seats to look at: all, if the user was loaded later than that moment."""
        if start.change < (await self._loader.view(user, [])).complete_since:
            return (await self._loader.view(user, "all")).seats
        changed = (await self._loader.view(user, start.change)).seats
        known = {seat.channel_id for seat in changed}
        timelines = [name for name in (await self._loader.survey(user)).timelines if name not in known]
        return changed + (await self._loader.view(user, timelines)).seats

    async def _position(self, channel: str) -> int:
        found = (await self._channels.channels([channel]))[0]
        return 0 if found is None else found.position

    async def _not_in(self, user: str, names: Sequence[str]) -> list[str]:
        seats, _ = await self._seats(user, names)
        members = {seat.channel_id for seat in seats}
        return [name for name in names if name not in members]

    async def _page(
        self, user: str, names: Sequence[str], lines: Sequence[Line], page: SyncPage | None, limit: int
    ) -> tuple[list[Unread], bool]:
        """The rows of a page, and whether there are more."""
        unread = {line.channel.channel_id: line.channel for line in lines}
        others = [name for name in names if name not in unread]
        keys = [_key(False, unread[name]) for name in names if name in unread]
        keys += [_key(True, channel) for channel in await self._loader.channels(others) if channel is not None]
        if page is not None:
            after = (page.read, -page.at, page.channel_id)
            keys = [key for key in keys if key > after]
        chosen = nsmallest(limit + 1, keys)
        seats, channels = await self._seats(user, [name for _, _, name in chosen[:limit]])
        return await self._counting.unread(seats, channels), len(chosen) > limit


def _key(read: bool, channel: Channel) -> tuple[bool, int, str]:
    """Unread first, then the latest activity, then by id."""
    return read, -(channel.latest.at if channel.latest else 0), channel.channel_id


def _after(row: Unread, moments: tuple[str, str | None], user: str) -> str:
    at = row.latest.at if row.latest else 0
    return encode(SyncPage(moments[0], moments[1], not row.has_unread, at, row.channel_id), user)
