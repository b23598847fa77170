"""The micro-batcher: items that arrive while a batch is in flight share the next batch."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from readstate.domain.errors import Stopping

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """Calls `handler` with the items of many callers. Each caller gets its own results, or the error of the batch.

    At most `concurrency` batches are in flight; with 1 they run in order. There is no timer: an idle batcher starts at
    once, a busy one collects.
    """

    def __init__(
        self,
        handler: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        max_items: int,
        concurrency: int = 1,
        name: str = "",
    ) -> None:
        self.name = name
        """The name in traces."""
        self._handler = handler
        self._max_items = max_items
        self._concurrency = concurrency
        self._waiting: deque[tuple[Sequence[T], asyncio.Future[Sequence[R]]]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False

    async def submit(self, items: Sequence[T]) -> Sequence[R]:
        """Submit items, which are never split over batches, and wait for their results."""
        if self._closed:
            raise Stopping
        if not items:
            return []
        done: asyncio.Future[Sequence[R]] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, done))
        if len(self._running) < self._concurrency:
            self._running.add(asyncio.create_task(self._run()))
        return await done

    async def close(self) -> None:
        """Accept no more items, and finish the accepted ones."""
        self._closed = True
        while self._running:
            await asyncio.wait(self._running)

    async def _run(self) -> None:
        while self._waiting:
            await self._run_batch(self._gather())
        # At once, not in a callback: the next `submit` must not rely on this task.
        self._running.discard(asyncio.current_task())

    async def _run_batch(self, callers: Sequence[tuple[Sequence[T], "asyncio.Future[Sequence[R]]"]]) -> None:
        try:
            results = await self._handler([item for part, _ in callers for item in part])
        except Exception as error:
            for _, done in callers:
                if not done.done():
                    done.set_exception(error)
            return
        start = 0
        for part, done in callers:
            if not done.done():
                done.set_result(results[start : start + len(part)])
            start += len(part)

    def _gather(self) -> list[tuple[Sequence[T], "asyncio.Future[Sequence[R]]"]]:
        callers = [self._waiting.popleft()]
        size = len(callers[0][0])
        while self._waiting and size + len(self._waiting[0][0]) <= self._max_items:
            callers.append(self._waiting.popleft())
            size += len(callers[-1][0])
        return callers


class Batchers(Protocol):
    """A factory of batchers: `Batcher` itself, or `Tracing.batchers`."""

    def __call__(
        self,
        handler: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        max_items: int,
        concurrency: int = 1,
        name: str,
    ) -> Batcher[T, R]:
        """A batcher that calls this handler."""
