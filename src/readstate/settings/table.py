"""The one table of settings: type, default, help and bounds."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args, get_origin, get_type_hints

from . import checks
from .checks import About, Value, faults, refuse
from .together import faults_together

PREFIX = "READSTATE_"
DATABASE_FILE = "readstate.db"

Profile = Literal["embedded", "cluster"]
BadgeMode = Literal["precomputed", "on_the_fly"]
KafkaSecurity = Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"]
PackedRecords = Literal["auto", "on", "off"]
KafkaSasl = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
StoreText = Literal["full", "preview", "none"]
LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Settings:
    """All settings of a service. Making one checks it: what exists is valid."""

    profile: Annotated[
        Profile,
        About(
            "How it runs: embedded (everything in one process) or cluster (any number of processes over Valkey or "
            "Redis, Kafka and PostgreSQL)",
        ),
    ] = "embedded"
    host: Annotated[str, About("Address to listen on", check=checks.host)] = "127.0.0.1"
    port: Annotated[int, About("Port to listen on; 0 takes a free one", 0, 65_535)] = 8080
    tls_cert: Annotated[
        str, About("File with the certificate (and its chain) of HTTPS and WSS; goes with tls_key; empty: plain HTTP")
    ] = ""
    tls_key: Annotated[str, About("File with the key of that certificate, without a passphrase")] = ""
    data_dir: Annotated[str, About("Directory of the database and of generated secrets", check=checks.not_empty)] = (
        "./readstate-data"
    )
    database_url: Annotated[
        str,
        About(
            "sqlite:///path or postgresql://user:password@host/name; empty: readstate.db in the data directory",
            url=True,
            check=checks.database_url,
        ),
    ] = ""
    accept_data_loss: Annotated[
        bool,
        About(
            "Start though the store's file is empty, damaged, or lacks its write-ahead log after a crash: what is gone "
            "is lost. For one start (embedded profile)"
        ),
    ] = False
    database_connections: Annotated[int, About("Most connections to PostgreSQL", 2, 1_000)] = 10
    hot_url: Annotated[
        str,
        About(
            "Valkey or Redis for the hot state: redis://host:port, rediss:// with TLS, "
            "redis+cluster://host:port,host:port; empty: in the memory of the process",
            url=True,
            check=checks.hot_url,
        ),
    ] = ""
    key_prefix: Annotated[
        str, About("Prefix of every key in Valkey or Redis, for shared servers", check=checks.key_prefix)
    ] = ""
    write_replica_url: Annotated[
        str,
        About(
            "A second Valkey or Redis that saves the first one writes of badges (cluster profile)",
            url=True,
            check=checks.hot_url,
        ),
    ] = ""
    kafka_bootstrap: Annotated[
        tuple[str, ...], About("Brokers of Kafka (host:port), comma separated (cluster profile)", check=checks.broker)
    ] = ()
    kafka_security: Annotated[KafkaSecurity, About("Security protocol of connections to Kafka")] = "plaintext"
    kafka_ca: Annotated[
        str, About("File with the CA certificates that verify the brokers; empty: those of the system")
    ] = ""
    kafka_certificate: Annotated[str, About("File with the client certificate for Kafka")] = ""
    kafka_key: Annotated[str, About("File with the key of that certificate")] = ""
    kafka_sasl_mechanism: Annotated[KafkaSasl, About("SASL mechanism for Kafka")] = "SCRAM-SHA-512"
    kafka_username: Annotated[str, About("SASL user name for Kafka")] = ""
    kafka_password: Annotated[str, About("Password of that user", secret=True)] = ""
    topic_prefix: Annotated[
        str,
        About("Prefix of every topic and consumer group, for shared brokers", check=checks.topic_prefix),
    ] = ""
    partitions: Annotated[int, About("Partitions of a topic; cannot be changed once the topics exist", 1, 10_000)] = 32
    produce_timeout: Annotated[
        int, About("Milliseconds that Kafka has to acknowledge a read; then it goes to the local spool", 1, 60_000)
    ] = 100
    packed_records: Annotated[
        PackedRecords,
        About(
            "Whether events of one partition share a record in Kafka: auto (once every process reads such records), on "
            "or off"
        ),
    ] = "auto"
    spool_max: Annotated[int, About("Limit of the local spool in MiB; beyond it reads are refused", 1, 1_048_576)] = (
        1_024
    )
    wait_timeout: Annotated[int, About("Seconds that a request waits until the log is applied", 1, 600)] = 5
    stale_after: Annotated[
        int,
        About(
            "Seconds that an accepted message may wait to be applied before counts of its channel are stale", 1, 86_400
        ),
    ] = 5
    max_lag: Annotated[
        int, About("Seconds that accepted messages may wait before new ones are refused; 0: never refused", 0, 86_400)
    ] = 0
    session_timeout: Annotated[
        int,
        About(
            "Milliseconds without a heartbeat after which other workers take over a worker's partitions", 1_000, 300_000
        ),
    ] = 10_000
    write_batch: Annotated[int, About("Most channel events in one write", 1, 10_000)] = 500
    persist_batch: Annotated[int, About("Most read events folded into one write", 500, 1_000_000)] = 25_000
    persist_rate: Annotated[int, About("Rows of read states written per second; 0: no limit", 0, 10_000_000)] = 0
    reconcile_every: Annotated[
        int, About("Seconds between two comparisons of hot store and database; 0: never", 0, 31_536_000)
    ] = 3_600
    audit_sample: Annotated[
        int,
        About(
            "Users and channels that the role auditor recounts per minute to find drift (cluster profile); 0: none",
            0,
            1_000_000,
        ),
    ] = 20
    worker_port: Annotated[
        int,
        About(
            "Port of a worker's health and metrics; 0 takes a free one, further processes take the next ones", 0, 65_535
        ),
    ] = 9_100
    badge_retention: Annotated[
        int, About("Seconds that undelivered messages are kept after a tap on the badge", 0, 3_153_600_000)
    ] = 604_800
    service_keys: Annotated[
        tuple[str, ...],
        About(
            "Keys of chat backends, comma separated; none: one is generated in the data directory",
            secret=True,
            check=checks.service_key,
        ),
    ] = ()
    jwt_secret: Annotated[
        str,
        About(
            "Secret of HS256 user tokens; empty: one is generated in the data directory",
            secret=True,
            check=checks.jwt_secret,
        ),
    ] = ""
    jwks: Annotated[
        str, About("File or URL of the public keys of RS256 and ES256 user tokens", url=True, check=checks.jwks)
    ] = ""
    jwt_issuer: Annotated[str, About("Issuer (iss) that user tokens must name; empty: any")] = ""
    jwt_audience: Annotated[str, About("Audience (aud) that user tokens must name; empty: any")] = ""
    jwt_user_claim: Annotated[str, About("Claim of a user token that holds the user's id", check=checks.not_empty)] = (
        "sub"
    )
    display_cap: Annotated[int, About("Labels of higher counts show this number with a plus", 1, 1_000_000)] = 99
    store_text: Annotated[StoreText, About("What is kept of a message's text")] = "full"
    cors_origins: Annotated[
        tuple[str, ...],
        About("Web origins that may call the API, comma separated, or *; none: no CORS", check=checks.origin),
    ] = ()
    fanout_max_members: Annotated[
        int, About("Channels with more members are counted from one timeline", 0, 100_000)
    ] = 100
    receipts_max_members: Annotated[
        int, About("Larger channels show only how many have seen a message", 0, 100_000)
    ] = 100
    badge_mode: Annotated[BadgeMode, About("How the offline badge is counted")] = "precomputed"
    instance_id: Annotated[
        str, About("Name of this process in logs and events; empty: random", check=checks.instance_id)
    ] = ""
    log_level: Annotated[LogLevel, About("Lowest level that is logged")] = "info"
    traces: Annotated[
        bool,
        About(
            "OpenTelemetry traces of requests and of workers' batches, sent where the OTEL_ variables say; needs the "
            "extra otel"
        ),
    ] = False
    demo: Annotated[bool, About("The demo page at /demo, which gives every visitor a sandbox")] = False
    metrics_port: Annotated[
        int,
        About(
            "Port of /metrics on an address of its own, with --workers N the next ones too; 0: on the main port",
            0,
            65_535,
        ),
    ] = 0
    rate_limit: Annotated[
        int,
        About(
            "Requests, frames and new live connections per second of one user, in each process; four times as many "
            "may come at once; 0: no limit",
            0,
            1_000_000,
        ),
    ] = 50
    service_rate_limit: Annotated[
        int,
        About(
            "The same of one service key, in each process; four times as many may come at once; 0: no limit",
            0,
            10_000_000,
        ),
    ] = 0
    max_devices: Annotated[
        int, About("Most live connections of one user, in each process; 0: no limit", 0, 1_000_000)
    ] = 32
    heartbeat: Annotated[int, About("Seconds between pings of a live connection; two missed end it", 1, 3_600)] = 20
    hello_timeout: Annotated[int, About("Seconds that a live connection has to send hello", 1, 600)] = 10
    max_frame: Annotated[int, About("Largest frame of a live connection in bytes", 1_024, 2**24)] = 65_536
    max_queue: Annotated[
        int, About("Bytes that may wait for a slow device; beyond that it is disconnected", 16_384, 2**30)
    ] = 1_048_576
    max_connections: Annotated[
        int, About("Most open connections of one process; a further one gets 503", 1, 10_000_000)
    ] = 10_000
    header_timeout: Annotated[
        int,
        About(
            "Seconds from a new connection, or from the first byte of its next request, to the end of the headers; "
            "a TLS handshake has the same time",
            1,
            3_600,
        ),
    ] = 15
    body_timeout: Annotated[
        int,
        About(
            "Seconds without a byte after which a request's body, or an answer that is not read, is given up", 1, 3_600
        ),
    ] = 30
    max_header_bytes: Annotated[
        int, About("Most bytes of a request line with its headers, of which 128 are allowed", 1_024, 2**24)
    ] = 65_536
    max_body: Annotated[int, About("Largest request body in bytes", 1_024, 2**30)] = 1_048_576
    max_text: Annotated[int, About("Longest text of a message in bytes", 1, 2**30)] = 8_192
    max_batch: Annotated[int, About("Most items in one request", 1, 100_000)] = 1_000
    max_mentions: Annotated[int, About("Most mentions in one message", 0, 100_000)] = 1_000
    max_page: Annotated[int, About("Most items in one page of a list", 1, 100_000)] = 1_000
    unread_cap: Annotated[int, About("Counts above this are lower bounds", 1, 1_000_000)] = 10_000
    preview_length: Annotated[int, About("Characters of a message's preview", 0, 10_000)] = 100
    undo_ttl: Annotated[int, About("Seconds in which mark-all-read can be undone", 1, 31_536_000)] = 600
    ledger_ttl: Annotated[int, About("Seconds without activity after which hot state is dropped", 1, 3_153_600_000)] = (
        2_592_000
    )
    hot_memory: Annotated[int, About("Limit of the hot state in memory, in MiB", 1, 1_048_576)] = 512
    workers: Annotated[int, About("Server processes; the embedded profile has one", 1, 1_024)] = 1
    shutdown_grace: Annotated[int, About("Seconds that running requests get when the service stops", 0, 3_600)] = 10

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


class Row(NamedTuple):
    """One setting as a reference page shows it."""

    name: str
    variable: str
    type: str
    default: Value
    about: About


def _about() -> dict[str, About]:
    hints = {name: get_args(hint) for name, hint in get_type_hints(Settings, include_extras=True).items()}
    return {
        name: replace(about, choices=get_args(kind)) if get_origin(kind) is Literal else about
        for name, (kind, about) in hints.items()
    }


ABOUT: Mapping[str, About] = _about()
DEFAULTS: Mapping[str, Value] = {f.name: f.default for f in fields(Settings) if f.default is not MISSING}


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
