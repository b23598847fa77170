"""Sends receipts live: a user has read, and other members of the channel may see it.

One task looks up which receipts are visible and sends them, while the next ones are gathered; of several moves of one
pointer only the last is sent. The first is looked up at once. If more came meanwhile, they are gathered for a moment
longer, because every device would get each of them in a write of its own.
"""

import asyncio
from dataclasses import dataclass, field

import structlog

from readstate.domain.announcements import PointerMoved
from readstate.domain.errors import ReadstateError
from readstate.ports import Clock
from readstate.services.receipts import ReadReceipts
from readstate.timings import LiveTimings

from .catch_up import receipt_updated
from .cursors import LiveCursors
from .sending import EventSender, encode_event
from .sessions import ConnectedUsers

log = structlog.get_logger()


@dataclass(eq=False, repr=False)
class LiveReceipts:
    _connected: ConnectedUsers
    _receipts: ReadReceipts
    _cursors: LiveCursors
    _sender: EventSender
    _clock: Clock
    _timings: LiveTimings
    _gathered: dict[tuple[str, str], PointerMoved] = field(default_factory=dict, init=False)
    """The last move of each pointer."""
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    _this_try: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _next_try: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def add(self, moved: PointerMoved) -> None:
        if (moved.before.epoch, moved.before.seq) == (moved.pointer.epoch, moved.pointer.seq):
            return
        if all(user.id == moved.user_id for user in self._connected.members(moved.channel_id)):
            return
        self._gathered[moved.user_id, moved.channel_id] = moved
        if self._cursors.unsent_receipts_since is None:
            self._cursors.unsent_receipts_since = self._clock()
        if self._task is None:
            self._task = self._connected.spawn(self._send_all())

    async def tried(self) -> None:
        """Wait until the receipts added so far are sent, or one attempt has failed."""
        if self._task is not None:
            await (self._next_try if self._gathered else self._this_try).wait()

    async def _send_all(self) -> None:
        try:
            while self._gathered and self._connected:
                self._this_try, self._next_try = self._next_try, asyncio.Event()
                sent = await self._send_gathered()
                self._this_try.set()
                if self._gathered:
                    await asyncio.sleep(self._timings.receipts if sent else self._timings.retry)
        finally:  # also if no user is connected any longer, or after an unexpected error
            self._task = self._cursors.unsent_receipts_since = None
            self._gathered = {}
            self._this_try.set()
            self._next_try.set()
            self._next_try = asyncio.Event()

    async def _send_gathered(self) -> bool:
        moves, self._gathered = self._gathered, {}
        begun = self._clock()
        try:
            seen = await self._receipts.visible(list(moves.values()))
        except ReadstateError as error:
            log.warning("receipts could not be looked up yet", action="live", code=error.code)
            self._gathered = moves | self._gathered
            return False
        for one in seen:
            event = encode_event(receipt_updated(one))
            for user in self._connected.members(one.channel_id):
                if user.id != one.user_id:
                    self._connected.queue(user, event)
        self._cursors.unsent_receipts_since = begun if self._gathered else None
        await self._sender.send()
        return True
