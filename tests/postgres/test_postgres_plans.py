"""How PostgreSQL answers the questions that must stay cheap, over tables that are large enough for it to have a choice:
by an index, in one partition, and the badge by its index alone.
"""

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import msgspec
import pytest
import pytest_asyncio

from readstate.adapters.sql.postgres.pool import begin, settings
from readstate.adapters.sql.postgres.session import SQL
from readstate.adapters.sql.session import as_json

from ..contract.postgres import database

NOW = 1_700_000_000_000
FILL = """
INSERT INTO channels
SELECT 'c' || n, 'group', NULL, NULL, false, false, 'ledger', 50, 100, 'm100', 100, 1, n, NULL, NULL, NULL, NULL, NULL,
    '{}'
FROM generate_series(1, 20000) AS n;

INSERT INTO members (user_id, channel_id, active, joined_seq, joined_at, skipped)
SELECT 'u' || u, 'c' || (u + 20 * n) % 20000, true, 0, 0, '[]'
FROM generate_series(1, 1000) AS u, generate_series(1, 40) AS n;

INSERT INTO read_receipts
SELECT user_id, channel_id, 0, 50, '{}', 'm50', 50, 50, 1 FROM members;

INSERT INTO messages
SELECT 'c' || c, 'm' || n, CASE WHEN n % 10 > 0 THEN n END, 'u' || c % 1000, n, NULL, 'text', 'text',
    CASE WHEN n % 10 = 0 THEN 'm1' END, CASE WHEN n % 10 = 0 THEN n / 10 END, '{}', false, false, false, n, n
FROM generate_series(1, 800) AS c, generate_series(1, 100) AS n;

INSERT INTO messages
SELECT 'c7', 'm' || n, n, 'u' || n % 10, n, NULL, 'text', 'text', NULL, NULL, '{}', false, false, false, n, n
FROM generate_series(101, 5000) AS n;

INSERT INTO undelivered
SELECT 'u' || u, n, 'u' || (u + n) % 1000, 'c' || u, 'm' || n
FROM generate_series(1, 1000) AS u, generate_series(1, 40) AS n;

INSERT INTO away_sets (channel_id, key, receivers, used_at)
SELECT 'c' || c, 'k' || n, ARRAY['u7', 'u8'], 1 FROM generate_series(1, 800) AS c, generate_series(1, 20) AS n;

INSERT INTO user_activity SELECT 'u' || u, 5, 5, 'public' FROM generate_series(1, 1000) AS u;
"""
VALUES: dict[str, object] = {
    "user": "u7",
    "channel": "c7",
    "sender": "u7",
    "seq": 90,
    "since": 1,
    "until": 10**15,
    "tapped": 10**15,
    "accepted_at": 10**15,
    "channel_id": "",
    "message_id": "",
    "cap": 100,
    "limit": 100,
    "at": NOW,
    "seen": as_json([("c7", 7, 7)]),
    "later": as_json([("c7", "m7")]),
    "after": 0,
    "before": 10**15,
    "position": 90,
    "most": 100,
    "n": 3,
    "first": "c7\x1f",
    "last": "c7\x20",
    "apart": "[]",
    "ids": ["c7", "c8"],
    "a": "c7",
    "b": 1,
    "c": "u7",
}
KEYS: dict[str, list[Any]] = {
    "channels": ["c7", "c8"],
    "changes": ["c7", "c8"],
    "audience": ["c7", "c8"],
    "messages": [("c7", "m1"), ("c8", "m2")],
    "members": [("c7", "u7"), ("c8", "u8")],
    "pointers": [("c7", "u7"), ("c8", "u8")],
    "by_seq": [("c7", 3), ("c8", 4)],
    "followers": [("c7\x1fm1", "c7")],
    "newest_but": [("c7", "m99")],
    "newest_reply_but": [("c7", "m1", "m100")],
    "ledger_entries": [(0, "u7", "c7", 90, 0, [95]), (1, "u8", "c8", 95, 1, [])],
    "thread_entries": [(0, "u7", "c7", 5, "m1", [])],
    "wrote_since": [("c7", 3), ("c8", 4)],
    "public_readers": [("u7", "c7")],
    "lock_members": [("c7", "u7")],
    "lock_pointers": [("c7", "u7")],
    "known_messages": [("c7", "m1")],
    "tails": ["c7"],
    "active_members": ["c7"],
    "around": [("c7", 5, "c7")],
    "user_rooms": [("c7", "u7")],
    "own_beyond": [("c7", "u7", 5)],
    "expire_undelivered": ["u7", "u8"],
    "away_sets": [("c7", "k"), ("c8", "k")],
    "away_of": [("c7", "m1"), ("c8", "m2")],
    "undelivered_of": [("u7", 7, "u14", "c7", "m7"), ("u8", 7, "u15", "c8", "m7")],
    "living_messages": [("c7", "m1"), ("c8", "m2")],
    "receivers_of_gone": [("u7", NOW, "u8", "c7"), ("u8", NOW, "u7", "c8")],
}
SINGLE = ("timeline", "messages_since", "replies_since", "own_seqs", "unread_oldest", "unread_newest", "breakdown")
"""They name one channel, so one partition is looked at."""
OTHERS = (
    "load_user",
    "unread_page",
    "everyone",
    "members_page",
    "explain_facts",
    "before_last",
    "badge_count",
    "badge_senders",
    "tapped_count",
    "tapped_messages",
    "later_than_tap",
    "renew_undelivered",
    "purge_undelivered",
    "receivers_after",
    "receipts_since",
    "seen_count",
    "readers",
    "last_position",
    "lock_channels",
    "export_rooms",
    "export_messages",
    "export_members",
    "badges_with",
    "erase_undelivered",
)
pytestmark = pytest.mark.asyncio(loop_scope="module")

WRITE = begin("READ COMMITTED READ WRITE", settings(statement_seconds=30, idle_seconds=30))
BIG = re.compile(r"messages_\d\d|channels|members|read_receipts|undelivered|away_sets")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def db() -> AsyncIterator[asyncpg.Connection]:
    """Filled once for all of these."""
    async with database() as url:
        connection = await asyncpg.connect(url, statement_cache_size=0)
        await connection.execute(FILL)
        await connection.execute("VACUUM ANALYZE")
        yield connection
        await connection.close()


async def plan(db: asyncpg.Connection, name: str, how: str = "") -> list[dict[str, Any]]:
    """The steps by which a statement is answered."""
    statement, names = SQL[name]
    values = VALUES | {"keys": as_json(KEYS.get(name, []))}
    if name in {"members_page", "receivers_after"}:
        values["after"] = "u7"
    await db.execute(WRITE)
    text = await db.fetchval(f"EXPLAIN (FORMAT JSON{how}) {statement}", *[values[one] for one in names])
    await db.execute("ROLLBACK")
    return list(_steps(msgspec.json.decode(text)[0]["Plan"]))


def _steps(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield step
    for inner in step.get("Plans", ()):
        yield from _steps(inner)


def conditions(steps: list[dict[str, Any]], table: str) -> list[str]:
    """By what the rows of a table are found."""
    return [step.get("Index Cond", "") for step in steps if step.get("Index Name", "").startswith(table)]


@pytest.mark.parametrize("name", [*KEYS, *SINGLE, *OTHERS])
async def test_no_table_is_read_from_end_to_end(db: asyncpg.Connection, name: str) -> None:
    steps = await plan(db, name)
    scans = [step for step in steps if BIG.fullmatch(step.get("Relation Name", ""))]
    by_index = [step for step in scans if step["Node Type"] in {"Bitmap Heap Scan", "Tid Scan"} or "Index Cond" in step]
    assert [step for step in scans if step not in by_index and step["Node Type"] != "ModifyTable"] == []
    assert all("Index Cond" in step for step in steps if step["Node Type"] == "Bitmap Index Scan")


@pytest.mark.parametrize("name", ["badge_count", "badge_senders"])
async def test_the_badge_is_counted_from_its_index_alone(db: asyncpg.Connection, name: str) -> None:
    [step] = [one for one in await plan(db, name, ", ANALYZE") if one.get("Relation Name") == "undelivered"]
    assert (step["Node Type"], step["Index Name"], step["Heap Fetches"]) == ("Index Only Scan", "undelivered_pkey", 0)
    assert "receiver_id = " in step["Index Cond"]
    assert "accepted_at > " in step["Index Cond"]


async def test_whether_somebody_is_rightly_on_a_badge_is_one_look_at_its_index(db: asyncpg.Connection) -> None:
    steps = await plan(db, "receivers_of_gone", ", ANALYZE")
    [step] = [one for one in steps if one.get("Relation Name") == "undelivered"]
    assert (step["Node Type"], step["Index Name"], step["Heap Fetches"]) == (
        "Index Only Scan",
        "undelivered_by_pair",
        0,
    )
    for column in ("receiver_id", "channel_id", "sender_id"):
        assert f"{column} = " in step["Index Cond"]


async def test_whom_a_repeated_message_did_not_reach_is_found_by_its_id(db: asyncpg.Connection) -> None:
    found = conditions(await plan(db, "away_of"), "messages_")
    assert found
    assert all("channel_id = " in one and "id = " in one for one in found)


@pytest.mark.parametrize("name", SINGLE)
async def test_a_question_about_one_channel_is_answered_by_one_partition(db: asyncpg.Connection, name: str) -> None:
    tables = {step["Relation Name"] for step in await plan(db, name) if "Relation Name" in step}
    assert len([table for table in tables if table.startswith("messages_")]) == 1


@pytest.mark.parametrize(
    "name", ["messages", "living_messages", "by_seq", "ledger_entries", "newest_but", "wrote_since"]
)
async def test_each_key_is_looked_up_in_its_own_partition(db: asyncpg.Connection, name: str) -> None:
    steps = await plan(db, name, ", ANALYZE")
    looked = [step for step in steps if step.get("Relation Name", "").startswith("messages_") and step["Actual Loops"]]
    assert 1 <= len(looked) <= len(KEYS[name])


@pytest.mark.parametrize(
    ("name", "table", "wanted"),
    [
        ("messages", "messages_", ("channel_id", "id")),
        ("living_messages", "messages_", ("channel_id", "id")),
        ("by_seq", "messages_", ("channel_id", "seq")),
        ("ledger_entries", "messages_", ("channel_id", "seq >")),
        ("thread_entries", "messages_", ("channel_id", "thread_id", "thread_seq >")),
        ("timeline", "messages_", ("channel_id", "seq >")),
        ("messages_since", "messages_", ("channel_id", "seq >")),
        ("replies_since", "messages_", ("channel_id", "position")),
        ("own_seqs", "messages_", ("channel_id", "sender_id", "seq >=")),
        ("pointers", "read_receipts", ("user_id", "channel_id")),
        ("members", "members", ("user_id", "channel_id")),
        ("load_user", "read_receipts", ("user_id",)),
        ("load_user", "members", ("user_id",)),
        ("load_user", "channels", ("channel_id",)),
    ],
)
async def test_rows_are_found_by_what_an_index_knows(
    db: asyncpg.Connection, name: str, table: str, wanted: tuple[str, ...]
) -> None:
    found = conditions(await plan(db, name), table)
    assert found
    assert all(part in condition for condition in found for part in wanted), found


@pytest.mark.parametrize("name", ["timeline", "messages_since", "ledger_entries", "own_seqs"])
async def test_the_newest_are_taken_from_the_end_of_the_index(db: asyncpg.Connection, name: str) -> None:
    directions = {
        step.get("Scan Direction") for step in await plan(db, name) if step.get("Relation Name", "").startswith("mess")
    }
    assert directions == {"Backward"}
