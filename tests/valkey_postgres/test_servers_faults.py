"""Valkey and PostgreSQL fail under load: every answer is right or says to come again; nothing acknowledged is lost."""

import asyncio
import itertools
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from readstate import Readstate
from readstate.adapters.valkey import ValkeyClient
from readstate.adapters.valkey.commands import ask
from readstate.api import ReadTarget
from readstate.gateway import asgi_app
from readstate.stack import Postgres, Valkey
from tests.conftest import SERVICE_KEY, WAIT, Chat, check_problem, eventually, of
from tests.contract import postgres, valkey
from tests.effort import long

from .on_servers import ASKS_AGAIN, BIG, SMALL, Held, clients, count, hot, impatient, message, on_servers, two_channels

EMPTIED_AGAIN = {"unavailable", "hot_store_unavailable"}
"""Why something is refused while the hot store is emptied again and again: the user was lost between a read and its log
too often; or all patience went by, since lost slots get a new number at most once a second."""


class AtAnyMoment:
    """Before or after any command to the servers something happens, by a dice."""

    def __init__(self, rs: Readstate, happens: Callable[[], Awaitable[object]], share: float, seed: int) -> None:
        self._happens = happens
        self._share = share
        self._dice = random.Random(seed)
        self.times = 0
        store = hot(rs)
        self._watch(store._client, "run")
        self._watch(store._generation, "check")
        for name in ("apply", "merge", "load_user", "load_ledgers", "load_channels", "load_timeline"):
            self._watch(rs.durable, name)

    def stop(self) -> None:
        """Nothing happens any more."""
        self._share = 0

    def _watch(self, thing: Any, name: str) -> None:
        call = getattr(thing, name)

        async def watched(*args: Any) -> Any:
            await self._perhaps()
            answer = await call(*args)
            await self._perhaps()
            return answer

        setattr(thing, name, watched)

    async def _perhaps(self) -> None:
        if self._dice.random() < self._share:
            self.times += 1
            await self._happens()


# ---------------------------------------------------------------- emptied


@pytest.mark.parametrize("seed", [0, *long([1])])
async def test_it_is_emptied_at_any_moment(tmp_path: Path, seed: int) -> None:
    async with on_servers(tmp_path, valkey.single().url) as rs:
        people = clients(rs, seed)
        await people.gather()
        outside = ValkeyClient(valkey.single().url, valkey.PATIENT)
        emptied = AtAnyMoment(rs, lambda: valkey.ask_all(outside, "FLUSHALL"), 0.005, seed)
        await people.act(200)
        emptied.stop()
        await outside.close()
        assert emptied.times > 5
        await people.check_after_reloading()
        assert people.refusals.keys() <= EMPTIED_AGAIN


@pytest.mark.parametrize("whole", [True, False], ids=["all", "one master"])
async def test_a_cluster_is_emptied_at_any_moment(tmp_path: Path, whole: bool) -> None:
    async with on_servers(tmp_path, valkey.cluster().url) as rs:
        people = clients(rs, 7)
        await people.gather()
        outside = ValkeyClient(valkey.cluster().url, valkey.PATIENT)
        one_by_one = itertools.cycle((await outside.masters()).values())
        empty = (lambda: valkey.ask_all(outside, "FLUSHALL")) if whole else (lambda: ask(next(one_by_one), "FLUSHALL"))
        emptied = AtAnyMoment(rs, empty, 0.004, 7)
        await people.act(120)
        emptied.stop()
        await outside.close()
        assert emptied.times > 3
        await people.check_after_reloading()
        assert people.refusals.keys() <= EMPTIED_AGAIN


async def test_it_is_emptied_between_a_read_and_its_log(tmp_path: Path) -> None:
    """Reads of a ledger and of a timeline; somebody looks, and so loads what was before, while they wait."""
    async with on_servers(tmp_path, valkey.single().url) as rs:
        await two_channels(rs)
        for room in (SMALL, BIG):
            await rs.messages.send([message("alice", f"m{n}", room) for n in range(1, 5)])
            assert await count(rs, "bob", room) == 4
            merges = Held(rs.durable, "merge")
            steps = [
                rs.reads.mark_read("bob", room, ReadTarget(up_to="m1")),
                rs.reads.mark_read("bob", room, ReadTarget(messages=("m3",))),
            ]
            reading = asyncio.gather(*steps)
            await merges.reached()
            valkey.single().ask("FLUSHALL")
            assert (await rs.unread.of_channel("bob", room)).unread == 4
            merges.let_go()
            await reading
            assert await count(rs, "bob", room) == 2


# ---------------------------------------------------------------- killed and started again


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A Valkey that begins empty with every start."""
    with Valkey(tmp_path_factory.mktemp("faults") / "forgetful", persistent=False) as server:
        yield server


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A Valkey that keeps its data."""
    with Valkey(tmp_path_factory.mktemp("faults") / "lasting", persistent=True) as server:
        yield server


@pytest.fixture(params=["forgetful", "lasting"])
async def mortal(request: pytest.FixtureRequest) -> Valkey:
    server: Valkey = request.getfixturevalue(request.param)
    server.resume()
    return await asyncio.to_thread(server.start)


async def test_valkey_is_killed_and_started_again_under_load(mortal: Valkey, tmp_path: Path) -> None:
    async with on_servers(tmp_path, mortal.url) as rs:
        people = clients(rs, 11)
        await people.gather()

        async def dies_and_returns() -> None:
            await asyncio.to_thread(mortal.kill)
            await asyncio.to_thread(mortal.start)

        await people.act(200, [(50, dies_and_returns), (130, dies_and_returns)])
        await people.check_after_reloading()
        assert people.refusals.keys() <= {"hot_store_unavailable"}


async def test_callers_are_told_to_come_back_while_valkey_is_away(forgetful: Valkey, tmp_path: Path) -> None:
    await asyncio.to_thread(forgetful.start)
    async with (
        Readstate.open(data_dir=str(tmp_path), hot_url=forgetful.url, service_keys=(SERVICE_KEY,)) as rs,
        httpx.AsyncClient(transport=httpx.ASGITransport(asgi_app(rs)), base_url="http://test", headers=WAIT) as http,
    ):
        chat = Chat(http)
        await chat.open_channel("alice", "bob")
        await chat.send("alice", "m1")
        with impatient(rs):
            forgetful.kill()
            check_problem(await chat.call("GET", f"{of('bob')}/unread"), 503, "hot_store_unavailable")
            check_problem(await chat.call("POST", f"{of('bob')}/read", {}), 503, "hot_store_unavailable")
            sending = {"channel_id": "general", "sender_id": "alice", "id": "m2"}
            check_problem(await chat.call("POST", "/v1/messages", sending), 503, "hot_store_unavailable")
            reading = {"reads": [{"user_id": "bob", "channel_id": "general"}]}
            check_problem(await chat.call("POST", "/v1/reads", reading), 503, "hot_store_unavailable")
        await asyncio.to_thread(forgetful.start)
        assert await chat.count("bob") == 1
        await chat.send("alice", "m2")
        assert await chat.count("bob") == 2


async def test_valkey_comes_back_with_what_it_held_long_ago(lasting: Valkey, tmp_path: Path) -> None:
    """The file is that of an hour before, its marker as good as new: only the run tells."""
    await asyncio.to_thread(lasting.start)
    async with on_servers(tmp_path / "service", lasting.url) as rs:
        people = clients(rs, 12)
        await people.gather()
        await people.act(80)
        await people.check()

        async def is_written() -> bool:
            return lasting.info("persistence")["aof_pending_bio_fsync"] == "0"

        await eventually(is_written, "the file is written")
        shutil.copytree(lasting.data / "appendonlydir", tmp_path / "then")
        await people.act(80)

        async def goes_back() -> None:
            await asyncio.to_thread(lasting.kill)
            shutil.rmtree(lasting.data / "appendonlydir")
            shutil.copytree(tmp_path / "then", lasting.data / "appendonlydir")
            await asyncio.to_thread(lasting.start)

        await people.act(80, [(10, goes_back)])
        await people.check_after_reloading()
        await goes_back()
        await people.check_after_reloading()


# ---------------------------------------------------------------- hanging


async def test_valkey_hangs_for_longer_than_anybody_waits(
    forgetful: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on with what it was told before, though whoever told it has gone."""
    await asyncio.to_thread(forgetful.start)
    async with on_servers(tmp_path, forgetful.url, timings=ASKS_AGAIN) as rs:
        people = clients(rs, 13)
        await people.gather()

        async def hangs() -> None:
            refused = people.refusals.total()

            async def are_refused() -> bool:
                return people.refusals.total() > refused + 5

            with impatient(rs):
                forgetful.pause()
                await eventually(are_refused, "clients are refused")
                forgetful.resume()

        await people.act(160, [(40, hangs), (100, hangs)])
        await people.check_after_reloading()
        assert people.refusals.keys() == {"hot_store_unavailable"}


async def test_valkey_has_no_memory_left_for_a_time(forgetful: Valkey, tmp_path: Path) -> None:
    await asyncio.to_thread(forgetful.start)
    async with on_servers(tmp_path, forgetful.url) as rs:
        people = clients(rs, 16)
        await people.gather()

        async def is_full() -> None:
            refused = people.refusals.total()
            forgetful.ask("CONFIG", "SET", "maxmemory", "1")

            async def are_refused() -> bool:
                return people.refusals.total() > refused + 5

            await eventually(are_refused, "clients are refused")
            forgetful.ask("CONFIG", "SET", "maxmemory", "0")

        await people.act(120, [(40, is_full)])
        await people.check_after_reloading()
        assert people.refusals.keys() == {"hot_store_unavailable"}


# ---------------------------------------------------------------- PostgreSQL


async def test_postgres_is_killed_and_started_again_under_load(tmp_path: Path) -> None:
    with Postgres(tmp_path / "postgres", settings=postgres.HASTY) as server:
        async with on_servers(tmp_path / "service", valkey.single().url, server.url) as rs:
            people = clients(rs, 14)
            await people.gather()

            async def dies_and_returns() -> None:
                refused = people.refusals.total()
                await asyncio.to_thread(server.kill)

                async def are_refused() -> bool:
                    return people.refusals.total() > refused

                await eventually(are_refused, "clients are refused")
                await asyncio.to_thread(server.start)

            await people.act(200, [(50, dies_and_returns), (130, dies_and_returns)])
            await people.check_after_reloading()
            assert people.refusals.keys() == {"storage_unavailable"}


async def test_sessions_that_postgres_ends_under_load(tmp_path: Path) -> None:
    """As an administrator does, or a pooler that is started again."""
    async with postgres.database() as url, on_servers(tmp_path, valkey.single().url, url) as rs:
        people = clients(rs, 15)
        await people.gather()
        name = url.rpartition("/")[2]
        end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        await people.act(200, [(n, lambda: postgres.command(end)) for n in range(20, 180, 10)])
        await people.check_after_reloading()
        assert people.refusals.keys() <= {"storage_unavailable"}
