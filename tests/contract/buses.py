"""Every adapter of the bus, those over servers with channels of their own."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from readstate.adapters.memory.bus import LocalBus
from readstate.adapters.valkey.bus.bus import ValkeyBus
from readstate.domain.announcements import OnAnnouncements
from readstate.ports.people import Bus
from readstate.timings import ValkeyTimings

from ..conftest import eventually
from .valkey import cluster, single

_numbers = itertools.count(1)


def fresh_prefix() -> str:
    """Channels that no other test hears."""
    return f"test-{next(_numbers)}:"


@asynccontextmanager
async def local_bus(on_announcements: OnAnnouncements | None) -> AsyncIterator[Bus]:
    bus = LocalBus()
    if on_announcements is not None:
        bus.subscribe(on_announcements, nothing_missed, lambda: False)
    yield bus


@asynccontextmanager
async def valkey_bus(on_announcements: OnAnnouncements | None) -> AsyncIterator[Bus]:
    async with opened(single().url, on_announcements) as bus:
        yield bus


@asynccontextmanager
async def valkey_cluster_bus(on_announcements: OnAnnouncements | None) -> AsyncIterator[Bus]:
    async with opened(cluster().url, on_announcements) as bus:
        yield bus


async def nothing_missed(_: float) -> None:
    """Whoever listens for the first time has missed nothing that matters."""


@asynccontextmanager
async def opened(url: str, on_announcements: OnAnnouncements | None) -> AsyncIterator[ValkeyBus]:
    """An instance that is connected."""
    bus = ValkeyBus(url, ValkeyTimings(), prefix=fresh_prefix(), instance_id="i1")
    if on_announcements is not None:
        bus.subscribe(on_announcements, nothing_missed, lambda: False)

    async def connected() -> bool:
        return bus.connected

    try:
        await eventually(connected, "the bus is connected")
        yield bus
    finally:
        await bus.close()
