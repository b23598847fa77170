"""Presence in the memory of one process: devices, what they have open, and when they are gone."""

from collections.abc import Container, Sequence

from msgspec import Struct

from ..ports import Clock


class _Device(Struct):
    until: int
    reported: str | None
    """The channel that the device says is open."""
    focus: str | None
    """The channel whose messages are read at once: the same, unless the user has marked it unread since."""


class MemoryPresence:
    """A user is online while at least one device is connected and not overdue."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._users: dict[str, dict[str, _Device]] = {}

    def online(self) -> Container[str]:
        """Everyone who is online, at the moment of asking."""
        return _Online(self)

    def focused(self, channel: str) -> Sequence[str]:
        """Who has the channel open on a device."""
        now = self._clock()
        return [
            user
            for user, devices in self._users.items()
            if any(device.focus == channel and device.until > now for device in devices.values())
        ]

    def devices(self, user: str) -> list[str]:
        """The devices of a user that are connected."""
        now = self._clock()
        return sorted(name for name, device in self._users.get(user, {}).items() if device.until > now)

    def connect(self, user: str, device: str, until: int, focus: str | None) -> None:
        """A device is connected, until then at least."""
        devices = self._users.setdefault(user, {})
        known = devices.get(device)
        if known is not None and known.reported == focus:
            known.until = until
        else:
            devices[device] = _Device(until, focus, focus)

    def disconnect(self, user: str, device: str) -> bool:
        """A device is gone; True if it was the user's last one."""
        devices = self._users.get(user, {})
        known = devices.pop(device, None) is not None
        if not devices:
            self._users.pop(user, None)
        return known and not devices

    def blur(self, user: str, channel: str) -> None:
        """What arrives in the channel is read at once no more, until a device opens it again."""
        for device in self._users.get(user, {}).values():
            if device.focus == channel:
                device.focus = None

    def expire(self, user: str | None = None) -> list[tuple[str, int]]:
        """Drop devices (of one user) that are overdue; (user, since when) of those who went offline by it."""
        now = self._clock()
        gone = []
        for name in list(self._users) if user is None else [user]:
            devices = self._users.get(name, {})
            late = {key: device.until for key, device in devices.items() if device.until <= now}
            for key in late:
                del devices[key]
            if late and not devices:
                del self._users[name]
                gone.append((name, max(late.values())))
        return gone


class _Online:
    """Asked from the thread that decides who is away; looks without changing anything."""

    def __init__(self, presence: MemoryPresence) -> None:
        self._presence = presence

    def __contains__(self, user: object) -> bool:
        return isinstance(user, str) and bool(self._presence.devices(user))
