"""Commands to one server, and what they consist of."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hiredis
import msgspec
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import ResponseError

Word = str | bytes | int
"""A part of a command."""
encode = msgspec.msgpack.Encoder().encode
"""Packs an argument that functions unpack."""


async def ask(node: Redis, *command: Word) -> Any:
    with closed_is_lost():
        return await node.execute_command(*command)  # type: ignore[no-untyped-call]


async def exchange(node: Redis, commands: Sequence[Sequence[Word]]) -> list[Any]:
    """Send commands in one round trip. Returns the answers, with the server's errors in their places.

    The library's own way costs several times as much: it prepares for retries, callbacks and its own metrics.
    """
    with closed_is_lost():
        pool = node.connection_pool
        connection = await pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            await connection.send_packed_command([hiredis.pack_command(words) for words in commands])  # type: ignore[arg-type]  # its stub knows one word only
            return [await _answer(connection) for _ in commands]
        except BaseException:
            await connection.disconnect(nowait=True)  # answers may still be on the way
            raise
        finally:
            await pool.release(connection)


async def _answer(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


@contextmanager
def closed_is_lost() -> Iterator[None]:
    """Treat a connection that another task closed just before a send as lost.

    uvloop raises RuntimeError then, and the library AttributeError if the connection was being made.
    """
    try:
        yield
    except (RuntimeError, AttributeError) as error:
        raise LostConnection(str(error)) from error
