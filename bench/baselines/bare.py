"""The ceiling: an ASGI endpoint that does nothing but make one read durable, with a group commit.

No routing, no checks, no counts; requests that arrive during a commit share the next one.
"""

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

Row = tuple[str, str, int]
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

UPSERT = """
INSERT INTO reads VALUES (?, ?, ?)
ON CONFLICT (user_id, channel_id) DO UPDATE SET seq = MAX(seq, excluded.seq)
"""


class Read(msgspec.Struct):
    up_to_seq: int


class GroupCommit:
    """Writes rows in one transaction at a time; whoever comes meanwhile is in the next one."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS reads (user_id TEXT, channel_id TEXT, seq INTEGER,"
            " PRIMARY KEY (user_id, channel_id)) WITHOUT ROWID"
        )
        self._thread = ThreadPoolExecutor(1)
        self._rows: list[Row] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._writer: asyncio.Task[None] | None = None

    def put(self, row: Row) -> asyncio.Future[None]:
        """Done when the row is durable."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rows.append(row)
        self._waiting.append(done)
        if self._writer is None:
            self._writer = asyncio.ensure_future(self._write())
        return done

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while self._rows:
            rows, waiting, self._rows, self._waiting = self._rows, self._waiting, [], []
            await loop.run_in_executor(self._thread, self._commit, rows)
            for done in waiting:
                done.set_result(None)
        self._writer = None

    def _commit(self, rows: list[Row]) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany(UPSERT, rows)
        self._database.execute("COMMIT")


commits = GroupCommit(os.environ.get("BARE_DB", ":memory:"))
decoder = msgspec.json.Decoder(Read)
HEADERS = [(b"content-type", b"application/json")]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """POST /v1/users/{user}/channels/{channel}/read, and an empty answer to everything else."""
    if scope["type"] != "http":
        return
    body = b"{}"
    if scope["method"] == "POST":
        _, _, _, user, _, channel, _ = scope["path"].split("/")
        seq = decoder.decode((await receive())["body"]).up_to_seq
        await commits.put((user, channel, seq))
        body = b'{"last_read":{"seq":%d}}' % seq
    headers = [*HEADERS, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
