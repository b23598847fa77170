"""Commands of `readstate` in processes of their own, forked from one that has imported everything (`tests.forkserver`).

A start takes a hundredth of the time that a new interpreter takes. What a bare interpreter does is for `bare` and
for the examples of the docs.
"""

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

FORKSERVER = Path(__file__).with_name("forkserver.py")


@functools.cache
def _forkserver() -> socket.socket:
    """Started when the first command is, gone with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        program = [sys.executable, "-P", str(FORKSERVER), str(theirs.fileno())]
        child = subprocess.Popen(program, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def end() -> None:
        ours.close()
        child.wait()

    atexit.register(end)
    return ours


class Command:
    """`readstate` with these words, while it runs. Its output goes where the caller says: `communicate` is no part."""

    def __init__(
        self, *words: str, env: Mapping[str, str], cwd: Path, stdout: IO[str] | int, stderr: IO[str] | int
    ) -> None:
        self.words = words
        self.returncode: int | None = None
        self._told, told = socket.socketpair()
        with told, Path(os.devnull).open() as nothing:
            request = json.dumps({"words": words, "env": dict(env), "cwd": str(cwd)}).encode()
            given = [nothing.fileno(), _number(stdout), _number(stderr), told.fileno()]
            socket.send_fds(_forkserver(), [request], given)
        self.pid = int(self._line())

    def poll(self) -> int | None:
        """Its exit code, as soon as there is one."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; `subprocess.TimeoutExpired` if it does not end in time."""
        code = self._ended(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.words, timeout)
        return code

    def send_signal(self, sign: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sign)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            self.returncode = int(self._line())
            self._told.close()
        return self.returncode

    def _line(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            more = self._told.recv(1)
            assert more, "the fork server has ended"
            line += more
        return line.decode()


def _number(where: IO[str] | int) -> int:
    return where if isinstance(where, int) else where.fileno()


def run(*words: str, env: Mapping[str, str], cwd: Path, timeout: float) -> "subprocess.CompletedProcess[str]":
    """A command from its start to its end, and what it said."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        command = Command(*words, env=env, cwd=cwd, stdout=out, stderr=err)
        try:
            code = command.wait(timeout)
        except subprocess.TimeoutExpired:
            command.kill()
            raise
        return subprocess.CompletedProcess(words, code, _all_of(out), _all_of(err))


def _all_of(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
