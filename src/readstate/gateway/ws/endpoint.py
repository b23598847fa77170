"""The WebSocket `/v1/ws`: JSON frames in both directions.

A connection authenticates with a token and names its device with `hello`. It gets what the device missed, then live
events. Its frames are handled one after the other; each is answered by `ack` or `error`.
"""

import asyncio
import contextlib
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import parse_qs, urlsplit

import structlog
from msgspec import UNSET, DecodeError, json, structs

from readstate.api import MarkUnread, ReadTarget, ThreadRead, frames
from readstate.domain.errors import (
    ChannelNotFound,
    Forbidden,
    Invalid,
    InvalidCursor,
    NotAMember,
    NotFound,
    ReadstateError,
    TooManyDevices,
    Unauthenticated,
    Unavailable,
    UnknownFrame,
)
from readstate.domain.rules import check_id
from readstate.gateway.asgi import API_HEADERS, Header, Receive, Scope, Send
from readstate.gateway.auth import access
from readstate.gateway.auth.authenticator import Authenticator, Principal
from readstate.gateway.http.cors import Cors
from readstate.gateway.http.decoding import explain
from readstate.gateway.http.problems import TooOften, problem, storage_fault
from readstate.gateway.http.routing import segments_of
from readstate.gateway.ratelimit import UserLimits, unknown
from readstate.services.cursors import SyncCursor
from readstate.telemetry import WS_CLOSED, WS_CONNECTIONS, WS_RECEIVED, WS_RESUMED

from .outlet import outlet_of

if TYPE_CHECKING:
    from readstate.profiles.service import Readstate

log = structlog.get_logger()

PATH = "/v1/ws"
SEGMENTS = PATH.split("/")[1:]
SUBPROTOCOL = "readstate"
BEARER = "bearer."

NOT_AUTHENTICATED = 4401
TOKEN_EXPIRED = 4403
TOO_SLOW = 4408
TOO_MANY_DEVICES = 4409
TOO_MANY_FRAMES = 4429
TOO_LARGE = 1009
RESTARTING = 1012
TRY_AGAIN = 1013

LOST = frozenset({1005, 1006, 1011, TRY_AGAIN, TOO_SLOW, TOKEN_EXPIRED})
"""Close codes without a proper goodbye: the last frames may not have arrived."""
COUNTED = LOST | {1000, 1001, TOO_LARGE, RESTARTING, NOT_AUTHENTICATED, TOO_MANY_DEVICES, TOO_MANY_FRAMES}
"""Close codes with their own label in the metrics. A device may close with any other code."""

PATIENCE = 100
"""Refused frames, less than a second apart, that a connection survives. The next one closes it."""

VERSION = version("readstate")

_TYPES = frozenset(one.__struct_config__.tag for one in get_args(frames.AnyClientFrame))

_encode = json.Encoder().encode
_decode = json.Decoder(frames.AnyClientFrame).decode
_look = json.Decoder().decode


class LiveGateway:
    def __init__(self, rs: "Readstate", authenticator: Authenticator, limits: UserLimits, cors: Cors | None) -> None:
        self._cors = cors
        self.rs = rs
        self.authenticator = authenticator
        self.limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self._check(scope)
        except ReadstateError as error:
            await _deny(error, scope, send)
            return
        # The token in `bearer.TOKEN` is a secret, so it is never the selected subprotocol, even if it is the only one.
        offered = scope.get("subprotocols") or ()
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if SUBPROTOCOL in offered else None})
        outlet, to_end = outlet_of(scope, send)
        connection = _Connection(self, scope, receive, outlet)
        WS_CONNECTIONS.inc()
        try:
            await connection.run()
        finally:
            WS_CONNECTIONS.dec()
            WS_CLOSED.labels(str(connection.code) if connection.code in COUNTED else "other").inc()
            if to_end is not None:
                await to_end.end()

    def _check(self, scope: Scope) -> None:
        if segments_of(scope)[1:] != SEGMENTS:
            raise NotFound("There is no such path.")
        if not self._may_come_from(scope["headers"]):
            raise Forbidden("Pages of this origin may not connect: name it in cors_origins.")

    def _may_come_from(self, headers: list[Header]) -> bool:
        """Check the origin, which browsers send: the service's own pages may connect, and those of allowed origins."""
        origins = [value for name, value in headers if name == b"origin"]
        if not origins:
            return True
        if len(origins) > 1:
            return False
        host = next((value for name, value in headers if name == b"host"), b"")
        try:
            origin = urlsplit(origins[0].decode("latin-1").lower())
        except ValueError:
            return False
        own = origin.scheme in {"http", "https"} and origin.netloc == host.decode("latin-1").lower()
        return own or (self._cors is not None and self._cors.allows(origins[0]))


async def _deny(error: ReadstateError, scope: Scope, send: Send) -> None:
    """Answer the handshake with a problem if the server can; otherwise it answers 403."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1000})
        return
    answer = problem(error)
    headers = [*answer.headers, *API_HEADERS]
    await send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": answer.body})


class _Closed(Exception):
    """Close the connection with a code."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        self.reason = reason


class _Refused(Exception):
    """Refuse the connection: send an `error` frame, then close with a code."""

    def __init__(self, code: int, error: ReadstateError) -> None:
        self.code = code
        self.error = error


class _Connection:
    def __init__(self, gateway: LiveGateway, scope: Scope, receive: Receive, outlet: Any) -> None:
        self._rs = gateway.rs
        self._gateway = gateway
        self._scope = scope
        self._receive = receive
        self._outlet = outlet
        self._principal: Principal | None = None
        self._user = ""
        self._counts_as = ""
        """The user in whose device limit this connection counts; empty: none."""
        self._device = ""
        self._observes = False
        """A service key watches a user. That is not a device of the user."""
        self._focus: str | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self.connection_id = secrets.token_hex(8)
        self._bucket = unknown(self.connection_id)
        self._refused = 0
        self._refused_at = 0.0
        self.code = 1006
        """The close code."""
        self.push: Callable[[bytes], None] = outlet.push
        outlet.limit = gateway.rs.settings.max_queue
        outlet.overrun = self._overrun
        outlet.frame_came = self._frame_came

    # ------------------------------------------------------------ lifecycle

    async def run(self) -> None:
        try:
            await self._authenticate_at_once()
            await self._until_hello()
            await self._serve()
        except _Closed as closed:
            self._close(closed.code, closed.reason)
        except _Refused as refused:
            self._refuse(None, refused.error)
            self._close(refused.code, refused.error.detail[:100])
        except _Gone as gone:
            self.code = gone.code
        except ReadstateError as error:
            log.warning("a device could not be told what it missed", action="ws", code=error.code)
            self._close(TRY_AGAIN, error.detail[:100])
        except Exception:
            log.error("a connection failed", action="ws", traceback=traceback.format_exc())
            self._close(1011, "an internal error")
        finally:
            await self._end()

    async def _serve(self) -> None:
        handlers = self._handlers()
        while True:
            frame = await self._next()
            if frame is not None:
                await self._answer(frame, handlers)

    async def _end(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._gateway.limits.disconnected(self._counts_as)
        if not self._device:
            return
        if not self._observes:
            if self._outlet.said_goodbye or self.code not in LOST:
                self._rs.presence.alive(self._user)
            with contextlib.suppress(ReadstateError):  # only "last seen" is lost; the failure is logged at its source
                await self._rs.presence.disconnected(self._user, self._device, self.connection_id)
        self._rs.live.detach(self._user, self)

    def _close(self, code: int, reason: str) -> None:
        self.code = code
        self._outlet.close(code, reason)

    def _overrun(self) -> None:
        self._close(TOO_SLOW, "too slow: sync again")

    # ------------------------------------------------------------ authentication and hello

    async def _authenticate_at_once(self) -> None:
        """Use the token of the header or the subprotocol, if any. `hello` may bring one instead."""
        header = next((value for name, value in self._scope["headers"] if name == b"authorization"), None)
        if header is None:
            bearer = (one for one in self._scope.get("subprotocols") or () if one.startswith(BEARER))
            token = next(bearer, None)
            header = None if token is None else b"Bearer " + token.removeprefix(BEARER).encode()
        if header is not None:
            await self._authenticate(header)

    async def _authenticate(self, header: bytes) -> None:
        try:
            principal = await self._verify(header)
            self._user = self._user_of(principal)
        except Unavailable as error:
            raise _Closed(TRY_AGAIN, error.detail[:100]) from None
        except ReadstateError as error:
            raise _Closed(NOT_AUTHENTICATED, error.detail[:100]) from None
        self._admit(principal)
        self._take(principal)

    def _admit(self, principal: Principal) -> None:
        """Count the connection in the rate limit and, unless it only watches, among the user's devices."""
        limits = self._gateway.limits
        if self._principal is None:
            try:
                limits.take(principal)
            except TooOften as error:
                raise _Refused(TOO_MANY_FRAMES, error) from None
        limits.disconnected(self._counts_as)
        self._counts_as = ""
        if not self._observes:
            try:
                limits.connected(self._user)
            except TooManyDevices as error:
                raise _Refused(TOO_MANY_DEVICES, error) from None
            self._counts_as = self._user

    async def _verify(self, header: bytes) -> Principal:
        return self._gateway.authenticator.known(header) or await self._gateway.authenticator.verify(header)

    def _user_of(self, principal: Principal) -> str:
        """The token's user. A service key watches the user that the query names."""
        self._observes = principal.user is None
        if principal.user is not None:
            return principal.user
        named = parse_qs(self._scope.get("query_string", b"").decode("latin-1")).get("user")
        if not named:
            raise Unauthenticated("A service key must say whom it watches: /v1/ws?user=ID.")
        return access.resolve_user(named[0], None)

    def _take(self, principal: Principal) -> None:
        self._principal = self._bucket = principal
        if self._expiry is not None:
            self._expiry.cancel()
        if principal.expires is not None:
            delay = principal.expires - time.time()
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(delay, self._close, TOKEN_EXPIRED, "the token has expired")

    async def _until_hello(self) -> None:
        end = asyncio.get_running_loop().time() + self._rs.settings.hello_timeout
        while not self._device:
            frame = await self._next_until(end)
            if isinstance(frame, frames.Hello):
                await self._hello(frame)
            elif self._principal is None:
                raise _Closed(NOT_AUTHENTICATED, "the first frame must be hello, with a token")
            elif frame is not None:
                self._refuse(frame.ref, Invalid("say hello first", field="type"))

    async def _next_until(self, end: float) -> frames.AnyClientFrame | None:
        """The next frame before `end`. Only waiting for the device counts, not the time that the service takes."""
        try:
            async with asyncio.timeout_at(end):
                return await self._next()
        except TimeoutError:
            raise _Closed(NOT_AUTHENTICATED, "no hello came in time") from None

    async def _hello(self, hello: frames.Hello) -> None:
        if hello.token is not None:
            await self._authenticate(b"Bearer " + hello.token.encode())
        if self._principal is None:
            raise _Closed(NOT_AUTHENTICATED, "no token came with the connection or with hello")
        try:
            device = check_id(hello.device, "device")
        except ReadstateError as error:
            self._refuse(hello.ref, error)
            return
        start = await self._start(hello.resume)
        self._device = device
        if not self._observes:
            await self._rs.presence.connected(self._user, device, self.connection_id)
            self._outlet.alive = self._alive
        self.push(_encode(self._ready(hello.resume or self._rs.cursors.encode(start, self._user) if start else "")))
        whole = await self._rs.live.attach(self._user, self, start)
        if hello.resume is not None:
            WS_RESUMED.labels("whole" if whole else "sync_required").inc()

    async def _start(self, resume: str | None) -> SyncCursor | None:
        """The cursor from which the device must catch up; None: its `resume` is not a cursor of this user."""
        if resume is None:
            return await self._rs.changes.cursor(self._user)
        try:
            return self._rs.cursors.decode(resume, SyncCursor, self._user, "resume")
        except InvalidCursor:
            return None

    def _ready(self, cursor: str) -> frames.Ready:
        expires = self._principal.expires if self._principal else None
        return frames.Ready(
            user_id=self._user,
            connection_id=self.connection_id,
            instance_id=self._rs.instance_id,
            server_time=self._rs.clock(),
            version=VERSION,
            expires_at=None if expires is None else int(expires * 1000),
            display_cap=self._rs.settings.display_cap,
            resume=cursor,
        )

    def _alive(self) -> None:
        self._rs.presence.alive(self._user)

    # ------------------------------------------------------------ frames

    async def _next(self) -> frames.AnyClientFrame | None:
        """The next frame; None: it was refused."""
        event = await self._receive()
        if event["type"] == "websocket.disconnect":
            raise _Gone(event.get("code") or 1005)
        WS_RECEIVED.inc()
        self._outlet.alive()
        text = event.get("text")
        if text is None:
            self._refuse(None, self._over_the_rate() or Invalid("send text frames, not binary ones"))
            return None
        body = text.encode()
        if len(body) > self._rs.settings.max_frame:
            raise _Closed(TOO_LARGE, f"a frame is over {self._rs.settings.max_frame} bytes")
        if (limited := self._over_the_rate()) is not None:
            self._refuse(_ref_of(body), limited)
            return None
        try:
            frame: frames.AnyClientFrame = _decode(body)
            return frame
        except (DecodeError, RecursionError) as error:
            self._refuse(_ref_of(body), _unknown_type(body) or explain(error, body))
            return None

    def _over_the_rate(self) -> TooOften | None:
        """Count a frame. One over the rate is refused; a connection that keeps exceeding the rate is closed."""
        try:
            self._gateway.limits.take(self._bucket)
        except TooOften as error:
            now = time.monotonic()
            self._refused = self._refused + 1 if now - self._refused_at < 1 else 1
            self._refused_at = now
            if self._refused > PATIENCE:
                raise _Closed(TOO_MANY_FRAMES, "too many frames") from None
            return error
        return None

    def _frame_came(self) -> None:
        """Count a frame that the application does not get. It is not answered: a library sent it."""
        try:
            self._over_the_rate()
        except _Closed as closed:
            self._close(closed.code, closed.reason)

    async def _answer(self, frame: frames.AnyClientFrame, handlers: "_Handlers") -> None:
        try:
            await handlers[type(frame)](frame)
        except (ChannelNotFound, NotAMember):
            self._refuse(frame.ref, Forbidden(access.NOT_A_MEMBER))
        except ReadstateError as error:
            self._refuse(frame.ref, error)
        except Exception as error:
            if (fault := storage_fault(error)) is None:
                raise
            log.error("a frame failed", action="ws", traceback=traceback.format_exc())
            self._refuse(frame.ref, fault)

    def _ack(self, frame: frames.ClientFrame, answer: dict[str, Any]) -> None:
        ref = {} if frame.ref is None else {"ref": frame.ref}
        given = {name: value for name, value in answer.items() if value is not UNSET}
        self.push(_encode({"type": "ack", **ref, **given}))

    def _refuse(self, ref: frames.Ref | None, error: ReadstateError) -> None:
        self.push(
            _encode(frames.Error(code=error.code, detail=error.detail, retry=error.retry, ref=ref, field=error.field))
        )

    def _handlers(self) -> "_Handlers":
        return {
            frames.Hello: self._hello_again,
            frames.Focus: self._on_focus,
            frames.Blur: self._on_blur,
            frames.MarkRead: self._on_read,
            frames.MarkUnread: self._on_unread,
            frames.Auth: self._on_auth,
            frames.BadgeTap: self._on_tap,
            frames.Ping: self._on_ping,
        }

    async def _hello_again(self, frame: frames.Hello) -> None:
        raise Invalid("hello was said", field="type")

    async def _on_focus(self, frame: frames.Focus) -> None:
        """Open a channel. The answer has the unread state before, for the red line, and after."""
        if self._observes:
            raise Forbidden("Who only watches has nothing open.")
        channel = check_id(frame.channel_id, "channel_id")
        before = await self._rs.renderer.unread(self._user, channel)
        opened_before = self._focus
        await self._set_focus(channel)
        try:
            if frame.read:
                await self._rs.reads.mark_read(self._user, channel, ReadTarget(), self.connection_id)
            after = await self._figures(channel)
        except ReadstateError:
            await self._take_back_focus(opened_before)
            raise
        self._ack(frame, {**structs.asdict(before), "after": after})

    async def _on_blur(self, frame: frames.Blur) -> None:
        if check_id(frame.channel_id, "channel_id") == self._focus:
            await self._set_focus(None)
        self._ack(frame, {})

    async def _set_focus(self, channel: str | None) -> None:
        await self._rs.presence.focus(self._user, self._device, self.connection_id, channel)
        self._focus = channel

    async def _take_back_focus(self, channel: str | None) -> None:
        """Restore the previous focus, since a refused focus must not read anything. If that fails, disconnect."""
        try:
            await self._set_focus(channel)
        except ReadstateError as error:
            raise _Closed(TRY_AGAIN, error.detail[:100]) from None

    async def _on_read(self, frame: frames.MarkRead) -> None:
        channel = check_id(frame.channel_id, "channel_id")
        if frame.thread_id is None:
            result = await self._rs.reads.mark_read(self._user, channel, frame.target, self.connection_id)
            await self._ack_read(frame, channel, result.changed)
            return
        if (frame.up_to_seq, frame.up_to_time, frame.messages, frame.epoch) != (None, None, None, None):
            raise Invalid("a thread is read whole, or up_to a reply", field="thread_id")
        thread = check_id(frame.thread_id, "thread_id")
        request = ThreadRead(up_to=frame.up_to)
        answer = await self._rs.threads.read(self._user, channel, thread, request, self.connection_id)
        self._ack(frame, structs.asdict(answer))

    async def _on_unread(self, frame: frames.MarkUnread) -> None:
        channel = check_id(frame.channel_id, "channel_id")
        request = MarkUnread(from_=frame.from_, epoch=frame.epoch)
        result = await self._rs.reads.mark_unread(self._user, channel, request, self.connection_id)
        if result.changed and self._focus == channel:
            self._focus = None
        await self._ack_read(frame, channel, result.changed)

    async def _ack_read(self, frame: frames.ClientFrame, channel: str, changed: bool) -> None:
        """Acknowledge with the counts as of this position among the frames."""
        self._ack(frame, {**await self._figures(channel), "changed": changed})

    async def _figures(self, channel: str) -> dict[str, Any]:
        now = await self._rs.renderer.unread(self._user, channel)
        if now.latest is not None:
            self._rs.live.showed(self._user, channel, now.latest.seq)
        return {name: value for name, value in structs.asdict(now).items() if value is not UNSET}

    async def _on_auth(self, frame: frames.Auth) -> None:
        principal = await self._verify(b"Bearer " + frame.token.encode())
        if principal.user != (None if self._observes else self._user):
            raise Forbidden("The new token is another user's.")
        self._take(principal)
        self._ack(frame, {"expires_at": None if principal.expires is None else int(principal.expires * 1000)})

    async def _on_tap(self, frame: frames.BadgeTap) -> None:
        self._ack(frame, structs.asdict(await self._rs.badge.tap(self._user, frame.cursor)))

    async def _on_ping(self, frame: frames.Ping) -> None:
        await self._rs.live.flushed(self._user)
        ref = UNSET if frame.ref is None else frame.ref
        self.push(_encode(frames.Pong(server_time=self._rs.clock(), ref=ref)))


_Handlers = dict[type, Callable[[Any], Awaitable[None]]]


class _Gone(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


def _ref_of(body: bytes) -> frames.Ref | None:
    """The `ref` of a frame that cannot be decoded, if it can be found."""
    try:
        frame = _look(body)
    except (DecodeError, RecursionError):
        return None
    ref = frame.get("ref") if isinstance(frame, dict) else None
    return ref if isinstance(ref, str | int) and not isinstance(ref, bool) else None


def _unknown_type(body: bytes) -> UnknownFrame | None:
    try:
        frame = _look(body)
    except (DecodeError, RecursionError):
        return None
    named = frame.get("type") if isinstance(frame, dict) else None
    if isinstance(named, str) and named not in _TYPES:
        return UnknownFrame(f"there is no frame of type {named[:40]!r}", field="type")
    return None
