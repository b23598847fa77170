"""When the last of many reads is in PostgreSQL, found without looking at all of them again and again."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

import asyncpg  # type: ignore[import-untyped]

from .cluster import Cluster, until
from .load import BenchmarkError
from .meter import Reading, after

SAMPLE = 200
"""Rows that are looked up by their key, again and again, before all are."""
BY_KEY = {"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off"}


@dataclass(frozen=True)
class Table:
    """Where a design keeps its read states."""

    name: str
    seq: str
    """The column with the pointer."""

    @property
    def of_user(self) -> str:
        """(channel, seq) of a user's rows."""
        return f"SELECT channel_id, {self.seq} FROM {self.name} WHERE user_id = $1"

    @property
    def everything(self) -> str:
        return f"SELECT user_id, channel_id, {self.seq} FROM {self.name}"

    @property
    def arrived(self) -> str:
        """How many of these (user, channel, seq) are there."""
        wanted = "unnest($1::text[], $2::text[], $3::bigint[]) AS wanted (user_id, channel_id, seq)"
        return (
            f"SELECT count(*) FROM {wanted} JOIN {self.name} AS found USING (user_id, channel_id) "
            f"WHERE found.{self.seq} >= wanted.seq"
        )


OURS, THEIRS = Table("read_receipts", "last_read_seq"), Table("reads", "seq")


async def landing(
    cluster: Cluster, database: str, table: Table, expected: Mapping[tuple[str, str], int]
) -> tuple[Reading, int]:
    """Return when all expected pointers are there: the meters of that moment, and how many there are."""
    pairs = random.Random(11).sample(sorted(expected), min(SAMPLE, len(expected)))
    columns = [[user for user, _ in pairs], [channel for _, channel in pairs], [expected[pair] for pair in pairs]]
    connection = await asyncpg.connect(database, server_settings=BY_KEY)
    try:
        arrived = await connection.prepare(table.arrived)

        async def sampled() -> bool:
            return bool(await arrived.fetchval(*columns) == len(pairs))

        while True:
            await until(sampled, "some acknowledged reads are in PostgreSQL")
            reading = await after(cluster)
            rows = await connection.fetch(table.everything)
            if _complete({(user, channel): seq for user, channel, seq in rows}, expected):
                return reading, len(expected)
    finally:
        await connection.close()


def _complete(found: Mapping[tuple[str, str], int], expected: Mapping[tuple[str, str], int]) -> bool:
    if any(found.get(pair, 0) > seq for pair, seq in expected.items()):
        raise BenchmarkError("PostgreSQL has reads that nobody has sent")
    return all(found.get(pair, 0) == seq for pair, seq in expected.items())
