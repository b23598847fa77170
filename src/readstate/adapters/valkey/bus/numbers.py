"""Whether everything was heard: the numbers of every publisher, as one subscriber hears them.

A publisher numbers its batches, and says its last number when it has nothing to say. So a number that jumps tells
of batches that were lost on the way. A publisher that was never heard before has nothing to compare with; there
`after` tells: what it has handed over since this subscriber listens has come, so only what it could not hand over
is lost. A publisher that falls silent without a farewell may have died with something on its lips.
"""

from msgspec import Struct

from .wire import Received

SILENT_SECONDS = 5.0


class _Publisher(Struct):
    number: int | None
    """The last that was heard; None: not since the subscriber listens anew."""
    at: float


class Numbers:
    """What was heard of whom. Times are those of one monotonic clock."""

    def __init__(self) -> None:
        self._publishers: dict[str, _Publisher] = {}
        self._since = 0.0
        self._excused = 0.0
        """Who was silent before may have spoken: it was not listened to."""

    def listen(self, now: float) -> None:
        """The subscriber listens (again): what was said before is not compared with."""
        self._since = now
        for publisher in self._publishers.values():
            publisher.number, publisher.at = None, now

    def take(self, received: Received, now: float) -> tuple[bool, float | None]:
        """Whether a batch is new, and since when something before it may have been missed; None: nothing was."""
        batch = received.batch
        known = self._publishers.get(batch.publisher)
        before = batch.number if received.said_nothing else batch.number - 1
        """What must have been heard before it."""
        if known is None or known.number is None:
            fresh, missed = True, self._since if batch.after < before else None
        else:
            fresh, missed = batch.number > known.number, known.at if known.number < before else None
        if batch.bye:
            self._publishers.pop(batch.publisher, None)
        elif known is None:
            self._publishers[batch.publisher] = _Publisher(batch.number, now)
        else:
            known.number, known.at = max(batch.number, known.number or 0), now
        return fresh, missed

    def excuse(self, now: float) -> None:
        """The subscriber was busy with something else until now: nobody was silent."""
        self._excused = now

    def silent(self, now: float) -> float | None:
        """Since when those have not been heard who have fallen silent; they are forgotten. None: nobody has."""
        limit = now - SILENT_SECONDS
        gone = {name: one.at for name, one in self._publishers.items() if max(one.at, self._excused) < limit}
        for name in gone:
            del self._publishers[name]
        return min(gone.values(), default=None)
