"""The users with a device on this instance, the channels they are in, and what is still to be sent to each."""

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

from readstate.domain.model import Undelivered
from readstate.domain.rooms import is_thread

from .cursor_history import CursorHistory
from .rendering import TO_ALL, Dirty, To

NO_CURSOR = b'"resume":""'
"""The `resume` field of an encoded event, before its cursor is known."""


class DeviceSession(Protocol):
    """A connection, as live updates see it."""

    connection_id: str

    def push(self, frame: bytes) -> None:
        """Queue a frame after all earlier ones. Never waits: a device that is too slow is closed."""


class CatchingUp:
    """Events and marks that arrive for a connection while its missed events are looked up."""

    __slots__ = ("dirty", "heard_until", "out")

    def __init__(self, out: Iterable[bytes] = ()) -> None:
        self.out = list(out)
        self.dirty = Dirty()
        self.heard_until: int | None = None
        """Set (ms) if the bus reports a gap during the lookup: announcements after it may be lost, so another lookup
        follows.
        """


class UserSession:
    __slots__ = (
        "_waiting",
        "badge",
        "catching_up",
        "cursor_history",
        "devices",
        "dirty",
        "id",
        "mute_timer",
        "out",
        "render_task",
        "rendered_seq",
        "rendering",
        "repair",
        "resume",
        "rooms",
        "sending",
        "unmuted_until",
    )

    def __init__(self, user: str) -> None:
        self.id = user
        self.devices: dict[str, DeviceSession] = {}
        self.catching_up: dict[str, CatchingUp] = {}
        """By connection id. These connections are not in `devices`."""
        self.rooms: set[str] = set()
        self.resume = NO_CURSOR
        """The encoded `resume` field with the last cursor that was sent."""
        self.cursor_history = CursorHistory()
        self.repair: asyncio.Task[None] | None = None
        """Catches all devices up after a gap."""
        self.out: list[tuple[bytes, To]] = []
        """Encoded events without their cursors, and the connections that each goes to."""
        self.dirty = Dirty()
        self.rendering = False
        """The render task has taken `dirty`, and its events are not sent yet."""
        self.render_task: asyncio.Task[None] | None = None
        self.rendered_seq: dict[str, int] = {}
        """Where other processes write: the newest seq that the last counts of each channel may include."""
        self.mute_timer: asyncio.TimerHandle | None = None
        self.badge: int | None = None
        """The last number that was sent."""
        self.unmuted_until = 0
        """Time (ms) up to which expired mutes are handled."""
        self.sending: list[Undelivered] = []
        """Deliveries to report as sent when `out` is pushed."""
        self._waiting: list[asyncio.Future[None]] = []

    async def rendered_once(self) -> None:
        """Wait until what is dirty now was rendered and sent, or one attempt has failed.

        Needs a running render task. A pass that has already begun does not count; the next one does.
        """
        end = asyncio.get_running_loop().create_future()
        self._waiting.append(end)
        await end

    @contextlib.contextmanager
    def rendering_once(self) -> Iterator[None]:
        """Around one render pass: releases the callers of `rendered_once` that waited before it began."""
        waiting, self._waiting = self._waiting, []
        try:
            yield
        finally:
            _release(waiting)

    def release(self) -> None:
        """The render task ends: release every caller of `rendered_once`."""
        waiting, self._waiting = self._waiting, []
        _release(waiting)


def _release(waiting: Iterable["asyncio.Future[None]"]) -> None:
    for one in waiting:
        if not one.done():  # done: the waiting caller was cancelled
            one.set_result(None)


class ConnectedUsers:
    def __init__(self) -> None:
        self._users: dict[str, UserSession] = {}
        self._rooms: dict[str, set[UserSession]] = {}
        self._touched: dict[UserSession, None] = {}

    def __len__(self) -> int:
        return len(self._users)

    def everyone(self) -> list[UserSession]:
        return list(self._users.values())

    def get(self, user_id: str) -> UserSession | None:
        return self._users.get(user_id)

    def of(self, users: Iterable[str]) -> list[UserSession]:
        """The connected ones of these users."""
        return [user for name in users if (user := self._users.get(name)) is not None]

    def has(self, user: UserSession) -> bool:
        """Whether this session is still current; a user who reconnects after the last device left has a new session."""
        return self._users.get(user.id) is user

    def add(self, user_id: str) -> UserSession:
        return self._users.setdefault(user_id, UserSession(user_id))

    def remove(self, user: UserSession) -> None:
        del self._users[user.id]
        for room in list(user.rooms):
            self.leave(user, room)

    # ------------------------------------------------------------ channels

    def members(self, channel: str) -> Collection[UserSession]:
        return self._rooms.get(channel, ())

    def enter(self, user: UserSession, channel: str) -> None:
        user.rooms.add(channel)
        self._rooms.setdefault(channel, set()).add(user)

    def leave(self, user: UserSession, channel: str) -> None:
        user.rooms.discard(channel)
        user.rendered_seq.pop(channel, None)
        if (there := self._rooms.get(channel)) is not None:
            there.discard(user)
            if not there:
                del self._rooms[channel]

    # ------------------------------------------------------------ what is to be sent

    def tell(self, user: UserSession, event: bytes) -> None:
        """Queue an event for all devices of a user."""
        user.out.append((event, TO_ALL))
        self._touched[user] = None

    def mark(self, user: UserSession, room: str, conversation: bool = False) -> None:
        """Mark a room's counts as dirty; with `conversation` also its inbox row."""
        if is_thread(room):
            user.dirty.threads.add(room)
        else:
            marks = user.dirty.of(room)
            marks.counts = True
            marks.conversation |= conversation
        self._touched[user] = None

    def touch(self, users: Iterable[UserSession]) -> None:
        self._touched.update(dict.fromkeys(users))

    def take_touched(self) -> list[UserSession]:
        """The users with something to send since the last call."""
        touched, self._touched = list(self._touched), {}
        return touched
