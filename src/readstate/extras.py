"""Optional dependencies."""

import contextlib
from collections.abc import Iterator

from readstate.domain.errors import ConfigurationError


@contextlib.contextmanager
def extra(package: str, what: str, name: str = "cluster") -> Iterator[None]:
    """Wrap an import: if `package` is missing, the error names the extra that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ConfigurationError(f"{what} needs a library that is missing: pip install 'readstate[{name}]'") from error
