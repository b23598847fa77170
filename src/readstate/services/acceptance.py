"""The clock of acceptance, by which messages are compared with taps on the badge and with erases."""

from readstate.ports import Clock


class AcceptanceClock:
    """Whatever this process accepts after a cut (a tap or an erase) is later than it, even in the same millisecond."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_cut = 0

    def now(self) -> int:
        return max(self._clock(), self._last_cut + 1)

    def cut(self) -> int:
        """The time of a tap or an erase: at or after everything accepted so far."""
        self._last_cut = self.now()
        return self._last_cut
