"""Receipts that are gathered while others are looked up, and during the pause after those."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast

from readstate.domain.announcements import PointerMoved
from readstate.domain.errors import HotStoreUnavailable
from readstate.domain.model import Pointer, SeenPosition
from readstate.live.receipts import LiveReceipts
from readstate.timings import LiveTimings

Told = tuple[str, int]


def read(user: str, seq: int) -> PointerMoved:
    return PointerMoved(user, "c", Pointer(0, 0), Pointer(0, seq, id=f"m{seq}"), "here")


class Place:
    """Everything around the receipts: what is looked up together, and when it was sent."""

    def __init__(self, pause: float = 0.001) -> None:
        self.lookups: list[list[Told]] = []
        self.during_lookup: list[Callable[[], object]] = []
        """What happens while receipts are looked up, one for each lookup."""
        self.after_sending: list[Callable[[], object]] = []
        """What happens once they are sent, in the next turn of the event loop."""
        self.sent = 0
        self.fails = 0
        self.cursors = SimpleNamespace(unsent_receipts_since=None)
        around = cast("Any", self)
        timings = LiveTimings(receipts=pause, retry=0.001)
        self.receipts = LiveReceipts(around, around, cast("Any", self.cursors), around, lambda: 1000, timings)

    # in place of the connected users

    def members(self, _: str) -> list[Any]:
        return [SimpleNamespace(id="bob")]

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work)

    def queue(self, _user: Any, _event: bytes) -> None:
        self.sent += 1

    # in place of the receipts

    async def visible(self, moves: Sequence[PointerMoved]) -> list[SeenPosition]:
        self.lookups.append([(one.user_id, one.pointer.seq) for one in moves])
        if self.during_lookup:
            self.during_lookup.pop(0)()
        if self.fails:
            self.fails -= 1
            raise HotStoreUnavailable
        return [SeenPosition("c", one.user_id, one.pointer.id, one.pointer.seq, 1) for one in moves]

    # in place of the sender

    async def send(self) -> None:
        if self.after_sending:
            asyncio.get_running_loop().call_soon(self.after_sending.pop(0))

    def add(self, *moves: Told) -> None:
        for user, seq in moves:
            self.receipts.add(read(user, seq))

    async def done(self) -> None:
        async with asyncio.timeout(5):
            while self.receipts._task is not None:
                await self.receipts.tried()
                await asyncio.sleep(0)


async def test_the_first_is_looked_up_at_once() -> None:
    place = Place(pause=3600)

    place.add(("alice", 1))
    await place.done()

    assert place.lookups == [[("alice", 1)]]


async def test_those_of_the_pause_leave_together_in_order_and_the_last_of_each_reader_wins() -> None:
    place = Place()
    place.during_lookup.append(lambda: place.add(("carol", 1)))
    place.after_sending.append(lambda: place.add(("alice", 2), ("carol", 2), ("alice", 3)))

    place.add(("alice", 1))
    await place.done()

    assert place.lookups == [[("alice", 1)], [("carol", 2), ("alice", 3)]]
    assert place.sent == 3


async def test_who_waits_during_the_pause_waits_for_those_gathered_by_then() -> None:
    place = Place()
    sent_before_answer: list[int] = []

    async def ping() -> None:
        await place.receipts.tried()
        sent_before_answer.append(place.sent)

    pings: list[asyncio.Task[None]] = []
    place.during_lookup.append(lambda: place.add(("carol", 1)))
    place.after_sending.append(lambda: pings.append(asyncio.create_task(ping())))
    place.add(("alice", 1))
    await place.done()
    await asyncio.gather(*pings)

    assert sent_before_answer == [2]


async def test_cursors_stay_behind_what_is_gathered_during_the_pause() -> None:
    place = Place()
    seen: list[int | None] = []
    place.during_lookup.append(lambda: place.add(("carol", 1)))
    place.after_sending.append(lambda: seen.append(place.cursors.unsent_receipts_since))

    place.add(("alice", 1))
    await place.done()

    assert seen == [1000]
    assert place.cursors.unsent_receipts_since is None


async def test_a_lookup_that_fails_is_repeated_after_the_other_pause_with_the_later_moves() -> None:
    place = Place(pause=3600)
    place.fails = 1
    place.during_lookup.append(lambda: place.add(("carol", 1), ("alice", 2)))

    place.add(("alice", 1))
    await place.done()

    assert place.lookups == [[("alice", 1)], [("alice", 2), ("carol", 1)]]
