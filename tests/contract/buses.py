"""Every adapter of the bus over a real server: one server of each kind for a test process, channels of one's own."""

import atexit
import functools
import itertools
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from readstate.announcements import Announcement
from readstate.bus.local import LocalBus
from readstate.bus.valkey import ValkeyBus
from readstate.ports.people import Bus
from readstate.stack import Valkey, ValkeyCluster

from ..conftest import eventually

Hear = Callable[[Sequence[Announcement]], Awaitable[None]]

_numbers = itertools.count(1)


@functools.cache
def single() -> Valkey:
    """Started when the first test needs it, gone with the process."""
    valkey = Valkey(Path(tempfile.mkdtemp(prefix="readstate-tests-")) / "valkey", persistent=False)
    atexit.register(valkey.wipe)
    return valkey.start()


@functools.cache
def cluster() -> ValkeyCluster:
    """Three of them."""
    valkey = ValkeyCluster(Path(tempfile.mkdtemp(prefix="readstate-tests-")) / "cluster", persistent=False)
    for node in valkey.nodes:  # one by one: there are no threads any more then
        atexit.register(node.wipe)
    return valkey.start()


def fresh_prefix() -> str:
    """Channels that no other test hears."""
    return f"test-{next(_numbers)}:"


@asynccontextmanager
async def local_bus(hear: Hear | None) -> AsyncIterator[Bus]:
    bus = LocalBus()
    if hear is not None:
        bus.subscribe(hear, lambda: False)
    yield bus


@asynccontextmanager
async def valkey_bus(hear: Hear | None) -> AsyncIterator[Bus]:
    async with opened(single().url, hear) as bus:
        yield bus


@asynccontextmanager
async def valkey_cluster_bus(hear: Hear | None) -> AsyncIterator[Bus]:
    async with opened(cluster().url, hear) as bus:
        yield bus


async def nothing_missed(_: float) -> None:
    """Whoever listens for the first time has missed nothing that matters."""


@asynccontextmanager
async def opened(url: str, hear: Hear | None) -> AsyncIterator[ValkeyBus]:
    """An instance that is connected."""
    bus = await ValkeyBus.open(url, prefix=fresh_prefix(), instance_id="i1")
    if hear is not None:
        bus.subscribe(hear, nothing_missed, lambda: False)

    async def connected() -> bool:
        return bus.connected

    try:
        await eventually(connected, "the bus is connected")
        yield bus
    finally:
        await bus.close()
