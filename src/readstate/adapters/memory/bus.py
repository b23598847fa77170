"""The bus of the embedded profile: calls the one instance directly."""

import traceback
from collections.abc import Callable, Sequence

import structlog

from readstate.domain.announcements import Announcement, OnAnnouncements, OnGap, PointerMoved

log = structlog.get_logger()


class LocalBus:
    """Delivers announcements before `publish` returns: nothing is missed, and order is kept."""

    def __init__(self) -> None:
        self._on_announcements: OnAnnouncements | None = None
        self._missed: OnGap | None = None
        self._is_idle: Callable[[], bool] = lambda: True

    def subscribe(self, on_announcements: OnAnnouncements, missed: OnGap, is_idle: Callable[[], bool]) -> None:
        """Set the subscriber: handlers for announcements and for gaps, and whether it has no connected devices."""
        self._on_announcements, self._missed, self._is_idle = on_announcements, missed, is_idle

    async def attend(self) -> None:
        """Every read is delivered."""

    async def publish(self, announcements: Sequence[Announcement]) -> None:
        if self._on_announcements is None or self._missed is None or not announcements:
            return
        try:
            await self._on_announcements(announcements)
        except Exception:
            log.error(
                "announcements were not delivered; devices look up what changed",
                action="live",
                traceback=traceback.format_exc(),
            )
            await self._missed(0.0)

    async def publish_reads(self, count: int, reads: Callable[[], Sequence[PointerMoved]]) -> None:
        if not self._is_idle():
            await self.publish(reads())
