"""Connections to one server, handed out in the order in which they were asked for.

The pool of the library that waits does so without an order: whoever comes may overtake those who wait, again and again.
And whoever is cancelled while giving a connection back, as a device that is cut, keeps its place in the pool for ever.
"""

import asyncio
from typing import Any

import hiredis
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as LostConnection

NO_CONNECTION = "No connection available"


class _Packing:
    """Of a connection that leaves packing to hiredis: a script call has thousands of words."""

    def pack_command(self, *words: str | bytes | int) -> list[bytes]:
        """A command as it is sent."""
        return [hiredis.pack_command(words)]  # type: ignore[arg-type]  # its stub knows one word only


class FairPool(ConnectionPool):
    """At most so many connections; who comes when all are in use waits for one, but not for longer than `patience`."""

    def __init__(self, *, max_connections: int, patience: float, **options: Any) -> None:
        super().__init__(max_connections=max_connections, **options)
        self.connection_class = type("Connection", (_Packing, self.connection_class), {})
        self._patience = patience
        self._free = asyncio.Semaphore(max_connections)
        self._given: set[AbstractConnection] = set()

    async def get_connection(self, command_name: Any = None, *keys: Any, **options: Any) -> AbstractConnection:
        """One that is connected. Raises the library's ConnectionError if there is none in time."""
        await self._take_place()
        try:
            connection: AbstractConnection = await super().get_connection()  # type: ignore[no-untyped-call]
        except BaseException:
            self._free.release()
            raise
        self._given.add(connection)
        return connection

    async def release(self, connection: AbstractConnection) -> None:
        """Give it back: the next one in the row gets its place, whatever happens here."""
        try:
            await super().release(connection)
        finally:
            if connection in self._given:  # else it is one that could not be connected
                self._given.remove(connection)
                self._free.release()

    async def _take_place(self) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(self._patience):
                await self._free.acquire()
        except TimeoutError:
            raise LostConnection(f"{NO_CONNECTION}: all are in use") from None
