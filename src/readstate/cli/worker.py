"""`readstate worker`: processes that consume the log in the cluster profile."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from readstate.domain.errors import ReadstateError
from readstate.extras import extra
from readstate.settings import Settings
from readstate.tasks import cancel
from readstate.telemetry import setup_logging
from readstate.workers import ROLES

from .commands import RUN, Commands
from .process import STOP_SECONDS, as_copy, collect_rarely, copies, number

if TYPE_CHECKING:
    from readstate.profiles.service import Readstate

app = Commands(RUN)

log = structlog.get_logger("readstate")

HELP = (
    "Run the workers of the cluster profile: all roles, or the named ones.\n\n"
    f"Roles: {', '.join(ROLES)}. Any number of processes may have the same role and share its work. Each serves "
    "/healthz, /readyz and /metrics on its own port (worker_port)."
)


@app.with_examples(
    "readstate worker",
    "readstate worker message-writer --processes 4",
    "readstate worker read-receipt-persister status-update --port 9200",
    text=HELP,
    flags=("worker_port", "data_dir", "log_level"),
)
def worker(
    roles: Annotated[list[str] | None, typer.Argument(help="Roles; none: all of them.", show_default=False)] = None,
    processes: Annotated[int, typer.Option(min=1, max=1024, help="Processes with these roles.")] = 1,
    *,
    settings: Settings,
) -> None:
    """Run the workers of the cluster profile."""
    import uvloop

    from readstate.profiles.service import make_tracing

    settings.require_cluster()
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
    """Work until a signal; then finish the batches in flight and leave the consumer groups."""
    with extra("confluent_kafka", "Kafka"):
        from readstate.profiles.roles import WorkerSupervisor  # an extra
    from readstate.gateway.http.health import health_app
    from readstate.profiles.service import Readstate

    from .serving import listen, serving_beside, url_of

    collect_rarely()  # what is imported by now stays
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    service = Readstate.open(settings=settings)

    def stop() -> None:
        stopping.set()
        service.begin_stop()

    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, stop)
    async with service:
        supervisor = WorkerSupervisor(service, roles)

        async def states() -> dict[str, str]:
            return {**await service.ready(), **supervisor.states()}

        listener = listen(settings.host, settings.worker_port)
        url = url_of(settings.host, listener.getsockname()[1])
        watching = asyncio.create_task(_stop_when_lost(service, stop))
        try:
            async with serving_beside(health_app(states), listener, settings, service.timings):
                log.info("working", action="start", roles=roles, url=url)
                await supervisor.run(stopping)
        finally:
            await cancel(watching)
    log.info("stopped", action="stop", roles=roles)
    if not watching.cancelled():
        raise watching.result()


async def _stop_when_lost(service: "Readstate", stop: Callable[[], None]) -> ReadstateError:
    loss = await service.lost()
    stop()
    return loss
