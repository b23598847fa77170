"""Erasing one user drops what the hot state has of that user, and nothing of anybody else."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from readstate import Readstate
from readstate.api import ChangeMembers, PutChannel, PutPreferences, ReadTarget
from readstate.telemetry import LOADS
from tests.contract import valkey

from .on_servers import message

PEOPLE = ("alice", "bob", "carol")
OTHERS = ["alice", "carol"]
ROOMS = ("pair", "group", "large")
HOT = {"memory": None, "valkey": valkey.single, "valkey cluster": valkey.cluster}


@pytest.fixture(params=HOT)
async def rs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Readstate]:
    """Bob has a direct channel with alice, and is in a small and a large one with everybody."""
    server = HOT[request.param]
    url = "" if server is None else server().url
    settings: dict[str, Any] = {"fanout_max_members": 3, "key_prefix": f"{secrets.token_hex(6)}:"}
    async with Readstate.open(data_dir=str(tmp_path), hot_url=url, **settings) as rs:
        await rs.channels.put("pair", PutChannel(type="direct", members=("alice", "bob")))
        await rs.channels.put("group", PutChannel(type="group", members=PEOPLE))
        await rs.channels.put("large", PutChannel(type="channel", members=(*PEOPLE, "dave", "erin")))
        for room in ROOMS:
            said = [message(sender, f"{sender}{n}", room) for sender in ("alice", "bob") for n in (1, 2)]
            await rs.messages.send(said)
        for user in PEOPLE:
            await rs.unread.totals([user])
            await rs.badge.get(user)
        yield rs


def loads(kind: str) -> Any:
    return LOADS.labels(kind)._value.get()


async def counts(rs: Readstate, user: str) -> tuple[int, int, bool]:
    totals = (await rs.unread.totals([user]))[user]
    return totals.unread, totals.channels, totals.exact


async def test_nobody_else_is_loaded_again(rs: Readstate) -> None:
    await rs.reads.mark_read("carol", "group", ReadTarget(up_to_seq=1))
    await rs.preferences.put("carol", "large", PutPreferences(pinned=True))
    before = [await counts(rs, user) for user in OTHERS]
    users, ledgers = loads("user"), loads("ledger")

    await rs.transfer.erase_user("bob")

    assert None not in await rs.hot.users.changes(OTHERS)
    assert [await counts(rs, user) for user in OTHERS] == before
    assert (loads("user"), loads("ledger")) == (users, ledgers)


async def test_nothing_of_the_erased_user_is_left(rs: Readstate) -> None:
    await rs.reads.mark_read("bob", "group", ReadTarget(up_to_seq=1))

    await rs.transfer.erase_user("bob")

    assert await rs.hot.users.changes(["bob"]) == [None]
    assert await rs.hot.badges.count("bob") is None
    assert (await rs.unread.totals(["bob"]))["bob"].unread == 0
    for room in ROOMS:
        assert "bob" not in {receipt.user_id for receipt in (await rs.receipts.of_channel(room)).receipts}
        assert not await rs.is_member("bob", room)
    [row] = [row for row in (await rs.inbox.page("alice")).conversations if row.channel_id == "pair"]
    assert row.peer_id is None
    assert (await rs.channels.get("group")).member_count == 2
    await rs.channels.change_members("group", ChangeMembers(add=("bob",), history="unread"))
    assert (await rs.unread.of_channel("bob", "group")).last_read.seq == 0


async def test_who_is_left_in_a_direct_channel_is_told(rs: Readstate) -> None:
    since = (await rs.unread.sync("alice")).sync

    await rs.transfer.erase_user("bob")

    assert "pair" in {row.channel_id for row in (await rs.unread.sync("alice", since=since)).channels}
