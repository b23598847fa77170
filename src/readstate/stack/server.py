"""Real servers as processes: start on their own ports, stop, kill, pause, and start again with the same data."""

import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from msgspec import Struct

from readstate.domain.errors import ConfigurationError, Unavailable

from .ports import free_ports, is_free
from .processes import MOMENT, Process, User, launch, run

Report = Callable[[str], None]
"""Called with a short progress message."""
LOG = "server.log"
START_SECONDS = 120.0
"""Usually 1 to 2 s; on a busy machine Kafka takes half a minute."""
STOP_SECONDS = 30.0
PORT_TRIES = 5


class SoftwareMissing(ConfigurationError):
    """A server cannot be started because it, or something it needs, is not installed."""


class ServerFailed(Unavailable):
    """A server did not start."""


class Record(Struct):
    """What is remembered of a server between commands."""

    ports: list[int] = []
    pid: int | None = None
    """None: it was stopped, or never started."""
    born: str = ""
    version: str = ""


class Unit(ABC):
    """One server, or several that form a cluster. As a context manager it is started, and wiped at the end."""

    kind: ClassVar[str]
    home: Path

    @property
    @abstractmethod
    def url(self) -> str:
        """The address for clients."""

    @property
    @abstractmethod
    def members(self) -> "Sequence[Server]":
        """The processes that it consists of."""

    @property
    def is_running(self) -> bool:
        """Whether all its processes exist."""
        return all(member.is_running for member in self.members)

    def start(self, report: Report = lambda _: None) -> Self:
        """Start what does not run and return when it answers."""
        self._each(lambda member: member.start(report))
        return self

    def stop(self) -> None:
        """Stop it cleanly, or by force after `STOP_SECONDS`."""
        self._each(lambda member: member.stop())

    def wipe(self) -> None:
        """Stop it and remove its data."""
        self.stop()
        for member in self.members:
            member.wipe()
        shutil.rmtree(self.home, ignore_errors=True)

    def _each(self, act: "Callable[[Server], object]") -> None:
        with ThreadPoolExecutor(len(self.members)) as pool:
            list(pool.map(act, self.members))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.wipe()


class Server(Unit):
    """One server process with its own directory.

    The ports are chosen at the first start and kept. A `tied` server ends with the process that started it, even if
    that process is killed; others run until they are stopped. `changed` is called when the record has changed.
    """

    port_count: ClassVar[int] = 1
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(
        self,
        home: Path,
        *,
        name: str = "",
        tied: bool = True,
        record: Record | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.home = home.absolute()
        self.name = name or self.kind
        self.record = record or Record()
        self._tied = tied
        self._changed = changed
        self._guard: subprocess.Popen[bytes] | None = None
        """The shell that ends a tied server."""

    # ------------------------------------------------------------ defined by each kind of server

    @property
    def data(self) -> Path:
        return self.home

    @abstractmethod
    def prepare(self, report: Report) -> str:
        """Find the software, create the first data if there are none, and return the version."""

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """The command that runs it in the foreground on its ports."""

    @abstractmethod
    def ask_whether_ready(self) -> bool:
        """Whether it accepts requests: this process, not another one on its port. May raise as a connection does."""

    def user(self) -> User | None:
        """The account it runs as; None: the caller's."""
        return None

    # ------------------------------------------------------------ operations

    @property
    def members(self) -> "Sequence[Server]":
        return [self]

    @property
    def port(self) -> int:
        return self.record.ports[0]

    @property
    def log(self) -> Path:
        """The output since the last start. That of the start before has the suffix .1."""
        return self.home / LOG

    @property
    def process(self) -> Process:
        """The process that was started last. It may have died, or been stopped."""
        return Process(self.record.pid or 0, self.record.born)

    @property
    def is_running(self) -> bool:
        return self.process.is_alive

    def answers(self) -> bool:
        """Whether it accepts requests now."""
        try:
            return self.ask_whether_ready()
        except (OSError, ValueError):  # no server, or a program with another protocol
            return False

    def start(self, report: Report = lambda _: None) -> Self:
        if self.is_running:
            self._wait_for_answer()
            return self
        self._release()
        self._make_home()
        self.record.version = self.prepare(report)
        report("starting")
        self._launch()
        return self

    def stop(self) -> None:
        process = self.process
        process.send(self.stop_signal)
        process.send_all(signal.SIGCONT)
        if not process.wait(STOP_SECONDS):
            process.send_all(signal.SIGKILL)
            process.wait(STOP_SECONDS)
        self._release()
        self._note(None)

    def kill(self) -> None:
        """Kill it with all its children, as a power cut would."""
        process = self.process
        process.send_all(signal.SIGKILL)
        process.wait(STOP_SECONDS)
        self._release()

    def pause(self) -> None:
        """Freeze it with its connections open, like a machine that hangs."""
        self.process.send_all(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_all(signal.SIGCONT)

    def wipe(self) -> None:
        self.stop()
        if self.home.is_symlink():
            self.home.unlink()
        else:
            shutil.rmtree(self.home, ignore_errors=True)
        self.record.ports = []

    # ------------------------------------------------------------ internals

    def run_first(self, done: str, *command: str | Path) -> None:
        """Run a program after which the data directory is `done`: created, or formatted."""
        ended = run(command, directory=self.home, user=self.user())
        if ended.returncode:
            why = (ended.stderr or ended.stdout).strip()
            raise ServerFailed(f"{self.kind}: the data directory cannot be {done}: {why}")

    def _make_home(self) -> None:
        if self.home.is_symlink() and not self.home.exists():
            self.home.unlink()  # the target was removed
        self.home.parent.mkdir(parents=True, exist_ok=True)
        self.home.mkdir(mode=0o700, exist_ok=True)

    def _launch(self) -> None:
        """Launch it on its ports, or on new ones. Another program may take new ones first, so try several times."""
        if self.record.ports:
            self._refuse_taken_ports()
            self._launch_once()
            return
        for left in reversed(range(PORT_TRIES)):
            self.record.ports = free_ports(self.port_count)
            try:
                self._launch_once()
                return
            except ServerFailed:
                taken = not all(map(is_free, self.record.ports))
                self.record.ports = []
                self._note(None)
                if not taken or not left:
                    raise

    def _launch_once(self) -> None:
        if self.log.exists():
            self.log.replace(self.log.with_name(LOG + ".1"))
        command, user = self.command(), self.user()
        with self.log.open("wb") as log:
            process, self._guard = launch(command, directory=self.home, log=log, tied=self._tied, user=user)
        self._note(process)
        try:
            self._wait_for_answer()
        except ServerFailed:
            self.kill()
            raise

    def _wait_for_answer(self) -> None:
        end = time.monotonic() + START_SECONDS
        while not self.answers():
            if not self.is_running:
                self._release()
                raise ServerFailed(f"{self.name} ended during its start: {self._last_log_line()}")
            if time.monotonic() > end:
                raise ServerFailed(f"{self.name} does not answer after {START_SECONDS:.0f} s: {self._last_log_line()}")
            time.sleep(MOMENT)

    def _refuse_taken_ports(self) -> None:
        if taken := [str(port) for port in self.record.ports if not is_free(port)]:
            raise ServerFailed(
                f"{self.name} cannot use port {' and '.join(taken)} again: another program listens there; "
                "stop that program, or remove the data (readstate stack down --wipe)"
            )

    def _last_log_line(self) -> str:
        try:
            lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        except FileNotFoundError:
            lines = []
        return f"{lines[-1].strip() if lines else 'its log is empty'} (see {self.log})"

    def _note(self, process: Process | None) -> None:
        self.record.pid, self.record.born = (process.pid, process.born) if process else (None, "")
        self._changed()

    def _release(self) -> None:
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None


S = TypeVar("S", bound=Server)


class Cluster(Unit, Generic[S]):
    """Servers that form a cluster. Its nodes can also be killed one by one."""

    def __init__(
        self,
        home: Path,
        count: int,
        make: Callable[..., S],
        *,
        record_of: Callable[[str], Record] = lambda _: Record(),
        **how: Any,
    ) -> None:
        self.home = home.absolute()
        names = {str(number): f"{self.kind}-{number}" for number in range(1, count + 1)}
        self.nodes = [make(home / at, name=name, record=record_of(name), **how) for at, name in names.items()]

    @property
    def members(self) -> Sequence[S]:
        return self.nodes
