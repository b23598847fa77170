"""`readstate serve`: the service as a process."""

import asyncio
import contextlib
import gc
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
from typing import Annotated, Any

import structlog
import typer
import uvicorn
import uvloop
from rich.text import Text

from readstate.domain.errors import ConfigurationError, ReadstateError
from readstate.gateway import asgi_app
from readstate.gateway.asgi import ASGIApp
from readstate.gateway.auth.authenticator import SERVICE_KEY_FILE, load_secrets, require_jwks_file
from readstate.gateway.demo.sandbox import is_on as demo_is_on
from readstate.gateway.http.app import Gateway
from readstate.gateway.http.health import metrics_app
from readstate.gateway.http.listener import BACKLOG, Listener
from readstate.gateway.http.protocol import http_protocol
from readstate.gateway.ws.protocol import live_protocol
from readstate.profiles.service import Readstate, make_tracing
from readstate.settings import Settings, load_settings, without_password
from readstate.telemetry import setup_logging
from readstate.timings import Timings

from .help import examples
from .output import console, fields
from .place import Config
from .process import LISTENER, as_copy, copies
from .running import announce, withdraw
from .tls import server_context

app = typer.Typer()

log = structlog.get_logger("readstate")

HELP = (
    "Run the service.\n\n"
    "Every setting can also come from the environment (READSTATE_PORT=9000) or from a TOML file "
    "(port = 9000, in readstate.toml or --config); flags win over both."
)
SWITCH_INTERVAL = 0.0005
"""Seconds until a thread that waits for the interpreter gets it: a commit must not wait long for the event loop."""
GC_THRESHOLDS = (50_000, 20, 50)
"""The hot state is many objects without cycles: looking through them seldom costs little memory and saves much."""
STOP_SECONDS = 20
"""What a process may need after its requests are done, to bring what it took to where it belongs."""
KEEP_ALIVE = 75
"""Seconds that an idle connection is kept: longer than the pools of clients keep theirs."""
OTHER_FILES = 256
"""File descriptors for everything but connections of clients."""


@app.command(
    rich_help_panel="Run it",
    help=HELP,
    epilog=examples(
        "readstate serve",
        "readstate serve --host 0.0.0.0 --port 9000 --data-dir /var/lib/readstate",
        "READSTATE_SERVICE_KEYS=a-long-random-key readstate serve --config /etc/readstate.toml",
    ),
)
def serve(
    host: Annotated[str | None, typer.Option(show_default="127.0.0.1", help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(show_default="8080", help="Port; 0 takes a free one.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(show_default="./readstate-data", help="Database and generated secrets.")
    ] = None,
    config: Config = None,
    database_url: Annotated[
        str | None, typer.Option(show_default="in the data directory", help="sqlite:///path or postgresql://…")
    ] = None,
    hot_url: Annotated[
        str | None, typer.Option(show_default="in memory", help="Valkey or Redis: redis://… or redis+cluster://…")
    ] = None,
    jwks: Annotated[str | None, typer.Option(help="File or URL of the keys of user tokens.")] = None,
    cors_origins: Annotated[
        list[str] | None, typer.Option("--cors-origin", help="A web origin that may call; may be repeated.")
    ] = None,
    store_text: Annotated[
        str | None, typer.Option(show_default="full", help="Keep of texts: full, preview or none.")
    ] = None,
    display_cap: Annotated[int | None, typer.Option(show_default="99", help="Highest label without a +.")] = None,
    fanout_max_members: Annotated[
        int | None, typer.Option(show_default="100", help="Larger channels are counted from one timeline.")
    ] = None,
    shutdown_grace: Annotated[
        int | None, typer.Option(show_default="10", help="Seconds that requests get at a stop.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(show_default="embedded", help="embedded, or cluster (Valkey, Kafka, PostgreSQL).")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(show_default="1", help="Server processes; the embedded profile has one.")
    ] = None,
    demo: Annotated[bool | None, typer.Option(show_default="no-demo", help="Serve the demo page at /demo.")] = None,
    log_level: Annotated[str | None, typer.Option(show_default="info", help="debug, info, warning or error.")] = None,
    accept_data_loss: Annotated[
        bool | None,
        typer.Option("--accept-data-loss", help="Start though a part of the store is gone: it is lost then."),
    ] = None,
) -> None:
    """Run the service."""
    flags = {name: value or None if name == "cors_origins" else value for name, value in locals().items()}
    del flags["config"]
    run(load_settings(flags, os.environ, config), Timings())


def run(settings: Settings, timings: Timings) -> None:
    """Serve until a signal says stop."""
    require_jwks_file(settings)
    setup_logging(settings.log_level)
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    tls = server_context(settings)
    _raise_file_limit(settings.max_connections)
    listener = _inherited()
    if listener is None and settings.workers > 1:
        make_tracing(settings)  # refused once, not by every copy
        raise typer.Exit(_serve_by_copies(settings))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(as_copy(settings), listener, tls, timings))


def _serve_by_copies(settings: Settings) -> int:
    """Several processes that share one listening socket."""
    with listen(settings.host, settings.port) as listener:
        listener.listen(BACKLOG)
        url = url_of(settings.host, listener.getsockname()[1], tls=bool(settings.tls_cert))
        data_dir = Path(settings.data_dir)
        data_dir.mkdir(parents=True, exist_ok=True)
        load_secrets(settings)  # made once, before all of them look for it
        announce(data_dir, url)
        _greet(settings, url)
        try:
            environ = {**os.environ, LISTENER: str(listener.fileno())}
            return copies(settings.workers, environ, settings.shutdown_grace + STOP_SECONDS, [listener.fileno()])
        finally:
            withdraw(data_dir)


def _raise_file_limit(connections: int) -> None:
    """Take as many file descriptors as the system gives; say so if they are fewer than connections may need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        log.warning(
            "there are fewer file descriptors than max_connections needs: raise the limit (ulimit -Hn)",
            action="start",
            file_descriptors=most,
            max_connections=connections,
        )


def _inherited() -> socket.socket | None:
    given = os.environ.get(LISTENER)
    return None if given is None else socket.socket(fileno=int(given))


async def _serve(
    settings: Settings, inherited: socket.socket | None, tls: ssl.SSLContext | None, timings: Timings
) -> None:
    """Listen until a signal says stop; then finish what was accepted and close the store."""
    async with Readstate.open(settings=settings, timings=timings) as service:
        listener = inherited or listen(settings.host, settings.port)
        url = url_of(settings.host, listener.getsockname()[1], tls=tls is not None)
        data_dir = Path(settings.data_dir)

        def started() -> None:
            if inherited is None:
                announce(data_dir, url)
                _greet(settings, url)

        server = _Server(
            _server_config(service),
            started,
            partial(Listener, settings=settings, timings=timings.http, tls=tls),
        )
        watching = asyncio.create_task(_stop_when_lost(service, server))
        try:
            async with _metrics(settings, timings):
                await server.serve([listener])
        finally:
            watching.cancel()
            if inherited is None:
                withdraw(data_dir)
    log.info("stopped", action="stop", url=url)
    if server.loss is not None:
        raise server.loss


@contextlib.asynccontextmanager
async def _metrics(settings: Settings, timings: Timings) -> AsyncIterator[None]:
    """Serve the metrics on a port of their own, if they have one."""
    if not settings.metrics_port:
        yield
        return
    async with on_the_side(metrics_app(), listen(settings.host, settings.metrics_port), settings, timings):
        yield


@contextlib.asynccontextmanager
async def on_the_side(
    app: ASGIApp, listener: socket.socket, settings: Settings, timings: Timings
) -> AsyncIterator[None]:
    """Serve a small application while something else runs."""
    config = uvicorn.Config(
        app,
        http=http_protocol(settings, timings.http),
        ws="none",
        log_config=None,
        lifespan="off",
        access_log=False,
        server_header=False,
    )
    server = _SideServer(config)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


class _SideServer(uvicorn.Server):
    """Leaves the signals to what runs beside it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
        yield


async def _stop_when_lost(service: Readstate, server: "_Server") -> None:
    server.loss = await service.lost()
    server.stop()


class _Server(uvicorn.Server):
    """uvicorn, but it accepts by itself and tells when it listens, and a stop by signal is no death by signal."""

    servers: list[Any]

    def __init__(
        self, config: uvicorn.Config, started: Callable[[], None], make_listener: Callable[..., Listener]
    ) -> None:
        super().__init__(config)
        self._tell_started = started
        self._make_listener = make_listener
        self.loss: ReadstateError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        protocol: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        make = partial(protocol, self.config, self.server_state, self.lifespan.state)
        self.servers = [self._make_listener(one, make) for one in sockets or ()]
        self.started = True
        self._tell_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captured until the process ends: a second signal must not interrupt the closing of the store."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop accepting, finish, close. Ctrl+C once more does not wait for requests."""
        self._say_stopping()
        super().handle_exit(sig, frame)

    def stop(self) -> None:
        """The same without a signal."""
        self._say_stopping()
        self.should_exit = True

    def _say_stopping(self) -> None:
        log.info("stopping", action="stop")
        if isinstance(self.config.app, Gateway):
            self.config.app.stop_waiting()


def _server_config(service: Readstate) -> uvicorn.Config:
    return uvicorn.Config(
        asgi_app(service, demo=demo_is_on(service.settings)),
        http=http_protocol(service.settings, service.timings.http),
        ws=live_protocol(service.timings.http),
        ws_max_size=service.settings.max_frame,
        ws_ping_interval=service.settings.heartbeat,
        ws_ping_timeout=service.settings.heartbeat,
        ws_per_message_deflate=False,
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=service.settings.shutdown_grace,
    )


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that the port is known before the first request."""
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
    """Where this machine reaches the service."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if tls else "http"
    return f"{scheme}://[{reachable}]:{port}" if ":" in reachable else f"{scheme}://{reachable}:{port}"


def _greet(settings: Settings, url: str) -> None:
    """Tell a person at a terminal what to do next; tell a log where it listens."""
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
