"""Waits until nobody else uses the machine: a figure that shares its processor with other work says little."""

import time
from collections.abc import Callable
from pathlib import Path

from .report import Result

LOOK = 0.4
"""Seconds of one look."""
BUSY = 0.15
"""The share of the processors that others may take."""
PATIENCE = 120.0
"""Seconds that one benchmark waits in all; then it goes on and tells."""
STAT = Path("/proc/stat")


class Quiet:
    """To be asked before every round."""

    def __init__(self, say: Callable[[str], None], quick: bool) -> None:
        self._say = say
        self._patience = 0.0 if quick else PATIENCE
        self._rounds = self._disturbed = 0

    def wait(self) -> None:
        """Return when the machine is idle, or when it was waited for long enough."""
        self._rounds += 1
        end = time.monotonic() + self._patience
        while (share := _others()) > BUSY and time.monotonic() < end:
            self._say(f"others take {share:.0%} of the machine; waiting")
        self._patience = max(0.0, end - time.monotonic())
        self._disturbed += share > BUSY

    def tell(self, result: Result) -> None:
        """Say so if rounds were measured beside other work."""
        if self._disturbed:
            what = f"rounds that began while others took more than {BUSY:.0%} of the machine"
            result.add(what, f"{self._disturbed} of {self._rounds}")


def _others() -> float:
    """The share of all processors that is in use while we sleep; 0 where the system does not tell."""
    if not STAT.exists():
        return 0.0
    before = _jiffies()
    time.sleep(LOOK)
    after = _jiffies()
    idle, total = (after[place] - before[place] for place in (0, 1))
    return 1 - idle / total if total else 0.0


def _jiffies() -> tuple[int, int]:
    """(idle, all) since the machine started."""
    counts = [int(word) for word in STAT.read_text().splitlines()[0].split()[1:9]]
    return counts[3] + counts[4], sum(counts)
