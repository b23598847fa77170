"""Libraries that not everybody needs."""

import contextlib
from collections.abc import Iterator

from readstate.domain.errors import ConfigurationError


@contextlib.contextmanager
def extra(package: str, what: str, name: str = "cluster") -> Iterator[None]:
    """Around the import of what needs a library that may be missing; it comes with the extra of this name."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ConfigurationError(f"{what} needs a library that is missing: pip install 'readstate[{name}]'") from error
