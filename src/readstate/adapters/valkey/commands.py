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
    """uvloop raises RuntimeError if the connection was closed just before a send: treat it as lost."""
    try:
        yield
    except RuntimeError as error:
        raise LostConnection(str(error)) from error
