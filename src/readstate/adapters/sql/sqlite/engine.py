"""SQLite off the event loop: one thread writes and commits in groups, two threads read.

Writes that wait during a commit share the next one, so concurrent requests share an fsync. A read sees every write
requested before it. Statements take and return many rows (see queries.sql): with a busy event loop, one statement per
row reached 7,000 rows/s, because each row had to reacquire the interpreter's lock; one statement for all rows reached
139,000 rows/s.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import structlog
from msgspec import Struct

from readstate.adapters.sql.files import check_version, migrations, schema
from readstate.domain.errors import StorageUnavailable
from readstate.telemetry import STORAGE_ERRORS
from readstate.timings import SqlTimings

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

MAX_GROUP = 256
_POISON = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError)
_REASONS = {
    sqlite3.SQLITE_CORRUPT: "its file is damaged",
    sqlite3.SQLITE_NOTADB: "its file is damaged",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk has failed or is full",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_BUSY: "it is locked",
    sqlite3.SQLITE_LOCKED: "it is locked",
    sqlite3.SQLITE_CANTOPEN: "its file cannot be opened",
    sqlite3.SQLITE_PERM: "its file cannot be opened",
    sqlite3.SQLITE_NOMEM: "there is not enough memory",
}

log = structlog.get_logger()


class _Job(Struct):
    work: Callable[[sqlite3.Connection], Any]
    done: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


class _Reader(threading.local):
    connection: sqlite3.Connection | None = None


class SqliteEngine:
    def __init__(self, path: Path, timings: SqlTimings) -> None:
        self._path = path
        self._timings = timings
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._last_write: asyncio.Future[Any] | None = None
        self._writer = connect(path, timings)
        self._broken = False
        self._closed = False
        self._thread = threading.Thread(target=self._write_forever, name="readstate-writer", daemon=True)
        self._readers = ThreadPoolExecutor(2, "readstate-reader")
        self._local = _Reader()
        self._reader_connections: list[sqlite3.Connection] = []
        self._thread.start()

    async def write(self, work: Work[T]) -> T:
        """Run in the next group and return when it is committed. `work` may run twice, the first time rolled back."""
        self._check_open()
        done = self._loop.create_future()
        self._last_write = done
        self._jobs.put(_Job(work, done))
        result: T = await done
        return result

    async def read(self, work: Work[T]) -> T:
        """Run on a snapshot that holds every write requested before."""
        if self._last_write is not None and not self._last_write.done():
            await asyncio.wait([self._last_write])
        self._check_open()
        return await self._loop.run_in_executor(self._readers, self._run_read, work)

    async def checkpoint(self) -> None:
        """Copy the write-ahead log into the file: the next write starts the log over and needs no further space."""
        await asyncio.to_thread(self._checkpoint)

    def _checkpoint(self) -> None:
        """On a connection of its own: that of the writing thread may be in a transaction."""
        with contextlib.suppress(sqlite3.Error), contextlib.closing(connect(self._path, self._timings)) as connection:
            connection.execute("PRAGMA wal_checkpoint(RESTART)")

    def _check_open(self) -> None:
        if self._closed:
            raise StorageUnavailable("the store is closed; nothing was changed")

    async def close(self) -> None:
        """Finish the work requested so far, then stop. Later reads and writes raise StorageUnavailable."""
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._readers.shutdown)
        for connection in self._reader_connections:
            connection.close()
        self._writer.close()

    # ------------------------------------------------------------ in the threads

    def _write_forever(self) -> None:
        while group := self._next_group():
            self._commit(group)
            self._loop.call_soon_threadsafe(_settle, group)

    def _next_group(self) -> list[_Job]:
        """Wait for a job, and take those that wait behind it. Empty: the engine is closed."""
        group: list[_Job] = []
        while not group or (len(group) < MAX_GROUP and not self._jobs.empty()):
            job = self._jobs.get()
            if job is None:
                self._jobs.put(None)  # for the next call
                break
            group.append(job)
        return group

    def _commit(self, group: list[_Job]) -> None:
        """Commit all jobs in one transaction; if a job, not the disk, is at fault, each in its own."""
        try:
            if self._broken:
                self._writer = connect(self._path, self._timings)
                self._broken = False
            self._writer.execute("BEGIN IMMEDIATE")
            for job in group:
                job.result = job.work(self._writer)
            self._writer.execute("COMMIT")
        except Exception as error:
            self._rollback()
            if isinstance(error, sqlite3.Error) and not isinstance(error, _POISON):
                refused = unavailable("written", error)
                for job in group:
                    job.error = refused
            elif len(group) == 1:
                group[0].error = error
            else:
                for job in group:
                    self._commit([job])

    def _rollback(self) -> None:
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except sqlite3.Error:
            broken = self._writer
            try:
                self._writer = connect(self._path, self._timings)  # first: closing the last connection removes the log
            except sqlite3.Error:
                self._broken = True
            broken.close()

    def _run_read(self, work: Work[T]) -> T:
        try:
            connection = self._reader()
            connection.execute("BEGIN")
            try:
                return work(connection)
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            self._drop_reader()
            raise unavailable("read", error) from error

    def _reader(self) -> sqlite3.Connection:
        known = self._local.connection
        if known is None:
            known = self._local.connection = connect(self._path, self._timings, read_only=True)
            self._reader_connections.append(known)
        return known

    def _drop_reader(self) -> None:
        """After an error the state of a connection is unknown: the next read opens a new one."""
        if (known := self._local.connection) is not None:
            self._local.connection = None
            self._reader_connections.remove(known)
            known.close()


def _settle(group: list[_Job]) -> None:
    for job in group:
        if job.done.done():
            continue
        if job.error is not None:
            job.done.set_exception(job.error)
        else:
            job.done.set_result(job.result)


def unavailable(what: str, error: sqlite3.Error) -> StorageUnavailable:
    """The error for callers. SQLite's own text may contain SQL or a path and goes to the log only."""
    STORAGE_ERRORS.inc()
    log.warning("storage unavailable", action=what, error=f"{type(error).__name__}: {error}")
    return StorageUnavailable(f"the database cannot be {what}: {reason_of(error)}; nothing was changed")


def reason_of(error: sqlite3.Error) -> str:
    """Why the database fails, without SQL or paths."""
    return _REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "it has failed")


def connect(path: Path, timings: SqlTimings, read_only: bool = False) -> sqlite3.Connection:
    """A connection whose commits survive a power failure."""
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=timings.busy, cached_statements=256
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cell_size_check = 1")  # detects more kinds of damage
    if read_only:
        # With the small cache that SQLite has by default: each commit of the writer empties it, and to fill a large one
        # took a third of the time of a first page.
        connection.execute("PRAGMA query_only = 1")
    else:
        connection.execute("PRAGMA cache_size = -65536")
    return connection


def execute_rows(db: sqlite3.Connection, statements: Mapping[int, str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Run `files.for_rows` statements over rows, the largest size first."""
    start = 0
    for size, statement in statements.items():
        while len(rows) - start >= size:
            db.execute(statement, tuple(chain.from_iterable(rows[start : start + size])))
            start += size


def schema_version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def migrations_missing(connection: sqlite3.Connection) -> tuple[int, int]:
    return check_version(schema_version(connection), max(migrations("sqlite")))


def migrate(connection: sqlite3.Connection) -> tuple[int, int]:
    """Apply missing migrations, each in its own transaction; returns (from, to). A new file gets the schema whole."""
    before, newest = migrations_missing(connection)
    missing = {newest: schema("sqlite")} if before == 0 else migrations("sqlite")
    for number, script in missing.items():
        if number > before:
            connection.executescript(f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;")
    return before, newest
