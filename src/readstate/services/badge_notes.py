"""Adds senders to the badges of users who are away, and drops badges that count a message that is gone.

The note of a message can arrive late, or be replayed, after its channel was deleted or its sender erased. A delete or
an erase drops the affected badges after its commit. So one check after adding a new sender is enough: the check finds
what is gone by then, and a later delete or erase drops the badge itself.
"""

from collections.abc import Sequence

from readstate.domain.model import Undelivered
from readstate.ports import DurableUsers, HotBadges


class BadgeNotes:
    """Callers retry a failed call."""

    def __init__(self, badges: HotBadges, durable: DurableUsers) -> None:
        self._badges = badges
        self._durable = durable
        self._unsure: dict[Undelivered, None] = {}
        """Added as new senders, and not checked yet. A retry would not report them as new again."""

    async def add(self, noted: Sequence[Undelivered], *, or_reload: bool = True) -> set[str]:
        """Add them as `HotBadges.add` does, and return the receivers whose badge may have changed."""
        changed = await self._badges.add(noted, or_reload=or_reload)
        self._unsure |= dict.fromkeys(one for one in noted if changed.get(one.receiver_id))
        asked = list(self._unsure)
        for user in await self._durable.receivers_of_gone(asked) if asked else ():
            await self._badges.forget(user)  # it is reloaded on use
        for one in asked:
            self._unsure.pop(one, None)
        return {*changed, *(one.receiver_id for one in asked)}
