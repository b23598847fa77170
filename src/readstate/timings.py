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
