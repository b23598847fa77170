"""Remembers which users' hot state was dropped lately.

State that is reloaded after a drop may lack reads that were still on their way to the durable store.
"""

from collections.abc import Iterable

from readstate.domain.model import DropNumber

MAX_REMEMBERED = 10_000


class Drops:
    """Numbers every drop. Remembers up to MAX_REMEMBERED users; beyond that it reports too many, never too few."""

    def __init__(self) -> None:
        self.count = DropNumber(0)
        self._users: dict[str, int] = {}
        self._everyone = 0

    def user(self, user: str) -> None:
        self.count = DropNumber(self.count + 1)
        self._users.pop(user, None)
        self._users[user] = self.count
        if len(self._users) > MAX_REMEMBERED:
            self._everyone = self._users.pop(next(iter(self._users)))

    def everyone(self) -> None:
        self.count = DropNumber(self.count + 1)
        self._everyone = self.count
        self._users.clear()

    def since(self, count: int, users: Iterable[str]) -> set[str]:
        """Those of these users who may have been dropped after drop number `count`."""
        if count < self._everyone:
            return set(users)
        return {user for user in users if self._users.get(user, 0) > count}
