"""The generation of the hot store: the number under which everything in it was loaded.

Every master holds a marker: the number, the id of the durable store and the master's run id. A master without a marker
was emptied. A master with another run id was restarted from a snapshot, or is a replica that took over. Either may have
lost something. Then the durable counter is raised, and everything loaded under an older number counts as not loaded.

`ExclusiveGeneration` and `SharedGeneration` differ in what happens to a call whose outcome is unknown, and in which
number wins.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, NamedTuple

import structlog
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from readstate.domain.errors import HotStoreUnavailable
from readstate.domain.model import NO_GENERATION
from readstate.domain.model import Generation as GenerationNumber
from readstate.tasks import cancel, retrieve_exception
from readstate.telemetry import HOT_GENERATIONS
from readstate.timings import ValkeyTimings

from .client import ServerChanged, ValkeyClient, raise_if_lasting
from .commands import ask
from .functions import Function, call
from .keys import tag_in

log = structlog.get_logger()

MAX_CHECKS = 3

MARK = Function("generation_mark")


class DurableCounter(NamedTuple):
    """Where the number is counted."""

    store: int
    """The id of the durable store."""
    raise_above: Callable[[int], Awaitable[GenerationNumber]]
    """Returns a number that is higher than the given one and was never used before."""


class _Marker(NamedTuple):
    number: GenerationNumber
    store: str
    run: str


class _Found(NamedTuple):
    """The markers of all masters, taken together."""

    runs: tuple[str, ...]
    highest: GenerationNumber
    whole: bool
    """All masters have one number, and none was replaced."""


Masters = dict[int, Redis]


class Generation(ABC):
    """Checks every new connection, and the markers on demand. One per process and hot store."""

    def __init__(self, url: str, prefix: str, counter: DurableCounter, timings: ValkeyTimings) -> None:
        self._client = ValkeyClient(url, timings)
        self._prefix = prefix
        self._store = str(counter.store)
        self._counter = counter
        self._timings = timings
        self._runs: tuple[str, ...] = ()
        self._distrusts, self._confirmed = 1, 0
        """How often the content was distrusted, and the last of these that a confirmation has covered."""
        self._confirming: asyncio.Task[None] | None = None
        self._raised = NO_GENERATION
        """The last number that this process raised; perhaps not on every master yet."""
        self._ahead: dict[str, float] = {}
        """By run id, how far (in s) a server's clock is ahead of this process's monotonic clock."""
        self.number = NO_GENERATION

    @property
    def trusted(self) -> bool:
        """Whether the servers were confirmed since the content of the hot store was last distrusted."""
        return self._confirmed == self._distrusts

    async def admit(self, connection: AbstractConnection) -> None:
        """Accept a new connection only if it leads to a confirmed server."""
        await connection.on_connect()
        await connection.send_command("INFO", "server")
        run = self._note_time(await connection.read_response())
        if run not in self._runs or not self.trusted:
            raise ServerChanged("the hot store was restarted or changed its master")

    def distrust(self) -> None:
        """The content of the hot store may be wrong: reload everything."""
        self._distrusts += 1

    @abstractmethod
    def deadline(self, seconds: float) -> int:
        """The time `seconds` from now, by the servers' clock in ms; 0: calls need no deadline."""

    @abstractmethod
    def missed(self) -> None:
        """A hot update may be missing in the hot store, or a copy of it may arrive much later."""

    @abstractmethod
    async def _agree(self, masters: Masters, found: _Found, distrusts: int) -> GenerationNumber:
        """Returns the number of all masters from now on. `distrusts`: how many there were when `found` was read."""

    async def check(self) -> GenerationNumber:
        """Read the markers. Returns the number: a new one if anything was lost."""
        for _ in range(MAX_CHECKS):  # a confirmation in flight may have begun before the caller's `distrust`
            if self.trusted and await self._is_marked():
                break
            await self.confirm()
        return self.number

    async def _is_marked(self) -> bool:
        try:
            masters = await self._client.masters()
            found = await asyncio.gather(*(ask(node, "GET", self._marker(slot)) for slot, node in masters.items()))
        except (RedisError, OSError):
            return False  # the server is down, or the slot has moved
        ours = f"{self.number} {self._store} ".encode()
        return all(marker is not None and marker.startswith(ours) for marker in found)

    async def confirm(self) -> None:
        """Ensure that every master has the number; raise it where a marker was lost. Concurrent callers share it."""
        if self._confirming is None:
            self._confirming = asyncio.create_task(self._confirm_with_retries())
            self._confirming.add_done_callback(retrieve_exception)
        await asyncio.shield(self._confirming)

    async def _confirm_with_retries(self) -> None:
        """A failover in a Cluster takes time."""
        end, wait = monotonic() + self._timings.patience, self._timings.first_confirmation_retry
        try:
            while True:
                try:
                    await self._client.disconnect()  # new connections show which servers answer now
                    return await self._confirm()
                except (RedisError, OSError) as error:
                    raise_if_lasting(error)
                    if monotonic() + wait > end:
                        raise HotStoreUnavailable("the hot store does not answer", reason=str(error)) from error
                await asyncio.sleep(wait)
                wait = min(2 * wait, self._timings.longest_retry)
        finally:
            self._confirming = None

    async def _confirm(self) -> None:
        distrusts = self._distrusts
        await self._client.refresh()
        masters = await self._client.masters()
        found = await self._read_markers(masters)
        self.number = await self._agree(masters, found, distrusts)
        self._runs = found.runs
        self._ahead = {run: ahead for run, ahead in self._ahead.items() if run in found.runs}
        self._confirmed = distrusts

    async def _raise_above(self, number: GenerationNumber) -> None:
        self._raised = await self._counter.raise_above(number)
        HOT_GENERATIONS.inc()
        log.warning("all hot state is reloaded", action="hot", generation=self._raised)

    async def _read_markers(self, masters: Masters) -> _Found:
        states = await asyncio.gather(*(self._read_marker(slot, node) for slot, node in masters.items()))
        markers = [marker for _, marker in states]
        if self.number and any(marker is not None and marker.store != self._store for marker in markers):
            raise HotStoreUnavailable(
                "another service with its own database uses the same keys of the hot store: give each its own "
                "key_prefix"
            )
        numbers = {marker.number if marker is not None else NO_GENERATION for marker in markers}
        valid = all(marker is not None and marker[1:] == (self._store, run) for run, marker in states)
        return _Found(tuple(run for run, _ in states), max(numbers), valid and len(numbers) == 1 and min(numbers) > 0)

    async def _read_marker(self, slot: int, node: Redis) -> tuple[str, _Marker | None]:
        run = self._note_time(await ask(node, "INFO", "server"))
        return run, _parse(await ask(node, "GET", self._marker(slot)))

    async def _mark_all(self, masters: Masters, found: _Found, number: GenerationNumber) -> GenerationNumber:
        """Mark every master. Returns the highest number that any of them has then."""
        marks = [self._mark(slot, masters[slot], number, run) for slot, run in zip(masters, found.runs, strict=True)]
        return max(await asyncio.gather(*marks))

    async def _mark(self, slot: int, node: Redis, number: GenerationNumber, run: str) -> GenerationNumber:
        answer = _parse(await call(node, MARK, self._marker(slot), number, self._store, run))
        return number if answer is None else answer.number

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
        """Cancels a confirmation in flight, which would open new connections."""
        if self._confirming is not None:
            await cancel(self._confirming)
        await self._client.close()


class ExclusiveGeneration(Generation):
    """For a process that has the hot store to itself.

    It raises the number when it starts and whenever it does not know whether a hot update was applied: an abandoned
    call ends the generation that it was made in. A higher number shows that another process has replaced this one.
    """

    def deadline(self, seconds: float) -> int:
        return 0

    def missed(self) -> None:
        self.distrust()

    async def _agree(self, masters: Masters, found: _Found, distrusts: int) -> GenerationNumber:
        if self._raised and found.highest > self._raised:
            raise HotStoreUnavailable("another process has taken over the hot store: this process no longer answers")
        if found.whole and self._confirmed == distrusts:
            return found.highest
        if not self.number < self._raised >= found.highest:  # else nothing was loaded under the last one yet
            await self._raise_above(found.highest)
        return await self._mark_all(masters, found, self._raised)


class SharedGeneration(Generation):
    """For processes that share a hot store: they agree on a number.

    A process that finds one number on all masters adopts it. The number is raised only where a marker shows a loss, or
    a process distrusts the content. A hot update is retried by its caller until it is applied, and a replay changes
    nothing. A call that would undo something newer carries a deadline, and is refused when it arrives late.
    """

    def deadline(self, seconds: float) -> int:
        return int((monotonic() + seconds + max(self._ahead.values())) * 1000) if self._ahead else 0

    def missed(self) -> None:
        """The caller retries."""

    async def _agree(self, masters: Masters, found: _Found, distrusts: int) -> GenerationNumber:
        is_trusted = distrusts in {1, self._confirmed}  # 1: this process has not seen the hot store before
        if found.whole and found.highest >= self.number and is_trusted:
            return found.highest
        # Other processes may have loaded under any number that was on the masters, so none is used again. Marking with
        # 0 first fails at a full master, before a number is spent on each attempt.
        known = max(found.highest, self.number)
        await self._mark_all(masters, found, NO_GENERATION)
        await self._raise_above(known)
        if (now := await self._read_markers(masters)).whole and now.highest > known:
            return now.highest  # another process was faster
        return await self._mark_all(masters, found, self._raised)


def _parse(marker: bytes | None) -> _Marker | None:
    parts = [] if marker is None else marker.decode().split(" ")
    return _Marker(GenerationNumber(int(parts[0])), parts[1], parts[2]) if len(parts) == 3 else None
