"""The embedded profile over servers: PostgreSQL as its store, Valkey for its hot state, alone and together."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from readstate import Readstate
from readstate.adapters.sql.files import migrations
from readstate.domain.errors import ConfigurationError, StorageUnavailable
from readstate.stack import Valkey, ValkeyCluster
from tests.cli.test_cli import Shell

from ..conftest import Chat, check_problem, eventually, in_process
from ..contract.postgres import command, database, server
from ..servers import serving

NEWEST = max(migrations("postgres"))


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("wiring") / "valkey") as valkey:
        yield valkey


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    with ValkeyCluster(tmp_path_factory.mktemp("wiring") / "cluster") as cluster:
        yield cluster


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with database() as url:
        yield url


@pytest.fixture
async def empty() -> AsyncIterator[str]:
    async with database(empty=True) as url:
        yield url


KINDS = ["postgres", "valkey", "postgres+valkey", "postgres+cluster"]


@pytest.fixture(params=KINDS)
async def servers(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> dict[str, Any]:
    """The settings of a service that uses servers."""
    settings: dict[str, Any] = {"key_prefix": f"{tmp_path.name[-20:]}:"}
    if "postgres" in request.param:
        settings["database_url"] = url
    if "valkey" in request.param or "cluster" in request.param:
        settings["hot_url"] = request.getfixturevalue(request.param.rpartition("+")[2]).url
    return settings


# ---------------------------------------------------------------- a day, and a restart


async def a_day(chat: Chat) -> None:
    await chat.open_channel("alice", "bob", "carol")
    await chat.open_channel("alice", "bob", channel="quiet")
    await chat.send("alice", "m1", "m2", "m3", "m4")
    await chat.send("carol", "m5", mentions=["bob"])
    await chat.send("alice", "q1", channel="quiet")
    await chat.read("bob", up_to="m1")
    await chat.read("bob", messages=["m3"])
    await chat.delete("m4")
    await chat.reply("carol", "m1", "r1")
    await chat.read("carol")
    await chat.mark_unread("carol", "m2")
    await chat.prefer("bob", "quiet", muted=True)


async def evening(chat: Chat) -> dict[str, Any]:
    """What bob, carol and alice see."""
    return {
        "bob": await chat.count("bob"),
        "carol": await chat.count("carol"),
        "totals": await chat.totals("bob"),
        "waiting": await chat.waiting("bob"),
        "inbox": await chat.conversations("bob"),
        "badge": await chat.badge("bob"),
        "threads": await chat.unread_replies("alice"),
        "seen": await chat.seen_by("m1"),
        "receipts": await chat.receipts(),
    }


async def test_a_day_is_the_same_with_every_kind_of_server(servers: dict[str, Any], tmp_path: Path) -> None:
    async with in_process(tmp_path / "plain") as chat:
        await a_day(chat)
        expected = await evening(chat)
    assert (expected["bob"], expected["carol"], expected["waiting"]) == (2, 2, ["q1", "m5", "m2"])

    async with in_process(tmp_path / "servers", **servers) as chat:
        await a_day(chat)
        assert await evening(chat) == expected
        await chat.evict()
        assert await evening(chat) == expected
    async with in_process(tmp_path / "servers", **servers) as chat:
        assert await evening(chat) == expected
        await chat.read("bob")
        assert await chat.count("bob") == 0


async def test_readiness_names_every_server(servers: dict[str, Any], tmp_path: Path) -> None:
    expected = {"database": "ok"} | ({"hot_store": "ok"} if "hot_url" in servers else {})

    async with in_process(tmp_path, **servers) as chat:
        assert (await chat.ask("GET", "/readyz"))["dependencies"] == expected


async def test_a_hot_store_that_is_down_is_named_until_it_is_back(tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as mortal:
        async with in_process(tmp_path / "data", hot_url=mortal.url) as chat:
            await a_day(chat)
            before = await evening(chat)
            mortal.kill()

            problem = check_problem(await chat.call("GET", "/readyz"), 503, "unavailable")

            assert problem["dependencies"]["database"] == "ok"
            assert problem["dependencies"]["hot_store"] != "ok"
            await asyncio.to_thread(mortal.start)

            async def ready() -> bool:
                return (await chat.call("GET", "/readyz")).status_code == 200

            await eventually(ready, "the hot store is back")
            assert await evening(chat) == before


# ---------------------------------------------------------------- what cannot be opened


async def test_servers_that_are_not_there_are_told_before_anything_is_served(url: str, tmp_path: Path) -> None:
    password = url.removeprefix("postgresql://").split("@")[0].partition(":")[2]
    for wrong in (f"{url}_of_nobody", url.replace(password, "wrong-password")):
        with pytest.raises(ConfigurationError, match="DATABASE_URL does not lead to a usable database") as refused:
            await Readstate.open(data_dir=tmp_path, database_url=wrong)
        assert password not in refused.value.detail
        assert "wrong-password" not in refused.value.detail
    with pytest.raises(StorageUnavailable):
        await Readstate.open(data_dir=tmp_path, database_url="postgresql://u:p@127.0.0.1:1/x")


@pytest.mark.parametrize(
    ("library", "variable", "address", "words"),
    [
        ("asyncpg", "DATABASE_URL", "postgresql://h/x", ("serve", "--port", "0")),
        ("asyncpg", "DATABASE_URL", "postgresql://h/x", ("migrate",)),
        ("redis", "HOT_URL", "redis://h", ("serve", "--port", "0")),
    ],
)
def test_a_missing_library_is_told_with_how_to_get_it(
    tmp_path: Path, library: str, variable: str, address: str, words: tuple[str, ...]
) -> None:
    shell = Shell(tmp_path)
    done = shell.run_without(library, *words, **{f"READSTATE_{variable}": address})

    assert done.code == 1
    assert "pip install 'readstate[cluster]'" in done.err
    assert "Traceback" not in done.err


# ---------------------------------------------------------------- commands


@pytest.fixture
def shell(tmp_path: Path, url: str) -> Shell:
    shell = Shell(tmp_path)
    shell.environ["READSTATE_DATABASE_URL"] = url
    return shell


@pytest.fixture(params=["a service runs", "no service runs"])
def anywhere(request: pytest.FixtureRequest, shell: Shell, url: str) -> Iterator[Shell]:
    if request.param == "no service runs":
        yield shell
        return
    with serving(shell.data, database_url=url):
        yield shell


def test_commands_do_the_same_beside_a_service_and_alone(anywhere: Shell) -> None:
    anywhere.says("channel", "general", "--type", "group", "--member", "alice", "--member", "bob")
    anywhere.says("send", "general", "alice", "hello", "--id", "m1")
    assert anywhere.answers("unread", "bob")["totals"]["unread"] == 1
    assert anywhere.answers("read", "bob", "general")["unread"] == 0
    assert anywhere.answers("explain", "bob", "general")["agrees"] is True
    assert anywhere.answers("migrate")["to"] == NEWEST


def test_everything_moves_out_and_in_and_a_user_is_erased(anywhere: Shell) -> None:
    anywhere.says("channel", "general", "--type", "group", "--member", "alice", "--member", "bob")
    anywhere.says("send", "general", "alice", "hello", "--id", "m1")
    file = anywhere.directory / "chat.jsonl"

    assert anywhere.run("export", "--output", str(file)).code == 0

    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(records) > 3
    assert anywhere.answers("import", str(file))["refused_total"] == 0
    assert anywhere.run("erase", "bob", "--yes").code == 0
    assert anywhere.run("unread", "bob", "general").code == 1


def test_asking_an_empty_database_makes_no_tables(tmp_path: Path, empty: str) -> None:
    shell = Shell(tmp_path)
    variables = {"READSTATE_DATABASE_URL": empty}
    password = empty.removeprefix("postgresql://").split("@")[0].partition(":")[2]

    refused = shell.refuses("unread", "bob", **variables)

    assert "there is no store in postgresql://readstate:***@" in refused
    assert password not in refused
    assert asyncio.run(command("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", empty)) == [(0,)]


def test_migrate_brings_the_database_up_to_date_and_says_from_where(tmp_path: Path, empty: str) -> None:
    shell = Shell(tmp_path)
    variables = {"READSTATE_DATABASE_URL": empty}

    assert shell.run("migrate", "--check", **variables).code == 1
    assert shell.answers("migrate", **variables) == {"from": 0, "to": NEWEST, "applied": True}
    assert "up to date" in shell.says("migrate", "--check", **variables)


def test_serve_takes_what_the_stack_prints(tmp_path: Path, url: str, valkey: Valkey) -> None:
    address = valkey.url
    others = {"kafka_bootstrap": "127.0.0.1:1"}

    with serving(tmp_path / "data", database_url=url, hot_url=address, key_prefix="stack:", **others) as service:
        assert service.stop() == 0

    password = server().url.removeprefix("postgresql://").split("@")[0].partition(":")[2]
    assert not any(password in line for line in service.log)


def test_the_stack_is_offered(tmp_path: Path) -> None:
    assert "Real servers for development" in Shell(tmp_path).says("--help")
