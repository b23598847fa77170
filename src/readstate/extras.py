"""Libraries that not everybody needs."""

import contextlib
from collections.abc import Iterator

from .errors import ConfigurationError


@contextlib.contextmanager
def extra(package: str, what: str) -> Iterator[None]:
    """Around the import of an adapter whose library may be missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ConfigurationError(f"{what} needs a library that is missing: pip install 'readstate[cluster]'") from error
