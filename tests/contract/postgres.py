"""A real PostgreSQL for tests: one server for a test process, and a database of its own for every test."""

import atexit
import functools
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg  # type: ignore[import-untyped]

from readstate.adapters.sql.postgres.store import PostgresStore, migrate
from readstate.stack import Postgres
from readstate.timings import SqlTimings

from ..folder import folder

TEMPLATE = "template_of_tests"
HASTY = {"fsync": "off", "full_page_writes": "off", "max_connections": "100", "autovacuum": "off"}
"""Nobody pulls the plug of this one."""

EMPTY = """
SET lock_timeout = '5s';
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
        IF name NOT IN ('schema_migrations', 'meta', 'lease') THEN
            EXECUTE format('DELETE FROM %I', name);
        END IF;
    END LOOP;
    TRUNCATE members;  -- samples of it are taken by pages
    DELETE FROM meta WHERE key NOT IN ('generation', 'store');
    UPDATE meta SET value = CASE key WHEN 'generation' THEN 0 ELSE (random() * 9007199254740991)::bigint END;
    UPDATE lease SET owner = '', token = 0, expires_at = 0;
END
$$
"""
"""A database as it was made, with an identity of its own. Emptying one takes a tenth of the work of another one."""

_numbers = itertools.count(1)
_free: list[str] = []


@functools.cache
def server() -> Postgres:
    """Started when the first test needs it, gone with the process."""
    postgres = Postgres(folder() / "postgres", settings=HASTY)
    atexit.register(postgres.wipe)
    return postgres.start()


def url_of(database: str, postgres: Postgres | None = None) -> str:
    """Where a database of the server is."""
    return (postgres or server()).url.rpartition("/")[0] + "/" + database


async def command(statement: str, url: str | None = None) -> list[tuple[object, ...]]:
    """Run one statement outside of any transaction, or several that give nothing."""
    connection = await asyncpg.connect(url or server().url)
    try:
        if ";" in statement.strip().rstrip(";"):
            await connection.execute(statement)
            return []
        return [tuple(row) for row in await connection.fetch(statement)]
    finally:
        await connection.close()


async def fresh_database(*, empty: bool = False) -> str:
    """The URL of a new database, with the tables unless it is to be empty."""
    name = f"test_{next(_numbers)}"
    if not empty and not await command(f"SELECT FROM pg_database WHERE datname = '{TEMPLATE}'"):
        await command(f"CREATE DATABASE {TEMPLATE}")
        await migrate(url_of(TEMPLATE), SqlTimings())
    await command(f"CREATE DATABASE {name} TEMPLATE {'template0' if empty else TEMPLATE}")
    return url_of(name)


async def take_database() -> str:
    """The URL of a database as it was made, which others may have used before."""
    while _free:
        url = _free.pop()
        try:
            await command(EMPTY, url)
            return url
        except asyncpg.PostgresError:  # somebody still holds it, or it is not as it was made
            await drop_database(url)
    url = await fresh_database()
    await command(EMPTY, url)
    return url


def give_back(url: str) -> None:
    """Others may have a database that was taken."""
    _free.append(url)


@asynccontextmanager
async def used_database() -> AsyncIterator[str]:
    """A database for a test that leaves its tables as they are."""
    url = await take_database()
    try:
        yield url
    finally:
        give_back(url)


async def rename_database(url: str, name: str) -> None:
    """The same database by another name; nobody is connected to it any more."""
    old = url.rpartition("/")[2]
    await command(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{old}'")
    await command(f"ALTER DATABASE {old} RENAME TO {name}")


async def drop_database(url: str) -> None:
    """Away with it."""
    await command(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")


@asynccontextmanager
async def database(*, empty: bool = False) -> AsyncIterator[str]:
    """A database for one test."""
    url = await fresh_database(empty=empty)
    try:
        yield url
    finally:
        await drop_database(url)


@asynccontextmanager
async def postgres(fanout_max_members: int) -> AsyncIterator[PostgresStore]:
    """A store over a database of its own."""
    async with used_database() as url:
        store = await PostgresStore.open(url, fanout_max_members, SqlTimings())
        try:
            yield store
        finally:
            await store.close()
