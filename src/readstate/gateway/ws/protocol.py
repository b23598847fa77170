"""uvicorn's WebSocket protocol, with a short way out for frames that go to many devices, and a bound on what comes in.

A frame through ASGI costs a task's wake-up and a write to the socket. Here frames are gathered, and all that a
turn of the event loop has brought for a device leaves in one write (docs/adr/0007-live-updates.md has figures).

Input is parsed in small slices. Parsing and reading stop while a frame waits for the application or while the device
does not take what was written, so that neither frames nor answers to pings pile up.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame

from .endpoint import TOO_MANY_FRAMES
from .outlet import EXTENSION

GIVE_UP_SECONDS: Final = 5.0
"""A device that does not answer a close is dropped after this."""
SLICE: Final = 4_096
"""Bytes that are parsed at once: they hold a few hundred frames at most."""
MAX_PARTS: Final = 256
"""Frames that one message may come in."""


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
        self.frame_came: Callable[[], None] = _nothing
        self.said_goodbye = False
        self._unparsed = b""
        self._deaf = False
        """The connection ends for a flood: what still comes is dropped unparsed."""
        self._left = 0
        """Bytes that the transport held when writing was blocked, or when progress was last looked at."""
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
        self.read_paused = False
        if code == TOO_MANY_FRAMES:
            self._turn_deaf()
        self._read_on()
        self.close_timer = self.loop.call_later(GIVE_UP_SECONDS, self.transport.abort)

    def keepalive_timeout(self) -> None:
        """Pings are not answered: the device is gone, unless it still takes what was written.

        The pongs of a slow device wait unread while writing is blocked.
        """
        left = self.transport.get_write_buffer_size()
        if self._paused and left < self._left and self.ping_timeout is not None:
            self._left = left
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
            return
        self.close(1011, "keepalive ping timeout")

    def pause_writing(self) -> None:
        """The kernel and the transport are full: what is pushed from now on waits, and nothing is read."""
        self._paused = True
        self._left = self.transport.get_write_buffer_size()
        super().pause_writing()
        self._read_on()

    def resume_writing(self) -> None:
        """There is room again."""
        self._paused = False
        super().resume_writing()
        self.flush()
        self._read_on()

    def shutdown(self) -> None:
        """The server stops: what was pushed goes first, then 1012, if the device takes it."""
        self.flush()
        super().shutdown()
        self.loop.call_later(GIVE_UP_SECONDS, self.transport.abort)

    # ------------------------------------------------------------ in

    def data_received(self, data: bytes) -> None:
        """Whatever comes shows that the device is there; pongs too."""
        if self._deaf:
            return
        self._unparsed = self._unparsed + data if self._unparsed else data
        self._read_on()
        self.alive()

    async def receive(self) -> ASGIReceiveEvent:
        """The next event for the application; reading goes on when it has all of them."""
        event = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._read_on()
        return event

    def _read_on(self) -> None:
        """Parse what has come and then read more, unless the application or the device must catch up first."""
        while self._unparsed and self._may_read():
            piece, self._unparsed = self._unparsed[:SLICE], self._unparsed[SLICE:]
            super().data_received(piece)
        if self.transport.is_closing():
            self._unparsed = b""
        elif self._may_read():
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _may_read(self) -> bool:
        if self._deaf:
            return True
        return not (self._paused or self.read_paused or self.transport.is_closing())

    def _turn_deaf(self) -> None:
        """Drop what still comes, and tell the device that nothing follows the close."""
        self._deaf = True
        self._unparsed = b""
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def handle_ping(self) -> None:
        """A ping is answered with what the parser has written, unless the connection ends."""
        if not self.close_sent:
            self.frame_came()
        if self.close_sent:
            self.conn.data_to_send()
        else:
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """A pong counts as a frame, whether a ping was sent or not."""
        if not self.close_sent:
            self.frame_came()
            super().handle_pong(event)

    def handle_text(self, event: Frame) -> None:
        """A text, or its first part."""
        if self._takes(event):
            super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        """Bytes, or their first part."""
        if self._takes(event):
            super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        """A further part of a message."""
        if self._takes(event):
            super().handle_cont(event)

    def _takes(self, event: Frame) -> bool:
        """Count all parts of a message but the last, which the application counts; False once the connection ends."""
        if not event.fin and not self.close_sent:
            self.frame_came()
            if len(self.frames) >= MAX_PARTS:
                self.close(TOO_MANY_FRAMES, f"a message came in more than {MAX_PARTS} frames")
        return not self.close_sent

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
