"""Read state as one would write it in an afternoon: FastAPI, SQLite, one transaction per read.

It speaks the part of the HTTP API that the benchmarks use, is as durable as Readstate
(`synchronous=FULL`), and has the indexes that its queries want. The handlers call SQLite on the event
loop: with one writer at a time that was faster than FastAPI's thread pool.
"""

import os
import sqlite3
import time
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel

KEY = os.environ.get("PLAIN_KEY", "")

SCHEMA = """
CREATE TABLE IF NOT EXISTS channels (
    channel_id TEXT PRIMARY KEY, last_seq INTEGER NOT NULL DEFAULT 0, last_at INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (
    user_id TEXT, channel_id TEXT, PRIMARY KEY (user_id, channel_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS messages (
    channel_id TEXT, seq INTEGER, id TEXT, sender_id TEXT, at INTEGER, text TEXT,
    PRIMARY KEY (channel_id, seq)
);
CREATE UNIQUE INDEX IF NOT EXISTS messages_by_id ON messages (channel_id, id);
CREATE TABLE IF NOT EXISTS reads (
    user_id TEXT, channel_id TEXT, seq INTEGER, read_at INTEGER, PRIMARY KEY (user_id, channel_id)
) WITHOUT ROWID;
"""

MARK_READ = """
INSERT INTO reads (user_id, channel_id, seq, read_at) VALUES (?, ?, ?, ?)
ON CONFLICT (user_id, channel_id) DO UPDATE SET seq = MAX(seq, excluded.seq), read_at = excluded.read_at
RETURNING seq
"""

UNREAD = "SELECT COUNT(*) FROM messages WHERE channel_id = ? AND seq > ? AND sender_id <> ?"

SYNC = """
WITH unread AS MATERIALIZED (
    SELECT members.channel_id, COALESCE(reads.seq, 0) AS last_read, COUNT(*) AS unread
    FROM members
    LEFT JOIN reads ON reads.user_id = members.user_id AND reads.channel_id = members.channel_id
    JOIN messages ON messages.channel_id = members.channel_id
        AND messages.seq > COALESCE(reads.seq, 0) AND messages.sender_id <> members.user_id
    WHERE members.user_id = ?
    GROUP BY members.channel_id
)
SELECT channel_id, unread, last_read, last_seq, last_at, SUM(unread) OVER (), COUNT(*) OVER ()
FROM unread JOIN channels USING (channel_id)
ORDER BY last_at DESC LIMIT ?
"""


class NewChannel(BaseModel):
    type: str = "group"
    members: list[str] = []


class NewMembers(BaseModel):
    add: list[str] = []


class NewMessage(BaseModel):
    id: str
    channel_id: str
    sender_id: str
    text: str = ""
    outside: bool = False


class NewMessages(BaseModel):
    messages: list[NewMessage]


class Read(BaseModel):
    up_to_seq: int


def open_database(path: str) -> sqlite3.Connection:
    """A connection that commits as durably as Readstate does."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.executescript(SCHEMA)
    return database


def check_key(authorization: Annotated[str, Header()] = "") -> None:
    if authorization != f"Bearer {KEY}":
        raise HTTPException(401)


app = FastAPI(dependencies=[Depends(check_key)])
db = open_database(os.environ.get("PLAIN_DB", ":memory:"))


@app.put("/v1/channels/{channel}")
async def put_channel(channel: str, new: NewChannel) -> dict[str, Any]:
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT OR IGNORE INTO channels (channel_id) VALUES (?)", (channel,))
        db.executemany("INSERT OR IGNORE INTO members VALUES (?, ?)", [(user, channel) for user in new.members])
    return {"channel_id": channel}


@app.post("/v1/channels/{channel}/members")
async def add_members(channel: str, new: NewMembers) -> dict[str, Any]:
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT OR IGNORE INTO members VALUES (?, ?)", [(user, channel) for user in new.add])
    return {"added": len(new.add)}


@app.post("/v1/messages", status_code=202)
async def send(new: NewMessages) -> dict[str, Any]:
    with db:
        db.execute("BEGIN IMMEDIATE")
        return {"results": [store(message) for message in new.messages]}


def store(message: NewMessage) -> dict[str, Any]:
    """Give the message the next place in its channel and keep it."""
    now = time.time_ns() // 1_000_000
    row = db.execute(
        "UPDATE channels SET last_seq = last_seq + 1, last_at = ? WHERE channel_id = ? RETURNING last_seq",
        (now, message.channel_id),
    ).fetchone()
    if row is None:
        raise HTTPException(404)
    values = (message.channel_id, row[0], message.id, message.sender_id, now, message.text)
    db.execute("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)", values)
    return {"id": message.id, "seq": row[0], "status": "accepted"}


@app.post("/v1/users/{user}/channels/{channel}/read")
async def mark_read(user: str, channel: str, read: Read) -> dict[str, Any]:
    now = time.time_ns() // 1_000_000
    with db:
        db.execute("BEGIN IMMEDIATE")
        seq = db.execute(MARK_READ, (user, channel, read.up_to_seq, now)).fetchone()[0]
    return {"last_read": {"seq": seq}, "unread": db.execute(UNREAD, (channel, seq, user)).fetchone()[0]}


@app.get("/v1/users/{user}/channels/{channel}/unread")
async def unread_of_channel(user: str, channel: str) -> dict[str, Any]:
    row = db.execute("SELECT seq FROM reads WHERE user_id = ? AND channel_id = ?", (user, channel)).fetchone()
    seq = row[0] if row else 0
    unread = db.execute(UNREAD, (channel, seq, user)).fetchone()[0]
    return {"channel_id": channel, "unread": unread, "last_read": {"seq": seq}}


@app.get("/v1/users/{user}/unread")
async def sync(user: str, limit: int = 100) -> dict[str, Any]:
    rows = db.execute(SYNC, (user, limit)).fetchall()
    totals = {"unread": rows[0][5], "channels": rows[0][6]} if rows else {"unread": 0, "channels": 0}
    channels = [
        {
            "channel_id": channel,
            "unread": unread,
            "last_read": {"seq": last_read},
            "latest": {"seq": last_seq, "at": last_at},
        }
        for channel, unread, last_read, last_seq, last_at, *_ in rows
    ]
    return {"totals": totals, "channels": channels}


@app.get("/readyz")
async def ready() -> dict[str, str]:
    return {"status": "ok"}
