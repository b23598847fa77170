"""Export and import of everything as JSON Lines, and the erasure of a user."""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec
import structlog

from readstate.api import Erased, ImportReport, Refused
from readstate.domain.announcements import BadgeChanged, ChannelTouched, StateReplaced
from readstate.domain.errors import Invalid
from readstate.domain.rooms import is_thread
from readstate.domain.rules import check_user_id
from readstate.ports import Bus, Clock, DurableTransfer, Freshness
from readstate.transfer.lines import Checks, count_lines, lines_of, wrong_header
from readstate.transfer.records import VERSION, ErasedRows, Header, Numbered

from .acceptance import AcceptanceClock
from .hot_cleanup import HotCleanup
from .pending_writes import PendingWrites

log = structlog.get_logger()

MAX_LINES = 10_000
"""Lines taken per call; the answer says where to continue."""
MAX_FIRST_LINE = 10**15


@dataclass(eq=False, repr=False)
class Transfer:
    """Exports and imports run alongside live traffic. Imports and erases of one process run one at a time."""

    _durable: DurableTransfer
    _hot: HotCleanup
    _pending_writes: PendingWrites
    _bus: Bus
    _freshness: Freshness
    _clock: Clock
    _acceptance: AcceptanceClock
    _checks: Checks
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def export(self) -> AsyncGenerator[bytes, None]:
        """Everything as of one point in time, as JSON Lines, in chunks that end with a line.

        Waits until the durable store has every read acknowledged before the export. If that takes too long, it logs a
        warning and continues.
        """
        if not await self._freshness.passed():
            log.warning("the export may lack the newest reads: the database does not have them yet", action="export")
        encoder = msgspec.json.Encoder()
        yield encoder.encode_lines([Header(version=VERSION, exported_at=self._clock())])
        async with aclosing(self._durable.export()) as pages:
            async for page in pages:
                yield encoder.encode_lines(page)

    async def import_lines(self, data: bytes, first_line: int = 1, stop: bool = False) -> ImportReport:
        """Take lines of an export. `first_line`: the number of the first one in its file. Idempotent.

        The report names refused lines. `stop` ends at the first refusal, with everything before it taken.
        """
        if not 1 <= first_line <= MAX_FIRST_LINE:
            raise Invalid(f"lines are counted from 1 to {MAX_FIRST_LINE:,}", field="first_line")
        lines = list(lines_of(data, first_line, MAX_LINES))
        if first_line == 1:
            wrong = wrong_header(lines[0][1] if lines and lines[0][0] == 1 else b"")
            if wrong is not None:
                return ImportReport(0, [Refused(1, wrong)], 1)
            lines = lines[1:]
        end = first_line + min(count_lines(data), MAX_LINES)
        checked = [self._checks.read(number, line) for number, line in lines]
        broken = [one for one in checked if isinstance(one, Refused)]
        if stop and broken:
            checked = checked[: checked.index(broken[0])]
            broken, end = broken[:1], broken[0].line
        records = [one for one in checked if isinstance(one, Numbered)]
        return await self._take(records, broken, end, stop)

    async def _take(self, records: list[Numbered], broken: list[Refused], end: int, stop: bool) -> ImportReport:
        async with self._turn:
            taken = await self._durable.take(records, stop)
            await self._hot.drop_imported(taken.rooms, taken.users)
        await self._bus.publish([StateReplaced(tuple(taken.users), "imported")])
        if stop and taken.refused:
            first = taken.refused[0].line
            return ImportReport(sum(one.line < first for one in records), taken.refused, first)
        refused = sorted(taken.refused + broken, key=lambda one: one.line)
        return ImportReport(len(records) - len(taken.refused), refused, end)

    async def erase_user(self, user: str) -> Erased:
        """Remove all read state of a user. The user's messages belong to their channels and stay.

        Erases twice, because a read or message in flight could leave something behind the first time. After that the
        user's reads are refused, so only what the log has by then can still reach the durable store.
        """
        check_user_id(user, "user")
        async with self._turn:
            await self._hot.drop_devices(user)
            first = await self._erase(user)
            await self._pending_writes.settled(user)
            await self._hot.pass_log("any channel will do")
            if not await self._freshness.stored_soon():
                log.warning("reads of an erased user may still be in the log", action="erase")
            await self._erase(user, first.receivers)  # a message in flight may just have reached a badge
        await self._bus.publish([StateReplaced((user,), "erased")])
        return first.erased

    async def _erase(self, user: str, receivers: Collection[str] = ()) -> ErasedRows:
        """`receivers`: whose badges counted the user before, beside those found now."""
        gone = await self._durable.erase(user, self._acceptance.cut())
        await self._hot.drop_erased(user, gone.rooms, {*gone.receivers, *receivers})
        touched = [ChannelTouched(room, "conversation") for room in gone.rooms if not is_thread(room)]
        await self._bus.publish([*touched, *map(BadgeChanged, gone.receivers)])
        return gone
