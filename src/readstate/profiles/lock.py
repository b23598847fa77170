"""The lock on the directory of an embedded store, which one process holds. A crash releases it."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from readstate.domain.errors import ConfigurationError
from readstate.settings import Settings

LOCK_FILE = "lock"


def take_directories(settings: Settings) -> Callable[[], None]:
    """Make the directories of an embedded service and lock its store; returns the release."""
    for needed in (settings.store_directory, Path(settings.data_dir)):
        needed.mkdir(parents=True, exist_ok=True)
    return _lock(settings.store_directory)


@contextlib.contextmanager
def store_held(settings: Settings) -> Iterator[None]:
    """Hold the lock on the store's directory during the block."""
    release = take_directories(settings)
    try:
        yield
    finally:
        release()


def _lock(directory: Path) -> Callable[[], None]:
    """Lock the directory for this process; returns the release. The lock file is never removed."""
    handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise ConfigurationError(
            f"another process has the store in {str(directory)!r}: it belongs to one process. "
            "Talk to that one over HTTP, or stop it first"
        ) from error
    return lambda: os.close(handle)


def store_is_locked(data_dir: str | Path) -> bool:
    path = Path(data_dir) / LOCK_FILE
    if not path.exists():
        return False
    try:
        _lock(Path(data_dir))()
    except ConfigurationError:
        return True
    return False
