"""A bulk sync of a user whose state is in Valkey takes three round trips: calls that run at once are one."""

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from readstate import Readstate
from readstate.adapters.valkey import ValkeyClient, views
from readstate.api import NewMessage, PutChannel, PutPreferences, ReadTarget
from readstate.ports import UnreadOverview
from tests.contract import valkey

MOST = 3


class Rounds:
    """Calls of the hot store, and how often one began while no other was under way."""

    def __init__(self) -> None:
        self.rounds = 0
        self._under_way = 0

    @contextmanager
    def call(self) -> Iterator[None]:
        self.rounds += not self._under_way
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    counted, plain = Rounds(), ValkeyClient.run

    async def run(client: ValkeyClient, *args: Any) -> Any:
        with counted.call():
            return await plain(client, *args)

    monkeypatch.setattr(ValkeyClient, "run", run)
    return counted


@pytest.fixture
async def rs(tmp_path: Path) -> AsyncIterator[Readstate]:
    """Bob has 30 unread channels, one of them muted, one half read, and a thread that he follows."""
    where = {"hot_url": valkey.single().url, "key_prefix": f"{secrets.token_hex(6)}:", "fanout_max_members": 3}
    async with Readstate.open(data_dir=str(tmp_path), **where) as rs:  # type: ignore[arg-type]
        for number in range(30):
            await rs.channels.put(f"c{number}", PutChannel(type="group", members=("alice", "bob")))
            await say(rs, f"c{number}", f"m{number}")
        await rs.preferences.put("bob", "c7", PutPreferences(muted=True))
        await say(rs, "c8", "more")
        await rs.reads.mark_read("bob", "c8", ReadTarget(up_to="m8"))
        await rs.threads.follow("bob", "c9", "m9")
        await say(rs, "c9", "reply", thread_id="m9")
        await rs.unread.sync("bob")
        yield rs


async def say(rs: Readstate, channel: str, id_: str, **more: Any) -> None:
    message = NewMessage(channel_id=channel, sender_id="alice", id=id_, text="Noon?", **more)
    assert (await rs.messages.send([message]))[0].status == "accepted"


async def test_all_of_it(rs: Readstate, rounds: Rounds) -> None:
    page = await rs.unread.sync("bob")

    assert rounds.rounds <= MOST
    assert (page.totals.unread, page.totals.channels, len(page.channels)) == (29, 29, 30)
    assert (page.threads.unread, page.threads.threads) == (1, 1)


async def test_page_by_page(rs: Readstate, rounds: Rounds) -> None:
    first = await rs.unread.sync("bob", limit=10)
    assert rounds.rounds <= MOST

    second = await rs.unread.sync("bob", limit=10, cursor=first.cursor)

    assert rounds.rounds <= 2 * MOST
    assert second.sync == first.sync
    names = [row.channel_id for page in (first, second) for row in page.channels]
    assert names == [row.channel_id for row in (await rs.unread.sync("bob")).channels][:20]
    assert second.totals == first.totals


async def test_with_unread_timeline_channels(rs: Readstate, rounds: Rounds) -> None:
    """Their counts come with the rows of the other channels. One is half read, one message is read apart."""
    for name in ("big", "large"):
        await rs.channels.put(name, PutChannel(type="channel", members=("alice", "bob", "carol", "dave", "eve")))
        for number in range(4):
            await say(rs, name, f"{name}-{number}")
    await rs.reads.mark_read("bob", "big", ReadTarget(up_to="big-1"))
    await rs.reads.mark_read("bob", "big", ReadTarget(messages=("big-3",)))
    await rs.unread.sync("bob")
    rounds.rounds = 0

    page = await rs.unread.sync("bob")

    assert rounds.rounds <= MOST
    assert {row.channel_id: row.unread for row in page.channels[:2]} == {"large": 4, "big": 1}
    assert (page.totals.unread, page.totals.channels) == (34, 31)


async def test_very_many_channels(rs: Readstate, rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = await rs.unread.sync("bob")
    monkeypatch.setattr(views, "MANY", 5)
    rounds.rounds = 0

    page = await rs.unread.sync("bob")

    assert rounds.rounds <= MOST
    assert (page.totals, page.channels, page.threads) == (by_name.totals, by_name.channels, by_name.threads)


async def test_a_message_between_the_overview_and_the_rows_of_very_many_channels(
    rs: Readstate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "MANY", 5)
    plain = views.ValkeyViews.view
    counts: list[int] = []

    async def view(self: views.ValkeyViews, user: str, which: Any, known: UnreadOverview | None = None) -> Any:
        if known is None or counts:
            return await plain(self, user, which, known)
        await say(rs, "c3", "late")
        found = await plain(self, user, which, known)
        assert found is not None
        counts.extend(one.ledger.count for one in found.user_rooms if one.channel_id == "c3" and one.ledger)
        return found

    monkeypatch.setattr(views.ValkeyViews, "view", view)

    page = await rs.unread.sync("bob")

    assert counts == [2]
    assert {one.channel_id: one.unread for one in page.channels}["c3"] == 2
    assert page.totals.unread == sum(one.unread for one in page.channels if not one.muted)
