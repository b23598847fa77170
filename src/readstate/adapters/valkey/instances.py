"""Which processes share the hot store: each has a lease there, under a name that nobody ever had before.

Whoever misses its lease (it was paused for too long, or the hot store was lost) takes another one under a new name, and
says anew who is connected to it. So a name that is gone stays gone, and whoever reads it can remember that.
"""

import asyncio
import secrets
from collections.abc import Collection, Iterable
from time import monotonic
from typing import NamedTuple

from . import Call, Generation, ValkeyClient, slot_of
from .groups import script

LEASE_MS = 10_000
"""A process that says nothing for so long is gone."""
SETTLE_MS = 3_000
"""So long after a loss of the hot store all processes have said who is connected to them."""
LOOK_SECONDS = 1.0
"""What is known of leases is believed for so long."""
MAX_GONE = 1_000
"""So many names of those who are gone are remembered."""

LEASE = script("instance_lease")


class _Lease(NamedTuple):
    age: int
    is_mine: bool
    live: set[str]
    gone: set[str]


class Instances:
    """The leases of all processes, and this one's own."""

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
        """Under which this process has a lease; empty: under none yet."""
        self.live: Collection[str] = ()
        self.gone: dict[str, None] = {}

    async def settled(self) -> int:
        """The generation, once all had the time to say in it who is connected to them."""
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
        """Whether these live: a lease is there before anything that is written under its name."""
        await self._ask()
        self._bear_in_mind(set(names).difference(self.live))

    async def over(self) -> set[str]:
        """Those whose lease is over, and whose users nobody has looked after yet."""
        return (await self._ask()).gone

    async def renew(self) -> bool:
        """Renew the lease of this process. False: it has another name now, and nothing is known of its users."""
        if self.name and (await self._ask(self.name, self._lease_ms)).is_mine:
            return True
        name = f"{self._id}:{secrets.token_hex(6)}"
        await self._ask(name, self._lease_ms, take=True)
        self.name = name
        return False

    async def leave(self) -> None:
        """This process is about to end: others look after what it leaves behind."""
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
