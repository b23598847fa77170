"""Accepts connections, and reports when it cannot.

When file descriptors run out, uvloop silently accepts and closes connections. Here they wait in the kernel's queue
until there is room again, and a log line and a metric report it.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Final

from readstate.settings import Settings
from readstate.telemetry import ACCEPT_FAILED, HTTP_REFUSED
from readstate.timings import HttpTimings

from .connections import Seldom

BACKLOG: Final = 2_048
PER_TURN: Final = 64
"""Connections accepted before the event loop does anything else."""


class Listener:
    """A listening socket of the running event loop, with the methods that uvicorn calls on an asyncio server."""

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        settings: Settings,
        timings: HttpTimings,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = listening
        self._make_protocol = make_protocol
        self._settings = settings
        self._timings = timings
        self._tls = tls
        self._opening: set[asyncio.Task[None]] = set()
        """Connections that are not handed over yet, most of them in a TLS handshake."""
        self._rest: asyncio.TimerHandle | None = None
        self._failures = Seldom(timings.warning_interval)
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Accept no more connections. Those handed over continue."""
        if self._rest is not None:
            self._rest.cancel()
        self._loop.remove_reader(self._socket)
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return when no connection is half open."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _accept(self) -> None:
        for _ in range(PER_TURN):
            try:
                connection, _address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            if len(self._opening) >= self._settings.max_connections:
                HTTP_REFUSED.labels("connections").inc()
                connection.close()
                continue
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _pause(self, error: OSError) -> None:
        """Remove the reader for a while; it would be called again at once, without success."""
        name = errno.errorcode.get(error.errno or 0, "other")
        ACCEPT_FAILED.labels(name).inc()
        self._failures.warn(
            "cannot accept connections; new ones wait", action="accept", error=name, reason=error.strerror
        )
        self._loop.remove_reader(self._socket)
        pause = self._timings.accept_pause
        self._rest = self._loop.call_later(pause, self._loop.add_reader, self._socket, self._accept)

    async def _open(self, connection: socket.socket) -> None:
        timeout = None if self._tls is None else self._settings.header_timeout
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol, connection, ssl=self._tls, ssl_handshake_timeout=timeout
            )
        except OSError:  # includes a handshake timeout
            if self._tls is not None:
                HTTP_REFUSED.labels("tls").inc()
            connection.close()
