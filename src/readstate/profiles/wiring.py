"""Builds the services over the adapters that a profile opens."""

from contextlib import AsyncExitStack
from typing import NamedTuple

from readstate.batching import Batcher, Batchers
from readstate.domain.rules import check_id, check_user_id
from readstate.live.catch_up import CatchUp
from readstate.live.rendering import EventRenderer
from readstate.live.updates import Live
from readstate.ports import Bus, Clock, Durable, DurableTransfer, Freshness, Hot, Log
from readstate.ports.consistency import Consistency, Lookups
from readstate.services.acceptance import AcceptanceClock
from readstate.services.audit import Audit
from readstate.services.badge import OfflineBadge
from readstate.services.changes import Changes
from readstate.services.channels import Channels
from readstate.services.counting import Counting
from readstate.services.cursors import Cursors
from readstate.services.epochs import Epochs
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
from readstate.services.unread_messages import UnreadView
from readstate.services.unread_rooms import UnreadRooms
from readstate.settings import Settings
from readstate.timings import Timings
from readstate.transfer.lines import Checks


class Parts(NamedTuple):
    log: Log
    hot: Hot
    durable: Durable
    transfer: DurableTransfer
    bus: Bus
    freshness: Freshness
    unannounced: UnannouncedWrites
    store_id: int
    cursors: Cursors
    instance_id: str
    alone: bool
    """Whether no other process writes to the stores."""
    consistency: Consistency
    timings: Timings
    batchers: Batchers = Batcher


class Services:
    """What callers can do, and what these services share."""

    settings: Settings
    cursors: Cursors
    loader: Loader
    lookups: Lookups
    moves: Moves
    focus: FocusReads
    changes: Changes
    channels: Channels
    messages: Messages
    reads: Reads
    unread: UnreadView
    preferences: ChannelPreferences
    inbox: UserInbox
    threads: ThreadPanel
    badge: OfflineBadge
    receipts: ReadReceipts
    presence: UserPresence
    explain: Explain
    audit: Audit
    repair: Repair
    transfer: Transfer
    renderer: EventRenderer
    live: Live

    def assemble(self, settings: Settings, clock: Clock, parts: Parts) -> None:
        self.settings, self.cursors = settings, parts.cursors
        hot, durable, freshness, policy = parts.hot, parts.durable, parts.freshness, parts.consistency
        pending_writes = PendingWrites()
        self.loader = Loader(hot.users, hot.channels, durable, settings.unread_cap, hot.loaded)
        self.lookups = policy.lookups(self.loader, parts.batchers)
        positions = Positions(durable, parts.log)
        counting = Counting(self.loader, self.lookups, positions, freshness, clock, settings.display_cap)
        acceptance = AcceptanceClock(clock)
        self._assemble_writes(parts, clock, positions, acceptance)
        self._assemble_reads(parts, clock, positions, counting, pending_writes)
        self._assemble_people(parts, clock, counting, acceptance)
        self._assemble_counts(parts, clock, positions, counting, pending_writes)
        self._assemble_upkeep(parts, clock, positions, counting, acceptance, pending_writes)
        self._assemble_live(parts, clock, counting, pending_writes)

    def _assemble_writes(self, parts: Parts, clock: Clock, positions: Positions, acceptance: AcceptanceClock) -> None:
        log, durable, policy, s = parts.log, parts.durable, parts.consistency, self.settings
        epochs = Epochs(self.loader, durable, parts.freshness, policy)
        self.channels = Channels(log, self.loader, positions, epochs, durable, self.cursors, clock, s)
        self.messages = Messages(log, self.loader, positions, epochs, durable, policy, acceptance, s)

    def _assemble_reads(
        self, parts: Parts, clock: Clock, positions: Positions, counting: Counting, pending_writes: PendingWrites
    ) -> None:
        users, durable, freshness, policy = parts.hot.users, parts.durable, parts.freshness, parts.consistency
        log = ReadStateLog(parts.log, users, parts.bus, pending_writes, policy, clock, parts.instance_id)
        self.moves = Moves(users, self.loader, log, freshness, policy, parts.batchers)
        self.focus = FocusReads(users, self.moves, pending_writes, freshness)
        targets = ReadTargets(self.lookups, positions, durable, self.settings)
        self.reads = Reads(
            self.moves, targets, self.loader, counting, durable, parts.hot.presence, clock, self.settings
        )

    def _assemble_people(self, parts: Parts, clock: Clock, counting: Counting, acceptance: AcceptanceClock) -> None:
        hot, durable, bus, s = parts.hot, parts.durable, parts.bus, self.settings
        self.badge = OfflineBadge(
            hot.badges, durable, counting, acceptance, bus, self.cursors, s, parts.timings.services
        )
        self.receipts = ReadReceipts(
            hot.users, durable, self.loader, parts.freshness, clock, receipts_max_members=s.receipts_max_members
        )
        self.presence = UserPresence(hot.presence, self.loader, durable, hot.badges, bus, clock)

    def _assemble_counts(
        self, parts: Parts, clock: Clock, positions: Positions, counting: Counting, pending_writes: PendingWrites
    ) -> None:
        hot, durable, loader, cursors, s = parts.hot, parts.durable, self.loader, self.cursors, self.settings
        self.changes = Changes(
            hot.channels, loader, durable, pending_writes, parts.freshness, cursors, clock, parts.store_id
        )
        rooms = UnreadRooms(hot.users, loader, counting)
        self.unread = UnreadView(rooms, self.changes, loader, counting, self.badge, durable, cursors, s)
        self.threads = ThreadPanel(parts.log, loader, positions, self.moves, counting, cursors, clock, s.max_page)
        self.preferences = ChannelPreferences(
            hot.users, durable, loader, parts.bus, pending_writes, parts.consistency, clock
        )
        self.inbox = UserInbox(loader, counting, rooms, self.changes, self.preferences, cursors, s.max_page)

    def _assemble_upkeep(
        self,
        parts: Parts,
        clock: Clock,
        positions: Positions,
        counting: Counting,
        acceptance: AcceptanceClock,
        pending_writes: PendingWrites,
    ) -> None:
        hot, durable, bus, freshness, policy = parts.hot, parts.durable, parts.bus, parts.freshness, parts.consistency
        self.explain = Explain(hot, durable, self.loader, counting, pending_writes, bus, self.unread, policy)
        self.audit = Audit(hot, durable, self.loader, self.explain, parts.timings.services)
        self.repair = Repair(hot, durable, self.loader, freshness, pending_writes, bus, clock)
        cleanup = HotCleanup(hot, parts.log, positions, policy, clock)
        checks = Checks(
            clock,
            max_text=self.settings.max_text,
            max_mentions=self.settings.max_mentions,
            preview_length=self.settings.preview_length,
            store_text=self.settings.store_text,
        )
        self.transfer = Transfer(parts.transfer, cleanup, pending_writes, bus, freshness, clock, acceptance, checks)

    def _assemble_live(self, parts: Parts, clock: Clock, counting: Counting, pending_writes: PendingWrites) -> None:
        hot, loader, s = parts.hot, self.loader, self.settings
        self.renderer = EventRenderer(
            hot.users,
            hot.channels,
            loader,
            counting,
            self.unread,
            self.inbox,
            self.preferences,
            self.threads,
            self.badge,
        )
        missed = CatchUp(parts.durable, self.changes, self.renderer, receipts_max_members=s.receipts_max_members)
        self.live = Live(
            hot.users,
            hot.channels,
            hot.presence,
            loader,
            self.changes,
            self.receipts,
            self.renderer,
            missed,
            pending_writes,
            parts.unannounced,
            parts.freshness,
            clock,
            self.cursors,
            alone=parts.alone,
        )

    async def finish(self) -> None:
        """Finish what was accepted, before the stores close."""
        async with AsyncExitStack() as stack:
            for service in (self.live, self.focus, self.lookups, self.moves, self.presence):
                stack.push_async_callback(service.close)

    async def is_member(self, user: str, *channels: str) -> bool:
        """Whether these channels exist and the user is in all of them."""
        check_user_id(user, "user")
        names = list(dict.fromkeys(check_id(channel, "channel_id") for channel in channels))
        if None in await self.loader.channels(names):
            return False
        user_rooms = (await self.loader.view(user, names)).user_rooms
        return len(user_rooms) == len(names) and all(user_room.member for user_room in user_rooms)
