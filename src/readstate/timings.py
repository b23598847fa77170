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
    """Between two fetches that tokens with an unknown key cause."""
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
    aside_ms: int = 1_000
    """While the hot store is unavailable, state that was loaded without it is kept this long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveTimings:
    """Live updates."""

    retry: float = 1.0
    """Before a lookup or a rendering that failed is tried again."""
    receipts: float = 0.02
    """Between two lookups of receipts, while reads follow each other: those of many readers leave together."""
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
    gather_reads: float = 0.3
    """Reads are gathered this long, or until a batch is full."""
    gather_slice: float = 0.1
    """Reads are taken from the log for this long at once; a commit waits for the end of that."""
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

    connect: float = 1.0
    answer: float = 3.0
    """Socket timeout of a call to the hot store."""
    patience: float = 5.0
    """How long calls are retried; then callers get HotStoreUnavailable."""
    first_retry: float = 0.01
    longest_retry: float = 0.5
    first_confirmation_retry: float = 0.02
    generation: float = 1.0
    """The least time between two new numbers. Epochs are multiples of them, and Lua counts in doubles."""
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
    packed_after: float = 60.0
    """Packed records are written once every process has said for this long that it reads them."""
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
    stop: float = 2.0
    """From the beginning of a stop, for all answers of Kafka together; what is not answered by then is given up."""
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
