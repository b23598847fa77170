"""Detects lost batches: the batch numbers of every publisher, as one subscriber receives them.

A publisher numbers its batches, and its heartbeats repeat the last number. A jump in the numbers means that batches
were lost. For a publisher that is new to the subscriber, `after` decides: batches up to `after` have reached the
server, so those sent since the subscriber listens have arrived, and only batches beyond `after` can be lost. A
publisher that falls silent without a closing batch may have died before it sent everything.
"""

from msgspec import Struct

from .wire import Received


class _Publisher(Struct):
    number: int | None
    """The last one received; None: none since the current subscription began."""
    at: float


class Numbers:
    """All publishers. Times are seconds of one monotonic clock."""

    def __init__(self, silent: float) -> None:
        """`silent`: a publisher that sends nothing for this many seconds may have died."""
        self._silent = silent
        self._publishers: dict[str, _Publisher] = {}
        self._since = 0.0
        self._excused = 0.0
        """Silence before this time does not count: the subscriber was not reading."""

    def listen(self, now: float) -> None:
        """A subscription begins (again): earlier numbers are not compared."""
        self._since = now
        for publisher in self._publishers.values():
            publisher.number, publisher.at = None, now

    def take(self, received: Received, now: float) -> tuple[bool, float | None]:
        """Returns whether a batch is new, and since when batches before it may be missing (None: none are)."""
        head = received.head
        known = self._publishers.get(head.publisher)
        # The number that must have been received before this head.
        before = head.number if received.is_heartbeat else head.number - 1
        if known is None or known.number is None:
            fresh, missed = True, self._since if head.after < before else None
        else:
            fresh, missed = head.number > known.number, known.at if known.number < before else None
        if head.bye:
            self._publishers.pop(head.publisher, None)
        elif known is None:
            self._publishers[head.publisher] = _Publisher(head.number, now)
        else:
            known.number, known.at = max(head.number, known.number or 0), now
        return fresh, missed

    def excuse(self, now: float) -> None:
        """The subscriber was busy until now, so no publisher was silent."""
        self._excused = now

    def silent(self, now: float) -> float | None:
        """Forget publishers that fell silent. Returns when the first of them was last received; None: none did."""
        limit = now - self._silent
        gone = {name: one.at for name, one in self._publishers.items() if max(one.at, self._excused) < limit}
        for name in gone:
            del self._publishers[name]
        return min(gone.values(), default=None)
