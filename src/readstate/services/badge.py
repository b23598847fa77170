"""The offline badge: how many different people wrote while no device of the user was connected."""

from typing import Literal

from ..announcements import BadgeChanged
from ..api import Badge, FromSender, Tap
from ..errors import Unavailable
from ..model import Message
from ..ports import Bus, DurableUsers, HotBadges
from ..rules import check_user_id
from .acceptance import Acceptance
from .counting import Counting
from .loading import MAX_TRIES
from .messages import message_view

KEEP_MS = 7 * 24 * 3600 * 1000
"""What was tapped is kept for a week, in case the answer to the tap was lost."""


class OfflineBadge:
    """Counts from a set that is kept ready, or on the fly from the durable store: the same number."""

    def __init__(
        self,
        badges: HotBadges,
        durable: DurableUsers,
        counting: Counting,
        acceptance: Acceptance,
        bus: Bus,
        *,
        mode: Literal["precomputed", "on_the_fly"],
        max_messages: int,
    ) -> None:
        self._badges = badges
        self._durable = durable
        self._counting = counting
        self._acceptance = acceptance
        self._bus = bus
        self._mode = mode
        self._max_messages = max_messages

    async def get(self, user: str) -> Badge:
        """The badge as it stands."""
        check_user_id(user, "user")
        senders = await self.count(user)
        since = (await self._durable.activity(user)).last_tap
        return Badge(senders, self._counting.label(senders), since or None)

    async def count(self, user: str) -> int:
        """How many different people."""
        if self._mode == "on_the_fly":
            return await self._durable.badge_count(user)
        for _ in range(MAX_TRIES):
            known = await self._badges.count(user)
            if known is not None:
                return known
            ticket = await self._badges.begin(user)
            tap, senders = await self._durable.badge_senders(user)
            await self._badges.install(user, ticket, tap, senders)
        raise Unavailable("the badge changes faster than it can be loaded; try again")

    async def tap(self, user: str) -> Tap:
        """Show what they wrote, and set the badge to 0. Reads nothing."""
        check_user_id(user, "user")
        at = self._acceptance.tap()
        count, messages = await self._durable.tap(user, at, self._max_messages, at - KEEP_MS)
        await self._badges.tap(user, at)
        await self._bus.publish([BadgeChanged(user)])
        return Tap(count, at, _by_sender(messages))


def _by_sender(messages: list[Message]) -> list[FromSender]:
    """Whoever wrote last comes first."""
    groups: dict[str, FromSender] = {}
    for message in messages:
        group = groups.setdefault(message.sender_id, FromSender(message.sender_id, []))
        group.messages.append(message_view(message))
    return list(groups.values())
