"""The hot store is lost while a page of the inbox is made: its rows may be old, and its cursor must say so."""

from pathlib import Path

import pytest

from readstate import Readstate
from readstate.api import NewMessage, PutChannel
from readstate.ports import Stale
from readstate.services.counting import Counting
from readstate.services.cursors import InboxAfter, SyncCursor


async def test_a_cursor_from_before_the_loss_is_not_sure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Readstate.open(data_dir=str(tmp_path)) as rs:
        for name in ("one", "two"):
            await rs.channels.put(name, PutChannel(type="group", members=("alice", "bob")))
            await rs.messages.send([NewMessage(channel_id=name, sender_id="alice", id=name, text="Noon?")])
        cursors = rs.inbox._cursors
        before = await rs.inbox.page("bob", limit=1)
        assert cursors.decode(before.sync, SyncCursor, "bob").sure

        fresh, lost = Stale(False, frozenset(), 1), Stale(True, frozenset(), 1)
        rows = type(rs.inbox).rows
        state = [fresh]
        monkeypatch.setattr(Counting, "stale", lambda _, user: state[0])

        async def lose(*args: object) -> object:
            state[0] = lost
            return await rows(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(type(rs.inbox), "rows", lose)
        page = await rs.inbox.page("bob", limit=1)

        assert (page.exact, page.reason) == (False, "stale")
        assert not cursors.decode(page.sync, SyncCursor, "bob").sure
        assert page.cursor is not None
        assert cursors.decode(page.cursor, InboxAfter, "bob").sync == page.sync
