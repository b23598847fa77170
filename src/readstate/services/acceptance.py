"""The moment of acceptance: what a message's time and a tap on the badge are compared by."""

from ..ports import Clock


class Acceptance:
    """A clock on which whatever is accepted after a tap is later than the tap, also in the same millisecond."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_tap = 0

    def now(self) -> int:
        """When something is accepted."""
        return max(self._clock(), self._last_tap + 1)

    def tap(self) -> int:
        """When a tap is accepted: at or after everything accepted so far."""
        self._last_tap = self.now()
        return self._last_tap
