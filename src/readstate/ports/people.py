"""Badges and presence, and the bus that reaches devices."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from readstate.domain.announcements import Announcement
from readstate.domain.model import Undelivered


class HotBadges(Protocol):
    """Who wrote to a user while away, since the last tap. Atomic per user; loaded again when lost."""

    async def count(self, user: str) -> int | None:
        """How many; None: not loaded."""

    async def counts(self, users: Sequence[str]) -> list[int | None]:
        """How many, for each of many."""

    async def add(self, undelivered: Sequence[Undelivered], *, or_reload: bool = True) -> dict[str, bool]:
        """Take them in, unless they were accepted before the last tap; the receivers whose badge may be another now.

        For each of those whether somebody new is on it; if not, it is not loaded. The durable store has them
        already. If it fails, everything is loaded again, unless the caller says that it repeats the call until it
        succeeds. Safe to repeat.
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


MAX_UNPROVEN = 1_000
"""So many messages to a user are kept until it is proven that they got through: the newest."""


class Departure(Struct, frozen=True, gc=False):
    """A user's last device is gone."""

    user_id: str
    since: int
    """When; 0: that was told before, and this is what came out later."""
    unproven: tuple[Undelivered, ...] = ()
    """What was sent and may not have got through. It is kept, and told again, until the durable store has it."""


class Present(Protocol):
    """Who is online."""

    def __contains__(self, user: object, /) -> bool:
        """Whether a user is."""

    def is_connected(self, user: str) -> bool:
        """Whether by a connection, and not only because a device was reported: only those give signs of life."""


class Presence(Protocol):
    """Which users have a device connected, on any instance."""

    async def online(self, users: Collection[str]) -> Present:
        """Those of them who are online, decided now. Nobody is said to be away because memory was lost."""

    async def focused(self, channels: Collection[str]) -> Mapping[str, Sequence[str]]:
        """Who has each channel open on a device."""

    async def blur(self, user: str, channel: str) -> None:
        """What arrives in the channel is read at once no more, until a device of the user opens it again."""

    async def reached(self, noted: Sequence[Undelivered]) -> list[Undelivered]:
        """These go to people who are online: they are kept until it is proven that they got through.

        Returns those whose receiver is online no more: they are undelivered, and in no `Departure`.
        """


class Devices(Protocol):
    """The devices behind presence. Those with a connection are this instance's; others are only reported."""

    async def devices(self, user: str) -> list[str]:
        """The devices of a user that are connected."""

    async def connect(self, user: str, device: str, until: int, focus: str | None, connection: str = "") -> None:
        """A device is connected, until then at least, with a channel open or none.

        One that has several connections is connected, and has open, what any of them says.
        """

    async def disconnect(self, user: str, device: str, connection: str = "") -> Departure | None:
        """A connection of a device is gone; the departure if it was the user's last one anywhere."""

    async def drop(self, user: str) -> None:
        """All devices of a user are gone, and what was sent to them is no longer of interest."""

    async def expire(self, user: str | None = None) -> list[Departure]:
        """Drop devices (of one user) that are overdue, and those of instances that are gone. Tells each once.

        What departures have told as unproven and is not `noted` yet is told again.
        """

    async def noted(self, noted: Sequence[Undelivered]) -> None:
        """The durable store has these, which departures have told as unproven: they are kept no more."""

    def proven(self, user: str) -> None:
        """A device has given a sign of life: what was sent before it has got through. Never waits."""


class Deliveries(Protocol):
    """What went to connected devices and is not proven to have got through."""

    async def unproven(self, user: str) -> list[Undelivered]:
        """What is kept for a user now."""

    def sent(self, noted: Sequence[Undelivered]) -> None:
        """These were sent to devices of this instance: the next sign of life proves them. Never waits."""


# ---------------------------------------------------------------- live updates


class Bus(Protocol):
    """Reaches the instances that hold users' devices, in order. Best effort: what was missed is resumed."""

    @property
    def idle(self) -> bool:
        """Whether nobody is connected: then reads need not be told."""

    async def publish(self, announcements: Sequence[Announcement]) -> None:
        """Tell what is durable. Never fails."""
