"""Who wrote to people who are away comes to their badges, and stays there only if the durable store still has it.

What is told of a message can come late, or again, when its channel is deleted or its sender erased. Whoever deletes or
erases drops the badges after the commit. So it is enough to look after somebody new was put on a badge: what is gone by
then is seen, and what goes later takes the badge with it.
"""

from collections.abc import Sequence

from readstate.domain.model import Undelivered
from readstate.ports import DurableUsers, HotBadges


class BadgeNotes:
    """Adds to badges. Whoever calls it repeats what has failed."""

    def __init__(self, badges: HotBadges, durable: DurableUsers) -> None:
        self._badges = badges
        self._durable = durable
        self._unsure: dict[Undelivered, None] = {}
        """New on badges, and not looked up yet: when a call is repeated they are new no more."""

    async def add(self, noted: Sequence[Undelivered], *, or_reload: bool = True) -> set[str]:
        """Take them in, as badges do; the receivers whose badge may be another now."""
        changed = await self._badges.add(noted, or_reload=or_reload)
        self._unsure |= dict.fromkeys(one for one in noted if changed.get(one.receiver_id))
        asked = list(self._unsure)
        await self._drop_gone(asked)
        return {*changed, *(one.receiver_id for one in asked)}

    async def _drop_gone(self, asked: Sequence[Undelivered]) -> None:
        """Badges with somebody whose message is gone are loaded again on use."""
        if not asked:
            return
        for user in await self._durable.receivers_of_gone(asked):
            await self._badges.forget(user)
        for one in asked:
            self._unsure.pop(one, None)
