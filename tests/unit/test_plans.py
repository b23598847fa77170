"""How SQLite answers the questions that must stay cheap: by an index, and the badge by the index alone."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from readstate.adapters.sql.files import queries
from readstate.adapters.sql.sqlite.engine import connect, migrate
from readstate.timings import SqlTimings

SQL = queries("sqlite")
VALUES = {"user": "bob", "channel": "c", "sender": "alice", "seq": 1, "at": 1, "limit": 1, "before": 1, "keys": "[]"}
VALUES |= {
    "first": "c",
    "last": "d",
    "since": 1,
    "until": 2,
    "tapped": 1,
    "accepted_at": 1,
    "channel_id": "",
    "message_id": "",
    "after": "",
    "rows": "[]",
    "later": "[]",
}
ALIASES = {"p", "n"}
"""Of what inner queries of a tap give."""


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = connect(tmp_path / "plans.db", SqlTimings())
    migrate(connection)
    yield connection
    connection.close()


def plan(db: sqlite3.Connection, name: str) -> list[str]:
    """The steps by which a query is answered."""
    return [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", VALUES)]


@pytest.mark.parametrize("name", ["badge_count", "badge_senders"])
def test_the_badge_is_counted_from_its_index_alone(db: sqlite3.Connection, name: str) -> None:
    steps = [step for step in plan(db, name) if "undelivered" in step]
    assert len(steps) == 1
    assert "USING PRIMARY KEY (receiver_id=? AND accepted_at>?)" in steps[0]


def test_whether_somebody_is_rightly_on_a_badge_is_one_look_at_its_index(db: sqlite3.Connection) -> None:
    [step] = [step for step in plan(db, "receivers_of_gone") if step.startswith("SEARCH u ")]
    columns = "sender_id=? AND channel_id=? AND receiver_id=? AND accepted_at<?"
    assert f"USING COVERING INDEX undelivered_by_pair ({columns})" in step


@pytest.mark.parametrize(
    "name",
    [
        "badge_count",
        "badge_senders",
        "tapped_count",
        "tapped_messages",
        "later_than_tap",
        "renew_undelivered",
        "put_first_undelivered",
        "put_undelivered_since",
        "purge_undelivered",
        "away_sets",
        "away_of",
        "undelivered_of",
        "living_messages",
        "receivers_of_gone",
        "expire_undelivered",
        "seen_count",
        "readers",
        "purge_receipts",
    ],
)
def test_no_table_is_read_from_end_to_end(db: sqlite3.Connection, name: str) -> None:
    """What is scanned is a JSON array that was handed in, or what an inner query gives."""
    steps = plan(db, name)
    inner = {step.split()[1] for step in steps if step.startswith(("CO-ROUTINE ", "MATERIALIZE "))} | ALIASES
    scanned = [step.removeprefix("SCAN ") for step in steps if step.startswith("SCAN ")]
    assert [what for what in scanned if "VIRTUAL TABLE" not in what and what not in inner] == []


def test_who_wrote_since_is_answered_by_place(db: sqlite3.Connection) -> None:
    steps = [step for step in plan(db, "wrote_since") if step.startswith("SEARCH m ")]
    assert steps
    assert all("INDEX messages_by" in step for step in steps)
