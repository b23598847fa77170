"""Who has a device on this instance, in which channels they are, and what is still to be told to each."""

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

from readstate.domain.model import Undelivered
from readstate.domain.rooms import is_thread

from .cursor_history import CursorHistory
from .rendering import TO_ALL, Dirty, To

NO_CURSOR = b'"resume":""'
"""The field of a cursor in an event that has none yet."""


class DeviceSession(Protocol):
    """A connection, as live updates see it."""

    connection_id: str

    def push(self, frame: bytes) -> None:
        """Send a frame after all that were pushed before. Never waits: a device that is too slow is closed."""


class CatchingUp:
    """What comes for a device while it is being found out what it missed."""

    __slots__ = ("dirty", "heard_until", "out")

    def __init__(self, out: Iterable[bytes] = ()) -> None:
        self.out = list(out)
        self.dirty = Dirty()
        self.heard_until: int | None = None
        """What was announced after that may have been missed meanwhile: then it must be looked up again."""


class UserSession:
    """A user with a device on this instance."""

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
        """Connections for which it is being found out what they missed."""
        self.rooms: set[str] = set()
        self.resume = NO_CURSOR
        """The field of the last cursor that was sent."""
        self.cursor_history = CursorHistory()
        self.repair: asyncio.Task[None] | None = None
        """It is looked up what all devices have missed."""
        self.out: list[tuple[bytes, To]] = []
        """Events without their cursors, and where each goes."""
        self.dirty = Dirty()
        self.rendering = False
        """What was dirty is being rendered, and not sent yet."""
        self.render_task: asyncio.Task[None] | None = None
        self.rendered_seq: dict[str, int] = {}
        """Where other processes write: the last seq that a channel had when its figures were rendered."""
        self.mute_timer: asyncio.TimerHandle | None = None
        self.badge: int | None = None
        """The last number that was told."""
        self.unmuted_until = 0
        """Up to when it was told of mutes that have ended by themselves."""
        self.sending: list[Undelivered] = []
        """What is to be proven once it is sent."""
        self._waiting: list[asyncio.Future[None]] = []

    async def rendered_once(self) -> None:
        """Wait until what is dirty now was rendered and sent, or could not be, while that is being done."""
        end = asyncio.get_running_loop().create_future()
        self._waiting.append(end)
        await end

    @contextlib.contextmanager
    def rendering_once(self) -> Iterator[None]:
        """What is dirty now is rendered and sent in here."""
        waiting, self._waiting = self._waiting, []
        try:
            yield
        finally:
            _release(waiting)

    def release(self) -> None:
        """Nothing is rendered any more."""
        waiting, self._waiting = self._waiting, []
        _release(waiting)


def _release(waiting: Iterable["asyncio.Future[None]"]) -> None:
    for one in waiting:
        if not one.done():  # else whoever waited has gone
            one.set_result(None)


class ConnectedUsers:
    """All of them."""

    def __init__(self) -> None:
        self._users: dict[str, UserSession] = {}
        self._rooms: dict[str, set[UserSession]] = {}
        self._touched: dict[UserSession, None] = {}

    def __len__(self) -> int:
        """How many."""
        return len(self._users)

    def everyone(self) -> list[UserSession]:
        """Whoever is here now."""
        return list(self._users.values())

    def get(self, user_id: str) -> UserSession | None:
        """A user, if here."""
        return self._users.get(user_id)

    def of(self, users: Iterable[str]) -> list[UserSession]:
        """Those of these who are here."""
        return [user for name in users if (user := self._users.get(name)) is not None]

    def has(self, user: UserSession) -> bool:
        """Whether somebody is still here; who comes back is another one."""
        return self._users.get(user.id) is user

    def add(self, user_id: str) -> UserSession:
        """The first device of a user has come, or one more."""
        return self._users.setdefault(user_id, UserSession(user_id))

    def remove(self, user: UserSession) -> None:
        """The last device of a user has gone."""
        del self._users[user.id]
        for room in list(user.rooms):
            self.leave(user, room)

    # ------------------------------------------------------------ channels

    def members(self, channel: str) -> Collection[UserSession]:
        """Who is in a channel."""
        return self._rooms.get(channel, ())

    def enter(self, user: UserSession, channel: str) -> None:
        """Hear of a channel from now on."""
        user.rooms.add(channel)
        self._rooms.setdefault(channel, set()).add(user)

    def leave(self, user: UserSession, channel: str) -> None:
        """Hear no more of it."""
        user.rooms.discard(channel)
        user.rendered_seq.pop(channel, None)
        if (there := self._rooms.get(channel)) is not None:
            there.discard(user)
            if not there:
                del self._rooms[channel]

    # ------------------------------------------------------------ what is to be told

    def tell(self, user: UserSession, event: bytes) -> None:
        """An event for all devices of a user."""
        user.out.append((event, TO_ALL))
        self._touched[user] = None

    def mark(self, user: UserSession, room: str, conversation: bool = False) -> None:
        """The figures of a room are to be rendered anew."""
        if is_thread(room):
            user.dirty.threads.add(room)
        else:
            marks = user.dirty.of(room)
            marks.counts = True
            marks.conversation |= conversation
        self._touched[user] = None

    def touch(self, users: Iterable[UserSession]) -> None:
        """There is something for these users."""
        self._touched.update(dict.fromkeys(users))

    def take_touched(self) -> list[UserSession]:
        """Whom there was something for since this was asked last."""
        touched, self._touched = list(self._touched), {}
        return touched
