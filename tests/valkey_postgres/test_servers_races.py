"""Loads, writers and readers in orders that are rare and possible, over Valkey and PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from readstate import Readstate
from readstate.api import MarkUnread, ReadTarget
from readstate.domain.errors import StorageUnavailable
from readstate.stack import Valkey
from tests.contract import postgres
from tests.postgres.test_postgres_outages import Cut, Wire

from .on_servers import ASKS_AGAIN, SMALL, Held, count, impatient, message, on_servers, two_channels


@pytest.fixture(scope="module")
def own_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("races") / "valkey", persistent=False) as server:
        yield server


@pytest.fixture
async def rs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_valkey: Valkey) -> AsyncIterator[Readstate]:
    async with on_servers(tmp_path, own_valkey.url, timings=ASKS_AGAIN) as rs:
        await two_channels(rs)
        yield rs
    own_valkey.resume()


async def test_a_load_does_not_outlive_what_the_hot_store_was_not_told(rs: Readstate, own_valkey: Valkey) -> None:
    """A loader has read that bob has nothing unread; a message comes that the hot store does not learn of."""
    assert await count(rs, "alice") == 0
    loads = Held(rs.durable, "load_user", with_answer=True)
    look = asyncio.create_task(rs.unread.of_channel("bob", SMALL))
    await loads.reached()
    writes = Held(rs.durable, "apply", with_answer=True)
    sending = asyncio.create_task(rs.messages.send([message("alice", "m1")]))
    await writes.reached()
    with impatient(rs):
        own_valkey.pause()
        writes.let_go()
        [sent] = await sending
        assert sent.status == "accepted"
        own_valkey.resume()

    loads.let_go()
    assert (await look).unread == 1
    assert await count(rs, "bob") == 1


async def test_connections_that_the_server_closes_cost_no_message(rs: Readstate, own_valkey: Valkey) -> None:
    assert await count(rs, "bob") == 0
    for n in range(3):
        own_valkey.ask("CLIENT", "KILL", "TYPE", "normal")
        await rs.messages.send([message("alice", f"m{n}")])
        assert await count(rs, "bob") == n + 1
        own_valkey.ask("CLIENT", "KILL", "TYPE", "normal")
        await rs.reads.mark_read("bob", SMALL, ReadTarget(messages=(f"m{n}",)))
        assert await count(rs, "bob") == n
        await rs.reads.mark_unread("bob", SMALL, MarkUnread(from_="m0"))


@asynccontextmanager
async def over_wire(directory: Path, hot_url: str) -> AsyncIterator[tuple[Readstate, Wire]]:
    """The way to the database can be cut."""
    async with Wire(postgres.server().port) as wire, postgres.database() as url:
        before, _, after = url.rpartition(str(postgres.server().port))
        async with on_servers(directory, hot_url, f"{before}{wire.port}{after}?sslmode=disable") as rs:
            await two_channels(rs)
            for user in ("alice", "bob"):
                assert await count(rs, user) == 0
            yield rs, wire


@pytest.fixture(params=["valkey", "memory"])
def hot_url(request: pytest.FixtureRequest, own_valkey: Valkey) -> str:
    return own_valkey.url if request.param == "valkey" else ""


async def test_a_message_whose_commit_was_not_confirmed_is_counted_if_it_was_stored(
    tmp_path: Path, hot_url: str
) -> None:
    async with over_wire(tmp_path, hot_url) as (rs, wire):
        wire.cut = lambda data: Cut.BETWEEN if b"COMMIT\0" in data else None
        with pytest.raises(StorageUnavailable):
            await rs.messages.send([message("alice", "m1")])
        await rs.messages.send([message("alice", "m2")])
        assert await count(rs, "bob") == 2


async def test_a_load_does_not_outlive_a_commit_that_was_not_confirmed(tmp_path: Path, hot_url: str) -> None:
    async with over_wire(tmp_path, hot_url) as (rs, wire):
        await rs.evict()
        assert await count(rs, "alice") == 0
        loads = Held(rs.durable, "load_user", with_answer=True, only_first=True)
        look = asyncio.create_task(rs.unread.of_channel("bob", SMALL))
        await loads.reached()
        wire.cut = lambda data: Cut.BETWEEN if b"COMMIT\0" in data else None
        with pytest.raises(StorageUnavailable):
            await rs.messages.send([message("alice", "m1")])

        loads.let_go()
        await look
        assert await count(rs, "bob") == 1


async def test_a_ledger_that_was_looked_up_for_a_read_that_failed_is_not_used(rs: Readstate) -> None:
    await rs.messages.send([message("alice", f"m{n}") for n in range(1, 6)])
    await rs.evict()
    await rs.loader.view("bob", "all")
    merges, ledgers = Held(rs.durable, "merge"), Held(rs.durable, "load_ledgers", with_answer=True)
    read = asyncio.create_task(rs.reads.mark_read("bob", SMALL, ReadTarget(up_to="m3")))
    await merges.reached()
    look = asyncio.create_task(rs.unread.of_channel("bob", SMALL))
    await ledgers.reached()

    merges.fail(StorageUnavailable())
    with pytest.raises(StorageUnavailable):
        await read
    await rs.loader.view("bob", "all")
    ledgers.let_go()
    await look

    assert await count(rs, "bob") == 5


async def test_another_database_does_not_find_what_was_hot_of_the_one_before(
    tmp_path: Path, own_valkey: Valkey
) -> None:
    """One that was restored from a backup, or begun anew, has a lower generation than the markers say."""
    for messages in (3, 2, 1):
        async with postgres.database() as url:
            for _ in range(messages):
                async with on_servers(tmp_path, own_valkey.url, url, key_prefix="same:") as rs:
                    await two_channels(rs)
                    await rs.messages.send([message("alice", f"m{n}") for n in range(messages)])
                    assert await count(rs, "bob") == messages
                    await rs.evict()
                    assert await count(rs, "bob") == messages
