"""Hot state in Valkey or Redis, one server or a Cluster."""

from collections.abc import Awaitable, Callable

from readstate.adapters.memory.presence import MemoryPresence
from readstate.ports import Clock, HotBadges, HotPresence

from . import Generation, ValkeyClient
from .badges import ValkeyBadges
from .calls import UserCalls
from .channels import ValkeyChannels
from .notes import ValkeyNotes
from .presence import ValkeyPresence
from .users import ValkeyUsers
from .write_replica import ReplicatedBadges, WriteReplica

PATIENCE = 5.0
"""Seconds of retries after a fault of the hot store; then callers get HotStoreUnavailable."""


class ValkeyHot:
    """Implements `Hot`. Presence covers the devices of this process or, if shared, of all processes."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str,
        unread_cap: int,
        clock: Clock,
        ledger_ttl: int,
        position: int,
        store: int,
        next_generation: Callable[[int], Awaitable[int]],
        shared: bool = False,
        partitions: int = 1,
        instance_id: str = "",
        replica_url: str = "",
    ) -> None:
        """`shared`: several processes use the hot store at once, each with an instance id of its own."""
        self._generation = Generation(url, prefix, PATIENCE, store, next_generation, shared=shared)
        self._client = ValkeyClient(url, patience=PATIENCE, guard=self._generation)
        calls = UserCalls(self._client, prefix, unread_cap, clock, ledger_ttl)
        self.users = ValkeyUsers(calls, self._generation)
        self.channels = ValkeyChannels(
            self._client,
            self._generation,
            prefix=prefix,
            unread_cap=unread_cap,
            clock=clock,
            ttl=ledger_ttl,
            position=position,
            partitions=partitions,
        )
        badges = ValkeyBadges(self._client, self._generation, prefix=prefix, clock=clock, ttl=ledger_ttl)
        self._replica = WriteReplica(replica_url, prefix=prefix) if replica_url else None
        self.badges: HotBadges = ReplicatedBadges(badges, self._replica) if self._replica else badges
        self.notes = ValkeyNotes(self._client, self._generation, prefix, clock)
        self._shared_presence = (
            ValkeyPresence(self._client, self._generation, prefix=prefix, clock=clock, instance_id=instance_id)
            if shared
            else None
        )
        self.presence: HotPresence = self._shared_presence or MemoryPresence(clock)

    async def loaded(self, items: int) -> None:
        """Nothing to do: the server has its own memory limit, and the keys of users expire."""

    async def bound(self) -> None:
        """Nothing to do, as in `loaded`."""

    async def clear(self) -> None:
        self._generation.distrust()
        await self._generation.confirm()

    async def ping(self) -> None:
        """Raises Unavailable if a server does not answer."""
        await self._generation.check()

    async def close(self) -> None:
        if self._shared_presence is not None:
            await self._shared_presence.close()
        if self._replica is not None:
            await self._replica.close()
        await self._client.close()
        await self._generation.close()
