"""The durable store in one SQLite file."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from readstate.adapters.sql.files import for_rows, queries
from readstate.adapters.sql.session import Work
from readstate.adapters.sql.store import SqlStore
from readstate.domain.errors import StorageUnavailable
from readstate.domain.facts import Key
from readstate.timings import SqlTimings

from .engine import SqliteEngine, connect, execute_rows, unavailable
from .file import mark, opened

T = TypeVar("T")

SQL = queries("sqlite") | queries("sqlite", "transfer.sql") | queries("sqlite", "upkeep.sql")
_MANY = {
    "merge_receipts": for_rows(SQL["merge_receipts"], (500, 100, 20, 5, 1)),
    "merge_pointers": for_rows(SQL["merge_pointers"], (500, 100, 20, 5, 1)),
    "add_messages": for_rows(SQL["add_messages"], (500, 50, 5, 1)),
}
"""Variants of a statement by number of rows."""


class SqliteStore(SqlStore):
    """Every port of the durable store over one file."""

    @classmethod
    async def open(
        cls,
        path: Path,
        fanout_max_members: int,
        timings: SqlTimings,
        accept_data_loss: bool = False,
        *,
        keeps_badge: bool = True,
    ) -> "SqliteStore":
        """Open the file, creating and migrating it as needed. Raises StorageUnavailable if a part of it is gone."""
        with opened(path, timings, accept_data_loss):
            database = SqliteDatabase(path, timings)
        return cls(database, fanout_max_members, timings, keeps_badge=keeps_badge)


class SqliteDatabase:
    """Transactions over one file. Writes run one after another, in the order of their calls."""

    def __init__(self, path: Path, timings: SqlTimings) -> None:
        self._engine = SqliteEngine(path, timings)
        self._path = path
        self._timings = timings

    async def value(self, name: str, **values: object) -> Any:
        return await self.read(lambda session: session.value(name, **values))

    async def read(self, work: Work[T]) -> T:
        return await self._engine.read(lambda db: _at_once(work(SqliteSession(db))))

    async def write(self, work: Work[T], order: str | None = None, *, alone: bool = False) -> T:
        return await self._engine.write(lambda db: _at_once(work(SqliteSession(db))))

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator["SqliteSnapshot"]:
        """The snapshot has a connection of its own."""
        await self._engine.read(lambda db: None)
        snapshot = await asyncio.to_thread(SqliteSnapshot, self._path, self._timings)
        try:
            yield snapshot
        finally:
            snapshot.close()

    async def close(self) -> None:
        await self._mark_closed()
        await self._engine.close()

    async def _mark_closed(self) -> None:
        """On a full disk there may be room for the mark once a checkpoint lets the write-ahead log start over."""
        for _ in range(2):
            try:
                await self._engine.write(lambda db: mark(db, in_use=False))
            except StorageUnavailable:
                await self._engine.checkpoint()
            else:
                return


class SqliteSession:
    """A transaction of the thread that runs it. No method ever suspends."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    async def value(self, name: str, **values: object) -> Any:
        row = self._db.execute(SQL[name], values).fetchone()
        return None if row is None else row[0]

    async def row(self, name: str, **values: object) -> Sequence[Any] | None:
        row: tuple[Any, ...] | None = self._db.execute(SQL[name], values).fetchone()
        return row

    async def run(self, name: str, **values: object) -> int:
        return self._db.execute(SQL[name], values).rowcount

    async def put(self, name: str, columns: Sequence[Sequence[Any]]) -> None:
        execute_rows(self._db, _MANY[name], list(zip(*columns, strict=True)))

    async def lock(self, channels: Iterable[str], user_rooms: Iterable[Key] = ()) -> None:
        """A file has one writer: everything is locked already."""

    async def lock_taps(self, user: str | None = None) -> None:
        """As `lock`."""


class SqliteSnapshot:
    def __init__(self, path: Path, timings: SqlTimings) -> None:
        self._db = connect(path, timings, read_only=True)
        self._db.execute("PRAGMA cache_size = -4096")
        self._db.execute("BEGIN")
        self._db.execute(SQL["next_position"]).fetchone()

    async def rows(self, name: str, **values: object) -> Sequence[Sequence[Any]]:
        return await asyncio.to_thread(self._rows, name, values)

    def _rows(self, name: str, values: dict[str, object]) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(SQL[name], values).fetchall()
        except sqlite3.Error as error:
            raise unavailable("read", error) from error

    def close(self) -> None:
        self._db.close()


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends. It needs no event loop, and a thread has none."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("work in a SQLite transaction must not wait for anything else")
