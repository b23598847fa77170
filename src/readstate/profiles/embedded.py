"""The embedded profile: the whole service in one process, which owns its stores."""

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path

from readstate.adapters.memory.bus import LocalBus
from readstate.adapters.memory.log import LocalLog
from readstate.adapters.sql.sqlite.file import Progress, back_up, restore
from readstate.adapters.sql.sqlite.store import SqliteStore
from readstate.adapters.sql.store import SqlStore
from readstate.domain.errors import ReadstateError, StorageUnavailable
from readstate.domain.facts import Effect
from readstate.domain.model import LogPosition
from readstate.extras import extra
from readstate.ports import Hot, Seen
from readstate.services.cursors import Cursors
from readstate.services.freshness import AlwaysFresh
from readstate.services.pending_writes import UnannouncedWrites
from readstate.services.undelivered import LateBadges
from readstate.settings import Settings
from readstate.workers.focused_reads import FocusedReads
from readstate.workers.message_writer import MessageWriter
from readstate.workers.on_failure import DropHotState
from readstate.workers.receipt_persister import ReceiptPersister
from readstate.workers.status_update import newest_undelivered

from .consistency import Exclusive
from .lock import store_held
from .wiring import Parts, Profile, Services

EXPIRE_TURNS = 720
"""Rows that badges no longer need expire once an hour: every 720 turns of housekeeping."""


class Embedded(Profile):
    def __post_init__(self) -> None:
        self.loss = StorageUnavailable("another process has taken the database over: see its log, or readstate doctor")

    async def start(self, services: Services) -> tuple[SqlStore, Hot]:
        self.stack.enter_context(store_held(self.settings))
        durable = await self._open_durable()
        position = await durable.last_position()
        store_id = await durable.store_id()
        cursors = Cursors(await durable.cursor_key(), store_id)
        durable, hot = self.traced(durable, await self._open_hot(durable, position, store_id))
        persister = ReceiptPersister(durable)
        bus, unannounced = LocalBus(), UnannouncedWrites()

        async def read_in_focus(seen: Sequence[Seen]) -> None:
            """A late lookup: the writer is created before `services.focus`."""
            await services.focus.read(seen)

        async def note_away(effects: Sequence[Effect]) -> None:
            if self.settings.badge_mode == "precomputed":
                await hot.badges.add(newest_undelivered(effects))

        late_badges = LateBadges(durable, hot.badges, bus)
        writer = MessageWriter(
            durable,
            hot,
            bus,
            note_away,
            FocusedReads(hot.users, hot.presence, read_in_focus),
            DropHotState(hot, late_badges, persister.handle, self.clock),
            unannounced,
            self.instance_id,
        )
        self.stack.push_async_callback(late_badges.note)
        log = LocalLog(position, writer.handle, persister.handle, self.batchers)
        self.stack.push_async_callback(log.close)
        parts = Parts(
            log if self.tracing is None else self.tracing.log(log),
            hot,
            durable,
            bus,
            AlwaysFresh(),
            unannounced,
            store_id,
            cursors,
            self.instance_id,
            batchers=self.batchers,
            timings=self.timings,
            consistency=Exclusive(),
        )
        services.assemble(self.settings, self.clock, parts)
        bus.subscribe(services.live.on_announcements, services.live.on_gap, services.live.is_idle)
        self.stack.push_async_callback(services.finish)
        self.run(self._housekeeping(services, hot, late_badges))
        return durable, hot

    async def _housekeeping(self, services: Services, hot: Hot, late_badges: LateBadges) -> None:
        for turn in itertools.count(1):
            await asyncio.sleep(self.timings.services.housekeeping)
            with contextlib.suppress(ReadstateError):
                await services.presence.expire()
                await late_badges.note()
                await hot.bound()
                if turn % EXPIRE_TURNS == 0:
                    await services.badge.expire()

    async def _open_durable(self) -> SqlStore:
        """The store, locked or leased so that only this process writes to it."""
        s = self.settings
        durable: SqlStore
        keeps_badge = s.badge_mode != "off"
        if s.in_sqlite:
            durable = await SqliteStore.open(
                s.database_path, s.fanout_max_members, self.timings.sql, s.accept_data_loss, keeps_badge=keeps_badge
            )
            self.stack.push_async_callback(durable.close)
        else:
            with extra("asyncpg", "PostgreSQL"):
                from readstate.adapters.sql.postgres.lease import open_leased  # noqa: PLC0415 - an extra
            durable, lease = await open_leased(
                s.database_url,
                s.fanout_max_members,
                self.timings.sql,
                s.database_connections,
                self.instance_id,
                keeps_badge=keeps_badge,
            )
            self.lost = lease.lost
            self.stack.push_async_callback(durable.close)
            self.stack.push_async_callback(lease.release)
        self.dependencies["database"] = durable.ping
        return durable

    async def _open_hot(self, durable: SqlStore, position: LogPosition, store_id: int) -> Hot:
        s = self.settings
        if not s.hot_url:
            return self.memory_hot(await durable.next_generation(), position)
        with extra("redis", "Valkey or Redis"):
            from readstate.adapters.valkey import DurableCounter  # noqa: PLC0415 - an extra
            from readstate.adapters.valkey.hot import ExclusiveHot, HotOptions  # noqa: PLC0415 - an extra
        options = HotOptions(url=s.hot_url, prefix=s.key_prefix, unread_cap=s.unread_cap, ledger_ttl=s.ledger_ttl)
        counter = DurableCounter(store_id, durable)
        hot = ExclusiveHot(options, counter, self.clock, self.timings.valkey, position)
        self.stack.push_async_callback(hot.close)
        await hot.clear()  # state of an earlier process may be behind the durable store
        self.dependencies["hot_store"] = hot.ping
        self.run(hot.libraries.keep_tidy())
        return hot


def back_up_store(settings: Settings, target: Path, progress: Progress) -> int:
    """Copy the SQLite store into a file, even while a service uses it; returns the size in bytes."""
    return back_up(settings.database_path, target, progress)


def restore_store(settings: Settings, source: Path, progress: Progress) -> int:
    """Replace the SQLite store with a backup; returns the size in bytes."""
    return restore(source, settings.database_path, progress)
