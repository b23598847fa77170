"""Which allocator Valkey runs with: builds from wheels have the C library's, and most packages have jemalloc."""

import sys
from collections.abc import Sequence
from pathlib import Path

from readstate.stack import Valkey

NAME = "libjemalloc.so.2"
FOLDERS = (*Path("/usr/lib").glob("*-linux-gnu"), *map(Path, ("/usr/lib64", "/usr/lib", "/usr/local/lib")))


def jemalloc(folders: Sequence[Path] = FOLDERS) -> Path | None:
    """Its library, where it is installed."""
    if sys.platform != "linux":
        return None
    return next((folder / NAME for folder in folders if (folder / NAME).exists()), None)


def allocator(server: Valkey) -> str:
    """What a running server uses, for people."""
    built = server.info("memory")["mem_allocator"]
    maps = Path(f"/proc/{server.record.pid}/maps")
    preloaded = maps.exists() and NAME in maps.read_text()
    return "jemalloc, preloaded" if preloaded else built
