"""How long a running service waits, pauses and keeps things. Profiles inject it, as they inject the clock.

Operators never set these: what depends on the deployment is a setting. Seconds, unless a name ends with `_ms`. Tests
pass shorter ones.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpTimings:
    """The gateway."""

    jwks_fetch: float = 10.0
    """From the first connection attempt to the last byte, redirects included."""
    jwks_max_age: float = 300.0
    """Older keys are fetched again, in the background."""
    jwks_unknown_key_pause: float = 30.0
    """Between two fetches for keys that a token names and nobody knows."""
    jwks_failure_pause: float = 1.0
    sweep: float = 0.5
    """Interval of the sweep over deadlines: one timer for all connections, and none while no connection waits."""
    linger: float = 2.0
    """After a refusal, further input is discarded for this long. Closing with unread bytes would reset the connection,
    and the client might never see the reason."""
    accept_pause: float = 0.25
    """After a failure to accept a connection."""
    warning_interval: float = 60.0
    """Between two warnings of one kind about connections."""
    without_hot_store: float = 2.0
    """After a failure of the hot store, requests that can do without it do not try it."""
    close: float = 5.0
    """A device that does not answer a close is dropped."""


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
