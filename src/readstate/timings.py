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

    connect: float = 1.0
    answer: float = 3.0
    """Socket timeout of a call to the hot store."""
    patience: float = 5.0
    """How long calls are retried; then callers get HotStoreUnavailable."""
    first_retry: float = 0.01
    longest_retry: float = 0.5
    first_confirmation_retry: float = 0.02
    late: float = 2.0
    """How long a call whose late copy would do harm stays valid. A slower server refuses it."""

    load_ms: int = 60_000
    """A load of a user or a timeline that takes longer than this is refused. Its staged keys expire then."""
    badge_hold_ms: int = 15_000
    """A tap whose process died blocks loads of the badge for this long."""
    spool_note_ms: int = 10_000
    """How long a note about a spool counts. It is renewed about every second."""

    heartbeat: float = 1.0
    """Between renewals of an instance's lease."""
    lease_ms: int = 10_000
    """An instance that does not renew its lease for this long is gone."""
    settle_ms: int = 3_000
    """After a loss of the hot store, all instances write their connected users again within this time."""
    lease_cache: float = 1.0
    """How long the leases of other instances are cached."""
    gather: float = 0.02
    """Signs of life are collected for this long before the messages that they prove are removed."""
    focus_ms: int = 3 * 3600 * 1000
    """How long the list of users who have a channel open is kept."""
    focus_renewal: float = 3600.0
    """Between writes of the users who still have a channel open to its list."""
    focus_grace_ms: int = 60_000
    """A user who opened a channel this recently stays on its list, although no device shows it."""
    listed_ms: int = 3 * 3600 * 1000
    """How long the list of a dead instance's users is kept."""
    presence_close: float = 2.0

    bus_answer: float = 1.0
    bus_heartbeat: float = 1.0
    """A publisher with nothing to publish sends a heartbeat."""
    bus_check: float = 1.0
    """Between checks for silent publishers and a dead connection."""
    bus_deaf: float = 3.0
    """A subscriber reconnects if the server, or its own batches, have not been received for this long."""
    bus_silent: float = 5.0
    """A publisher that sends nothing for this long may have died with unsent batches."""
    bus_first_retry: float = 0.05
    bus_longest_retry: float = 2.0
    bus_close: float = 2.0

    replica_answer: float = 0.5
    """For all calls to the write replica that one batch makes. Then the replica is paused."""
    replica_pause: float = 5.0
    replica_ttl_ms: int = 24 * 3600 * 1000
    """A set without a new sender expires. It is filled again on use."""


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
