"""The offline badge: the number of different people who wrote while the user had no device connected.

The durable store has the truth: who wrote when, and the time of the last tap. The set in the hot store only keeps the
number ready. A tap changes the truth, so the set is held while a tap is in flight: no process loads it, and the durable
store answers counts. After the tap the set is reloaded, with everything accepted since.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

import structlog

from readstate.api import Badge, FromSender, Tap
from readstate.domain.announcements import BadgeChanged
from readstate.domain.errors import InvalidCursor, StorageUnavailable, Unavailable
from readstate.domain.model import Message
from readstate.domain.rules import MAX_AHEAD_MS, check_user_id
from readstate.ports import Bus, DurableUsers, HotBadges, TapCursor, Tapped
from readstate.settings import Settings
from readstate.timings import ServiceTimings

from .acceptance import AcceptanceClock
from .counting import Counting
from .cursors import Cursors, TapAfter
from .loading import MAX_TRIES
from .messages import message_view

PAGES_MS = 600_000
"""The pages of a tap stay readable and complete for this long, even if their messages are past their retention."""
EXPIRE_AT_ONCE = 500

log = structlog.get_logger()


@dataclass(eq=False, repr=False)
class OfflineBadge:
    """Counts from the precomputed set or on the fly from the durable store; both give the same number."""

    _badges: HotBadges
    _durable: DurableUsers
    _counting: Counting
    _acceptance: AcceptanceClock
    _bus: Bus
    _cursors: Cursors
    _settings: Settings
    _timings: ServiceTimings
    _taps: set[asyncio.Task[Tapped]] = field(default_factory=set, init=False)

    async def get(self, user: str) -> Badge:
        check_user_id(user, "user")
        tap = (await self._durable.activity(user)).last_tap
        since = await self._bounded(user, tap)
        if since != tap:
            await self._badges.forget(user)
        senders = await self.count(user)
        return Badge(senders, self._counting.label(senders), since or None)

    async def count(self, user: str) -> int:
        if self._settings.badge_mode == "off":
            return 0
        if self._settings.badge_mode == "on_the_fly":
            return await self._durable.badge_count(user) or await self._none(user)
        for _ in range(MAX_TRIES):
            known = await self._badges.count(user)
            if known is not None:
                return known
            ticket = await self._badges.begin(user)
            if ticket is None:
                return await self._durable.badge_count(user)
            tap, senders = await self._durable.badge_senders(user)
            await self._badges.install(user, ticket, await self._bounded(user, tap), senders)
        raise Unavailable("the badge changes faster than it can be loaded; try again")

    async def tap(self, user: str, cursor: str | None = None) -> Tap:
        """Return the messages behind the badge and reset it to 0; marks nothing read. With a cursor: the next page."""
        check_user_id(user, "user")
        if self._settings.badge_mode == "off":
            return Tap(0, self._acceptance.now(), [], None)
        if cursor is not None:
            return await self._next_page(user, self._cursors.decode(cursor, TapAfter, user))
        # The task outlives a caller that gives up, so that no badge stays held.
        task = asyncio.create_task(self._tap(user))
        self._taps.add(task)
        task.add_done_callback(self._tapped)
        tapped = await asyncio.shield(task)
        return self._page(user, tapped.since, tapped.at, tapped.senders, tapped.messages)

    async def expire(self) -> int:
        """Remove what a tap has shown and whose retention is over, and what is too old; return the number of rows."""
        now = self._acceptance.now()
        after: str | None = ""
        removed = 0
        while after is not None:
            after, some = await self._durable.expire_undelivered(
                after, now - self._settings.badge_retention * 1000, now - PAGES_MS, EXPIRE_AT_ONCE
            )
            removed += some
        return removed + await self._expire_untapped(now - self._settings.badge_max_age * 1000)

    async def _expire_untapped(self, before: int) -> int:
        """Rows of users who do not tap end too. Their badges are reloaded."""
        after: str | None = ""
        removed = 0
        while after is not None:
            after, some, receivers = await self._durable.expire_untapped(after, before, EXPIRE_AT_ONCE)
            removed += some
            for user in receivers:
                await self._badges.forget(user)
            await self._bus.publish([BadgeChanged(user) for user in receivers])
        return removed

    async def _bounded(self, user: str, tap: int) -> int:
        """The stored tap; now, if it is further in the future than clocks differ: it would hide every sender."""
        if tap <= self._acceptance.now() + MAX_AHEAD_MS:
            return tap
        now = self._acceptance.cut()
        await self._durable.bound_tap(user, now)
        return now

    async def _none(self, user: str) -> int:
        """Return 0, after pulling back a tap from the future."""
        await self._bounded(user, (await self._durable.activity(user)).last_tap)
        return 0

    async def _tap(self, user: str) -> Tapped:
        until = monotonic() + self._timings.tap
        token = await self._badges.hold(user)
        try:
            tapped = await self._durable.tap(user, self._acceptance.cut(), self._settings.max_page + 1, until)
        except BaseException as error:
            if not isinstance(error, StorageUnavailable) or not error.uncertain:
                await self._release(user, token)  # an uncertain tap may still commit: its hold must expire by itself
            raise
        await self._release(user, token)
        await self._bus.publish([BadgeChanged(user)])
        return tapped

    async def _release(self, user: str, token: int) -> None:
        """Ignores an unreachable hot store: the outcome of the tap is known, and the hold expires by itself."""
        with suppress(Unavailable):
            await self._badges.release(user, token)

    def _tapped(self, task: asyncio.Task[Tapped]) -> None:
        self._taps.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:  # a caller that still waits gets it too
            log.info("tap failed", action="tap", error=str(error))

    async def _next_page(self, user: str, last: TapAfter) -> Tap:
        """A page can be fetched repeatedly, but only for `PAGES_MS` after its tap."""
        if self._acceptance.now() - last.tapped_at > PAGES_MS:
            raise InvalidCursor(f"the pages of a tap can be read for {PAGES_MS // 60_000} minutes", field="cursor")
        after = TapCursor(last.accepted_at, last.at, last.channel_id, last.message_id)
        found = await self._durable.tapped(user, last.since, last.tapped_at, after, self._settings.max_page + 1)
        return self._page(user, last.since, last.tapped_at, last.senders, found)

    def _page(self, user: str, since: int, at: int, senders: int, found: list[tuple[int, Message]]) -> Tap:
        """`found` has one message more than a page holds if another page follows."""
        shown = found[: self._settings.max_page]
        cursor = None
        if len(found) > len(shown):
            accepted_at, last = shown[-1]
            after = TapAfter(since, at, senders, accepted_at, last.at, last.channel_id, last.id)
            cursor = self._cursors.encode(after, user)
        return Tap(senders, at, _by_sender([message for _, message in shown]), cursor)


def _by_sender(messages: list[Message]) -> list[FromSender]:
    """The sender of the newest message comes first."""
    groups: dict[str, FromSender] = {}
    for message in messages:
        group = groups.setdefault(message.sender_id, FromSender(message.sender_id, []))
        group.messages.append(message_view(message))
    return list(groups.values())
