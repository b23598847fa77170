"""The one table of settings: type, default, help and bounds."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from readstate.domain.errors import ConfigurationError

from . import checks
from .checks import About, Value, faults, refuse
from .together import faults_together

PREFIX = "READSTATE_"
DATABASE_FILE = "readstate.db"
T = TypeVar("T")


def _setting(default: T, text: str, low: int | None = None, high: int | None = None, **about: Any) -> T:
    """A field of the table, with the rest of its `About`."""
    return field(default=default, metadata={"about": About(text, low, high, **about)})


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Settings:
    """All settings of a service. Making one checks it: what exists is valid."""

    profile: Literal["embedded", "cluster"] = _setting(
        "embedded",
        "How it runs: embedded (everything in one process) or cluster (any number of processes over Valkey or "
        "Redis, Kafka and PostgreSQL)",
    )
    host: str = _setting("127.0.0.1", "Address to listen on", check=checks.host)
    port: int = _setting(8080, "Port to listen on; 0 takes a free one", 0, 65_535)
    tls_cert: str = _setting(
        "", "File with the certificate (and its chain) of HTTPS and WSS; goes with tls_key; empty: plain HTTP"
    )
    tls_key: str = _setting("", "File with the key of that certificate, without a passphrase")
    data_dir: str = _setting(
        "./readstate-data", "Directory of the database and of generated secrets", check=checks.not_empty
    )
    database_url: str = _setting(
        "",
        "sqlite:///path or postgresql://user:password@host/name; empty: readstate.db in the data directory",
        url=True,
        check=checks.database_url,
    )
    accept_data_loss: bool = _setting(
        False,
        "Start though the store's file is empty, damaged, or lacks its write-ahead log after a crash: what is gone "
        "is lost. For one start (embedded profile)",
    )
    database_connections: int = _setting(10, "Most connections to PostgreSQL", 2, 1_000)
    hot_url: str = _setting(
        "",
        "Valkey or Redis for the hot state: redis://host:port, rediss:// with TLS, "
        "redis+cluster://host:port,host:port; empty: in the memory of the process",
        url=True,
        check=checks.hot_url,
    )
    key_prefix: str = _setting(
        "", "Prefix of every key in Valkey or Redis, for shared servers", check=checks.key_prefix
    )
    write_replica_url: str = _setting(
        "",
        "A second Valkey or Redis that saves the first one writes of badges (cluster profile)",
        url=True,
        check=checks.hot_url,
    )
    kafka_bootstrap: tuple[str, ...] = _setting(
        (), "Brokers of Kafka (host:port), comma separated (cluster profile)", check=checks.broker
    )
    kafka_security: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = _setting(
        "plaintext", "Security protocol of connections to Kafka"
    )
    kafka_ca: str = _setting("", "File with the CA certificates that verify the brokers; empty: those of the system")
    kafka_certificate: str = _setting("", "File with the client certificate for Kafka")
    kafka_key: str = _setting("", "File with the key of that certificate")
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = _setting(
        "SCRAM-SHA-512", "SASL mechanism for Kafka"
    )
    kafka_username: str = _setting("", "SASL user name for Kafka")
    kafka_password: str = _setting("", "Password of that user", secret=True)
    topic_prefix: str = _setting(
        "", "Prefix of every topic and consumer group, for shared brokers", check=checks.topic_prefix
    )
    partitions: int = _setting(32, "Partitions of a topic; cannot be changed once the topics exist", 1, 10_000)
    produce_timeout: int = _setting(
        100, "Milliseconds that Kafka has to acknowledge a read; then it goes to the local spool", 1, 60_000
    )
    packed_records: Literal["auto", "on", "off"] = _setting(
        "auto",
        "Whether events of one partition share a record in Kafka: auto (once every process reads such records), on "
        "or off",
    )
    spool_max: int = _setting(1_024, "Limit of the local spool in MiB; beyond it reads are refused", 1, 1_048_576)
    wait_timeout: int = _setting(5, "Seconds that a request waits until the log is applied", 1, 600)
    stale_after: int = _setting(
        5, "Seconds that an accepted message may wait to be applied before counts of its channel are stale", 1, 86_400
    )
    max_lag: int = _setting(
        0, "Seconds that accepted messages may wait before new ones are refused; 0: never refused", 0, 86_400
    )
    session_timeout: int = _setting(
        10_000,
        "Milliseconds without a heartbeat after which other workers take over a worker's partitions",
        1_000,
        300_000,
    )
    write_batch: int = _setting(500, "Most channel events in one write", 1, 10_000)
    persist_batch: int = _setting(25_000, "Most read events folded into one write", 500, 1_000_000)
    persist_rate: int = _setting(0, "Rows of read states written per second; 0: no limit", 0, 10_000_000)
    reconcile_every: int = _setting(
        3_600, "Seconds between two comparisons of hot store and database; 0: never", 0, 31_536_000
    )
    audit_sample: int = _setting(
        20,
        "Users and channels that the role auditor recounts per minute to find drift (cluster profile); 0: none",
        0,
        1_000_000,
    )
    worker_port: int = _setting(
        9_100,
        "Port of a worker's health and metrics; 0 takes a free one, further processes take the next ones",
        0,
        65_535,
    )
    badge_retention: int = _setting(
        604_800, "Seconds that undelivered messages are kept after a tap on the badge", 0, 3_153_600_000
    )
    badge_max_age: int = _setting(
        7_776_000,
        "Seconds after which a sender leaves the badge of a user who does not tap, until the sender writes again",
        86_400,
        3_153_600_000,
    )
    service_keys: tuple[str, ...] = _setting(
        (),
        "Keys of chat backends, comma separated; none: one is generated in the data directory",
        secret=True,
        check=checks.service_key,
    )
    jwt_secret: str = _setting(
        "",
        "Secret of HS256 user tokens; empty: one is generated in the data directory",
        secret=True,
        check=checks.jwt_secret,
    )
    jwks: str = _setting(
        "", "File or URL of the public keys of RS256 and ES256 user tokens", url=True, check=checks.jwks
    )
    jwt_issuer: str = _setting("", "Issuer (iss) that user tokens must name; empty: any")
    jwt_audience: str = _setting("", "Audience (aud) that user tokens must name; empty: any")
    jwt_user_claim: str = _setting("sub", "Claim of a user token that holds the user's id", check=checks.not_empty)
    display_cap: int = _setting(99, "Labels of higher counts show this number with a plus", 1, 1_000_000)
    store_text: Literal["full", "preview", "none"] = _setting("full", "What is kept of a message's text")
    cors_origins: tuple[str, ...] = _setting(
        (), "Web origins that may call the API, comma separated, or *; none: no CORS", check=checks.origin
    )
    fanout_max_members: int = _setting(100, "Channels with more members are counted from one timeline", 0, 100_000)
    receipts_max_members: int = _setting(100, "Larger channels show only how many have seen a message", 0, 100_000)
    badge_mode: Literal["precomputed", "on_the_fly", "off"] = _setting(
        "precomputed", "How the offline badge is counted; off: it is 0, a tap shows nothing, and nothing is kept for it"
    )
    instance_id: str = _setting("", "Name of this process in logs and events; empty: random", check=checks.instance_id)
    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "Lowest level that is logged")
    traces: bool = _setting(
        False,
        "OpenTelemetry traces of requests and of workers' batches, sent where the OTEL_ variables say; needs the "
        "extra otel",
    )
    demo: bool = _setting(False, "The demo page at /demo, which gives every visitor a sandbox")
    metrics_port: int = _setting(
        0,
        "Port of /metrics on an address of its own, with --workers N the next ones too; 0: on the main port",
        0,
        65_535,
    )
    rate_limit: int = _setting(
        50,
        "Requests, frames and new live connections per second of one user, in each process; four times as many "
        "may come at once; 0: no limit",
        0,
        1_000_000,
    )
    service_rate_limit: int = _setting(
        0,
        "The same of one service key, in each process; four times as many may come at once; 0: no limit",
        0,
        10_000_000,
    )
    max_devices: int = _setting(32, "Most live connections of one user, in each process; 0: no limit", 0, 1_000_000)
    heartbeat: int = _setting(20, "Seconds between pings of a live connection; two missed end it", 1, 3_600)
    hello_timeout: int = _setting(10, "Seconds that a live connection has to send hello", 1, 600)
    max_frame: int = _setting(65_536, "Largest frame of a live connection in bytes", 1_024, 2**24)
    max_queue: int = _setting(
        1_048_576, "Bytes that may wait for a slow device; beyond that it is disconnected", 16_384, 2**30
    )
    max_connections: int = _setting(
        10_000, "Most open connections of one process; a further one gets 503", 1, 10_000_000
    )
    header_timeout: int = _setting(
        15,
        "Seconds from a new connection, or from the first byte of its next request, to the end of the headers; "
        "a TLS handshake has the same time",
        1,
        3_600,
    )
    body_timeout: int = _setting(
        30, "Seconds without a byte after which a request's body, or an answer that is not read, is given up", 1, 3_600
    )
    max_header_bytes: int = _setting(
        65_536, "Most bytes of a request line with its headers, of which 128 are allowed", 1_024, 2**24
    )
    max_body: int = _setting(1_048_576, "Largest request body in bytes", 1_024, 2**30)
    max_text: int = _setting(8_192, "Longest text of a message in bytes", 1, 2**30)
    max_batch: int = _setting(1_000, "Most items in one request", 1, 100_000)
    max_mentions: int = _setting(1_000, "Most mentions in one message", 0, 100_000)
    max_page: int = _setting(1_000, "Most items in one page of a list", 1, 100_000)
    unread_cap: int = _setting(10_000, "Counts above this are lower bounds", 1, 1_000_000)
    preview_length: int = _setting(100, "Characters of a message's preview", 0, 10_000)
    undo_ttl: int = _setting(600, "Seconds in which mark-all-read can be undone", 1, 31_536_000)
    ledger_ttl: int = _setting(2_592_000, "Seconds without activity after which hot state is dropped", 1, 3_153_600_000)
    hot_memory: int = _setting(512, "Limit of the hot state in memory, in MiB", 1, 1_048_576)
    workers: int = _setting(1, "Server processes; the embedded profile has one", 1, 1_024)
    shutdown_grace: int = _setting(10, "Seconds that running requests get when the service stops", 0, 3_600)

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in ABOUT}
        refuse([fault for name, value in values.items() for fault in faults_of(name, value, name)])
        refuse(faults_together(values, {}))

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={_shown(name, getattr(self, name))}' for name in ABOUT)})"

    @property
    def in_sqlite(self) -> bool:
        """Whether the durable store is a file, not a server."""
        return not self.database_url or self.database_url.startswith("sqlite:")

    @property
    def store_directory(self) -> Path:
        """The directory that belongs to the process which has the store."""
        return self.database_path.parent if self.in_sqlite else Path(self.data_dir)

    @property
    def database_path(self) -> Path:
        """The SQLite file, where the store is one."""
        if self.database_url:
            return Path(self.database_url.removeprefix("sqlite:///"))
        return Path(self.data_dir) / DATABASE_FILE

    def require_cluster(self) -> None:
        """Raise ConfigurationError in the embedded profile."""
        if self.profile != "cluster":
            text = "this is for the cluster profile (PROFILE=cluster); the embedded one does it all in one process"
            raise ConfigurationError(text)


class Row(NamedTuple):
    """One setting as a reference page shows it."""

    name: str
    variable: str
    type: str
    default: Value
    about: About


def _about() -> dict[str, About]:
    types = get_type_hints(Settings)
    return {one.name: replace(one.metadata["about"], choices=_choices(types[one.name])) for one in fields(Settings)}


def _choices(kind: Any) -> tuple[str, ...]:
    return get_args(kind) if get_origin(kind) is Literal else ()


ABOUT: Mapping[str, About] = _about()
DEFAULTS: Mapping[str, Value] = {one.name: one.default for one in fields(Settings) if one.default is not MISSING}


def describe() -> list[Row]:
    """Every setting in the order of the table."""
    kinds = {bool: "true or false", int: "whole number", str: "text", tuple: "list"}
    return [
        Row(name, PREFIX + name.upper(), kinds[type(DEFAULTS[name])], DEFAULTS[name], about)
        for name, about in ABOUT.items()
    ]


def faults_of(name: str, value: object, source: str) -> list[str]:
    return faults(value, DEFAULTS[name], ABOUT[name], source)


def without_password(url: str) -> str:
    """A URL as it may be shown."""
    url = re.sub(r"(?<=://)([^:@/?]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"([?&]\w*password=)[^&#]*", r"\1***", url, flags=re.IGNORECASE)


def _shown(name: str, value: Value) -> str:
    if value and ABOUT[name].secret:
        return "<hidden>"
    return repr(without_password(value) if ABOUT[name].url and isinstance(value, str) else value)
