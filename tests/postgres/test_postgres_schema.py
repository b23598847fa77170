"""The tables of the PostgreSQL store: made once, whoever comes first, and brought forward, never back."""

import asyncio
import re
from collections.abc import AsyncIterator

import asyncpg  # type: ignore[import-untyped]
import pytest

from readstate.adapters.sql.files import migrations, numbered, queries, schema
from readstate.adapters.sql.postgres import migrations as postgres_migrations
from readstate.adapters.sql.postgres.session import SQL
from readstate.adapters.sql.postgres.store import PostgresStore, migrate
from readstate.domain.errors import ConfigurationError, StorageUnavailable
from readstate.timings import SqlTimings

from ..contract.postgres import command, database

NEWEST = max(migrations("postgres"))
SHAPE = """
SELECT c.relname, c.relkind::text, c.reloptions::text, pg_get_partkeydef(c.oid), pg_get_expr(c.relpartbound, c.oid),
    a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, l.collname, pg_get_expr(d.adbin, d.adrelid),
    CASE WHEN c.relkind IN ('i', 'I') THEN pg_get_indexdef(c.oid) END
FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
WHERE c.relnamespace = 'public'::regnamespace AND c.relname NOT LIKE 'schema_migrations%'
ORDER BY c.relname, a.attnum
"""


@pytest.fixture
async def empty() -> AsyncIterator[str]:
    async with database(empty=True) as url:
        yield url


@pytest.fixture
async def ready() -> AsyncIterator[str]:
    async with database() as url:
        yield url


def know_one_more(monkeypatch: pytest.MonkeyPatch) -> int:
    """From now on this is a version that knows one migration more than the database has seen."""
    known = migrations("postgres") | {NEWEST + 1: "ALTER TABLE channels ADD COLUMN colour text;"}
    monkeypatch.setattr(postgres_migrations, "migrations", lambda _: known)
    return NEWEST + 1


def test_both_dialects_have_the_same_statements() -> None:
    for file in ("queries.sql", "transfer.sql"):
        ours = {name for name in queries("postgres", file) if not name.startswith("lock_")}
        assert ours == set(queries("sqlite", file))


def test_values_are_numbered_by_their_first_place_and_casts_are_left_alone() -> None:
    assert numbered("SELECT :b::text, ':', :a, :b") == ("SELECT $1::text, ':', $2, $1", ("b", "a"))


async def test_every_statement_is_valid_and_has_a_purpose(ready: str) -> None:
    connection = await asyncpg.connect(ready)
    for name, (statement, names) in SQL.items():
        assert statement.startswith("-- "), name
        parameters = (await connection.prepare(statement)).get_parameters()
        assert len(parameters) == (len(names) or len(set(re.findall(r"\$\d+", statement)))), name
    await connection.close()


# ---------------------------------------------------------------- migrations


def test_migrations_are_numbered_without_gaps() -> None:
    assert list(migrations("postgres")) == list(range(1, NEWEST + 1))


async def test_the_schema_file_is_what_the_migrations_make(ready: str, empty: str) -> None:
    connection = await asyncpg.connect(empty)
    await connection.execute(schema("postgres"))
    await connection.close()
    assert await command(SHAPE, ready) == await command(SHAPE, empty)


async def test_an_empty_database_is_made_ready_and_then_left_alone(empty: str) -> None:
    assert await migrate(empty, SqlTimings(), check_only=True) == (0, NEWEST)
    assert await migrate(empty, SqlTimings()) == (0, NEWEST)
    assert await migrate(empty, SqlTimings()) == (NEWEST, NEWEST)
    assert await command("SELECT number FROM schema_migrations", empty) == [(n,) for n in migrations("postgres")]


async def test_of_many_that_come_at_once_one_migrates(empty: str) -> None:
    stores = await asyncio.gather(*(PostgresStore.open(empty, 100, SqlTimings()) for _ in range(5)))
    assert sorted(await asyncio.gather(*(store.next_generation() for store in stores))) == [1, 2, 3, 4, 5]
    await asyncio.gather(*(store.close() for store in stores))
    assert len(await command("SELECT FROM schema_migrations", empty)) == NEWEST


async def test_an_older_database_is_brought_forward_while_an_older_version_runs(
    ready: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = await PostgresStore.open(ready, 100, SqlTimings())
    await older.save_seen("bob", 5)
    one_more = know_one_more(monkeypatch)
    assert await migrate(ready, SqlTimings(), check_only=True) == (NEWEST, one_more)
    newer = await PostgresStore.open(ready, 100, SqlTimings())
    assert await migrate(ready, SqlTimings()) == (one_more, one_more)
    assert (await newer.activity("bob")).last_seen == 5
    await older.save_seen("bob", 6)
    assert (await newer.activity("bob")).last_seen == 6
    await asyncio.gather(older.close(), newer.close())


async def test_a_newer_database_is_refused(ready: str) -> None:
    await command(f"INSERT INTO schema_migrations (number) VALUES ({NEWEST + 7})", ready)
    with pytest.raises(ConfigurationError, match=f"schema {NEWEST + 7}, made by a newer Readstate"):
        await PostgresStore.open(ready, 100, SqlTimings())
    with pytest.raises(ConfigurationError, match=f"knows up to {NEWEST}"):
        await migrate(ready, SqlTimings(), check_only=True)


async def test_a_migration_that_fails_leaves_nothing_behind(ready: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {NEWEST + 1: "CREATE TABLE half (n int); SELECT no_such_function();"}
    monkeypatch.setattr(postgres_migrations, "migrations", lambda _: migrations("postgres") | broken)
    with pytest.raises(asyncpg.UndefinedFunctionError):
        await PostgresStore.open(ready, 100, SqlTimings())
    assert await command("SELECT FROM pg_tables WHERE tablename = 'half'", ready) == []
    assert await command("SELECT max(number) FROM schema_migrations", ready) == [(NEWEST,)]


async def test_a_migration_that_cannot_have_its_tables_lets_the_others_go_on(
    ready: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_more = know_one_more(monkeypatch)
    monkeypatch.setattr(postgres_migrations, "TRIES", 2)
    reader = await asyncpg.connect(ready)
    async with reader.transaction():
        await reader.execute("SELECT FROM channels")
        with pytest.raises(StorageUnavailable, match=f"migration {one_more} cannot lock its tables"):
            await migrate(ready, SqlTimings(migration_lock=0.1))
        await command("SELECT FROM channels", ready)
    await reader.close()
    assert await migrate(ready, SqlTimings()) == (NEWEST, one_more)


async def test_a_role_that_may_not_make_tables_is_told_so(empty: str) -> None:
    await command("DROP ROLE IF EXISTS guest")
    await command("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    try:
        address = empty.rpartition("@")[2]
        with pytest.raises(ConfigurationError, match="permission denied"):
            await PostgresStore.open(f"postgresql://guest:guest@{address}", 100, SqlTimings())
    finally:
        await command("DROP ROLE guest")
