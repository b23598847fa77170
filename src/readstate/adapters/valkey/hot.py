"""Hot state in Valkey or Redis, one server or a Cluster, for one process or for several that share it."""

from dataclasses import dataclass

from readstate.adapters.memory.presence import MemoryPresence
from readstate.domain.model import LogPosition
from readstate.ports import Clock, HotBadges, HotPresence
from readstate.timings import ValkeyTimings

from . import Backend, DurableCounter, ExclusiveGeneration, Generation, SharedGeneration, ValkeyClient
from .badges import ValkeyBadges
from .calls import UserCalls
from .channels import ExclusiveChannels, SharedChannels
from .libraries import Libraries
from .notes import ValkeyNotes
from .presence import ValkeyPresence
from .users import ValkeyUsers
from .write_replica import ReplicatedBadges, WriteReplica


@dataclass(frozen=True, kw_only=True, slots=True)
class HotOptions:
    """The settings of the hot store."""

    url: str
    prefix: str
    unread_cap: int
    ledger_ttl: int
    replica_url: str = ""
    """Of the write replica; empty: there is none."""


class ValkeyHot:
    """What is the same for one process and for several. See `ExclusiveHot` and `SharedHot`."""

    def __init__(self, options: HotOptions, generation: Generation, clock: Clock, timings: ValkeyTimings) -> None:
        self._generation = generation
        self._client = ValkeyClient(options.url, timings, generation)
        self._backend = Backend(
            client=self._client,
            generation=generation,
            clock=clock,
            timings=timings,
            prefix=options.prefix,
            unread_cap=options.unread_cap,
            ttl_ms=options.ledger_ttl * 1000,
        )
        self.libraries = Libraries(self._client, options.prefix, clock)
        self.users = ValkeyUsers(UserCalls(self._backend))
        badges = ValkeyBadges(self._backend)
        self._replica = WriteReplica(options.replica_url, options.prefix, timings) if options.replica_url else None
        self.badges: HotBadges = ReplicatedBadges(badges, self._replica) if self._replica else badges

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
        if self._replica is not None:
            await self._replica.close()
        await self._client.close()
        await self._generation.close()


class ExclusiveHot(ValkeyHot):
    """Implements `Hot` for a process that has the hot store to itself. Presence is in its memory."""

    def __init__(
        self, options: HotOptions, counter: DurableCounter, clock: Clock, timings: ValkeyTimings, position: LogPosition
    ) -> None:
        """`position`: the log position up to which everything is applied."""
        super().__init__(options, ExclusiveGeneration(options.url, options.prefix, counter, timings), clock, timings)
        self.channels = ExclusiveChannels(self._backend, position)
        self.presence: HotPresence = MemoryPresence(clock)


class SharedHot(ValkeyHot):
    """Implements `Hot` for one of several processes. Presence covers the devices of all of them."""

    def __init__(
        self,
        options: HotOptions,
        counter: DurableCounter,
        clock: Clock,
        timings: ValkeyTimings,
        instance_id: str,
        partitions: int,
    ) -> None:
        super().__init__(options, SharedGeneration(options.url, options.prefix, counter, timings), clock, timings)
        self.channels = SharedChannels(self._backend, partitions)
        self.notes = ValkeyNotes(self._backend)
        self._presence = ValkeyPresence(self._backend, instance_id)
        self.presence: HotPresence = self._presence

    async def join(self) -> None:
        """Tell the other processes that this one is there, and what it reads."""
        await self._presence.join()

    def all_read_packed(self) -> bool:
        """Whether every process has said for a while that it reads packed records."""
        return self._presence.all_read_packed

    async def close(self) -> None:
        await self._presence.close()
        await super().close()
