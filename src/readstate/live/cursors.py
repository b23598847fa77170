"""The cursors that live events carry, and up to which of them a user's devices certainly got everything.

Events follow announcements, which take time to arrive from other instances, and some never arrive. So a cursor that was
sent with an event does not prove that everything before it was sent. Two kinds of cursors are certain:
- one that was taken by looking at the state itself, as when a device reconnects; it depends on no announcement;
- one that is old enough: every announcement from before it has arrived, unless the bus has reported a gap since.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from readstate.domain.errors import ReadstateError
from readstate.ports import Clock, Hot
from readstate.ports.consistency import Consistency
from readstate.services.cursors import Cursors, SyncCursor
from readstate.services.pending_writes import UnannouncedWrites
from readstate.timings import LiveTimings

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class CursorHistory:
    _whole: SyncCursor | None = None
    """Taken by looking at the state."""
    _noted: tuple[SyncCursor, ...] = ()
    """Taken when events were sent. At most two, the older one first."""

    def begin(self, reached: SyncCursor) -> None:
        """One device has everything up to here; another one that connects at the same time may be further behind.

        A cursor that is not `sure` replaces a certain one: a device that got `sync.required` then may have synced stale
        counts.
        """
        known = self._whole is not None or bool(self._noted)
        if not known or not reached.sure or (self._whole is not None and reached.is_before(self._whole)):
            self.renew(reached)

    def renew(self, reached: SyncCursor) -> None:
        """All devices have everything up to here."""
        self._whole, self._noted = reached, ()

    def note(self, reached: SyncCursor, distance_ms: int) -> None:
        """All devices got what was announced up to here. Kept if it is this much later than the last one."""
        last = self._noted[-1] if self._noted else self._whole
        if last is not None and reached.at - last.at >= distance_ms:
            self._noted = (*self._noted[-1:], reached)

    def before(self, at: int) -> SyncCursor | None:
        """The newest certain cursor, if every announcement from before `at` (ms) has arrived; None if there is none."""
        return next((one for one in reversed(self._noted) if one.at <= at), self._whole)


@dataclass(eq=False, repr=False)
class LiveCursors:
    _hot: Hot
    _cursors: Cursors
    _unannounced: UnannouncedWrites
    _clock: Clock
    _consistency: Consistency
    _timings: LiveTimings
    _store_id: int
    unsent_receipts_since: int | None = field(default=None, init=False)
    """Arrival (ms) of the first pointer move whose receipts are not sent yet. Cursors carry a time from before it,
    because a device that reconnects looks for receipts from that time on.
    """

    async def reached(self, users: Sequence[str]) -> list[SyncCursor | None]:
        """For each user the cursor up to which everything is announced; None if it can't be known now.

        It is None while the message writer has shown a batch that it has not announced, or did so during the lookup.
        """
        version = self._unannounced.version()
        try:
            changes = await self._hot.users.changes(users)
            positions, at = await self._hot.channels.positions(), self._clock()
        except ReadstateError as error:  # the events need not wait for a newer cursor
            log.debug("cursors could not be read; events repeat the last one", action="live", reason=error.explained)
            return [None] * len(users)
        if version is None or self._unannounced.version() != version:
            return [None] * len(users)
        if self.unsent_receipts_since is not None:
            at = min(at, self.unsent_receipts_since - self._timings.announced_within_ms)
        return [None if change is None else SyncCursor(change, positions, at, self._store_id) for change in changes]

    def advance(self, user_id: str, history: CursorHistory, reached: SyncCursor) -> bytes | None:
        """The `resume` field of a user's next event, now that everything up to `reached` was sent; None: the last one.

        Announcements from before `reached` may be in flight.
        """
        history.note(reached, self._timings.cursor_distance_ms)
        certain = history.before(reached.at - self._timings.announced_within_ms)
        sure = self._consistency.live_cursor(reached, certain)
        return None if sure is None else self.resume_field(user_id, sure)

    def resume_field(self, user_id: str, cursor: SyncCursor) -> bytes:
        """As in an encoded event."""
        return b'"resume":"%b"' % self._cursors.encode_bytes(cursor, user_id)

    def announced_until(self, lost_seconds: float = 0) -> int:
        """The time (ms) up to which every announcement has arrived, if only those of the last seconds may be lost."""
        return self._clock() - int(lost_seconds * 1000) - self._timings.announced_within_ms
