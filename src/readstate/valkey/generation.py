"""Which generation the hot store is in: the number under which everything in it was loaded.

Every master holds a marker with the number and its own run id. A master without one was emptied, one with another
run id was restarted from a snapshot or is a replica that took over: it may have lost something. Then the durable
counter is raised, and whatever was loaded under an older number counts as not loaded.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from ..errors import HotStoreUnavailable
from .fleet import Fleet, ServerChanged, ask
from .keys import tag_in
from .scripts import Script

RAISE = Script(
    """-- KEYS[1]: marker; ARGV: number, run id. The marker with the higher number stays, if it is of this run.
local known = redis.call('GET', KEYS[1])
if known then
  local number, run = string.match(known, '^(%d+) (.*)$')
  if run == ARGV[2] and tonumber(number) >= tonumber(ARGV[1]) then return known end
end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2])
return ARGV[1] .. ' ' .. ARGV[2]"""
)


class Generation:
    """Looks at every new connection, and at the markers when asked. Shared by all that use one hot store."""

    def __init__(self, url: str, prefix: str, patience: float, raise_number: Callable[[], Awaitable[int]]) -> None:
        self._fleet = Fleet(url, patience=patience)
        self._prefix = prefix
        self._raise_number = raise_number
        self._runs: frozenset[str] = frozenset()
        self._doubts, self._settled = 1, 0
        self._confirming: asyncio.Task[None] | None = None
        self.number = 0

    @property
    def trusted(self) -> bool:
        """Whether nothing has made anybody doubt what the hot store holds since the servers were looked at."""
        return self._settled == self._doubts

    async def admit(self, connection: AbstractConnection) -> None:
        """Let a new connection be used only if it leads to a server that was confirmed."""
        await connection.on_connect()
        await connection.send_command("INFO", "server")
        if _run_id(await connection.read_response()) not in self._runs or not self.trusted:
            raise ServerChanged("the hot store was restarted or changed its master")

    def distrust(self) -> None:
        """What the hot store holds may be wrong: all of it is loaded again."""
        self._doubts += 1

    async def check(self) -> int:
        """The number, after a look at the markers: it is another one if anything was lost."""
        if not self.trusted:
            await self.confirm()
            return self.number
        try:
            masters = await self._fleet.masters()
            found = await asyncio.gather(*(ask(node, "GET", self._marker(slot)) for slot, node in masters.items()))
        except (RedisError, OSError) as error:
            raise HotStoreUnavailable(f"the hot store does not answer: {error}") from error
        if not all(marker is not None and marker.startswith(b"%d " % self.number) for marker in found):
            await self.confirm()
        return self.number

    async def confirm(self) -> None:
        """Make sure that every master carries the number; raise it where one has lost its marker."""
        if self._confirming is None:
            self._confirming = asyncio.create_task(self._confirm())
        task = self._confirming
        try:
            await asyncio.shield(task)
        except (RedisError, OSError) as error:
            raise HotStoreUnavailable(f"the hot store does not answer: {error}") from error

    async def _confirm(self) -> None:
        doubts = self._doubts
        try:
            await self._fleet.refresh()
            masters = await self._fleet.masters()
            states = await asyncio.gather(*(self._look(slot, node) for slot, node in masters.items()))
            numbers = {number for number, _, _ in states}
            if self._settled != doubts or len(numbers) > 1 or not all(run == marked for _, run, marked in states):
                number = await self._raise_number()
                markers = await asyncio.gather(
                    *(
                        self._mark(slot, node, number, run)
                        for (slot, node), (_, run, _) in zip(masters.items(), states, strict=True)
                    )
                )
                numbers = {int(marker.split()[0]) for marker in markers}
            self.number = max(numbers)
            self._runs = frozenset(run for _, run, _ in states)
            self._settled = doubts
        finally:
            self._confirming = None

    async def adopt(self) -> None:
        """Take the number that stands, without raising it: for an instance that joins others."""
        self._settled = self._doubts
        await self.confirm()

    async def _look(self, slot: int, node: Redis) -> tuple[int, str, str]:
        """(number, run id, run id that the marker says) of a master."""
        run = _run_id(await ask(node, "INFO", "server"))
        number, _, marked = (await ask(node, "GET", self._marker(slot)) or b"0 ").decode().partition(" ")
        return int(number), run, marked

    async def _mark(self, slot: int, node: Redis, number: int, run: str) -> str:
        answer = await ask(node, "EVAL", RAISE.text, 1, self._marker(slot), number, run)
        return str(answer.decode())

    def _marker(self, slot: int) -> str:
        return f"{self._prefix}generation:{tag_in(slot)}"

    async def close(self) -> None:
        """Close its connections."""
        await self._fleet.close()


def _run_id(info: Any) -> str:
    if isinstance(info, dict):
        return str(info["run_id"])
    text = info.decode() if isinstance(info, bytes) else str(info)
    return next(line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("run_id:"))
