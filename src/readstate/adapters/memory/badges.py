"""Badges in the memory of one process."""

from collections.abc import Sequence
from itertools import count
from math import ceil

from readstate.domain.model import Undelivered


class MemoryBadges:
    """The plain statement of what the hot state of badges does."""

    def __init__(self) -> None:
        self._senders: dict[str, tuple[int, set[str]]] = {}
        self._tickets: dict[str, int] = {}
        self._held: dict[str, set[int]] = {}
        self._next_ticket = count(1)

    async def count(self, user: str) -> int | None:
        """How many; None: not loaded."""
        known = self._senders.get(user)
        return None if known is None else len(known[1])

    async def counts(self, users: Sequence[str]) -> list[int | None]:
        """How many, for each of many."""
        return [await self.count(user) for user in users]

    async def add(self, undelivered: Sequence[Undelivered], *, or_reload: bool = True) -> dict[str, bool]:
        """Take them in, unless they were accepted before the last tap; the receivers whose badge may be another now."""
        changed: dict[str, bool] = {}
        for one in undelivered:
            self._tickets.pop(one.receiver_id, None)  # a load that is under way may have missed it
            known = self._senders.get(one.receiver_id)
            if known is None:
                changed[one.receiver_id] = False
            elif one.accepted_at > known[0] and one.sender_id not in known[1]:
                known[1].add(one.sender_id)
                changed[one.receiver_id] = True
        return changed

    async def hold(self, user: str) -> int:
        """A tap begins: the badge is not loaded, by anybody, until it is released."""
        await self.forget(user)
        token = next(self._next_ticket)
        self._held.setdefault(user, set()).add(token)
        return token

    async def release(self, user: str, token: int) -> None:
        """The tap is over, done or not: the badge is loaded again on use."""
        await self.forget(user)
        held = self._held.get(user, set())
        held.discard(token)
        if not held:
            self._held.pop(user, None)

    async def begin(self, user: str) -> int | None:
        """Announce a load; None while the badge is held."""
        if user in self._held:
            return None
        ticket = self._tickets[user] = self._tickets.get(user) or next(self._next_ticket)
        return ticket

    async def install(self, user: str, ticket: int, tap: int, senders: frozenset[str]) -> bool:
        """Take a loaded badge; False if something has happened since `begin`: load again."""
        if self._tickets.pop(user, None) != ticket:
            return False
        self._senders[user] = (tap, set(senders))
        return True

    async def forget(self, user: str) -> None:
        """Drop a badge; loaded again on use."""
        self._tickets.pop(user, None)
        self._senders.pop(user, None)

    def bytes(self) -> int:
        """About how much memory the badges take."""
        return sum(400 + 80 * len(senders) for _, senders in self._senders.values())

    async def clear(self) -> None:
        """Drop everything, also loads that are under way."""
        self._tickets.clear()
        self._senders.clear()

    async def shrink(self, share: float) -> int:
        """Drop this share of the badges, the oldest loads first; returns how many."""
        dropped = list(self._senders)[: min(ceil(len(self._senders) * share), len(self._senders) - 1)]
        for user in dropped:
            await self.forget(user)
        return len(dropped)
