"""Presence in the memory of one process: devices, focus, departures, and messages not proven delivered."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from readstate.domain.model import Undelivered
from readstate.ports import MAX_UNPROVEN, Clock, Departure, Present


class _Connection(Struct):
    device: str
    until: int
    reported: str | None
    """The channel that the device reports as open."""
    focus: str | None
    """The channel whose messages are read at once: `reported`, unless the user has marked it unread since."""


Key = tuple[str, str]
_NOBODY: dict[Key, _Connection] = {}


class MemoryPresence:
    """A user is online while at least one connected device has not expired."""

    is_local = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._users: dict[str, dict[Key, _Connection]] = {}
        self._open: dict[str, dict[str, int]] = {}
        """By channel: the users who have it open, and on how many connections."""
        self._unproven: dict[str, dict[Undelivered, None]] = {}
        self._sent: dict[str, list[Undelivered]] = {}
        self._left: dict[str, dict[Undelivered, None]] = {}
        """Messages that departed users may not have received, until the durable store has them."""

    # ------------------------------------------------------------ who is online

    async def online(self, users: Collection[str]) -> Present:
        """The answer is as of each question. A thread may ask it: nothing is changed."""
        return self

    def __contains__(self, user: object) -> bool:
        return isinstance(user, str) and bool(self._connections(user))

    def _connections(self, user: str) -> list[_Connection]:
        """Those that have not expired."""
        known = self._users.get(user)
        if not known:
            return []
        now = self._clock()
        return [one for one in list(known.values()) if one.until > now]

    async def focused(self, channels: Collection[str]) -> Mapping[str, Sequence[str]]:
        return {channel: users for channel in channels if (users := self._focused(channel))}

    def _focused(self, channel: str) -> list[str]:
        users = self._open.get(channel, ())
        return [user for user in users if any(one.focus == channel for one in self._connections(user))]

    async def devices(self, user: str) -> list[str]:
        return sorted({one.device for one in self._connections(user)})

    def is_connected(self, user: str) -> bool:
        """Whether the user has a real connection; a device that was only reported does not count."""
        return _is_connected(list(self._users.get(user, ())))

    # ------------------------------------------------------------ devices

    async def connect(self, user: str, device: str, until: int, focus: str | None, connection: str = "") -> None:
        connections = self._users.setdefault(user, {})
        known = connections.get((device, connection))
        if known is not None and known.reported == focus:
            known.until = until
            return
        if known is not None:
            self._close(user, known)
        connections[device, connection] = _Connection(device, until, focus, focus)
        if focus is not None:
            users = self._open.setdefault(focus, {})
            users[user] = users.get(user, 0) + 1

    async def disconnect(self, user: str, device: str, connection: str = "") -> Departure | None:
        return self._depart(user, self._clock()) if self._remove(user, device, connection) else None

    async def drop(self, user: str) -> None:
        for device, connection in list(self._users.get(user, {})):
            self._remove(user, device, connection)
        self._forget(user)
        self._left.pop(user, None)

    async def blur(self, user: str, channel: str) -> None:
        for one in self._users.get(user, {}).values():
            if one.focus == channel:
                self._close(user, one)

    async def expire(self, user: str | None = None) -> list[Departure]:
        now = self._clock()
        gone = []
        for name in list(self._users) if user is None else [user]:
            late = [(key, one.until) for key, one in self._users.get(name, {}).items() if one.until <= now]
            if [self._remove(name, *key) for key, _ in late][-1:] == [True]:
                gone.append(self._depart(name, max(until for _, until in late)))
        told = {one.user_id for one in gone}
        waiting = [name for name in (self._left if user is None else [user]) if name in self._left and name not in told]
        return [*gone, *(Departure(name, 0, tuple(self._left[name])) for name in waiting)]

    async def noted(self, noted: Sequence[Undelivered]) -> None:
        _remove_from(self._left, noted)

    def _remove(self, user: str, device: str, connection: str) -> bool:
        """True if it was the user's last connection."""
        connections = self._users.get(user, {})
        known = connections.pop((device, connection), None)
        if known is None:
            return False
        self._close(user, known)
        if not connections:
            self._users.pop(user)
        elif not _is_connected(connections):
            self._forget(user)  # only reported devices are left: deliveries to them are not tracked
        return not connections

    def _close(self, user: str, connection: _Connection) -> None:
        if (channel := connection.focus) is None:
            return
        connection.focus = None
        users = self._open[channel]
        users[user] -= 1
        if not users[user]:
            del users[user]
            if not users:
                del self._open[channel]

    # ------------------------------------------------------------ deliveries

    async def reached(self, noted: Sequence[Undelivered]) -> list[Undelivered]:
        lost, now = [], self._clock()
        for one in noted:
            user = one.receiver_id
            online = connected = False
            for (_, connection), known in self._users.get(user, _NOBODY).items():
                online = online or known.until > now
                connected = connected or bool(connection)
            if not online:
                lost.append(one)
            elif connected:
                kept = self._unproven.get(user)
                if kept is None:
                    kept = self._unproven[user] = {}
                kept[one] = None
                if len(kept) > MAX_UNPROVEN:
                    del kept[next(iter(kept))]
        return lost

    async def unproven(self, user: str) -> list[Undelivered]:
        return list(self._unproven.get(user, ()))

    def sent(self, noted: Sequence[Undelivered]) -> None:
        for one in noted:
            user = one.receiver_id
            if one in self._unproven.get(user, ()):
                if (sent := self._sent.get(user)) is None:
                    self._sent[user] = [one]
                else:
                    sent.append(one)

    def proven(self, user: str) -> None:
        _remove_from(self._unproven, self._sent.pop(user, ()))

    def _depart(self, user: str, since: int) -> Departure:
        left = {**self._left.pop(user, {}), **self._unproven.get(user, {})}
        if left:
            self._left[user] = left
        self._forget(user)
        return Departure(user, since, tuple(left))

    def _forget(self, user: str) -> None:
        self._sent.pop(user, None)
        self._unproven.pop(user, None)


def _remove_from(kept: dict[str, dict[Undelivered, None]], gone: Iterable[Undelivered]) -> None:
    for one in gone:
        rest = kept.get(one.receiver_id, {})
        rest.pop(one, None)
        if not rest:
            kept.pop(one.receiver_id, None)


def _is_connected(connections: Iterable[Key]) -> bool:
    """Whether any device has a real connection: devices that were only reported give no signs of life."""
    return any(connection for _, connection in connections)
