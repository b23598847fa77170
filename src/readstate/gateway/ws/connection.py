"""One live connection: it authenticates, says `hello`, catches up, and then sends frames that are answered in order."""

import asyncio
import contextlib
import secrets
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import parse_qs

import structlog
from msgspec import UNSET, DecodeError, json

from readstate.api import Unread, frames
from readstate.domain.errors import (
    ChannelNotFound,
    Forbidden,
    Invalid,
    InvalidCursor,
    NotAMember,
    ReadstateError,
    TooManyDevices,
    Unauthenticated,
    Unavailable,
    UnknownFrame,
)
from readstate.domain.rules import check_id
from readstate.gateway.asgi import Receive, Scope
from readstate.gateway.auth import access
from readstate.gateway.auth.authenticator import Principal
from readstate.gateway.http.decoding import explain
from readstate.gateway.http.problems import TooOften, storage_fault
from readstate.services.cursors import SyncCursor
from readstate.telemetry import WS_RECEIVED, WS_RESUMED

from . import codes
from .commands import Commands
from .outlet import Outlet

if TYPE_CHECKING:
    from .endpoint import LiveGateway

log = structlog.get_logger()

BEARER = "bearer."
PATIENCE = 100
"""Refused frames, less than a second apart, that a connection survives. The next one closes it."""

VERSION = version("readstate")

_TYPES = frozenset(one.__struct_config__.tag for one in get_args(frames.AnyClientFrame))

_encode = json.Encoder().encode
_decode = json.Decoder(frames.AnyClientFrame).decode
_anything = json.Decoder().decode


class _Gone(Exception):
    """The device has closed the connection."""


class Connection:
    """One device, or a service key that watches a user: from the handshake to the close."""

    def __init__(self, gateway: "LiveGateway", scope: Scope, receive: Receive, outlet: Outlet) -> None:
        self.rs = gateway.rs
        self._gateway = gateway
        self._scope = scope
        self._receive = receive
        self._outlet = outlet
        self._principal: Principal | None = None
        self.user = ""
        self._counts_as = ""
        """The user in whose device limit this connection counts; empty: none."""
        self.device = ""
        self.observes = False
        """A service key watches a user. That is not a device of the user."""
        self._expiry: asyncio.TimerHandle | None = None
        self.connection_id = secrets.token_hex(8)
        self._bucket = Principal("", f"\0{self.connection_id}")
        """Whose rate limit the frames count in. Before the connection authenticates, no user id equals its name."""
        self._refused = 0
        self._refused_at = 0.0
        self.code = 1006
        """The close code."""
        self.push: Callable[[bytes], None] = outlet.push
        outlet.limit = gateway.rs.settings.max_queue
        outlet.overrun = partial(self._close, codes.TOO_SLOW, "too slow: connect again with resume")
        outlet.frame_came = self._frame_came

    # ------------------------------------------------------------ lifecycle

    async def run(self) -> None:
        try:
            await self._authenticate_at_once()
            await self._until_hello()
            await self._serve()
        except codes.Closed as closed:
            if closed.error is not None:
                self._refuse(None, closed.error)
            self._close(closed.code, closed.reason)
        except _Gone:
            pass
        except ReadstateError as error:
            log.warning("a device could not catch up", action="ws", code=error.code)
            self._close(codes.TRY_AGAIN, error.detail[:100])
        except Exception:
            log.error("a connection failed", action="ws", traceback=traceback.format_exc())
            self._close(1011, "an internal error")
        finally:
            await self._end()

    async def _serve(self) -> None:
        commands = Commands(self)
        while True:
            frame = await self._next()
            if frame is not None:
                await self._answer(frame, commands)

    async def _end(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._gateway.limits.disconnected(self._counts_as)
        if not self.device:
            return
        if not self.observes:
            if self._outlet.said_goodbye or self.code not in codes.LOST:
                self.rs.presence.alive(self.user)
            with contextlib.suppress(ReadstateError):  # only "last seen" is lost; the failure is logged at its source
                await self.rs.presence.disconnected(self.user, self.device, self.connection_id)
        self.rs.live.detach(self.user, self)

    def _close(self, code: int, reason: str) -> None:
        self.code = code
        self._outlet.close(code, reason)

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
            principal = await self.verify(header)
            self.user = self._user_of(principal)
        except Unavailable as error:
            raise codes.Closed(codes.TRY_AGAIN, error.detail[:100]) from None
        except ReadstateError as error:
            raise codes.Closed(codes.NOT_AUTHENTICATED, error.detail[:100]) from None
        self._admit(principal)
        self.take(principal)

    def _admit(self, principal: Principal) -> None:
        """Count the connection in the rate limit and, unless it only watches, among the user's devices."""
        limits = self._gateway.limits
        try:
            if self._principal is None:
                limits.take(principal)
            limits.disconnected(self._counts_as)
            self._counts_as = ""
            if not self.observes:
                limits.connected(self.user)
                self._counts_as = self.user
        except (TooOften, TooManyDevices) as error:
            code = codes.TOO_MANY_FRAMES if isinstance(error, TooOften) else codes.TOO_MANY_DEVICES
            raise codes.Closed(code, error.detail[:100], error) from None

    async def verify(self, header: bytes) -> Principal:
        return self._gateway.authenticator.known(header) or await self._gateway.authenticator.verify(header)

    def _user_of(self, principal: Principal) -> str:
        """The token's user. A service key watches the user that the query names."""
        self.observes = principal.user is None
        if principal.user is not None:
            return principal.user
        named = parse_qs(self._scope.get("query_string", b"").decode("latin-1")).get("user")
        if not named:
            raise Unauthenticated("A service key must say whom it watches: /v1/ws?user=ID.")
        return access.resolve_user(named[0], None)

    def take(self, principal: Principal) -> None:
        self._principal = self._bucket = principal
        if self._expiry is not None:
            self._expiry.cancel()
        if principal.expires is not None:
            delay = principal.expires - time.time()
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(delay, self._close, codes.TOKEN_EXPIRED, "the token has expired")

    async def _until_hello(self) -> None:
        end = asyncio.get_running_loop().time() + self.rs.settings.hello_timeout
        while not self.device:
            frame = await self._next_until(end)
            if isinstance(frame, frames.Hello):
                await self._hello(frame)
            elif self._principal is None:
                raise codes.Closed(codes.NOT_AUTHENTICATED, "the first frame must be hello, with a token")
            elif frame is not None:
                self._refuse(frame.ref, Invalid("say hello first", field="type"))

    async def _next_until(self, end: float) -> frames.AnyClientFrame | None:
        """The next frame before `end`. Only waiting for the device counts, not the time that the service takes."""
        try:
            async with asyncio.timeout_at(end):
                return await self._next()
        except TimeoutError:
            raise codes.Closed(codes.NOT_AUTHENTICATED, "no hello came in time") from None

    async def _hello(self, hello: frames.Hello) -> None:
        if hello.token is not None:
            await self._authenticate(b"Bearer " + hello.token.encode())
        if self._principal is None:
            raise codes.Closed(codes.NOT_AUTHENTICATED, "no token came with the connection or with hello")
        try:
            device = check_id(hello.device, "device")
        except ReadstateError as error:
            self._refuse(hello.ref, error)
            return
        start = await self._start(hello.resume)
        self.device = device
        if not self.observes:
            await self.rs.presence.connected(self.user, device, self.connection_id)
            self._outlet.alive = partial(self.rs.presence.alive, self.user)
        self.send(self._ready(hello.resume or self.rs.cursors.encode(start, self.user) if start else ""))
        whole = await self.rs.live.attach(self.user, self, start)
        if hello.resume is not None:
            WS_RESUMED.labels("whole" if whole else "sync_required").inc()

    async def _start(self, resume: str | None) -> SyncCursor | None:
        """The cursor from which the device must catch up; None: its `resume` is not a cursor of this user."""
        if resume is None:
            return await self.rs.changes.cursor(self.user)
        try:
            return self.rs.cursors.decode(resume, SyncCursor, self.user, "resume")
        except InvalidCursor:
            return None

    def _ready(self, cursor: str) -> frames.Ready:
        expires = self._principal.expires if self._principal else None
        return frames.Ready(
            user_id=self.user,
            connection_id=self.connection_id,
            instance_id=self.rs.instance_id,
            server_time=self.rs.clock(),
            version=VERSION,
            expires_at=None if expires is None else int(expires * 1000),
            display_cap=self.rs.settings.display_cap,
            resume=cursor,
        )

    # ------------------------------------------------------------ frames

    async def _next(self) -> frames.AnyClientFrame | None:
        """The next frame; None: it was refused."""
        event = await self._receive()
        if event["type"] == "websocket.disconnect":
            self.code = event.get("code") or 1005
            raise _Gone
        WS_RECEIVED.inc()
        self._outlet.alive()
        text: str | None = event.get("text")
        if text is None:
            self._refuse(None, self._over_the_rate() or Invalid("send text frames, not binary ones"))
            return None
        most = self.rs.settings.max_frame
        if len(text) > most or (not text.isascii() and len(text.encode()) > most):
            raise codes.Closed(codes.TOO_LARGE, f"a frame is over {most} bytes")
        if (limited := self._over_the_rate()) is not None:
            self._refuse(_ref_of(text), limited)
            return None
        try:
            frame: frames.AnyClientFrame = _decode(text)
            return frame
        except (DecodeError, RecursionError) as error:
            self._refuse(_ref_of(text), _unknown_type(text) or explain(error, text.encode()))
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
                raise codes.Closed(codes.TOO_MANY_FRAMES, "too many frames") from None
            return error
        return None

    def _frame_came(self) -> None:
        """Count a frame that the application does not get. It is not answered: a library sent it."""
        try:
            self._over_the_rate()
        except codes.Closed as closed:
            self._close(closed.code, closed.reason)

    async def _answer(self, frame: frames.AnyClientFrame, commands: Commands) -> None:
        try:
            await commands.run(frame)
        except (ChannelNotFound, NotAMember):
            self._refuse(frame.ref, Forbidden(access.NOT_A_MEMBER))
        except ReadstateError as error:
            self._refuse(frame.ref, error)
        except Exception as error:
            if (fault := storage_fault(error)) is None:
                raise
            log.error("a frame failed", action="ws", traceback=traceback.format_exc())
            self._refuse(frame.ref, fault)

    def send(self, frame: frames.ServerFrame | dict[str, Any]) -> None:
        self.push(_encode(frame))

    def ack(self, frame: frames.ClientFrame, answer: dict[str, Any]) -> None:
        ref = {} if frame.ref is None else {"ref": frame.ref}
        given = {name: value for name, value in answer.items() if value is not UNSET}
        self.send({"type": "ack", **ref, **given})

    def ack_read(self, frame: frames.ClientFrame, figures: Unread, changed: bool) -> None:
        """An `ack` with the figures of a channel. Devices send little else, so it is put together from one encoding."""
        ref = b"" if frame.ref is None else b'"ref":%b,' % _encode(frame.ref)
        told = b"true" if changed else b"false"
        self.push(b'{"type":"ack",%b%b,"changed":%b}' % (ref, _encode(figures)[1:-1], told))

    def _refuse(self, ref: frames.Ref | None, error: ReadstateError) -> None:
        self.send(frames.Error(code=error.code, detail=error.detail, retry=error.retry, ref=ref, field=error.field))


def _look(body: str) -> dict[str, Any]:
    """The fields of a frame that cannot be decoded, if they can be found."""
    try:
        frame = _anything(body)
    except (DecodeError, RecursionError):
        return {}
    return frame if isinstance(frame, dict) else {}


def _ref_of(body: str) -> frames.Ref | None:
    ref = _look(body).get("ref")
    return ref if isinstance(ref, str | int) and not isinstance(ref, bool) else None


def _unknown_type(body: str) -> UnknownFrame | None:
    named = _look(body).get("type")
    if isinstance(named, str) and named not in _TYPES:
        return UnknownFrame(f"there is no frame of type {named[:40]!r}", field="type")
    return None
