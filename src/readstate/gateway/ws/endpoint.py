"""The WebSocket `/v1/ws`: JSON frames in both directions.

A connection authenticates with a token and names its device with `hello`. It gets what the device missed, then live
events. Its frames are handled one after the other; each is answered by `ack` or `error`.
"""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from readstate.domain.errors import Forbidden, NotFound, ReadstateError
from readstate.gateway.asgi import API_HEADERS, Header, Receive, Scope, Send
from readstate.gateway.auth.authenticator import Authenticator
from readstate.gateway.http.cors import Cors
from readstate.gateway.http.problems import problem
from readstate.gateway.http.routing import segments_of
from readstate.gateway.ratelimit import UserLimits
from readstate.telemetry import WS_CLOSED, WS_CONNECTIONS

from .codes import COUNTED
from .connection import Connection
from .outlet import outlet_of

if TYPE_CHECKING:
    from readstate.profiles.service import Readstate

PATH = "/v1/ws"
SEGMENTS = PATH.split("/")[1:]
SUBPROTOCOL = "readstate"


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
        outlet = outlet_of(scope, send)
        connection = Connection(self, scope, receive, outlet)
        WS_CONNECTIONS.inc()
        try:
            await connection.run()
        finally:
            WS_CONNECTIONS.dec()
            WS_CLOSED.labels(str(connection.code) if connection.code in COUNTED else "other").inc()
            await outlet.end()

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
