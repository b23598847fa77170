"""Messages that did not reach users who were online: they count for the badge after all."""

from collections.abc import Sequence

import structlog

from readstate.domain.announcements import BadgeChanged
from readstate.domain.errors import ReadstateError
from readstate.domain.model import Undelivered
from readstate.ports import Bus, DurableUsers, HotBadges

from .badge_notes import BadgeNotes

log = structlog.get_logger()


class LateBadges:
    """Saves them, in the durable store first."""

    def __init__(self, durable: DurableUsers, badges: HotBadges, bus: Bus) -> None:
        self._durable = durable
        self._badges = BadgeNotes(badges, durable)
        self._bus = bus
        self._waiting: list[Undelivered] = []

    async def note(self, noted: Sequence[Undelivered] = ()) -> None:
        """Save these and everything kept so far. What cannot be saved is kept for the next call."""
        todo, self._waiting = [*self._waiting, *noted], []
        try:
            await self.save(todo)
        except BaseException as error:
            self._waiting = [*todo, *self._waiting]
            if not isinstance(error, ReadstateError):
                raise
            log.warning("undelivered messages are not noted yet", action="badge", count=len(todo), code=error.code)

    async def save(self, todo: Sequence[Undelivered]) -> None:
        """Save these, for callers that keep them and retry a failed call. Idempotent."""
        if not todo:
            return
        stored = await self._durable.save_undelivered(todo)
        await self._badges.add(stored)
        await self._bus.publish([BadgeChanged(user) for user in {one.receiver_id for one in stored}])
