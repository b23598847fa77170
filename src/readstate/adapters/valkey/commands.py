"""Commands to one server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as LostConnection


async def ask(node: Redis, *command: str | bytes | int) -> Any:
    with closed_is_lost():
        return await node.execute_command(*command)  # type: ignore[no-untyped-call]


@contextmanager
def closed_is_lost() -> Iterator[None]:
    """uvloop raises RuntimeError if the connection was closed just before a send: treat it as lost."""
    try:
        yield
    except RuntimeError as error:
        raise LostConnection(str(error)) from error
