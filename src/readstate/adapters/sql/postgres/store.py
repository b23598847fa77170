"""The durable store in PostgreSQL."""

from readstate.adapters.sql.session import Session
from readstate.adapters.sql.store import SqlStore
from readstate.timings import SqlTimings

from .engine import PostgresEngine
from .errors import explained
from .migrations import migrate as apply_migrations
from .migrations import migrations_missing
from .pool import connect

MAX_CONNECTIONS = 10


class PostgresStore(SqlStore):
    """Every port of the durable store over one database, which many processes may share."""

    @classmethod
    async def open(
        cls,
        url: str,
        fanout_max_members: int,
        timings: SqlTimings,
        max_connections: int = MAX_CONNECTIONS,
        *,
        keeps_badge: bool = True,
    ) -> "PostgresStore":
        """Connect, creating and migrating tables as needed."""
        engine = await PostgresEngine.open(url, max_connections, timings)
        return cls(engine, fanout_max_members, timings, keeps_badge=keeps_badge)

    async def ping(self) -> None:
        """Also writes a temporary file: on a full disk an update may find room in its table, a new file does not."""

        async def work(session: Session) -> None:
            await session.value("touch")
            await session.value("little_memory")
            await session.value("spill")

        await self._database.write(work)


async def migrate(url: str, timings: SqlTimings, check_only: bool = False) -> tuple[int, int]:
    """Migrate the schema, or only report: (from, to)."""
    pool, _ = await connect(url, 2, timings)
    try:
        with explained():
            async with pool.acquire() as connection:
                return await (migrations_missing(connection) if check_only else apply_migrations(connection, timings))
    finally:
        pool.terminate()
