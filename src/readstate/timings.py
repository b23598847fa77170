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
