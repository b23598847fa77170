"""The embedded profile: the whole service in one process, which owns its stores."""

import asyncio
import contextlib
import fcntl
import itertools
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from readstate.adapters.memory.bus import LocalBus
from readstate.adapters.memory.hot import MemoryHot
from readstate.adapters.memory.log import LocalLog
from readstate.adapters.sql.sqlite.file import Progress, back_up, restore
from readstate.adapters.sql.sqlite.store import SqliteStore
from readstate.adapters.sql.store import SqlStore
from readstate.batching import Batcher, Batchers
from readstate.domain.errors import ConfigurationError, ReadstateError, StorageUnavailable
from readstate.domain.facts import Effect
from readstate.extras import extra
from readstate.ports import Clock, Hot, Seen
from readstate.services.cursors import Cursors
from readstate.services.freshness import AlwaysFresh
from readstate.services.pending_writes import UnannouncedWrites
from readstate.settings import Settings
from readstate.tasks import cancel
from readstate.timings import Timings
from readstate.workers.message_writer import MessageWriter
from readstate.workers.receipt_persister import ReceiptPersister

from .consistency import Exclusive
from .wiring import Parts, Services

if TYPE_CHECKING:
    from readstate.tracing import Tracing

EXPIRE_TURNS = 720
"""Rows that badges no longer need expire once an hour: every 720 turns of housekeeping."""
LOCK_FILE = "lock"


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
        self._stack.callback(_take_directories(self._settings))
        durable = await self._open_durable()
        position = await durable.last_position()
        store_id = await durable.store_id()
        cursors = Cursors(await durable.cursor_key(), store_id)
        hot = await self._open_hot(durable, position, store_id)
        batchers: Batchers = Batcher
        if self._tracing is not None:
            durable = self._tracing.durable(durable, "sqlite" if self._settings.in_sqlite else "postgresql")
            hot = self._tracing.hot(hot, "redis" if self._settings.hot_url else "")
            batchers = self._tracing.batchers
        persister = ReceiptPersister(durable.merge)
        bus, unannounced = LocalBus(), UnannouncedWrites()

        async def read_in_focus(seen: Sequence[Seen]) -> None:
            """A late lookup: the writer is created before `services.focus`."""
            await services.focus.read(seen)

        async def note_away(effects: Sequence[Effect]) -> None:
            await hot.badges.add([one for effect in effects for one in effect.undelivered])

        writer = MessageWriter(
            durable,
            hot.users,
            hot.channels,
            hot.badges,
            hot.presence,
            bus,
            persister.handle,
            note_away,
            read_in_focus,
            hot.clear,
            unannounced,
            self._clock,
            self._instance_id,
        )
        self._stack.push_async_callback(writer.tend)
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
            alone=True,
            batchers=batchers,
            timings=self._timings,
            consistency=Exclusive(),
        )
        services.assemble(self._settings, self._clock, parts)
        bus.subscribe(services.live.on_announcements, services.live.on_gap, services.live.is_idle)
        self._stack.push_async_callback(services.finish)
        self._stack.push_async_callback(cancel, asyncio.create_task(self._housekeeping(services, hot, writer)))
        return durable, hot

    async def _housekeeping(self, services: Services, hot: Hot, writer: MessageWriter) -> None:
        for turn in itertools.count(1):
            await asyncio.sleep(self._timings.services.housekeeping)
            with contextlib.suppress(ReadstateError):
                await services.presence.expire()
                await writer.tend()
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

    async def _open_hot(self, durable: SqlStore, position: int, store_id: int) -> Hot:
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
        return hot


def _take_directories(settings: Settings) -> Callable[[], None]:
    for needed in (settings.store_directory, Path(settings.data_dir)):
        needed.mkdir(parents=True, exist_ok=True)
    return _lock(settings.store_directory)


@contextlib.contextmanager
def store_held(settings: Settings) -> Iterator[None]:
    """Hold the lock on the store's directory during the block."""
    release = _take_directories(settings)
    try:
        yield
    finally:
        release()


def _lock(directory: Path) -> Callable[[], None]:
    """Lock the directory for this process; returns the release. The lock file is never removed."""
    handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise ConfigurationError(
            f"another process has the store in {str(directory)!r}: it belongs to one process. "
            "Talk to that one over HTTP, or stop it first"
        ) from error
    return lambda: os.close(handle)


def store_is_locked(data_dir: str | Path) -> bool:
    path = Path(data_dir) / LOCK_FILE
    if not path.exists():
        return False
    try:
        _lock(Path(data_dir))()
    except ConfigurationError:
        return True
    return False


def back_up_store(settings: Settings, target: Path, progress: Progress) -> int:
    """Copy the SQLite store into a file, even while a service uses it; returns the size in bytes."""
    return back_up(settings.database_path, target, progress)


def restore_store(settings: Settings, source: Path, progress: Progress) -> int:
    """Replace the SQLite store with a backup; returns the size in bytes."""
    return restore(source, settings.database_path, progress)
