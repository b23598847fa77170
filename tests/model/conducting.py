"""Things that happen at once, in an order that the test decides: every call of the durable store waits its turn."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from itertools import cycle
from typing import Any

CALLS = [
    "apply",
    "merge",
    "merge_unless_erased",
    "save_preferences",
    "cut_skipped",
    "load_user",
    "unread_page",
    "load_ledgers",
    "load_channels",
    "load_timeline",
    "by_id",
    "by_seq",
    "by_time",
    "own_seqs",
    "badge_senders",
    "badge_count",
    "activity",
    "wrote_since",
]
QUIET_TURNS = 10
"""After so many turns of the loop without a call under way, everything waits for its turn."""


class Conductor:
    """Lets one of all waiting calls go on at a time, before it asks the store and again before it has the answer."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []
        self._busy = 0
        self._conducting = False

    def conduct(self, store: object) -> None:
        """Make the calls of a store wait for their turns."""
        for name in CALLS:
            setattr(store, name, self._in_turn(getattr(store, name)))

    def watch(self, store: object, name: str) -> None:
        """A call that goes to a server and needs no turn, but is waited for before anything is quiet."""
        call = getattr(store, name)

        async def watched(*args: Any, **options: Any) -> Any:
            self._busy += 1
            try:
                return await call(*args, **options)
            finally:
                self._busy -= 1

        setattr(store, name, watched)

    async def at_once(self, work: Iterable[Coroutine[Any, Any, Any]], order: Iterable[int]) -> list[Any]:
        """Do all of it, each answer or error in its place. `order` says who goes on, over and over."""
        self._conducting = True
        tasks = [asyncio.create_task(self._begun(each)) for each in work]
        numbers = cycle(order)
        while not all(task.done() for task in tasks):
            await self._quiet()
            self._go_on(numbers)
        self._conducting = False
        while self._waiting:
            self._go_on(numbers)
        return await asyncio.gather(*tasks, return_exceptions=True)

    def _go_on(self, numbers: Iterator[int]) -> None:
        if self._waiting:
            self._waiting.pop(next(numbers) % len(self._waiting)).set_result(None)

    async def _quiet(self) -> None:
        turns = 0
        while turns < QUIET_TURNS:
            await asyncio.sleep(0)
            turns = 0 if self._busy else turns + 1

    async def _begun(self, work: Coroutine[Any, Any, Any]) -> Any:
        await self._turn()
        return await work

    async def _turn(self) -> None:
        if self._conducting:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    def _in_turn(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def in_turn(*args: Any, **options: Any) -> Any:
            await self._turn()
            self._busy += 1
            try:
                answer = await call(*args, **options)
            finally:
                self._busy -= 1
            await self._turn()
            return answer

        return in_turn
