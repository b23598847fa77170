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

    freshness_poll: float = 0.2
    freshness_settle: float = 3.0
    """After a loss, every instance has reported within this time whether it has reads in its spool."""
    freshness_late: float = 15.0
    """A read in flight to the log when the hot store was lost is there, or was refused, after this time."""
    persister_patience: float = 60.0
    """How long repairs and exports wait for the persister."""
    persister_answer: float = 2.0
    """How long a request waits for the persister."""
    aside_ms: int = 1_000
    """While the hot store is unavailable, state that was loaded without it is kept this long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveTimings:
    """Live updates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerTimings:
    """Workers and their roles."""

    retries: tuple[float, ...] = (1.0, 2.0, 4.0)
    """Before each retry of an event that fails by itself."""
    first_back_off: float = 0.05
    longest_back_off: float = 2.0
    heartbeat: float = 2.0
    """Between heartbeats to the consumer group during a batch."""
    lag: float = 5.0
    """Between measurements of the lag."""
    stuck: float = 60.0
    """A loop that has completed no turn for this long is not ready."""
    gather_messages: float = 0.005
    """Messages are gathered only this long: senders wait for them."""
    gather_reads: float = 1.0
    """Reads are gathered this long, or until a batch is full."""
    gather_unsent: float = 0.2
    gather_dead_letters: float = 1.0
    positions: float = 1.0
    """Between two looks of the message writer at its partitions."""
    claim: float = 10.0
    """Between two attempts to claim a periodic job."""
    audit: float = 60.0
    drift: float = 60.0
    """A difference that stands this long is drift. By then a message writer that was killed in a batch is replaced, and
    its batch applied.
    """
    expire: float = 3_600.0
    """Between two removals of rows that badges no longer need."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlTimings:
    """SQLite and PostgreSQL."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValkeyTimings:
    """Valkey or Redis: hot store, presence and bus."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KafkaTimings:
    """The log and its spool."""

    answer: float = 10.0
    """Every call has an answer by then."""
    delivery: float = 8.0
    """`delivery.timeout.ms`. librdkafka checks for timeouts once a second: `answer` must be longer."""
    attempt: float = 1.0
    """One of several attempts to reach a broker."""
    retry: float = 0.1
    """Before a question to brokers that have no leader or coordinator yet is repeated."""
    poll: float = 0.001
    """Between polls for acknowledgements while records are in flight."""
    idle_poll: float = 1.0
    """Between polls while nothing is in flight: librdkafka may still report errors."""
    connect: float = 2.0
    """At the start, before Kafka counts as late."""
    topics: float = 0.5
    """Before missing topics are created again."""
    close: float = 5.0
    applied_poll: float = 0.02
    consume: float = 0.1
    """The least time to wait for the first record: an empty poll costs as much as one that finds records."""
    stuck: float = 60.0
    """If records wait this long while none arrives, librdkafka is taken to stand still."""
    backlog: float = 1.0
    """Between two looks at the backlog; less if the settings demand it."""
    backlog_first: float = 2.0
    drain: float = 5.0
    """Between two attempts to send what is in the spool."""
    adopt: float = 30.0
    """Between two searches for spools of processes that died."""
    heartbeat: float = 1.0
    """Between two reports of what is in the spool."""
    note: float = 1.0
    """How long a read waits for the note about its spool."""
    note_counts_ms: int = 60_000
    """A note counts this long after its last renewal; then other processes go on without those reads."""
    note_renew_ms: int = 15_000
    note_pause_ms: int = 5_000
    """After a failed note, reads do not try the next one for this long."""


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
