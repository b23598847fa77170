"""What the stores in SQL share: statements by name, in a transaction, whatever the database.

The code above this (`store`, `gathering`, `transfer`) is written once. A database brings its engine, and the same
statements under the same names in its own dialect.
"""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import msgspec

from readstate.domain.facts import Key

T = TypeVar("T")


class Session(Protocol):
    """A transaction. Values go in by name; many keys or rows go in, and come out, as one JSON array."""

    async def value(self, name: str, **values: object) -> Any:
        """The one value that a statement gives; None if it gives no row."""

    async def row(self, name: str, **values: object) -> Sequence[Any] | None:
        """The one row that a statement gives, if any."""

    async def run(self, name: str, **values: object) -> int:
        """How many rows a statement has changed."""

    async def put(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement over many rows; what is a list in a row goes as JSON."""

    async def lock(self, channels: Iterable[str], user_rooms: Iterable[Key] = ()) -> None:
        """Nobody else changes these channels, their threads, or the (room, user) there, until this is over."""


Work = Callable[[Session], Coroutine[Any, Any, T]]


class Snapshot(Protocol):
    """The database at one moment, for as long as it is open."""

    async def rows(self, name: str, **values: object) -> Sequence[Sequence[Any]]:
        """All rows that a statement gives."""

    def abandon(self) -> None:
        """Nobody reads on: whoever does all the same is told to begin again."""


class Database(Protocol):
    """Runs work in transactions. It may run twice: then the first time is undone."""

    async def value(self, name: str, **values: object) -> Any:
        """The one value that a statement gives which only reads; sees every write asked for before."""

    async def read(self, work: Work[T]) -> T:
        """On one snapshot, which holds every write asked for before."""

    async def write(self, work: Work[T], order: str | None = None) -> T:
        """Answers when it is committed. Writes of the same `order` are done as they were asked for."""

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """One moment, to be read at leisure."""

    async def close(self) -> None:
        """Finish what was asked for, then stop."""


def as_json(value: object) -> str:
    """A value as the statements take it."""
    return msgspec.json.encode(value).decode()
