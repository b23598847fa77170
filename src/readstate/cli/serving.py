"""The server processes of `readstate serve`: listening, uvicorn around our protocols, and a clean stop."""

import asyncio
import contextlib
import os
import resource
import shlex
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import structlog
import uvicorn
from rich.text import Text

from readstate.domain.errors import ConfigurationError, ReadstateError
from readstate.gateway import asgi_app
from readstate.gateway.asgi import ASGIApp
from readstate.gateway.auth.authenticator import SERVICE_KEY_FILE, load_secrets
from readstate.gateway.demo.sandbox import is_on as demo_is_on
from readstate.gateway.http.app import Gateway
from readstate.gateway.http.health import metrics_app
from readstate.gateway.http.listener import BACKLOG, Listener
from readstate.gateway.http.protocol import http_protocol
from readstate.gateway.ws.protocol import live_protocol
from readstate.profiles.service import Readstate
from readstate.settings import Settings, without_password
from readstate.timings import Timings

from .output import console, fields
from .process import LISTENER, STOP_SECONDS, copies
from .running import announce, withdraw

log = structlog.get_logger("readstate")

KEEP_ALIVE = 75
"""Seconds that an idle connection is kept: longer than the pools of clients keep theirs."""
OTHER_FILES = 256
"""File descriptors besides those of client connections."""


def serve_by_copies(settings: Settings) -> int:
    """Run several processes that share one listening socket."""
    with listen(settings.host, settings.port) as listener:
        listener.listen(BACKLOG)
        url = url_of(settings.host, listener.getsockname()[1], tls=bool(settings.tls_cert))
        data_dir = Path(settings.data_dir)
        data_dir.mkdir(parents=True, exist_ok=True)
        load_secrets(settings)  # created once, before the copies need them
        announce(data_dir, url)
        _greet(settings, url)
        try:
            environ = {**os.environ, LISTENER: str(listener.fileno())}
            return copies(settings.workers, environ, settings.shutdown_grace + STOP_SECONDS, [listener.fileno()])
        finally:
            withdraw(data_dir)


def raise_file_limit(connections: int) -> None:
    """Raise the limit of file descriptors; warn if the system allows fewer than the connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        log.warning(
            "max_connections needs more file descriptors than the system allows: raise the limit (ulimit -Hn)",
            action="start",
            file_descriptors=most,
            max_connections=connections,
        )


def inherited_listener() -> socket.socket | None:
    given = os.environ.get(LISTENER)
    return None if given is None else socket.socket(fileno=int(given))


async def serve(
    settings: Settings, timings: Timings, inherited: socket.socket | None, tls: ssl.SSLContext | None
) -> None:
    """Listen until a signal; then finish the accepted requests and close the store."""
    async with Readstate.open(settings=settings, timings=timings) as service:
        listener = inherited or listen(settings.host, settings.port)
        url = url_of(settings.host, listener.getsockname()[1], tls=tls is not None)
        data_dir = Path(settings.data_dir)

        def started() -> None:
            if inherited is None:
                announce(data_dir, url)
                _greet(settings, url)

        make_listener = partial(Listener, settings=settings, timings=timings.http, tls=tls)
        server = _Server(server_config(service), started, service.begin_stop, make_listener)
        watching = asyncio.create_task(_stop_when_lost(service, server))
        try:
            async with contextlib.AsyncExitStack() as stack:
                if settings.metrics_port:
                    port = listen(settings.host, settings.metrics_port)
                    await stack.enter_async_context(serving_beside(metrics_app(), port, settings, timings))
                await server.serve([listener])
        finally:
            watching.cancel()
            if inherited is None:
                withdraw(data_dir)
    log.info("stopped", action="stop", url=url)
    if server.loss is not None:
        raise server.loss


@contextlib.asynccontextmanager
async def serving_beside(
    app: ASGIApp, listener: socket.socket, settings: Settings, timings: Timings
) -> AsyncIterator[None]:
    """Serve a small application during the block."""
    server = _BesideServer(_config(app, settings, timings, ws="none"))
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


class _BesideServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled by the main program."""
        yield


async def _stop_when_lost(service: Readstate, server: "_Server") -> None:
    server.loss = await service.lost()
    server.stop()


class _Server(uvicorn.Server):
    """uvicorn with our listener. Calls `started` when it listens, and `stopping` when a stop begins.

    A stop by signal ends with exit code 0.
    """

    servers: list[Any]

    def __init__(
        self,
        config: uvicorn.Config,
        started: Callable[[], None],
        stopping: Callable[[], None],
        make_listener: Callable[..., Listener],
    ) -> None:
        super().__init__(config)
        self._on_started = started
        self._on_stopping = stopping
        self._make_listener = make_listener
        self.loss: ReadstateError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        protocol: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        make = partial(protocol, self.config, self.server_state, self.lifespan.state)
        self.servers = [self._make_listener(one, make) for one in sockets or ()]
        self.started = True
        self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Until the process ends, so that a second signal does not interrupt the closing of the store."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop accepting, finish, close. A second Ctrl+C does not wait for requests."""
        self._begin_stop()
        super().handle_exit(sig, frame)

    def stop(self) -> None:
        self._begin_stop()
        self.should_exit = True

    def _begin_stop(self) -> None:
        log.info("stopping", action="stop")
        self._on_stopping()
        if isinstance(self.config.app, Gateway):
            self.config.app.stop_waiting()


def server_config(service: Readstate) -> uvicorn.Config:
    settings = service.settings
    return _config(
        asgi_app(service, demo=demo_is_on(settings)),
        settings,
        service.timings,
        ws=live_protocol(service.timings.http),
        ws_max_size=settings.max_frame,
        ws_ping_interval=settings.heartbeat,
        ws_ping_timeout=settings.heartbeat,
        ws_per_message_deflate=False,
        interface="asgi3",
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=settings.shutdown_grace,
    )


def _config(app: ASGIApp, settings: Settings, timings: Timings, **more: Any) -> uvicorn.Config:
    quiet: dict[str, Any] = {"lifespan": "off", "log_config": None, "access_log": False, "server_header": False}
    return uvicorn.Config(app, http=http_protocol(settings, timings.http), **quiet, **more)


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket, so that the port is known before the first request."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def url_of(host: str, port: int, *, tls: bool = False) -> str:
    """The URL for clients on this machine."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if tls else "http"
    return f"{scheme}://[{reachable}]:{port}" if ":" in reachable else f"{scheme}://{reachable}:{port}"


def _greet(settings: Settings, url: str) -> None:
    """Print the next steps at a terminal; log the address otherwise."""
    key_file = None if settings.service_keys else Path(settings.data_dir) / SERVICE_KEY_FILE
    demo = f"{url}/demo" if demo_is_on(settings) else None
    if not sys.stderr.isatty():
        log.info("listening", action="start", url=url, data_dir=settings.data_dir, service_key_file=key_file, demo=demo)
        return
    bearer = f"$(cat {shlex.quote(str(key_file))})" if key_file else "$READSTATE_KEY"
    out = console(stderr=True)
    out.print(Text("Readstate", "bold green") + Text(f" listens on {url}"))
    out.print(
        fields(
            {
                "demo page": demo or "off (turn it on with --demo)",
                "data": settings.data_dir if settings.in_sqlite else without_password(settings.database_url),
                "service key": key_file or "as configured (service_keys)",
                "stop": "Ctrl+C",
                "try": "",
            }
        )
    )
    out.print(f'curl -H "Authorization: Bearer {bearer}" {url}/v1/users/alice/unread', soft_wrap=True)
