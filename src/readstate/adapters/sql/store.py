"""The durable store on any SQL database (see `session`). Rules are not here: see `domain/folding`."""

from collections.abc import Sequence
from secrets import token_bytes

from msgspec.json import Decoder

from readstate.domain.model import Generation
from readstate.domain.slots import LostRange, SlotRange, renewed
from readstate.timings import SqlTimings

from .applying import SqlLog
from .erasing import SqlErase
from .export import SqlExport
from .importing import SqlImport
from .queries import SqlQueries
from .reads import SqlReads
from .session import Database, Session, write_rows
from .upkeep import SqlDeadLetters, SqlUpkeep
from .users import SqlUsers

CURSOR_KEY = "cursors"

_ranges = Decoder(list[SlotRange])


class SqlTransfer(SqlExport, SqlImport, SqlErase):
    """Export, import and erasure."""


class SqlStore(SqlLog, SqlQueries, SqlReads, SqlUsers, SqlDeadLetters, SqlUpkeep):
    """Every topic of the durable store over one database."""

    def __init__(
        self, database: Database, fanout_max_members: int, timings: SqlTimings, *, keeps_badge: bool = True
    ) -> None:
        super().__init__(database, fanout_max_members, timings)
        self.keeps_badge = keeps_badge
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

    async def next_generation(self) -> Generation:
        return Generation(await self._database.write(lambda session: session.value("next_generation", above=0)))

    async def slots(self) -> list[SlotRange]:
        """As a write: a read waits for earlier writes, and in SQLite `apply` asks who is online, which may wait."""
        return _ranges.decode(await self._database.write(lambda session: session.value("slots")))

    async def renew_slots(
        self, seen: Sequence[SlotRange], lost: Sequence[LostRange], above: int, now: int, every: int
    ) -> list[SlotRange] | None:
        async def work(session: Session) -> list[SlotRange] | None:
            await session.value("hold_slots")
            known = _ranges.decode(await session.value("slots"))
            turn = {"turn": "turn:generation", "now": now, "over": now - every}
            if known != list(seen) or await session.value("claim_turn", **turn) is None:
                return None
            number = Generation(await session.value("next_generation", above=above))
            after = renewed(known, lost, number)
            await session.run("drop_slots")
            await write_rows(session, "put_slots", after)
            return after

        return await self._database.write(work)

    async def fresh(self) -> Generation:
        return Generation(await self._number("fresh"))

    async def note_fresh(self, number: Generation) -> None:
        await self._run("note_fresh", number=number)


async def _make_cursor_key(session: Session) -> bytes:
    await session.run("make_secret", secret=CURSOR_KEY, bytes=token_bytes())
    key: bytes = await session.value("secret", secret=CURSOR_KEY)  # another process may have been first
    return key
