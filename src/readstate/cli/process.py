"""How processes of a command run; several of one command: started, watched, stopped together."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import FrameType

import structlog

from readstate.domain.errors import ConfigurationError
from readstate.settings import Settings

log = structlog.get_logger("readstate")

GC_THRESHOLDS = (50_000, 20, 50)
"""State and batches are many objects without cycles, so rare collections save much time and cost little memory."""
STOP_SECONDS = 20
"""What a process may need after its requests are done, to write what it accepted."""
POLL_SECONDS = 0.1
RESTART_SECONDS = 1.0
MAX_REFUSALS = 3
"""After this many ends in a row because its settings are refused, a copy is not started again."""
REFUSED = 78
"""The exit code of a copy whose settings are refused (EX_CONFIG)."""
MAX_REASON = 64 * 1024
COPY = "READSTATE_COPY"
"""The number of a copy, from 0, in its environment."""
LISTENER = "READSTATE_LISTENER"
"""The file descriptor of the listening socket that copies share."""
REASON = "READSTATE_REASON"
"""The file descriptor to which a copy writes why its settings are refused."""


def collect_rarely() -> None:
    """Collect garbage rarely, and leave out what is there already."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def number() -> int | None:
    """The number of this copy; None: the process that the user started."""
    given = os.environ.get(COPY)
    return None if given is None else int(given)


def as_copy(settings: Settings) -> Settings:
    """The settings of this copy, with its own name and ports."""
    one = number()
    if one is None:
        return settings
    name = f"{settings.instance_id}-{one}" if settings.instance_id else ""
    ports = {field: getattr(settings, field) for field in ("worker_port", "metrics_port")}
    return replace(settings, instance_id=name, **{field: port and port + one for field, port in ports.items()})


def exit_code(error: Exception) -> int:
    """The exit code for an error. A copy also tells its parent why its settings are refused."""
    given = os.environ.get(REASON)
    if given is None or not isinstance(error, ConfigurationError):
        return 1
    with contextlib.suppress(OSError):  # its parent is gone
        os.write(int(given), error.explained.encode()[:MAX_REASON])
    return REFUSED


def copies(count: int, environ: Mapping[str, str], grace: float, inherited: Sequence[int] = ()) -> int:
    """Run this command in `count` processes until a signal; returns the exit code.

    Stops all and raises ConfigurationError if the settings of one are refused again and again.
    """
    stopping: list[int] = []

    def stop(sign: int, _: FrameType | None) -> None:
        stopping.append(sign)

    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, stop)
    watched = [_Copy(one, environ, inherited) for one in range(count)]
    refusal = ""
    while not stopping and not refusal:
        refusal = next(filter(None, [one.check() for one in watched]), "")
        time.sleep(POLL_SECONDS)
    code = _stop([one.child for one in watched if one.child is not None], grace)
    if refusal:
        raise ConfigurationError(
            f"a process has ended {MAX_REFUSALS} times because its settings are refused: {refusal}"
        )
    return code


class _Copy:
    """One process, restarted when it ends."""

    def __init__(self, number: int, environ: Mapping[str, str], inherited: Sequence[int]) -> None:
        self._environ = {**environ, COPY: str(number)}
        self._inherited = inherited
        self._reasons, self._told = os.pipe()
        os.set_blocking(self._reasons, False)
        self._refusals = 0
        self._restart_at = 0.0
        self.child: subprocess.Popen[bytes] | None = None
        self._start()

    def check(self) -> str:
        """Restart it if it has ended. Returns why its settings are refused, once that is final."""
        if self.child is None:
            if time.monotonic() >= self._restart_at:
                self._start()
        elif (code := self.child.poll()) is not None:
            self._refusals = self._refusals + 1 if code == REFUSED else 0
            reason = self._reason() if code == REFUSED else ""
            self.child, self._restart_at = None, time.monotonic() + RESTART_SECONDS
            if self._refusals >= MAX_REFUSALS:
                return reason or "see its last line"
            log.error("a process has ended by itself and is started again", action="copies", code=code)
        return ""

    def _start(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "readstate", *sys.argv[1:]],
            env={**self._environ, REASON: str(self._told)},
            pass_fds=(*self._inherited, self._told),
            start_new_session=True,
        )

    def _reason(self) -> str:
        try:
            return os.read(self._reasons, MAX_REASON).decode("utf-8", "replace")
        except BlockingIOError:
            return ""


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
