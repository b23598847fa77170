"""`readstate worker`: what the cluster profile does in the background, as processes of their own."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Annotated

import structlog
import typer
import uvloop

from readstate.domain.errors import ReadstateError
from readstate.extras import extra
from readstate.gateway.http.health import health_app
from readstate.profiles.service import Readstate, make_tracing, require_cluster
from readstate.settings import Settings, load_settings
from readstate.tasks import cancel
from readstate.telemetry import setup_logging
from readstate.workers import ROLES

from .help import examples
from .place import Config
from .process import as_copy, copies, number
from .serve import STOP_SECONDS, listen, on_the_side, url_of

app = typer.Typer()

log = structlog.get_logger("readstate")

HELP = (
    "Run the workers of the cluster profile: all roles, or those named.\n\n"
    f"Roles: {', '.join(ROLES)}. Any number of processes may have the same role; they share its work. Each answers "
    "/healthz, /readyz and /metrics on its own port (worker_port)."
)


@app.command(
    rich_help_panel="Run it",
    help=HELP,
    epilog=examples(
        "readstate worker",
        "readstate worker message-writer --processes 4",
        "readstate worker read-receipt-persister status-update --port 9200",
    ),
)
def worker(
    roles: Annotated[list[str] | None, typer.Argument(help="Roles; none: all of them.", show_default=False)] = None,
    processes: Annotated[int, typer.Option(min=1, max=1024, help="Processes with these roles.")] = 1,
    worker_port: Annotated[
        int | None, typer.Option("--port", show_default="9100", help="Port of health and metrics; 0 takes a free one.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(show_default="./readstate-data", help="Where reads wait while Kafka is away.")
    ] = None,
    config: Config = None,
    log_level: Annotated[str | None, typer.Option(show_default="info", help="debug, info, warning or error.")] = None,
) -> None:
    """Run the workers of the cluster profile."""
    flags = {"worker_port": worker_port, "data_dir": data_dir, "log_level": log_level}
    settings = load_settings(flags, os.environ, config)
    require_cluster(settings)
    chosen = _checked(roles or list(ROLES))
    setup_logging(settings.log_level)
    if processes > 1 and number() is None:
        make_tracing(settings)  # refused once, not by every copy
        raise typer.Exit(copies(processes, os.environ, STOP_SECONDS))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_work(as_copy(settings), chosen))


def _checked(roles: list[str]) -> list[str]:
    for role in roles:
        if role not in ROLES:
            raise typer.BadParameter(f"there is no role {role!r}; there are {', '.join(ROLES)}", param_hint="ROLES")
    return list(dict.fromkeys(roles))


async def _work(settings: Settings, roles: list[str]) -> None:
    """Work until a signal says stop; then finish what was taken, and leave the groups."""
    with extra("confluent_kafka", "Kafka"):
        from readstate.profiles.roles import WorkerSupervisor  # noqa: PLC0415 - an extra
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, stopping.set)
    async with Readstate.open(settings=settings) as service:
        supervisor = WorkerSupervisor(service, roles)

        async def states() -> dict[str, str]:
            return {**await service.ready(), **supervisor.states()}

        listener = listen(settings.host, settings.worker_port)
        url = url_of(settings.host, listener.getsockname()[1])
        watching = asyncio.create_task(_stop_when_lost(service, stopping))
        try:
            async with on_the_side(health_app(states), listener, settings, service.timings):
                log.info("working", action="start", roles=roles, url=url)
                await supervisor.run(stopping)
        finally:
            await cancel(watching)
    log.info("stopped", action="stop", roles=roles)
    if not watching.cancelled():
        raise watching.result()


async def _stop_when_lost(service: Readstate, stopping: asyncio.Event) -> ReadstateError:
    loss = await service.lost()
    stopping.set()
    return loss
