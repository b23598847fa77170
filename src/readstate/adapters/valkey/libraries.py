"""Removes libraries of functions that no process has used for a day: upgrades leave them behind.

Every process notes once an hour that it uses its own library. A library that is removed too early is reloaded by
the next call, so the notes need not be exact, and may be lost with the rest of the hot store.
"""

import asyncio

import structlog
from redis.exceptions import RedisError

from readstate.domain.errors import ReadstateError
from readstate.ports import Clock

from .client import Call, ValkeyClient
from .commands import ask
from .functions import COMMAND, LIBRARIES, LIBRARY
from .keys import slot_of

NOTE_SECONDS = 3600
UNUSED_MS = 24 * 3600 * 1000

log = structlog.get_logger()


class Libraries:
    def __init__(self, client: ValkeyClient, prefix: str, clock: Clock) -> None:
        self._client = client
        self._key = f"{prefix}libraries"
        """A hash: name of a library -> when it was last noted (ms)."""
        self._clock = clock

    async def keep_tidy(self) -> None:
        while True:
            try:
                await self.tidy()
            except (ReadstateError, RedisError, OSError) as error:
                log.debug("old functions are not removed yet", action="hot", reason=str(error))
            await asyncio.sleep(NOTE_SECONDS)

    async def tidy(self) -> None:
        """Note the use of the own library, and remove those that were not noted for a day."""
        now = self._clock()
        await self._run("HSET", LIBRARY, now)
        await self._run("PEXPIRE", 2 * UNUSED_MS)
        flat = await self._run("HGETALL")
        noted = {name.decode(): int(at) for name, at in zip(flat[::2], flat[1::2], strict=True)}
        for node in (await self._client.masters()).values():
            for library in await ask(node, "FUNCTION", "LIST", "LIBRARYNAME", f"{LIBRARIES}*"):
                name = library[1].decode()
                if name not in noted:
                    await self._run("HSET", name, now)
                elif now - noted[name] > UNUSED_MS:
                    await ask(node, "FUNCTION", "DELETE", name)
                    log.info("functions that no process has used for a day are removed", action="hot", library=name)
        for name, at in noted.items():
            if now - at > UNUSED_MS:
                await self._run("HDEL", name)

    async def _run(self, *command: str | int) -> list[bytes]:
        call = Call(slot_of(self._key), [self._key], command)
        answer: list[bytes] = (await self._client.run(COMMAND, [call])).values[0]
        return answer
