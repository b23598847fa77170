"""Every adapter of a port, by name. A new adapter is one more factory here; the tests stay as they are."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from readstate.adapters.memory.badges import MemoryBadges
from readstate.adapters.memory.channels import MemoryChannels
from readstate.adapters.memory.presence import MemoryPresence
from readstate.adapters.memory.users import MemoryUsers
from readstate.adapters.sql.sqlite.store import SqliteStore
from readstate.adapters.valkey.badges import ValkeyBadges
from readstate.adapters.valkey.calls import UserCalls
from readstate.adapters.valkey.channels import ExclusiveChannels
from readstate.adapters.valkey.presence import ValkeyPresence
from readstate.adapters.valkey.users import ValkeyUsers
from readstate.adapters.valkey.write_replica import ReplicatedBadges, WriteReplica
from readstate.domain.model import NO_POSITION, Generation
from readstate.ports import Clock, Durable, HotBadges, HotChannels, HotPresence, HotUsers
from readstate.timings import SqlTimings, ValkeyTimings

from .postgres import postgres as postgres_store
from .valkey import PATIENCE, PATIENT, HotStore, cluster, hot_store, single

CAP = 5
FANOUT = 3


class ManualClock:
    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@asynccontextmanager
async def memory_users(clock: ManualClock) -> AsyncIterator[HotUsers]:
    yield MemoryUsers(unread_cap=CAP, generation=Generation(1), clock=clock, ledger_ttl=60)


@asynccontextmanager
async def valkey_users(clock: ManualClock) -> AsyncIterator[HotUsers]:
    async with hot_store(single) as store:
        yield users_over(store, clock)


@asynccontextmanager
async def valkey_cluster_users(clock: ManualClock) -> AsyncIterator[HotUsers]:
    async with hot_store(cluster) as store:
        yield users_over(store, clock)


def users_over(store: HotStore, clock: ManualClock) -> ValkeyUsers:
    return ValkeyUsers(UserCalls(store.backend(clock, CAP)))


@asynccontextmanager
async def memory_channels(clock: ManualClock) -> AsyncIterator[HotChannels]:
    yield MemoryChannels(unread_cap=CAP, clock=clock)


@asynccontextmanager
async def valkey_channels(clock: ManualClock) -> AsyncIterator[HotChannels]:
    async with hot_store(single) as store:
        yield channels_over(store, clock)


@asynccontextmanager
async def valkey_cluster_channels(clock: ManualClock) -> AsyncIterator[HotChannels]:
    async with hot_store(cluster) as store:
        yield channels_over(store, clock)


def channels_over(store: HotStore, clock: Clock, cap: int = CAP) -> ExclusiveChannels:
    return ExclusiveChannels(store.backend(clock, cap), position=NO_POSITION)


@asynccontextmanager
async def memory_badges(clock: ManualClock) -> AsyncIterator[HotBadges]:
    yield MemoryBadges()


@asynccontextmanager
async def valkey_badges(clock: ManualClock) -> AsyncIterator[HotBadges]:
    async with hot_store(single) as store:
        yield badges_over(store, clock)


@asynccontextmanager
async def valkey_cluster_badges(clock: ManualClock) -> AsyncIterator[HotBadges]:
    async with hot_store(cluster) as store:
        yield badges_over(store, clock)


@asynccontextmanager
async def replicated_badges(clock: ManualClock) -> AsyncIterator[HotBadges]:
    """With a write replica, which is another server."""
    async with hot_store(single) as store:
        replica = WriteReplica(cluster().url, store.prefix, replace(PATIENT, replica_answer=PATIENCE))
        yield ReplicatedBadges(badges_over(store, clock), replica)
        await replica.close()


def badges_over(store: HotStore, clock: Clock, timings: ValkeyTimings = PATIENT) -> ValkeyBadges:
    return ValkeyBadges(store.backend(clock, timings=timings))


@asynccontextmanager
async def memory_presence(clock: ManualClock) -> AsyncIterator[HotPresence]:
    yield MemoryPresence(clock)


@asynccontextmanager
async def valkey_presence(clock: ManualClock) -> AsyncIterator[HotPresence]:
    async with hot_store(single, shared=True) as store, presence_over(store, clock) as presence:
        yield presence


@asynccontextmanager
async def valkey_cluster_presence(clock: ManualClock) -> AsyncIterator[HotPresence]:
    async with hot_store(cluster, shared=True) as store, presence_over(store, clock) as presence:
        yield presence


@asynccontextmanager
async def presence_over(store: HotStore, clock: Clock) -> AsyncIterator[ValkeyPresence]:
    """Presence as one instance has it."""
    timings = replace(PATIENT, lease_ms=60_000, settle_ms=0, heartbeat=0.05)
    presence = ValkeyPresence(store.backend(clock, timings=timings), "i1")
    try:
        yield presence
    finally:
        await presence.close()


@asynccontextmanager
async def sqlite(directory: Path) -> AsyncIterator[Durable]:
    store = await SqliteStore.open(directory / "store.db", FANOUT, SqlTimings())
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def postgres(directory: Path) -> AsyncIterator[Durable]:
    async with postgres_store(FANOUT) as store:
        yield store


@pytest.fixture(params=[memory_users, valkey_users, valkey_cluster_users])
async def users(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[HotUsers]:
    factory: Callable[[ManualClock], AbstractAsyncContextManager[HotUsers]] = request.param
    async with factory(clock) as adapter:
        yield adapter


@pytest.fixture(params=[memory_channels, valkey_channels, valkey_cluster_channels])
async def channels(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[HotChannels]:
    factory: Callable[[ManualClock], AbstractAsyncContextManager[HotChannels]] = request.param
    async with factory(clock) as adapter:
        yield adapter


@pytest.fixture(params=[memory_badges, valkey_badges, valkey_cluster_badges, replicated_badges])
async def badges(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[HotBadges]:
    factory: Callable[[ManualClock], AbstractAsyncContextManager[HotBadges]] = request.param
    async with factory(clock) as adapter:
        yield adapter


@pytest.fixture(params=[memory_presence, valkey_presence, valkey_cluster_presence])
async def presence(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[HotPresence]:
    factory: Callable[[ManualClock], AbstractAsyncContextManager[HotPresence]] = request.param
    async with factory(clock) as adapter:
        yield adapter


@pytest.fixture(params=[sqlite, postgres])
async def durable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Durable]:
    factory: Callable[[Path], AbstractAsyncContextManager[Durable]] = request.param
    async with factory(tmp_path) as adapter:
        yield adapter
