"""The durable store in PostgreSQL."""

from readstate.adapters.sql.session import Session
from readstate.adapters.sql.store import SqlStore

from .engine import PostgresEngine, connect, explained
from .migrations import migrate as apply_migrations
from .migrations import migrations_missing

MAX_CONNECTIONS = 10
STATEMENT_SECONDS = 30.0


class PostgresStore(SqlStore):
    """Every port of the durable store over one database, which many processes may share."""

    @classmethod
    async def open(
        cls,
        url: str,
        fanout_max_members: int,
        max_connections: int = MAX_CONNECTIONS,
        statement_seconds: float = STATEMENT_SECONDS,
    ) -> "PostgresStore":
        """Connect, creating and migrating tables as needed."""
        return cls(await PostgresEngine.open(url, max_connections, statement_seconds), fanout_max_members)

    async def ping(self) -> None:
        """Also writes a temporary file: on a full disk an update may find room in its table, a new file does not."""

        async def work(session: Session) -> None:
            await session.value("touch")
            await session.value("little_memory")
            await session.value("spill")

        await self._database.write(work)


async def migrate(url: str, check_only: bool = False) -> tuple[int, int]:
    """Migrate the schema, or only report: (from, to)."""
    pool, _ = await connect(url, 2, STATEMENT_SECONDS)
    try:
        with explained():
            async with pool.acquire() as connection:
                return await (migrations_missing if check_only else apply_migrations)(connection)
    finally:
        pool.terminate()
