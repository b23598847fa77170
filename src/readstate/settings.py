"""Settings: flags, then environment, then a TOML file, then defaults, checked once into one frozen object.

The class `Settings` is the one table of them: type, default, help and bounds. `describe()` reads it.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

from readstate.domain.errors import ConfigurationError

PREFIX = "READSTATE_"
CONFIG_FILE = "readstate.toml"
DATABASE_FILE = "readstate.db"
COMMAND_LINE_ONLY = frozenset(
    {"READSTATE_CONFIG", "READSTATE_URL", "READSTATE_KEY", "READSTATE_COPY", "READSTATE_LISTENER", "READSTATE_REASON"}
)
"""Variables that only commands read, or set for their copies; they are no settings of the service."""
SPELLINGS: Mapping[str, bool] = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}
"""How the environment says true and false."""

Profile = Literal["embedded", "cluster"]
BadgeMode = Literal["precomputed", "on_the_fly"]
KafkaSecurity = Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"]
KafkaSasl = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
StoreText = Literal["full", "preview", "none"]
Value = str | int | tuple[str, ...]


@dataclass(frozen=True)
class About:
    """What the table says of one setting besides its type and default."""

    help: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    url: bool = False
    """May hold a password, which is never shown."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Settings:
    """All settings of a service. Making one checks it: what exists is valid."""

    profile: Annotated[
        Profile,
        About(
            "How it runs: embedded (everything in one process) or cluster (any number of processes over Valkey or "
            "Redis, Kafka and PostgreSQL)",
            choices=("embedded", "cluster"),
        ),
    ] = "embedded"
    host: Annotated[str, About("Address to listen on")] = "127.0.0.1"
    port: Annotated[int, About("Port to listen on; 0 takes a free one", 0, 65_535)] = 8080
    tls_cert: Annotated[
        str, About("File with the certificate (and its chain) of HTTPS and WSS; goes with tls_key; empty: plain HTTP")
    ] = ""
    tls_key: Annotated[str, About("File with the key of that certificate, without a passphrase")] = ""
    data_dir: Annotated[str, About("Directory of the database and of generated secrets")] = "./readstate-data"
    database_url: Annotated[
        str,
        About(
            "sqlite:///path or postgresql://user:password@host/name; empty: readstate.db in the data directory",
            url=True,
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
        ),
    ] = ""
    key_prefix: Annotated[str, About("Stands before every key in Valkey or Redis, for servers that are shared")] = ""
    write_replica_url: Annotated[
        str, About("A second Valkey or Redis that spares the first one writes of badges (cluster profile)", url=True)
    ] = ""
    kafka_bootstrap: Annotated[
        tuple[str, ...], About("Brokers of Kafka (host:port), comma separated (cluster profile)")
    ] = ()
    kafka_security: Annotated[
        KafkaSecurity,
        About("How Kafka is spoken to", choices=("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")),
    ] = "plaintext"
    kafka_ca: Annotated[str, About("File with the certificates that Kafka's are checked by; empty: the system's")] = ""
    kafka_certificate: Annotated[str, About("File with the certificate that this service shows to Kafka")] = ""
    kafka_key: Annotated[str, About("File with the key of that certificate")] = ""
    kafka_sasl_mechanism: Annotated[
        KafkaSasl, About("How a password is shown to Kafka", choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"))
    ] = "SCRAM-SHA-512"
    kafka_username: Annotated[str, About("User of Kafka")] = ""
    kafka_password: Annotated[str, About("Password of that user", secret=True)] = ""
    topic_prefix: Annotated[str, About("Stands before every topic and consumer group, for brokers that are shared")] = (
        ""
    )
    partitions: Annotated[int, About("Partitions of a topic; fixed once the topics are there", 1, 10_000)] = 32
    produce_timeout: Annotated[
        int, About("Milliseconds that Kafka has to take a read; then it goes to the local spool", 1, 60_000)
    ] = 100
    spool_max: Annotated[int, About("Bound of the local spool in MiB; past it reads are refused", 1, 1_048_576)] = 1_024
    wait_timeout: Annotated[int, About("Seconds that a request waits for what the log still has to bring", 1, 600)] = 5
    stale_after: Annotated[
        int,
        About(
            "Seconds that an accepted message may wait to be applied before counts of its channel say stale", 1, 86_400
        ),
    ] = 5
    max_lag: Annotated[
        int, About("Seconds that accepted messages may wait before new ones are refused; 0: never refused", 0, 86_400)
    ] = 0
    session_timeout: Annotated[
        int, About("Milliseconds of silence after which others take over what a worker had", 1_000, 300_000)
    ] = 10_000
    write_batch: Annotated[int, About("Most events of channels that are written at once", 1, 10_000)] = 500
    persist_batch: Annotated[int, About("Most read events that are folded into one write", 500, 1_000_000)] = 25_000
    persist_rate: Annotated[int, About("Rows of read states written in a second; 0: no limit", 0, 10_000_000)] = 0
    reconcile_every: Annotated[
        int, About("Seconds between two looks for differences between hot store and database; 0: never", 0, 31_536_000)
    ] = 3_600
    audit_sample: Annotated[
        int, About("Users and channels that are recounted in a minute to find drift; 0: none", 0, 1_000_000)
    ] = 20
    worker_port: Annotated[
        int, About("Port of a worker's health and metrics; 0 takes a free one, more processes take the next", 0, 65_535)
    ] = 9_100
    badge_retention: Annotated[
        int, About("Seconds that undelivered messages are kept after the badge was tapped", 0, 3_153_600_000)
    ] = 604_800
    service_keys: Annotated[
        tuple[str, ...],
        About("Keys of chat backends, comma separated; none: one is made in the data directory", secret=True),
    ] = ()
    jwt_secret: Annotated[
        str, About("Secret of HS256 user tokens; empty: one is made in the data directory", secret=True)
    ] = ""
    jwks: Annotated[str, About("File or URL of the public keys of RS256 and ES256 user tokens", url=True)] = ""
    jwt_issuer: Annotated[str, About("Issuer (iss) that user tokens must name; empty: any")] = ""
    jwt_audience: Annotated[str, About("Audience (aud) that user tokens must name; empty: any")] = ""
    jwt_user_claim: Annotated[str, About("Claim of a user token that holds the user's id")] = "sub"
    display_cap: Annotated[int, About("Labels show this number with a plus above it", 1, 1_000_000)] = 99
    store_text: Annotated[StoreText, About("What is kept of a message's text", choices=("full", "preview", "none"))] = (
        "full"
    )
    cors_origins: Annotated[
        tuple[str, ...], About("Web origins that may call the API, comma separated, or *; none: no CORS")
    ] = ()
    fanout_max_members: Annotated[
        int, About("Channels with more members are counted from one timeline", 0, 100_000)
    ] = 100
    receipts_max_members: Annotated[
        int, About("Larger channels tell only how many have seen a message", 0, 100_000)
    ] = 100
    badge_mode: Annotated[
        BadgeMode,
        About("How the offline badge is counted", choices=("precomputed", "on_the_fly")),
    ] = "precomputed"
    instance_id: Annotated[str, About("Name of this process in logs and events; empty: random")] = ""
    log_level: Annotated[str, About("Least level that is logged", choices=("debug", "info", "warning", "error"))] = (
        "info"
    )
    traces: Annotated[
        bool,
        About(
            "OpenTelemetry traces of requests and of workers' batches, sent where the OTEL_ variables say; needs the "
            "extra otel"
        ),
    ] = False
    demo: Annotated[bool, About("The demo page at /demo, which gives a sandbox to everyone who asks for it")] = False
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
    hello_timeout: Annotated[int, About("Seconds that a live connection has to say who it is", 1, 600)] = 10
    max_frame: Annotated[int, About("Largest frame of a live connection in bytes", 1_024, 2**24)] = 65_536
    max_queue: Annotated[int, About("Bytes that may wait for a slow device; past this it is closed", 16_384, 2**30)] = (
        1_048_576
    )
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
    hot_memory: Annotated[int, About("Bound of the hot state in memory, in MiB", 1, 1_048_576)] = 512
    workers: Annotated[int, About("Server processes; the embedded profile has one", 1, 1_024)] = 1
    shutdown_grace: Annotated[int, About("Seconds that running requests get at a stop", 0, 3_600)] = 10

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in ABOUT}
        refuse([fault for name, value in values.items() for fault in _faults(name, value, name)])
        refuse(_faults_together(values, {}))

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
    hints = get_type_hints(Settings, include_extras=True)
    return {field.name: get_args(hints[field.name])[1] for field in fields(Settings)}


ABOUT: Mapping[str, About] = _about()
DEFAULTS: Mapping[str, Value] = {f.name: f.default for f in fields(Settings) if f.default is not MISSING}


def describe() -> list[Row]:
    """Every setting in the order of the table."""
    kinds = {bool: "true or false", int: "whole number", str: "text", tuple: "list"}
    return [
        Row(name, PREFIX + name.upper(), kinds[type(DEFAULTS[name])], DEFAULTS[name], about)
        for name, about in ABOUT.items()
    ]


def make_settings(**overrides: object) -> Settings:
    """Settings from Python values: a path stands for its text and any sequence for a list."""
    given = _Given()
    for name, value in overrides.items():
        given.take(name, value, name)
    return given.settings()


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str], toml_path: Path | None = None) -> Settings:
    """Settings of a process; flags that are None were not given. Raises one error that names every fault."""
    given = _Given()
    _take_toml(given, _config_file(environ, toml_path))
    for variable, text in environ.items():
        if variable.startswith(PREFIX) and variable not in COMMAND_LINE_ONLY:
            given.take_text(variable.removeprefix(PREFIX).lower(), text, variable)
    for name, value in flags.items():
        if value is not None:
            given.take(name, value, "--" + name.replace("_", "-"))
    return given.settings()


def refuse(faults: list[str]) -> None:
    """Raise one ConfigurationError that names all the faults, if there are any."""
    if len(faults) == 1:
        raise ConfigurationError(faults[0])
    if faults:
        raise ConfigurationError("\n".join([f"{len(faults)} settings are not valid:", *(f"  {f}" for f in faults)]))


class _Given:
    """What the sources say; a later source replaces what an earlier one said, fault or not."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.faults: dict[str, list[str]] = {}

    def take(self, name: str, value: object, source: str) -> None:
        """A value with a type of its own: from Python, from TOML or from a flag."""
        if name not in ABOUT:
            self.faults[source] = [f"{source}: there is no such setting{_did_you_mean(name, source)}"]
            return
        value = _plain(value)
        self.faults[name] = _faults(name, value, source)
        self.values[name], self.sources[name] = value, source

    def take_text(self, name: str, text: str, source: str) -> None:
        """A value as the environment has it."""
        default = DEFAULTS.get(name)
        value: Value = text
        if isinstance(default, tuple):
            value = tuple(part for part in (part.strip() for part in text.split(",")) if part)
        elif isinstance(default, bool):
            value = SPELLINGS.get(text.strip().lower(), text)
        elif isinstance(default, int) and re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text):
            value = int(text)
        elif name in ABOUT and ABOUT[name].choices:
            value = next((choice for choice in ABOUT[name].choices if choice.lower() == text.lower()), text)
        self.take(name, value, source)

    def settings(self) -> Settings:
        """The checked whole."""
        single = [fault for faults in self.faults.values() for fault in faults]
        sound = {name: value for name, value in self.values.items() if not self.faults[name]}
        refuse(single + _faults_together({**DEFAULTS, **sound}, self.sources))
        return Settings(**sound)


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    return tuple(value) if isinstance(value, list | set | frozenset) else value


def _did_you_mean(name: str, source: str) -> str:
    near = difflib.get_close_matches(name.lower(), ABOUT, n=1)
    if not near:
        return ""
    shown = PREFIX + near[0].upper() if source.startswith(PREFIX) else near[0]
    return f"; did you mean {shown}?"


def _config_file(environ: Mapping[str, str], given: Path | None) -> Path | None:
    if given is not None:
        return given
    if named := environ.get("READSTATE_CONFIG"):
        return Path(named)
    return Path(CONFIG_FILE) if Path(CONFIG_FILE).exists() else None


def _take_toml(given: _Given, path: Path | None) -> None:
    if path is None:
        return
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        given.faults[str(path)] = [f"{path}: cannot be read: {error.strerror}"]
    except ValueError as error:
        given.faults[str(path)] = [f"{path}: is not TOML in UTF-8: {error}"]
    else:
        for name, value in values.items():
            given.take(name, value, f"{path}: {name}")


def without_password(url: str) -> str:
    """A URL as it may be shown."""
    url = re.sub(r"(?<=://)([^:@/?]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"([?&]\w*password=)[^&#]*", r"\1***", url, flags=re.IGNORECASE)


def _shown(name: str, value: Value) -> str:
    if value and ABOUT[name].secret:
        return "<hidden>"
    return repr(without_password(value) if ABOUT[name].url and isinstance(value, str) else value)


# ---------------------------------------------------------------- checks


def _faults(name: str, value: object, source: str) -> list[str]:
    """What is wrong with one value, each fault beginning with where the value came from."""
    about, default = ABOUT[name], DEFAULTS[name]
    shown = "the value" if about.secret or about.url else repr(value)
    if isinstance(default, bool):
        problems = [] if isinstance(value, bool) else [f"{shown} is neither true nor false"]
    elif isinstance(default, int):
        problems = _number_faults(value, shown, about)
    elif isinstance(default, tuple):
        problems = _list_faults(value, shown, CHECKS.get(name))
    elif not isinstance(value, str):
        problems = [f"{shown} is not a text"]
    elif about.choices and value not in about.choices:
        problems = [f"{shown} is not one of {', '.join(about.choices)}"]
    else:
        problems = _text_faults(value, shown, CHECKS.get(name))
    return [f"{source}: {problem}" for problem in problems]


def _number_faults(value: object, shown: str, about: About) -> list[str]:
    if not isinstance(value, int) or isinstance(value, bool):
        return [f"{shown} is not a whole number"]
    if about.low is not None and value < about.low:
        return [f"{shown} is below the least, {about.low}"]
    if about.high is not None and value > about.high:
        return [f"{shown} is above the most, {about.high}"]
    return []


def _list_faults(value: object, shown: str, check: "Check | None") -> list[str]:
    if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
        return [f"{shown} is not a list of texts"]
    found = ((number, check(item)) for number, item in enumerate(value, 1)) if check else ()
    return [f"item {number} {problem}" for number, problem in found if problem]


def _text_faults(value: str, shown: str, check: "Check | None") -> list[str]:
    if re.search("[\0\ud800-\udfff]", value):
        return [f"{shown} holds bytes that are no text"]
    problem = check(value) if check else None
    return [f"{shown} {problem}"] if problem else []


def _faults_together(values: Mapping[str, Any], sources: Mapping[str, str]) -> list[str]:
    """What is wrong with values that are each sound alone."""
    faults = _missing_half("tls_cert", "tls_key", values, sources)
    if values["profile"] == "cluster":
        return faults + _cluster_faults(values, sources)
    if values["workers"] > 1:
        source = sources.get("workers", "workers")
        faults.append(
            f"{source}: {values['workers']} is not possible in the embedded profile, "
            "whose store belongs to one process; leave it at 1, or use the cluster profile"
        )
    if values["write_replica_url"]:
        source = sources.get("write_replica_url", "write_replica_url")
        faults.append(f"{source}: the embedded profile writes to no replica; leave it out, or use the cluster profile")
    return faults


def _missing_half(one: str, other: str, values: Mapping[str, Any], sources: Mapping[str, str]) -> list[str]:
    """Of two settings that go together, one alone is a fault."""
    if bool(values[one]) == bool(values[other]):
        return []
    return [f"{sources.get(one, sources.get(other, one))}: {one} and {other} go together"]


def _cluster_faults(values: Mapping[str, Any], sources: Mapping[str, str]) -> list[str]:
    """The cluster profile needs its three servers, and passwords need their users."""
    needed = {
        "hot_url": "the cluster profile needs Valkey or Redis (redis://host:port)",
        "kafka_bootstrap": "the cluster profile needs Kafka (host:port)",
        "database_url": "the cluster profile needs PostgreSQL (postgresql://…), which many processes can share",
    }
    faults = [f"{sources.get(name, name)}: {why}" for name, why in needed.items() if not values[name]]
    if values["database_url"].startswith("sqlite:"):
        faults.append(f"{sources.get('database_url', 'database_url')}: {needed['database_url']}")
    if values["kafka_security"].startswith("sasl") and not (values["kafka_username"] and values["kafka_password"]):
        source = sources.get("kafka_security", "kafka_security")
        faults.append(f"{source}: {values['kafka_security']} needs kafka_username and kafka_password")
    return faults + _missing_half("kafka_certificate", "kafka_key", values, sources)


Check = Callable[[str], str | None]
"""Tells what is wrong with a text, to stand after it; None when nothing is."""


_HOST = r"(?:[0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\])"
_SERVER = rf"{_HOST}(?::[0-9]{{1,5}})?"
_SERVERS = rf"(?:[^/@?#]*@)?{_SERVER}(?:,{_SERVER})*"
_POSTGRES = re.compile(rf"postgres(?:ql)?://(?:{_SERVERS})?(?:/[^/?#]*)?(?:\?[^#]*)?")
_SINGLE = re.compile(rf"rediss?://(?:[^/@?#]*@)?{_SERVER}(?:/[0-9]*)?(?:\?[^#]*)?")
_CLUSTER = re.compile(rf"rediss?\+cluster://{_SERVERS}/?(?:\?[^#]*)?")
_ENCODE = "(in a password, write / as %2F, @ as %40, ? as %3F and # as %23)"


def _database_url(value: str) -> str | None:
    if not value or (value.startswith("sqlite:///") and value != "sqlite:///"):
        return None
    scheme = value.partition(":")[0]
    if scheme in {"cassandra", "dynamodb"}:
        return f"names {scheme}, which is not available in this version: it stores in SQLite or PostgreSQL"
    if scheme not in {"postgresql", "postgres"}:
        return "is not of the form sqlite:///path or postgresql://user:password@host/name"
    if not _POSTGRES.fullmatch(value):
        return f"is not of the form postgresql://user:password@host:port/name {_ENCODE}"
    return None


def _hot_url(value: str) -> str | None:
    if not value or _SINGLE.fullmatch(value) or _CLUSTER.fullmatch(value):
        return None
    return (
        "is not of the form redis://user:password@host:port/0, rediss://… or redis+cluster://host:port,host:port "
        + _ENCODE
    )


def _key_prefix(value: str) -> str | None:
    if re.fullmatch(r"[!-~]*", value) and not set(value) & set("{}*?[]\\") and len(value) <= 64:
        return None
    return "is not at most 64 printable ASCII characters without spaces, braces, brackets, *, ? and \\"


def _broker(value: str) -> str | None:
    return None if re.fullmatch(rf"{_HOST}:[0-9]{{1,5}}", value) else f"({value!r}) is not of the form host:port"


def _topic_prefix(value: str) -> str | None:
    if re.fullmatch(r"[0-9A-Za-z._-]{0,64}", value):
        return None
    return "is not at most 64 letters, digits, dots, dashes and underscores"


def _host(value: str) -> str | None:
    return None if re.fullmatch(r"[0-9A-Za-z.:_%-]+", value) else "is not a host name or an address"


def _not_empty(value: str) -> str | None:
    return None if value.strip() else "is empty"


def _service_key(value: str) -> str | None:
    if not re.fullmatch(r"[!-~]*", value):
        return "has characters that are not printable ASCII"
    return None if len(value) >= 16 else "is shorter than 16 characters"


def _jwt_secret(value: str) -> str | None:
    return None if not value or len(value.encode()) >= 32 else "is shorter than 32 bytes, which HS256 needs"


def _jwks(value: str) -> str | None:
    if "://" in value and not re.fullmatch(r"https?://[^/\s]+(/\S*)?", value):
        return "is neither a file nor an http(s) URL"
    return None


def _origin(value: str) -> str | None:
    if value == "*" or re.fullmatch(r"(?i:https?)://([0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?", value):
        return None
    return f"({value!r}) is not a web origin such as https://chat.example.com"


def _instance_id(value: str) -> str | None:
    return None if value.isprintable() and len(value.encode()) <= 128 else "is not at most 128 printable bytes"


CHECKS: Mapping[str, Check] = {
    "host": _host,
    "data_dir": _not_empty,
    "database_url": _database_url,
    "hot_url": _hot_url,
    "key_prefix": _key_prefix,
    "write_replica_url": _hot_url,
    "kafka_bootstrap": _broker,
    "topic_prefix": _topic_prefix,
    "service_keys": _service_key,
    "jwt_secret": _jwt_secret,
    "jwks": _jwks,
    "jwt_user_claim": _not_empty,
    "cors_origins": _origin,
    "instance_id": _instance_id,
}
