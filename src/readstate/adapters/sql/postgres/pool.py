"""Connections to PostgreSQL, directly or behind a pooler."""

from collections.abc import Mapping

import asyncpg  # type: ignore[import-untyped]

from readstate.domain.errors import ConfigurationError
from readstate.timings import SqlTimings

from .errors import explained
from .session import SQL

_USUAL = {"default_transaction_isolation": "read committed", "default_transaction_read_only": "off"}
"""Of statements that commit by themselves, as `begin` sets it for others."""


async def connect(url: str, max_connections: int, timings: SqlTimings) -> tuple[asyncpg.Pool, bool]:
    """A pool that connects on demand, and whether a pooler is at the other end.

    Password and TLS are in the URL (`?sslmode=verify-full&…`).
    """
    if max_connections < 2:
        raise ConfigurationError("the database needs at least 2 connections: an export keeps one for itself")
    with explained():
        pooled = await is_pooled(url, timings.connect)
        pool = await asyncpg.create_pool(
            url,
            min_size=0,  # connect on use, with our errors and our backoff
            max_size=max_connections,
            timeout=timings.connect,
            command_timeout=timings.statement + timings.late_answer,
            statement_cache_size=0 if pooled else 2 * len(SQL),
            server_settings=None if pooled else {**_USUAL, **settings(timings.statement, timings.idle_transaction)},
            reset=_nothing,
        )
    return pool, pooled


async def is_pooled(url: str, seconds: float) -> bool:
    """Whether the backend that answers is another process than the one announced at connect."""
    connection = await asyncpg.connect(url, timeout=seconds, statement_cache_size=0)
    try:
        async with connection.transaction():
            process = await connection.fetchval("SELECT pg_backend_pid()")
        return bool(process != connection.get_server_pid())
    finally:
        connection.terminate()


async def _nothing(_: asyncpg.Connection) -> None:
    """Sessions need no reset: nothing sets an option for longer than a transaction."""


def settings(statement_seconds: float, idle_seconds: float) -> dict[str, str]:
    """Settings for all statements.

    Every statement has its index: without sequential scans, stale statistics cannot make PostgreSQL read a table that
    has grown from end to end. Statements are many and small: JIT compilation costs more than it saves.
    """
    return {
        "statement_timeout": str(round(statement_seconds * 1000)),
        "idle_in_transaction_session_timeout": str(round(idle_seconds * 1000)),
        "enable_seqscan": "off",
        "jit": "off",
    }


def begin(mode: str, local: Mapping[str, str]) -> str:
    """Statements that begin a transaction and set options for its duration."""
    return "; ".join([f"BEGIN ISOLATION LEVEL {mode}", *(f"SET LOCAL {name} = {local[name]}" for name in local)])
