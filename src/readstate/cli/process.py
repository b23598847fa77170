"""Several processes of one command: started, watched, stopped together."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FrameType

import structlog

from ..settings import Settings

log = structlog.get_logger("readstate")

LOOK_SECONDS = 0.1
REST_SECONDS = 1.0
"""A copy that ends by itself is started again after so long."""
COPY = "READSTATE_COPY"
"""The number of a copy, from 0; set by the process that starts it."""
LISTENER = "READSTATE_LISTENER"
"""The listening socket that a copy gets, as a file descriptor."""


def number() -> int | None:
    """Which copy this process is; None: the one that was started by hand."""
    given = os.environ.get(COPY)
    return None if given is None else int(given)


def as_copy(settings: Settings) -> Settings:
    """The settings of this copy: each has a name and ports of its own."""
    one = number()
    if one is None:
        return settings
    name = f"{settings.instance_id}-{one}" if settings.instance_id else ""
    ports = {field: getattr(settings, field) for field in ("worker_port", "metrics_port")}
    return replace(settings, instance_id=name, **{field: port and port + one for field, port in ports.items()})


def copies(count: int, environ: Mapping[str, str], grace: float, inherited: Sequence[int] = ()) -> int:
    """Run this very command in so many processes until a signal says stop; returns the exit code."""
    stopping: list[int] = []

    def stop(sign: int, _: FrameType | None) -> None:
        stopping.append(sign)

    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, stop)
    start = _starter(environ, inherited)
    running = {one: start(one) for one in range(count)}
    rest: dict[int, float] = {}
    while not stopping:
        for one, child in list(running.items()):
            if child.poll() is not None:
                log.error("a process has ended by itself and is started again", action="copies", code=child.returncode)
                del running[one]
                rest[one] = time.monotonic() + REST_SECONDS
        for one in [one for one, until in rest.items() if time.monotonic() >= until]:
            del rest[one]
            running[one] = start(one)
        time.sleep(LOOK_SECONDS)
    return _stop(list(running.values()), grace)


def _starter(environ: Mapping[str, str], inherited: Sequence[int]) -> Callable[[int], "subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "readstate", *sys.argv[1:]]

    def start(one: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            command, env={**environ, COPY: str(one)}, pass_fds=tuple(inherited), start_new_session=True
        )

    return start


def _stop(children: "Sequence[subprocess.Popen[bytes]]", grace: float) -> int:
    for child in children:
        child.terminate()
    end = time.monotonic() + grace
    code = 0
    for child in children:
        try:
            code = max(code, abs(child.wait(max(0.1, end - time.monotonic()))))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            code = max(code, 1)
    return code
