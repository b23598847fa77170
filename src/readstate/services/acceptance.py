"""The moment of acceptance: what a message's time is compared by with a tap on the badge, or an erase."""

from readstate.ports import Clock


class Acceptance:
    """A clock on which whatever is accepted after a cut (a tap, an erase) is later, also in the same millisecond."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_cut = 0

    def now(self) -> int:
        """When something is accepted."""
        return max(self._clock(), self._last_cut + 1)

    def cut(self) -> int:
        """When a tap or an erase is accepted: at or after everything accepted so far."""
        self._last_cut = self.now()
        return self._last_cut
