"""The embedded profile: the whole service in one process, which owns its stores."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from readstate.adapters.memory.bus import LocalBus
from readstate.adapters.memory.hot import MemoryHot
from readstate.adapters.memory.log import LocalLog
from readstate.adapters.sql.sqlite.file import Progress, back_up, restore
from readstate.adapters.sql.sqlite.store import SqliteStore
from readstate.adapters.sql.store import SqlStore
from readstate.batching import Batcher, Batchers
from readstate.domain.errors import ReadstateError, StorageUnavailable
from readstate.domain.facts import Effect
from readstate.domain.model import LogPosition
from readstate.extras import extra
from readstate.ports import Clock, Hot, Seen
from readstate.services.cursors import Cursors
from readstate.services.freshness import AlwaysFresh
from readstate.services.pending_writes import UnannouncedWrites
from readstate.services.undelivered import LateBadges
from readstate.settings import Settings
from readstate.tasks import cancel
from readstate.timings import Timings
from readstate.workers.focused_reads import FocusedReads
from readstate.workers.message_writer import MessageWriter
from readstate.workers.on_failure import DropHotState
from readstate.workers.receipt_persister import ReceiptPersister

from .consistency import Exclusive
from .lock import take_directories
from .wiring import Parts, Services

if TYPE_CHECKING:
    from readstate.tracing import Tracing

EXPIRE_TURNS = 720
"""Rows that badges no longer need expire once an hour: every 720 turns of housekeeping."""


class Embedded:
    """Opens stores and services; closes them with the stack."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        timings: Timings,
        instance_id: str,
        stack: contextlib.AsyncExitStack,
        tracing: "Tracing | None",
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._timings = timings
        self._instance_id = instance_id
        self._stack = stack
        self._tracing = tracing
        self.dependencies: dict[str, Callable[[], Awaitable[None]]] = {}
        self.lost = asyncio.Event()
        self.loss = StorageUnavailable("another process has taken the database over: see its log, or readstate doctor")

    def lags(self) -> dict[str, str]:
        """Always empty: the log is applied at once."""
        return {}

    async def start(self, services: Services) -> tuple[SqlStore, Hot]:
        self._stack.callback(take_directories(self._settings))
        durable = await self._open_durable()
        position = await durable.last_position()
        store_id = await durable.store_id()
        cursors = Cursors(await durable.cursor_key(), store_id)
        durable, hot, batchers = self._traced(durable, await self._open_hot(durable, position, store_id))
        persister = ReceiptPersister(durable)
        bus, unannounced = LocalBus(), UnannouncedWrites()

        async def read_in_focus(seen: Sequence[Seen]) -> None:
            """A late lookup: the writer is created before `services.focus`."""
            await services.focus.read(seen)

        async def note_away(effects: Sequence[Effect]) -> None:
            await hot.badges.add([one for effect in effects for one in effect.undelivered])

        late_badges = LateBadges(durable, hot.badges, bus)
        writer = MessageWriter(
            durable,
            hot,
            bus,
            note_away,
            FocusedReads(hot.users, hot.presence, read_in_focus),
            DropHotState(hot, late_badges, persister.handle, self._clock),
            unannounced,
            self._instance_id,
        )
        self._stack.push_async_callback(late_badges.note)
        log = LocalLog(position, writer.handle, persister.handle, batchers)
        self._stack.push_async_callback(log.close)
        parts = Parts(
            log if self._tracing is None else self._tracing.log(log),
            hot,
            durable,
            durable.transfer,
            bus,
            AlwaysFresh(),
            unannounced,
            store_id,
            cursors,
            self._instance_id,
            batchers=batchers,
            timings=self._timings,
            consistency=Exclusive(),
        )
        services.assemble(self._settings, self._clock, parts)
        bus.subscribe(services.live.on_announcements, services.live.on_gap, services.live.is_idle)
        self._stack.push_async_callback(services.finish)
        self._stack.push_async_callback(cancel, asyncio.create_task(self._housekeeping(services, hot, late_badges)))
        return durable, hot

    def _traced(self, durable: SqlStore, hot: Hot) -> tuple[SqlStore, Hot, Batchers]:
        if self._tracing is None:
            return durable, hot, Batcher
        durable = self._tracing.durable(durable, "sqlite" if self._settings.in_sqlite else "postgresql")
        return durable, self._tracing.hot(hot, "redis" if self._settings.hot_url else ""), self._tracing.batchers

    async def _housekeeping(self, services: Services, hot: Hot, late_badges: LateBadges) -> None:
        for turn in itertools.count(1):
            await asyncio.sleep(self._timings.services.housekeeping)
            with contextlib.suppress(ReadstateError):
                await services.presence.expire()
                await late_badges.note()
                await hot.bound()
                if turn % EXPIRE_TURNS == 0:
                    await services.badge.expire()

    async def without_hot_store(self) -> Services | None:
        return None

    async def _open_durable(self) -> SqlStore:
        """The store, locked or leased so that only this process writes to it."""
        s = self._settings
        durable: SqlStore
        if s.in_sqlite:
            durable = await SqliteStore.open(
                s.database_path, s.fanout_max_members, self._timings.sql, s.accept_data_loss
            )
            self._stack.push_async_callback(durable.close)
        else:
            with extra("asyncpg", "PostgreSQL"):
                from readstate.adapters.sql.postgres.lease import open_leased  # noqa: PLC0415 - an extra
            durable, lease = await open_leased(
                s.database_url, s.fanout_max_members, self._timings.sql, s.database_connections, self._instance_id
            )
            self.lost = lease.lost
            self._stack.push_async_callback(durable.close)
            self._stack.push_async_callback(lease.release)
        self.dependencies["database"] = durable.ping
        return durable

    async def _open_hot(self, durable: SqlStore, position: LogPosition, store_id: int) -> Hot:
        s = self._settings
        if not s.hot_url:
            return MemoryHot(
                unread_cap=s.unread_cap,
                generation=await durable.next_generation(),
                position=position,
                clock=self._clock,
                ledger_ttl=s.ledger_ttl,
                max_bytes=s.hot_memory * 2**20,
            )
        with extra("redis", "Valkey or Redis"):
            from readstate.adapters.valkey import DurableCounter  # noqa: PLC0415 - an extra
            from readstate.adapters.valkey.hot import ExclusiveHot, HotOptions  # noqa: PLC0415 - an extra
        options = HotOptions(url=s.hot_url, prefix=s.key_prefix, unread_cap=s.unread_cap, ledger_ttl=s.ledger_ttl)
        counter = DurableCounter(store_id, durable.next_generation)
        hot = ExclusiveHot(options, counter, self._clock, self._timings.valkey, position)
        self._stack.push_async_callback(hot.close)
        await hot.clear()  # state of an earlier process may be behind the durable store
        self.dependencies["hot_store"] = hot.ping
        self._stack.push_async_callback(cancel, asyncio.create_task(hot.libraries.keep_tidy()))
        return hot


def back_up_store(settings: Settings, target: Path, progress: Progress) -> int:
    """Copy the SQLite store into a file, even while a service uses it; returns the size in bytes."""
    return back_up(settings.database_path, target, progress)


def restore_store(settings: Settings, source: Path, progress: Progress) -> int:
    """Replace the SQLite store with a backup; returns the size in bytes."""
    return restore(source, settings.database_path, progress)
