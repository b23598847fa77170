"""Badges and presence, and the bus that reaches devices."""

from collections.abc import Container, Sequence
from typing import Protocol

from ..announcements import Announcement
from ..model import Undelivered


class HotBadges(Protocol):
    """Who wrote to a user while away, since the last tap. Atomic per user; loaded again when lost."""

    async def count(self, user: str) -> int | None:
        """How many; None: not loaded."""

    async def add(self, undelivered: Sequence[Undelivered], *, or_reload: bool = True) -> set[str]:
        """Take them in, unless they were accepted before the last tap; the receivers whose badge may be another now.

        The durable store has them already. If it fails, everything is loaded again, unless the caller says that it
        repeats the call until it succeeds. Safe to repeat.
        """

    async def hold(self, user: str) -> int:
        """A tap begins: the badge is not loaded, by anybody, until it is released. Several may hold one.

        Returns a token. A hold whose owner is gone ends by itself.
        """

    async def release(self, user: str, token: int) -> None:
        """The tap is over, done or not: the badge is loaded again on use, once nobody else holds it."""

    async def begin(self, user: str) -> int | None:
        """Announce a load; None while the badge is held: then only the durable store knows."""

    async def install(self, user: str, ticket: int, tap: int, senders: frozenset[str]) -> bool:
        """Take a loaded badge; False if something has happened since `begin`: load again."""

    async def forget(self, user: str) -> None:
        """Drop a badge; loaded again on use."""


# ---------------------------------------------------------------- presence


class Presence(Protocol):
    """Which users have a device connected."""

    def online(self) -> Container[str]:
        """Everyone who is online, at the moment of asking."""

    def focused(self, channel: str) -> Sequence[str]:
        """Who has the channel open on a device."""

    def blur(self, user: str, channel: str) -> None:
        """What arrives in the channel is read at once no more, until a device of the user opens it again."""


class Devices(Protocol):
    """The devices behind presence."""

    def devices(self, user: str) -> list[str]:
        """The devices of a user that are connected."""

    def connect(self, user: str, device: str, until: int, focus: str | None, connection: str = "") -> None:
        """A device is connected, until then at least, with a channel open or none.

        One that has several connections is connected, and has open, what any of them says.
        """

    def disconnect(self, user: str, device: str, connection: str = "") -> bool:
        """A connection of a device is gone; True if it was the user's last one."""

    def drop(self, user: str) -> None:
        """All devices of a user are gone."""

    def expire(self, user: str | None = None) -> list[tuple[str, int]]:
        """Drop devices (of one user) that are overdue; (user, since when) of those who went offline by it."""


# ---------------------------------------------------------------- live updates


class Bus(Protocol):
    """Reaches the instances that hold users' devices, in order. Best effort: what was missed is resumed."""

    @property
    def idle(self) -> bool:
        """Whether nobody is connected: then reads need not be told."""

    async def publish(self, announcements: Sequence[Announcement]) -> None:
        """Tell what is durable. Never fails."""
