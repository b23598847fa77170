"""The servers of one directory, and its `stack.json`, which keeps their state between commands."""

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

import msgspec
from msgspec import Struct

from readstate.domain.errors import ConfigurationError, ReadstateError

from .cluster import ValkeyCluster
from .kafka import Kafka, KafkaCluster
from .postgres import Postgres
from .server import Record, Server, ServerFailed, Unit
from .valkey import Valkey

STATE_FILE = "stack.json"
LOCK_FILE = "stack.lock"
VARIABLES: Mapping[str, str] = {
    "valkey": "READSTATE_HOT_URL",
    "valkey-cluster": "READSTATE_HOT_URL",
    "replica": "READSTATE_WRITE_REPLICA_URL",
    "postgres": "READSTATE_DATABASE_URL",
    "kafka": "READSTATE_KAFKA_BOOTSTRAP",
}
"""Every server by name, and the setting for its address."""
PROFILE = "READSTATE_PROFILE"
CLUSTER = frozenset({"READSTATE_HOT_URL", "READSTATE_DATABASE_URL", "READSTATE_KAFKA_BOOTSTRAP"})
"""With all of these settings, the cluster profile can run."""
USUAL = ("valkey", "postgres", "kafka")

Report = Callable[[str, str], None]
"""Called with the name of a server and its progress."""


Condition = Literal["running", "not answering", "died", "stopped"]


class State(Struct):
    """The content of `stack.json`."""

    names: list[str] = []
    """The requested servers, in the order in which they were named."""
    servers: dict[str, Record] = {}
    """Every process by name."""
    brokers: int = 1
    """The number of Kafka nodes."""


class Status(Struct, frozen=True):
    name: str
    state: Condition
    ports: list[int]
    pid: int | None
    version: str
    data: str


class Stack:
    """The servers of one directory.

    `tied` servers end with this process. Only one process at a time may start and stop servers: see `locked`.
    """

    def __init__(self, directory: Path, *, tied: bool = False) -> None:
        self.directory = directory.absolute()
        self._tied = tied
        self._saving = threading.Lock()
        self._state = read_state(self.directory) or State()
        self._units: dict[str, Unit] = {name: self._make(name) for name in self._state.names}

    def up(
        self,
        names: Sequence[str] = (),
        report: Report = lambda _name, _what: None,
        *,
        brokers: int | None = None,
    ) -> dict[str, ReadstateError]:
        """Start what does not run, all in parallel. Returns the errors of servers that cannot be started.

        Without names: the servers that the directory had before, else the usual ones. `brokers`: the number of Kafka
        nodes; None: as many as before, else one.
        """
        check_names(names)
        self._set_brokers(brokers)
        wanted = list(names or self._state.names or USUAL)
        self.directory.mkdir(parents=True, exist_ok=True)
        if names or not self._state.names:
            self._state.names = [name for name in self._state.names if name not in wanted] + wanted
        for name in wanted:
            self._units.setdefault(name, self._make(name))
        self._save()
        with ThreadPoolExecutor(len(wanted)) as pool:
            errors = list(pool.map(lambda name: self._start(name, report), wanted))
        return {name: error for name, error in zip(wanted, errors, strict=True) if error is not None}

    def _set_brokers(self, brokers: int | None) -> None:
        if brokers is None or brokers == self._state.brokers:
            return
        if "kafka" in self._units:
            raise ConfigurationError(
                f"this Kafka has {self._state.brokers} brokers, and its topics their replicas: to have {brokers}, "
                "remove its data first (readstate stack down --wipe)"
            )
        self._state.brokers = brokers

    def down(self, *, wipe: bool = False, report: Report = lambda _name, _what: None) -> list[str]:
        """Stop all servers, and with `wipe` remove their data. Returns the names of those that ran."""
        ran = [name for name, unit in self._units.items() if any(member.is_running for member in unit.members)]
        if self._units:
            with ThreadPoolExecutor(len(self._units)) as pool:
                list(pool.map(lambda name: self._stop(name, wipe, report), self._units))
        if wipe:
            self._units.clear()
            self._state = State()
            for file in (STATE_FILE, LOCK_FILE):
                (self.directory / file).unlink(missing_ok=True)
        return ran

    def status(self) -> list[Status]:
        return [_status(member) for name in self._state.names for member in self._units[name].members]

    @property
    def env(self) -> dict[str, str]:
        """Settings for a service that uses the running servers. If two servers fit one setting, the last named wins."""
        running = [name for name in self._state.names if self._units[name].is_running]
        env = {VARIABLES[name]: self._units[name].url for name in running}
        return env | {PROFILE: "cluster"} if env.keys() >= CLUSTER else env

    # ------------------------------------------------------------ single servers

    @property
    def valkey(self) -> Valkey:
        return cast(Valkey, self._units["valkey"])

    @property
    def postgres(self) -> Postgres:
        return cast(Postgres, self._units["postgres"])

    # ------------------------------------------------------------ internals

    def _make(self, name: str) -> Unit:
        home, tied, changed = self.directory / name, self._tied, self._save
        if name == "valkey-cluster":
            return ValkeyCluster(home, record_of=self._record, tied=tied, changed=changed)
        if name == "kafka" and self._state.brokers > 1:
            return KafkaCluster(home, brokers=self._state.brokers, record_of=self._record, tied=tied, changed=changed)
        kinds: dict[str, type[Server]] = {"valkey": Valkey, "replica": Valkey, "postgres": Postgres, "kafka": Kafka}
        return kinds[name](home, name=name, tied=tied, record=self._record(name), changed=changed)

    def _record(self, name: str) -> Record:
        return self._state.servers.setdefault(name, Record())

    def _start(self, name: str, report: Report) -> ReadstateError | None:
        try:
            self._units[name].start(lambda what: report(name, what))
        except (ReadstateError, OSError) as error:
            report(name, "not started")
            return error if isinstance(error, ReadstateError) else ServerFailed(f"{name} cannot be started: {error}")
        finally:
            self._save()
        report(name, "running")
        return None

    def _stop(self, name: str, wipe: bool, report: Report) -> None:
        report(name, "stopping")
        self._units[name].wipe() if wipe else self._units[name].stop()
        report(name, "removed" if wipe else "stopped")

    def _save(self) -> None:
        """Write the state atomically: a reader sees the old or the new one."""
        with self._saving:
            path = self.directory / STATE_FILE
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_bytes(msgspec.json.format(msgspec.json.encode(self._state)) + b"\n")
            fresh.replace(path)


def check_names(names: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in VARIABLES]:
        raise ConfigurationError(f"there is no server {', '.join(unknown)}: there are {', '.join(VARIABLES)}")
    if {"valkey", "valkey-cluster"} <= set(names):
        raise ConfigurationError("valkey and valkey-cluster are both hot stores: name one of them")


def read_state(directory: Path) -> State | None:
    """The state of a directory; None: it never had servers."""
    path = directory / STATE_FILE
    try:
        state = msgspec.json.decode(path.read_bytes(), type=State)
        check_known(state)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, ConfigurationError) as error:
        raise ConfigurationError(f"{path} is not what readstate stack wrote: {error}") from error
    return state


def check_known(state: State) -> None:
    """Refuse what another version may have written."""
    if unknown := [name for name in state.names if name not in VARIABLES]:
        raise ConfigurationError(f"there is no server {', '.join(unknown)}")


def _status(server: Server) -> Status:
    record = server.record
    state: Condition = "died"
    if record.pid is None:
        state = "stopped"
    elif server.is_running:
        state = "running" if server.answers() else "not answering"
    return Status(server.name, state, record.ports, record.pid, record.version, str(server.data))


@contextmanager
def locked(directory: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock of a directory. `waiting` is called if another process holds it."""
    directory.mkdir(parents=True, exist_ok=True)
    while True:
        with (directory / LOCK_FILE).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(lock, fcntl.LOCK_EX)
            # The previous holder may have removed the file with the directory: then others lock a new file.
            if os.fstat(lock.fileno()).st_nlink:
                yield
                return
            directory.mkdir(parents=True, exist_ok=True)


@contextmanager
def servers(*names: str, directory: Path | None = None, keep: bool = False) -> Iterator[Stack]:
    """Real servers for the duration of a block. They end with this process at the latest.

    Without a directory, a temporary one is used. The data are removed at the end, unless `keep` is set.
    """
    home = directory or Path(tempfile.mkdtemp(prefix="readstate-stack-"))
    home.mkdir(parents=True, exist_ok=True)
    if directory is None:
        home.chmod(0o711)  # so that PostgreSQL's account can pass through
    with locked(home):
        stack = Stack(home, tied=True)
        try:
            if errors := stack.up(names):
                raise next(iter(errors.values()))
            yield stack
        finally:
            stack.down(wipe=not keep)
            if directory is None and not keep:
                shutil.rmtree(home)
