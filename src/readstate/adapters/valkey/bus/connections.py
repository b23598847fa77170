"""Connections of the bus: to one server, or to the node of a Cluster that owns the slot of its channels.

The library's own pub/sub reconnects silently. The bus must notice every break, because announcements may be lost then.
"""

import asyncio
import random
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import structlog
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from readstate.adapters.valkey import ValkeyClient, slot_of
from readstate.timings import ValkeyTimings

log = structlog.get_logger()

BROKEN = (RedisError, OSError, TimeoutError, RuntimeError)
"""Raised by a connection that breaks or cannot be opened; uvloop raises RuntimeError if it was closed just before."""


class BusConnection:
    """One connection, which never reconnects. What it reads is bytes."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection

    async def ask(self, *commands: Sequence[str | bytes]) -> list[Any]:
        """Send commands together and read all answers; then raise the first refusal, if any."""
        await self.send(*commands)
        answers = [await self._answer() for _ in commands]
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise answer
        return answers

    async def subscribe(self, command: str, channels: Sequence[str]) -> None:
        """Return once all channels are subscribed. One command: no message arrives between its confirmations."""
        await self.send((command, *channels))
        for _ in channels:
            await self._connection.read_response()

    async def send(self, *commands: Sequence[str | bytes]) -> None:
        await self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)

    async def read(self, seconds: float) -> Any:
        """The next answer or message; None if none arrives in time."""
        return await self._connection.read_response(timeout=seconds)

    async def _answer(self) -> Any:
        try:
            return await self._connection.read_response()
        except ResponseError as error:
            return error


class BusServers:
    """Opens connections to the server that owns a channel."""

    def __init__(self, url: str, timings: ValkeyTimings) -> None:
        self._client = ValkeyClient(url, replace(timings, patience=timings.bus_answer, answer=timings.bus_answer))
        self.timings = timings
        self.is_cluster = self._client.is_cluster
        self.database = self._client.database

    @asynccontextmanager
    async def open(self, channel: str, name: str) -> AsyncIterator[BusConnection]:
        """A connection to the server that owns the channel now. It is closed on exit, and for good when it breaks."""
        await self._client.refresh()
        pool = self._client.owner(slot_of(channel)).connection_pool
        connection: AbstractConnection = pool.make_connection()  # type: ignore[no-untyped-call]
        connection.client_name = name
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            yield BusConnection(connection)
        finally:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        await self._client.close()


class Reconnecting(ABC):
    """Works on one connection, and opens another one when it breaks."""

    def __init__(self, servers: BusServers, channel: str, name: str) -> None:
        self._servers = servers
        self._timings = servers.timings
        self._channel = channel
        self._name = name
        self._failures = 0
        """Consecutive failures. A connection that breaks at once counts as one."""
        self.connected = False

    @abstractmethod
    async def _work(self, connection: BusConnection) -> None:
        """Returns when there is nothing more to do; raises one of `BROKEN` when the connection breaks."""

    def _broken(self) -> None:  # noqa: B027 - only one of the two has something to do
        """The connection has broken."""

    async def run(self) -> None:
        while True:
            try:
                async with self._servers.open(self._channel, self._name) as connection:
                    return await self._work(connection)
            except BROKEN as error:
                if not self._failures:
                    log.warning("the bus is disconnected", action="bus", connection=self._name, reason=str(error))
            except Exception:
                log.error("the bus failed", action="bus", connection=self._name, traceback=traceback.format_exc())
            finally:
                self.connected = False
            self._broken()
            self._failures += 1
            await self._pause()

    async def _pause(self) -> None:
        """Exponential backoff with jitter, so that instances do not reconnect at the same time."""
        wait = self._timings.bus_first_retry * 2 ** min(self._failures, 10)
        await asyncio.sleep(min(self._timings.bus_longest_retry, wait) * random.uniform(0.5, 1))
