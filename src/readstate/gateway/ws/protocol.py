"""uvicorn's WebSocket protocol, with a fast path for frames that go to many devices, and bounded input.

A frame through ASGI costs a task's wake-up and a write to the socket. Here frames are collected, and everything that
one turn of the event loop produces for a device leaves in one write (docs/adr/0007-live-updates.md has the numbers).

Input is parsed in small slices. Parsing and reading stop while a frame waits for the application or while the device
does not read what was written, so that neither frames nor answers to pings pile up.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from readstate.timings import HttpTimings

from .codes import TOO_MANY_FRAMES
from .outlet import EXTENSION, nothing

SLICE: Final = 4_096
"""Bytes parsed at once: a few hundred frames at most."""
MAX_PARTS: Final = 256
"""Frames that one message may be split into."""


class _Inbox:
    """The events for the application, in place of a queue of asyncio: there is one reader, and it is cheaper."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[ASGIReceiveEvent] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put_nowait(self, event: ASGIReceiveEvent) -> None:
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def empty(self) -> bool:
        return not self._events

    async def get(self) -> ASGIReceiveEvent:
        while not self._events:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._events.popleft()


class _Turn:
    """The connections with something to send, so that one callback per turn of the loop serves all of them."""

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


class LiveProtocol(WebSocketsSansIOProtocol):
    """The server's own outlet: see `outlet.Outlet`. `live_protocol` makes the class for a server."""

    timings: ClassVar[HttpTimings]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.queue = _Inbox(self.loop)  # type: ignore[assignment]
        self.limit = 1 << 20
        self.overrun: Callable[[], None] = nothing
        self.alive: Callable[[], None] = nothing
        self.frame_came: Callable[[], None] = nothing
        self.said_goodbye = False
        self._unparsed = b""
        self._deaf = False
        """The connection is closing because of a flood. Further input is dropped unparsed."""
        self._left = 0
        """Bytes in the transport when writing was blocked, or at the last check for progress."""
        self._out: list[bytes] = []
        self._waiting = 0
        self._paused = self._listed = False

    async def run_asgi(self) -> None:
        extensions = self.scope["extensions"]
        assert extensions is not None
        extensions[EXTENSION] = {"outlet": self}
        await super().run_asgi()

    async def send(self, message: ASGISendEvent) -> None:
        """Mark a handshake that was answered with a problem as complete; otherwise uvicorn logs an error."""
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True

    # ------------------------------------------------------------ output

    def push(self, payload: bytes) -> None:
        """Queue a text frame. It leaves with everything else pushed in this turn of the event loop."""
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
        """Write the pushed frames. While the transport is full they wait here, where they are counted."""
        self._listed = False
        if self._paused or not self._out:
            return
        out, self._out = self._out, []
        self._waiting = 0
        if not self.close_sent and not self.disconnected and not self.transport.is_closing():
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))

    def close(self, code: int, reason: str) -> None:
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
        self.close_timer = self.loop.call_later(self.timings.close, self.transport.abort)

    async def end(self) -> None:
        """Nothing to do: the connection ends with its transport."""

    def keepalive_timeout(self) -> None:
        """Pings are not answered: close, unless the device still reads what was written.

        The pongs of a slow device wait unread while writing is blocked.
        """
        left = self.transport.get_write_buffer_size()
        if self._paused and left < self._left and self.ping_timeout is not None:
            self._left = left
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
            return
        self.close(1011, "keepalive ping timeout")

    def pause_writing(self) -> None:
        """The transport is full: frames pushed from now on wait, and nothing is read."""
        self._paused = True
        self._left = self.transport.get_write_buffer_size()
        super().pause_writing()
        self._read_on()

    def resume_writing(self) -> None:
        self._paused = False
        super().resume_writing()
        self.flush()
        self._read_on()

    def shutdown(self) -> None:
        """The server stops: write the pushed frames, then close with 1012. Abort if the device does not take it."""
        self.flush()
        super().shutdown()
        self.loop.call_later(self.timings.close, self.transport.abort)

    # ------------------------------------------------------------ input

    def data_received(self, data: bytes) -> None:
        """Any input, also a pong, is a sign of life."""
        if self._deaf:
            return
        self._unparsed = self._unparsed + data if self._unparsed else data
        self._read_on()
        self.alive()

    async def receive(self) -> ASGIReceiveEvent:
        """The next event for the application. Reading resumes once the queue is empty."""
        event = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._read_on()
        return event

    def _read_on(self) -> None:
        """Parse the received bytes and then read more, unless the application or the device must catch up first."""
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
        """Drop further input, and end our side of the connection after the close frame."""
        self._deaf = True
        self._unparsed = b""
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def handle_ping(self) -> None:
        """Send the pong that the parser has prepared, unless the connection is closing."""
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
        if self._takes(event):
            super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        if self._takes(event):
            super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        if self._takes(event):
            super().handle_cont(event)

    def _takes(self, event: Frame) -> bool:
        """Count each part of a message but the last, which the application counts. False: the connection is closing."""
        if not event.fin and not self.close_sent:
            self.frame_came()
            if len(self.frames) >= MAX_PARTS:
                self.close(TOO_MANY_FRAMES, f"a message came in more than {MAX_PARTS} frames")
        return not self.close_sent

    def handle_close(self, event: Frame) -> None:
        self.said_goodbye = True
        super().handle_close(event)


def live_protocol(timings: HttpTimings) -> type[LiveProtocol]:
    return type("Timed", (LiveProtocol,), {"timings": timings})


def text_frame(payload: bytes) -> bytes:
    """A text frame as a server sends it: not masked, not compressed, not fragmented."""
    size = len(payload)
    if size < 126:
        return b"\x81%c%b" % (size, payload)
    if size < 65_536:
        return b"\x81\x7e%b%b" % (size.to_bytes(2), payload)
    return b"\x81\x7f%b%b" % (size.to_bytes(8), payload)
