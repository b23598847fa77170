"""uvicorn's HTTP protocol, with limits on header bytes and fields, deadlines, and connections.

The parser keeps any headers that arrive, and uvicorn waits for the rest of a request forever. Here bytes are counted
before the parser gets them, and a connection that owes us something has a deadline. A refusal is problem+json, sent
after the answers that are due before it; then the connection is closed.
"""

import asyncio
import contextlib
import fcntl
import sys
import termios
from typing import Any, ClassVar, Final
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from readstate.domain.errors import BadRequest, HeadersTooLarge, ReadstateError, RequestTimeout, TooManyConnections
from readstate.gateway.asgi import API_HEADERS
from readstate.gateway.ws.protocol import LiveProtocol
from readstate.settings import Settings
from readstate.telemetry import HTTP_REFUSED
from readstate.timings import HttpTimings

from .connections import Deadlines, Seldom
from .cycle import Cycle
from .problems import problem

MAX_FIELDS: Final = 128
MAX_PIPELINED: Final = 128
"""Pipelined requests that may wait for earlier answers. Each costs memory before it is handled."""
FRAMING: Final = 16
"""Bytes of chunk sizes, extensions and trailers allowed per byte of a body."""
MAX_LINGERING: Final = 256
"""Connections over `max_connections` that may linger at the same time; further ones are reset."""


_UPGRADE: Final = frozenset({b"upgrade", b"http2-settings"})


# What a connection expects next. Plain numbers: enum members cost microseconds per request.
IDLE: Final = 0
HEAD: Final = 1
BODY: Final = 2
REFUSED: Final = 3
"""Nothing more is parsed; a refusal follows the answers that are due."""
LINGERING: Final = 4


class Guard:
    """What the connections of one server share."""

    def __init__(self, limits: Settings, timings: HttpTimings) -> None:
        self.limits = limits
        self.linger = timings.linger
        self.deadlines = Deadlines(timings.sweep)
        self.turned_away: set[HttpProtocol] = set()
        self.full = Seldom(timings.warning_interval)


class HttpProtocol(HttpToolsProtocol):
    """One connection. `http_protocol` makes the class for a server."""

    # uvicorn's own attributes just fit into the 30 that CPython looks up fast; ours must not be among them.
    __slots__ = (
        *("_counted", "_deadline", "_fault", "_max_head", "_refusal", "_size", "_stage"),
        *("_unsent", "_unsent_deadline"),
    )

    guard: ClassVar[Guard]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_head = self.guard.limits.max_header_bytes
        self._stage: int = HEAD
        self._size = 0
        """Bytes of the head so far. In a body: bytes that are not content and not covered by content yet."""
        self._counted = True
        """Whether `_size` covers the whole head. A pipelined head begins somewhere within a read."""
        self._fault: ReadstateError | None = None
        self._refusal = b""
        self._deadline = 0.0
        """When the client must have sent what it owes; 0: nothing."""
        self._unsent = 0
        self._unsent_deadline = 0.0
        """When the client must have read some of the bytes that wait for it; 0: none wait."""

    # ------------------------------------------------------------ a connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request. Refuse the connection if there are too many."""
        super().connection_made(transport)
        limits = self.guard.limits
        self._deadline = self.loop.time() + limits.header_timeout
        self.guard.deadlines.watch(self)
        if len(self.connections) > limits.max_connections:
            self._turn_away(limits.max_connections)

    def connection_lost(self, exc: Exception | None) -> None:
        self.guard.deadlines.forget(self)
        self.guard.turned_away.discard(self)
        super().connection_lost(exc)

    def _turn_away(self, most: int) -> None:
        """Answer 503 at once. The connection does not count against `max_connections`."""
        self.connections.discard(self)
        self.guard.full.warn("too many connections: new ones are refused", action="connections", max_connections=most)
        if len(self.guard.turned_away) >= MAX_LINGERING:
            HTTP_REFUSED.labels("connections").inc()
            self.transport.abort()
            return
        self.guard.turned_away.add(self)
        self._refuse(TooManyConnections(), "connections")

    # ------------------------------------------------------------ bytes

    def data_received(self, data: bytes) -> None:
        """Count, then parse. The parser never gets more of a head than allowed."""
        self._unset_keepalive_if_required()
        if self._stage == IDLE:
            self._stage, self._counted = HEAD, True
        while data and self._stage < REFUSED:
            room = self._max_head - self._size
            if room <= 0:
                self._refuse(self._too_large(), "headers_too_large")
                return
            piece, data = data[:room], data[room:]
            self._size += len(piece)
            if not self._parse(piece):
                return
        if self._stage != IDLE:
            self._expect_more()

    def _parse(self, piece: bytes) -> bool:
        """Feed the parser; False: the connection is not parsed any further."""
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserError as error:
            fault = self._fault or BadRequest(_reason(error))
            self._refuse(fault, "headers_too_large" if isinstance(fault, HeadersTooLarge) else "bad_request")
        except httptools.HttpParserUpgrade as upgrade:
            if self._stage == HEAD:
                return self._parse_without_upgrade(piece[upgrade.args[0] :])
            self._upgrade()
            return False
        return self._stage < REFUSED

    def _expect_more(self) -> None:
        """Set a deadline for the rest of a request. A body that is only drained has one deadline in total."""
        if self._stage < REFUSED and self.headers is not None and len(self.headers) > MAX_FIELDS:
            self._refuse(self._too_large(), "headers_too_large")
            return
        limits = self.guard.limits
        if self._stage == HEAD:
            if self._deadline:
                return
            self._deadline = self.loop.time() + limits.header_timeout
        elif self._stage == BODY and not (self._deadline and self.cycle.response_complete):
            self._deadline = self.loop.time() + limits.body_timeout
        self.guard.deadlines.watch(self)

    # ------------------------------------------------------------ parser callbacks

    def on_message_begin(self) -> None:
        """A request begins, perhaps within the bytes that ended the previous one."""
        self._stage = HEAD
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Start the request, unless it is refused or asks for an unsupported upgrade."""
        if len(self.headers) > MAX_FIELDS or not (self._counted or self._fits()):
            self._fail(self._too_large())
        if len(self.pipeline) >= MAX_PIPELINED:
            self._fail(BadRequest("Too many requests wait for the answers before them on this connection."))
        upgrades = self.parser.should_upgrade()
        if upgrades and not self._should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._fail(BadRequest("This is no proxy."))
            return
        if upgrades:
            super().on_headers_complete()
        else:
            self._start()
            self.headers = []  # trailers follow, and must not count as headers of the request
        self._stage, self._size, self._deadline = BODY, 0, 0.0

    def _start(self) -> None:
        """As uvicorn does, with a `Cycle` of ours."""
        scope, parser = self.scope, self.parser
        scope["method"] = parser.get_method().decode("ascii")
        version = parser.get_http_version()
        if version != "1.1":
            scope["http_version"] = version
        target = httptools.parse_url(self.url)
        path = target.path.decode("ascii")
        scope["path"] = self.root_path + (unquote(path) if "%" in path else path)
        scope["raw_path"] = self.root_path.encode("ascii") + target.path
        scope["query_string"] = target.query or b""
        before = self.cycle
        self.cycle = Cycle(
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            self.access_log,
            self.server_state.default_headers,
            asyncio.Event(),
            self.expect_100_continue,
            version != "1.0" and parser.should_keep_alive(),
            self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_body(self, body: bytes) -> None:
        """Content covers the framing bytes around it."""
        self._size = max(0, self._size - (FRAMING + 1) * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._stage == HEAD:  # an unsupported upgrade: the head is parsed again without it
            return
        self._stage, self._size, self._counted, self._deadline = IDLE, 0, False, 0.0
        super().on_message_complete()

    def _fail(self, error: ReadstateError) -> None:
        self._fault = error
        raise error

    def _fits(self) -> bool:
        """Whether a head is within the limit if some of its bytes were not counted."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        return size <= self._max_head

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"The request line and headers may have {self._max_head} bytes and {MAX_FIELDS} fields, no more; "
            "so may the trailers and chunk extensions of a body."
        )

    # ------------------------------------------------------------ upgrades

    def _upgrade(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._refuse(BadRequest("Wait for the answers of this connection before you upgrade it."), "bad_request")
            return
        self.handle_websocket_upgrade()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over. A handshake that the WebSocket protocol cannot read is refused."""
        self._stage = REFUSED
        self.guard.deadlines.forget(self)
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment]  # it references this protocol, and would keep it alive
        live = self.transport.get_protocol()
        if isinstance(live, LiveProtocol) and not live.handshake_initiated:
            HTTP_REFUSED.labels("bad_request").inc()
            why = live.conn.handshake_exc
            cause = (why and why.__cause__) or why
            self.transport.write(self._as_bytes(BadRequest(f"The WebSocket handshake cannot be read: {cause}.")))
            self.transport.close()

    def _parse_without_upgrade(self, rest: bytes) -> bool:
        """Serve a request that offers another protocol, such as h2c, as if it did not.

        The parser takes the bytes after such a head for the other protocol's, and would drop a body.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                kept = [one for one in value.split(b",") if one.strip().lower() not in _UPGRADE]
                lines.append(b"connection: " + b",".join(kept))
            elif name not in _UPGRADE:
                lines.append(b"%b: %b" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return self._parse(b"\r\n".join([*lines, b"", rest]))

    # ------------------------------------------------------------ refusals

    def _refuse(self, error: ReadstateError, reason: str) -> None:
        """Stop parsing, and send the reason: now, or after the answers that are due before."""
        HTTP_REFUSED.labels(reason).inc()
        cycle, stage = self.cycle, self._stage
        self._stage, self._deadline, self._refusal = REFUSED, 0.0, self._as_bytes(error)
        if stage == BODY:
            if self.pipeline and self.pipeline[0][0] is cycle:
                self.pipeline.popleft()
                return
            if cycle.response_started:
                self._close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        elif cycle is not None and not cycle.response_complete:
            return
        self._say_refusal()

    def _say_refusal(self) -> None:
        self._unset_keepalive_if_required()
        self.transport.write(self._refusal)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._stage, self._deadline = LINGERING, self.loop.time() + self.guard.linger
        self.guard.deadlines.watch(self)

    def _as_bytes(self, error: ReadstateError) -> bytes:
        answer = problem(error)
        headers = [*self.server_state.default_headers, *answer.headers, *API_HEADERS]
        headers += [(b"content-length", b"%d" % len(answer.body)), (b"connection", b"close")]
        lines = [b"%b: %b\r\n" % header for header in headers]
        return b"".join([STATUS_LINE[answer.status], *lines, b"\r\n", answer.body])

    def on_response_complete(self) -> None:
        """Continue with what is due next: a pipelined request, a refusal, or the next request."""
        last = not self.pipeline
        super().on_response_complete()
        if self.transport.is_closing():
            self._expect_it_is_taken()
        elif self._refusal and last:
            self._say_refusal()

    # ------------------------------------------------------------ deadlines

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection. A client that never reads the last answer cannot keep it open."""
        self._close()

    def _close(self) -> None:
        self.transport.close()
        self._expect_it_is_taken()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_it_is_taken()

    def resume_writing(self) -> None:
        self._unsent_deadline = 0.0
        super().resume_writing()

    def _expect_it_is_taken(self) -> None:
        self._unsent = _unsent(self.transport)
        self._unsent_deadline = self.loop.time() + self.guard.limits.body_timeout
        self.guard.deadlines.watch(self)

    def waits(self, now: float) -> bool:
        if self._unsent_deadline and not self._is_taken(now):
            HTTP_REFUSED.labels("stalled").inc()
            self.transport.abort()
            return False
        if self._deadline and now >= self._deadline:
            self._be_late(now)
        return bool(self._deadline or self._unsent_deadline)

    def _is_taken(self, now: float) -> bool:
        """Whether the client reads what waits for it, or still has time to."""
        if now < self._unsent_deadline:
            return True
        unsent = _unsent(self.transport)
        if unsent >= self._unsent:
            return False
        self._unsent, self._unsent_deadline = unsent, now + self.guard.limits.body_timeout
        return True

    def _be_late(self, now: float) -> None:
        limits = self.guard.limits
        self._deadline = 0.0
        if self._stage == LINGERING:
            self.transport.abort()
        elif self.flow.read_paused:  # we do not read, so the client is not to blame
            self._deadline = now + limits.header_timeout
        elif self._stage == HEAD:
            self._head_is_late()
        elif self._stage == BODY:
            self._body_is_late(now + limits.body_timeout)

    def _head_is_late(self) -> None:
        if self._size or not self._counted:
            seconds = self.guard.limits.header_timeout
            self._refuse(RequestTimeout(f"The headers did not arrive within {seconds} seconds."), "header_timeout")
            return
        HTTP_REFUSED.labels("header_timeout").inc()
        self._stage = REFUSED
        self._close()

    def _body_is_late(self, later: float) -> None:
        if self.cycle.response_complete:
            HTTP_REFUSED.labels("body_timeout").inc()
            self._close()
        elif self.cycle.response_started:  # the answer does not wait for the body
            self._deadline = later
        else:
            seconds = self.guard.limits.body_timeout
            self._refuse(RequestTimeout(f"No byte of the body arrived for {seconds} seconds."), "body_timeout")


def http_protocol(settings: Settings, timings: HttpTimings) -> type[HttpProtocol]:
    class Limited(HttpProtocol):
        __slots__ = ()
        guard = Guard(settings, timings)

    return Limited


def _unsent(transport: asyncio.Transport) -> int:
    """Bytes that the client has not read, including those in the kernel's buffer, which may hold megabytes."""
    size = transport.get_write_buffer_size()
    with contextlib.suppress(OSError, ValueError):
        held = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        size += int.from_bytes(held, sys.byteorder)
    return size


def _reason(error: httptools.HttpParserError) -> str:
    if isinstance(error, httptools.HttpParserCallbackError):
        return "The target of the request is not valid."
    return f"This is not a request of HTTP/1.1: {error}."
