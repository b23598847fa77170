"""The lock on the directory of an embedded store, which one process holds. A crash releases it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from readstate.domain.errors import ConfigurationError
from readstate.settings import Settings

LOCK_FILE = "lock"


@contextlib.contextmanager
def store_held(settings: Settings) -> Iterator[None]:
    """Make the directories of an embedded service, and hold the lock on its store during the block."""
    for needed in (settings.store_directory, Path(settings.data_dir)):
        needed.mkdir(parents=True, exist_ok=True)
    handle = _lock(settings.store_directory)
    try:
        yield
    finally:
        os.close(handle)


def _lock(directory: Path) -> int:
    """Lock the directory until the returned handle is closed. The lock file is never removed."""
    handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise ConfigurationError(
            f"another process has the store in {str(directory)!r}: it belongs to one process. "
            "Talk to that one over HTTP, or stop it first"
        ) from error
    return handle


def store_is_locked(directory: Path) -> bool:
    if not (directory / LOCK_FILE).exists():
        return False
    try:
        os.close(_lock(directory))
    except ConfigurationError:
        return True
    return False
