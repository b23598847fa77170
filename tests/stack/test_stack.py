"""`readstate stack`: real servers, started by the real command, seen by real clients."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg  # type: ignore[import-untyped]
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from redis import Redis
from redis.cluster import RedisCluster

from readstate.stack import Stack, Status
from readstate.stack.ports import HOST, is_free
from readstate.stack.processes import birth
from tests import commands
from tests.servers import DEADLINE, wait_until

CAN_RUN_KAFKA = bool(os.environ.get("CI") or (shutil.which("java") and shutil.which("mvn")))
MINUTES = 240.0
"""A busy machine takes long to start a JVM or to make a database."""


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


class Desk:
    """A directory in which a developer starts servers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers = directory / "readstate-stack"
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("READSTATE_")}

    def run(self, *words: str, **variables: str) -> Done:
        done = commands.run("stack", *words, env=self.environ | variables, cwd=self.directory, timeout=MINUTES)
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def up(self, names: str, *words: str) -> dict[str, str]:
        """Starts servers and returns the settings that are printed."""
        done = self.run("up", "--with", names, *words)
        assert done.code == 0, done
        return settings(done.out)

    def down(self, *words: str) -> str:
        done = self.run("down", *words)
        assert done.code == 0, done
        return done.out

    def status(self) -> dict[str, Status]:
        """Every process, by name."""
        return {one.name: one for one in Stack(self.servers).status()}

    def states(self) -> dict[str, str]:
        return {name: one.state for name, one in self.status().items()}

    def crash(self, name: str) -> None:
        """Kills a server behind the command's back."""
        pid = self.status()[name].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: birth(pid) is None, f"{name} is dead")


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    try:
        yield desk
    finally:
        Stack(desk.servers).down(wipe=True)


# ---------------------------------------------------------------- up, status, down


async def test_the_servers_go_on_after_the_command_and_answer_at_the_printed_addresses(desk: Desk) -> None:
    printed = desk.up("valkey,replica,postgres")

    assert set(printed) == {"READSTATE_HOT_URL", "READSTATE_WRITE_REPLICA_URL", "READSTATE_DATABASE_URL"}
    with Redis.from_url(printed["READSTATE_HOT_URL"]) as hot:
        hot.set("kept", "hot")
    with Redis.from_url(printed["READSTATE_WRITE_REPLICA_URL"]) as replica:
        assert replica.get("kept") is None, "the write replica is a server of its own"
    assert await ask(printed["READSTATE_DATABASE_URL"], "SELECT current_database()") == "readstate"
    assert desk.states() == {"valkey": "running", "replica": "running", "postgres": "running"}


def test_status_shows_people_where_everything_is_and_scripts_the_same(desk: Desk) -> None:
    printed = desk.up("valkey")

    shown, told = desk.run("status"), desk.run("status", "--json")

    assert (shown.code, told.code) == (0, 0)
    [valkey] = json.loads(told.out)
    assert (valkey["name"], valkey["state"]) == ("valkey", "running")
    assert printed["READSTATE_HOT_URL"] == f"redis://{HOST}:{valkey['ports'][0]}/0"
    for fact in ("valkey", "running", valkey["ports"][0], valkey["pid"], valkey["version"], desk.servers / "valkey"):
        assert str(fact) in shown.out


def test_up_twice_changes_nothing(desk: Desk) -> None:
    printed, before = desk.up("valkey,replica"), desk.status()

    assert desk.up("valkey,replica") == printed
    assert desk.status() == before


def test_up_without_names_starts_what_the_directory_has(desk: Desk) -> None:
    printed = desk.up("replica")
    desk.down()

    assert settings(desk.run("up").out) == printed


def test_a_server_is_added_to_those_that_run(desk: Desk) -> None:
    first = desk.up("valkey")
    pid = desk.status()["valkey"].pid

    both = desk.up("replica")

    assert both.items() > first.items()
    assert desk.status()["valkey"].pid == pid


async def test_addresses_and_the_database_survive_down_and_up_and_the_hot_store_begins_empty(desk: Desk) -> None:
    printed = desk.up("valkey,postgres")
    await ask(printed["READSTATE_DATABASE_URL"], "CREATE TABLE kept AS SELECT 42 AS answer")
    with Redis.from_url(printed["READSTATE_HOT_URL"]) as hot:
        hot.set("kept", "42")
        assert hot.config_get("appendonly") == {"appendonly": "no"}

    assert "stopped valkey, postgres" in desk.down()
    assert desk.states() == {"valkey": "stopped", "postgres": "stopped"}
    assert all(is_free(port) for one in desk.status().values() for port in one.ports)

    assert desk.up("valkey,postgres") == printed
    assert await ask(printed["READSTATE_DATABASE_URL"], "SELECT answer FROM kept") == 42
    with Redis.from_url(printed["READSTATE_HOT_URL"]) as hot:
        assert hot.get("kept") is None, "as docs/servers.md advises, Valkey keeps nothing on disk"


def test_what_died_is_shown_and_up_mends_it(desk: Desk) -> None:
    printed, before = desk.up("valkey,replica"), desk.status()
    desk.crash("valkey")

    shown = desk.run("status")
    assert shown.code == 1
    wait_until(lambda: desk.states() == {"valkey": "died", "replica": "running"}, "the replica answers")

    assert settings(desk.run("up").out) == printed
    assert desk.states() == {"valkey": "running", "replica": "running"}
    assert desk.status()["replica"] == before["replica"]


def test_wipe_removes_the_servers_and_nothing_else(desk: Desk) -> None:
    desk.up("valkey,postgres")
    data = [Path(one.data) for one in desk.status().values()]
    (desk.servers / "notes.txt").write_text("mine")

    desk.down("--wipe")

    assert not any(path.exists() for path in data)
    assert [path.name for path in desk.servers.iterdir()] == ["notes.txt"]


def test_the_directory_goes_with_the_last_of_its_data(desk: Desk) -> None:
    desk.up("valkey", "--dir", "elsewhere/servers")
    assert not desk.servers.exists()

    desk.down("--dir", "elsewhere/servers", "--wipe")

    assert list((desk.directory / "elsewhere").iterdir()) == []


def test_an_env_file_keeps_its_other_lines_and_is_for_its_owner(desk: Desk) -> None:
    file = desk.directory / ".env"
    file.write_text("# mine\nREADSTATE_PORT=9000\nREADSTATE_HOT_URL=redis://old:1/0\n")

    assert desk.up("postgres", "--env", ".env") == {}, "written, not printed"

    comment, port, database = file.read_text().splitlines()
    assert (comment, port) == ("# mine", "READSTATE_PORT=9000")
    assert database.startswith("READSTATE_DATABASE_URL=postgresql://readstate:")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_two_commands_at_once_start_each_server_once(desk: Desk) -> None:
    command = [sys.executable, "-m", "readstate", "stack", "up", "--with", "valkey"]
    options: dict[str, Any] = {"cwd": desk.directory, "env": desk.environ, "text": True}
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) for _ in range(2)]

    (one, _), (other, _) = [child.communicate(timeout=MINUTES) for child in both]

    assert one == other
    assert [child.returncode for child in both] == [0, 0]
    assert desk.states() == {"valkey": "running"}


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("mongodb", "there is no server mongodb: there are valkey, valkey-cluster, replica, postgres, kafka"),
        ("valkey,valkey-cluster", "are both hot stores"),
        (" , ", "--with names no server"),
    ],
)
def test_names_that_mean_nothing_are_refused_before_anything_starts(desk: Desk, names: str, says: str) -> None:
    done = desk.run("up", "--with", names)

    assert (done.code, done.out) == (1, "")
    assert says in done.err
    assert not desk.servers.exists()


def test_a_directory_without_servers_says_so(desk: Desk) -> None:
    asked, stopped = desk.run("status"), desk.run("down")

    assert asked.code == 1
    assert "readstate stack up" in asked.err
    assert stopped.code == 0
    assert "there are no servers" in stopped.out


def test_a_state_file_of_another_kind_is_refused(desk: Desk) -> None:
    desk.servers.mkdir()
    (desk.servers / "stack.json").write_text('{"names": ["tape"]}')
    try:
        done = desk.run("up")
        assert done.code == 1
        assert "stack.json is not what readstate stack wrote" in done.err
    finally:
        (desk.servers / "stack.json").unlink()


def test_a_port_that_another_program_took_meanwhile_is_named(desk: Desk) -> None:
    desk.up("valkey")
    [port] = desk.status()["valkey"].ports
    desk.down()
    with socket.create_server((HOST, port)):
        done = desk.run("up")

    assert done.code == 1
    assert f"cannot use port {port} again" in done.err
    assert desk.states() == {"valkey": "stopped"}


# ---------------------------------------------------------------- Cluster


def test_three_masters_share_all_slots(desk: Desk) -> None:
    url = desk.up("valkey-cluster")["READSTATE_HOT_URL"]

    nodes = url.removeprefix("redis+cluster://").split(",")
    assert len(nodes) == 3
    host, port = nodes[0].split(":")
    with RedisCluster(host=host, port=int(port)) as cluster:
        told = cluster.cluster_info(target_nodes=RedisCluster.ALL_NODES)
        assert {one["cluster_state"] for one in told.values()} == {"ok"}
        assert {one["cluster_slots_assigned"] for one in told.values()} == {"16384"}
        for number in range(100):
            cluster.set(f"key {number}", number)
        assert {node.port for node in cluster.get_primaries()} == {int(node.split(":")[1]) for node in nodes}

    desk.crash("valkey-cluster-2")
    assert desk.states()["valkey-cluster-2"] == "died"
    assert desk.up("valkey-cluster")["READSTATE_HOT_URL"] == url

    with RedisCluster(host=host, port=int(port)) as cluster:
        kept = [number for number in range(100) if cluster.get(f"key {number}") == b"%d" % number]
        assert 0 < len(kept) < 100, "the node that died has lost its keys, the others have theirs"


def test_the_hot_state_is_the_one_that_was_named_last(desk: Desk) -> None:
    assert desk.up("valkey")["READSTATE_HOT_URL"].startswith("redis://")
    assert desk.up("valkey-cluster")["READSTATE_HOT_URL"].startswith("redis+cluster://")
    assert desk.up("valkey")["READSTATE_HOT_URL"].startswith("redis://")


# ---------------------------------------------------------------- Kafka


@pytest.mark.skipif(not CAN_RUN_KAFKA, reason="needs Java and Maven")
@pytest.mark.timeout(600)
def test_kafka_takes_events_and_gives_them_back(desk: Desk) -> None:
    bootstrap = desk.up("kafka")["READSTATE_KAFKA_BOOTSTRAP"]

    produce(bootstrap, [b"one", b"two", b"three"])
    assert consume(bootstrap, 3) == [b"one", b"two", b"three"]

    assert desk.states() == {"kafka": "running"}
    desk.down()
    assert desk.states() == {"kafka": "stopped"}


def produce(bootstrap: str, values: list[bytes]) -> None:
    """Returns when Kafka has taken all of them."""
    faults: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            faults.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    for value in values:
        producer.produce("kept", value, on_delivery=delivered)
    assert producer.flush(DEADLINE) == 0
    assert faults == []


def consume(bootstrap: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["kept"])
        got: list[bytes | None] = []
        wait_until(lambda: got.extend(_values(consumer)) or len(got) >= count, "all has come")  # type: ignore[func-returns-value]
        return got
    finally:
        consumer.close()


def _values(consumer: Consumer) -> list[bytes | None]:
    return [message.value() for message in consumer.consume(10, timeout=0.5) if message.error() is None]


# ---------------------------------------------------------------- a machine that lacks something


class Machine(NamedTuple):
    """What a machine has in its PATH."""

    path: Path
    cache: Path

    def has(self, programs: Sequence[str]) -> dict[str, str]:
        self.path.mkdir()
        for program in programs:
            (self.path / program).symlink_to(shutil.which(program) or pytest.skip(f"needs {program}"))
        return {"PATH": str(self.path), "JAVA_HOME": "", "XDG_CACHE_HOME": str(self.cache)}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "bin", tmp_path / "cache")


def test_without_java_the_usual_stack_does_without_kafka(desk: Desk, machine: Machine) -> None:
    done = desk.run("up", **machine.has([]))

    assert done.code == 0
    assert set(settings(done.out)) == {"READSTATE_HOT_URL", "READSTATE_DATABASE_URL"}
    assert "left out: kafka: Java 17 or later is not installed" in done.err
    assert "apt install openjdk-17-jre-headless maven" in done.err


def test_without_java_a_kafka_that_was_named_is_an_error(desk: Desk, machine: Machine) -> None:
    done = desk.run("up", "--with", "valkey,kafka", **machine.has([]))

    assert done.code == 1
    assert set(settings(done.out)) == {"READSTATE_HOT_URL"}, "the rest is started all the same"
    assert "error: kafka: Java 17 or later is not installed" in done.err


def test_without_maven_a_kafka_that_was_never_fetched_is_an_error(desk: Desk, machine: Machine) -> None:
    done = desk.run("up", "--with", "kafka", **machine.has(["java"]))

    assert done.code == 1
    assert "error: kafka: Maven, which downloads kafka-" in done.err


async def ask(url: str, query: str) -> Any:
    """The one value that PostgreSQL answers."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()
