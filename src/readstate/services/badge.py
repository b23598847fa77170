"""The offline badge: how many different people wrote while no device of the user was connected.

The truth is in the durable store: who wrote when, and when the last tap was. The set in the hot state only has the
number ready. A tap changes the truth, so while it is under way the set is held: nobody loads it, and whoever asks is
answered by the durable store. When the tap is over the set is loaded again, with whatever was accepted since.
"""

import asyncio
from contextlib import suppress
from time import monotonic
from typing import Literal

import structlog

from readstate.api import Badge, FromSender, Tap
from readstate.domain.announcements import BadgeChanged
from readstate.domain.errors import InvalidCursor, StorageUnavailable, Unavailable
from readstate.domain.model import Message
from readstate.domain.rules import MAX_AHEAD_MS, check_user_id
from readstate.ports import Bus, DurableUsers, HotBadges, TapCursor, Tapped

from .acceptance import Acceptance
from .counting import Counting
from .cursors import Cursors, TapAfter
from .loading import MAX_TRIES
from .messages import message_view

TAP_SECONDS = 4.0
"""A tap that the durable store has not taken by then is given up: well before its hold ends by itself."""
PAGES_MS = 600_000
"""The pages of a tap can be read for this long, and stay as they are, however old what they show is."""
EXPIRE_AT_ONCE = 500

log = structlog.get_logger()


class OfflineBadge:
    """Counts from a set that is kept ready, or on the fly from the durable store: the same number."""

    def __init__(
        self,
        badges: HotBadges,
        durable: DurableUsers,
        counting: Counting,
        acceptance: Acceptance,
        bus: Bus,
        cursors: Cursors,
        *,
        mode: Literal["precomputed", "on_the_fly"],
        max_messages: int,
        retention: int,
    ) -> None:
        self._badges = badges
        self._durable = durable
        self._counting = counting
        self._acceptance = acceptance
        self._bus = bus
        self._cursors = cursors
        self._mode = mode
        self._max_messages = max_messages
        self._retention_ms = retention * 1000
        self._taps: set[asyncio.Task[Tapped]] = set()

    async def get(self, user: str) -> Badge:
        """The badge as it stands."""
        check_user_id(user, "user")
        since = (await self._durable.activity(user)).last_tap
        if self._is_ahead(since):
            since = await self._bound(user)
            await self._badges.forget(user)
        senders = await self.count(user)
        return Badge(senders, self._counting.label(senders), since or None)

    async def count(self, user: str) -> int:
        """How many different people."""
        if self._mode == "on_the_fly":
            return await self._durable.badge_count(user) or await self._none(user)
        for _ in range(MAX_TRIES):
            known = await self._badges.count(user)
            if known is not None:
                return known
            ticket = await self._badges.begin(user)
            if ticket is None:
                return await self._durable.badge_count(user)
            tap, senders = await self._durable.badge_senders(user)
            if self._is_ahead(tap):
                tap = await self._bound(user)
            await self._badges.install(user, ticket, tap, senders)
        raise Unavailable("the badge changes faster than it can be loaded; try again")

    async def tap(self, user: str, cursor: str | None = None) -> Tap:
        """Show what they wrote, and set the badge to 0. Reads nothing. With a cursor: more of what a tap showed."""
        check_user_id(user, "user")
        if cursor is not None:
            return await self._next_page(user, self._cursors.decode(cursor, TapAfter, user))
        # Whoever waits for it may give up: then it is done all the same, so that no badge stays held.
        task = asyncio.create_task(self._tap(user))
        self._taps.add(task)
        task.add_done_callback(self._tapped)
        tapped = await asyncio.shield(task)
        return self._page(user, tapped.since, tapped.at, tapped.senders, tapped.messages)

    async def expire(self) -> int:
        """Remove what taps have shown and is older than it need be, little by little; how many."""
        now = self._acceptance.now()
        after: str | None = ""
        removed = 0
        while after is not None:
            after, some = await self._durable.expire_undelivered(
                after, now - self._retention_ms, now - PAGES_MS, EXPIRE_AT_ONCE
            )
            removed += some
        return removed

    def _is_ahead(self, tap: int) -> bool:
        """Whether a tap is later than it can be: until then nobody would count."""
        return tap > self._acceptance.now() + MAX_AHEAD_MS

    async def _bound(self, user: str) -> int:
        now = self._acceptance.cut()
        await self._durable.bound_tap(user, now)
        return now

    async def _none(self, user: str) -> int:
        """Nobody counts: make sure that this is not because of a tap that is later than it can be."""
        if self._is_ahead((await self._durable.activity(user)).last_tap):
            await self._bound(user)
        return 0

    async def _tap(self, user: str) -> Tapped:
        until = monotonic() + TAP_SECONDS
        token = await self._badges.hold(user)
        try:
            tapped = await self._durable.tap(user, self._acceptance.cut(), self._max_messages + 1, until)
        except StorageUnavailable as error:
            if not error.uncertain:  # else it may be done in a moment: the hold ends by itself
                await self._release(user, token)
            raise
        except BaseException:
            await self._release(user, token)
            raise
        await self._release(user, token)
        await self._bus.publish([BadgeChanged(user)])
        return tapped

    async def _release(self, user: str, token: int) -> None:
        """What became of the tap is known: the hold of a hot store that is away ends by itself."""
        with suppress(Unavailable):
            await self._badges.release(user, token)

    def _tapped(self, task: asyncio.Task[Tapped]) -> None:
        self._taps.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:  # told to whoever still waits
            log.info("tap failed", action="tap", error=str(error))

    async def _next_page(self, user: str, last: TapAfter) -> Tap:
        """What a tap has shown is shown once: a page can be asked for again, but not for ever."""
        if self._acceptance.now() - last.tapped_at > PAGES_MS:
            raise InvalidCursor(f"the pages of a tap can be read for {PAGES_MS // 60_000} minutes", field="cursor")
        place = TapCursor(last.accepted_at, last.at, last.channel_id, last.message_id)
        found = await self._durable.tapped(user, last.since, last.tapped_at, place, self._max_messages + 1)
        return self._page(user, last.since, last.tapped_at, last.senders, found)

    def _page(self, user: str, since: int, at: int, senders: int, found: list[tuple[int, Message]]) -> Tap:
        """One message more than a page holds was asked for."""
        shown = found[: self._max_messages]
        cursor = None
        if len(found) > len(shown):
            accepted_at, last = shown[-1]
            place = TapAfter(since, at, senders, accepted_at, last.at, last.channel_id, last.id)
            cursor = self._cursors.encode(place, user)
        return Tap(senders, at, _by_sender([message for _, message in shown]), cursor)


def _by_sender(messages: list[Message]) -> list[FromSender]:
    """Whoever wrote last comes first."""
    groups: dict[str, FromSender] = {}
    for message in messages:
        group = groups.setdefault(message.sender_id, FromSender(message.sender_id, []))
        group.messages.append(message_view(message))
    return list(groups.values())
