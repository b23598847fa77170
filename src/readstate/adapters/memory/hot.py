"""Hot state in the memory of one process, with a bound on its size."""

from math import ceil

from readstate.domain.model import Generation, LogPosition
from readstate.ports import Clock
from readstate.telemetry import HOT_ENTRIES

from .badges import MemoryBadges
from .channels import MemoryChannels
from .presence import MemoryPresence
from .users import USER_ROOM_BYTES, MemoryUsers

SHRINK_BY = 0.1


class MemoryHot:
    """Users, channels and badges. When they exceed `max_bytes`, the oldest are evicted."""

    def __init__(
        self,
        *,
        unread_cap: int,
        generation: Generation,
        position: LogPosition,
        clock: Clock,
        ledger_ttl: int,
        max_bytes: int,
    ) -> None:
        self.users = MemoryUsers(unread_cap=unread_cap, generation=generation, clock=clock, ledger_ttl=ledger_ttl)
        self.channels = MemoryChannels(unread_cap=unread_cap, clock=clock, position=position)
        self.badges = MemoryBadges()
        self.presence = MemoryPresence(clock)
        self._max_bytes = max_bytes
        self._loaded = 0

    async def loaded(self, items: int) -> None:
        """Count loaded user rooms, channels or messages, and check the bound when enough has been loaded."""
        self._loaded += items * USER_ROOM_BYTES
        if self._loaded > self._max_bytes * SHRINK_BY / 2:
            await self.bound()

    async def bound(self) -> None:
        """Evict down to the bound. One user, channel and badge always stay, so that they can be used."""
        self._loaded = 0
        parts = (self.users, self.channels, self.badges)
        while (size := sum(part.bytes() for part in parts)) > self._max_bytes:
            oldest = [(part, name) for part in parts for name in _tenth(part.by_use())]
            for part, name in oldest:
                await part.evict(name)
            if not oldest:
                break
        HOT_ENTRIES.set(size)

    async def clear(self) -> None:
        for part in (self.users, self.channels, self.badges):
            await part.clear()


def _tenth(by_use: list[str]) -> list[str]:
    """The first tenth, but not all: one always stays, so that it can be used."""
    return by_use[: min(ceil(len(by_use) * SHRINK_BY), len(by_use) - 1)]
