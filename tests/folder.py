"""Where servers that live as long as the test process keep what they have."""

import atexit
import shutil
import tempfile
from pathlib import Path


def folder() -> Path:
    """A new one, gone with the process; whoever stops a server at exit does so after this call, and so before that."""
    made = Path(tempfile.mkdtemp(prefix="readstate-tests-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
