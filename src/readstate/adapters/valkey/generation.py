"""The generation of the hot store: the number under which everything in it was loaded.

Every master holds a marker: the number, the id of the durable store and the master's run id. A master without a marker
was emptied. A master with another run id was restarted from a snapshot, or is a replica that took over. Either may have
lost something. Then the durable counter is raised, and everything loaded under an older number counts as not loaded.

A process that has the hot store to itself raises the number when it starts and whenever it does not know whether a hot
update was applied; a higher number tells it that another process has replaced it. Processes that share a hot store
agree on a number instead: a process that finds one number on all masters adopts it, and the number is raised only where
a marker shows a loss.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, NamedTuple

import structlog
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from readstate.domain.errors import HotStoreUnavailable
from readstate.tasks import cancel
from readstate.telemetry import HOT_GENERATIONS

from .client import ServerChanged, ValkeyClient, ask, raise_if_lasting
from .keys import tag_in
from .scripts import Script

log = structlog.get_logger()

MAX_LOOKS = 3

RAISE = Script(
    """-- KEYS[1]: marker; ARGV: number, store, run id. A marker with a higher number stays, if the rest is the same.
local known = redis.call('GET', KEYS[1])
if known then
  local number, rest = string.match(known, '^(%d+) (.*)$')
  if rest == ARGV[2] .. ' ' .. ARGV[3] and tonumber(number) >= tonumber(ARGV[1]) then return known end
end
local marker = table.concat(ARGV, ' ')
redis.call('SET', KEYS[1], marker)
return marker"""
)


class Marker(NamedTuple):
    number: int
    store: str
    run: str


class _Found(NamedTuple):
    """The markers of all masters, taken together."""

    runs: tuple[str, ...]
    highest: int
    whole: bool
    """All masters have one number, and none was replaced."""


class Generation:
    """Checks every new connection, and the markers on demand. One per process and hot store."""

    def __init__(
        self,
        url: str,
        prefix: str,
        patience: float,
        store: int,
        raise_number: Callable[[int], Awaitable[int]],
        *,
        shared: bool = False,
    ) -> None:
        self._client = ValkeyClient(url, patience=patience)
        self._patience = patience
        self._prefix = prefix
        self._store = str(store)
        self._raise_number = raise_number
        self.shared = shared
        """Whether other processes use the same hot store at the same time."""
        self._runs: tuple[str, ...] = ()
        self._doubts, self._settled = 1, 0
        self._confirming: asyncio.Task[None] | None = None
        self._raised = 0
        """The last number that this process raised; perhaps not on every master yet."""
        self._ahead: dict[str, float] = {}
        """By run id, how far (in s) a server's clock is ahead of this process's monotonic clock."""
        self.number = 0

    @property
    def trusted(self) -> bool:
        """Whether the servers were confirmed since the last doubt about the content of the hot store."""
        return self._settled == self._doubts

    async def admit(self, connection: AbstractConnection) -> None:
        """Accept a new connection only if it leads to a confirmed server."""
        await connection.on_connect()
        await connection.send_command("INFO", "server")
        run = self._note_time(await connection.read_response())
        if run not in self._runs or not self.trusted:
            raise ServerChanged("the hot store was restarted or changed its master")

    def distrust(self) -> None:
        """The content of the hot store may be wrong: reload everything."""
        self._doubts += 1

    def deadline(self, seconds: float) -> int:
        """The time `seconds` from now, by the servers' clock in ms; 0: calls need no deadline.

        Where the hot store is not shared, an abandoned call ends the generation that it was made in.
        """
        if not self.shared or not self._ahead:
            return 0
        return int((monotonic() + seconds + max(self._ahead.values())) * 1000)

    def _note_time(self, info: Any) -> str:
        """Returns the run id of a server, and notes the time of its clock."""
        told = _told(info)
        if (now := told.get("server_time_usec")) is not None:
            self._ahead[told["run_id"]] = int(now) / 1e6 - monotonic()
        return told["run_id"]

    def missed(self) -> None:
        """A hot update may be missing in the hot store, or a copy of it may arrive much later.

        Where the hot store is shared, the caller retries a hot update until it is applied, and a replay changes
        nothing. A call that would undo something newer is refused when it arrives late (`deadline`).
        """
        if not self.shared:
            self.distrust()

    async def check(self) -> int:
        """The number after a look at the markers: a new one if anything was lost."""
        for _ in range(MAX_LOOKS):  # a confirmation in flight may have begun before the caller's doubt
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
            self._confirming = asyncio.create_task(self._confirm_soon())
            self._confirming.add_done_callback(_look_at)
        await asyncio.shield(self._confirming)

    async def _confirm_soon(self) -> None:
        """Retries for `patience` seconds: a failover in a Cluster takes time."""
        end, wait = monotonic() + self._patience, 0.02
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
                wait = min(2 * wait, 0.5)
        finally:
            self._confirming = None

    async def _confirm(self) -> None:
        doubts = self._doubts
        await self._client.refresh()
        masters = await self._client.masters()
        found = await self._look(masters)
        number = found.highest
        if not self.shared and self._raised and number > self._raised:
            raise HotStoreUnavailable("another process has taken the hot state over: this one answers no more")
        if not found.whole or self._must_raise(doubts, number):
            number = await self._raise(masters, found)
        self.number = number
        self._runs = found.runs
        self._ahead = {run: ahead for run, ahead in self._ahead.items() if run in found.runs}
        self._settled = doubts

    def _must_raise(self, doubts: int, found: int) -> bool:
        """Whether the number must be raised although every master has it."""
        if not self.shared:
            return self._settled != doubts
        first_look = 1  # adopts the number that others agreed on
        return found < self.number or self._settled != doubts > first_look

    async def _raise(self, masters: dict[int, Redis], found: _Found) -> int:
        """Put a number on every master: a new one, or the last raised one if nothing was loaded under it yet."""
        if self.shared:
            # Other processes may have loaded under any number that was on the masters, so none is used again. Marking
            # with 0 first fails at a full master, before a number is spent on each attempt.
            await self._mark_all(masters, found, 0)
            await self._take_number(max(found.highest, self.number))
            if (now := await self._look(masters)).whole and now.highest > max(found.highest, self.number):
                return now.highest  # another process was faster
        elif not self.number < self._raised >= found.highest:
            await self._take_number(found.highest)
        return await self._mark_all(masters, found, self._raised)

    async def _take_number(self, above: int) -> None:
        self._raised = await self._raise_number(above)
        HOT_GENERATIONS.inc()
        log.warning("all hot state is loaded again", action="hot", generation=self._raised)

    async def _look(self, masters: dict[int, Redis]) -> _Found:
        states = await asyncio.gather(*(self._ask(slot, node) for slot, node in masters.items()))
        markers = [marker for _, marker in states]
        if self.number and any(marker is not None and marker.store != self._store for marker in markers):
            raise HotStoreUnavailable(
                "another service with a database of its own uses the same keys of the hot store: "
                "give each a key_prefix of its own"
            )
        numbers = {marker.number if marker is not None else 0 for marker in markers}
        valid = all(marker is not None and marker[1:] == (self._store, run) for run, marker in states)
        return _Found(tuple(run for run, _ in states), max(numbers), valid and len(numbers) == 1 and min(numbers) > 0)

    async def _ask(self, slot: int, node: Redis) -> tuple[str, Marker | None]:
        run = self._note_time(await ask(node, "INFO", "server"))
        return run, _parse(await ask(node, "GET", self._marker(slot)))

    async def _mark_all(self, masters: dict[int, Redis], found: _Found, number: int) -> int:
        """Mark every master. Returns the highest number that any of them has then."""
        told = [self._mark(slot, masters[slot], number, run) for slot, run in zip(masters, found.runs, strict=True)]
        return max(await asyncio.gather(*told))

    async def _mark(self, slot: int, node: Redis, number: int, run: str) -> int:
        answer = _parse(await ask(node, "EVAL", RAISE.text, 1, self._marker(slot), number, self._store, run))
        return number if answer is None else answer.number

    def _marker(self, slot: int) -> str:
        return f"{self._prefix}generation:{tag_in(slot)}"

    async def close(self) -> None:
        """Cancels a confirmation in flight, which would open new connections."""
        if self._confirming is not None:
            await cancel(self._confirming)
        await self._client.close()


def _look_at(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.exception()  # marks it as retrieved; the waiting callers receive it


def _parse(marker: bytes | None) -> Marker | None:
    parts = [] if marker is None else marker.decode().split(" ")
    return Marker(int(parts[0]), parts[1], parts[2]) if len(parts) == 3 else None


def _told(info: Any) -> dict[str, str]:
    if isinstance(info, dict):
        return {str(name): str(value) for name, value in info.items()}
    text = info.decode() if isinstance(info, bytes) else str(info)
    return dict(line.strip().split(":", 1) for line in text.splitlines() if ":" in line)
