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
        self._is_idle: Callable[[], bool] = lambda: True

    def subscribe(self, subscriber: Subscriber, is_idle: Callable[[], bool]) -> None:
        """Who is told from now on, and whether it has anybody to tell."""
        self._subscriber = subscriber
        self._is_idle = is_idle

    @property
    def idle(self) -> bool:
        """Whether nobody is connected."""
        return self._is_idle()

    async def publish(self, announcements: Sequence[Announcement]) -> None:
        """Tell what is durable."""
        if self._subscriber is None or not announcements:
            return
        try:
            await self._subscriber(announcements)
        except Exception:
            log.error("devices were not told", action="live", traceback=traceback.format_exc())
