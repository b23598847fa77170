"""What the message writer does when the durable store has a batch, or may have it, and a later part of it fails.

In a cluster the log delivers the batch again, so `RetryBatch` lets every failure out. Hot state stays as it is: a
reload may lack reads that only the log has. In the embedded profile nothing delivers the batch again, so
`DropHotState` goes on, and what the hot store lacks is reloaded from the durable store.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog

from readstate.domain.errors import Unavailable
from readstate.domain.events import ReadEvent, read_event
from readstate.domain.model import DropNumber, Undelivered
from readstate.ports import Clock, Hot, Moved
from readstate.services.undelivered import LateBadges

log = structlog.get_logger()

LogReads = Callable[[Sequence[ReadEvent]], Awaitable[None]]


class OnFailure(Protocol):
    async def commit_uncertain(self) -> None:
        """The durable store may or may not have committed the batch. The caller raises afterwards."""

    async def update_missed(self, error: Unavailable) -> None:
        """The hot store has not taken updates of a committed batch. Raises if the batch must be retried."""

    async def save_late_badges(self, lost: Sequence[Undelivered]) -> None:
        """Save messages that did not reach receivers who were online. Raises if the batch must be retried."""

    async def log_moved(self, moved: Sequence[Moved], generation: DropNumber) -> None:
        """Append pointers that the batch moved to the log. `generation` is the drop number from before the move."""


@dataclass(eq=False, repr=False)
class RetryBatch:
    _late_badges: LateBadges
    _log_reads: LogReads
    _clock: Clock

    async def commit_uncertain(self) -> None:
        pass

    async def update_missed(self, error: Unavailable) -> None:
        raise error

    async def save_late_badges(self, lost: Sequence[Undelivered]) -> None:
        await self._late_badges.save(lost)

    async def log_moved(self, moved: Sequence[Moved], generation: DropNumber) -> None:
        await self._log_reads(_read_events(moved, self._clock()))


@dataclass(eq=False, repr=False)
class DropHotState:
    _hot: Hot
    _late_badges: LateBadges
    _log_reads: LogReads
    _clock: Clock

    async def commit_uncertain(self) -> None:
        with suppress(Unavailable):
            await self._hot.clear()

    async def update_missed(self, error: Unavailable) -> None:
        log.warning("the hot store has missed messages; its state is dropped", action="write", code=error.code)
        with suppress(Unavailable):
            await self._hot.clear()

    async def save_late_badges(self, lost: Sequence[Undelivered]) -> None:
        await self._late_badges.note(lost)

    async def log_moved(self, moved: Sequence[Moved], generation: DropNumber) -> None:
        """If the log refuses the pointers, or the hot state was dropped meanwhile, these users are reloaded."""
        uncertain = {one.user_id for one in moved}
        try:
            await self._log_reads(_read_events(moved, self._clock()))
            uncertain = await self._hot.users.dropped(generation, uncertain)
        finally:
            for user in uncertain:
                await self._hot.users.forget(user)


def _read_events(moved: Sequence[Moved], now: int) -> list[ReadEvent]:
    return [read_event(one.user_id, one.channel_id, one.pointer, now) for one in moved]
