"""Forks a process for each command of `readstate` that is asked for: as real as any, but with its imports behind it.

Started by `tests.commands`, with a socket as its only argument. A request is JSON (words, env, cwd) with four
descriptors: stdin, stdout, stderr, and where the process id and in the end the exit code are told.
"""

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys

from typer.testing import CliRunner

import readstate
from readstate.cli import app, main
from readstate.cli.serve import run
from readstate.settings import load_settings
from readstate.timings import HttpTimings, Timings

USED_LATER = (
    "asyncpg",
    "confluent_kafka.admin",
    "pydantic.functional_validators",
    "pydantic.type_adapter",
    "pydantic.types",
    "redis.asyncio",
    "rich.table",
    "uvicorn.lifespan.on",
    "uvloop",
    "websockets.asyncio.client",
)
"""What commands import of others when they need it."""
REQUEST_BYTES = 1 << 20


def serve(requests: socket.socket) -> None:
    """Returns in each process that is forked; ends when nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_who_ended(running)
        if requests.fileno() in ready:
            request, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 4)
            if not request:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                _become(json.loads(request), descriptors)
                return
            for one in descriptors[:3]:
                os.close(one)
            running[pid] = descriptors[3]
            os.write(descriptors[3], f"{pid}\n".encode())


def _tell_who_ended(running: dict[int, int]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            told = running.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os.close(told)


def _become(request: dict[str, object], descriptors: list[int]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, one in enumerate(descriptors[:3]):
        os.dup2(one, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    sys.argv = ["readstate", *request["words"]]  # type: ignore[misc]
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()


def serve_hastily() -> None:
    """`readstate serve` with short waits in the gateway: serve-hastily --port PORT --data-dir DIR."""
    flags = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    settings = load_settings({"port": int(flags["--port"]), "data_dir": flags["--data-dir"]}, os.environ, None)
    run(settings, Timings(http=HttpTimings(sweep=0.05, linger=0.2, accept_pause=0.05)))


if __name__ == "__main__":
    ours = (module.name for module in pkgutil.walk_packages(readstate.__path__, "readstate."))
    for name in (*ours, *USED_LATER):
        if not name.endswith("__main__"):
            importlib.import_module(name)
    CliRunner().invoke(app, ["--version"])  # imports what commands are parsed with
    control = socket.socket(fileno=int(sys.argv[1]))
    gc.freeze()
    serve(control)
    control.detach()
    serve_hastily() if sys.argv[1] == "serve-hastily" else main()
