"""What the SQL stores share: statements by name, in a transaction, on any database.

The topics of the store are written once, over this. Each database brings its engine, and the same statements under the
same names in its own dialect.
"""

from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import msgspec

from readstate.domain.facts import Key
from readstate.timings import SqlTimings

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Session(Protocol):
    """A transaction. Values are passed by name; many keys or rows go in, and come out, as one JSON array."""

    async def value(self, name: str, **values: object) -> Any:
        """The single value of a statement; None if it returns no row."""

    async def row(self, name: str, **values: object) -> Sequence[Any] | None:
        """The single row of a statement, if any."""

    async def run(self, name: str, **values: object) -> int:
        """Run a statement; returns the number of rows it changed."""

    async def put(self, name: str, columns: Sequence[Sequence[Any]]) -> None:
        """Run a statement over many rows, given by column; a list within a row is passed as JSON."""

    async def lock(self, channels: Iterable[str], user_rooms: Iterable[Key] = ()) -> None:
        """No other transaction changes these channels, their threads, or these (room, user), until this one ends."""

    async def lock_taps(self, user: str | None = None) -> None:
        """Before a tap of this user; or (None) before a decision that a receiver has a row since the last tap already,
        and before rows are removed with their channel, sender or receiver.

        No transaction does the other until this one ends. Locked after channels and after the user's activity.
        """


Work = Callable[[Session], Coroutine[Any, Any, T]]


class Snapshot(Protocol):
    """The database as of one time, for as long as the snapshot is open."""

    async def rows(self, name: str, **values: object) -> Sequence[Sequence[Any]]:
        """All rows of a statement."""

    def close(self) -> None:
        """End the snapshot: while it is open, old rows can't be removed, and a write-ahead log can't start over."""


class Database(Protocol):
    """Runs work in transactions. Work may run twice: then the first run was rolled back."""

    async def value(self, name: str, **values: object) -> Any:
        """The single value of a read-only statement; sees every write requested before."""

    async def read(self, work: Work[T]) -> T:
        """Run work on one snapshot, which holds every write requested before."""

    async def write(self, work: Work[T], order: str | None = None, *, alone: bool = False) -> T:
        """Return when the work is committed. Writes with the same `order` are applied in the order of their calls.

        `alone`: the work is one `put`, which needs no transaction around it.
        """

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """A snapshot that stays open between statements."""

    async def close(self) -> None:
        """Finish the work requested so far, then stop."""


class Decoder(Protocol[T_co]):
    """A `msgspec.json.Decoder`, which is not declared to be covariant."""

    def decode(self, buf: str, /) -> T_co:
        """Decode JSON."""


class SqlTopic:
    """One topic of the store, over the database that all topics share. Each call is a transaction of its own."""

    def __init__(self, database: Database, fanout_max_members: int, timings: SqlTimings) -> None:
        self._database = database
        self._fanout_max_members = fanout_max_members
        self._timings = timings

    async def _find(self, decoder: Decoder[T], name: str, **values: object) -> T:
        """The JSON that a read-only statement returns, decoded."""
        return decoder.decode(await self._database.value(name, **values))

    async def _number(self, name: str, **values: object) -> int:
        number: int = await self._database.value(name, **values)
        return number

    async def _run(self, name: str, order: str | None = None, **values: object) -> int:
        """The number of rows that a statement changed."""
        return await self._database.write(lambda session: session.run(name, **values), order)


async def ask(session: Session, decoder: Decoder[T], name: str, keys: Iterable[Any]) -> T:
    """Run a statement that takes many keys as one JSON array, and returns one. Without keys nothing is run."""
    wanted = list(keys)
    return decoder.decode(await session.value(name, keys=as_json(wanted)) if wanted else "[]")


async def write_rows(session: Session, name: str, rows: Collection[Any]) -> None:
    """Run a statement that takes many rows as one JSON array. Without rows nothing is run."""
    if rows:
        await session.run(name, rows=as_json(list(rows)))


def as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
