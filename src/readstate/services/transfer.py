"""Export and import of everything as JSON Lines, and the erasure of a user."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

import msgspec
import structlog

from readstate.api import Erased, ImportReport, Refused
from readstate.domain.announcements import BadgeChanged, ChannelTouched, StateReplaced
from readstate.domain.errors import Invalid
from readstate.domain.events import MembersEvent
from readstate.domain.hot_updates import ChannelHotUpdate, FanOut
from readstate.domain.model import Channel
from readstate.domain.rooms import channel_and_thread, is_thread
from readstate.domain.rules import check_user_id
from readstate.ports import Bus, Clock, DurableTransfer, Freshness, Hot, Log
from readstate.transfer.lines import Checks, count_lines, lines_of, wrong_header
from readstate.transfer.records import VERSION, ErasedRows, Header, Numbered

from .acceptance import Acceptance
from .pending_writes import PendingWrites
from .positions import Positions

log = structlog.get_logger()

MAX_LINES = 10_000
"""Lines taken per call; the answer says where to continue."""
MAX_FIRST_LINE = 10**15


class Transfer:
    """Exports and imports run alongside live traffic. Imports and erases of one process run one at a time."""

    def __init__(
        self,
        durable: DurableTransfer,
        log: Log,
        hot: Hot,
        places: Positions,
        pending_writes: PendingWrites,
        bus: Bus,
        freshness: Freshness,
        clock: Clock,
        acceptance: Acceptance,
        checks: Checks,
        *,
        alone: bool,
    ) -> None:
        self._hot = hot
        self._freshness = freshness
        self._alone = alone
        self._durable = durable
        self._log = log
        self._users = hot.users
        self._channels = hot.channels
        self._badges = hot.badges
        self._devices = hot.presence
        self._places = places
        self._pending_writes = pending_writes
        self._bus = bus
        self._clock = clock
        self._acceptance = acceptance
        self._checks = checks
        self._turn = asyncio.Lock()

    async def export(self) -> AsyncGenerator[bytes, None]:
        """Everything as of one point in time, as JSON Lines, in chunks that end with a line.

        Waits until the durable store has every read acknowledged before the export. If that takes too long, it logs a
        warning and continues.
        """
        if not await self._freshness.passed():
            log.warning("the newest reads may not be in an export: they are not stored yet", action="export")
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
            await self._look_again(taken.rooms, taken.users)
        await self._bus.publish([StateReplaced(tuple(taken.users), "imported")])
        misfits = taken.refused
        if stop and misfits:
            first = misfits[0]
            return ImportReport(sum(one.line < first.line for one in records), misfits, first.line)
        refused = sorted(misfits + broken, key=lambda one: one.line)
        return ImportReport(len(records) - len(misfits), refused, end)

    async def erase_user(self, user: str) -> Erased:
        """Remove all read state of a user. The user's messages belong to their channels and stay.

        Erases twice, because a read or message in flight could leave something behind the first time. After that the
        user's reads are refused, so only what the log has by then can still reach the durable store.
        """
        check_user_id(user, "user")
        async with self._turn:
            await self._devices.drop(user)
            first = await self._erase(user)
            await self._pending_writes.settled(user)
            await self._pass("any channel will do")
            if not await self._freshness.stored_soon():
                log.warning("reads of an erased user may still be in the log", action="erase")
            await self._erase(user, first.receivers)  # a message in flight may just have reached a badge
        await self._bus.publish([StateReplaced((user,), "erased")])
        return first.erased

    async def _erase(self, user: str, told: Iterable[str] = ()) -> ErasedRows:
        gone = await self._durable.erase(user, self._acceptance.cut())
        await self._drop_erased(user, gone.rooms)
        for receiver in {*gone.receivers, *told}:
            await self._badges.forget(receiver)
        touched = [ChannelTouched(room, "conversation") for room in gone.rooms if not is_thread(room)]
        await self._bus.publish([*touched, *map(BadgeChanged, gone.receivers)])
        return gone

    # ------------------------------------------------------------ hot state

    async def _drop_erased(self, user: str, rooms: dict[str, Channel]) -> None:
        """Drop only the erased user from the hot state: the rest may have reads that only the log has.

        The user's channels have fewer members now. In a direct channel, the members who stay have another peer, or
        none.
        """
        if self._alone:  # one log position serves all changes: a hot update would take that of the next event
            for name in rooms:
                await self._channels.forget(name)
        else:
            await self._channels.apply([ChannelHotUpdate(room, room.change) for room in rooms.values()])
        await self._users.apply([_look_at(room) for room in rooms.values() if room.peers])
        await self._users.erase(user, rooms)
        await self._badges.forget(user)
        if self._alone and rooms:
            await self._pass(channel_and_thread(next(iter(rooms)))[0])

    async def _look_again(self, rooms: dict[str, int], users: Iterable[str]) -> None:
        """Drop hot state that an import has made stale; it is reloaded on use.

        A shared hot store is dropped entirely: what is loaded instead may lack reads that only the log has, and only a
        new generation is known to be behind.
        """
        names = list(rooms)
        if not self._alone:
            for name in names:
                self._places.forget(name)
            if names or users:
                await self._hot.clear()
            return
        for name, known in zip(names, await self._channels.channels(names), strict=True):
            if known is not None:
                self._places.forget(name)
                await self._channels.forget(name)
        for user in users:
            await self._drop_user(user)
            await self._badges.forget(user)
        if names:
            await self._pass(channel_and_thread(names[0])[0])
        for name, known in zip(names, await self._channels.channels(names), strict=True):
            if known is not None and known.change < rooms[name]:  # loaded just now, from before the change
                await self._channels.forget(name)

    async def _drop_user(self, user: str) -> None:
        """Drops a user, and makes a load in flight fail."""
        ticket = await self._users.begin(user)
        await self._users.install(user, ticket, [])
        await self._users.forget(user)

    async def _pass(self, channel: str) -> None:
        """Append an event that does nothing but take the log position that the changed channels have noted.

        So the next change of a channel gets a later position. When the event is answered, so is everything that was in
        flight.
        """
        await self._log.channel_events([MembersEvent(channel_id=channel, created_at=self._clock())])


def _look_at(room: Channel) -> FanOut:
    """Marks the channel as changed for the members who stay in a direct channel."""
    latest_at = room.latest.at if room.latest else 0
    return FanOut(room.channel_id, room.change, room.peers, latest_at=latest_at, archived=room.archived)
