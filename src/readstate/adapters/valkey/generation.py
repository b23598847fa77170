"""Which generation the hot store is in: the number under which everything in it was loaded.

Every master holds a marker with the number, the id of the durable store and its own run id. A master without one was
emptied, one with another run id was restarted from a snapshot or is a replica that took over: it may have lost
something. Then the durable counter is raised, and whatever was loaded under an older number counts as not loaded.

A process that has the hot store to itself raises the number whenever it starts or does not know what has become of a
step, and finds out by a higher one that it was replaced. Processes that share a hot store agree on a number instead:
whoever finds one on every master takes it, and it is raised only where a marker says that something was lost.
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
    """What a master says."""

    number: int
    store: str
    run: str


class _Found(NamedTuple):
    """What all masters say."""

    runs: tuple[str, ...]
    highest: int
    whole: bool
    """Whether they agree on a number, and none was replaced."""


class Generation:
    """Looks at every new connection, and at the markers when asked. Shared by all that use one hot store."""

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
        """The last number that this process has raised; perhaps not on every master yet."""
        self._ahead: dict[str, float] = {}
        """By run id, how far (in s) a server's clock is ahead of this process's own count of seconds."""
        self.number = 0

    @property
    def trusted(self) -> bool:
        """Whether nothing has made anybody doubt what the hot store holds since the servers were looked at."""
        return self._settled == self._doubts

    async def admit(self, connection: AbstractConnection) -> None:
        """Let a new connection be used only if it leads to a server that was confirmed."""
        await connection.on_connect()
        await connection.send_command("INFO", "server")
        run = self._note_time(await connection.read_response())
        if run not in self._runs or not self.trusted:
            raise ServerChanged("the hot store was restarted or changed its master")

    def distrust(self) -> None:
        """What the hot store holds may be wrong: all of it is loaded again."""
        self._doubts += 1

    def deadline(self, seconds: float) -> int:
        """The time in so many seconds, by the clock of the servers in ms; 0: calls need none.

        Where the hot store is not shared, a call that was given up ends the generation that it was made in.
        """
        if not self.shared or not self._ahead:
            return 0
        return int((monotonic() + seconds + max(self._ahead.values())) * 1000)

    def _note_time(self, info: Any) -> str:
        """The run id of a server; what time it has is noted."""
        told = _told(info)
        if (now := told.get("server_time_usec")) is not None:
            self._ahead[told["run_id"]] = int(now) / 1e6 - monotonic()
        return told["run_id"]

    def missed(self) -> None:
        """A step may be missing in the hot store, or may come to it once more, much later.

        Where the hot store is shared, whoever makes steps repeats them until they are done, and a repeat does nothing;
        what would undo something newer is refused when it comes late (`deadline`).
        """
        if not self.shared:
            self.distrust()

    async def check(self) -> int:
        """The number, after a look at the markers: it is another one if anything was lost."""
        for _ in range(MAX_LOOKS):  # whoever joins a look that is under way may have seen something newer
            if self.trusted and await self._is_marked():
                break
            await self.confirm()
        return self.number

    async def _is_marked(self) -> bool:
        try:
            masters = await self._client.masters()
            found = await asyncio.gather(*(ask(node, "GET", self._marker(slot)) for slot, node in masters.items()))
        except (RedisError, OSError):
            return False  # gone, or somewhere else now
        ours = f"{self.number} {self._store} ".encode()
        return all(marker is not None and marker.startswith(ours) for marker in found)

    async def confirm(self) -> None:
        """Make sure that every master carries the number; raise it where one has lost its marker."""
        if self._confirming is None:
            self._confirming = asyncio.create_task(self._confirm_soon())
            self._confirming.add_done_callback(_look_at)
        await asyncio.shield(self._confirming)

    async def _confirm_soon(self) -> None:
        """Tries for a while: a Cluster that fails over needs some time."""
        end, wait = monotonic() + self._patience, 0.02
        try:
            while True:
                try:
                    await self._client.disconnect()  # to see where new connections lead
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
        """Whether a number that is on every master is not good enough."""
        if not self.shared:
            return self._settled != doubts
        first_look = 1  # at what others have agreed on
        return found < self.number or self._settled != doubts > first_look

    async def _raise(self, masters: dict[int, Redis], found: _Found) -> int:
        """Put a new number on every master, or one that was taken and that nothing was loaded under yet."""
        if self.shared:
            # Others may have loaded under any number that was on the masters, so none is used again. And one that
            # takes no marker, because it is full, must not cost a number whenever it is asked.
            await self._mark_all(masters, found, 0)
            await self._take_number(max(found.highest, self.number))
            if (now := await self._look(masters)).whole and now.highest > max(found.highest, self.number):
                return now.highest  # somebody else was faster
        elif not self.number < self._raised >= found.highest:
            await self._take_number(found.highest)
        return await self._mark_all(masters, found, self._raised)

    async def _take_number(self, above: int) -> None:
        self._raised = await self._raise_number(above)
        HOT_GENERATIONS.inc()
        log.warning("all hot state is loaded again", action="hot", generation=self._raised)

    async def _look(self, masters: dict[int, Redis]) -> _Found:
        """The run ids of all masters, and their markers."""
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
        """The run id of a master, and its marker."""
        run = self._note_time(await ask(node, "INFO", "server"))
        return run, _parse(await ask(node, "GET", self._marker(slot)))

    async def _mark_all(self, masters: dict[int, Redis], found: _Found, number: int) -> int:
        """Mark every master; the highest number that one has then."""
        told = [self._mark(slot, masters[slot], number, run) for slot, run in zip(masters, found.runs, strict=True)]
        return max(await asyncio.gather(*told))

    async def _mark(self, slot: int, node: Redis, number: int, run: str) -> int:
        answer = _parse(await ask(node, "EVAL", RAISE.text, 1, self._marker(slot), number, self._store, run))
        return number if answer is None else answer.number

    def _marker(self, slot: int) -> str:
        return f"{self._prefix}generation:{tag_in(slot)}"

    async def close(self) -> None:
        """Close its connections. A look that nobody waits for any more would open new ones."""
        if self._confirming is not None:
            await cancel(self._confirming)
        await self._client.close()


def _look_at(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.exception()  # whoever waits gets it


def _parse(marker: bytes | None) -> Marker | None:
    parts = [] if marker is None else marker.decode().split(" ")
    return Marker(int(parts[0]), parts[1], parts[2]) if len(parts) == 3 else None


def _told(info: Any) -> dict[str, str]:
    if isinstance(info, dict):
        return {str(name): str(value) for name, value in info.items()}
    text = info.decode() if isinstance(info, bytes) else str(info)
    return dict(line.strip().split(":", 1) for line in text.splitlines() if ":" in line)
