"""Transactions and snapshots of PostgreSQL, each on one connection."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

from readstate.adapters.sql import rows
from readstate.adapters.sql.files import numbered, queries
from readstate.adapters.sql.session import as_json
from readstate.domain.facts import Key

from .errors import DOWN, unavailable
from .migrations import Connection

SQL = {
    name: numbered(text)
    for file in ("queries.sql", "transfer.sql", "upkeep.sql", "lease.sql")
    for name, text in queries("postgres", file).items()
}
_REQUIRE_LEASE = {name for name, (text, _) in SQL.items() if "require_lease($" in text}
"""Statements that can be a transaction by themselves."""
NEW_CHANNELS = 0x6368616E
"""The advisory lock space for channels that don't exist yet."""
TAPS = 0x74617073
"""The advisory lock space for taps."""
TAP_BUCKETS = 16
"""A tap locks the bucket of its user alone, a writer of messages shares all: taps in different buckets run together."""
_ESCAPED = re.compile(r"\\(?:u00(..)|(.))")
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_NUL_IN_JSON = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


class PostgresSession:
    """A transaction on one connection. A read-only one treats an id that PostgreSQL cannot store as not found."""

    def __init__(self, connection: Connection, reads: bool, lease: int | None = None) -> None:
        self._connection = connection
        self._reads = reads
        self._lease = lease
        """What `put` requires; None: nothing, or the transaction has required it already."""

    async def value(self, name: str, **values: object) -> Any:
        return await self._connection.fetchval(*self._call(name, values))

    async def row(self, name: str, **values: object) -> Sequence[Any] | None:
        row = await self._connection.fetchrow(*self._call(name, values))
        return None if row is None else tuple(row)

    async def run(self, name: str, **values: object) -> int:
        status: str = await self._connection.execute(*self._call(name, values))
        return int(status.rpartition(" ")[2])

    async def put(self, name: str, columns: Sequence[Sequence[Any]]) -> None:
        """Passes each column as the text of an array, and the lease to a statement that can require it."""
        if columns and columns[0]:
            lease = [self._lease] if name in _REQUIRE_LEASE else []
            await self._connection.execute(SQL[name][0], *map(as_array, columns), *lease)

    async def lock(self, channels: Iterable[str], user_rooms: Iterable[Key] = ()) -> None:
        """Locks channels, then members, then pointers, each in sorted order, so that two calls cannot deadlock."""
        ids = sorted(channels)
        there = set(rows.names.decode(await self.value("lock_channels", ids=ids)))
        if missing := [id_ for id_ in ids if id_ not in there]:
            await self.value("lock_new_channels", ids=missing, space=NEW_CHANNELS)
            await self.value("lock_channels", ids=missing)
        if keys := sorted(user_rooms):
            await self.value("lock_members", keys=as_json(keys))
            await self.value("lock_pointers", keys=as_json(keys))

    async def lock_taps(self, user: str | None = None) -> None:
        if user is None:
            await self.value("lock_taps", space=TAPS, buckets=TAP_BUCKETS)
        else:
            await self.value("lock_tap", space=TAPS, bucket=crc32(user.encode()) % TAP_BUCKETS)

    def _call(self, name: str, values: Mapping[str, object]) -> list[object]:
        """A statement and its parameters."""
        statement, names = SQL[name]
        return [statement, *(_findable(name, values[name]) if self._reads else values[name] for name in names)]


class PostgresSnapshot:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def rows(self, name: str, **values: object) -> Sequence[Sequence[Any]]:
        statement, names = SQL[name]
        try:
            found = await self._connection.fetch(statement, *(values[name] for name in names))
        except DOWN as error:
            raise unavailable("read", error) from error
        return [tuple(row) for row in found]

    def close(self) -> None:
        self._connection.terminate()


def as_array(column: Sequence[str | int | bool | None]) -> str:
    """An array as PostgreSQL writes it: a tenth of the driver's work, which looks at each item several times.

    It differs from JSON in its brackets, and in control characters, which stand for themselves.
    """
    text = f"{{{as_json(column)[1:-1]}}}"
    return _ESCAPED.sub(_unescaped, text) if "\\" in text else text


def _unescaped(escape: re.Match[str]) -> str:
    code, letter = escape.groups()
    return chr(int(code, 16)) if code else _CONTROLS.get(letter, escape[0])


def _findable(name: str, value: object) -> object:
    """PostgreSQL cannot store NUL: search for U+0001 instead, which is in no id either."""
    if not isinstance(value, str):
        return value
    if name == "keys":
        return _NUL_IN_JSON.sub(r"\1\\u0001", value) if "\\u0000" in value else value
    return value.replace("\0", "\x01")
