"""Builds the services over the adapters that a profile opens."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from readstate.adapters.memory.hot import MemoryHot
from readstate.adapters.sql.store import SqlStore
from readstate.batching import Batcher, Batchers
from readstate.domain.errors import ReadstateError
from readstate.domain.model import Generation, LogPosition
from readstate.domain.rules import MessageRules, check_id, check_user_id
from readstate.live.catch_up import CatchUp
from readstate.live.cursors import LiveCursors
from readstate.live.devices import LiveDevices
from readstate.live.late_corrections import LateCorrections
from readstate.live.receipts import LiveReceipts
from readstate.live.rendering import EventRenderer
from readstate.live.sending import EventSender
from readstate.live.sessions import ConnectedUsers
from readstate.live.unmuting import Unmuting
from readstate.live.updates import Live
from readstate.ports import Bus, Clock, Freshness, Hot, Log
from readstate.ports.consistency import Consistency
from readstate.services.acceptance import AcceptanceClock
from readstate.services.audit import Audit
from readstate.services.badge import OfflineBadge
from readstate.services.changes import Changes
from readstate.services.channels import Channels
from readstate.services.counting import Counting
from readstate.services.cursors import Cursors
from readstate.services.event_checks import EventChecks
from readstate.services.explain import Explain
from readstate.services.focus import FocusReads
from readstate.services.hot_cleanup import HotCleanup
from readstate.services.inbox import UserInbox
from readstate.services.loading import Loader
from readstate.services.messages import Messages
from readstate.services.moves import Moves, ReadStateLog
from readstate.services.pending_writes import PendingWrites, UnannouncedWrites
from readstate.services.positions import Positions
from readstate.services.preferences import ChannelPreferences
from readstate.services.presence import UserPresence
from readstate.services.read_targets import ReadTargets
from readstate.services.reads import Reads
from readstate.services.receipts import ReadReceipts
from readstate.services.repair import Repair
from readstate.services.threads import ThreadPanel
from readstate.services.transfer import Transfer
from readstate.services.undelivered import LateBadges
from readstate.services.unread_messages import UnreadView
from readstate.services.unread_rooms import UnreadRooms
from readstate.settings import Settings
from readstate.tasks import cancel
from readstate.timings import Timings
from readstate.transfer.lines import Checks

if TYPE_CHECKING:
    from readstate.tracing import Tracing

D = TypeVar("D", bound=SqlStore)
H = TypeVar("H", bound=Hot)


class Parts(NamedTuple):
    log: Log
    hot: Hot
    durable: SqlStore
    bus: Bus
    freshness: Freshness
    unannounced: UnannouncedWrites
    store_id: int
    cursors: Cursors
    instance_id: str
    consistency: Consistency
    timings: Timings
    batchers: Batchers = Batcher


class Services:
    """What callers can do, and what these services share."""

    def assemble(self, settings: Settings, clock: Clock, parts: Parts) -> None:
        self.settings, self.clock, self.cursors = settings, clock, parts.cursors
        hot, durable = parts.hot, parts.durable
        self.loader = Loader(hot.users, hot.channels, durable, settings.unread_cap, hot.loaded)
        self.lookups = parts.consistency.lookups(self.loader, parts.batchers)
        self.positions = Positions(durable, parts.log)
        self.counting = Counting(
            self.loader, self.lookups, self.positions, parts.freshness, clock, settings.display_cap
        )
        self.acceptance = AcceptanceClock(clock)
        self.pending_writes = PendingWrites()
        s = settings
        self.rules = MessageRules(s.max_text, s.max_mentions, s.preview_length, s.store_text)
        self._assemble_writes(parts)
        self._assemble_reads(parts)
        self._assemble_people(parts)
        self._assemble_counts(parts)
        self._assemble_upkeep(parts)
        self._assemble_live(parts)

    def _assemble_writes(self, parts: Parts) -> None:
        log, loader, positions, durable, s = parts.log, self.loader, self.positions, parts.durable, self.settings
        checks = EventChecks(loader, positions, durable, parts.freshness, parts.consistency)
        self.channels = Channels(log, loader, positions, checks, durable, self.cursors, self.clock, s)
        self.messages = Messages(log, loader, positions, checks, durable, self.acceptance, self.rules, s.max_batch)

    def _assemble_reads(self, parts: Parts) -> None:
        users, durable, freshness, policy = parts.hot.users, parts.durable, parts.freshness, parts.consistency
        pending_writes, clock = self.pending_writes, self.clock
        log = ReadStateLog(parts.log, users, parts.bus, pending_writes, policy, clock, parts.instance_id)
        self.moves = Moves(users, self.loader, log, freshness, policy, parts.batchers)
        self.focus = FocusReads(users, self.moves, pending_writes, freshness)
        targets = ReadTargets(self.lookups, self.positions, durable, self.settings)
        self.reads = Reads(
            self.moves, targets, self.loader, self.counting, durable, parts.hot.presence, clock, self.settings
        )

    def _assemble_people(self, parts: Parts) -> None:
        hot, durable, bus, s = parts.hot, parts.durable, parts.bus, self.settings
        self.badge = OfflineBadge(
            hot.badges, durable, self.counting, self.acceptance, bus, self.cursors, s, parts.timings.services
        )
        self.receipts = ReadReceipts(
            hot.users, durable, self.loader, parts.freshness, self.clock, s.receipts_max_members
        )
        self.presence = UserPresence(
            hot.presence, self.loader, durable, LateBadges(durable, hot.badges, bus), self.clock
        )

    def _assemble_counts(self, parts: Parts) -> None:
        hot, durable, freshness, policy = parts.hot, parts.durable, parts.freshness, parts.consistency
        loader, counting, cursors, clock, s = self.loader, self.counting, self.cursors, self.clock, self.settings
        pending_writes = self.pending_writes
        self.changes = Changes(hot.channels, loader, durable, pending_writes, freshness, cursors, clock, parts.store_id)
        rooms = UnreadRooms(hot.users, loader, counting)
        self.unread = UnreadView(rooms, self.changes, loader, counting, self.badge, durable, cursors, s)
        self.threads = ThreadPanel(parts.log, loader, self.positions, self.moves, counting, cursors, clock, s.max_page)
        self.preferences = ChannelPreferences(hot.users, durable, loader, parts.bus, pending_writes, policy, clock)
        self.inbox = UserInbox(loader, counting, rooms, self.changes, self.preferences, cursors, s.max_page)

    def _assemble_upkeep(self, parts: Parts) -> None:
        hot, durable, bus, freshness, policy = parts.hot, parts.durable, parts.bus, parts.freshness, parts.consistency
        loader, pending_writes, clock = self.loader, self.pending_writes, self.clock
        self.explain = Explain(hot, durable, loader, self.counting, pending_writes, bus, self.unread, policy)
        self.audit = Audit(hot, durable, loader, self.explain, parts.timings.services)
        self.repair = Repair(hot, durable, loader, freshness, pending_writes, bus, clock)
        cleanup = HotCleanup(hot, parts.log, self.positions, policy, clock)
        checks = Checks(clock, self.rules)
        self.transfer = Transfer(
            durable.transfer, cleanup, pending_writes, bus, freshness, clock, self.acceptance, checks
        )

    def _assemble_live(self, parts: Parts) -> None:
        hot, loader, s = parts.hot, self.loader, self.settings
        self.renderer = EventRenderer(
            hot, loader, self.counting, self.inbox, self.preferences, self.threads, self.badge
        )
        self.catch_up = CatchUp(parts.durable, loader, self.changes, self.renderer, s.receipts_max_members)
        clock, consistency, timings = self.clock, parts.consistency, parts.timings.live
        connected = ConnectedUsers(loader, hot.presence)
        cursors = LiveCursors(hot, self.cursors, parts.unannounced, clock, consistency, timings, parts.store_id)
        corrections = LateCorrections(parts.freshness, self.catch_up, cursors, consistency, timings)
        sender = EventSender(connected, self.renderer, cursors, corrections, self.pending_writes, consistency, timings)
        receipts = LiveReceipts(connected, self.receipts, cursors, sender, clock, timings)
        unmuting = Unmuting(connected, loader, sender, clock, timings)
        devices = LiveDevices(
            connected, self.catch_up, cursors, corrections, unmuting, sender, timings, parts.bus.attend
        )
        self.live = Live(connected, hot.users, devices, receipts, unmuting, corrections, sender)

    async def finish(self) -> None:
        """Finish what was accepted, before the stores close."""
        async with AsyncExitStack() as stack:
            for service in (self.live, self.focus, self.lookups, self.loader, self.moves, self.presence):
                stack.push_async_callback(service.close)

    async def is_member(self, user: str, *channels: str) -> bool:
        """Whether these channels exist and the user is in all of them."""
        check_user_id(user, "user")
        names = list(dict.fromkeys(check_id(channel, "channel_id") for channel in channels))
        if None in await self.loader.channels(names):
            return False
        user_rooms = (await self.loader.view(user, names)).user_rooms
        return len(user_rooms) == len(names) and all(user_room.member for user_room in user_rooms)


@dataclass(eq=False, repr=False)
class Profile:
    """What both profiles have. A profile opens stores and services, and closes them with the stack."""

    settings: Settings
    clock: Clock
    timings: Timings
    instance_id: str
    stack: AsyncExitStack
    tracing: "Tracing | None"
    dependencies: dict[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    loss: ReadstateError = field(init=False)
    """Why `lost` is set."""

    def __post_init__(self) -> None:
        """Each profile prepares what it opens later. Defined here too: otherwise `dataclass` would not call it."""

    def lags(self) -> dict[str, str]:
        """Empty where the log is applied at once."""
        return {}

    def begin_stop(self) -> None:
        """From now on nothing waits long for a server that does not answer."""

    async def without_hot_store(self) -> Services | None:
        """The services over the durable store alone; None: not in this profile."""
        return None

    @property
    def batchers(self) -> Batchers:
        return Batcher if self.tracing is None else self.tracing.batchers

    def traced(self, durable: D, hot: H) -> tuple[D, H]:
        if self.tracing is None:
            return durable, hot
        durable = self.tracing.durable(durable, "sqlite" if self.settings.in_sqlite else "postgresql")
        return durable, self.tracing.hot(hot, "redis" if self.settings.hot_url else "")

    def memory_hot(self, generation: Generation, position: LogPosition) -> MemoryHot:
        return MemoryHot(
            unread_cap=self.settings.unread_cap,
            generation=generation,
            position=position,
            clock=self.clock,
            ledger_ttl=self.settings.ledger_ttl,
            max_bytes=self.settings.hot_memory * 2**20,
        )

    def run(self, work: Coroutine[None, None, None]) -> None:
        """Run this in the background until the profile closes."""
        self.stack.push_async_callback(cancel, asyncio.create_task(work))
