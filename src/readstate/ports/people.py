"""The ports for badges and presence, and the bus that reaches devices."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from readstate.domain.announcements import Announcement, PointerMoved
from readstate.domain.model import Undelivered


class HotBadges(Protocol):
    """Who wrote to a user who was away, since the last tap. Atomic per user. May be lost, and is then reloaded."""

    async def count(self, user: str) -> int | None:
        """The number on the badge; None: not loaded."""

    async def counts(self, users: Sequence[str]) -> list[int | None]:
        """`count` for many users."""

    async def add(self, undelivered: Sequence[Undelivered], *, or_reload: bool = True) -> dict[str, bool]:
        """Add senders whose messages the durable store has; those accepted before the last tap are ignored. Idempotent.

        Returns the receivers whose badge may have changed. True: a new sender is on it. False: the badge is not loaded.
        If the call fails, all hot state is reloaded; `or_reload=False` is for a caller who retries until it succeeds.
        """

    async def hold(self, user: str) -> int:
        """Begin a tap: no process loads the badge until `release`. Several taps may hold a badge at once.

        Returns a token. The hold of a dead process expires.
        """

    async def release(self, user: str, token: int) -> None:
        """End a tap, done or not. The badge is reloaded on use once no other tap holds it."""

    async def begin(self, user: str) -> int | None:
        """Begin a load and return its ticket. None: a tap holds the badge, so only the durable store knows it."""

    async def install(self, user: str, ticket: int, tap: int, senders: frozenset[str]) -> bool:
        """Install a loaded badge. False: something has changed since `begin`, so load again."""

    async def forget(self, user: str) -> None:
        """Drop a badge. It is reloaded on use."""


# ---------------------------------------------------------------- presence


MAX_UNPROVEN = 1_000
"""Messages kept per user until delivery is proven; beyond this, the oldest are dropped."""


class Departure(Struct, frozen=True, gc=False):
    """A user's last device is gone."""

    user_id: str
    since: int
    """When, in ms; 0: this departure was returned before, and only `unproven` is left to store."""
    unproven: tuple[Undelivered, ...] = ()
    """Sent, but delivery is not proven. Returned by each `expire` until the durable store has them."""


class Present(Protocol):
    """The users who are online."""

    def __contains__(self, user: object, /) -> bool:
        """Whether a user is online."""

    def is_connected(self, user: str) -> bool:
        """Whether the user has a connection, not only a reported device. Only connections prove deliveries."""


class Presence(Protocol):
    """Which users have a device connected, on any instance."""

    @property
    def is_local(self) -> bool:
        """Whether this process has the answers itself and asks no other server for them."""

    async def online(self, users: Collection[str]) -> Present:
        """Those of these users who are online now. A loss of the hot store never makes a user count as away."""

    async def focused(self, channels: Collection[str]) -> Mapping[str, Sequence[str]]:
        """For each channel, the users who have it open on a device."""

    async def blur(self, user: str, channel: str) -> None:
        """Messages of the channel are no longer read on arrival, until a device of the user opens it again."""

    async def reached(self, noted: Sequence[Undelivered]) -> list[Undelivered]:
        """Keep these messages to online users until their delivery is proven.

        Returns those whose receiver is no longer online. They are undelivered, and part of no `Departure`.
        """


class Devices(Protocol):
    """The devices behind presence. Devices with a connection belong to this instance; others are only reported."""

    async def devices(self, user: str) -> list[str]:
        """The connected devices of a user."""

    async def connect(self, user: str, device: str, until: int, focus: str | None, connection: str = "") -> None:
        """A device is connected until `until` at least, with a channel open or none.

        A device with several connections is online while one of them is, and has open what any of them has open.
        """

    async def disconnect(self, user: str, device: str, connection: str = "") -> Departure | None:
        """A connection of a device is gone. Returns the departure if it was the user's last one on any instance."""

    async def drop(self, user: str) -> None:
        """Drop all devices of a user, and the messages kept until their delivery is proven."""

    async def expire(self, user: str | None = None) -> list[Departure]:
        """Drop expired devices, of one user or all, and those of dead instances. Each departure is returned once.

        Unproven messages of earlier departures are returned again until they are `noted`.
        """

    async def noted(self, noted: Sequence[Undelivered]) -> None:
        """The durable store has these unproven messages of departures, so they need not be kept any longer."""

    def proven(self, user: str) -> None:
        """A device gave a sign of life, so what was sent before it has arrived. Does not block."""


class Deliveries(Protocol):
    """Messages that were sent to connected devices and whose delivery is not proven."""

    async def unproven(self, user: str) -> list[Undelivered]:
        """The unproven messages of a user."""

    def sent(self, noted: Sequence[Undelivered]) -> None:
        """These were sent to devices of this instance. The next sign of life proves their delivery. Does not block."""


# ---------------------------------------------------------------- live updates


class Bus(Protocol):
    """Reaches the instances that hold users' devices, in order. Best effort: devices resume to get what they missed."""

    async def attend(self) -> None:
        """A device connects: return when reads that are announced from now on will be delivered. Never raises."""

    async def publish(self, announcements: Sequence[Announcement]) -> None:
        """Announce what is durable. Never raises."""

    async def publish_reads(self, count: int, reads: Callable[[], Sequence[PointerMoved]]) -> None:
        """As `publish`, for at most `count` reads. Calls `reads` only if a device or a subscriber may listen."""
