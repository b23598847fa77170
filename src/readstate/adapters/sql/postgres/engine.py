"""PostgreSQL over a pool of connections, directly or behind a pooler such as PgBouncer in transaction mode.

Behind a pooler, two statements reach the same session only within one transaction. So everything runs in a transaction
there, even a single read; nothing stays prepared, and settings last for one transaction. Without a pooler, statements
stay prepared: with 16 partitions, planning them takes up to ten times as long as running them.

A write that lost its connection before its commit left nothing behind and is retried. A write that lost it during the
commit may have been applied; the error says so, and a retry is safe, as for every write of the store. A read sees every
write requested before it.
"""

import asyncio
import contextlib
import random
import re
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg  # type: ignore[import-untyped]
import msgspec
import structlog

from readstate.adapters.sql.files import numbered, queries
from readstate.adapters.sql.session import Work, as_json
from readstate.domain.errors import ConfigurationError, Invalid, StorageUnavailable
from readstate.domain.facts import Key
from readstate.telemetry import STORAGE_ERRORS

from .migrations import Connection, migrate

T = TypeVar("T")

SQL = {
    name: numbered(text)
    for file in ("queries.sql", "transfer.sql", "upkeep.sql", "lease.sql")
    for name, text in queries("postgres", file).items()
}
NEW_CHANNELS = 0x6368616E
"""The advisory lock space for channels that don't exist yet."""
CONNECT_SECONDS = 5
ANSWER_SECONDS = 5
"""A statement that the server does not stop at its own timeout is given up this much later."""
WAIT_SECONDS = 10
"""The longest wait for a free connection."""
IDLE_SECONDS = 10
"""A process that stops in the middle of a transaction loses its locks after this."""
SNAPSHOT_IDLE_SECONDS = 120
MAX_REST_SECONDS = 1.0
_PAUSES = (0.005, 0.02, 0.05, 0.1, 0.2)
"""The longest pause before each retry, in seconds."""

_WRONG = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.UndefinedObjectError,
    asyncpg.CantChangeRuntimeParamError,
    asyncpg.ClientConfigurationError,
    ssl.SSLCertVerificationError,
    ValueError,
)
"""Errors of a URL that cannot work."""
_LOST = (
    ConnectionError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the session ended during a statement
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
_IN_THE_WAY = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.UniqueViolationError,
    asyncpg.InvalidCachedStatementError,
)
"""A concurrent transaction or migration interfered; a retry sees its result."""
_DOWN = (
    *_LOST,
    OSError,
    asyncpg.TransactionRollbackError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.InvalidTransactionStateError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.PostgresSystemError,
    asyncpg.InternalServerError,
    asyncpg.SyntaxOrAccessError,  # a table or a privilege is gone
)
_TAKEN_OVER = "another process has taken it over"
_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (asyncpg.DiskFullError, "its disk is full"),
    (asyncpg.TooManyConnectionsError, "it has no connection left"),
    (asyncpg.InsufficientResourcesError, "it lacks memory or disk"),
    (asyncpg.ReadOnlySQLTransactionError, "it is read-only"),
    (asyncpg.QueryCanceledError, "a statement took too long"),
    (asyncpg.OperatorInterventionError, "it is stopping or starting"),
    (asyncpg.TransactionRollbackError, "others are in the way"),
    (asyncpg.InternalServerError, "its files are damaged"),
    (asyncpg.PostgresSystemError, "its disk has failed"),
    (asyncpg.SyntaxOrAccessError, "a table or a right is missing"),
    (asyncpg.InvalidAuthorizationSpecificationError, "it does not let this service in"),
    (asyncpg.InvalidCatalogNameError, "it is not there"),
    (TimeoutError, "it does not answer in time"),
    (OSError, "there is no connection"),
    (asyncpg.PostgresConnectionError, "there is no connection"),
    (asyncpg.InterfaceError, "there is no connection"),
)
"""Reasons for callers. The error's own text may contain SQL, paths or addresses and goes to the log only."""
_NOT_TEXT = (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)

_NUL_IN_JSON = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_names = msgspec.json.Decoder(list[str])
log = structlog.get_logger()


class PostgresEngine:
    def __init__(self, pool: asyncpg.Pool, pooled: bool, statement_seconds: float) -> None:
        self._pool = pool
        self._pooled = pooled
        self._rest = _Rest()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._cleaning: set[asyncio.Task[None]] = set()
        self._last: dict[str, asyncio.Task[Any]] = {}
        usual = settings(statement_seconds, IDLE_SECONDS) if pooled else {}
        self._read = begin("REPEATABLE READ READ ONLY", usual)
        self._write = self._aside = begin("READ COMMITTED READ WRITE", usual)
        self._snapshot = begin("REPEATABLE READ READ ONLY", settings(statement_seconds, SNAPSHOT_IDLE_SECONDS))

    @classmethod
    async def open(cls, url: str, max_connections: int, statement_seconds: float) -> "PostgresEngine":
        """Connect and migrate the schema."""
        pool, pooled = await connect(url, max_connections, statement_seconds)
        try:
            with explained():
                async with pool.acquire() as connection:
                    await migrate(connection)
        except BaseException:
            pool.terminate()
            raise
        return cls(pool, pooled, statement_seconds)

    async def value(self, name: str, **values: object) -> Any:
        await self._wait_for(self._under_way)
        return await self._transact(self._read if self._pooled else None, lambda one: one.value(name, **values))

    async def read(self, work: Work[T]) -> T:
        await self._wait_for(self._under_way)
        return await self._transact(self._read, work)

    async def write(self, work: Work[T], order: str | None = None) -> T:
        """The write goes on even if its caller is cancelled."""
        before = None if order is None else self._last.get(order)
        task = asyncio.create_task(self._write_after(before, work))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        task.add_done_callback(_look_at)
        if order is not None:
            self._last[order] = task
            task.add_done_callback(lambda done: self._last.pop(order) if self._last.get(order) is done else None)
        return await asyncio.shield(task)

    def fence(self, condition: str) -> None:
        """From now on every write first runs this statement in its transaction, and fails if the statement fails."""
        self._write = f"{self._aside}; {condition}"

    async def write_aside(self, work: Work[T]) -> T:
        """A write that bypasses the fence and waits for no other write."""
        return await self._transact(self._aside, work)

    async def settle(self) -> None:
        """Return when every write requested before has ended."""
        await self._wait_for(self._under_way)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator["PostgresSnapshot"]:
        """The snapshot occupies a connection of its own."""
        await self._wait_for(self._under_way)
        async with self._connection() as connection:
            try:
                await connection.execute(self._snapshot)
            except _DOWN as error:
                raise _unavailable("read", error) from error
            yield PostgresSnapshot(connection)

    async def close(self) -> None:
        await self._wait_for(self._under_way)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._pool.close()
        except (*_DOWN, TimeoutError):
            self._pool.terminate()

    # ------------------------------------------------------------ transactions

    async def _write_after(self, before: asyncio.Task[Any] | None, work: Work[T]) -> T:
        if before is not None:
            await self._wait_for([before])
        return await self._transact(self._write, work)

    @staticmethod
    async def _wait_for(tasks: Iterable[asyncio.Task[Any]]) -> None:
        if waiting := list(tasks):
            await asyncio.wait(waiting)

    async def _transact(self, begin: str | None, work: Work[T]) -> T:
        for pause in (*_PAUSES, None):
            try:
                return await self._try(begin, work)
            except (*_DOWN, *_IN_THE_WAY) as error:
                if isinstance(error, ValueError):  # PostgreSQL refuses the value; the connection is not lost
                    raise
                if pause is not None and isinstance(error, (*_LOST, *_IN_THE_WAY)):
                    log.info("transaction repeated", action="transaction", error=str(error))
                    await asyncio.sleep(random.uniform(0, pause))
                elif isinstance(error, asyncpg.UniqueViolationError):
                    raise
                else:
                    raise _unavailable("used", error) from error
        raise AssertionError("the last try ends in a result or an error")

    async def _try(self, begin: str | None, work: Work[T]) -> T:
        async with self._connection() as connection:
            if begin is not None:
                await connection.execute(begin)
            try:
                result = await work(PostgresSession(connection, reads=begin in {None, self._read}))
            except _NOT_TEXT as error:
                raise Invalid("a text holds a character that cannot be stored, such as NUL") from error
            if begin is not None:
                await self._commit(connection)
            return result

    @staticmethod
    async def _commit(connection: Connection) -> None:
        try:
            await connection.execute("COMMIT")
        except _DOWN as error:
            STORAGE_ERRORS.inc()
            log.warning("storage unavailable", action="commit", error=str(error))
            lost = StorageUnavailable(
                f"the database was lost during a commit ({reason_of(error)}): "
                "it may have been done, and is safe to repeat",
                reason=str(error),
            )
            lost.uncertain = True
            raise lost from error

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        self._rest.check()
        try:
            connection = await self._pool.acquire(timeout=WAIT_SECONDS)
        except _DOWN as error:
            if not isinstance(error, TimeoutError):
                self._rest.longer()
            raise _unavailable("reached", error) from error
        self._rest.over()
        done = False
        try:
            yield connection
            done = True
        finally:
            await self._give_back(connection, done)

    async def _give_back(self, connection: Connection, done: bool) -> None:
        """A lost connection is back in the pool already; that does not fail a transaction that is done."""
        with contextlib.suppress(*_DOWN):
            if done and not connection.is_in_transaction():
                await self._pool.release(connection, timeout=CONNECT_SECONDS)
                return
        task = asyncio.create_task(self._clean_up(connection))
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)
        await asyncio.shield(task)

    async def _clean_up(self, connection: Connection) -> None:
        """Roll back; if that fails, cut the connection."""
        with contextlib.suppress(*_DOWN):
            try:
                await connection.execute("ROLLBACK", timeout=CONNECT_SECONDS)
            except _DOWN:
                connection.terminate()
            await self._pool.release(connection, timeout=CONNECT_SECONDS)


class PostgresSession:
    """A transaction on one connection. A read-only one treats an id that PostgreSQL cannot store as not found."""

    def __init__(self, connection: Connection, reads: bool) -> None:
        self._connection = connection
        self._reads = reads

    async def value(self, name: str, **values: object) -> Any:
        statement, names = SQL[name]
        return await self._connection.fetchval(statement, *self._bound(names, values))

    async def row(self, name: str, **values: object) -> Sequence[Any] | None:
        statement, names = SQL[name]
        row = await self._connection.fetchrow(statement, *self._bound(names, values))
        return None if row is None else tuple(row)

    async def run(self, name: str, **values: object) -> int:
        statement, names = SQL[name]
        status: str = await self._connection.execute(statement, *self._bound(names, values))
        return int(status.rpartition(" ")[2])

    async def put(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Passes each column as an array."""
        if rows:
            await self._connection.execute(SQL[name][0], *zip(*rows, strict=True))

    async def lock(self, channels: Iterable[str], user_rooms: Iterable[Key] = ()) -> None:
        """Locks channels, then members, then pointers, each in sorted order, so that two calls cannot deadlock."""
        ids = sorted(channels)
        there = set(_names.decode(await self.value("lock_channels", ids=ids)))
        if missing := [id_ for id_ in ids if id_ not in there]:
            await self.value("lock_new_channels", ids=missing, space=NEW_CHANNELS)
            await self.value("lock_channels", ids=missing)
        if keys := sorted(user_rooms):
            await self.value("lock_members", keys=as_json(keys))
            await self.value("lock_pointers", keys=as_json(keys))

    def _bound(self, names: Iterable[str], values: Mapping[str, object]) -> list[object]:
        if self._reads:
            return [_findable(name, values[name]) for name in names]
        return [values[name] for name in names]


class PostgresSnapshot:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._abandoned = False

    async def rows(self, name: str, **values: object) -> Sequence[Sequence[Any]]:
        statement, names = SQL[name]
        try:
            found = await self._connection.fetch(statement, *(values[name] for name in names))
        except _DOWN as error:
            if self._abandoned:
                raise StorageUnavailable("the export was not read for too long: begin again") from error
            raise _unavailable("read", error) from error
        return [tuple(row) for row in found]

    def abandon(self) -> None:
        """An open snapshot would keep vacuum from removing old rows."""
        self._abandoned = True
        self._connection.terminate()


def _findable(name: str, value: object) -> object:
    """PostgreSQL cannot store NUL: search for U+0001 instead, which is in no id either."""
    if not isinstance(value, str):
        return value
    if name == "keys":
        return _NUL_IN_JSON.sub(r"\1\\u0001", value) if "\\u0000" in value else value
    return value.replace("\0", "\x01")


class _Rest:
    """Backoff after a failed connect, from 50 ms up to MAX_REST_SECONDS. Meanwhile requests fail at once."""

    def __init__(self) -> None:
        self._until = 0.0
        self._seconds = 0.0

    def check(self) -> None:
        if self._seconds and time.monotonic() < self._until:
            raise StorageUnavailable("the database cannot be reached; nothing was changed")

    def longer(self) -> None:
        self._seconds = min(max(2 * self._seconds, 0.05), MAX_REST_SECONDS)
        self._until = time.monotonic() + self._seconds

    def over(self) -> None:
        self._seconds = 0.0


# ---------------------------------------------------------------- connections


async def connect(url: str, max_connections: int, statement_seconds: float) -> tuple[asyncpg.Pool, bool]:
    """A pool that connects on demand, and whether a pooler is at the other end.

    Password and TLS are in the URL (`?sslmode=verify-full&…`).
    """
    if max_connections < 2:
        raise ConfigurationError("the database needs at least 2 connections: an export keeps one for itself")
    with explained():
        pooled = await is_pooled(url)
        pool = await asyncpg.create_pool(
            url,
            min_size=0,  # connect on use, with our errors and our backoff
            max_size=max_connections,
            timeout=CONNECT_SECONDS,
            command_timeout=statement_seconds + ANSWER_SECONDS,
            statement_cache_size=0 if pooled else 2 * len(SQL),
            server_settings=None if pooled else settings(statement_seconds, IDLE_SECONDS),
            reset=_nothing,
        )
    return pool, pooled


async def is_pooled(url: str) -> bool:
    """Whether the backend that answers is another process than the one announced at connect."""
    connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS, statement_cache_size=0)
    try:
        async with connection.transaction():
            process = await connection.fetchval("SELECT pg_backend_pid()")
        return bool(process != connection.get_server_pid())
    finally:
        connection.terminate()


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn errors at the start into ConfigurationError (fix it) or StorageUnavailable (wait)."""
    try:
        yield
    except _WRONG as error:
        raise ConfigurationError(f"DATABASE_URL does not lead to a usable database: {error}") from error
    except asyncpg.SyntaxOrAccessError:
        raise  # a migration is wrong
    except _DOWN as error:
        raise _unavailable("reached", error, str(error)) from error


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


def _unavailable(what: str, error: BaseException, told: str = "") -> StorageUnavailable:
    """`told`: a reason that replaces the general one."""
    STORAGE_ERRORS.inc()
    log.warning("storage unavailable", action=what, error=str(error) or type(error).__name__)
    detail = f"the database cannot be {what} ({told or reason_of(error)}); nothing was changed"
    return StorageUnavailable(detail, reason=str(error) or type(error).__name__)


def reason_of(error: BaseException) -> str:
    """Why the database fails, without SQL, paths or addresses."""
    if _TAKEN_OVER in str(error):
        return _TAKEN_OVER
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "it has failed")


def _look_at(task: asyncio.Task[Any]) -> None:
    """Mark the error as retrieved: the caller may have been cancelled."""
    if not task.cancelled():
        task.exception()
