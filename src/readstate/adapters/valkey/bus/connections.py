"""Connections of the bus: to one server, or to the node of a Cluster that owns the slot of its channels.

The library's own pub/sub reconnects silently. The bus must notice every break, because announcements may be lost then.
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
"""Raised by a line that breaks or cannot be opened; uvloop raises RuntimeError if it was closed just before."""


async def pause(failures: int) -> None:
    """Exponential backoff with jitter, so that instances do not reconnect at the same time."""
    await asyncio.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 10)) * random.uniform(0.5, 1))


class Line:
    """One connection, which never reconnects. What it reads is bytes."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection

    async def ask(self, *commands: Sequence[str | bytes]) -> list[Any]:
        """Send commands together and read all answers; then raise the first refusal, if any."""
        await self.say(*commands)
        answers = [await self._answer() for _ in commands]
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise answer
        return answers

    async def subscribe(self, command: str, channels: Sequence[str]) -> None:
        """Return once all channels are subscribed. One command: no message arrives between its confirmations."""
        await self.say((command, *channels))
        for _ in channels:
            await self._connection.read_response()

    async def say(self, *commands: Sequence[str | bytes]) -> None:
        await self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)

    async def read(self, seconds: float) -> Any:
        """The next answer or message; None if none arrives in time."""
        return await self._connection.read_response(timeout=seconds)

    async def _answer(self) -> Any:
        try:
            return await self._connection.read_response()
        except ResponseError as error:
            return error


class Lines:
    """Opens lines to the server that owns a channel."""

    def __init__(self, url: str) -> None:
        self._client = ValkeyClient(url, patience=ANSWER_SECONDS, answer_seconds=ANSWER_SECONDS)
        self.clustered = self._client.is_cluster
        self.database = self._client.database

    @asynccontextmanager
    async def open(self, channel: str, name: str) -> AsyncIterator[Line]:
        """A line to the server that owns the channel now. It is closed on exit, and for good when it breaks."""
        connection = await self._client.connection(slot_of(channel), name)
        try:
            yield Line(connection)
        finally:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        await self._client.close()
