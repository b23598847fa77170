"""The users with a device on this instance, the channels they are in, and what is still to be sent to each."""

import asyncio
import contextlib
from collections.abc import Collection, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from readstate.domain.announcements import MessageCame
from readstate.domain.model import Undelivered
from readstate.domain.rooms import is_thread
from readstate.ports import Deliveries
from readstate.services.loading import Loader

from .cursors import CursorHistory
from .rendering import TO_ALL, Dirty, To

NO_CURSOR = b'"resume":""'
"""The `resume` field of an encoded event, before its cursor is known."""


class DeviceSession(Protocol):
    """A connection, as live updates see it."""

    connection_id: str

    def push(self, frame: bytes) -> None:
        """Queue a frame after all earlier ones. Never waits: a device that is too slow is closed."""


@dataclass(slots=True)
class CatchingUp:
    """Events and marks that arrive for a connection while its missed events are looked up."""

    out: list[bytes] = field(default_factory=list)
    dirty: Dirty = field(default_factory=Dirty)
    announced_until: int | None = None
    """Set (ms) if the bus reports a gap during the lookup: announcements after it may be lost, so another lookup
    follows.
    """


@dataclass(slots=True, eq=False)
class UserSession:
    id: str
    devices: dict[str, DeviceSession] = field(default_factory=dict)
    catching_up: dict[str, CatchingUp] = field(default_factory=dict)
    """By connection id. These connections are not in `devices`."""
    rooms: set[str] = field(default_factory=set)
    resume: bytes = NO_CURSOR
    """The encoded `resume` field with the last cursor that was sent."""
    cursor_history: CursorHistory = field(default_factory=CursorHistory)
    repairs: set[asyncio.Task[None]] = field(default_factory=set)
    """Catch devices up after a gap. A device that connects during a gap may need one of its own."""
    out: list[tuple[bytes, To]] = field(default_factory=list)
    """Encoded events without their cursors, and the connections that each goes to."""
    dirty: Dirty = field(default_factory=Dirty)
    rendering: bool = False
    """The render task has taken `dirty`, and its events are not sent yet."""
    render_task: asyncio.Task[None] | None = None
    rendered_seq: dict[str, int] = field(default_factory=dict)
    """The newest seq that the last counts of each channel may include. Noted where other processes write."""
    mute_timer: asyncio.TimerHandle | None = None
    badge: int | None = None
    """The last number that was sent."""
    unmuted_until: int = 0
    """Time (ms) up to which expired mutes are handled."""
    unreported: list[Undelivered] = field(default_factory=list)
    """Deliveries to report as sent when `out` is pushed."""
    _next_pass: asyncio.Future[None] | None = None

    def has_only(self, connection: str) -> bool:
        """Whether this is the user's only connection here, and it is not catching up."""
        return len(self.devices) == 1 and connection in self.devices and not self.catching_up

    async def rendered_once(self) -> None:
        """Wait until what is dirty now was rendered and sent, or one attempt has failed.

        Needs a running render task. A pass that has already begun does not count; the next one does.
        """
        if self._next_pass is None:
            self._next_pass = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._next_pass])

    @contextlib.contextmanager
    def render_pass(self) -> Iterator[None]:
        """Releases the callers of `rendered_once` that waited before it began."""
        ended, self._next_pass = self._next_pass, None
        try:
            yield
        finally:
            if ended is not None:
                ended.set_result(None)


class ConnectedUsers:
    def __init__(self, loader: Loader, deliveries: Deliveries) -> None:
        self._loader = loader
        self._deliveries = deliveries
        self._users: dict[str, UserSession] = {}
        self._rooms: dict[str, set[UserSession]] = {}
        self._touched: dict[UserSession, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

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

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something for connected users in the background."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish_tasks(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

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

    async def begin_lookup(self, user: UserSession) -> set[str]:
        """Load and subscribe a user whose missed events are looked up next; returns the channels that were left.

        Also collects the unproven deliveries. Their messages are stored already, so the lookup finds them even if their
        announcements never arrive.
        """
        await self._loader.ready(user.id)
        user.unreported = list(dict.fromkeys([*await self._deliveries.unproven(user.id), *user.unreported]))
        return await self.enter_channels(user)

    async def enter_channels(self, user: UserSession) -> set[str]:
        """Subscribe the user to exactly the channels that the user is in now; returns those that were left."""
        before = set(user.rooms)
        found = await self._loader.rooms(user.id)
        if not self.has(user):  # disconnected during the lookup
            return set()
        rooms = {room for room in found if not is_thread(room)}
        for room in rooms:
            self.enter(user, room)
        for room in before - rooms:
            self.leave(user, room)
        return before - rooms

    # ------------------------------------------------------------ deliveries

    def report_deliveries(self, user: UserSession) -> None:
        """Report what was just pushed; the device's next sign of life proves its delivery."""
        if user.unreported:
            self._deliveries.sent(user.unreported)
            user.unreported = []

    def deliveries_of(self, came: MessageCame) -> dict[str, Undelivered]:
        """The deliveries to report for the connected members who get this message, by user."""
        found = {}
        for delivery in came.reached:
            user = self._users.get(delivery.receiver_id)
            if user is None:
                continue
            if delivery.channel_id in user.rooms:
                found[user.id] = delivery
            elif user.catching_up:  # the message is among the missed events
                user.unreported.append(delivery)
            else:  # a user who left does not get the message, so it is not undelivered either
                self._deliveries.sent([delivery])
        return found

    # ------------------------------------------------------------ what is to be sent

    def queue(self, user: UserSession, event: bytes) -> None:
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
