"""The cursors up to which a user's devices certainly got everything.

Events follow announcements, which take time to arrive from other instances, and some never arrive. So a cursor that was
sent with an event does not prove that everything before it was sent. Two kinds of cursors are certain:
- one that was taken by looking at the state itself, as when a device reconnects; it depends on no announcement;
- one that is old enough: every announcement from before it has arrived, unless the bus has reported a gap since.
"""

from readstate.services.cursors import SyncCursor

APART_MS = 20_000
"""Distance between two noted cursors: the older one is at least this old."""


class CursorHistory:
    __slots__ = ("_noted", "_whole")

    def __init__(self) -> None:
        self._whole: SyncCursor | None = None
        """Taken by looking at the state."""
        self._noted: tuple[SyncCursor, ...] = ()
        """Taken when events were sent. At most two, the older one first."""

    def begin(self, reached: SyncCursor) -> None:
        """One device has everything up to here; another one that connects at the same time may be further behind.

        A cursor in doubt (`sure` is False) replaces a certain one: a device that got `sync.required` then may have
        synced stale counts.
        """
        known = self._whole is not None or bool(self._noted)
        if not known or not reached.sure or (self._whole is not None and reached.is_before(self._whole)):
            self.renew(reached)

    def renew(self, reached: SyncCursor) -> None:
        """All devices have everything up to here."""
        self._whole, self._noted = reached, ()

    def note(self, reached: SyncCursor) -> None:
        """All devices got what was announced up to here."""
        last = self._noted[-1] if self._noted else self._whole
        if last is not None and reached.at - last.at >= APART_MS:
            self._noted = (*self._noted[-1:], reached)

    def before(self, at: int) -> SyncCursor | None:
        """The newest certain cursor, if every announcement from before `at` (ms) has arrived; None if there is none."""
        return next((one for one in reversed(self._noted) if one.at <= at), self._whole)
