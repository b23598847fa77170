"""The pool of connections to the hot store: first come, first served, and nobody keeps a place."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as LostConnection

from readstate.adapters.valkey.commands import ask
from readstate.adapters.valkey.pool import FairPool
from tests.contract import valkey

PLACES = 2


@pytest.fixture
async def pool() -> AsyncIterator[FairPool]:
    pool: FairPool = FairPool.from_url(valkey.single().url, max_connections=PLACES, patience=20.0)
    yield pool
    await pool.aclose()


async def test_connections_are_given_out_in_the_order_in_which_they_were_asked_for(pool: FairPool) -> None:
    held = [await pool.get_connection() for _ in range(PLACES)]
    order: list[int] = []

    async def use(number: int) -> None:
        connection = await pool.get_connection()
        order.append(number)
        await pool.release(connection)

    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(use(number))
            await asyncio.sleep(0)
        for connection in held:
            await pool.release(connection)

    assert order == list(range(20))


async def test_who_is_cancelled_keeps_no_place(pool: FairPool) -> None:
    node = Redis(connection_pool=pool)
    for rounds in range(50):
        asked = [asyncio.create_task(ask(node, "PING")) for _ in range(10)]
        for _ in range(rounds % 10):
            await asyncio.sleep(0)
        for task in asked:
            task.cancel()
        await asyncio.wait(asked)

    held = [await pool.get_connection() for _ in range(PLACES)]
    for connection in held:
        await pool.release(connection)


async def test_who_waits_in_vain_is_told(pool: FairPool) -> None:
    pool._patience = 0.01
    held = [await pool.get_connection() for _ in range(PLACES)]
    with pytest.raises(LostConnection, match="No connection available"):
        await pool.get_connection()
    for connection in held:
        await pool.release(connection)
    await pool.release(await pool.get_connection())
