"""Group commit, isolation of faults, and migrations of the SQLite store."""

import asyncio
import contextlib
import re
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from readstate.adapters.sql.files import migrations, queries
from readstate.adapters.sql.sqlite.engine import SqliteEngine, connect, migrate
from readstate.domain.errors import ConfigurationError, StorageUnavailable
from readstate.timings import SqlTimings

NEWEST = max(migrations("sqlite"))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    path = tmp_path / "engine.db"
    connection = connect(path, SqlTimings())
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)")
    connection.close()
    engine = SqliteEngine(path, SqlTimings(busy=0.05))
    yield engine
    await engine.close()


def insert(n: int) -> "InsertWork":
    return InsertWork(n)


class InsertWork:
    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, db: sqlite3.Connection) -> int:
        db.execute("INSERT INTO t VALUES (?)", (self.n,))
        return self.n


def numbers(db: sqlite3.Connection) -> list[int]:
    return [row[0] for row in db.execute("SELECT n FROM t ORDER BY n")]


async def test_writes_that_come_together_share_commits(engine: SqliteEngine) -> None:
    commits: list[str] = []
    await engine.write(lambda db: db.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None))
    await asyncio.gather(*[engine.write(insert(n)) for n in range(500)])
    assert await engine.read(numbers) == list(range(500))
    assert len(commits) < 50


async def test_one_at_fault_does_not_take_the_others_with_it(engine: SqliteEngine) -> None:
    await engine.write(insert(5))
    results = await asyncio.gather(*[engine.write(insert(n)) for n in range(10)], return_exceptions=True)
    assert [n for n, result in enumerate(results) if isinstance(result, sqlite3.IntegrityError)] == [5]
    assert await engine.read(numbers) == list(range(10))


async def test_a_read_sees_every_write_asked_for_before_it(engine: SqliteEngine) -> None:
    for n in range(20):
        write = asyncio.ensure_future(engine.write(insert(n)))
        await asyncio.sleep(0)
        assert n in await engine.read(numbers)
        await write


async def test_a_store_that_cannot_be_written_says_so_and_recovers(engine: SqliteEngine, tmp_path: Path) -> None:
    with contextlib.closing(connect(tmp_path / "engine.db", SqlTimings())) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageUnavailable, match="it is locked; nothing was changed"):
            await engine.write(insert(1))
        assert await engine.read(numbers) == []
    assert await engine.write(insert(1)) == 1


async def test_a_checkpoint_leaves_the_transaction_of_the_writer_alone(engine: SqliteEngine) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow(db: sqlite3.Connection) -> None:
        insert(1)(db)
        began.set()
        go_on.wait(10)
        insert(2)(db)

    writing = asyncio.ensure_future(engine.write(slow))
    await asyncio.to_thread(began.wait, 10)
    await asyncio.wait_for(engine.checkpoint(), 60)
    go_on.set()
    await writing
    assert await engine.read(numbers) == [1, 2]


async def test_closing_finishes_what_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "closing.db"
    connect(path, SqlTimings()).execute("CREATE TABLE t (n INTEGER PRIMARY KEY)")
    engine = SqliteEngine(path, SqlTimings())
    writes = [asyncio.ensure_future(engine.write(insert(n))) for n in range(50)]
    await asyncio.sleep(0)
    await engine.close()
    assert await asyncio.gather(*writes) == list(range(50))
    for late in (engine.write(insert(50)), engine.read(numbers)):
        with pytest.raises(StorageUnavailable, match="closed"):
            await asyncio.wait_for(late, 60)


def _shape(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
    return [(name, re.sub(r"\s*([(),])\s*", r"\1", " ".join(sql.split()))) for name, sql in rows]


def _counters(connection: sqlite3.Connection) -> list[tuple[str, bool]]:
    return connection.execute("SELECT key, value = 0 FROM meta ORDER BY key").fetchall()


def test_the_schema_file_is_what_the_migrations_make(tmp_path: Path) -> None:
    migrated, written = connect(tmp_path / "migrated.db", SqlTimings()), connect(tmp_path / "written.db", SqlTimings())
    migrated.executescript(migrations("sqlite")[1])
    migrated.execute("PRAGMA user_version = 1")
    assert migrate(migrated) == (1, NEWEST)
    assert migrate(written) == (0, NEWEST)
    assert _shape(migrated) == _shape(written)
    assert _counters(migrated) == _counters(written)


def test_migrating_again_does_nothing(tmp_path: Path) -> None:
    connection = connect(tmp_path / "again.db", SqlTimings())
    migrate(connection)
    assert migrate(connection) == (NEWEST, NEWEST)


def test_migrations_are_numbered_without_gaps() -> None:
    assert list(migrations("sqlite")) == list(range(1, len(migrations("sqlite")) + 1))


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    connection = connect(tmp_path / "newer.db", SqlTimings())
    connection.execute("PRAGMA user_version = 9999")
    with pytest.raises(ConfigurationError, match="newer"):
        migrate(connection)


@pytest.mark.parametrize("name", sorted(queries("sqlite")))
def test_every_query_is_valid_and_has_a_purpose(tmp_path: Path, name: str) -> None:
    connection = connect(tmp_path / "queries.db", SqlTimings())
    migrate(connection)
    statement = queries("sqlite")[name]
    assert statement.startswith("-- ")
    parameters = [None] * statement.count("?") or _any_parameters(statement)
    plan = connection.execute(f"EXPLAIN {statement.replace(chr(58) + 'limit', '1')}", parameters)
    assert plan.fetchone() is not None


def _any_parameters(statement: str) -> dict[str, object]:
    names = {word.strip("(),;") for line in statement.splitlines() for word in line.replace("(", " ").split()}
    return {name[1:]: "[]" for name in names if name.startswith(":")}


def test_the_hot_queries_use_their_indexes(tmp_path: Path) -> None:
    connection = connect(tmp_path / "plans.db", SqlTimings())
    migrate(connection)
    for name in ("messages", "pointers", "members", "audience", "own_seqs", "breakdown", "ledger_entries", "timeline"):
        statement = queries("sqlite")[name]
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", _any_parameters(statement))
        steps = [row[3] for row in plan]
        tables = ("messages", "members", "read_receipts", "channels")
        assert not [step for step in steps if step.startswith("SCAN") and step.split()[1] in tables], (name, steps)
