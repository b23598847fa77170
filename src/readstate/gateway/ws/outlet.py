"""How frames leave for a device: pushed without blocking, and in order."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Protocol

from readstate.gateway.asgi import Scope, Send

EXTENSION = "readstate.outlet"
"""The key of a server's own, faster outlet in `scope["extensions"]`."""


def nothing() -> None:
    pass


class Outlet(Protocol):
    """The send side of one connection."""

    limit: int
    """Bytes that may wait for a slow device."""
    overrun: Callable[[], None]
    """Called once when more bytes wait; they are dropped."""
    alive: Callable[[], None]
    """Called at every sign of life."""
    frame_came: Callable[[], None]
    """Called for each frame that does not reach the application: a ping, a pong, or any part of a message but the last.

    Only the server's own outlet calls it.
    """

    @property
    def said_goodbye(self) -> bool:
        """Whether the device closed the connection properly."""

    def push(self, payload: bytes) -> None:
        """Send a text frame after all pushed before. Does not block."""

    def close(self, code: int, reason: str) -> None:
        """Close, after the pushed frames if the device takes them. Does not block."""

    async def end(self) -> None:
        """Nothing is sent any more."""


class AsgiOutlet:
    """The outlet for any ASGI server: a task that sends pushed frames as fast as the device takes them."""

    def __init__(self, send: Send) -> None:
        self.limit = 0
        self.overrun: Callable[[], None] = nothing
        self.alive: Callable[[], None] = nothing
        self.frame_came: Callable[[], None] = nothing
        self.said_goodbye = False
        self._send = send
        self._frames: deque[bytes] = deque()
        self._waiting = 0
        self._more = asyncio.Event()
        self._closing: tuple[int, str] | None = None
        self._task = asyncio.create_task(self._run())

    def push(self, payload: bytes) -> None:
        if self._closing is not None:
            return
        self._frames.append(payload)
        self._waiting += len(payload)
        self._more.set()
        if self._waiting > self.limit:
            self._frames.clear()
            self.overrun()

    def close(self, code: int, reason: str) -> None:
        if self._closing is None:
            self._closing = (code, reason)
            self._more.set()

    async def end(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        with contextlib.suppress(OSError):  # the device is gone; `receive` reports it
            while self._closing is None or self._frames:
                await self._more.wait()
                self._more.clear()
                while self._frames:
                    payload = self._frames.popleft()
                    await self._send({"type": "websocket.send", "text": payload.decode()})
                    self._waiting -= len(payload)
            code, reason = self._closing
            await self._send({"type": "websocket.close", "code": code, "reason": reason})


def outlet_of(scope: Scope, send: Send) -> Outlet:
    """The server's own outlet, or one over ASGI. The caller must end it."""
    own: Outlet | None = (scope.get("extensions") or {}).get(EXTENSION, {}).get("outlet")
    return AsgiOutlet(send) if own is None else own
