"""Read states into PostgreSQL: what the store does, beside its bare statement."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import uvloop

from readstate.adapters.sql.postgres.pool import settings
from readstate.adapters.sql.postgres.session import SQL, as_array
from readstate.adapters.sql.postgres.store import PostgresStore
from readstate.domain.events import ReadEvent
from readstate.domain.model import ChangeNumber
from readstate.stack import Postgres
from readstate.timings import SqlTimings

from ..load import BenchmarkError
from ..quiet import Quiet
from ..report import Result, number, times
from ..world import channel_id, message_id, user_id
from . import Setting

TARGET = 0.8
SIZES = (500, 5_000)
CHANNELS = 100
"""Of each user."""
AT = 1_700_000_000_000
ABOUT = (
    "%s on the same machine with its usual settings: every batch is a commit that waits for the disk. Batches of read "
    "states through `PostgresStore.merge`, one after another, beside the same statement over the same rows, prepared "
    "once and run by asyncpg over arrays that are ready; a batch of one, a batch of the other. First reads make rows, "
    "moves change rows that are there; afterwards every row must hold what was merged last. Rows in a second, by the "
    "median of the batches."
)

Merge = Callable[[Any], Awaitable[None]]


@dataclass
class Pace:
    """Seconds of each batch, by the store and by the bare statement."""

    store: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)


def event(pair: int, seq: int) -> ReadEvent:
    """The read state of a (user, channel) with this number."""
    user, channel = divmod(pair, CHANNELS)
    id_ = message_id(channel, seq)
    return ReadEvent(
        user_id(user), channel_id(channel), 0, seq, (), id_, AT + seq, AT + seq, ChangeNumber(seq), AT + seq
    )


def columns(events: Sequence[ReadEvent]) -> list[tuple[Any, ...] | str]:
    """The arrays of a batch, sorted by key as the statement wants them."""
    rows = sorted(
        (e.user_id, e.channel_id, e.epoch, e.last_read_seq, e.last_read_id, e.last_read_at, e.read_at, e.change)
        for e in events
    )
    return [as_array(column) for column in zip(*rows, strict=True)]


def run(setting: Setting) -> Result:
    """Batches of both sizes."""
    with Postgres(setting.directory / "postgres") as server:
        return uvloop.run(_measure(setting, server))


async def _measure(setting: Setting, server: Postgres) -> Result:
    result = Result(ABOUT % f"PostgreSQL {server.record.version}")
    quiet = Quiet(setting.say, setting.quick)
    timings = SqlTimings()
    store = await PostgresStore.open(server.url, 100, timings)
    usual = settings(timings.statement, timings.idle_transaction)
    connection = await asyncpg.connect(server.url, server_settings=usual)
    statement = await connection.prepare(SQL["merge_pointers"][0])

    async def bare(arrays: Any) -> None:
        await statement.fetch(*arrays, None)

    async def merge(events: Any) -> None:
        await store.merge(events)

    first = 0
    for size in SIZES:
        batches, rounds = (2, 2) if setting.quick else (50_000 // size, 5)
        contest = Contest(merge, bare, connection, size, batches, first)
        first = await contest.run(setting, quiet, rounds)
        contest.tell(result)
    quiet.tell(result)
    await connection.close()
    await store.close()
    return result


class Contest:
    """The store and the bare statement, in turns over rows of their own."""

    def __init__(
        self, store: Merge, bare: Merge, connection: asyncpg.Connection, size: int, batches: int, first: int
    ) -> None:
        self._store, self._bare = store, bare
        self._connection = connection
        self._size, self._batches = size, batches
        self._first = first
        self._paces = {"first reads": Pace(), "moves": Pace()}

    async def run(self, setting: Setting, quiet: Quiet, rounds: int) -> int:
        """Each round has new rows, which then move twice; returns the first number that is not in use."""
        pairs = self._first
        for turn in range(1, rounds + 1):
            mine, theirs = pairs, pairs + self._size * self._batches
            pairs = theirs + self._size * self._batches
            quiet.wait()
            setting.say(f"batches of {self._size:,}, round {turn} of {rounds}")
            for what, seq in (("first reads", 1), ("moves", 2), ("moves", 3)):
                await self._round(self._paces[what], mine, theirs, seq)
        await self._check(pairs - self._first)
        return pairs

    async def _round(self, pace: Pace, mine: int, theirs: int, seq: int) -> None:
        """A batch of the store, a batch of the statement, and so on; each of them is the first one every other time."""
        arrays = [columns(batch) for batch in self._events(theirs, seq)]
        for turn, (batch, ready) in enumerate(zip(self._events(mine, seq), arrays, strict=True)):
            contestants = [(self._store, batch, pace.store), (self._bare, ready, pace.bare)]
            for merge, rows, taken in contestants if turn % 2 else contestants[::-1]:
                begin = time.perf_counter()
                await merge(rows)
                taken.append(time.perf_counter() - begin)

    def _events(self, first: int, seq: int) -> list[list[ReadEvent]]:
        """Every batch has rows from everywhere, as reads of many users have."""
        every = range(first, first + self._size * self._batches)
        return [[event(pair, seq) for pair in every[start :: self._batches]] for start in range(self._batches)]

    async def _check(self, rows: int) -> None:
        users = [user_id(pair // CHANNELS) for pair in range(self._first, self._first + rows, CHANNELS)]
        query = "SELECT count(*) FROM read_receipts WHERE user_id = ANY($1) AND last_read_seq = 3 AND apart = '{}'"
        found = await self._connection.fetchval(query, users)
        if found != rows:
            raise BenchmarkError(f"{rows} rows were merged, {found} are there")

    def tell(self, result: Result) -> None:
        """Medians, and their ratio."""
        for what, pace in self._paces.items():
            mine, theirs = self._size / median(pace.store), self._size / median(pace.bare)
            result.add(
                f"batches of {self._size:,}: {what}",
                number(mine),
                f"{number(theirs)} bare statement",
                times(mine / theirs),
                f"{TARGET}× or more",
                mine / theirs >= TARGET,
            )
