"""What the doctor finds in real servers: sound ones, badly set ones, and ones that are not there."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest
from msgspec.structs import replace

from readstate.adapters.sql.postgres.doctor import postgres
from readstate.adapters.sql.postgres.lease import open_leased
from readstate.adapters.valkey.doctor import server_finding, valkey
from readstate.findings import Finding, clock, encryption, latency
from readstate.profiles.doctor import examine_servers as servers_of
from readstate.settings import make_settings
from readstate.stack import Postgres, Valkey, ValkeyCluster
from readstate.timings import SqlTimings
from tests.cli.test_cli import Shell
from tests.postgres.test_postgres_access import behind_pgbouncer, open_folder

from ..contract.postgres import command, database, server

__all__ = ["behind_pgbouncer", "open_folder"]

Start = Callable[..., Valkey]


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with database() as url:
        yield url


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a Valkey with lines of its configuration file."""
    with contextlib.ExitStack() as stack:

        def make(name: str = "valkey", *, persistent: bool = True, **settings: str) -> Valkey:
            lines = {key.replace("_", "-"): value for key, value in settings.items()}
            return stack.enter_context(Valkey(tmp_path / name, persistent=persistent, settings=lines))

        yield make


async def hot_store(url: str) -> dict[str, Finding]:
    return by_check(await valkey("hot store", "hot_url", url))


async def durable(url: str, **settings: object) -> dict[str, Finding]:
    return by_check(await postgres(make_settings(database_url=url, **settings)))


def by_check(findings: Sequence[Finding]) -> dict[str, Finding]:
    """By their names. How fast servers answer says more of the machine than of them: that is taken as sound."""
    assert all(found.advice for found in findings if found.state != "ok"), "each fault says what to do"
    named: dict[str, Finding] = {}
    for found in findings:
        is_latency = found.check.endswith(" latency")
        assert is_latency or found.check not in named, findings
        named[found.check] = replace(found, state="ok") if is_latency else found
    return named


def states(findings: dict[str, Finding]) -> set[str]:
    return {found.state for found in findings.values()}


# ---------------------------------------------------------------- Valkey


async def test_a_sound_valkey_is_found_sound(start: Start) -> None:
    found = await hot_store(start().url)

    assert states(found) == {"ok"}
    aspects = ("persistence", "eviction", "memory", "clock", "latency", "encryption")
    assert list(found) == ["hot store", *(f"hot store {aspect}" for aspect in aspects)]
    assert "Valkey 9" in found["hot store"].detail


async def test_an_evicting_policy_is_warned_of_with_what_to_set(start: Start) -> None:
    found = (await hot_store(start(maxmemory="100mb", maxmemory_policy="allkeys-lru").url))["hot store eviction"]

    assert found.state == "warn"
    assert "allkeys-lru" in found.detail
    assert "CONFIG SET maxmemory-policy noeviction" in found.advice


async def test_a_server_that_keeps_nothing_is_told_from_one_that_does(start: Start) -> None:
    nothing = (await hot_store(start("nothing", persistent=False).url))["hot store persistence"]
    snapshots = (await hot_store(start("snapshots", persistent=False, save="900 1").url))["hot store persistence"]

    assert (nothing.state, snapshots.state) == ("ok", "ok")
    assert "none is needed" in nothing.detail
    assert "snapshots" in snapshots.detail


async def test_a_full_server_is_a_fault(start: Start) -> None:
    full = (await hot_store(start("full", maxmemory="1mb").url))["hot store memory"]
    roomy = (await hot_store(start("roomy", maxmemory="1gb").url))["hot store memory"]

    assert (full.state, roomy.state) == ("fail", "ok")
    assert "of 1024.0 MiB used" in roomy.detail
    assert "raise maxmemory" in full.advice


async def test_a_wrong_or_missing_password_is_told_and_not_shown(start: Start) -> None:
    locked = start()
    locked.ask("CONFIG", "SET", "requirepass", "right-password")
    at = locked.url.removeprefix("redis://")

    missing = (await hot_store(locked.url))["hot store"]
    wrong = (await hot_store(f"redis://:wrong-password@{at}"))["hot store"]
    right = await hot_store(f"redis://:right-password@{at}")

    for found in (missing, wrong):
        assert found.state == "fail"
        assert "correct user and password in hot_url" in found.advice
        assert "wrong-password" not in found.detail
    assert states(right) == {"ok"}
    assert "right-password" not in str(right)


async def test_a_server_that_is_down_hangs_or_speaks_something_else_is_one_clear_fault(start: Start) -> None:
    stopped = start()
    stopped.stop()
    [down] = (await hot_store(stopped.url)).values()
    hanging = start("hanging")
    hanging.pause()
    [hangs] = (await hot_store(hanging.url)).values()
    hanging.resume()
    [foreign] = (await hot_store(f"redis://127.0.0.1:{server().port}")).values()

    assert [found.state for found in (down, hangs, foreign)] == ["fail"] * 3
    assert "start it" in down.advice
    assert "hangs" in hangs.advice


async def test_a_replica_is_no_place_to_write(start: Start) -> None:
    master = start("master")
    replica = start("replica", replicaof=f"127.0.0.1 {master.port}")

    found = (await hot_store(replica.url))["hot store"]

    assert found.state == "fail"
    assert f"127.0.0.1:{master.port}" in found.advice


@pytest.mark.parametrize(
    ("info", "state"),
    [
        ({"redis_version": "6.2.14"}, "fail"),
        ({"redis_version": "7.0.0"}, "ok"),
        ({"redis_version": "8.0.1"}, "ok"),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.9"}, "fail"),
        ({"redis_version": "7.2.4", "valkey_version": "8.0.0-rc1"}, "ok"),
    ],
)
def test_versions_that_are_too_old_are_refused(info: dict[str, str], state: str) -> None:
    assert server_finding("hot store", "hot_url", "redis://h", info, in_cluster=False).state == state


# ---------------------------------------------------------------- Valkey Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    with ValkeyCluster(tmp_path_factory.mktemp("doctor") / "cluster", replicas=1) as cluster:
        yield cluster


async def test_a_cluster_with_replicas_is_sound(cluster: ValkeyCluster) -> None:
    found = await hot_store(cluster.url)

    assert states(found) == {"ok"}
    assert "3 masters have all 16384 slots, each with a replica" in found["hot store cluster"].detail
    assert found["hot store eviction"].detail == "6 servers: noeviction"


async def test_one_server_that_is_badly_set_is_named(cluster: ValkeyCluster) -> None:
    odd = cluster.nodes[1]
    odd.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
    try:
        found = (await hot_store(cluster.url))["hot store eviction"]
    finally:
        odd.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")

    assert found.state == "warn"
    assert found.detail.startswith(f"127.0.0.1:{odd.port}: allkeys-lfu")


async def test_a_url_of_the_wrong_kind_says_how_to_write_it(cluster: ValkeyCluster, start: Start) -> None:
    single = start()
    as_single = (await hot_store(f"redis://127.0.0.1:{cluster.nodes[0].port}"))["hot store"]
    as_cluster = (await hot_store(f"redis+cluster://127.0.0.1:{single.port}"))["hot store"]

    assert (as_single.state, as_cluster.state) == ("fail", "fail")
    assert "redis+cluster://" in as_single.advice
    assert "without +cluster" in as_cluster.advice


async def test_a_cluster_that_lost_slots_is_a_fault_and_a_lone_master_a_warning(tmp_path: Path) -> None:
    with ValkeyCluster(tmp_path / "cluster") as alone:
        before = (await hot_store(alone.url))["hot store cluster"]
        alone.nodes[0].ask("CLUSTER", "DELSLOTS", "0")
        after = await valkey("hot store", "hot_url", alone.url)
        port = alone.nodes[0].port
        alone.nodes[0].kill()
        dead = await valkey("hot store", "hot_url", alone.url)

    assert (before.state, "without a replica" in before.detail) == ("warn", True)
    [lost] = [found for found in after if found.check == "hot store cluster" and found.state == "fail"]
    assert "16383 of 16384 slots" in lost.detail
    assert (dead[0].check, dead[0].state) == ("hot store", "warn")
    assert f"127.0.0.1:{port}" in dead[0].detail


# ---------------------------------------------------------------- PostgreSQL


async def test_a_sound_database_is_found_sound(tmp_path: Path) -> None:
    with Postgres(tmp_path / "postgres") as sound:
        new = await durable(sound.url)
        store, lease = await open_leased(sound.url, 100, SqlTimings(), 2, "the one")
        used = await durable(sound.url)
        await lease.release()
        await store.close()

    aspects = ("lease", "durability", "timeouts", "clock", "latency", "encryption")
    expected = ["database", "database connections", "schema", *(f"database {aspect}" for aspect in aspects)]
    assert list(new) == expected
    assert states(new) == states(used) == {"ok"}
    assert new["schema"].detail == "made at the first start"
    assert used["schema"].detail.startswith("version ")
    assert "instance the one" in used["database lease"].detail


async def test_what_keeps_one_out_of_the_database_is_one_clear_fault(url: str) -> None:
    password = url.removeprefix("postgresql://").split("@")[0].partition(":")[2]
    [wrong_password] = (await durable(url.replace(password, "wrong-password"))).values()
    [wrong_name] = (await durable(f"{url}_of_nobody")).values()
    [nobody] = (await durable("postgresql://u:p@127.0.0.1:1/x")).values()
    [no_tls] = (await durable(f"{url}?sslmode=require")).values()
    [no_host] = (await durable("postgresql://u:p@nowhere.invalid/x")).values()

    found = [wrong_password, wrong_name, nobody, no_tls, no_host]
    assert [(one.check, one.state) for one in found] == [("database", "fail")] * 5
    assert "correct user and password" in wrong_password.advice
    assert "CREATE DATABASE" in wrong_name.advice
    assert "start it, or correct host and port" in nobody.advice
    assert "sslmode" in no_tls.advice
    assert not any(secret in str(found) for secret in (password, "wrong-password", "u:p@"))


async def test_a_database_that_hangs_is_given_up(tmp_path: Path) -> None:
    with Postgres(tmp_path / "postgres") as hanging:
        address = hanging.url
        hanging.pause()
        [found] = (await durable(address)).values()
        hanging.resume()

    assert found.state == "fail"
    assert "hangs" in found.advice


async def test_a_pool_that_never_fits_or_hardly_fits_is_told(tmp_path: Path) -> None:
    few = {"max_connections": "12", "superuser_reserved_connections": "3"}
    with Postgres(tmp_path / "postgres", settings=few) as small:
        never = (await durable(small.url, database_connections=10))["database connections"]
        fits = (await durable(small.url, database_connections=9))["database connections"]
        elsewhere = small.url.rpartition("/")[0] + "/postgres"
        others = [await asyncpg.connect(elsewhere) for _ in range(2)]
        hardly = (await durable(small.url, database_connections=9))["database connections"]
        others += [await asyncpg.connect(elsewhere) for _ in range(10)]
        [none_left] = (await durable(small.url)).values()
        for one in others:
            await one.close()

    assert [one.state for one in (never, fits, hardly, none_left)] == ["fail", "ok", "warn", "fail"]
    assert "database_connections to 9 or less" in never.advice
    assert "others have 2" in hardly.detail
    assert "raise max_connections" in none_left.advice


async def test_settings_of_the_server_that_hurt_are_told_with_what_to_do(url: str) -> None:
    name = url.rpartition("/")[2]
    await command(f"ALTER DATABASE {name} SET lock_timeout = '1s'")
    await command(f"ALTER DATABASE {name} SET synchronous_commit = off")

    found = await durable(url)

    assert found["database timeouts"].state == "warn"
    assert "lock_timeout = 1000 ms" in found["database timeouts"].detail
    assert 'ALTER ROLE "readstate" SET lock_timeout = 0' in found["database timeouts"].advice
    assert found["database durability"].state == "warn"
    assert "synchronous_commit = off" in found["database durability"].detail


async def test_a_schema_that_is_behind_ahead_or_may_not_be_made_is_told(url: str) -> None:
    await command("DELETE FROM schema_migrations WHERE number > 1", url)
    behind = (await durable(url))["schema"]
    await command("INSERT INTO schema_migrations (number) VALUES (99)", url)
    ahead = (await durable(url))["schema"]
    async with database(empty=True) as empty:
        await command("DROP ROLE IF EXISTS guest", empty)
        await command("CREATE ROLE guest LOGIN PASSWORD 'guest'", empty)
        await command("REVOKE CREATE ON SCHEMA public FROM PUBLIC", empty)
        guest = (await durable(empty.replace(empty.partition("@")[0], "postgresql://guest:guest")))["schema"]
        await command("DROP ROLE guest", empty)

    assert [one.state for one in (behind, ahead, guest)] == ["warn", "fail", "fail"]
    assert "readstate migrate" in behind.advice
    assert "newer Readstate" in ahead.detail
    assert "GRANT CREATE" in guest.advice


async def test_a_pooler_is_noticed_and_its_limits_are_its_own(behind_pgbouncer: str) -> None:
    found = await durable(behind_pgbouncer)

    assert "behind a pooler" in found["database"].detail
    assert "pooler" in found["database connections"].detail
    assert {found[check].state for check in ("database", "schema", "database connections")} == {"ok"}


# ---------------------------------------------------------------- what no server here can show


def test_clocks_are_compared_with_the_way_taken_into_account() -> None:
    assert clock("c", 1_000, 900, 1_100).state == "ok"
    assert clock("c", 3_000, 0, 4_000).state == "ok"
    behind, ahead = clock("c", 0, 2_000, 2_010), clock("c", 5_000, 0, 10)
    assert (behind.state, ahead.state) == ("warn", "warn")
    assert "2.0 s behind" in behind.detail
    assert "5.0 s ahead of" in ahead.detail
    assert "NTP" in ahead.advice


def test_latency_is_the_middle_of_a_few() -> None:
    assert latency("l", [0.1, 90, 0.2], 5).state == "ok"
    assert latency("l", [20, 0.1, 30], 5).state == "warn"


@pytest.mark.parametrize(
    ("url", "encrypted", "state"),
    [
        ("redis://127.0.0.1:1", False, "ok"),
        ("redis://[::1]:1", False, "ok"),
        ("postgresql://u:p@localhost/x", False, "ok"),
        ("postgresql:///x?host=/run/postgresql", False, "ok"),
        ("redis+cluster://localhost:1,10.0.0.7:1", False, "warn"),
        ("postgresql://u:p@db.example/x", False, "warn"),
        ("postgresql://u:p@db.example/x", True, "ok"),
    ],
)
def test_what_leaves_the_machine_should_be_encrypted(url: str, encrypted: bool, state: str) -> None:
    assert encryption("e", url, encrypted, "use TLS").state == state


# ---------------------------------------------------------------- the command


def test_servers_that_this_profile_does_not_use_are_looked_at_too(start: Start) -> None:
    brokers = (f"127.0.0.1:{start().port}", "127.0.0.1:1")

    found = list(servers_of(make_settings(kafka_bootstrap=brokers)))

    assert [one.state for one in found if one.check == "kafka"] == ["ok", "warn"]


def test_the_command_tells_all_of_it_without_passwords(start: Start, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    hot = start()
    hot.ask("CONFIG", "SET", "requirepass", "secret-of-valkey")
    url = server().url
    variables = {"READSTATE_DATABASE_URL": url, "READSTATE_HOT_URL": hot.url.replace("//", "//:secret-of-valkey@")}

    sound = shell.run("doctor", **variables)
    hot.stop()
    faulty = shell.run("doctor", "--json", **variables)

    assert (sound.code, sound.err, faulty.code, faulty.err) == (0, "", 1, "")
    assert "hot store eviction" in sound.out
    password = url.removeprefix("postgresql://").split("@")[0].partition(":")[2]
    assert not any(secret in sound.out + faulty.out for secret in (password, "secret-of-valkey"))


def test_a_missing_library_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("readstate.adapters.sql.postgres.doctor", "readstate.adapters.valkey.doctor"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("asyncpg", "redis", "redis.asyncio"):
        monkeypatch.setitem(sys.modules, name, None)

    found = list(servers_of(make_settings(database_url="postgresql://h/x", hot_url="redis://h")))

    assert [one.state for one in found] == ["fail", "fail"]
    assert all("readstate[cluster]" in one.advice for one in found)
