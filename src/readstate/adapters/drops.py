"""Whose hot state was dropped lately: what was on its way to the durable store then may be missing in it."""

from collections.abc import Iterable

MAX_REMEMBERED = 10_000


class Drops:
    """Numbers every drop. Forgets single ones after a while, and then says rather too much than too little."""

    def __init__(self) -> None:
        self.count = 0
        self._users: dict[str, int] = {}
        self._everyone = 0

    def user(self, user: str) -> None:
        """One user was dropped."""
        self.count += 1
        self._users.pop(user, None)
        self._users[user] = self.count
        if len(self._users) > MAX_REMEMBERED:
            self._everyone = self._users.pop(next(iter(self._users)))

    def everyone(self) -> None:
        """All users were dropped."""
        self.count += 1
        self._everyone = self.count
        self._users.clear()

    def since(self, count: int, users: Iterable[str]) -> set[str]:
        """Those of these users who may have been dropped since then."""
        if count < self._everyone:
            return set(users)
        return {user for user in users if self._users.get(user, 0) > count}
