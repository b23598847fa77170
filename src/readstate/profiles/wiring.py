"""Builds the services over the adapters that a profile opens."""

from typing import NamedTuple

from readstate.batching import Batcher, Batchers
from readstate.domain.rules import check_id, check_user_id
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
from readstate.ports import Bus, Clock, Durable, DurableTransfer, Freshness, Hot, Log
from readstate.ports.consistency import Consistency
from readstate.services.acceptance import Acceptance
from readstate.services.badge import OfflineBadge
from readstate.services.channels import Channels
from readstate.services.counting import Counting
from readstate.services.cursors import Cursors
from readstate.services.explain import Explain
from readstate.services.inbox import UserInbox
from readstate.services.loading import Loader
from readstate.services.messages import Messages
from readstate.services.pending_writes import PendingWrites, UnannouncedWrites
from readstate.services.positions import Positions
from readstate.services.preferences import ChannelPreferences
from readstate.services.presence import UserPresence
from readstate.services.reads import Reads
from readstate.services.receipts import ReadReceipts
from readstate.services.repair import Repair
from readstate.services.threads import ThreadPanel
from readstate.services.transfer import Transfer
from readstate.services.unread_messages import UnreadView
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
    renderer: EventRenderer
    catch_up: CatchUp
    live: Live
    transfer: Transfer
    repair: Repair
    loader: Loader
    cursors: Cursors
    settings: Settings

    def assemble(self, settings: Settings, clock: Clock, parts: Parts) -> None:
        s = self.settings = settings
        log, hot, durable, bus, freshness = parts.log, parts.hot, parts.durable, parts.bus, parts.freshness
        pending_writes = PendingWrites()
        cursors = self.cursors = parts.cursors
        loader = self.loader = Loader(hot.users, hot.channels, durable, s.unread_cap, hot.loaded)
        places = Positions(durable, log)
        counting = Counting(loader, places, clock, s.display_cap, freshness)
        acceptance = Acceptance(clock)
        self.channels = Channels(
            log,
            loader,
            places,
            durable,
            freshness,
            clock,
            cursors,
            alone=parts.alone,
            max_batch=s.max_batch,
            max_page=s.max_page,
            max_text=s.max_text,
        )
        self.messages = Messages(
            log,
            loader,
            places,
            durable,
            acceptance,
            freshness,
            max_batch=s.max_batch,
            max_text=s.max_text,
            max_mentions=s.max_mentions,
            preview_length=s.preview_length,
            store_text=s.store_text,
            alone=parts.alone,
        )
        self.reads = Reads(
            hot.users,
            durable,
            log,
            loader,
            places,
            counting,
            hot.presence,
            bus,
            pending_writes,
            freshness,
            clock,
            parts.batchers,
            instance_id=parts.instance_id,
            max_batch=s.max_batch,
            unread_cap=s.unread_cap,
            undo_ttl=s.undo_ttl,
            alone=parts.alone,
        )
        self.badge = OfflineBadge(
            hot.badges,
            durable,
            counting,
            acceptance,
            bus,
            cursors,
            mode=s.badge_mode,
            max_messages=s.max_page,
            retention=s.badge_retention,
        )
        self.unread = UnreadView(
            hot.users,
            hot.channels,
            loader,
            counting,
            pending_writes,
            self.badge.count,
            clock,
            durable,
            cursors,
            store_id=parts.store_id,
            max_page=s.max_page,
            max_batch=s.max_batch,
        )
        self.threads = ThreadPanel(log, loader, places, self.reads, counting, clock, cursors, max_page=s.max_page)
        self.receipts = ReadReceipts(
            hot.users, durable, loader, freshness, clock, receipts_max_members=s.receipts_max_members
        )
        self.presence = UserPresence(hot.presence, loader, durable, hot.badges, bus, clock)
        self.preferences = ChannelPreferences(hot.users, durable, loader, bus, pending_writes, clock, alone=parts.alone)
        self.inbox = UserInbox(loader, counting, self.unread, self.preferences, cursors, max_page=s.max_page)
        self.explain = Explain(
            hot.users, hot.channels, durable, loader, counting, pending_writes, bus, self.unread, alone=parts.alone
        )
        self.repair = Repair(hot, durable, loader, self.explain, freshness, pending_writes, bus, clock)
        checks = Checks(
            clock,
            max_text=s.max_text,
            max_mentions=s.max_mentions,
            preview_length=s.preview_length,
            store_text=s.store_text,
        )
        self.transfer = Transfer(
            parts.transfer,
            log,
            hot,
            places,
            pending_writes,
            bus,
            freshness,
            clock,
            acceptance,
            checks,
            alone=parts.alone,
        )
        self.renderer = EventRenderer(
            hot, loader, counting, self.unread, self.inbox, self.preferences, self.threads, self.badge
        )
        self.catch_up = CatchUp(durable, self.unread, self.renderer, receipts_max_members=s.receipts_max_members)
        self.live = self._make_live(clock, parts, pending_writes)

    def _make_live(self, clock: Clock, parts: Parts, pending_writes: PendingWrites) -> Live:
        hot, consistency, timings = parts.hot, parts.consistency, parts.timings.live
        connected = ConnectedUsers(hot.users, self.loader, hot.presence)
        cursors = LiveCursors(
            hot, parts.cursors, parts.unannounced, clock, consistency, timings, store_id=parts.store_id
        )
        corrections = LateCorrections(parts.freshness, self.catch_up, cursors, consistency, timings)
        sender = EventSender(connected, self.renderer, cursors, corrections, pending_writes, consistency, timings)
        receipts = LiveReceipts(connected, self.receipts, cursors, sender, clock, timings)
        unmuting = Unmuting(connected, self.loader, sender, clock, timings)
        devices = LiveDevices(connected, self.catch_up, cursors, corrections, unmuting, sender, timings)
        return Live(connected, hot.users, devices, receipts, unmuting, corrections, sender)

    async def is_member(self, user: str, *channels: str) -> bool:
        """Whether these channels exist and the user is in all of them."""
        check_user_id(user, "user")
        names = list(dict.fromkeys(check_id(channel, "channel_id") for channel in channels))
        if None in await self.loader.channels(names):
            return False
        user_rooms = (await self.loader.view(user, names)).user_rooms
        return len(user_rooms) == len(names) and all(user_room.member for user_room in user_rooms)
