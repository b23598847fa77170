"""The generations of the hot store: for each slot, the number under which the state in it counts as loaded.

The durable table has the number of each slot, and the run id of the server that owned it then. Every master holds a
marker: the highest number of its slots, the id of the durable store and the master's run id. A master whose marker is
missing was emptied. A master with another run id was restarted from a snapshot, or is a replica that took over. Either
may have lost something, and so may a slot that moved from one master to another. Lost slots get a new number, in the
table first and in the markers second. What was loaded in them under an older number counts as not loaded; the state in
all other slots stays.

`ExclusiveGeneration` and `SharedGeneration` differ in what happens to a call whose outcome is unknown, and in which
number wins.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple, Protocol

import structlog
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError

from readstate.domain.errors import HotStoreUnavailable
from readstate.domain.model import NO_GENERATION
from readstate.domain.model import Generation as GenerationNumber
from readstate.domain.slots import LostRange, SlotGenerations, SlotRange, ranges_of
from readstate.tasks import cancel, retrieve_exception
from readstate.telemetry import HOT_GENERATIONS
from readstate.timings import ValkeyTimings

from .client import ServerChanged, ValkeyClient, raise_if_lasting
from .commands import ask, exchange
from .functions import Function, call
from .keys import tag_in

log = structlog.get_logger()

MAX_CHECKS = 3

MARK = Function("generation_mark")


class SlotTable(Protocol):
    """The part of the durable store that counts: see `Durable`."""

    async def slots(self) -> list[SlotRange]:
        """All slots, in order."""

    async def renew_slots(
        self, seen: Sequence[SlotRange], lost: Sequence[LostRange], above: int, now: int, every: int
    ) -> list[SlotRange] | None:
        """All slots after the lost ones got a new number; None: look again."""


class DurableCounter(NamedTuple):
    """Where the numbers are counted."""

    store: int
    """The id of the durable store."""
    table: SlotTable


class LookAgain(LostConnection):
    """The table has changed since it was read, or the last number is too young."""


class _Marker(NamedTuple):
    number: GenerationNumber
    store: str
    run: str


class _Master(NamedTuple):
    slot: int
    """Where its marker is."""
    run: str
    marker: bytes | None


Masters = Mapping[str, _Master]
"""By address. Those that do not answer are missing."""


class Generation(ABC):
    """Checks every new connection, and the markers on demand. One per process and hot store."""

    def __init__(self, url: str, prefix: str, counter: DurableCounter, timings: ValkeyTimings) -> None:
        self._client = ValkeyClient(url, timings)
        self._prefix = prefix
        self._store = str(counter.store)
        self._table = counter.table
        self._timings = timings
        self._masters: Masters = {}
        """Those that the last look has confirmed, with the markers that it left there."""
        self._distrusts, self._confirmed = 1, 0
        """How often the content was distrusted, and the last of these that a look has covered."""
        self._suspicions, self._looked = 0, 0
        """How often the slot map was seen to differ from `owners`, and the last of these that a look has covered."""
        self._looking: asyncio.Task[None] | None = None
        self._raised = NO_GENERATION
        """The last number that this process raised; perhaps not on every master yet."""
        self._ahead: dict[str, float] = {}
        """By run id, how far (in s) a server's clock is ahead of this process's monotonic clock."""
        self.slots = SlotGenerations()
        self.owners: Sequence[str] = ()
        """The address of each slot's owner, as of the last look. Calls go there."""
        self._all_owning: Set[str] = set()

    @property
    def number(self) -> GenerationNumber:
        """The highest number of all slots."""
        return self.slots.highest

    def of(self, slot: int) -> GenerationNumber:
        return self.slots.of(slot)

    @property
    def trusted(self) -> bool:
        """Whether there was a look since the content of the hot store, or the slot map, was last doubted."""
        return self._confirmed == self._distrusts and self._looked == self._suspicions

    async def admit(self, connection: AbstractConnection) -> None:
        """Accept a new connection only if it leads to a confirmed server."""
        await connection.on_connect()
        await connection.send_command("INFO", "server")
        run = self._note_time(await connection.read_response())
        if not self.trusted or all(run != master.run for master in self._masters.values()):
            raise ServerChanged("the hot store was restarted or changed its master")

    def distrust(self) -> None:
        """The content of the hot store may be wrong: reload everything."""
        self._distrusts += 1

    def suspect(self) -> None:
        """Slots have moved, or their owners were replaced: look before the next call."""
        self._suspicions += 1

    @abstractmethod
    def deadline(self, seconds: float) -> int:
        """The time `seconds` from now, by the servers' clock in ms; 0: calls need no deadline."""

    @abstractmethod
    def missed(self) -> None:
        """A hot update may be missing in the hot store, or a copy of it may arrive much later."""

    @abstractmethod
    def _must_drop(self, known: SlotGenerations, markers: Collection[_Marker], distrusts: int) -> bool:
        """Whether all slots count as lost. `distrusts`: how many there were when the look began."""

    async def check(self, slots: Collection[int] | None = None) -> GenerationNumber:
        """Read the markers of the masters of these slots; None: of all. Returns the highest number of all slots.

        What was lost there has its new number afterwards.
        """
        for _ in range(MAX_CHECKS):  # a look in flight may have begun before the caller's `distrust`
            if self.trusted and await self._is_marked(slots):
                break
            await self.confirm(slots)
        return self.number

    async def answering(self, slots: Collection[int]) -> set[int]:
        """As `check`, but waits for no master that does not answer. Returns those of these slots whose masters do."""
        there = self._answering(slots)
        if not (self.trusted and await self._is_marked(there)):
            with suppress(RedisError, OSError):  # a reason to wait for is found once more by `check`
                await self._look_together()
            there = self._answering(slots)
            await self.check(there)
        return there

    def _answering(self, slots: Collection[int]) -> set[int]:
        return {slot for slot in slots if not self.owners or self.owners[slot] in self._masters}

    async def _is_marked(self, slots: Collection[int] | None) -> bool:
        addresses = self._owning(slots)
        if not addresses <= self._masters.keys():
            return False
        masters = {address: self._masters[address] for address in addresses}
        nodes = [(self._client.node(address), self._marker(one.slot)) for address, one in masters.items()]
        try:
            found = await asyncio.gather(*(exchange(node, [("GET", marker)]) for node, marker in nodes))
        except (RedisError, OSError):
            return False  # the server is down, or the slot has moved
        return found == [[one.marker] for one in masters.values()]

    def _owning(self, slots: Collection[int] | None) -> Set[str]:
        if slots is None or not self.owners:
            return self._all_owning
        return {self.owners[slot] for slot in slots}

    async def confirm(self, slots: Collection[int] | None = None) -> None:
        """Look at all masters, until those that own these slots (None: all slots) have the numbers of the table.

        A failover in a Cluster takes time. Meanwhile callers with slots of other masters go on.
        """
        end, wait = monotonic() + self._timings.patience, self._timings.first_confirmation_retry
        while True:
            reason = "a server does not answer"
            try:
                await self._look_together()
                if self.trusted and self._owning(slots) <= self._masters.keys():
                    return
            except (RedisError, OSError) as error:
                raise_if_lasting(error)
                reason = str(error)
            if monotonic() + wait > end:
                raise HotStoreUnavailable("the hot store does not answer", reason=reason)
            await asyncio.sleep(wait)
            wait = min(2 * wait, self._timings.longest_retry)

    async def _look_together(self) -> None:
        """Concurrent callers share a look."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(self._ended)
        await asyncio.shield(self._looking)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._looking = None
        retrieve_exception(task)

    async def _look(self) -> None:
        distrusts, suspicions = self._distrusts, self._suspicions
        await self._client.disconnect()  # new connections show which servers answer now
        await self._client.refresh()
        masters = await self._read_masters(self.slots)
        same = self._client.owners == self.owners and masters.items() <= self._masters.items()
        if not same or self._confirmed != distrusts:
            masters = await self._agree(distrusts)
        self._masters, self.owners, self._all_owning = masters, self._client.owners, set(self._client.owners)
        runs = {one.run for one in masters.values()}
        self._ahead = {run: ahead for run, ahead in self._ahead.items() if run in runs}
        self._confirmed, self._looked = distrusts, suspicions

    async def _agree(self, distrusts: int) -> Masters:
        """Give lost slots a number. Returns the masters with their markers.

        The table is read before the markers, and written only if it is still the same: a slot that was lost after it
        got the number in the table has no marker.
        """
        known = SlotGenerations(await self._table.slots())
        masters = await self._read_masters(known)
        markers = [marker for one in masters.values() if (marker := _parse(one.marker)) is not None]
        if self.number and any(marker.store != self._store for marker in markers):
            raise HotStoreUnavailable(
                "another service with its own database uses the same keys of the hot store: give each its own "
                "key_prefix"
            )
        lost = self._lost(known, masters, self._must_drop(known, markers, distrusts))
        if lost:
            known = await self._renew(known, masters, markers, lost)
        marked = await asyncio.gather(*(self._mark(address, one, known) for address, one in masters.items()))
        self.slots = known
        return dict(zip(masters, marked, strict=True))

    def _lost(self, known: SlotGenerations, masters: Masters, everything: bool) -> list[LostRange]:
        owners = self._client.owners
        whole = {address for address, one in masters.items() if everything or not self._is_whole(one, known)}
        lost: list[str | None] = [None] * len(owners)
        for slot, address in enumerate(owners):
            if (master := masters.get(address)) is None:
                lost[slot] = "" if everything else None
            elif address in whole or known.run_of(slot) != master.run:
                lost[slot] = master.run
        return ranges_of(lost)

    def _is_whole(self, master: _Master, known: SlotGenerations) -> bool:
        """Whether a master has lost nothing since it was marked.

        A number that is not the table's comes from a process of an older version, which raises all of them, or from
        one that was delayed and has marked a server after its next loss.
        """
        marker, highest = _parse(master.marker), known.highest_of(master.run)
        return marker == _Marker(highest, self._store, master.run) and highest > NO_GENERATION

    async def _renew(
        self, known: SlotGenerations, masters: Masters, markers: Collection[_Marker], lost: Sequence[LostRange]
    ) -> SlotGenerations:
        # Marking with 0, which is no number, fails at a full master before a number is spent on each attempt.
        runs = {one.run for one in lost}
        concerned = [(address, one) for address, one in masters.items() if one.run in runs]
        await asyncio.gather(*(self._write(address, one, NO_GENERATION) for address, one in concerned))
        above = max([self.number, *(marker.number for marker in markers)])
        now, every = int(time.time() * 1000), int(self._timings.generation * 1000)
        ranges = await self._table.renew_slots(known.ranges, lost, above, now, every)
        if ranges is None:
            raise LookAgain("the slots of the hot store are being renewed")
        after = SlotGenerations(ranges)
        self._raised = after.highest
        HOT_GENERATIONS.inc()
        count = sum(last + 1 - first for first, last, _ in lost)
        log.warning("hot state is reloaded", action="hot", generation=self._raised, slots=count)
        return after

    async def _mark(self, address: str, master: _Master, known: SlotGenerations) -> _Master:
        if self._is_whole(master, known):
            return master
        master = master._replace(slot=self._client.first_slots[address])
        return master._replace(marker=await self._write(address, master, known.highest_of(master.run)))

    async def _write(self, address: str, master: _Master, number: GenerationNumber) -> bytes:
        words = (number, self._store, master.run)
        marker: bytes = await call(self._client.node(address), MARK, self._marker(master.slot), *words)
        return marker

    async def _read_masters(self, known: SlotGenerations) -> Masters:
        """Raises if none answers."""
        first: dict[tuple[str, str], int] = {}
        for slot, address in enumerate(self._client.owners):
            first.setdefault((address, known.run_of(slot)), slot)
        found = await asyncio.gather(*(self._read_master(address, first) for address in self._client.first_slots))
        both = zip(self._client.first_slots, found, strict=True)
        answered = {address: one for address, one in both if isinstance(one, _Master)}
        failures = [one for one in found if isinstance(one, Exception)]
        if not answered:
            raise failures[0]
        return answered

    async def _read_master(self, address: str, first: Mapping[tuple[str, str], int]) -> _Master | Exception:
        """The marker is in the first slot that the table knows as the master's: others may have moved to it."""
        node = self._client.node(address)
        try:
            run = self._note_time(await ask(node, "INFO", "server"))
            slot = first.get((address, run), self._client.first_slots[address])
            return _Master(slot, run, await ask(node, "GET", self._marker(slot)))
        except (RedisError, OSError) as error:
            raise_if_lasting(error)
            return error

    def _marker(self, slot: int) -> str:
        return f"{self._prefix}generation:{tag_in(slot)}"

    def _note_time(self, info: Any) -> str:
        """Returns the run id of a server, and notes the time of its clock."""
        if isinstance(info, bytes):  # as a connection reads it; the library parses it for others
            info = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
        run = str(info["run_id"])
        if (now := info.get("server_time_usec")) is not None:
            self._ahead[run] = int(now) / 1e6 - monotonic()
        return run

    async def close(self) -> None:
        """Cancels a look in flight, which would open new connections."""
        if self._looking is not None:
            await cancel(self._looking)
        await self._client.close()


class ExclusiveGeneration(Generation):
    """For a process that has the hot store to itself.

    It raises all numbers when it starts and whenever it does not know whether a hot update was applied: an abandoned
    call ends the generation that it was made in. A higher number shows that another process has replaced this one.
    """

    def deadline(self, seconds: float) -> int:
        return 0

    def missed(self) -> None:
        self.distrust()

    def _must_drop(self, known: SlotGenerations, markers: Collection[_Marker], distrusts: int) -> bool:
        if self._raised and max([known.highest, *(marker.number for marker in markers)]) > self._raised:
            raise HotStoreUnavailable("another process has taken over the hot store: this process no longer answers")
        return self._confirmed != distrusts


class SharedGeneration(Generation):
    """For processes that share a hot store: they agree on the numbers in the table.

    A number is raised only where a marker or a run id shows a loss, or for all slots if a process distrusts the
    content. A hot update is retried by its caller until it is applied, and a replay changes nothing. A call that would
    undo something newer carries a deadline, and is refused when it arrives late.
    """

    _drop = (0, NO_GENERATION)
    """The last distrust that a look has found, and the highest number of that time."""

    def deadline(self, seconds: float) -> int:
        return int((monotonic() + seconds + max(self._ahead.values())) * 1000) if self._ahead else 0

    def missed(self) -> None:
        """The caller retries."""

    def _must_drop(self, known: SlotGenerations, markers: Collection[_Marker], distrusts: int) -> bool:
        if distrusts in {1, self._confirmed}:  # 1: this process has not seen the hot store before
            return False
        if self._drop[0] != distrusts:
            self._drop = distrusts, known.highest
        return known.lowest <= self._drop[1]  # else another process was faster


def _parse(marker: bytes | None) -> _Marker | None:
    parts = [] if marker is None else marker.decode().split(" ")
    return _Marker(GenerationNumber(int(parts[0])), parts[1], parts[2]) if len(parts) == 3 else None
