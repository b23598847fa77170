"""Metrics and logs. Neither contains message text or secrets, and no label contains an id."""

import asyncio
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import PurePath
from typing import Any, TextIO

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


def _counter(name: str, about: str, *labels: str) -> Counter:
    return Counter(name, about, labels, registry=REGISTRY)


def _gauge(name: str, about: str, *labels: str) -> Gauge:
    return Gauge(name, about, labels, registry=REGISTRY)


def _histogram(name: str, about: str, *labels: str, buckets: Sequence[float]) -> Histogram:
    return Histogram(name, about, labels, buckets=buckets, registry=REGISTRY)


HTTP_REQUESTS = _counter(
    "readstate_http_requests_total", "HTTP requests answered, by route, method and status.", "route", "method", "status"
)
HTTP_SECONDS = _histogram(
    "readstate_http_seconds", "Time from a request to its answer, by route.", "route", buckets=_SECONDS
)
RECEIPTS = _counter("readstate_receipts_total", "Reads accepted.")
MESSAGES = _counter(
    "readstate_messages_total", "Messages taken, by what became of them: accepted, duplicate or rejected.", "status"
)
PERSIST_BATCH = _histogram("readstate_persist_batch_size", "Events that shared one durable commit.", buckets=_SIZES)
PERSIST_SECONDS = _histogram("readstate_persist_seconds", "Time that one durable commit took.", buckets=_SECONDS)
DEDUP_RATIO = _gauge(
    "readstate_receipts_dedup_ratio",
    "Share of read events that folding a batch saved from being written, over the last batches.",
)
LOADS = _counter(
    "readstate_hot_loads_total", "Times that hot state was loaded from the durable store, by kind.", "kind"
)
EVICTIONS = _counter(
    "readstate_hot_evictions_total", "Times that hot state was dropped to bound memory, by kind.", "kind"
)
HOT_ENTRIES = _gauge("readstate_hot_bytes", "Estimated memory of the hot state in this process.")
HOT_GENERATIONS = _counter(
    "readstate_hot_generations_total",
    "Times that hot state in Valkey counted as lost, all of it or that of some slots: at a start, or after a fault.",
)
STORAGE_ERRORS = _counter(
    "readstate_storage_errors_total", "Durable writes that failed; their callers got an error and nothing was changed."
)
BUS_PUBLISHED = _counter("readstate_bus_published_total", "Announcements published to other instances.")
BUS_LOST = _counter(
    "readstate_bus_lost_total",
    "Announcements given up, by reason: overflow of the queue, or failed; the other instances catch up by themselves.",
    "reason",
)
BUS_GAPS = _counter(
    "readstate_bus_gaps_total",
    "Times that announcements of other instances may have been missed, by cause: "
    "a new connection, a number that jumped, or an instance that fell silent. Devices were caught up.",
    "sign",
)
BUS_SKIPPED = _counter(
    "readstate_bus_skipped_total",
    "What came on the bus and was not understood, by kind: unknown announcements of a newer version, "
    "or malformed payloads of other programs.",
    "kind",
)
PRODUCED = _counter("readstate_produced_total", "Records that Kafka has acknowledged, by topic.", "topic")
PRODUCE_FAILED = _counter(
    "readstate_produce_failed_total", "Records that Kafka has not acknowledged in time, by topic.", "topic"
)
KAFKA_FALLBACK = _counter("readstate_kafka_fallback_total", "Reads that went to the local spool instead of Kafka.")
FALLBACK_SUCCESS = _counter(
    "readstate_fallback_success_total",
    "Reads that left the local spool later: to Kafka, or to the database if an earlier process had left them.",
)
SPOOL_DEPTH = _gauge("readstate_spool_depth", "Reads that wait in the local spool.")
CONSUMER_LAG = _gauge(
    "readstate_consumer_lag",
    "Records of a topic that a consumer group has not finished, as this process sees its partitions.",
    "group",
    "topic",
)
APPLY_LAG = _gauge(
    "readstate_apply_lag_seconds",
    "Age of the oldest accepted event of the topic messages that is not applied yet, as this process sees it.",
)
PERSIST_LAG = _histogram(
    "readstate_persist_lag_seconds",
    "Time from a read to its commit in the durable store.",
    buckets=(*_SECONDS, 30.0, 60.0, 300.0),
)
WORKER_RETRIES = _counter(
    "readstate_worker_retries_total",
    "Batches that a worker had to try again, by role and reason: a dependency that was down, or an event that failed.",
    "role",
    "reason",
)
DEAD_LETTERS = _counter(
    "readstate_dead_letters_total", "Events that failed three times and were put aside, by topic.", "topic"
)
DLT_RECONCILED = _counter("readstate_dlt_reconciled_total", "Events put aside that were repaired, by topic.", "topic")
DLT_FAILED = _counter(
    "readstate_dlt_failed_total",
    "Events put aside that could not be repaired, by topic; they are listed by readstate dlt list.",
    "topic",
)
DRIFT = _counter(
    "readstate_drift_total",
    "Lasting differences between hot store and durable store, found by audits. Must stay 0.",
)
AUDITED = _counter("readstate_audited_total", "Counts that were made again to look for drift.")
RECONCILED = _counter(
    "readstate_reconciled_total",
    "Read states that differed between hot store and database and were merged, by which was behind; and badges.",
    "behind",
)
UNSENT = _counter("readstate_unsent_total", "Messages that came while their receiver was away, as events.")
BADGE_WRITES_SAVED = _counter(
    "readstate_badge_writes_saved_total",
    "Senders that the write replica knew already, so that the hot store was not written.",
)
BADGE_REPLICA_UP = _gauge(
    "readstate_badge_replica_up", "Whether the write replica answers (1) or everything goes to the hot store (0)."
)
RATE_LIMITED = _counter(
    "readstate_rate_limited_total",
    "Requests, frames and live connections refused by a rate limit, by kind of principal.",
    "kind",
)
HTTP_REFUSED = _counter(
    "readstate_http_refused_total",
    "Connections that the server has ended, by reason: bad_request, headers_too_large, header_timeout, body_timeout, "
    "stalled (an answer was not read), connections (over max_connections), tls (a handshake that failed or was late).",
    "reason",
)
ACCEPT_FAILED = _counter(
    "readstate_accept_failed_total",
    "Times that no connection could be accepted, by the system's error; EMFILE: file descriptors have run out.",
    "error",
)
WS_CONNECTIONS = _gauge("readstate_ws_connections", "Live connections that are open now.")
WS_CLOSED = _counter(
    "readstate_ws_closed_total",
    "Live connections that have ended, by close code (4408: too slow; other: a code that the device made up).",
    "code",
)
WS_RECEIVED = _counter("readstate_ws_frames_received_total", "Frames that devices have sent.")
WS_SENT = _counter("readstate_ws_events_total", "Events given to devices.")
WS_RESUMED = _counter(
    "readstate_ws_resumed_total",
    "Devices that have come back with a cursor, by outcome: whole, or sync_required.",
    "outcome",
)


# ---------------------------------------------------------------- exposition


class Exposition:
    """The text of all metrics. Rendering takes about 30 ms, so a thread does it, at most once a second."""

    EVERY = 1.0

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._made_at = float("-inf")
        self._text = b""
        self._making = threading.Lock()

    async def text(self) -> bytes:
        """The text, at most a second old. While a thread renders a new one, the previous text."""
        if self._clock() - self._made_at < self.EVERY or (self._text and self._making.locked()):
            return self._text
        return await asyncio.to_thread(self._renewed)

    def _renewed(self) -> bytes:
        with self._making:
            if self._clock() - self._made_at >= self.EVERY:
                self._text = generate_latest(self._registry)
                self._made_at = self._clock()
            return self._text


EXPOSITION = Exposition(REGISTRY)


# ---------------------------------------------------------------- logs

OWN = "readstate"
"""The parent of all loggers of this package. Libraries log from warnings on, whatever the level: at lower levels they
log headers, frames and addresses, and with them credentials.
"""
NEVER_LOGGED = frozenset({"text", "preview", "token", "authorization", "key", "password", "secret", "color_message"})
"""Keys of message text and secrets (and uvicorn's escape codes). Dropped at any depth."""


CREDENTIALS = re.compile(
    r"""
    (?P<kept>
        bearer [\s.:=]+ \\*["']?                                          # a header, or a browser's subprotocol
        | :// [^/\s:@"']* : (?=[^/\s"']*@)                                # the password of a URL
        | (?:password|token|secret|api_?key) \\*["']? \s* [=:] \s* \\*["']?
    )
    [^\s"'&,;)}\]@\\]+
    | eyJ [\w-]+ \. [\w-]+ \. [\w-]*                                      # a JWT
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Matches credentials in a log line. Our code logs none; this covers error texts of libraries."""


def without_credentials(line: str) -> str:
    return CREDENTIALS.sub(lambda found: f"{found['kept'] or ''}***", line)


def drop_private(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Remove what must never be logged, at any depth. Of other objects only the type name stays."""
    error = event.pop("exc_info", None)
    clean: dict[str, Any] = _clean(event)
    return clean if error is None else {**clean, "exc_info": error}


def _clean(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {key: _clean(item) for key, item in value.items() if str(key).lower() not in NEVER_LOGGED}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(item) for item in value]
    return str(value) if isinstance(value, PurePath) else f"<{type(value).__name__}>"


def setup_logging(level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logs to `stream` (default stderr): JSON lines, or readable text on a terminal."""
    stream = stream or sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_formatter(shared, pretty=stream.isatty()))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    logging.getLogger(OWN).setLevel(level.upper())
    _let_libraries_propagate()


class _Formatter(structlog.stdlib.ProcessorFormatter):
    """Hides credentials in the whole line, including tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return without_credentials(super().format(record))


def _formatter(shared: list[structlog.typing.Processor], *, pretty: bool) -> logging.Formatter:
    last: list[structlog.typing.Processor] = (
        # Tracebacks without local variables, which may hold texts and tokens.
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if pretty
        else [
            structlog.processors.format_exc_info,
            structlog.processors.UnicodeDecoder(),
            structlog.processors.JSONRenderer(ensure_ascii=False),
        ]
    )
    return _Formatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, drop_private, *last],
    )


def _let_libraries_propagate() -> None:
    """Undo handlers and levels that uvicorn and other libraries may have set."""
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "httpx", "httpcore", "websockets", "asyncio"):
        library = logging.getLogger(name)
        library.handlers, library.propagate = [], True
        library.setLevel(logging.NOTSET)
