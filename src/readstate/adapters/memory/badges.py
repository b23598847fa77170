"""Badges in the memory of one process: the reference implementation of the hot state of badges."""

from collections.abc import Sequence
from itertools import count

from readstate.domain.model import Undelivered


class MemoryBadges:
    def __init__(self) -> None:
        self._senders: dict[str, tuple[int, set[str]]] = {}
        self._tickets: dict[str, int] = {}
        self._held: dict[str, set[int]] = {}
        self._next_ticket = count(1)

    async def count(self, user: str) -> int | None:
        known = self._senders.get(user)
        return None if known is None else len(known[1])

    async def counts(self, users: Sequence[str]) -> list[int | None]:
        return [await self.count(user) for user in users]

    async def add(self, undelivered: Sequence[Undelivered], *, or_reload: bool = True) -> dict[str, bool]:
        changed: dict[str, bool] = {}
        for one in undelivered:
            self._tickets.pop(one.receiver_id, None)  # a load in flight may have missed it
            known = self._senders.get(one.receiver_id)
            if known is None:
                changed[one.receiver_id] = False
            elif one.accepted_at > known[0] and one.sender_id not in known[1]:
                known[1].add(one.sender_id)
                changed[one.receiver_id] = True
        return changed

    async def hold(self, user: str) -> int:
        await self.forget(user)
        token = next(self._next_ticket)
        self._held.setdefault(user, set()).add(token)
        return token

    async def release(self, user: str, token: int) -> None:
        await self.forget(user)
        held = self._held.get(user, set())
        held.discard(token)
        if not held:
            self._held.pop(user, None)

    async def begin(self, user: str) -> int | None:
        if user in self._held:
            return None
        ticket = self._tickets[user] = self._tickets.get(user) or next(self._next_ticket)
        return ticket

    async def install(self, user: str, ticket: int, tap: int, senders: frozenset[str]) -> bool:
        if self._tickets.pop(user, None) != ticket:
            return False
        self._senders[user] = (tap, set(senders))
        return True

    async def forget(self, user: str) -> None:
        self._tickets.pop(user, None)
        self._senders.pop(user, None)

    def bytes(self) -> int:
        """The approximate memory of all badges."""
        return sum(400 + 80 * len(senders) for _, senders in self._senders.values())

    async def clear(self) -> None:
        """Drop everything, including loads in flight."""
        self._tickets.clear()
        self._senders.clear()

    def by_use(self) -> list[str]:
        """The oldest loads first: uses are not noted."""
        return list(self._senders)

    async def evict(self, user: str) -> None:
        await self.forget(user)
