"""One of three masters is lost: who is away is decided at once for users of the others, unless the leases are lost."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from readstate.adapters.valkey import slot_of
from readstate.adapters.valkey.presence import ValkeyPresence
from readstate.domain.slots import SLOTS
from tests.contract.valkey import cluster, hot_store
from tests.slots import MASTERS, user_in

from .test_presence_valkey import Place, comes

LOST = 1
LOSER, KEEPER = user_in(LOST), user_in(0)
ABSENT = user_in(2)
"""Has no device, so that no name of a lease is in question."""
FOREVER_MS = 3_600_000
ROUND_TRIPS = 20
"""Of others, in which a decision that does not wait is made."""


def prefix_with_leases_in(master: int) -> str:
    names = (f"{secrets.token_hex(6)}:" for _ in range(1_000))
    return next(name for name in names if slot_of(f"{name}instances") * MASTERS // SLOTS == master)


@asynccontextmanager
async def settled(leases: int) -> AsyncIterator[ValkeyPresence]:
    """A process that has decided about both before; from now on it waits for an hour after a loss."""
    async with hot_store(cluster, prefix=prefix_with_leases_in(leases)) as store, AsyncExitStack() as stack:
        presence = await Place(cluster().url, store, stack).process()
        for user in (LOSER, KEEPER):
            await comes(presence, user)
        await are_online(presence, LOSER, KEEPER)
        assert ABSENT not in await presence.online([ABSENT])
        presence._instances._timings = replace(presence._instances._timings, settle_ms=FOREVER_MS)
        yield presence


async def are_online(presence: ValkeyPresence, *users: str) -> None:
    found = await presence.online(users)
    assert [user in found for user in users] == [True] * len(users)


def lose() -> None:
    cluster().nodes[LOST].ask("FLUSHALL")


async def waits(presence: ValkeyPresence, user: str) -> bool:
    """Whether a decision about a user waits for the time after a loss."""
    asked = asyncio.create_task(presence.online([user]))
    for _ in range(ROUND_TRIPS):
        await presence._generation.check()
        await presence._instances._read()
    is_waiting = not asked.done()
    asked.cancel()
    await asyncio.wait([asked])
    return is_waiting


@pytest.mark.parametrize("leases", [0, 2, LOST])
async def test_decisions_wait_for_users_of_the_lost_master_and_for_all_if_it_had_the_leases(leases: int) -> None:
    async with settled(leases) as presence:
        for user in (LOSER, KEEPER, ABSENT):
            assert not await waits(presence, user)
        lose()
        await presence._generation.check()

        assert await waits(presence, LOSER)
        for user in (KEEPER, ABSENT):
            assert await waits(presence, user) is (leases == LOST)
        if leases != LOST:
            await are_online(presence, KEEPER)

        presence._instances._timings = replace(presence._instances._timings, settle_ms=0)
        presence._own.are_lost = True
        await presence._renew()
        await are_online(presence, LOSER, KEEPER)
