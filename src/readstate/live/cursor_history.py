"""Up to where a user was told everything, for sure.

What is told follows announcements, and these take a moment to come from other instances; some never come. So that
an event was sent with a cursor does not mean that everything before it was. Two kinds of moments are sure:
- one made by looking at the state itself, as when a device comes back: nothing need have come for it;
- one so long ago that all that was announced before it must have come, as long as nothing was missed since.
"""

from readstate.services.cursors import SyncCursor

APART_MS = 20_000
"""Moments are noted so far apart: the older one is at least so old."""


class CursorHistory:
    """The last moments of one user; the newest that is sure is what a missed announcement is looked for from."""

    __slots__ = ("_noted", "_whole")

    def __init__(self) -> None:
        self._whole: SyncCursor | None = None
        """Made by looking at the state."""
        self._noted: tuple[SyncCursor, ...] = ()
        """At most two, the older one first."""

    def begin(self, reached: SyncCursor) -> None:
        """A device was told everything up to here; another one that comes at the same time may not be as far.

        What is in doubt replaces what is sure: who was told to sync then has synced what may be old.
        """
        known = self._whole is not None or bool(self._noted)
        if not known or not reached.sure or (self._whole is not None and reached.is_before(self._whole)):
            self.renew(reached)

    def renew(self, reached: SyncCursor) -> None:
        """All devices were told everything up to here."""
        self._whole, self._noted = reached, ()

    def note(self, reached: SyncCursor) -> None:
        """All devices were told what was announced up to here."""
        last = self._noted[-1] if self._noted else self._whole
        if last is not None and reached.at - last.at >= APART_MS:
            self._noted = (*self._noted[-1:], reached)

    def before(self, at: int) -> SyncCursor | None:
        """The newest one that is sure if all that happened before then was heard of; None: there is none."""
        return next((one for one in reversed(self._noted) if one.at <= at), self._whole)
