"""The SQLite file as a whole: creation, checks, the in-use mark, backup and restore.

Committed changes are in the write-ahead log beside the file (`-wal`) before they are in the file. A file without its
log opens without an error and lacks the newest changes. So the file itself says whether a process has it open: if so,
the log must exist. The mark is in the table `meta`, so that a copy of the file alone carries it too.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from readstate.adapters.sql.files import migrations
from readstate.domain.errors import ConfigurationError, StorageUnavailable
from readstate.timings import SqlTimings

from .engine import connect, migrate, migrations_missing, reason_of, schema_version

CHECKED_BYTES = 128 * 2**20
"""Larger files are not checked page by page at the start; `readstate doctor` does it."""
COPIED_PAGES = 1_000
"""Pages copied between two calls of `progress`."""
GENERATIONS = 1_000
"""A store that continues from an earlier state skips the generations that it may have used since."""
TABLES = frozenset({"meta", "channels", "members", "messages", "read_receipts"})
GO_ON = "To go on without it, start once with --accept-data-loss (READSTATE_ACCEPT_DATA_LOSS=true)"

Progress = Callable[[int, int], None]
"""Takes (pages done, pages in total)."""

log = structlog.get_logger()


# ---------------------------------------------------------------- opening


@contextlib.contextmanager
def opened(path: Path, timings: SqlTimings, accept_data_loss: bool = False) -> Iterator[sqlite3.Connection]:
    """Create, check, migrate and mark the store's file as in use. Only for the process that holds its lock."""
    with explained(path):
        lost = _find_losses(path, accept_data_loss)
        if not path.exists():
            _make(path)
        connection = connect(path, timings)
        connection.execute("PRAGMA synchronous = NORMAL")  # synced once, by the checkpoint
        try:
            migrate(connection)
            check = not accept_data_loss and path.stat().st_size <= CHECKED_BYTES
            if check and (damage := _damage(connection)):
                raise StorageUnavailable(
                    f"the store {path} is damaged ({damage}). Move it away and put a backup in its place (readstate "
                    f"restore). To go on with what can be read, {GO_ON.partition(', ')[2]}"
                )
            if lost:
                renew_identity(connection)
            mark(connection, in_use=True)
            connection.execute("PRAGMA wal_checkpoint(FULL)")  # writes the mark into the file itself
            yield connection
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                mark(connection, in_use=False)  # closing the last connection removes the log
            raise
        finally:
            connection.close()


def mark(connection: sqlite3.Connection, *, in_use: bool) -> None:
    connection.execute(
        "INSERT INTO meta (key, value) VALUES ('open', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (int(in_use),),
    )


def is_marked(path: Path) -> bool:
    """Whether the file, without its log, says that a process has it open. Files of earlier versions have no mark."""
    with contextlib.closing(_frozen(path)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            return False
        row = connection.execute("SELECT value FROM meta WHERE key = 'open'").fetchone()
        return row is not None and bool(row[0])


def renew_identity(connection: sqlite3.Connection) -> None:
    """Make it another store: cursors that devices got in the lost state must not match the new one."""
    connection.execute("UPDATE meta SET value = abs(random()) WHERE key = 'store'")
    connection.execute("UPDATE meta SET value = value + ? WHERE key = 'generation'", (GENERATIONS,))


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite errors into one line for the operator."""
    try:
        yield
    except sqlite3.Error as error:
        raise StorageUnavailable(
            f"the store {path} cannot be opened: {reason_of(error)} ({error}). If it is damaged, move it away and put "
            "a backup in its place (readstate restore)"
        ) from error


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _find_losses(path: Path, accept: bool) -> bool:
    """Refuse a store of which a part is gone, unless `accept`; returns whether a part is gone."""
    missing = _missing(path)
    if missing is None:
        return False
    if not accept:
        raise StorageUnavailable(f"{missing}. Put a backup in its place (readstate restore). {GO_ON}")
    log.warning("a part of the store is gone; the service goes on without it", action="open", lost=missing)
    if not path.exists() or not path.stat().st_size:
        for one in (path, log_of(path), path.with_name(f"{path.name}-shm")):
            one.unlink(missing_ok=True)
    return True


def _missing(path: Path) -> str | None:
    has_log = _size(log_of(path)) > 0
    if not path.exists():
        return f"the store {path} is gone, and only its write-ahead log is there" if has_log else None
    if not _size(path):
        return f"the store {path} is empty (0 bytes)"
    if not has_log and is_marked(path):
        return (
            f"the write-ahead log of the store {path} is gone, and with it the newest changes: the last process did "
            "not end cleanly, or this is a copy of a file in use (also: another program has opened the file since)"
        )
    return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _make(path: Path) -> None:
    """Create the store whole or not at all, readable only by its owner."""
    with _unfinished(path) as fresh, contextlib.closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")  # synced once, when it is complete
        connection.execute("PRAGMA journal_mode = WAL")
        migrate(connection)


def _damage(connection: sqlite3.Connection, check: str = "quick_check") -> str | None:
    """What is damaged, in one line; None if nothing is."""
    (found,) = connection.execute(f"PRAGMA {check}(1)").fetchone()
    return None if found == "ok" else " ".join(found.split())


# ---------------------------------------------------------------- copies


def back_up(path: Path, target: Path, progress: Progress) -> int:
    """Copy a store as of now into a plain file, even while a service writes to it; returns its size in bytes.

    The copy reads from one snapshot: later commits are not in it and do not restart it.
    """
    with explained(path):
        if (missing := _missing(path)) is not None:
            raise StorageUnavailable(f"{missing}: a backup would lack it too")
        with contextlib.closing(_reading(path)) as source:
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM meta").fetchone()
            with _unfinished(target) as copy:
                _copy(source, copy, progress)
    return target.stat().st_size


def restore(backup: Path, path: Path, progress: Progress) -> int:
    """Create a store from a backup; returns its size in bytes. Cursors from before are no longer valid."""
    with explained(backup):
        check_backup(backup)
        with contextlib.closing(_frozen(backup)) as source, _unfinished(path) as copy:
            _copy(source, copy, progress)
            with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as connection:
                renew_identity(connection)
    return path.stat().st_size


def check_backup(path: Path) -> None:
    """Raise unless the file is a whole store of this version or an earlier one."""
    if not _size(path):
        raise ConfigurationError(f"{path} is {'empty' if path.exists() else 'not there'}: it is no backup")
    with contextlib.closing(_frozen(path)) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not schema_version(connection) or not names >= TABLES:
            raise ConfigurationError(f"{path} is no store of Readstate")
        migrations_missing(connection)  # raises for a newer version
        if damage := _damage(connection, "integrity_check"):
            raise StorageUnavailable(f"{path} is damaged: {damage}")
    if is_marked(path):
        raise ConfigurationError(
            f"{path} is a copy of the file of a running service, without what its write-ahead log held: it is no "
            "backup. Make one with readstate backup"
        )


def _copy(source: sqlite3.Connection, target: Path, progress: Progress) -> None:
    with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
        copy.execute("PRAGMA synchronous = OFF")  # synced once, when it is complete
        source.backup(copy, pages=COPIED_PAGES, progress=lambda _, left, total: progress(total - left, total))
    with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
        copy.execute("PRAGMA journal_mode = DELETE").fetchone()
        mark(copy, in_use=False)
        if damage := _damage(copy):
            raise StorageUnavailable(f"the store is damaged: {damage}")


@contextlib.contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """A temporary file that takes its final name when it is complete and synced, and is removed otherwise."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    beside = [part, *(part.with_name(f"{part.name}{end}") for end in ("-wal", "-shm", "-journal"))]
    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600))
        yield part
        _sync(part)
        part.replace(path)
        _sync(path.parent)
    finally:
        for one in beside:
            one.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reading(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, even as the last one to close: the log of a service stays."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=5)


def _frozen(path: Path) -> sqlite3.Connection:
    """The file alone, without its log. Leaves no files behind."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)


def missing_migrations(path: Path) -> tuple[int, int]:
    """(current, wanted) schema version, also of a store in use."""
    with contextlib.closing(_reading(path)) as connection:
        return migrations_missing(connection)


def migrated(path: Path, accept_data_loss: bool) -> tuple[int, int]:
    """Migrate a store that no process has open; returns (from, to)."""
    before = missing_migrations(path)[0] if path.exists() and _size(path) else 0
    with opened(path, SqlTimings(), accept_data_loss) as connection:
        mark(connection, in_use=False)
    return before, max(migrations("sqlite"))
