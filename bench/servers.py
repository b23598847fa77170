"""The servers under test, as child processes: Readstate, the plain one and the bare one."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from .load import HOST, BenchmarkError, Wire

ROOT = Path(__file__).parent.parent
START_SECONDS = 60
UNLIMITED = {"READSTATE_RATE_LIMIT": "0", "READSTATE_MAX_DEVICES": "0"}
"""Loads come faster, and from more devices of a user, than people's."""


class Server:
    """A child process that answers HTTP on a free port."""

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str], port: int, key: str) -> None:
        self.name = name
        self.port = port
        self.key = key
        self._command = command
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self._wires: list[Wire] = []

    def start(self, cores: set[int] | None = None) -> None:
        """Start it, on these cores only, and wait until it is ready."""
        with on_cores(cores):
            self._process = subprocess.Popen(self._command, env=self._environment, cwd=ROOT)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError(f"{self.name} did not start")
            time.sleep(0.02)

    def wire(self) -> Wire:
        """A connection of its own, closed when the server stops."""
        wire = Wire(self.port, self.key)
        self._wires.append(wire)
        return wire

    def stop(self) -> None:
        """Ask it to stop, and wait."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it like a power cut would."""
        self._signal(signal.SIGKILL)

    @property
    def pid(self) -> int:
        """Of the running child."""
        assert self._process is not None
        return self._process.pid

    def _answers(self) -> bool:
        try:
            wire = Wire(self.port, self.key)
            wire.call("GET", "/readyz")
        except (OSError, BenchmarkError):
            return False
        wire.close()
        return True

    def _signal(self, number: int) -> None:
        for wire in self._wires:
            wire.close()
        self._wires.clear()
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


class Silent(Server):
    """A child process that answers nobody: it is taken to be ready at once."""

    def _answers(self) -> bool:
        return True


def readstate(directory: Path, **settings: str) -> Server:
    """The real thing: `readstate serve` over this data directory."""
    port, key = free_port(), secrets.token_urlsafe(24)
    command = [sys.executable, "-m", "readstate", "serve", "--port", str(port), "--data-dir", str(directory)]
    environment = {"READSTATE_SERVICE_KEYS": key, "READSTATE_LOG_LEVEL": "warning", **UNLIMITED}
    environment |= {f"READSTATE_{name.upper()}": value for name, value in settings.items()}
    return Server("readstate", command, environment, port, key)


def plain(directory: Path) -> Server:
    """What one would write in an afternoon."""
    return _baseline("plain", "PLAIN", directory)


def bare(directory: Path) -> Server:
    """The ceiling."""
    return _baseline("bare", "BARE", directory)


def _baseline(name: str, prefix: str, directory: Path) -> Server:
    port, key = free_port(), secrets.token_urlsafe(24)
    command = [sys.executable, "-m", "uvicorn", f"bench.baselines.{name}:app", "--host", HOST, "--port", str(port)]
    command += ["--loop", "uvloop", "--http", "httptools", "--ws", "none", "--no-access-log"]
    command += ["--log-level", "warning", "--no-server-header", "--timeout-keep-alive", "75"]
    directory.mkdir(parents=True, exist_ok=True)
    environment = {f"{prefix}_DB": str(directory / "plain.db"), f"{prefix}_KEY": key}
    return Server(name, command, environment, port, key)


def child(module: str, *arguments: object) -> bytes:
    """Run a module of the benchmarks in a process of its own; returns what it prints."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, check=False, cwd=ROOT, stdout=subprocess.PIPE)
    if done.returncode:
        raise BenchmarkError(f"{module} failed")
    return done.stdout


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def on_cores(cores: set[int] | None) -> Iterator[None]:
    """Within this, the calling thread and what it starts stay on these cores (where the system can)."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores & before or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def two_cores() -> tuple[set[int], set[int]]:
    """One core for the server and another one for the load; the same one if there is no other."""
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    return {available[0]}, {available[min(1, len(available) - 1)]}
