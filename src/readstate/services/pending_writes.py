"""Changes of users' own state that the hot state shows already, but that are not durable yet."""

import asyncio
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager

MAX_WAITS = 3
"""Somebody who reads without a pause always has something under way."""


class PendingWrites:
    """Who has what under way. What is announced or answered as a moment of a user waits for it."""

    def __init__(self) -> None:
        self._changes: list[tuple[Set[str], asyncio.Future[None]]] = []

    @contextmanager
    def of(self, users: Set[str]) -> Iterator[None]:
        """While this is open, something of these users is under way."""
        end = self.begin(users)
        try:
            yield
        finally:
            end()

    def begin(self, users: Set[str]) -> Callable[[], None]:
        """From now on something of these users is under way, until the answer is called."""
        change = (users, asyncio.get_running_loop().create_future())
        self._changes.append(change)

        def end() -> None:
            self._changes.remove(change)
            change[1].set_result(None)

        return end

    def has(self, user: str) -> bool:
        """Whether anything of a user is."""
        return any(user in users for users, _ in self._changes)

    async def settled(self, user: str) -> None:
        """Wait until what the hot state shows of a user now is durable, or was taken back."""
        for users, done in list(self._changes):
            if user in users:
                await asyncio.wait([done])

    async def quiet(self, user: str) -> None:
        """Wait until nothing of a user is under way, if that comes soon."""
        for _ in range(MAX_WAITS):
            if not self.has(user):
                return
            await self.settled(user)


class UnannouncedWrites:
    """Whether the hot state shows something of channels that was not announced yet."""

    def __init__(self) -> None:
        self._writer: asyncio.Task[object] | None = None
        self._batches = 0

    @contextmanager
    def batch(self) -> Iterator[None]:
        """While this is open, a batch goes into the hot state and is then announced."""
        self._writer = asyncio.current_task()
        self._batches += 1
        try:
            yield
        finally:
            self._writer = None

    def moment(self) -> int | None:
        """A number that stays the same until something is shown that was not announced; None: there is something.

        To the task that writes, everything is announced when it is heard.
        """
        if self._writer is not None and self._writer is not asyncio.current_task():
            return None
        return self._batches
