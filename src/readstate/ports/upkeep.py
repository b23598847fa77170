"""Store queries for the reconciler and the auditor, and the list of dead letters."""

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from readstate.domain.events import DeadLetter
from readstate.domain.facts import Key
from readstate.domain.model import Pointer


class ListedDeadLetter(Struct, frozen=True, gc=False, array_like=True):
    """A dead letter that could not be repaired."""

    id: int
    topic: str
    """The topic on which the event failed, with the prefix."""
    event: str
    error: str
    tries: int
    place: str
    """The partition, the offset, and a checksum of the event."""
    failed_at: int


class DurableDeadLetters(Protocol):
    """Dead letters that could not be repaired, until an operator has handled them."""

    async def put_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """List events. One that is listed already (same topic, offset and content) stays as it is."""

    async def list_dead_letters(self, after: int, limit: int) -> list[ListedDeadLetter]:
        """A page, in the order of listing."""

    async def find_dead_letters(self, ids: Collection[int]) -> list[ListedDeadLetter]:
        """Those of these ids that are listed, in the order of listing."""

    async def drop_dead_letters(self, ids: Collection[int]) -> int:
        """Remove handled dead letters; returns how many were listed."""


class DurableUpkeep(Protocol):
    """Pages over everything, random samples, and turns at jobs that one process does for all."""

    async def users_after(self, user: str, limit: int) -> list[str]:
        """A page, by id, of the users who are or were in a channel or have read something."""

    async def count_users(self) -> int:
        """The number of users that `users_after` goes through."""

    async def channels_after(self, channel: str, limit: int) -> list[str]:
        """A page, by id, of the channels and threads that exist."""

    async def count_channels(self) -> int:
        """The number of channels and threads that `channels_after` goes through."""

    async def read_states(self, keys: Sequence[Key]) -> dict[Key, Pointer]:
        """Pointers by (user, channel). Missing ones are left out."""

    async def some_user_rooms(self, limit: int) -> list[Key]:
        """(user, channel) of up to `limit` random members."""

    async def claim_turn(self, name: str, now: int, every: int) -> bool:
        """Take the turn at a job that runs once every `every` ms. False: another process took it within that time."""
