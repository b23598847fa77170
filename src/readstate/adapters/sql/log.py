"""Up to where logs are applied, and which spools hold reads that no log has yet."""

from collections.abc import Sequence

from readstate.domain.events import Delivery
from readstate.domain.facts import Effect
from readstate.domain.model import LogPosition
from readstate.ports import Online

from .applying import Applying, ends_of
from .session import Session, SqlTopic


class SqlLog(SqlTopic):
    async def apply(self, deliveries: Sequence[Delivery], online: Online, source: str = "") -> list[Effect]:
        async def work(session: Session) -> list[Effect]:
            applying = Applying(session, self._fanout_max_members, online)
            return await (applying.apply_shared(deliveries, source) if source else applying.apply(deliveries))

        return await self._database.write(work)

    async def places(self, source: str) -> dict[int, tuple[LogPosition, int]]:
        ends = ends_of(await self._database.value("log_places", source=source))
        return {part: (end.position, end.offset) for part, end in ends.items()}

    async def cut(self, source: str, part: int, end: int, known: tuple[LogPosition, int]) -> bool:
        position, offset = known
        return await self._run("cut_log_place", source=source, part=part, offset=end, base=position - offset) > 0

    async def last_position(self) -> LogPosition:
        return LogPosition(await self._number("last_position"))

    async def note_spool(self, name: str, until: int) -> None:
        await self._run("note_spool", spool=name, until=until)

    async def drop_spool(self, name: str) -> None:
        await self._run("drop_spool", spool=name)

    async def spools(self, now: int) -> int:
        return await self._number("spools", now=now)
