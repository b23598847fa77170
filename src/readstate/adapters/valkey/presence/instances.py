"""Leases of the processes that share the hot store, each under a name that was never used before.

A process that loses its lease, because it was paused for too long or the hot store was lost, takes another one under a
new name and writes its connected users again. So a name that is gone stays gone, and readers may cache that.

The end of a name says what its process reads. Names of older processes, which say nothing, are valid beside these.
"""

import asyncio
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from time import monotonic
from typing import Any, NamedTuple

from readstate.adapters.valkey import Backend, slot_of, tag_of
from readstate.adapters.valkey.functions import Function
from readstate.adapters.valkey.groups import chunks
from readstate.domain.model import NO_GENERATION, Generation
from readstate.domain.slots import SlotGenerations

MAX_GONE = 1_000
"""How many names of gone processes are cached."""
MAX_USERS = 500
"""Users in one call."""

READS_PACKED = ":2"
"""The end of the name of a process that reads packed records."""

LEASE = Function("instance_lease")


class _Lease(NamedTuple):
    age: int
    """Of the leases, in ms: since their slot was lost."""
    ages: dict[Generation, int]
    """How long each generation is known, in ms."""
    is_mine: bool
    live: set[str]
    gone: set[str]


class Instances:
    def __init__(self, backend: Backend, instance_id: str) -> None:
        self._backend = backend
        self._timings = backend.timings
        self._key = f"{backend.prefix}instances"
        self._began = f"{backend.prefix}generations-began:{{{self._key}}}"
        self.slot = slot_of(self._key)
        """Of the leases."""
        self._id = instance_id
        self._settled: set[Generation] = set()
        """Generations in which every process had the time to write its connected users."""
        self._settled_in = NO_GENERATION
        """The generation of the leases then."""
        self._read_at = 0.0
        self._unpacked_at = monotonic()
        """When a process may last have been there that does not read packed records."""
        self._joining = asyncio.Lock()
        self.name = ""
        """The name of this process's lease; empty: none yet."""
        self.live: Collection[str] = ()
        self.gone: dict[str, None] = {}

    async def settled(self, slots: Collection[int]) -> SlotGenerations:
        """Returns the generations once every process had the time to write its connected users in those of `slots`.

        If the leases themselves were lost, nothing is settled until all processes have leases again.
        """
        generation = self._backend.generation
        while True:
            known = generation.slots
            numbers = {known.of(slot) for slot in slots} - self._settled
            if known.of(self.slot) != self._settled_in or not self._settled_in:
                numbers |= {known.of(self.slot)}
            if not numbers:
                break
            await generation.check({*slots, self.slot})
            lease = await self._read()
            if generation.slots is not known:
                continue
            missing = self._timings.settle_ms - min(lease.age, *(lease.ages.get(number, 0) for number in numbers))
            if missing <= 0:
                if known.of(self.slot) != self._settled_in:
                    self._settled, self._settled_in = set(), known.of(self.slot)
                self._settled |= numbers
            else:
                await asyncio.sleep(missing / 1000)
        if monotonic() > self._read_at + self._timings.lease_cache:
            await self._read()
        return known

    @property
    def all_read_packed(self) -> bool:
        """Whether all leases have said for a while that their processes read packed records, and were read lately."""
        now = monotonic()
        is_known = now < self._read_at + self._timings.lease_ms / 1000
        return is_known and now >= self._unpacked_at + self._timings.packed_after

    async def learn(self, names: Iterable[str]) -> None:
        """Find out which of these are gone. A lease is written before anything under its name."""
        while True:
            missing = self._timings.settle_ms - (await self._read()).age
            if missing <= 0:
                break
            await asyncio.sleep(missing / 1000)  # the leases were lost: those who live take new ones
        self._cache_gone(set(names).difference(self.live))

    async def over(self) -> set[str]:
        """The processes whose lease is over and whose users were not expired yet."""
        return (await self._read()).gone

    async def join(self) -> None:
        """Take a lease, unless this process has one."""
        if not self.name:
            async with self._joining:
                if not self.name:
                    await self.renew()

    async def renew(self) -> bool:
        """Renew this process's lease. False: it has a new name, under which none of its users is written yet."""
        if self.name and (await self._read(self.name, self._timings.lease_ms)).is_mine:
            return True
        name = f"{self._id}:{secrets.token_hex(6)}{READS_PACKED}"
        await self._read(name, self._timings.lease_ms, take=True)
        self.name = name
        return False

    async def leave(self) -> None:
        """End the lease at shutdown: other processes expire its users at once."""
        if self.name:
            await self._read(self.name, 0)

    async def forget(self, name: str) -> None:
        """All users of a gone process are expired."""
        await self._backend.command(self._key, "HDEL", name)

    async def _read(self, me: str = "", lease: int = 0, *, take: bool = False) -> _Lease:
        numbers = sorted(self._backend.generation.slots.numbers())
        keys = [self._key, self._began]
        age, mine, live, gone, ages = await self._backend.one(LEASE, keys, me, lease, int(take), *numbers)
        live, gone = ({one.decode() for one in some} for some in (live, gone))
        found = _Lease(age, dict(zip(numbers, ages, strict=True)), bool(mine), live, gone)
        self.live, self._read_at = found.live, monotonic()
        if not all(name.endswith(READS_PACKED) for name in found.live):
            self._unpacked_at = self._read_at
        self._cache_gone(found.gone)
        return found

    def _cache_gone(self, gone: Iterable[str]) -> None:
        for name in gone:
            self.gone.pop(name, None)
            self.gone[name] = None
        while len(self.gone) > MAX_GONE:
            del self.gone[next(iter(self.gone))]


class ListedUsers:
    """The users whom another process must expire if this one dies, on a list in the hot store."""

    def __init__(self, backend: Backend, instances: Instances) -> None:
        self._backend = backend
        self._instances = instances
        self.wake = asyncio.Event()
        """Set when something waits for the next flush."""
        self.listed: set[str] = set()
        self._changed: set[str] = set()

    def changed(self, *users: str) -> None:
        """Let the next flush decide whether these users must be on the list."""
        self._changed.update(users)
        self.wake.set()

    def begin_anew(self, users: Iterable[str]) -> None:
        """This process has a new lease, and with it an empty list."""
        self.listed.clear()
        self._changed.update(users)

    async def flush(self, must_be_listed: Callable[[str], bool]) -> None:
        changed, self._changed = self._changed, set()
        added = {user for user in changed if must_be_listed(user)}
        try:
            for command, users in (("SADD", added), ("SREM", changed - added)):
                for some in chunks(list(users), MAX_USERS):
                    await self._command(self._instances.name, command, *some)
        except BaseException:
            self._changed |= changed
            raise
        self.listed = (self.listed | added) - (changed - added)

    async def renew(self) -> None:
        if self.listed:
            await self._command(self._instances.name, "PEXPIRE", self._backend.timings.listed_ms)

    async def of(self, instance: str) -> list[str]:
        """Some of the users on the list of a gone process; none: all are expired."""
        return [user.decode() for user in await self._command(instance, "SRANDMEMBER", MAX_USERS)]

    async def adopt(self, users: Sequence[str]) -> None:
        await self._command(self._instances.name, "SADD", *users)
        self.listed.update(users)

    async def expired(self, instance: str, users: Sequence[str]) -> None:
        await self._command(instance, "SREM", *users)

    async def _command(self, instance: str, *command: str | int) -> Any:
        return await self._backend.command(f"{self._backend.prefix}connected:{tag_of(instance)}", *command)
