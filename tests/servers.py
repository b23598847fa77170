"""Real `readstate serve` children for tests: started, watched, stopped and killed."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests import stores

DEADLINE = 30.0


def wait_until(condition: Callable[[], bool], what: str, deadline: float = DEADLINE) -> None:
    """Returns when the condition holds; fails with `what` when it does not within the deadline."""
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"waited {deadline} s in vain until {what}"
        time.sleep(0.01)


class Server:
    """A child process that serves a data directory over real HTTP on a free port."""

    def __init__(self, data_dir: Path, *flags: str, **settings: object) -> None:
        self.data_dir = data_dir
        self.flags = flags
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("READSTATE_")}
        settings = stores.settings_of(data_dir) | settings
        self.environ |= {f"READSTATE_{name.upper()}": str(value) for name, value in settings.items()}
        self.log: list[str] = []
        self.url = ""
        self._child: subprocess.Popen[str] | None = None
        self._drain: threading.Thread | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, "not started"
        return self._child.pid

    @property
    def service_key(self) -> str:
        return (self.data_dir / "service-key").read_text().strip()

    @property
    def jwt_secret(self) -> str:
        return (self.data_dir / "jwt-secret").read_text().strip()

    def start(self) -> "Server":
        """Starts a child and returns when it is ready."""
        self.launch()
        wait_until(self._is_ready, "the service is ready")
        return self

    def launch(self) -> None:
        """Starts a child and waits for nothing."""
        assert self._child is None, "already started"
        command = [sys.executable, "-m", "readstate", "serve", "--port", "0", "--data-dir", str(self.data_dir)]
        # A pipe, not a file: limits on the size of files must not meet the log.
        self._child = subprocess.Popen(
            [*command, *self.flags],
            env=self.environ,
            cwd=self.data_dir.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._drain = threading.Thread(target=self._read_log, args=(self._child,), daemon=True)
        self._drain.start()

    def kill(self) -> None:
        """Ends the child at once, as a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Asks the child to stop and returns its exit code."""
        return self._end(signal.SIGTERM)

    def wait_for_exit(self) -> int:
        """The exit code of a child that ends by itself."""
        return self._end(None)

    def limit_file_size(self, size: int) -> None:
        """From now on no file of the child can grow beyond `size` bytes: to it, the disk is full."""
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def lift_limit(self) -> None:
        """The disk has room again."""
        self.limit_file_size(resource.RLIM_INFINITY)

    def _is_ready(self) -> bool:
        assert self._child is not None
        assert self._child.poll() is None, f"the service ended early:\n{''.join(self.log)}"
        try:
            told = json.loads((self.data_dir / "service.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return False
        if told["pid"] != self.pid:  # left behind by a child that was killed
            return False
        self.url = told["url"]
        try:
            return httpx.get(f"{self.url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def _read_log(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        self.log.extend(child.stdout)

    def _end(self, sign: signal.Signals | None) -> int:
        assert self._child is not None
        assert self._drain is not None
        child, self._child = self._child, None
        if sign is not None:
            child.send_signal(sign)
        try:
            code = child.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise
        finally:
            self._drain.join(DEADLINE)
            assert child.stdout is not None
            child.stdout.close()
        return code

    def close(self) -> None:
        """Ends the child if it still runs."""
        if self._child is not None:
            self.kill()


@contextmanager
def serving(data_dir: Path, *flags: str, **settings: object) -> Iterator[Server]:
    """A running service over a data directory; it is ended with the block."""
    server = Server(data_dir, *flags, **settings)
    try:
        yield server.start()
    finally:
        server.close()
