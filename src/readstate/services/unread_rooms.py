"""Which of a user's rooms have unread messages, in which order, and their sums."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from readstate.api import ThreadTotals, Totals
from readstate.domain.model import NO_PREFERENCES, Channel, Preferences
from readstate.domain.rooms import channel_and_thread, is_thread
from readstate.ports import Count, HotUsers, Stale, UnreadSummary, UserRoom

from .counting import Counting, any_unread, shown
from .loading import Loader

After = tuple[int, str]
"""(minus the time of the latest message, channel)."""


@dataclass(eq=False, repr=False)
class UnreadRooms:
    _users: HotUsers
    _loader: Loader
    _counting: Counting

    async def unread(self, user: str, after: After | None, limit: int) -> list[After]:
        """Channels with unread messages by latest activity."""
        timelines = (await self._loader.ready(user)).timelines
        found = await self.recent(user, after, limit, only_unread=True)
        found += [(-channel.latest_at, channel.channel_id) for _, channel, _ in await self._unread(user, timelines)]
        return sorted(key for key in found if after is None or key > after)[:limit]

    async def recent(self, user: str, after: After | None, limit: int, only_unread: bool) -> list[After]:
        """Ledger channels by latest activity."""
        return await self._loader.of_user(user, lambda: self._users.inbox(user, after, limit, only_unread))

    # ------------------------------------------------------------ sums

    async def totals(self, user: str, summary: UnreadSummary) -> tuple[Totals, bool]:
        """Sums over channels that are not muted or archived, and whether one of them is a lower bound.

        `unread._totals` has the same rule for rows that are at hand.
        """
        view = await self._loader.view(user, [])
        return self.sums_with(summary, view.preferences, await self._unread(user, view.timelines))

    def sums_with(
        self,
        summary: UnreadSummary,
        preferences: Mapping[str, Preferences],
        timelines: Iterable[tuple[UserRoom, Channel, Count]],
    ) -> tuple[Totals, bool]:
        """As `totals`, with the preferences and the unread timeline channels at hand."""
        rooms = [
            (preferences.get(name, NO_PREFERENCES), Count(some, named, None, more))
            for name, some, named, more in summary.special
        ]
        rooms += [(user_room.preferences, count) for user_room, channel, count in timelines if not channel.archived]
        return self.sums(summary.plain, rooms)

    def sums(
        self, plain: tuple[int, int, int, bool], rooms: Iterable[tuple[Preferences, Count]]
    ) -> tuple[Totals, bool]:
        """The sums of channels without preferences, and of these."""
        unread, mentions, channels, capped = plain
        for preferences, count in rooms:
            if not self._counting.muted(preferences):
                unread += shown(preferences, count)
                mentions += count.mentions
                channels += 1
                capped = capped or count.capped
        return Totals(unread, mentions, channels), capped

    async def _unread(self, user: str, timelines: Sequence[str]) -> list[tuple[UserRoom, Channel, Count]]:
        """Timeline channels with unread messages."""
        rooms = await self._counting.rooms(user, timelines) if timelines else []
        return [room for room in rooms if any_unread(room[2])]

    async def thread_totals(self, user: str, summary: UnreadSummary) -> ThreadTotals:
        """Sums over followed threads, in channels that the user is a member of."""
        names = list(channels_of_threads(summary))
        user_rooms = (await self._loader.view(user, names)).user_rooms if names else []
        return sums_of_threads(summary, {user_room.channel_id for user_room in user_rooms if user_room.member})

    async def stale_totals(self, user: str, before: Stale) -> tuple[bool, bool]:
        """Whether the sums over channels are stale, and whether those over threads are."""
        stale = before.or_by(self._counting.stale(user))
        if stale.everything or not stale.partitions:
            return stale.everything, stale.everything
        rooms = await self._loader.rooms(user)
        return (
            stale.any_of(room for room in rooms if not is_thread(room)),
            stale.any_of(room for room in rooms if is_thread(room)),
        )


def channels_of_threads(summary: UnreadSummary) -> set[str]:
    """The channels in which followed threads have something unread."""
    return {channel_and_thread(room)[0] for room, _, _ in summary.threads}


def sums_of_threads(summary: UnreadSummary, members: Collection[str]) -> ThreadTotals:
    """Sums over followed threads. `members`: those of `channels_of_threads` that the user is a member of."""
    counts = [count for room, count, _ in summary.threads if channel_and_thread(room)[0] in members]
    return ThreadTotals(sum(counts), len(counts))
