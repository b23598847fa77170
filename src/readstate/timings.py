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


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveTimings:
    """Live updates."""

    retry: float = 1.0
    """Before a lookup or a rendering that failed is tried again."""
    correction_check: float = 1.0
    """Between two checks whether late corrections can be sent."""
    announced_within_ms: int = 10_000
    """An announcement arrives at most this long after the hot store shows its change."""
    cursor_distance_ms: int = 20_000
    """Between two cursors of a `CursorHistory`: the older one is at least this old."""
    max_mute_timer: float = 86_400.0


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
