"""Moving in and out: everything as JSON Lines, and the erasing of a user."""

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
"""Lines that are taken in one call; the answer says where to go on."""
MAX_FIRST_LINE = 10**15


class Transfer:
    """Export and import work beside live traffic; imports and erases take turns among themselves."""

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
        """Everything as of one moment, as JSON Lines, in pieces that end with a line.

        With every read that was acknowledged before it: what the log still has is waited for, but not for ever.
        """
        if not await self._freshness.passed():
            log.warning("the newest reads may not be in an export: they are not stored yet", action="export")
        encoder = msgspec.json.Encoder()
        yield encoder.encode_lines([Header(version=VERSION, exported_at=self._clock())])
        async with aclosing(self._durable.export()) as pages:
            async for page in pages:
                yield encoder.encode_lines(page)

    async def import_lines(self, data: bytes, first_line: int = 1, stop: bool = False) -> ImportReport:
        """Take lines of an export, the first of which has this number in its file. May be repeated.

        What is refused is named; `stop` ends at the first refusal, with everything before it taken.
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
        """Remove every trace of a user's read state; what the user wrote belongs to its channels and stays.

        Twice: what was under way meanwhile (a read, a message) would otherwise leave something behind. After the first
        time nobody can read as this user. So what the log has then is all that can still come to the durable store.
        """
        check_user_id(user, "user")
        async with self._turn:
            await self._devices.drop(user)
            first = await self._erase(user)
            await self._pending_writes.settled(user)
            await self._pass("any channel will do")
            if not await self._freshness.stored_soon():
                log.warning("reads of an erased user may still be in the log", action="erase")
            await self._erase(user, first.receivers)  # a message that was under way may just have come to a badge
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
        """Drop what the hot state has of an erased user, and nothing else: it may know reads that only the log has yet.

        The channels that the user was in have fewer members; in a direct one those who stay have another peer, or none.
        """
        if self._alone:  # one log position stands for all changes: a step would take the position of the next event
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
        """The durable store has changed behind the hot state: what that holds is dropped, and loaded on use.

        A shared one is dropped as a whole: what is loaded instead may lack reads that only the log has yet, and that is
        known of a new generation.
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
            if known is not None and known.change < rooms[name]:  # loaded from before the change, just now
                await self._channels.forget(name)

    async def _drop_user(self, user: str) -> None:
        """Drops a user, and takes a load that is under way with it."""
        ticket = await self._users.begin(user)
        await self._users.install(user, ticket, [])
        await self._users.forget(user)

    async def _pass(self, channel: str) -> None:
        """An event that does nothing, and takes the place in the log that the changed channels have noted.

        So the next change of a channel comes after them. When it is answered, so is all that was under way.
        """
        await self._log.channel_events([MembersEvent(channel_id=channel, created_at=self._clock())])


def _look_at(room: Channel) -> FanOut:
    """To those who are left in a direct channel: look again."""
    latest_at = room.latest.at if room.latest else 0
    return FanOut(room.channel_id, room.change, room.peers, latest_at=latest_at, archived=room.archived)
