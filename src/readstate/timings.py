"""How long a running service waits, pauses and keeps things. Profiles inject it, as they inject the clock.

Operators never set these: what depends on the deployment is a setting. Seconds, unless a name ends with `_ms`. Tests
pass shorter ones.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpTimings:
    """The gateway."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceTimings:
    """Services and profiles."""

    tap: float = 4.0
    """The durable store must take a tap within this time, which is well below the lifetime of its hold."""
    audit_poll: float = 1.0
    freshness_poll: float = 0.2
    settle: float = 3.0
    """After a loss of the hot store, every instance has reported within this time whether it has reads in its spool."""
    late_reads: float = 15.0
    """A read in flight to the log when the hot store was lost is there, or was refused, after this time."""
    persister: float = 60.0
    """How long repairs and exports wait for the persister."""
    persister_in_request: float = 2.0
    """How long a request waits for the persister."""
    ping: float = 3
    ready_cache: float = 1.0
    """The states of the dependencies are reused for this long."""
    housekeeping: float = 5
    """Pause between two turns of housekeeping, in the embedded profile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveTimings:
    """Live updates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerTimings:
    """Workers and their roles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlTimings:
    """SQLite and PostgreSQL."""

    connect: float = 5.0
    free_connection: float = 10.0
    """The longest wait for a free connection of the pool."""
    statement: float = 30.0
    late_answer: float = 5.0
    """A statement that the server does not stop at its timeout is given up this much later."""
    idle_transaction: float = 10.0
    """A process that stops in the middle of a transaction loses its locks after this."""
    idle_snapshot: float = 120.0
    retries: tuple[float, ...] = (0.005, 0.02, 0.05, 0.1, 0.2)
    """The longest pause before each retry of a transaction."""
    max_backoff: float = 1.0
    """While the server cannot be reached, requests fail at once for this long before the next attempt."""
    lease: float = 10.0
    """The next process waits at most this long after a holder was killed."""
    lease_poll: float = 0.25
    migration: float = 24 * 3600.0
    """The longest migration: large tables take long."""
    migration_lock: float = 2.0
    """A migration that cannot lock its tables for this long lets others pass, and retries."""
    export_page: float = 60.0
    """A reader that takes longer for one page loses the export: its snapshot blocks vacuum and checkpoints."""
    busy: float = 5.0
    """The longest wait of SQLite for a lock on its file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValkeyTimings:
    """Valkey or Redis: hot store, presence and bus."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KafkaTimings:
    """The log and its spool."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    """All of them, by package."""

    http: HttpTimings = field(default_factory=HttpTimings)
    services: ServiceTimings = field(default_factory=ServiceTimings)
    live: LiveTimings = field(default_factory=LiveTimings)
    workers: WorkerTimings = field(default_factory=WorkerTimings)
    sql: SqlTimings = field(default_factory=SqlTimings)
    valkey: ValkeyTimings = field(default_factory=ValkeyTimings)
    kafka: KafkaTimings = field(default_factory=KafkaTimings)
