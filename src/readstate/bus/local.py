"""The bus of the embedded profile: there is one instance, and it is told at once."""

import traceback
from collections.abc import Awaitable, Callable, Sequence

import structlog

from ..announcements import Announcement

log = structlog.get_logger()

Subscriber = Callable[[Sequence[Announcement]], Awaitable[None]]


class LocalBus:
    """Hands on what is announced before anything else happens: nothing is missed, and order is kept."""

    def __init__(self) -> None:
        self._subscriber: Subscriber | None = None

    def subscribe(self, subscriber: Subscriber) -> None:
        """Who is told from now on."""
        self._subscriber = subscriber

    async def publish(self, announcements: Sequence[Announcement]) -> None:
        """Tell what is durable."""
        if self._subscriber is None or not announcements:
            return
        try:
            await self._subscriber(announcements)
        except Exception:
            log.error("devices were not told", action="live", traceback=traceback.format_exc())
