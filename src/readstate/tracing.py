"""OpenTelemetry traces. The only module that imports the library; it is imported only if the setting `traces` is on.

A request is a span, and so is a batch of a worker. Calls to the ports inside of them are child spans; calls outside of
both are not traced. A span never contains a user id, a channel id, a text or a secret. Of an error it contains only
the class name, since the message may name any of them.
"""

import asyncio
import contextlib
import inspect
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar, cast

import structlog
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from readstate.domain.errors import ConfigurationError

from .batching import Batcher

if TYPE_CHECKING:
    from .ports import Hot

T = TypeVar("T")
R = TypeVar("R")
H = TypeVar("H", bound="Hot")

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Serve = Callable[[Scope, Receive, Send], Awaitable[None]]

SCOPE = "readstate"
STOP_SECONDS = 2.0
"""Time for the last spans when the service stops. Those not delivered by then are dropped."""
UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})
METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"})
USERS = frozenset({"move", "apply", "view", "unread_summary", "unread_overview", "inbox"})
CHANNELS = frozenset({"apply", "channels", "count"})
LOG = frozenset({"channel_events", "reads", "settled", "unsent", "dead"})
PRODUCER = frozenset({"send"})

log = structlog.get_logger()

_PROPAGATOR = TraceContextTextMapPropagator()
_PROPAGATED = {name.encode(): name for name in _PROPAGATOR.fields}


class Tracing:
    """Makes the spans of one service and sends them to a collector. Configured by the OTEL_ variables."""

    def __init__(self, instance_id: str) -> None:
        self._instance = instance_id
        self._tracer: trace.Tracer = trace.NoOpTracer()
        self._provider: TracerProvider | None = None
        self._exporter: _Exporter | None = None

    def open(self) -> None:
        try:
            self._exporter = _Exporter()
            self._provider = TracerProvider(resource=_resource(self._instance), shutdown_on_exit=False)
            self._provider.add_span_processor(_Processor(self._exporter))
        except (ValueError, RuntimeError, OSError) as error:
            raise ConfigurationError(f"traces can't be sent as the OTEL_ variables say: {error}") from error
        self._tracer = self._provider.get_tracer(SCOPE, version("readstate"))

    async def close(self) -> None:
        """Deliver the last spans, if the collector takes them within `STOP_SECONDS`."""
        if self._provider is None or self._exporter is None:
            return
        provider, self._provider = self._provider, None
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def stop() -> None:
            with _hushed():
                provider.shutdown()
            with contextlib.suppress(RuntimeError):  # `close` has returned, and the loop is closed
                loop.call_soon_threadsafe(done.set)

        # A separate thread: asyncio waits for its own threads at the end, however long they take.
        threading.Thread(target=stop, name="readstate-traces", daemon=True).start()
        try:
            await asyncio.wait_for(done.wait(), STOP_SECONDS)
        except TimeoutError:
            self._exporter.give_up()

    # ------------------------------------------------------------ spans

    def server(self, serve: Serve, pattern: Callable[[Scope], str | None]) -> Serve:
        """Trace `serve`. `pattern` returns the route of a request; None: no route matches."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            route = pattern(scope)
            if route in UNTRACED:
                await serve(scope, receive, send)
                return
            method = scope["method"] if scope["method"] in METHODS else "_OTHER"
            name = "HTTP" if method == "_OTHER" else method
            attributes = {"http.request.method": method}
            if route is not None:
                name, attributes["http.route"] = f"{name} {route}", route
            with self._span(name, attributes, SpanKind.SERVER, _parent(scope)) as span:

                async def answer(event: Event) -> None:
                    if event["type"] == "http.response.start":
                        span.set_attribute("http.response.status_code", event["status"])
                        if event["status"] >= 500:
                            span.set_status(StatusCode.ERROR)
                    await send(event)

                await serve(scope, receive, answer)

        return traced

    def worker_batch(self, role: str, records: int, partitions: int) -> contextlib.AbstractContextManager[Span]:
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.batch.message_count": records,
            "readstate.partitions": partitions,
        }
        return self._span(f"{role} batch", attributes, SpanKind.CONSUMER, Context())

    @staticmethod
    def outcome(span: Span, *, retries: int, put_aside: int) -> None:
        """Record retries and dead letters of a worker's batch."""
        span.set_attribute("readstate.retries", retries)
        if put_aside:
            span.set_attribute("readstate.dead_letters", put_aside)
            span.set_status(StatusCode.ERROR)

    def batchers(
        self,
        handler: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        max_items: int,
        concurrency: int = 1,
        name: str,
    ) -> Batcher[T, R]:
        batcher = _Batcher(handler, max_items=max_items, concurrency=concurrency, name=name)
        batcher.tracing = self
        return batcher

    def hot(self, hot: H, system: str) -> H:
        """The hot store, with spans for the calls in `USERS` and `CHANNELS`."""
        kind, attributes = (SpanKind.CLIENT, {"db.system.name": system}) if system else (SpanKind.INTERNAL, {})
        users = _Steps(self, hot.users, "hot.users", USERS, kind, attributes)
        channels = _Steps(self, hot.channels, "hot.channels", CHANNELS, kind, attributes)
        return cast("H", _Steps(self, hot, "hot", (), kind, attributes, users=users, channels=channels))

    def durable(self, durable: T, system: str) -> T:
        """The durable store, with a span for every call."""
        return cast("T", _Steps(self, durable, "durable", None, SpanKind.CLIENT, {"db.system.name": system}))

    def log(self, log: T) -> T:
        """The log, with spans from an event to its acknowledgement, or to its effect if the caller waits for it."""
        return cast("T", _Steps(self, log, "log", LOG, SpanKind.INTERNAL, {}))

    def producer(self, producer: T) -> T:
        return cast("T", _Steps(self, producer, "kafka", PRODUCER, SpanKind.PRODUCER, {"messaging.system": "kafka"}))

    def step(
        self, name: str, kind: SpanKind, attributes: Mapping[str, str], call: Callable[..., Awaitable[T]]
    ) -> Callable[..., Awaitable[T]]:
        """Make a call a child span."""

        async def step(*values: Any, **named: Any) -> T:
            with self.child(name, attributes, kind):
                return await call(*values, **named)

        return step

    def child(
        self, name: str, attributes: Mapping[str, str], kind: SpanKind
    ) -> contextlib.AbstractContextManager[Span | None]:
        """A child span, if the current span is still recording; else None."""
        recording = trace.get_current_span().is_recording()
        return self._span(name, attributes, kind) if recording else contextlib.nullcontext()

    @contextlib.contextmanager
    def _span(
        self,
        name: str,
        attributes: Mapping[str, str | int],
        kind: SpanKind = SpanKind.INTERNAL,
        parent: Context | None = None,
    ) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name, parent, kind, dict(attributes), record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(StatusCode.ERROR)
                raise

    # ------------------------------------------------------------ batches of requests

    @contextlib.contextmanager
    def batch(self, name: str, callers: Sequence[Span], size: int) -> Iterator[None]:
        """The span of a batch: a child of the first request's wait, linked from the waits of the others."""
        if not callers:
            token = contexts.attach(Context())  # drop the context in which the batcher's task was created
            try:
                yield
            finally:
                contexts.detach(token)
            return
        attributes = {"readstate.batch.size": size, "readstate.batch.requests": len(callers)}
        parent = trace.set_span_in_context(callers[0], Context())
        with self._span(f"{name} batch", attributes, parent=parent) as span:
            for other in callers[1:]:
                if other.is_recording():
                    other.add_link(span.get_span_context())
            yield


def _parent(scope: Scope) -> Context | None:
    """The parent of a request's span: the span of the application that mounts this one, else the request's headers.

    A server may run a request in the context of an earlier one, so our own spans are never the parent here.
    """
    current = trace.get_current_span()
    if current.is_recording() and getattr(getattr(current, "instrumentation_scope", None), "name", "") != SCOPE:
        return None
    carrier = {_PROPAGATED[name]: value.decode("latin-1") for name, value in scope["headers"] if name in _PROPAGATED}
    return _PROPAGATOR.extract(carrier, Context())


def _resource(instance_id: str) -> Resource:
    """The resource of our spans. The OTEL_ variables take precedence."""
    given = Resource.create()
    own = Resource({SERVICE_INSTANCE_ID: instance_id, SERVICE_VERSION: version("readstate")}).merge(given)
    if str(given.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        own = own.merge(Resource({SERVICE_NAME: "readstate"}))
    return own


class _Steps:
    """A proxy that makes the named calls of an object spans; None: all coroutine methods."""

    def __init__(
        self,
        tracing: Tracing,
        inner: object,
        prefix: str,
        names: Collection[str] | None,
        kind: SpanKind,
        attributes: Mapping[str, str],
        **parts: object,
    ) -> None:
        self.__dict__.update(parts)
        self._about = tracing, inner, prefix, names, kind, attributes

    def __getattr__(self, name: str) -> Any:
        """Wrap a method on first use, and cache it in `__dict__`."""
        tracing, inner, prefix, names, kind, attributes = self._about
        found = getattr(inner, name)
        if not inspect.ismethod(found):
            return found
        if name in names if names is not None else inspect.iscoroutinefunction(found):
            found = tracing.step(f"{prefix}.{name}", kind, attributes, found)
        self.__dict__[name] = found
        return found


class _Items(list[T]):
    """The items of one caller, with the span in which the caller waits."""

    caller: Span | None = None


class _Batcher(Batcher[T, R]):
    """A batcher whose batches are spans, each in the context of its callers."""

    tracing: Tracing

    async def submit(self, items: Sequence[T]) -> Sequence[R]:
        with self.tracing.child(self.name, {}, SpanKind.INTERNAL) as span:
            marked = _Items(items)
            marked.caller = span
            return await super().submit(marked)

    async def _run_batch(self, callers: Sequence[tuple[Sequence[T], "asyncio.Future[Sequence[R]]"]]) -> None:
        spans = [part.caller for part, _ in callers if isinstance(part, _Items) and part.caller is not None]
        with self.tracing.batch(self.name, spans, sum(len(part) for part, _ in callers)):
            await super()._run_batch(callers)


# ---------------------------------------------------------------- export


class _Here(threading.local):
    """Per thread: whether the library runs on our behalf, and the first message that it logged meanwhile."""

    busy = False
    said = ""


_here = _Here()


class _Hush(logging.Filter):
    """Suppresses the library's logs about our exports, which would repeat the same fault."""

    def filter(self, record: logging.LogRecord) -> bool:
        if _here.busy:
            _here.said = _here.said or record.getMessage()
        return not _here.busy


_HUSH = _Hush()
_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.trace.export",
)


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    before, _here.busy, _here.said = _here.busy, True, ""
    try:
        yield
    finally:
        _here.busy = before


class _Exporter(SpanExporter):
    """Wraps the library's exporter. Logs once when spans are no longer delivered, and once when they are again."""

    def __init__(self) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_HUSH)
        self._inner = OTLPSpanExporter()
        self._failing = self._given_up = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans. Those that cannot be sent are dropped."""
        if self._given_up:
            return SpanExportResult.FAILURE
        try:
            with _hushed():
                result = self._inner.export(spans)
        except Exception as error:
            _here.said, result = repr(error), SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            if self._failing:
                log.info("traces are delivered again", action="traces")
            self._failing = False
        elif not self._failing and not self._given_up:
            self._failing = True
            reason = re.sub(r"\burl: \S+", "url", _here.said)  # a path may hold a key
            log.warning("traces cannot be delivered and are dropped", action="traces", reason=reason)
        return result

    def give_up(self) -> None:
        """Drop the remaining spans, because the service stops."""
        self._given_up = True
        log.warning("the last traces are dropped: the collector did not take them in time", action="traces")
        self.shutdown()

    def shutdown(self) -> None:
        """Close connections, and end a wait for the next retry."""
        with _hushed():
            self._inner.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


class _Processor(BatchSpanProcessor):
    """A bounded queue of spans, and a thread that sends them. When the queue is full, spans are dropped."""

    def on_end(self, span: ReadableSpan) -> None:
        with _hushed():
            super().on_end(span)
