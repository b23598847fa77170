"""One process per PostgreSQL in the embedded profile: who may write, who waits, and who writes no more."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import httpx
import pytest
from structlog.testing import capture_logs

from readstate import Readstate
from readstate.adapters.sql.postgres.engine import PostgresEngine
from readstate.adapters.sql.postgres.lease import Lease
from readstate.adapters.sql.postgres.store import PostgresStore
from readstate.adapters.sql.session import Session
from readstate.domain.errors import ConfigurationError, StorageUnavailable
from readstate.domain.events import read_event
from readstate.domain.model import Pointer
from readstate.stack import Postgres
from readstate.timings import SqlTimings

from ..conftest import JWT_SECRET, SERVICE_KEY, Chat, check_problem, eventually, in_process
from ..contract.postgres import command, database
from ..servers import Server
from .test_postgres_access import behind_pgbouncer, open_folder

__all__ = ["behind_pgbouncer", "open_folder"]

SHORT = 0.6
"""Seconds of a lease that a test waits for: that of a process that stands still."""
ALIVE = 6.0
"""Seconds of a lease that is renewed: it does not run out because the machine is busy."""
NOW = "extract(epoch FROM clock_timestamp()) * 1000"
A_MESSAGE = {"channel_id": "general", "sender_id": "alice", "id": "a-message"}
LONG = 600.0
"""A lease that nobody lives to see the end of."""


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with database() as url:
        yield url


class Process:
    """One process, as far as the database can tell."""

    def __init__(self, engine: PostgresEngine) -> None:
        self.engine = engine
        self.lease: Lease

    async def begin(self, owner: str, seconds: float = LONG) -> "Process":
        self.lease = await Lease.take(self.engine, owner, SqlTimings(lease=seconds))
        return self

    async def freeze(self) -> None:
        """It stands still: its lease is not renewed any more, and it does not know."""
        assert self.lease._renewing is not None
        self.lease._renewing.cancel()
        await asyncio.wait([self.lease._renewing])

    async def thaw(self) -> None:
        self.lease._renewing = asyncio.create_task(self.lease._keep_renewing())

    async def write(self, work: Any = None) -> Any:
        """Raise the counter of generations by one."""
        return await self.engine.write(work or (lambda session: session.value("next_generation", above=0)))

    async def merge(self, user: str, seq: int) -> None:
        await PostgresStore(self.engine, 100, SqlTimings()).merge([read_event(user, "c", Pointer(seq=seq), 1)])


@contextlib.asynccontextmanager
async def process(url: str) -> AsyncIterator[Process]:
    engine = await PostgresEngine.open(url, 5, SqlTimings())
    made = Process(engine)
    try:
        yield made
    finally:
        if hasattr(made, "lease"):
            await made.lease.release()
        await engine.close()


async def generation(url: str) -> object:
    return (await command("SELECT value FROM meta WHERE key = 'generation'", url))[0][0]


async def says(url: str, question: str) -> bool:
    return bool((await command(question, url))[0][0])


# ---------------------------------------------------------------- who may write


async def test_while_one_process_is_alive_a_second_one_is_refused_and_told_who_has_it(url: str) -> None:
    async with process(url) as first, process(url) as second:
        await first.begin("the first one", ALIVE)

        with capture_logs() as said, pytest.raises(ConfigurationError, match=r"the first one.*talk to that one"):
            await second.begin("the second one", ALIVE)

        assert [line["owner"] for line in said] == ["the first one"]
        assert await first.write() == await generation(url)


async def test_a_process_that_ended_cleanly_leaves_nobody_waiting(url: str) -> None:
    async with process(url) as first, process(url) as second:
        await first.begin("the first one")
        await first.lease.release()

        with capture_logs() as said:
            await second.begin("the second one")

        assert said == []
        assert await second.write() == await generation(url)


async def test_a_process_that_starts_while_another_one_ends_waits_for_its_end_only(url: str) -> None:
    async with process(url) as first, process(url) as second:
        await first.begin("the first one")
        with capture_logs() as said:

            async def waits() -> bool:
                return bool(said)

            starting = asyncio.create_task(second.begin("the second one"))
            await eventually(waits, "it says that it waits")

        await first.lease.release()

        await starting
        await second.write()


async def test_of_many_that_start_at_once_after_a_crash_one_gets_it(url: str) -> None:
    async with process(url) as crashed, contextlib.AsyncExitStack() as stack:
        await (await crashed.begin("the crashed one", SHORT)).freeze()
        heirs = [await stack.enter_async_context(process(url)) for _ in range(4)]

        found = await asyncio.gather(*(one.begin(f"heir {n}") for n, one in enumerate(heirs)), return_exceptions=True)

        assert sum(isinstance(one, Process) for one in found) == 1
        assert all(isinstance(one, Process | ConfigurationError) for one in found)


# ---------------------------------------------------------------- who writes no more


async def test_a_process_that_stood_still_too_long_changes_nothing_any_more(url: str) -> None:
    async with process(url) as paused, process(url) as heir:
        await (await paused.begin("the paused one", SHORT)).freeze()
        await heir.begin("the heir")
        before = await heir.write()

        with pytest.raises(StorageUnavailable, match="another process has taken it over"):
            await paused.write()

        assert await generation(url) == before
        await paused.thaw()
        with capture_logs() as said:
            await asyncio.wait_for(paused.lease.lost.wait(), 60)
            assert "writes no more" in said[-1]["event"]
        await paused.lease.release()
        assert await heir.write() == await generation(url)


async def test_a_process_that_stood_still_goes_on_if_nobody_took_over(url: str) -> None:
    async with process(url) as paused:
        await (await paused.begin("the paused one", SHORT)).freeze()
        await eventually(lambda: says(url, f"SELECT expires_at <= {NOW} FROM lease"), "the lease has expired")

        await paused.write()
        await paused.thaw()

        await eventually(lambda: says(url, f"SELECT expires_at > {NOW} FROM lease"), "it is renewed")
        assert not paused.lease.lost.is_set()


async def test_a_write_that_was_let_in_is_finished_before_another_process_takes_over(url: str) -> None:
    let_in, go_on = asyncio.Event(), asyncio.Event()

    async def slow(session: Session) -> None:
        let_in.set()
        await go_on.wait()
        await session.value("next_generation", above=0)

    async with process(url) as paused, process(url) as heir:
        await (await paused.begin("the paused one", SHORT)).freeze()
        writing = asyncio.create_task(paused.write(slow))
        await let_in.wait()
        taking = asyncio.create_task(heir.begin("the heir"))
        waits = "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        await eventually(lambda: says(url, waits), "the heir waits for the write")
        assert not taking.done()

        go_on.set()

        await writing
        await taking
        with pytest.raises(StorageUnavailable):
            await paused.write()


async def test_reads_of_a_process_that_stood_still_too_long_are_not_written(url: str) -> None:
    async with process(url) as paused, process(url) as heir:
        await (await paused.begin("the paused one", SHORT)).freeze()
        await paused.merge("bob", 1)
        await heir.begin("the heir")

        with pytest.raises(StorageUnavailable, match=r"another process has taken it over.*nothing was changed"):
            await paused.merge("bob", 2)

        assert await command("SELECT last_read_seq FROM read_receipts", url) == [(1,)]
        await heir.merge("bob", 3)
        assert await command("SELECT last_read_seq FROM read_receipts", url) == [(3,)]


async def test_reads_that_were_let_in_are_written_before_another_process_takes_over(url: str) -> None:
    async with process(url) as paused, process(url) as heir:
        await (await paused.begin("the paused one", SHORT)).freeze()
        await paused.merge("bob", 1)
        other = await asyncpg.connect(url)
        async with other.transaction():
            await other.execute("SELECT FROM read_receipts FOR UPDATE")
            reading = asyncio.create_task(paused.merge("bob", 2))
            waits = "SELECT count(*) > 0 FROM pg_locks WHERE locktype = '{}' AND NOT granted"
            await eventually(lambda: says(url, waits.format("transactionid")), "the read waits for the row")
            taking = asyncio.create_task(heir.begin("the heir"))
            await eventually(lambda: says(url, waits.format("advisory")), "the heir waits for the read")
            assert not taking.done()
        await other.close()

        await reading
        await taking
        assert await command("SELECT last_read_seq FROM read_receipts", url) == [(2,)]


async def test_a_clock_of_the_database_that_was_set_back_keeps_nobody_out_for_longer(url: str) -> None:
    async with process(url) as heir:
        await command("UPDATE lease SET owner = 'from the future', token = 7, expires_at = 9999999999999", url)

        with capture_logs() as said:
            await heir.begin("the heir", SHORT)

        assert said[0]["owner"] == "from the future"
        await heir.write()


async def test_the_lease_needs_no_session_of_its_own(behind_pgbouncer: str) -> None:
    async with process(behind_pgbouncer) as first, process(behind_pgbouncer) as second:
        await first.begin("the first one", ALIVE)
        await asyncio.gather(*(first.write() for _ in range(20)))
        with pytest.raises(ConfigurationError, match="the first one"):
            await second.begin("the second one", ALIVE)
        await first.freeze()
        await second.begin("the second one", ALIVE)

        refused = await asyncio.gather(*(first.write() for _ in range(20)), return_exceptions=True)

        assert {type(one) for one in refused} == {StorageUnavailable}
        await second.write()


# ---------------------------------------------------------------- the service


async def test_one_that_lost_its_database_answers_503_and_says_that_it_is_not_ready(url: str, tmp_path: Path) -> None:
    async with in_process(tmp_path / "a", database_url=url) as chat:
        await chat.open_channel("alice", "bob")
        await chat.send("alice", "m1")
        await command("UPDATE lease SET owner = 'somebody else', token = token + 1, expires_at = 9999999999999", url)

        check_problem(await chat.call("POST", "/v1/messages", A_MESSAGE), 503, "storage_unavailable")
        assert (await chat.call("POST", "/v1/users/bob/channels/general/read", {})).status_code == 503
        ready = await chat.call("GET", "/readyz")
        assert ready.status_code == 503
        assert "another process" in ready.json()["dependencies"]["database"]
    assert await command("SELECT count(*) FROM messages", url) == [(1,)]


async def test_a_program_that_has_it_inside_is_told(url: str, tmp_path: Path) -> None:
    async with Readstate.open(data_dir=tmp_path / "a", database_url=url) as rs:
        told = asyncio.create_task(rs.lost())
        await command("UPDATE lease SET token = token + 1, expires_at = 0", url)

        await asyncio.wait_for(told, 60)


async def test_an_outage_of_the_database_ends_nothing(tmp_path: Path) -> None:
    with Postgres(tmp_path / "postgres") as mortal:
        async with in_process(tmp_path / "data", database_url=mortal.url) as chat:
            await chat.open_channel("alice", "bob")
            mortal.kill()
            check_problem(await chat.call("POST", "/v1/messages", A_MESSAGE), 503, "storage_unavailable")
            await asyncio.to_thread(mortal.start)

            async def taken() -> bool:
                return (await chat.call("POST", "/v1/messages", A_MESSAGE)).status_code == 202

            await eventually(taken, "messages are taken again")
            assert await chat.count("bob") == 1
            assert (await chat.ask("GET", "/readyz"))["dependencies"] == {"database": "ok"}


def server(tmp_path: Path, name: str, url: str) -> Server:
    return Server(tmp_path / name, database_url=url, service_keys=SERVICE_KEY, jwt_secret=JWT_SECRET)


def said(one: Server, words: str) -> bool:
    return any(words in line for line in one.log)


def post(one: Server, id_: str) -> int:
    body = {"channel_id": "general", "sender_id": "alice", "id": id_}
    headers = {"authorization": f"Bearer {SERVICE_KEY}"}
    try:
        return httpx.post(f"{one.url}/v1/messages", json=body, headers=headers, timeout=30).status_code
    except httpx.TransportError:
        return 0


async def prepare(one: Server) -> None:
    async with httpx.AsyncClient(base_url=one.url, timeout=30) as http:
        chat = Chat(http)
        await chat.open_channel("alice", "bob")
        await chat.send("alice", "m1")


async def test_after_a_kill_the_next_process_waits_says_so_and_goes_on(url: str, tmp_path: Path) -> None:
    killed, heir = server(tmp_path, "a", url), server(tmp_path, "b", url)
    with contextlib.closing(killed), contextlib.closing(heir):
        killed.start()
        await prepare(killed)
        killed.kill()

        heir.start()

        assert said(heir, "waiting until it expires")
        assert post(heir, "m1") == 202
        assert post(heir, "m2") == 202
        assert heir.stop() == 0
    assert await command("SELECT id, seq FROM messages ORDER BY seq", url) == [("m1", 1), ("m2", 2)]


async def test_a_paused_process_that_comes_back_ends_by_itself(url: str, tmp_path: Path) -> None:
    paused, heir = server(tmp_path, "a", url), server(tmp_path, "b", url)
    with contextlib.closing(paused), contextlib.closing(heir):
        paused.start()
        await prepare(paused)
        os.kill(paused.pid, signal.SIGSTOP)
        heir.start()
        assert post(heir, "m2") == 202

        os.kill(paused.pid, signal.SIGCONT)

        assert post(paused, "m3") != 202
        assert paused.wait_for_exit() == 1
        assert said(paused, "another process has taken the database over: this one writes no more")
        assert post(heir, "m4") == 202
        assert heir.stop() == 0
    assert await command("SELECT id, seq FROM messages ORDER BY seq", url) == [("m1", 1), ("m2", 2), ("m4", 3)]


async def test_two_services_on_one_database_are_one_too_many(url: str, tmp_path: Path) -> None:
    first, second = server(tmp_path, "a", url), server(tmp_path, "b", url)
    with contextlib.closing(first), contextlib.closing(second):
        first.start()
        second.launch()

        assert second.wait_for_exit() == 1
        assert said(second, "another process has the database: process")
        assert said(second, str(first.pid))
        assert first.stop() == 0

        second.log.clear()
        second.start()
        assert not said(second, "waiting")
