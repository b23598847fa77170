"""The newly-unread badge at scale: counted on the fly by PostgreSQL beside the set that Valkey keeps ready."""

import time
from statistics import median

import asyncpg  # type: ignore[import-untyped]
import uvloop

from readstate.adapters.sql.postgres.store import PostgresStore
from readstate.adapters.valkey.hot import ExclusiveHot
from readstate.stack import Postgres
from readstate.timings import SqlTimings

from ..load import BenchmarkError
from ..quiet import Quiet
from ..report import Result, number, times
from ..servers import on_cores, two_cores
from ..valkey import hot_state, valkey
from ..world import user_id
from . import Setting

PEOPLE = 1_000
"""How many different people write at most."""
AT = 1_700_000_000_000
ROWS = """
INSERT INTO undelivered
SELECT $1, $2::bigint + n, 'person ' || n % $3::int, 'channel ' || n / $3::int, 'message ' || n
FROM generate_series(1, $4::int) AS n
"""
ABOUT = (
    "The badge of users to whom people wrote in more and more channels, with the library in this process: the set of "
    "senders in %s (`badge_mode=precomputed`) beside one index-only scan of %s (`on_the_fly`), in turns. "
    f"Up to {PEOPLE:,} different people wrote. Both must give the same number. Loaded: the first question after the "
    "set was lost, which is answered from the rows and brings the set back."
)


def run(setting: Setting) -> Result:
    """10 to 1 million rows."""
    core, other = two_cores()
    with (
        Postgres(setting.directory / "postgres") as database,
        valkey(setting.directory, core) as main,
        on_cores(other),
    ):
        about = ABOUT % (main.version, f"PostgreSQL {database.record.version}")
        return uvloop.run(_measure(setting, database, main.url, Result(about)))


async def _measure(setting: Setting, database: Postgres, hot_url: str, result: Result) -> Result:
    sizes = [10, 100, 1_000] if setting.quick else [10, 100, 1_000, 10_000, 100_000, 1_000_000]
    quiet = Quiet(setting.say, setting.quick)
    durable = await PostgresStore.open(database.url, 100, SqlTimings())
    hot = await hot_state(hot_url)
    await _fill(setting, database.url, sizes)
    for place, size in enumerate(sizes):
        setting.say(f"{size:,} undelivered messages")
        quiet.wait()
        ready, sql, loaded = await _count(hot, durable, user_id(place), min(size, PEOPLE), 5 if setting.quick else 31)
        result.add(
            f"badge, {size:,} undelivered: ready beside SQL",
            f"{number(ready)} ms",
            f"{number(sql)} ms on the fly",
            times(sql / ready),
        )
        result.add(f"badge, {size:,} undelivered: loaded", f"{number(loaded)} ms")
    quiet.tell(result)
    await hot.close()
    await durable.close()
    return result


async def _fill(setting: Setting, url: str, sizes: list[int]) -> None:
    setting.say(f"writing {sum(sizes):,} rows")
    connection = await asyncpg.connect(url)
    for place, size in enumerate(sizes):
        await connection.execute(ROWS, user_id(place), AT, PEOPLE, size)
    await connection.execute("VACUUM ANALYZE undelivered")
    await connection.close()


async def _count(
    hot: ExclusiveHot, durable: PostgresStore, user: str, expected: int, rounds: int
) -> tuple[float, float, float]:
    """Milliseconds: ready, on the fly, loaded."""
    ready, sql, loaded = [], [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        counted = [await durable.badge_count(user)]
        sql.append(time.perf_counter() - begin)
        await hot.badges.forget(user)
        begin = time.perf_counter()
        await _load(hot, durable, user)
        loaded.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        counted.append(await hot.badges.count(user) or 0)
        ready.append(time.perf_counter() - begin)
        if counted != [expected, expected]:
            raise BenchmarkError(f"{expected} people wrote to {user}, but the badge is {counted}")
    return 1000 * median(ready), 1000 * median(sql), 1000 * median(loaded)


async def _load(hot: ExclusiveHot, durable: PostgresStore, user: str) -> None:
    ticket = await hot.badges.begin(user)
    tap, senders = await durable.badge_senders(user)
    if ticket is None or not await hot.badges.install(user, ticket, tap, senders):
        raise BenchmarkError(f"the badge of {user} was not loaded")
