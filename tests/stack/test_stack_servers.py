"""Real servers as tests use them: killed, paused, started again as they were, and gone with whoever started them."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest
from redis import Redis, RedisError
from redis.cluster import RedisCluster

from readstate.stack import Postgres, ServerFailed, SoftwareMissing, Valkey, ValkeyCluster, postgres, server, servers
from readstate.stack.ports import HOST, free_ports
from readstate.stack.processes import birth
from readstate.stack.server import Record
from tests.servers import DEADLINE, wait_until

LIBRARIES = [*Path("/usr/lib").glob("*-linux-gnu"), Path("/usr/lib64")]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="what root meets")


# ---------------------------------------------------------------- a block of servers


def test_the_servers_of_a_block_end_with_it_and_leave_nothing() -> None:
    with servers("valkey", "replica") as stack:
        pids, directory = [one.pid for one in stack.status()], stack.directory
        assert set(stack.env) == {"READSTATE_HOT_URL", "READSTATE_WRITE_REPLICA_URL"}
        assert Redis.from_url(stack.valkey.url).ping()

    assert [birth(pid) for pid in pids if pid is not None] == [None, None]
    assert not directory.exists()


def test_a_block_can_keep_its_data_for_another_one(tmp_path: Path) -> None:
    with servers("postgres", directory=tmp_path, keep=True) as stack:
        url = stack.postgres.url
        made = (stack.postgres.data / "PG_VERSION").stat().st_ino

    with servers("postgres", directory=tmp_path) as stack:
        assert stack.postgres.url == url
        assert (stack.postgres.data / "PG_VERSION").stat().st_ino == made

    assert list(tmp_path.iterdir()) == []


def test_servers_end_with_the_process_that_started_them_even_if_it_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from readstate.stack import servers\n"
        "with servers('valkey', directory=pathlib.Path(sys.argv[1])) as stack:\n"
        "    print(stack.valkey.record.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        assert birth(pid) is not None
        child.kill()

    wait_until(lambda: birth(pid) is None, "the server has followed")


def test_a_stack_never_takes_another_process_for_its_server(tmp_path: Path) -> None:
    """After a crash the system may give the number of a server to any process: here, to this one."""
    valkey = Valkey(tmp_path / "valkey", record=Record(ports=free_ports(1), pid=os.getpid(), born="another life"))

    assert not valkey.is_running
    valkey.kill()
    valkey.stop()


# ---------------------------------------------------------------- ports


def test_many_that_start_at_once_find_a_port_each(tmp_path: Path) -> None:
    group = [Valkey(tmp_path / str(number)) for number in range(8)]
    try:
        with ThreadPoolExecutor(len(group)) as pool:
            list(pool.map(Valkey.start, group))
        assert len({valkey.port for valkey in group}) == len(group)
        assert all(valkey.answers() for valkey in group)
    finally:
        for valkey in group:
            valkey.stop()


def test_a_port_that_is_snatched_before_the_server_has_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Valkey(tmp_path / "quicker") as quicker:
        offers = iter([[quicker.port], free_ports(1)])
        monkeypatch.setattr(server, "free_ports", lambda _: next(offers))
        with Valkey(tmp_path / "slower") as slower:
            assert slower.port != quicker.port
            assert slower.answers()
        assert quicker.answers()


def test_a_server_that_cannot_start_says_why_and_is_gone(tmp_path: Path) -> None:
    valkey = Valkey(tmp_path / "valkey", settings={"no-such-setting": "1"})

    with pytest.raises(ServerFailed, match=r"valkey ended during its start.*server.log"):
        valkey.start()

    assert not valkey.is_running


# ---------------------------------------------------------------- Valkey


@pytest.mark.parametrize(("persistent", "left"), [(True, b"42"), (False, None)])
def test_a_killed_valkey_starts_again_in_its_place(tmp_path: Path, persistent: bool, left: bytes | None) -> None:
    with Valkey(tmp_path / "valkey", persistent=persistent) as valkey:
        url = valkey.url
        with Redis.from_url(url) as client:
            client.set("kept", "42")
        valkey.kill()
        assert not valkey.is_running

        valkey.start()

        assert valkey.url == url
        with Redis.from_url(url) as client:
            assert client.get("kept") == left


def test_a_valkey_can_run_with_another_library(tmp_path: Path) -> None:
    library = next((found for folder in LIBRARIES for found in folder.glob("libz.so.1")), None)
    if library is None:
        pytest.skip("there is no library to try it with")

    with Valkey(tmp_path / "valkey", preload=library) as valkey:
        assert str(library.resolve()) in Path(f"/proc/{valkey.record.pid}/maps").read_text()
        assert valkey.ask("PING") == "PONG"


def test_a_paused_valkey_hangs_and_goes_on(tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as valkey, Redis.from_url(valkey.url) as client:
        assert client.ping()
        valkey.pause()
        with Redis.from_url(valkey.url, socket_timeout=0.2, retry=None) as impatient, pytest.raises(RedisError):
            impatient.ping()
        assert valkey.is_running

        valkey.resume()

        wait_until(valkey.answers, "it answers again")


def test_a_paused_server_can_be_stopped(tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as valkey:
        valkey.pause()

    assert not valkey.is_running


def test_a_replica_takes_the_place_of_a_killed_master(tmp_path: Path) -> None:
    with ValkeyCluster(tmp_path / "cluster", replicas=1) as cluster:
        url, (first, *others) = cluster.url, cluster.nodes
        with RedisCluster(host=HOST, port=others[0].port) as client:
            client.set("kept", "42")
            assert client.wait(1, 10_000, target_nodes=RedisCluster.PRIMARIES)
        first.kill()

        wait_until(lambda: all(n.info("cluster info")["cluster_state"] == "ok" for n in others[:2]), "it is whole")
        wait_until(lambda: [n.info("replication")["role"] for n in others].count("master") == 3, "three are masters")

        cluster.start()
        assert cluster.url == url
        assert cluster.is_whole()
        assert first.info("replication")["role"] == "slave", "it follows whoever took its place"
        with RedisCluster(host=HOST, port=others[0].port) as client:
            assert client.get("kept") == b"42"


# ---------------------------------------------------------------- PostgreSQL


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """In a directory that only its owner can enter, which may be root."""
    with servers("postgres", directory=tmp_path_factory.mktemp("private", numbered=True)) as stack:
        yield stack.postgres


async def test_what_postgres_has_committed_survives_a_kill(database: Postgres) -> None:
    url = database.url
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    await asyncio.to_thread(database.kill)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.fetchval("SELECT answer FROM kept")
    connection.terminate()

    await asyncio.to_thread(database.start)

    assert database.url == url
    connection = await asyncpg.connect(url)
    assert await connection.fetchval("SELECT answer FROM kept") == 42
    await connection.close()


async def test_a_paused_postgres_hangs_with_its_sessions(database: Postgres) -> None:
    connection = await asyncpg.connect(database.url)
    database.pause()
    answer = asyncio.create_task(connection.fetchval("SELECT 1"))
    assert not await asyncio.to_thread(database.answers)
    assert not answer.done()

    database.resume()

    assert await asyncio.wait_for(answer, DEADLINE) == 1
    await connection.close()


async def test_postgres_wants_its_password(database: Postgres) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(database.url, password="guessed")


def test_data_of_a_version_that_is_not_here_are_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "postgres"
    (home / "data").mkdir(parents=True)
    (home / "data" / "PG_VERSION").write_text("9\n")

    with pytest.raises(SoftwareMissing, match=r"written by PostgreSQL 9.*install 9"):
        Postgres(home).start()

    assert (home / "data" / "PG_VERSION").exists()


@as_root
def test_data_that_the_account_of_postgres_cannot_reach_any_more_are_left_alone(
    database: Postgres, tmp_path: Path
) -> None:
    version = tmp_path / "postgres" / "data" / "PG_VERSION"
    version.parent.mkdir(parents=True)
    shutil.copy(database.data / "PG_VERSION", version)

    with pytest.raises(ServerFailed, match=r"no longer has access to .*chmod o\+x"):
        Postgres(tmp_path / "postgres").start()

    assert version.exists()


@as_root
def test_root_gets_a_place_that_the_account_of_postgres_can_enter(database: Postgres) -> None:
    owner = database.data.stat().st_uid

    assert owner != 0
    assert database.home.is_symlink(), "its own directory is in one of root's alone"
    assert database.data.is_relative_to(database.home.resolve())


@as_root
def test_root_can_use_the_postgres_of_a_private_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of root may lie where only root can go; the programs then come along."""
    spec = find_spec(postgres.WHEEL)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    site = Path(next(iter(spec.submodule_search_locations))).parent
    private = tmp_path / "environment"
    private.mkdir(mode=0o700)
    for folder in (postgres.WHEEL, f"{postgres.WHEEL}.libs"):
        (private / folder).symlink_to(site / folder)
    monkeypatch.syspath_prepend(private)
    monkeypatch.setattr(postgres, "SYSTEM", tmp_path / "none")
    monkeypatch.setenv("PATH", "")

    with servers("postgres") as stack:
        assert stack.postgres.record.version.startswith("16")
        assert stack.postgres.answers()
        assert (stack.postgres.home / "software").exists()
