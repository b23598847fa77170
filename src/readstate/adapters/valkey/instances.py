"""Leases of the processes that share the hot store, each under a name that was never used before.

A process that loses its lease, because it was paused for too long or the hot store was lost, takes another one under a
new name and writes its connected users again. So a name that is gone stays gone, and readers may cache that.
"""

import asyncio
import secrets
from collections.abc import Collection, Iterable
from time import monotonic
from typing import NamedTuple

from . import Call, Generation, ValkeyClient, slot_of
from .groups import script

LEASE_MS = 10_000
"""A process that does not renew its lease for this long is gone."""
SETTLE_MS = 3_000
"""After a loss of the hot store, all processes write their connected users again within this time."""
LOOK_SECONDS = 1.0
"""How long the leases are cached."""
MAX_GONE = 1_000
"""How many names of gone processes are cached."""

LEASE = script("instance_lease")


class _Lease(NamedTuple):
    age: int
    is_mine: bool
    live: set[str]
    gone: set[str]


class Instances:
    def __init__(
        self, client: ValkeyClient, generation: Generation, prefix: str, instance_id: str, lease_ms: int, settle_ms: int
    ) -> None:
        self._client = client
        self._generation = generation
        self._key = f"{prefix}instances"
        self._id = instance_id
        self._lease_ms = lease_ms
        self._settle_ms = settle_ms
        self._settled = 0
        self._looked_at = 0.0
        self.name = ""
        """The name of this process's lease; empty: none yet."""
        self.live: Collection[str] = ()
        self.gone: dict[str, None] = {}

    async def settled(self) -> int:
        """Returns the generation once every process had the time to write its connected users in it."""
        while self._settled != self._generation.number or not self._settled:
            number = await self._generation.check()
            missing = self._settle_ms - (await self._ask()).age
            if self._generation.number != number:
                continue
            if missing <= 0:
                self._settled = number
            else:
                await asyncio.sleep(missing / 1000)
        if monotonic() > self._looked_at + LOOK_SECONDS:
            await self._ask()
        return self._settled

    async def learn(self, names: Iterable[str]) -> None:
        """Find out which of these are gone. A lease is written before anything under its name."""
        await self._ask()
        self._bear_in_mind(set(names).difference(self.live))

    async def over(self) -> set[str]:
        """The processes whose lease is over and whose users were not expired yet."""
        return (await self._ask()).gone

    async def renew(self) -> bool:
        """Renew this process's lease. False: it has a new name, under which none of its users is written yet."""
        if self.name and (await self._ask(self.name, self._lease_ms)).is_mine:
            return True
        name = f"{self._id}:{secrets.token_hex(6)}"
        await self._ask(name, self._lease_ms, take=True)
        self.name = name
        return False

    async def leave(self) -> None:
        """End the lease at shutdown: other processes expire its users at once."""
        if self.name:
            await self._ask(self.name, 0)

    async def _ask(self, me: str = "", lease: int = 0, *, take: bool = False) -> _Lease:
        call = Call(slot_of(self._key), [self._key], [me, lease, int(take)])
        age, mine, live, gone = (await self._client.run(LEASE, [call])).values[0]
        found = _Lease(age, bool(mine), {one.decode() for one in live}, {one.decode() for one in gone})
        self.live, self._looked_at = found.live, monotonic()
        self._bear_in_mind(found.gone)
        return found

    def _bear_in_mind(self, gone: Iterable[str]) -> None:
        for name in gone:
            self.gone.pop(name, None)
            self.gone[name] = None
        while len(self.gone) > MAX_GONE:
            del self.gone[next(iter(self.gone))]
