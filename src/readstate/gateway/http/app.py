"""The HTTP gateway: an ASGI application without a framework, so that one request costs little.

A request is routed, authenticated, rate-limited, authorized, decoded, executed and answered, in this order.
"""

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import structlog
from msgspec import json

from readstate import telemetry
from readstate.domain.errors import (
    ChannelNotFound,
    Forbidden,
    HotStoreUnavailable,
    NotAMember,
    ReadstateError,
    Unavailable,
)
from readstate.gateway.asgi import (
    API_HEADERS,
    JSON_HEADERS,
    Answer,
    ASGIApp,
    Disconnected,
    Header,
    Receive,
    Scope,
    Send,
    Stream,
)
from readstate.gateway.auth import access
from readstate.gateway.auth.authenticator import Authenticator, load_secrets, require_jwks_file
from readstate.gateway.demo.sandbox import routes as demo_routes
from readstate.gateway.ratelimit import UserLimits
from readstate.gateway.ws.endpoint import LiveGateway

from .calls import Call, For, Route
from .cors import Cors
from .decoding import read_body
from .problems import problem, storage_fault
from .queries import id_in_url, parse_query
from .routes import routes
from .routing import Router

if TYPE_CHECKING:
    from readstate.profiles.service import Readstate

log = structlog.get_logger()

METRICS = "/metrics"
METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"})

STOPS = "the service stops and did not wait for this; it may be done or not: try again"

_WHOLE = (Answer, Stream)

_encode = json.Encoder().encode


def asgi_app(rs: "Readstate", *, demo: bool = False) -> ASGIApp:
    """An ASGI application that serves `rs`, to run or mount. The caller who opened `rs` closes it.

    `demo` adds the demo page, which gives each visitor a sandbox.
    """
    require_jwks_file(rs.settings)
    return Gateway(rs, Authenticator(rs.settings, load_secrets(rs.settings), rs.timings.http), demo)


class Gateway:
    def __init__(self, rs: "Readstate", authenticator: Authenticator, demo: bool = False) -> None:
        settings = rs.settings
        self._rs = rs
        self._authenticator = authenticator
        served = routes(*demo_routes()) if demo else routes()
        self._router = Router([one for one in served if one.pattern != METRICS or not settings.metrics_port])
        self._limits = UserLimits(settings)
        self._cors = Cors(settings.cors_origins) if settings.cors_origins else None
        self._max_body = settings.max_body
        self._away_until = 0.0
        """The hot store failed recently: until this time, requests that can do without it do not try it."""
        self._live = LiveGateway(rs, authenticator, self._limits, self._cors)
        self._http = self._serve if rs.tracing is None else rs.tracing.server(self._serve, self._pattern)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "websocket":
            await self._live(scope, receive, send)

    def stop_waiting(self) -> None:
        """Answer requests that wait for something outside, because the service stops."""
        self._authenticator.close()

    def _pattern(self, scope: Scope) -> str | None:
        """The route of a request, for traces."""
        try:
            return self._router.find(scope)[0].pattern
        except ReadstateError:
            return None

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = perf_counter()
        route: Route | None = None
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        answer: Answer | Stream | None = self._cors.preflight(scope, origin) if self._cors else None
        try:
            if answer is None:
                route, path = self._router.find(scope)
                answer = await self._answer(route, path, headers, scope, receive)
        except ReadstateError as error:
            if error.status == 500:
                _log_failure(route)
            answer = problem(error)
        except Disconnected:
            return
        except asyncio.CancelledError:  # the service stops, and no longer waits for this request
            await self._send(problem(Unavailable(STOPS)), scope, origin, send)
            raise
        except Exception as error:
            _log_failure(route)
            answer = problem(storage_fault(error) or ReadstateError())
        if isinstance(answer, Stream):
            await self._stream(route, answer, scope, origin, receive, send)
        else:
            await self._send(answer, scope, origin, send)
        _count(route, scope, answer.status, perf_counter() - started)

    async def _answer(
        self, route: Route, path: dict[str, str], headers: dict[bytes, bytes], scope: Scope, receive: Receive
    ) -> Answer | Stream:
        if route.open_to is For.ANYONE:
            call = Call(self._rs, None, path)
            call.root = scope.get("root_path") or ""
            return _as_answer(route, await route.handler(call))
        authorization = headers.get(b"authorization")
        principal = self._authenticator.known(authorization) or await self._authenticator.verify(authorization)
        self._limits.take(principal)
        call = Call(self._rs, principal, path)
        call.wait = b"prefer" in headers and _wants_to_wait(scope["headers"])
        try:
            if route.without_hot_store and perf_counter() < self._away_until:
                call.rs = await self._rs.without_hot_store() or call.rs
            _allow(route, call, path)
            if call.own is not None and "channel" in path:
                await self._attempt(route, call, _require_membership)
            if route.body is not None:
                body = await read_body(receive, headers.get(b"content-length"), self._max_body)
                call.body = route.body.read(body, headers.get(b"content-type"))
            call.query = parse_query(route.query, scope.get("query_string", b""))
            return _as_answer(route, await self._attempt(route, call, route.handler))
        except (ChannelNotFound, NotAMember):
            if principal.user is None:
                raise
            raise Forbidden(access.NOT_A_MEMBER) from None

    async def _attempt(self, route: Route, call: Call, step: Callable[[Call], Awaitable[Any]]) -> Any:
        """Take a step of a call: if the hot store fails, once more without it."""
        try:
            return await step(call)
        except HotStoreUnavailable as error:
            await self._go_without(route, call, error)
            return await step(call)

    async def _go_without(self, route: Route, call: Call, error: HotStoreUnavailable) -> None:
        """Continue with the durable store alone, if the route allows it. It cannot answer `since`."""
        services = await self._rs.without_hot_store() if route.without_hot_store else None
        if services is None or call.rs is services or "since" in call.query:
            raise error
        call.rs = services
        self._away_until = perf_counter() + self._rs.timings.http.without_hot_store

    async def _send(self, answer: Answer, scope: Scope, origin: bytes | None, send: Send) -> None:
        fields = self._fields(answer.headers, origin)
        if answer.status != 204:
            fields.append((b"content-length", b"%d" % len(answer.body)))
        body = b"" if scope["method"] == "HEAD" else answer.body
        await send({"type": "http.response.start", "status": answer.status, "headers": fields})
        await send({"type": "http.response.body", "body": body})

    def _fields(self, own: list[Header], origin: bytes | None) -> list[Header]:
        """The headers of an answer. Pages bring their own cache-control; everything else is not cached."""
        whole = own is JSON_HEADERS or any(name == b"cache-control" for name, _ in own)
        fields = own.copy() if whole else [*own, *API_HEADERS]
        if self._cors is not None:
            fields += self._cors.headers(origin)
        return fields

    async def _stream(
        self, route: Route | None, answer: Stream, scope: Scope, origin: bytes | None, receive: Receive, send: Send
    ) -> None:
        """Send chunks as they are produced. Stops when the client disconnects; a failure aborts the connection."""
        fields = self._fields(answer.headers, origin)
        gone = asyncio.create_task(_leaving(receive))
        try:
            await send({"type": "http.response.start", "status": answer.status, "headers": fields})
            if scope["method"] != "HEAD":
                async for chunk in answer.chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    if gone.done():
                        return
            await send({"type": "http.response.body", "body": b""})
        except Exception:
            _log_failure(route)
            raise
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
            await answer.chunks.aclose()


def _wants_to_wait(headers: list[Header]) -> bool:
    """Whether one of the preferences is `wait`, with any value (RFC 7240)."""
    given = b",".join(value for name, value in headers if name == b"prefer").split(b",")
    return b"wait" in (one.partition(b";")[0].partition(b"=")[0].strip().lower() for one in given)


async def _leaving(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _allow(route: Route, call: Call, path: dict[str, str]) -> None:
    """Forbidden unless the caller may use this route for this user. Ids are validated before any lookup."""
    if call.own is not None and route.open_to is For.SERVICE:
        raise Forbidden(access.SERVICE_ONLY)
    for name, value in path.items():
        if name != "user":
            id_in_url(value, name)
    if "user" in path:
        call.user = access.resolve_user(call.user, call.own)


async def _require_membership(call: Call) -> None:
    await access.require_membership(call.rs, call.own, (call.channel,))


def _as_answer(route: Route, result: Any) -> Answer | Stream:
    return result if isinstance(result, _WHOLE) else Answer(route.status, JSON_HEADERS, _encode(result))


def _count(route: Route | None, scope: Scope, status: int, seconds: float) -> None:
    if route is not None:
        route.count(status, seconds)
        return
    method = scope["method"] if scope["method"] in METHODS else "other"
    telemetry.HTTP_REQUESTS.labels("unmatched", method, str(status)).inc()


def _log_failure(route: Route | None) -> None:
    """Log the exception as text: some renderers would add local variables, and with them tokens and texts."""
    where = route.pattern if route else None
    log.error("a request failed", action="http.request", route=where, traceback=traceback.format_exc())


async def _lifespan(receive: Receive, send: Send) -> None:
    """There is nothing to start or stop: the caller who opened the service closes it."""
    while True:
        event = await receive()
        await send({"type": event["type"] + ".complete"})
        if event["type"] == "lifespan.shutdown":
            return
