"""The service as a whole, in either profile."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import TYPE_CHECKING

from readstate.adapters.sql.sqlite.file import migrated, missing_migrations
from readstate.adapters.sql.store import SqlStore
from readstate.domain.errors import ConfigurationError, ReadstateError
from readstate.extras import extra
from readstate.ports import Clock, DurableDeadLetters, Hot
from readstate.settings import Settings, make_settings
from readstate.tasks import cancel
from readstate.timings import Timings

from .embedded import Embedded
from .lock import store_held
from .wiring import Services

if TYPE_CHECKING:
    from readstate.tracing import Tracing

    from .cluster import Cluster

DEFAULT_TIMINGS = Timings()


def system_clock() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Readstate(Services):
    """The whole service inside one program. `await` it or use it with `async with`; then its services are available."""

    durable: SqlStore
    hot: Hot

    def __init__(self, settings: Settings, clock: Clock, timings: Timings) -> None:
        self.settings = settings
        self.clock = clock
        self.timings = timings
        self.instance_id = settings.instance_id or secrets.token_hex(4)
        self._stack = contextlib.AsyncExitStack()
        self.tracing = make_tracing(settings, self.instance_id)
        self._profile = self._make_profile()
        self._pinging: asyncio.Task[dict[str, str]] | None = None
        self._ping_at = 0.0

    @classmethod
    def open(
        cls,
        *,
        settings: Settings | None = None,
        clock: Clock = system_clock,
        timings: Timings = DEFAULT_TIMINGS,
        **overrides: object,
    ) -> "Readstate":
        """A service with these settings: an object, or single settings by their lower-case names."""
        if settings is not None and overrides:
            raise ConfigurationError("give settings or single ones by name, not both")
        return cls(settings or make_settings(**overrides), clock, timings)

    def __await__(self) -> Generator[None, None, "Readstate"]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> "Readstate":
        try:
            if self.tracing is not None:
                self.tracing.open()
                self._stack.push_async_callback(self.tracing.close)  # closes last: it exports spans of the shutdown
            self.durable, self.hot = await self._profile.start(self)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish what was accepted, then stop."""
        self.begin_stop()
        if self._pinging is not None:
            await cancel(self._pinging)
        await self._stack.aclose()

    def begin_stop(self) -> None:
        """Announce a `close`: from now on requests and workers do not wait long for a log that does not answer."""
        self._profile.begin_stop()

    async def ready(self) -> dict[str, str]:
        """Each dependency, with "ok" or its fault. Pings at most once a second, because a ping writes.

        A state that begins with `behind` is not the fault of a dependency.
        """
        if self._pinging is None or (self._pinging.done() and time.monotonic() >= self._ping_at):
            self._pinging = asyncio.create_task(self._ping())
            self._ping_at = time.monotonic() + self.timings.services.ready_cache
        return dict(await asyncio.shield(self._pinging)) | self._profile.lags()

    async def _ping(self) -> dict[str, str]:
        seconds = self.timings.services.ping
        states = await asyncio.gather(*(_state(ping, seconds) for ping in self._profile.dependencies.values()))
        return dict(zip(self._profile.dependencies, states, strict=True))

    async def lost(self) -> ReadstateError:
        """Return, with the reason, when the service can't go on.

        Either another process has taken over the store, which refuses all writes of this one from then on; or Kafka,
        which was unavailable at the start, does not match the settings.
        """
        await self._profile.lost.wait()
        return self._profile.loss

    async def without_hot_store(self) -> Services | None:
        """The services over the durable store alone, while the hot store is unavailable; None: not in this profile."""
        return await self._profile.without_hot_store()

    async def evict(self) -> None:
        """Drop all hot state; it is reloaded on use."""
        await self.hot.clear()

    @property
    def cluster(self) -> "Cluster":
        """The cluster profile. Raises ConfigurationError in the embedded profile."""
        self.settings.require_cluster()
        assert not isinstance(self._profile, Embedded)
        return self._profile

    def _make_profile(self) -> "Embedded | Cluster":
        if self.settings.profile == "embedded":
            return Embedded(self.settings, self.clock, self.timings, self.instance_id, self._stack, self.tracing)
        with extra("redis", "Valkey or Redis"), extra("asyncpg", "PostgreSQL"), extra("confluent_kafka", "Kafka"):
            from .cluster import Cluster  # noqa: PLC0415 - an extra
        return Cluster(self.settings, self.clock, self.timings, self.instance_id, self._stack, self.tracing)


def make_tracing(settings: Settings, instance_id: str = "") -> "Tracing | None":
    """None, without any import, unless the settings ask for traces. Refuses if the library is missing."""
    if not settings.traces:
        return None
    with extra("opentelemetry", "TRACES", "otel"):
        from readstate.tracing import Tracing  # noqa: PLC0415 - an extra
    return Tracing(instance_id)


async def _state(ping: Callable[[], Awaitable[None]], seconds: float) -> str:
    try:
        await asyncio.wait_for(ping(), seconds)
    except ReadstateError as error:
        return error.detail
    except TimeoutError:
        return f"does not answer within {seconds:g} s"
    return "ok"


def migrate(settings: Settings, check_only: bool = False) -> tuple[int, int]:
    """Bring the schema up to date, or only report: (from, to)."""
    if not settings.in_sqlite:
        return asyncio.run(_migrate_postgres(settings, check_only))
    if check_only:
        return missing_migrations(settings.database_path)
    with store_held(settings):
        return migrated(settings.database_path, settings.accept_data_loss)


async def _migrate_postgres(settings: Settings, check_only: bool) -> tuple[int, int]:
    with extra("asyncpg", "PostgreSQL"):
        from readstate.adapters.sql.postgres.store import migrate as migrate_postgres  # noqa: PLC0415 - an extra
    return await migrate_postgres(settings.database_url, DEFAULT_TIMINGS.sql, check_only)


@contextlib.asynccontextmanager
async def open_dead_letters(settings: Settings) -> AsyncIterator[DurableDeadLetters]:
    """The list of dead letters, from the database alone: every other server may be down."""
    with extra("asyncpg", "PostgreSQL"):
        from readstate.adapters.sql.postgres.store import PostgresStore  # noqa: PLC0415 - an extra
    store = await PostgresStore.open(settings.database_url, settings.fanout_max_members, DEFAULT_TIMINGS.sql, 2)
    try:
        yield store
    finally:
        await store.close()


async def store_exists(settings: Settings) -> bool:
    if settings.in_sqlite:
        return settings.database_path.exists()
    return (await _migrate_postgres(settings, check_only=True))[0] > 0
