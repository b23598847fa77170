"""Connections to one server, handed out in the order of the requests.

The library's blocking pool has no order: new requests may overtake waiting ones again and again. And a task that is
cancelled while it returns a connection, as when a device is cut off, occupies that pool's slot forever.
"""

import asyncio
from typing import Any

import hiredis
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as NoAnswer
from redis.typing import EncodableT

NO_CONNECTION = "No connection available"


class _Packing(AbstractConnection):
    """Packs commands with hiredis: a function call has thousands of words. Sends them without a task for each."""

    def pack_command(self, *words: EncodableT) -> list[bytes]:
        return [hiredis.pack_command(words)]  # type: ignore[arg-type]  # its stub knows one word only

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """As the library does it, which has a task for the timeout."""
        if not self.is_connected:
            await self.connect_check_health(check_health=False)
        try:
            async with asyncio.timeout(self.socket_timeout):
                await self._send_packed_command(command)
        except TimeoutError:
            await self.disconnect(nowait=True)
            raise NoAnswer("Timeout writing to socket") from None
        except OSError as error:
            await self.disconnect(nowait=True)
            raise LostConnection(f"Error while writing to socket: {error}") from error
        except BaseException:
            await self.disconnect(nowait=True)
            raise


class FairPool(ConnectionPool):
    """Opens at most `max_connections`. A request that finds all in use waits for one, up to `patience` seconds."""

    def __init__(self, *, max_connections: int, patience: float, **options: Any) -> None:
        super().__init__(max_connections=max_connections, **options)
        self.connection_class = type("Connection", (_Packing, self.connection_class), {})
        self._patience = patience
        self._free = asyncio.Semaphore(max_connections)
        self._given: set[AbstractConnection] = set()
        self._retired = False

    async def retire(self) -> None:
        """Close all connections for good. One that is being made now is closed as soon as it is there."""
        self._retired = True
        await self.disconnect()

    async def get_connection(self, command_name: Any = None, *keys: Any, **options: Any) -> AbstractConnection:
        """Raises the library's ConnectionError if no connection is free in time."""
        await self._take_place()
        try:
            connection: AbstractConnection = await super().get_connection()  # type: ignore[no-untyped-call]
            if self._retired:
                await connection.disconnect()
                raise LostConnection("the server is no longer used")
        except BaseException:
            self._free.release()
            raise
        self._given.add(connection)
        return connection

    async def release(self, connection: AbstractConnection) -> None:
        """The next waiting request gets the free slot, even if this call fails."""
        try:
            await super().release(connection)
        finally:
            if connection in self._given:  # otherwise it was never connected
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
