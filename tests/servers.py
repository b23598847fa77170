"""Real `readstate` children for tests: started, watched, paused, stopped and killed."""

import json
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import httpx

from tests import stores
from tests.commands import Command

DEADLINE = 90.0


def wait_until(condition: Callable[[], bool], what: str, deadline: float = DEADLINE) -> None:
    """Returns when the condition holds; fails with `what` when it does not within the deadline."""
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"waited {deadline} s in vain until {what}"
        time.sleep(0.01)


def environ_of(settings: Mapping[str, object]) -> dict[str, str]:
    """The environment of a command with these settings, and no others."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("READSTATE_")}
    return environ | {f"READSTATE_{name.upper()}": _as_text(value) for name, value in settings.items()}


class Child:
    """A process of the service over a data directory of its own; the next one that is started there goes on with it."""

    def __init__(self, data_dir: Path, command: str, *flags: str, **settings: object) -> None:
        self.data_dir = data_dir
        self.command = command
        self.flags = flags
        self.environ = environ_of(settings) | {"PYTHONFAULTHANDLER": "1"}
        self.log: list[str] = []
        self.url = ""
        self._child: Command | None = None
        self._drain: threading.Thread | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, "not started"
        return self._child.pid

    @property
    def runs(self) -> bool:
        """Whether it was started, and has not ended since."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> Self:
        """Starts a child and returns when it is ready."""
        self.launch()
        self.wait_until_ready()
        return self

    def wait_until_ready(self, deadline: float = DEADLINE) -> None:
        """Returns when the child says that it is ready."""
        wait_until(self._is_ready, f"{self.data_dir.name} is ready", deadline)

    def launch(self) -> None:
        """Starts a child and waits for nothing."""
        assert self._child is None, "already started"
        words = [self.command, "--port", "0", "--data-dir", str(self.data_dir), *self.flags]
        # A pipe, not a file: limits on the size of files must not meet the log.
        read, write = os.pipe()
        self._child = Command(*words, env=self.environ, cwd=self.data_dir.parent, stdout=write, stderr=write)
        os.close(write)
        self._drain = threading.Thread(target=self._read_log, args=(read,), daemon=True)
        self._drain.start()

    def kill(self) -> None:
        """Ends the child at once, as a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self, deadline: float = DEADLINE) -> int:
        """Asks the child to stop and returns its exit code."""
        return self._end(signal.SIGTERM, deadline)

    def pause(self) -> None:
        """Lets the child stand still, with its connections open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets the child go on."""
        os.kill(self.pid, signal.SIGCONT)

    def wait_for_exit(self) -> int:
        """The exit code of a child that ends by itself."""
        return self._end(None)

    def where(self) -> str | None:
        """The URL of the child that was started last; None as long as it does not say."""
        raise NotImplementedError

    def _is_ready(self) -> bool:
        assert self._child is not None
        code = self._child.poll()
        assert code is None, f"{self.data_dir.name} ended early, with code {code}:\n{''.join(self.log)}"
        found = self.where()
        if found is None:
            return False
        self.url = found
        try:
            return httpx.get(f"{self.url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def _read_log(self, pipe: int) -> None:
        with open(pipe, errors="replace") as lines:
            self.log.extend(lines)

    def _end(self, sign: signal.Signals | None, deadline: float = DEADLINE) -> int:
        assert self._child is not None
        assert self._drain is not None
        child, drain, self._child = self._child, self._drain, None
        if sign is not None:
            child.send_signal(sign)
        try:
            code = child.wait(deadline)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGABRT)  # then it says where it stands
            child.wait()
            drain.join(DEADLINE)
            raise AssertionError(f"{self.data_dir.name} does not end:\n{''.join(self.log)}") from None
        finally:
            drain.join(DEADLINE)
        return code

    def close(self) -> None:
        """Ends the child if it still runs."""
        if self._child is not None:
            self.kill()


class Server(Child):
    """A child process that serves a data directory over real HTTP on a free port."""

    def __init__(self, data_dir: Path, *flags: str, **settings: object) -> None:
        own = {} if "profile" in settings else stores.settings_of(data_dir)
        super().__init__(data_dir, "serve", *flags, **stores.UNLIMITED | own | settings)
        self._worker: Worker | None = None
        """In the cluster profile nothing moves without one."""
        if own.get("profile") == "cluster":
            self._worker = Worker(data_dir.with_name(f"{data_dir.name}-worker"), **own | settings)

    def launch(self) -> None:
        super().launch()
        if self._worker is not None and not self._worker.runs:
            self._worker.launch()

    def wait_until_ready(self, deadline: float = DEADLINE) -> None:
        super().wait_until_ready(deadline)
        if self._worker is not None:
            self._worker.wait_until_ready(deadline)

    def close(self) -> None:
        super().close()
        if self._worker is not None:
            self._worker.close()

    @property
    def service_key(self) -> str:
        return (self.data_dir / "service-key").read_text().strip()

    @property
    def jwt_secret(self) -> str:
        return (self.data_dir / "jwt-secret").read_text().strip()

    def limit_file_size(self, size: int) -> None:
        """From now on no file of the child can grow beyond `size` bytes: to it, the disk is full."""
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def lift_limit(self) -> None:
        """The disk has room again."""
        self.limit_file_size(resource.RLIM_INFINITY)

    def where(self) -> str | None:
        """As it says in its data directory."""
        try:
            told = json.loads((self.data_dir / "service.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return str(told["url"]) if told["pid"] == self.pid else None  # else left behind by a child that was killed


class Worker(Child):
    """A child process that works for the cluster profile; its roles are the flags, none means all."""

    def __init__(self, data_dir: Path, *flags: str, **settings: object) -> None:
        super().__init__(data_dir, "worker", *flags, **settings)
        self._heard = 0

    def launch(self) -> None:
        self._heard = len(self.log)
        super().launch()

    def where(self) -> str | None:
        """As it says in its log."""
        for line in self.log[self._heard :]:
            if '"working"' in line:
                return str(json.loads(line)["url"])
        return None


def _as_text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


class HastyServer(Server):
    """A server whose gateway waits for little."""

    def __init__(self, data_dir: Path, **settings: object) -> None:
        super().__init__(data_dir, **settings)
        self.command = "serve-hastily"


@contextmanager
def serving(data_dir: Path, *flags: str, **settings: object) -> Iterator[Server]:
    """A running service over a data directory; it is ended with the block."""
    with _running(Server(data_dir, *flags, **settings)) as server:
        yield server


@contextmanager
def serving_hastily(data_dir: Path, **settings: object) -> Iterator[Server]:
    """The same; its gateway waits for little."""
    with _running(HastyServer(data_dir, **settings)) as server:
        yield server


@contextmanager
def _running(server: Server) -> Iterator[Server]:
    try:
        yield server.start()
    finally:
        server.close()
