"""`service.json` in the data directory: the address of the service that holds the store."""

import os
from pathlib import Path

import msgspec

from .output import replace_private_file

SERVICE_FILE = "service.json"


class Running(msgspec.Struct, frozen=True):
    url: str
    pid: int


def announce(data_dir: Path, url: str) -> None:
    """Write the address of this process, readable by the owner of the data directory only."""
    running = msgspec.json.encode(Running(url, os.getpid())) + b"\n"
    replace_private_file(data_dir / SERVICE_FILE, running)


def withdraw(data_dir: Path) -> None:
    (data_dir / SERVICE_FILE).unlink(missing_ok=True)


def announced(data_dir: Path) -> Running | None:
    """The last announcement. After a crash it is stale: it counts only while the store is locked."""
    try:
        return msgspec.json.decode((data_dir / SERVICE_FILE).read_bytes(), type=Running)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
