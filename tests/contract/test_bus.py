"""What every bus promises to the instance that announces: it hears itself, at once, in order, and nothing fails."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

import pytest

from readstate.domain.announcements import Announcement, BadgeChanged, OnAnnouncements, PointerMoved, UserRoomChanged
from readstate.domain.model import Pointer
from readstate.ports.people import Bus

from .buses import local_bus, valkey_bus, valkey_cluster_bus

Factory = Callable[[OnAnnouncements | None], AbstractAsyncContextManager[Bus]]


class Ear:
    """Hears, and now and then fails."""

    def __init__(self) -> None:
        self.heard: list[Announcement] = []
        self.fails = False

    async def on_announcements(self, announcements: Sequence[Announcement]) -> None:
        if self.fails:
            raise RuntimeError("it hurts")
        self.heard += announcements


@pytest.fixture(params=[local_bus, valkey_bus, valkey_cluster_bus])
def factory(request: pytest.FixtureRequest) -> Factory:
    chosen: Factory = request.param
    return chosen


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
async def bus(factory: Factory, ear: Ear) -> AsyncIterator[Bus]:
    async with factory(ear.on_announcements) as adapter:
        yield adapter


async def test_what_is_announced_is_heard_when_the_call_returns(bus: Bus, ear: Ear) -> None:
    said: list[Announcement] = [BadgeChanged("bob"), UserRoomChanged("bob", "general")]
    await bus.publish(said)
    assert ear.heard == said


async def test_it_is_heard_in_order_and_once(bus: Bus, ear: Ear) -> None:
    said = [BadgeChanged(f"user {number}") for number in range(1_000)]
    for one in said:
        await bus.publish([one])
    await asyncio.gather(*(bus.publish([BadgeChanged("later")]) for _ in range(10)))
    assert ear.heard == said + [BadgeChanged("later")] * 10


async def test_nothing_announced_is_nothing_heard(bus: Bus, ear: Ear) -> None:
    ear.fails = True
    await bus.publish([])
    assert ear.heard == []


async def test_whoever_announces_does_not_suffer_from_who_hears(bus: Bus, ear: Ear) -> None:
    ear.fails = True
    await bus.publish([BadgeChanged("bob")])
    ear.fails = False
    await bus.publish([BadgeChanged("carol")])
    assert ear.heard == [BadgeChanged("carol")]


async def test_nobody_need_listen(factory: Factory) -> None:
    async with factory(None) as bus:
        await bus.publish([BadgeChanged("bob")])


async def test_reads_reach_somebody_who_is_there(bus: Bus, ear: Ear) -> None:
    read = PointerMoved("bob", "general", Pointer(), Pointer(0, 1), "i1")
    await bus.publish_reads(1, lambda: [read])
    assert ear.heard == [read]
