"""Real Valkey servers for tests: one alone and one Cluster for a test process, and keys of its own for every test."""

import asyncio
import atexit
import functools
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from readstate.adapters.valkey import (
    Backend,
    DurableCounter,
    ExclusiveGeneration,
    Generation,
    SharedGeneration,
    ValkeyClient,
)
from readstate.adapters.valkey.commands import ask
from readstate.ports import Clock
from readstate.stack import Valkey, ValkeyCluster
from readstate.timings import ValkeyTimings

from ..folder import folder
from ..slots import Slots

PATIENCE = 20.0
"""Seconds in which a shared machine should answer."""
PATIENT = ValkeyTimings(patience=PATIENCE)


@functools.cache
def single() -> Valkey:
    """Started when the first test needs it, gone with the process."""
    valkey = Valkey(folder() / "valkey", persistent=False)
    atexit.register(valkey.wipe)
    return valkey.start()


@functools.cache
def cluster() -> ValkeyCluster:
    """Three masters, started when the first test needs them, gone with the process."""
    valkeys = ValkeyCluster(folder() / "cluster", persistent=False)
    for node in valkeys.nodes:  # one by one: at exit there are no more threads to do it at once
        atexit.register(node.wipe)
    return valkeys.start()


async def ask_all(client: ValkeyClient, *command: str) -> list[Any]:
    """Send a command to all masters at once."""
    masters = (await client.masters()).values()
    return list(await asyncio.gather(*(ask(node, *command) for node in masters)))


class HotStore(NamedTuple):
    """What an adapter over Valkey is made with."""

    client: ValkeyClient
    generation: Generation
    prefix: str
    outsider: ValkeyClient
    """Connections of somebody who has nothing to do with us."""

    def backend(self, clock: Clock, cap: int = 5, timings: ValkeyTimings = PATIENT) -> Backend:
        """What its parts are made with. State expires after a minute."""
        return Backend(
            client=self.client,
            generation=self.generation,
            clock=clock,
            timings=timings,
            prefix=self.prefix,
            unread_cap=cap,
            ttl_ms=60_000,
        )

    async def empty(self) -> None:
        """Lose everything, at once and without a word to anybody."""
        await ask_all(self.outsider, "FLUSHALL")


@asynccontextmanager
async def hot_store(
    server: Callable[[], Valkey | ValkeyCluster],
    *,
    prefix: str | None = None,
    shared: bool = False,
) -> AsyncIterator[HotStore]:
    """Connections to a server, with a prefix that no other test has, and a counter in place of the durable one."""
    url, prefix = server().url, f"{secrets.token_hex(6)}:" if prefix is None else prefix
    kind = SharedGeneration if shared else ExclusiveGeneration
    generation = kind(url, prefix, DurableCounter(1, Slots(1)), PATIENT)
    client, outsider = ValkeyClient(url, PATIENT, generation), ValkeyClient(url, PATIENT)
    try:
        yield HotStore(client, generation, prefix, outsider)
    finally:
        for one in (client, generation, outsider):
            await one.close()
