"""A store of a version that kept a row for each receiver of each message comes to keep one for each pair."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest

from readstate.adapters.sql.files import migrations
from readstate.adapters.sql.postgres.store import PostgresStore
from readstate.adapters.sql.sqlite.engine import connect
from readstate.adapters.sql.sqlite.store import SqliteStore
from readstate.adapters.sql.store import SqlStore
from readstate.ports import TapCursor
from readstate.timings import SqlTimings

from .postgres import database

BEFORE = {"sqlite": 6, "postgres": 7}
MESSAGES = [("c", f"m{n}", n, ("ann", "cy")[n % 2]) for n in range(1, 9)]
MISSED = [("bob", n, ("ann", "cy")[n % 2], "c", f"m{n}") for n in range(1, 9) if n != 6]
MISSED += [("dan", n, ("ann", "cy")[n % 2], "c", f"m{n}") for n in range(3, 5)]
FILL = [
    "INSERT INTO members (user_id, channel_id, active, joined_seq, joined_at, skipped) VALUES {members}",
    "INSERT INTO messages VALUES {messages}",
    "INSERT INTO undelivered VALUES {missed}",
    "INSERT INTO user_activity (user_id, last_tap) VALUES ('bob', 2)",
]


def filling(mentions: str, no: str, yes: str) -> list[str]:
    """The rows of the older version. bob has tapped at 2, dan never."""
    members = ", ".join(f"('{user}', 'c', {yes}, 0, 0, '[]')" for user in ("ann", "bob", "cy", "dan"))
    messages = ", ".join(
        f"('{channel}', '{id_}', {n}, '{sender}', {n}, NULL, 'text', NULL, NULL, NULL, {mentions}, {no}, {no}, {no},"
        f" {n}, {n})"
        for channel, id_, n, sender in MESSAGES
    )
    missed = ", ".join(str(row) for row in MISSED)
    return [statement.format(members=members, messages=messages, missed=missed) for statement in FILL]


async def in_a_file(path: Path) -> SqliteStore:
    with closing(connect(path, SqlTimings())) as old:
        for number in range(1, BEFORE["sqlite"] + 1):
            old.executescript(f"{migrations('sqlite')[number]}; PRAGMA user_version = {number}")
        for statement in filling("'[]'", "0", "1"):
            old.execute(statement)
    return await SqliteStore.open(path, 100, SqlTimings())


async def on_a_server(url: str) -> PostgresStore:
    old = await asyncpg.connect(url)
    await old.execute(
        "CREATE TABLE schema_migrations (number integer PRIMARY KEY, applied_at timestamptz DEFAULT now())"
    )
    for number in range(1, BEFORE["postgres"] + 1):
        await old.execute(migrations("postgres")[number])
        await old.execute(f"INSERT INTO schema_migrations (number) VALUES ({number})")
    for statement in filling("'{}'", "false", "true"):
        await old.execute(statement)
    await old.close()
    return await PostgresStore.open(url, 100, SqlTimings())


@pytest.fixture(params=["sqlite", "postgres"])
async def migrated(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    if request.param == "sqlite":
        store: SqlStore = await in_a_file(tmp_path / "old.db")
        yield store
        await store.close()
        with closing(sqlite3.connect(tmp_path / "old.db")) as db:
            assert db.execute("SELECT count(*) FROM undelivered").fetchone() == (4,)
    else:
        async with database(empty=True) as url:
            store = await on_a_server(url)
            yield store
            await store.close()
            connection = await asyncpg.connect(url)
            assert await connection.fetchval("SELECT count(*) FROM undelivered") == 4
            await connection.close()


async def test_old_rows_are_thinned_out_and_badges_and_taps_stay_as_they_were(migrated: SqlStore) -> None:
    assert [await migrated.badge_count(user) for user in ("ann", "bob", "dan")] == [0, 2, 2]
    page = await migrated.tapped("bob", 2, 100, TapCursor(100, 0, "", ""), 3)
    assert [message.id for _, message in page] == ["m8", "m7", "m5"]
    accepted_at, last = page[-1]
    rest = await migrated.tapped("bob", 2, 100, TapCursor(accepted_at, last.at, last.channel_id, last.id), 3)
    assert [message.id for _, message in rest] == ["m4", "m3"]
    tapped = await migrated.tap("dan", 100, 10)
    assert (tapped.senders, [message.id for _, message in tapped.messages]) == (2, ["m4", "m3"])
