"""uvicorn's WebSocket protocol, with a short way out for frames that go to many devices.

A frame through ASGI costs a task's wake-up and a write to the socket. Here frames are gathered, and all that a
turn of the event loop has brought for a device leaves in one write (docs/adr/0007-live-updates.md has figures).
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame

from .outlet import EXTENSION

GIVE_UP_SECONDS: Final = 5.0
"""A device that does not answer a close is dropped after this."""


class _Turn:
    """The connections that have something to send, so that one callback per turn serves all of them."""

    def __init__(self) -> None:
        self._dirty: list[LiveProtocol] = []

    def add(self, connection: "LiveProtocol") -> None:
        if not self._dirty:
            connection.loop.call_soon(self._end)
        self._dirty.append(connection)

    def _end(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()


_turn = _Turn()


def _nothing() -> None:
    pass


class LiveProtocol(WebSocketsSansIOProtocol):
    """An outlet of its own: see `outlet.Outlet`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.limit = 1 << 20
        self.overrun: Callable[[], None] = _nothing
        self.alive: Callable[[], None] = _nothing
        self.said_goodbye = False
        self._out: list[bytes] = []
        self._waiting = 0
        self._paused = self._listed = False

    async def run_asgi(self) -> None:
        """Put the outlet into the scope, then run the application."""
        extensions = self.scope["extensions"]
        assert extensions is not None
        extensions[EXTENSION] = {"outlet": self}
        await super().run_asgi()

    async def send(self, message: ASGISendEvent) -> None:
        """A handshake that was answered with a problem is complete, or uvicorn would log an error."""
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True

    # ------------------------------------------------------------ out

    def push(self, payload: bytes) -> None:
        """Send a text frame with whatever else is pushed in this turn of the event loop."""
        if self.close_sent or self.disconnected:
            return
        framed = text_frame(payload)
        self._out.append(framed)
        self._waiting += len(framed)
        if not self._paused:
            if not self._listed:
                self._listed = True
                _turn.add(self)
        elif self._waiting > self.limit:
            self._out.clear()
            self._waiting = 0
            self.overrun()

    def flush(self) -> None:
        """Write what was pushed. While the transport is full it waits here, where it is counted."""
        self._listed = False
        if self._paused or not self._out:
            return
        out, self._out = self._out, []
        self._waiting = 0
        if not self.close_sent and not self.disconnected and not self.transport.is_closing():
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))

    def close(self, code: int, reason: str) -> None:
        """Close, after what was pushed if the device takes it."""
        self.flush()
        if self.close_sent or self.disconnected or self.transport.is_closing():
            return
        self.stop_keepalive()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(GIVE_UP_SECONDS, self.transport.abort)

    def keepalive_timeout(self) -> None:
        """Pings are not answered: the device is gone, whatever it has not taken up yet."""
        self.close(1011, "keepalive ping timeout")

    def pause_writing(self) -> None:
        """The kernel and the transport are full: what is pushed from now on waits."""
        self._paused = True
        super().pause_writing()

    def resume_writing(self) -> None:
        """There is room again."""
        self._paused = False
        super().resume_writing()
        self.flush()

    def shutdown(self) -> None:
        """The server stops: what was pushed goes first, then 1012, if the device takes it."""
        self.flush()
        super().shutdown()
        self.loop.call_later(GIVE_UP_SECONDS, self.transport.abort)

    # ------------------------------------------------------------ signs of life

    def data_received(self, data: bytes) -> None:
        """Whatever comes shows that the device is there; pongs too."""
        super().data_received(data)
        self.alive()

    def handle_close(self, event: Frame) -> None:
        """The device says goodbye."""
        self.said_goodbye = True
        super().handle_close(event)


def text_frame(payload: bytes) -> bytes:
    """A whole text frame as a server sends it: not masked, not compressed, in one piece."""
    size = len(payload)
    if size < 126:
        return b"\x81%c%b" % (size, payload)
    if size < 65_536:
        return b"\x81\x7e%b%b" % (size.to_bytes(2), payload)
    return b"\x81\x7f%b%b" % (size.to_bytes(8), payload)
