"""The durable store on any SQL database (see `session`). Rules are not here: see `domain/folding`."""

from secrets import token_bytes

from readstate.domain.model import Generation
from readstate.timings import SqlTimings

from .applying import SqlLog
from .erasing import SqlErase
from .export import SqlExport
from .importing import SqlImport
from .queries import SqlQueries
from .reads import SqlReads
from .session import Database, Session
from .upkeep import SqlDeadLetters, SqlUpkeep
from .users import SqlUsers

CURSOR_KEY = "cursors"


class SqlTransfer(SqlExport, SqlImport, SqlErase):
    """Export, import and erasure."""


class SqlStore(SqlLog, SqlQueries, SqlReads, SqlUsers, SqlDeadLetters, SqlUpkeep):
    """Every topic of the durable store over one database."""

    def __init__(self, database: Database, fanout_max_members: int, timings: SqlTimings) -> None:
        super().__init__(database, fanout_max_members, timings)
        self.transfer = SqlTransfer(database, fanout_max_members, timings)

    async def close(self) -> None:
        await self._database.close()

    async def ping(self) -> None:
        await self._database.write(lambda session: session.value("touch"))

    async def store_id(self) -> int:
        return await self._number("store_id")

    async def cursor_key(self) -> bytes:
        known: bytes | None = await self._database.value("secret", secret=CURSOR_KEY)
        return await self._database.write(_make_cursor_key) if known is None else known

    async def next_generation(self, above: int = 0) -> Generation:
        return Generation(await self._database.write(lambda session: session.value("next_generation", above=above)))


async def _make_cursor_key(session: Session) -> bytes:
    await session.run("make_secret", secret=CURSOR_KEY, bytes=token_bytes())
    key: bytes = await session.value("secret", secret=CURSOR_KEY)  # another process may have been first
    return key
