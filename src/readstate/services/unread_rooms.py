"""Which of a user's rooms have unread messages, in which order, and their sums."""

from collections.abc import Sequence
from typing import NamedTuple

from readstate.api import ThreadTotals, Totals
from readstate.domain.model import NO_PREFERENCES, Channel, Preferences
from readstate.domain.rooms import channel_and_thread, is_thread
from readstate.ports import HotUsers, Stale, UnreadSummary

from .counting import Counting, shown
from .loading import Loader

After = tuple[int, str]
"""(minus the time of the latest message, channel)."""


class _Line(NamedTuple):
    """The counts of a channel with unread messages."""

    name: str
    unread: int
    mentions: int
    capped: bool
    preferences: Preferences


class UnreadRooms:
    def __init__(self, users: HotUsers, loader: Loader, counting: Counting) -> None:
        self._users = users
        self._loader = loader
        self._counting = counting

    async def unread(self, user: str, after: After | None, limit: int) -> list[After]:
        """Channels with unread messages by latest activity."""
        timelines = (await self._loader.ready(user)).timelines
        found = await self.recent(user, after, limit, only_unread=True)
        if not timelines:
            return found
        user_rooms, channels = await self._loader.member_rooms(user, timelines)
        counts = await self._counting.counts(user, user_rooms, channels)
        found += [
            (-latest_at(channel), channel.channel_id)
            for channel, count in zip(channels, counts, strict=True)
            if count.count or count.capped
        ]
        return sorted(key for key in found if after is None or key > after)[:limit]

    async def recent(self, user: str, after: After | None, limit: int, only_unread: bool) -> list[After]:
        """Ledger channels by latest activity."""
        return await self._loader.of_user(user, lambda: self._users.inbox(user, after, limit, only_unread))

    # ------------------------------------------------------------ sums

    async def totals(self, user: str, summary: UnreadSummary) -> tuple[Totals, bool]:
        """Sums over channels that are not muted or archived, and whether one of them is a lower bound.

        `unread._totals` has the same rule for rows that are at hand.
        """
        unread, mentions, channels, capped = summary.plain
        view = await self._loader.view(user, [])
        lines = [_Line(*count, view.preferences.get(count[0], NO_PREFERENCES)) for count in summary.special]
        lines += await self._timelines(user, view.timelines)
        for line in lines:
            if not self._counting.muted(line.preferences):
                unread += shown(line.preferences, line.unread, line.mentions)
                mentions += line.mentions
                channels += 1
                capped = capped or line.capped
        return Totals(unread, mentions, channels), capped

    async def _timelines(self, user: str, names: Sequence[str]) -> list[_Line]:
        """Timeline channels with unread messages, without archived ones."""
        if not names:
            return []
        user_rooms, channels = await self._loader.member_rooms(user, names)
        counts = await self._counting.counts(user, user_rooms, channels)
        return [
            _Line(channel.channel_id, count.count, count.mentions, count.capped, user_room.preferences)
            for user_room, channel, count in zip(user_rooms, channels, counts, strict=True)
            if (count.count or count.capped) and not channel.archived
        ]

    async def thread_totals(self, user: str, summary: UnreadSummary) -> ThreadTotals:
        """Sums over followed threads, in channels that the user is a member of."""
        names = list({channel_and_thread(room)[0] for room, _, _ in summary.threads})
        user_rooms = (await self._loader.view(user, names)).user_rooms if names else []
        members = {user_room.channel_id for user_room in user_rooms if user_room.member}
        counts = [count for room, count, _ in summary.threads if channel_and_thread(room)[0] in members]
        return ThreadTotals(sum(counts), len(counts))

    async def stale_totals(self, user: str, before: Stale) -> tuple[bool, bool]:
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


def latest_at(channel: Channel) -> int:
    return channel.latest.at if channel.latest else 0
