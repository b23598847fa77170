"""Presence in the memory of one process: devices, what they have open, and when they are gone."""

from collections.abc import Container, Sequence

from msgspec import Struct

from ..ports import Clock


class _Connection(Struct):
    device: str
    until: int
    reported: str | None
    """The channel that the device says is open."""
    focus: str | None
    """The channel whose messages are read at once: the same, unless the user has marked it unread since."""


Key = tuple[str, str]


class MemoryPresence:
    """A user is online while at least one device is connected and not overdue."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._users: dict[str, dict[Key, _Connection]] = {}
        self._open: dict[str, dict[str, int]] = {}
        """Who has a channel open, on how many connections."""

    def online(self) -> Container[str]:
        """Everyone who is online, at the moment of asking."""
        return _Online(self)

    def focused(self, channel: str) -> Sequence[str]:
        """Who has the channel open on a device."""
        users = self._open.get(channel)
        if not users:
            return ()
        now = self._clock()
        return [
            user
            for user in users
            if any(one.focus == channel and one.until > now for one in self._users[user].values())
        ]

    def devices(self, user: str) -> list[str]:
        """The devices of a user that are connected."""
        now = self._clock()
        return sorted({one.device for one in list(self._users.get(user, {}).values()) if one.until > now})

    def is_online(self, user: str) -> bool:
        """Whether any device of a user is connected."""
        connections = self._users.get(user)
        if not connections:
            return False
        now = self._clock()
        return any(one.until > now for one in list(connections.values()))

    def connect(self, user: str, device: str, until: int, focus: str | None, connection: str = "") -> None:
        """A device is connected, until then at least."""
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

    def disconnect(self, user: str, device: str, connection: str = "") -> bool:
        """A connection of a device is gone; True if it was the user's last one."""
        connections = self._users.get(user, {})
        known = connections.pop((device, connection), None)
        if known is None:
            return False
        self._close(user, known)
        if not connections:
            self._users.pop(user)
        return not connections

    def drop(self, user: str) -> None:
        """All devices of a user are gone."""
        for device, connection in list(self._users.get(user, {})):
            self.disconnect(user, device, connection)

    def blur(self, user: str, channel: str) -> None:
        """What arrives in the channel is read at once no more, until a device opens it again."""
        for one in self._users.get(user, {}).values():
            if one.focus == channel:
                self._close(user, one)

    def expire(self, user: str | None = None) -> list[tuple[str, int]]:
        """Drop devices (of one user) that are overdue; (user, since when) of those who went offline by it."""
        now = self._clock()
        gone = []
        for name in list(self._users) if user is None else [user]:
            late = [(key, one.until) for key, one in self._users.get(name, {}).items() if one.until <= now]
            if [self.disconnect(name, *key) for key, _ in late][-1:] == [True]:
                gone.append((name, max(until for _, until in late)))
        return gone

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


class _Online:
    """Asked from the thread that decides who is away; looks without changing anything."""

    def __init__(self, presence: MemoryPresence) -> None:
        self._presence = presence

    def __contains__(self, user: object) -> bool:
        return isinstance(user, str) and self._presence.is_online(user)
