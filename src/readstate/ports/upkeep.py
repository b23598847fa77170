"""What those need of the durable store who look after it and the hot store."""

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from readstate.domain.events import DeadLetter
from readstate.domain.facts import Key
from readstate.domain.model import Pointer


class ListedDeadLetter(Struct, frozen=True, gc=False, array_like=True):
    """An event that could not be repaired."""

    id: int
    topic: str
    """That it failed on, with the prefix."""
    event: str
    error: str
    tries: int
    place: str
    """The partition, the offset, and a sum of the event."""
    failed_at: int


class DurableDeadLetters(Protocol):
    """Events that failed again and again and could not be repaired, until somebody has dealt with them."""

    async def put_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """List events; one that is listed already (the same topic, place and content) stays as it is."""

    async def list_dead_letters(self, after: int, limit: int) -> list[ListedDeadLetter]:
        """A page of them, in the order in which they were listed."""

    async def find_dead_letters(self, ids: Collection[int]) -> list[ListedDeadLetter]:
        """Those of these that are there, in the same order."""

    async def drop_dead_letters(self, ids: Collection[int]) -> int:
        """They are dealt with; how many there were."""


class DurableUpkeep(Protocol):
    """Everything page by page, samples, and turns at what only one process need do."""

    async def users_after(self, user: str, limit: int) -> list[str]:
        """A page, by id, of everyone who is or was in a channel or has read something."""

    async def count_users(self) -> int:
        """How many they are."""

    async def channels_after(self, channel: str, limit: int) -> list[str]:
        """A page, by id, of the channels and threads that are there."""

    async def count_channels(self) -> int:
        """How many they are."""

    async def read_states(self, keys: Sequence[Key]) -> dict[Key, Pointer]:
        """Pointers by (user, channel); where there is none it is left out."""

    async def some_user_rooms(self, limit: int) -> list[Key]:
        """(user, channel) of some members of channels, taken at random; fewer if there are not so many."""

    async def claim_turn(self, name: str, now: int, every: int) -> bool:
        """Take the turn at something that is done once every so many ms; False: somebody has, and it is not over."""
