"""Migrations of the PostgreSQL store: forward only, one process at a time, while older versions may still run."""

import asyncio
from typing import TypeAlias

import asyncpg  # type: ignore[import-untyped]
from asyncpg.pool import PoolConnectionProxy  # type: ignore[import-untyped]

from readstate.adapters.sql.files import check_version, migrations
from readstate.domain.errors import StorageUnavailable
from readstate.timings import SqlTimings

Connection: TypeAlias = PoolConnectionProxy

_LOCK = 0x7265616473746174
"""The advisory lock of the process that migrates."""
TRIES = 12
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = 0"
_TABLE = """CREATE TABLE IF NOT EXISTS schema_migrations (
    number integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
)"""


async def migrations_missing(connection: Connection) -> tuple[int, int]:
    await connection.execute("BEGIN READ ONLY")
    version = await _version(connection)
    await connection.execute("COMMIT")
    return check_version(version, max(migrations("postgres")))


async def migrate(connection: Connection, timings: SqlTimings) -> tuple[int, int]:
    """Apply missing migrations, each in its own transaction; returns (from, to)."""
    before, newest = await migrations_missing(connection)
    for number, script in migrations("postgres").items():
        if number > before:
            await _patiently(connection, number, script, timings)
    return before, newest


async def _patiently(connection: Connection, number: int, script: str, timings: SqlTimings) -> None:
    """A migration that cannot lock its tables soon gives up and retries: others would queue behind its lock request."""
    for attempt in range(1, TRIES + 1):
        try:
            await _apply(connection, number, script, timings)
            return
        except asyncpg.LockNotAvailableError as error:
            await connection.execute("ROLLBACK")
            if attempt == TRIES:
                raise StorageUnavailable(
                    f"migration {number} cannot lock its tables: another session holds a long transaction; try again"
                ) from error
            await asyncio.sleep(timings.migration_lock / 4)


async def _apply(connection: Connection, number: int, script: str, timings: SqlTimings) -> None:
    await connection.execute(_BEGIN)
    await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})", timeout=timings.migration)
    if await _version(connection) < number:
        await connection.execute(f"SET LOCAL lock_timeout = {round(timings.migration_lock * 1000)}")
        await connection.execute(_TABLE)
        await connection.execute(script, timeout=timings.migration)
        await connection.execute(f"INSERT INTO schema_migrations (number) VALUES ({number:d})")
    await connection.execute("COMMIT")


async def _version(connection: Connection) -> int:
    if await connection.fetchval("SELECT to_regclass('schema_migrations') IS NULL"):
        return 0
    version: int = await connection.fetchval("SELECT coalesce(max(number), 0) FROM schema_migrations")
    return version
