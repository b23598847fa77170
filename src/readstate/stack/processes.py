"""Processes that outlive the command that started them. Identified by pid and start time, since pids are reused."""

import contextlib
import functools
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

DETACHED = '"$@" </dev/null >&2 & echo $!'
"""The shell prints the server's pid and exits, so the server's parent becomes init."""
TIED = '"$@" </dev/null >&2 & echo $!; exec >&-; read -r _; kill -9 $!; wait'
"""The shell stays, and kills the server when the pipe to the process that started it breaks, for whatever reason."""
ENVIRON = {"PATH": os.defpath, "LC_ALL": "C"}
"""The environment of servers: nothing of the caller's environment changes how they run."""
LINUX = sys.platform == "linux"
MOMENT = 0.01


@dataclass(frozen=True)
class User:
    name: str
    uid: int
    gid: int

    def options(self) -> dict[str, object]:
        """The arguments that make `subprocess` run a program as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


@dataclass(frozen=True)
class Process:
    """A process, identified by its pid and start time. Pids are reused."""

    pid: int
    born: str

    @property
    def is_alive(self) -> bool:
        """Whether it still exists, running or paused."""
        return bool(self.born) and birth(self.pid) == self.born

    def send(self, sign: signal.Signals) -> None:
        """Signal this process only, if it still exists."""
        if self.is_alive:
            _send(self.pid, sign)

    def send_all(self, sign: signal.Signals) -> None:
        """Signal this process and all descendants. It is stopped meanwhile, so that it starts no more children."""
        if not self.is_alive:
            return
        _send(self.pid, signal.SIGSTOP)
        for pid in [*_descendants(self.pid), self.pid]:
            _send(pid, sign)

    def wait(self, seconds: float) -> bool:
        """Whether it ends within this time."""
        end = time.monotonic() + seconds
        while self.is_alive:
            if time.monotonic() > end:
                return False
            time.sleep(MOMENT)
        return True


def launch(
    command: Sequence[str | Path], *, directory: Path, log: BinaryIO, tied: bool, user: User | None = None
) -> tuple[Process, "subprocess.Popen[bytes] | None"]:
    """Start a server in its own session. A tied server comes with a shell that ends it together with this process."""
    shell = subprocess.Popen(
        ["/bin/sh", "-c", TIED if tied else DETACHED, "sh", *command],
        cwd=directory,
        env=ENVIRON,
        stdin=subprocess.PIPE if tied else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
        **(user.options() if user else {}),  # type: ignore[call-overload]
    )
    assert shell.stdout is not None
    with shell.stdout as answer:
        pid = int(answer.readline())
    if not tied:
        shell.wait()
    return Process(pid, birth(pid) or ""), shell if tied else None


def run(
    command: Sequence[str | Path], *, directory: Path, user: User | None = None
) -> subprocess.CompletedProcess[str]:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command,
        cwd=directory,
        env=ENVIRON,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        **(user.options() if user else {}),  # type: ignore[call-overload]
    )
    return done


def birth(pid: int) -> str | None:
    """What distinguishes a process from later ones with the same pid; None: it has ended."""
    if LINUX:
        fields = _stat(pid)
        return f"{_boot()}/{fields[19]}" if fields and fields[0] not in "ZX" else None
    output = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, since = output.stdout.strip().partition(" ")
    return since.strip() or None if not state.startswith("Z") else None


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for one, parent in _parents():
        children.setdefault(parent, []).append(one)
    found, ahead = [], [pid]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


def _parents() -> list[tuple[int, int]]:
    if LINUX:
        numbers = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [(pid, int(fields[1])) for pid in numbers if (fields := _stat(pid))]
    output = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    return [(int(pid), int(parent)) for pid, parent in map(str.split, output.stdout.splitlines())]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may itself contain spaces and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


@functools.cache
def _boot() -> str:
    """The boot id. Start times count from the boot of the machine, so they are unique only with it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _send(pid: int, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sign)


def package_folders(name: str) -> list[Path]:
    """Where an installed Python package is; none: it is not installed."""
    package = importlib.util.find_spec(name)
    return [Path(folder) for folder in (package.submodule_search_locations or [])] if package else []
