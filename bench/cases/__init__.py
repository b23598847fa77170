"""The benchmarks, each a function that measures and tells."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Setting:
    """Where and how thoroughly a benchmark runs."""

    directory: Path
    """Its own, removed afterwards."""
    quick: bool
    """Only to see that everything works; the figures mean little."""
    say: Callable[[str], None]
    """Tells a person what is going on."""
