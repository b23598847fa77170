"""Connections to where the bus lives: one server, or the node of a Cluster that has the slot of its channels.

Not the client's own publish and subscribe: that one connects again silently, and here the break itself is news.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from readstate.adapters.valkey import ValkeyClient, slot_of

ANSWER_SECONDS = 1.0
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0

BROKEN = (RedisError, OSError, TimeoutError, RuntimeError)
"""What a line raises that breaks, or can't be had; the last is uvloop's where it was closed a moment before."""


async def pause(failures: int) -> None:
    """Wait longer the more often in a row it has failed; not all instances alike."""
    await asyncio.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 10)) * random.uniform(0.5, 1))


class Line:
    """One connection. Commands and what is read from it are bytes."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection

    async def ask(self, *commands: Sequence[str | bytes]) -> list[Any]:
        """The answers to commands that are sent together; the first refusal is raised when all have come."""
        await self.say(*commands)
        answers = [await self._answer() for _ in commands]
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise answer
        return answers

    async def subscribe(self, command: str, channels: Sequence[str]) -> None:
        """Return when what is said on all of them comes. One command: nothing comes between its answers."""
        await self.say((command, *channels))
        for _ in channels:
            await self._connection.read_response()

    async def say(self, *commands: Sequence[str | bytes]) -> None:
        """Send commands and wait for nothing."""
        await self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)

    async def read(self, seconds: float) -> Any:
        """What comes next; None if nothing does."""
        return await self._connection.read_response(timeout=seconds)

    async def _answer(self) -> Any:
        try:
            return await self._connection.read_response()
        except ResponseError as error:
            return error


class Lines:
    """Where lines lead."""

    def __init__(self, url: str) -> None:
        self._client = ValkeyClient(url, patience=ANSWER_SECONDS, answer_seconds=ANSWER_SECONDS)
        self.clustered = self._client.is_cluster
        """Whether channels have slots."""
        self.database = self._client.database

    @asynccontextmanager
    async def open(self, channel: str, name: str) -> AsyncIterator[Line]:
        """A line to the server that has the channel now; it is closed at the end, and for good when it breaks."""
        connection = await self._client.connection(slot_of(channel), name)
        try:
            yield Line(connection)
        finally:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """No more lines."""
        await self._client.close()
