"""Puts a profile together. The only module that knows which adapter runs."""

import asyncio
import contextlib
import fcntl
import itertools
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from .bus.local import LocalBus
from .durable.sqlite import SqliteStore
from .durable.sqlite_engine import connect, migrations_missing
from .durable.sqlite_engine import migrate as migrate_sqlite
from .durable.store import SqlStore
from .errors import ConfigurationError, ReadstateError
from .hot.memory import MemoryHot
from .log.local import LocalLog
from .model import Position
from .ports import Clock, Hot
from .services.acceptance import Acceptance
from .services.badge import OfflineBadge
from .services.channels import Channels
from .services.counting import Counting
from .services.explain import Explain
from .services.figures import Figures
from .services.inbox import UserInbox
from .services.live import Live
from .services.loading import Loader
from .services.messages import Messages
from .services.places import Places
from .services.preferences import ChannelPreferences
from .services.presence import UserPresence
from .services.reads import Reads
from .services.receipts import ReadReceipts
from .services.resume import Missed
from .services.threads import ThreadPanel
from .services.transfer import Transfer
from .services.transfer_lines import Checks
from .services.under_way import UnderWay, Writing
from .services.unread_messages import UnreadView
from .settings import Settings, make_settings
from .workers.message_writer import MessageWriter
from .workers.receipt_persister import ReceiptPersister

HOUSEKEEPING_SECONDS = 5
EXPIRE_TURNS = 720
"""What badges need no more is removed once an hour."""
PING_SECONDS = 3
LOCK_FILE = "lock"


def system_clock() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Readstate:
    """The whole service inside one program. `await` it or use it with `async with`; then its services are there."""

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
    figures: Figures
    live: Live
    transfer: Transfer
    durable: SqlStore

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.instance_id = settings.instance_id or secrets.token_hex(4)
        self._stack = contextlib.AsyncExitStack()
        self._dependencies: dict[str, Callable[[], Awaitable[None]]] = {}
        self._lost = asyncio.Event()

    @classmethod
    def open(cls, *, settings: Settings | None = None, clock: Clock = system_clock, **overrides: object) -> "Readstate":
        """A service over these settings: an object, or single ones by their lower-case names."""
        if settings is not None and overrides:
            raise ConfigurationError("give settings or single ones by name, not both")
        return cls(settings or make_settings(**overrides), clock)

    def __await__(self) -> Generator[None, None, "Readstate"]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> "Readstate":
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish what was accepted, then stop."""
        await self._stack.aclose()

    async def is_member(self, user: str, channel: str) -> bool:
        """Whether a user is in a channel that exists."""
        if (await self._loader.channels([channel]))[0] is None:
            return False
        seats = (await self._loader.view(user, [channel])).seats
        return bool(seats) and seats[0].member

    async def ready(self) -> dict[str, str]:
        """Each dependency, and "ok" or what is wrong with it."""
        states = await asyncio.gather(*(_state(ping) for ping in self._dependencies.values()))
        return dict(zip(self._dependencies, states, strict=True))

    async def lost(self) -> None:
        """Return when another process has taken the store over: all writes are refused from then on."""
        await self._lost.wait()

    async def evict(self) -> None:
        """Drop all hot state; it is loaded again on use."""
        await self._hot.clear()

    # ------------------------------------------------------------ the embedded profile

    async def _start(self) -> None:
        self._stack.callback(_take_directories(self.settings))
        durable = self.durable = await self._open_durable()
        position = await durable.last_position()
        self._store_id = await durable.store_id()
        hot = self._hot = await self._open_hot(position)
        persister = ReceiptPersister(durable)
        bus, writing = LocalBus(), Writing()
        writer = MessageWriter(
            durable,
            hot.users,
            hot.channels,
            hot.badges,
            hot.presence,
            bus,
            persister.handle,
            self._read_in_focus,
            hot.clear,
            writing,
            self.clock,
            self.instance_id,
        )
        log = LocalLog(position, writer.handle, persister.handle)
        self._stack.push_async_callback(log.close)
        self._assemble(log, hot, durable, bus, writing)
        bus.subscribe(self.live.hear, self.live.is_idle)
        self._stack.push_async_callback(self.live.close)
        self._stack.push_async_callback(self.reads.close)
        self._stack.push_async_callback(_cancel, asyncio.create_task(self._housekeeping()))

    async def _open_durable(self) -> SqlStore:
        """The store, which this process alone writes to."""
        s = self.settings
        durable: SqlStore
        if s.in_sqlite:
            os.close(os.open(s.database_path, os.O_RDWR | os.O_CREAT, 0o600))  # texts are nobody else's business
            durable = await SqliteStore.open(s.database_path, s.fanout_max_members)
            self._stack.push_async_callback(durable.close)
        else:
            with _extra("asyncpg", "PostgreSQL"):
                from .durable.lease import open_alone  # noqa: PLC0415 - an extra
            durable, lease = await open_alone(
                s.database_url, s.fanout_max_members, s.database_connections, self.instance_id
            )
            self._lost = lease.lost
            self._stack.push_async_callback(durable.close)
            self._stack.push_async_callback(lease.release)
        self._dependencies["database"] = durable.ping
        return durable

    async def _open_hot(self, position: int) -> Hot:
        s = self.settings
        if not s.hot_url:
            return MemoryHot(
                unread_cap=s.unread_cap,
                generation=await self.durable.next_generation(),
                position=position,
                clock=self.clock,
                ledger_ttl=s.ledger_ttl,
                max_bytes=s.hot_memory * 2**20,
            )
        with _extra("redis", "Valkey or Redis"):
            from .hot.valkey import ValkeyHot  # noqa: PLC0415 - an extra
        hot = ValkeyHot(
            s.hot_url,
            prefix=s.key_prefix,
            unread_cap=s.unread_cap,
            clock=self.clock,
            ledger_ttl=s.ledger_ttl,
            position=position,
            store=self._store_id,
            next_generation=self.durable.next_generation,
        )
        self._stack.push_async_callback(hot.close)
        await hot.clear()  # what an earlier process left there may be behind the durable store
        self._dependencies["hot_store"] = hot.ping
        return hot

    def _assemble(self, log: LocalLog, hot: Hot, durable: SqlStore, bus: LocalBus, writing: Writing) -> None:
        s = self.settings
        under_way = UnderWay()
        loader = self._loader = Loader(hot.users, hot.channels, durable, s.unread_cap, hot.loaded)
        places = Places(durable)
        counting = Counting(loader, places, self.clock, s.display_cap)
        acceptance = Acceptance(self.clock)
        self.channels = Channels(
            log,
            loader,
            places,
            durable,
            self.clock,
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
            max_batch=s.max_batch,
            max_text=s.max_text,
            max_mentions=s.max_mentions,
            preview_length=s.preview_length,
            store_text=s.store_text,
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
            under_way,
            self.clock,
            instance_id=self.instance_id,
            max_batch=s.max_batch,
            unread_cap=s.unread_cap,
            undo_ttl=s.undo_ttl,
        )
        self.badge = OfflineBadge(
            hot.badges,
            durable,
            counting,
            acceptance,
            bus,
            mode=s.badge_mode,
            max_messages=s.max_page,
            retention=s.badge_retention,
        )
        self.unread = UnreadView(
            hot.users,
            hot.channels,
            loader,
            counting,
            under_way,
            self.badge.count,
            self.clock,
            durable,
            store_id=self._store_id,
            max_page=s.max_page,
            max_batch=s.max_batch,
        )
        self.threads = ThreadPanel(log, loader, durable, self.reads, counting, self.clock, max_page=s.max_page)
        self.receipts = ReadReceipts(durable, loader, receipts_max_members=s.receipts_max_members)
        self.presence = UserPresence(hot.presence, loader, durable, self.clock)
        self.preferences = ChannelPreferences(hot.users, durable, loader, bus, under_way, self.clock)
        self.inbox = UserInbox(loader, counting, self.unread, self.preferences, max_page=s.max_page)
        self.explain = Explain(hot.users, hot.channels, durable, loader, counting, under_way, bus, self.unread)
        checks = Checks(
            self.clock,
            max_text=s.max_text,
            max_mentions=s.max_mentions,
            preview_length=s.preview_length,
            store_text=s.store_text,
        )
        self.transfer = Transfer(durable.transfer, log, hot, places, under_way, bus, self.clock, checks)
        self.figures = Figures(
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
        missed = Missed(durable, self.unread, self.figures, receipts_max_members=s.receipts_max_members)
        self.live = Live(
            hot.users,
            hot.channels,
            hot.badges,
            hot.presence,
            durable,
            loader,
            self.unread,
            self.receipts,
            self.figures,
            missed,
            under_way,
            writing,
            self.clock,
        )

    async def _read_in_focus(self, places: Sequence[tuple[str, str, Position]]) -> None:
        """The writer is there before the service that it reads through."""
        await self.reads.read_in_focus(places)

    async def _housekeeping(self) -> None:
        for turn in itertools.count(1):
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            with contextlib.suppress(ReadstateError):
                await self.presence.expire()
                await self._hot.bound()
                if turn % EXPIRE_TURNS == 0:
                    await self.badge.expire()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _state(ping: Callable[[], Awaitable[None]]) -> str:
    try:
        await asyncio.wait_for(ping(), PING_SECONDS)
    except ReadstateError as error:
        return error.detail
    except TimeoutError:
        return f"does not answer within {PING_SECONDS} s"
    return "ok"


@contextlib.contextmanager
def _extra(package: str, what: str) -> Iterator[None]:
    """Around the import of an adapter whose library not everybody needs."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ConfigurationError(f"{what} needs a library that is missing: pip install 'readstate[cluster]'") from error


def _take_directories(settings: Settings) -> Callable[[], None]:
    for needed in (settings.store_directory, Path(settings.data_dir)):
        needed.mkdir(parents=True, exist_ok=True)
    return _lock(settings.store_directory)


def _lock(directory: Path) -> Callable[[], None]:
    """Take the directory for this process; the file is held, never removed."""
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
    """Whether a running process has the store."""
    path = Path(data_dir) / LOCK_FILE
    if not path.exists():
        return False
    try:
        _lock(Path(data_dir))()
    except ConfigurationError:
        return True
    return False


def migrate(settings: Settings, check_only: bool = False) -> tuple[int, int]:
    """Bring the schema up to date, or only tell: (from, to)."""
    if not settings.in_sqlite:
        return asyncio.run(_migrate_postgres(settings, check_only))
    settings.database_path.parent.mkdir(parents=True, exist_ok=True)
    connection = connect(settings.database_path)
    try:
        return migrations_missing(connection) if check_only else migrate_sqlite(connection)
    finally:
        connection.close()


async def _migrate_postgres(settings: Settings, check_only: bool) -> tuple[int, int]:
    with _extra("asyncpg", "PostgreSQL"):
        from .durable.postgres import migrate as migrate_postgres  # noqa: PLC0415 - an extra
    return await migrate_postgres(settings.database_url, check_only)


async def store_exists(settings: Settings) -> bool:
    """Whether there is anything where the settings say."""
    if settings.in_sqlite:
        return settings.database_path.exists()
    return (await _migrate_postgres(settings, check_only=True))[0] > 0
