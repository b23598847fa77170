"""`service.json` in the data directory: where the service that holds the store listens."""

import os
from pathlib import Path

import msgspec

SERVICE_FILE = "service.json"


class Running(msgspec.Struct, frozen=True):
    """A running service."""

    url: str
    pid: int


def announce(data_dir: Path, url: str) -> None:
    """Say where this process listens, to the owner of the data directory only."""
    path = data_dir / SERVICE_FILE
    fresh = path.with_suffix(f".{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(Running(url, os.getpid())) + b"\n")
    fresh.replace(path)


def withdraw(data_dir: Path) -> None:
    """Take it back."""
    (data_dir / SERVICE_FILE).unlink(missing_ok=True)


def announced(data_dir: Path) -> Running | None:
    """What was said last. After a crash it may be stale: it holds only while the store is locked."""
    try:
        return msgspec.json.decode((data_dir / SERVICE_FILE).read_bytes(), type=Running)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def is_alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
