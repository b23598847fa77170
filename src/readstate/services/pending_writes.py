"""Writes that the hot state already shows: not durable yet (of users), or not announced yet (of channels)."""

import asyncio
from collections.abc import Iterator, Set
from contextlib import contextmanager

MAX_WAITS = 3
"""Bounds `quiet`: a user who reads without a pause always has a pending write."""


class PendingWrites:
    """Which users have pending writes. Cursors, live events and repairs of a user wait for them."""

    def __init__(self) -> None:
        self._changes: list[tuple[Set[str], asyncio.Future[None]]] = []

    @contextmanager
    def of(self, users: Set[str]) -> Iterator[None]:
        """While this is open, these users have a pending write."""
        change = (users, asyncio.get_running_loop().create_future())
        self._changes.append(change)
        try:
            yield
        finally:
            self._changes.remove(change)
            change[1].set_result(None)

    def has(self, user: str) -> bool:
        return any(user in users for users, _ in self._changes)

    async def settled(self, user: str) -> None:
        """Wait until everything that the hot state shows of the user now is durable or taken back."""
        for users, done in list(self._changes):
            if user in users:
                await asyncio.wait([done])

    async def quiet(self, user: str) -> None:
        """Wait until the user has no pending write, for at most `MAX_WAITS` rounds."""
        for _ in range(MAX_WAITS):
            if not self.has(user):
                return
            await self.settled(user)


class UnannouncedWrites:
    """Whether the hot state shows changes of channels that the bus has not announced."""

    def __init__(self) -> None:
        self._writer: asyncio.Task[object] | None = None
        self._batches = 0

    @contextmanager
    def batch(self) -> Iterator[None]:
        """While this is open, a batch is applied to the hot state and then announced."""
        self._writer = asyncio.current_task()
        self._batches += 1
        try:
            yield
        finally:
            self._writer = None

    def version(self) -> int | None:
        """A number that changes with every batch; None while a batch is unannounced.

        The writing task never gets None: it runs the listeners of the embedded bus, and by then the batch is announced.
        """
        if self._writer is not None and self._writer is not asyncio.current_task():
            return None
        return self._batches
