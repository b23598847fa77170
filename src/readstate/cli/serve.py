"""`readstate serve`: the service as a process."""

import asyncio
import sys

import typer

from readstate.settings import Settings
from readstate.telemetry import setup_logging
from readstate.timings import Timings

from .commands import RUN, Commands
from .process import as_copy, collect_rarely

app = Commands(RUN)

SWITCH_INTERVAL = 0.0005
"""Seconds until a thread that waits for the interpreter gets it, so that a commit waits briefly for the event loop."""


@app.with_examples(
    "readstate serve",
    "readstate serve --host 0.0.0.0 --port 9000 --data-dir /var/lib/readstate",
    "READSTATE_SERVICE_KEYS=a-long-random-key readstate serve --config /etc/readstate.toml",
    flags=(
        *("host", "port", "data_dir", "database_url", "hot_url", "jwks", "cors_origins", "store_text", "display_cap"),
        *("fanout_max_members", "shutdown_grace", "profile", "workers", "demo", "log_level", "accept_data_loss"),
    ),
)
def serve(settings: Settings) -> None:
    """Run the service.

    Every setting can also come from the environment (READSTATE_PORT=9000) or from a TOML file (port = 9000, in
    readstate.toml or --config); flags win over both.
    """
    run(settings, Timings())


def run(settings: Settings, timings: Timings) -> None:
    """Serve until a signal."""
    setup_logging(settings.log_level)

    import uvloop

    from readstate.gateway.auth.authenticator import require_jwks_file
    from readstate.profiles.service import make_tracing

    from . import serving
    from .tls import server_context

    require_jwks_file(settings)
    sys.setswitchinterval(SWITCH_INTERVAL)
    collect_rarely()
    tls = server_context(settings)
    serving.raise_file_limit(settings.max_connections)
    listener = serving.inherited_listener()
    if listener is None and settings.workers > 1:
        make_tracing(settings)  # refused once, not by every copy
        raise typer.Exit(serving.serve_by_copies(settings))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serving.serve(as_copy(settings), timings, listener, tls))
