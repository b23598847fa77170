"""Instances around real servers, and what each of them hears."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from redis.asyncio import Redis

from readstate.adapters.valkey.bus.bus import Channels, ValkeyBus
from readstate.domain.announcements import (
    Announcement,
    BadgeChanged,
    PointerMoved,
)
from readstate.domain.model import ChangeNumber, Pointer
from readstate.telemetry import REGISTRY
from readstate.timings import ValkeyTimings

from ..conftest import eventually
from ..contract.buses import fresh_prefix

DEADLINE = 60.0
PATIENCE = 1.0
PATIENT = ValkeyTimings(bus_deaf=DEADLINE)
"""A busy machine makes nobody listen anew: that would be told, and nothing else is to be told."""
ATTENTIVE = replace(PATIENT, bus_heartbeat=0.1, bus_check=0.1)
"""What takes seconds takes tenths of them."""
IMPATIENT = replace(ATTENTIVE, bus_deaf=PATIENCE)
"""And a server that says nothing is given up soon."""
MISSED = "something may have been missed"


class Instance:
    """A bus, and everything that its instance hears, in order."""

    def __init__(self, bus: ValkeyBus) -> None:
        self.bus = bus
        self.story: list[Announcement | str] = []
        self.is_idle = False
        """It has nobody to tell."""
        self.deaf_since = 0.0
        """What was said after that may have been missed."""
        self._news = asyncio.Event()

    async def on_announcements(self, announcements: Sequence[Announcement]) -> None:
        self.story += announcements
        self._news.set()

    async def missed(self, seconds: float) -> None:
        self.deaf_since = time.monotonic() - seconds
        self.story.append(MISSED)
        self._news.set()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE):
                while not condition():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"waited in vain until {what}; heard {self.story[-10:]}") from None

    async def heard(self, one: Announcement) -> None:
        await self.until(lambda: one in self.story, f"{one} is heard")

    async def said(self, *announcements: Announcement) -> None:
        await self.bus.publish(announcements)


class Place:
    """Instances around one server."""

    def __init__(self, url: str, stack: contextlib.AsyncExitStack) -> None:
        self.url = url
        self.timings = PATIENT
        self.prefix = fresh_prefix()
        self._stack = stack

    async def instance(self, name: str, *, url: str | None = None, prefix: str | None = None) -> Instance:
        """One that is connected, and has forgotten how it began."""
        prefix = self.prefix if prefix is None else prefix
        bus = ValkeyBus(url or self.url, self.timings, prefix=prefix, instance_id=name)
        self._stack.push_async_callback(bus.close)
        instance = Instance(bus)
        bus.subscribe(instance.on_announcements, instance.missed, lambda: instance.is_idle)
        await instance.until(lambda: MISSED in instance.story, "it listens")
        await is_connected(instance)
        instance.story.clear()
        return instance

    @property
    def channels(self) -> Channels:
        return Channels.named(self.prefix)


@contextlib.asynccontextmanager
async def a_place(url: str) -> AsyncIterator[Place]:
    async with contextlib.AsyncExitStack() as stack:
        yield Place(url, stack)


async def is_connected(*instances: Instance) -> None:
    async def connected() -> bool:
        return all(one.bus.connected for one in instances)

    await eventually(connected, "the instances are connected")


async def is_cut_off(instance: Instance) -> None:
    async def cut_off() -> bool:
        return not instance.bus.connected

    await eventually(cut_off, "the instance has noticed")


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def badge(number: int) -> BadgeChanged:
    return BadgeChanged(f"user {number}")


def read(user: str, seq: int) -> PointerMoved:
    pointer = Pointer(0, seq, frozenset({seq + 2}), id=f"m{seq}", at=seq, read_at=seq, change=ChangeNumber(seq))
    return PointerMoved(user, "general", Pointer(0, seq - 1), pointer, "one", "connection")


@contextlib.asynccontextmanager
async def outsider(url: str) -> AsyncIterator[Redis]:
    client: Redis = Redis.from_url(url)
    try:
        yield client
    finally:
        await client.aclose()
