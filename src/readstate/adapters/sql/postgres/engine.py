"""PostgreSQL over a pool of connections, directly or behind a pooler such as PgBouncer in transaction mode.

Behind a pooler, two statements reach the same session only within one transaction. So everything runs in a transaction
there, even a single read; nothing stays prepared, and settings last for one transaction. Without a pooler, statements
stay prepared: with 16 partitions, planning them takes up to ten times as long as running them.

A write that lost its connection before its commit left nothing behind and is retried. A write that lost it during the
commit may have been applied; the error says so, and a retry is safe, as for every write of the store. A read sees every
write requested before it.

A write of one statement commits by itself: one round trip instead of three, each of which would wait for its turn of a
busy event loop.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg  # type: ignore[import-untyped]
import structlog

from readstate.adapters.sql.session import Work
from readstate.domain.errors import Invalid, StorageUnavailable
from readstate.tasks import retrieve_exception
from readstate.timings import SqlTimings

from .errors import CONFLICTS, DOWN, LOST, NOT_TEXT, explained, unavailable, uncertain
from .migrations import Connection, migrate
from .pool import begin, connect, settings
from .session import PostgresSession, PostgresSnapshot

T = TypeVar("T")

log = structlog.get_logger()


class PostgresEngine:
    def __init__(self, pool: asyncpg.Pool, pooled: bool, timings: SqlTimings) -> None:
        self._pool = pool
        self._pooled = pooled
        self._timings = timings
        self._backoff = _Backoff(timings.max_backoff)
        self._under_way: set[asyncio.Task[Any]] = set()
        self._cleaning: set[asyncio.Task[None]] = set()
        self._last: dict[str, asyncio.Task[Any]] = {}
        self._lease: int | None = None
        usual = settings(timings.statement, timings.idle_transaction) if pooled else {}
        self._read = begin("REPEATABLE READ READ ONLY", usual)
        self._write = self._aside = begin("READ COMMITTED READ WRITE", usual)
        self._snapshot = begin("REPEATABLE READ READ ONLY", settings(timings.statement, timings.idle_snapshot))

    @classmethod
    async def open(cls, url: str, max_connections: int, timings: SqlTimings) -> "PostgresEngine":
        """Connect and migrate the schema."""
        pool, pooled = await connect(url, max_connections, timings)
        try:
            with explained():
                async with pool.acquire() as connection:
                    await migrate(connection, timings)
        except BaseException:
            pool.terminate()
            raise
        return cls(pool, pooled, timings)

    async def value(self, name: str, **values: object) -> Any:
        await self.settle()
        return await self._transact(self._read if self._pooled else None, lambda one: one.value(name, **values))

    async def read(self, work: Work[T]) -> T:
        await self.settle()
        return await self._transact(self._read, work)

    async def write(self, work: Work[T], order: str | None = None, *, alone: bool = False) -> T:
        """The write goes on even if its caller is cancelled."""
        before = None if order is None else self._last.get(order)
        task = asyncio.create_task(self._write_after(before, work, alone and not self._pooled))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        task.add_done_callback(retrieve_exception)
        if order is not None:
            self._last[order] = task
            task.add_done_callback(lambda done: self._last.pop(order) if self._last.get(order) is done else None)
        return await asyncio.shield(task)

    def fence(self, lease: int) -> None:
        """From now on every write fails unless this number of the lease is the current one."""
        self._lease = lease
        self._write = f"{self._aside}; SELECT require_lease({lease:d})"

    async def write_aside(self, work: Work[T]) -> T:
        """A write that bypasses the fence and waits for no other write."""
        return await self._transact(self._aside, work)

    async def settle(self) -> None:
        """Return when every write requested before has ended."""
        if self._under_way:
            await asyncio.wait(list(self._under_way))

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator["PostgresSnapshot"]:
        """The snapshot occupies a connection of its own."""
        await self.settle()
        async with self._connection() as connection:
            try:
                await connection.execute(self._snapshot)
            except DOWN as error:
                raise unavailable("read", error) from error
            yield PostgresSnapshot(connection)

    async def close(self) -> None:
        await self.settle()
        try:
            async with asyncio.timeout(self._timings.connect):
                await self._pool.close()
        except (*DOWN, TimeoutError):
            self._pool.terminate()

    # ------------------------------------------------------------ transactions

    async def _write_after(self, before: asyncio.Task[Any] | None, work: Work[T], alone: bool) -> T:
        if before is not None:
            await asyncio.wait([before])
        return await self._transact(None if alone else self._write, work, alone)

    async def _transact(self, begin: str | None, work: Work[T], alone: bool = False) -> T:
        """`alone`: the work is a write that commits by itself, so a lost connection leaves its outcome open."""
        open_since: BaseException | None = None
        for pause in (*self._timings.retries, None):
            try:
                return await self._try(begin, work, alone)
            except StorageUnavailable as error:
                if open_since is not None:
                    raise uncertain(open_since) from error
                raise
            except (*DOWN, *CONFLICTS) as error:
                if isinstance(error, ValueError):  # PostgreSQL refuses the value; the connection is not lost
                    raise
                if alone and isinstance(error, (*LOST, OSError)):
                    open_since = error
                if pause is not None and isinstance(error, (*LOST, *CONFLICTS)):
                    log.info("a transaction is retried", action="transaction", error=str(error))
                    await asyncio.sleep(random.uniform(0, pause))
                elif isinstance(error, asyncpg.UniqueViolationError):
                    raise
                elif open_since is not None:
                    raise uncertain(open_since) from error
                else:
                    raise unavailable("used", error) from error
        raise AssertionError("the last try ends in a result or an error")

    async def _try(self, begin: str | None, work: Work[T], alone: bool) -> T:
        async with self._connection() as connection:
            if begin is not None:
                await connection.execute(begin)
            try:
                reads = not alone and begin in {None, self._read}
                result = await work(PostgresSession(connection, reads, self._lease if alone else None))
            except NOT_TEXT as error:
                raise Invalid("a text holds a character that cannot be stored, such as NUL") from error
            if begin is not None:
                await self._commit(connection)
            return result

    @staticmethod
    async def _commit(connection: Connection) -> None:
        try:
            await connection.execute("COMMIT")
        except DOWN as error:
            raise uncertain(error) from error

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        self._backoff.check()
        try:
            connection = await self._pool.acquire(timeout=self._timings.free_connection)
        except DOWN as error:
            if not isinstance(error, TimeoutError):
                self._backoff.longer()
            raise unavailable("reached", error) from error
        self._backoff.over()
        done = False
        try:
            yield connection
            done = True
        finally:
            await self._give_back(connection, done)

    async def _give_back(self, connection: Connection, done: bool) -> None:
        """A lost connection is back in the pool already; that does not fail a transaction that is done."""
        with contextlib.suppress(*DOWN):
            if done and not connection.is_in_transaction():
                await self._pool.release(connection, timeout=self._timings.connect)
                return
        task = asyncio.create_task(self._clean_up(connection))
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)
        await asyncio.shield(task)

    async def _clean_up(self, connection: Connection) -> None:
        """Roll back; if that fails, cut the connection."""
        with contextlib.suppress(*DOWN):
            try:
                await connection.execute("ROLLBACK", timeout=self._timings.connect)
            except DOWN:
                connection.terminate()
            await self._pool.release(connection, timeout=self._timings.connect)


class _Backoff:
    """After a failed connect requests fail at once, for 50 ms at first and for `max_seconds` at most."""

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self._until = 0.0
        self._seconds = 0.0

    def check(self) -> None:
        if self._seconds and time.monotonic() < self._until:
            raise StorageUnavailable("the database cannot be reached; nothing was changed")

    def longer(self) -> None:
        self._seconds = min(max(2 * self._seconds, 0.05), self._max_seconds)
        self._until = time.monotonic() + self._seconds

    def over(self) -> None:
        self._seconds = 0.0
