"""Commands to one server, and what they consist of."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as LostConnection

Word = str | bytes | int
"""A part of a command."""
encode = msgspec.msgpack.Encoder().encode
"""Packs an argument that functions unpack."""


async def ask(node: Redis, *command: Word) -> Any:
    with closed_is_lost():
        return await node.execute_command(*command)  # type: ignore[no-untyped-call]


@contextmanager
def closed_is_lost() -> Iterator[None]:
    """Treat a connection that another task closed just before a send as lost.

    uvloop raises RuntimeError then, and the library AttributeError if the connection was being made.
    """
    try:
        yield
    except (RuntimeError, AttributeError) as error:
        raise LostConnection(str(error)) from error
