"""`readstate bench` beside a real service: what it tells, that it notices a wrong count, and that it leaves nothing."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from readstate import api
from readstate.cli import app, bench_data, bench_load
from readstate.client import Client
from tests.cli.test_cli import Done, Shell
from tests.commands import Command
from tests.servers import DEADLINE, Server, serving, wait_until
from tests.stores import not_in_a_cluster

SMALL = ("--users", "6", "--channels", "3", "--members", "4")
SHORT = (*SMALL, "--seconds", "0.3", "--connections", "4", "--batch", "10")
PHASES = ["messages, 10 at once", "reads, one by one", "reads, 10 at once", "syncs"]
erases = not_in_a_cluster(reason="to erase users there is left to whoever runs it")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def server(shell: Shell) -> Iterator[Server]:
    with serving(shell.data) as server:
        yield server


def exported(server: Server) -> str:
    """Everything that the service has of anybody."""
    headers = {"Authorization": f"Bearer {server.service_key}"}
    return httpx.get(f"{server.url}/v1/export", headers=headers, timeout=DEADLINE).text


def prefix_in(text: str) -> str:
    found = re.search(r"bench-[0-9a-f]{8}", text)
    assert found, text
    return found[0]


def put_away(server: Server) -> None:
    """Returns when of the run only the last seqs of its deleted channels are there, which are never given again."""

    def nothing_else() -> bool:
        return all('"deleted":true' in line for line in exported(server).splitlines() if "bench-" in line)

    wait_until(nothing_else, "nothing is left of the run")


# ---------------------------------------------------------------- a run


def test_a_run_tells_figures_checks_counts_and_leaves_nothing(shell: Shell, server: Server) -> None:
    done = shell.run("bench", *SHORT, "--json")

    assert done.code == 0, done
    report = json.loads(done.out)
    assert [phase["name"] for phase in report["phases"]] == PHASES
    for phase, size in zip(report["phases"], (10, 1, 10, 1), strict=True):
        assert 0 < phase["requests"] <= phase["done"] <= phase["requests"] * size
        assert phase["per_second"] > 0
        assert 0 < phase["p50_ms"] <= phase["p95_ms"] <= phase["p99_ms"]
        assert phase["refused"] == {}
    assert report["phases"][0]["done"] == report["phases"][0]["requests"] * 10
    assert (report["checked_users"], report["checked_counts"], report["wrong"]) == (6, 9, [])
    assert report["left"]["channels"] == 0
    put_away(server)


@erases
def test_nothing_of_its_users_is_left(shell: Shell, server: Server) -> None:
    report = shell.answers("bench", *SHORT)

    assert report["left"] == {"channels": 0, "users": 0}
    asked = httpx.get(
        f"{server.url}/v1/users/{report['prefix']}-u0/unread",
        params={"only_unread": "false"},
        headers={"Authorization": f"Bearer {server.service_key}"},
        timeout=30,
    )
    assert asked.json()["channels"] == []


def test_people_get_a_table(shell: Shell, server: Server) -> None:
    done = shell.run("bench", *SHORT)

    assert done.code == 0, done
    assert all(name in done.out for name in (*PHASES, "per second", "P99 ms"))
    assert "checked 9 counts of 6 users: all are right" in done.out


def test_others_are_left_alone(shell: Shell, server: Server) -> None:
    shell.says("channel", "general", "--type", "group", "--member", "alice", "--member", "bob")
    shell.says("send", "general", "alice", "hello", "--id", "m1")
    before = exported(server).splitlines()[1:]
    assert before

    assert shell.run("bench", *SHORT).code == 0

    put_away(server)
    assert [line for line in exported(server).splitlines()[1:] if "bench-" not in line] == before


def test_what_is_kept_is_told_and_can_be_removed_later(shell: Shell, server: Server) -> None:
    done = shell.run("bench", *SHORT, "--keep")

    assert done.code == 0, done
    prefix = prefix_in(done.err)
    assert f"kept: 3 channels and 9 users under {prefix}" in done.err
    assert f"{prefix}-c2" in exported(server)
    again = done.err.splitlines()[-1].split()
    assert again == ["readstate", "bench", "--remove", prefix, "--users", "6", "--channels", "3"]

    assert shell.answers(*again[1:]) == {"channels": 0, "users": 0}

    put_away(server)
    assert shell.says(*again[1:]) == ""


def test_whoever_is_told_to_come_back_later_does(shell: Shell) -> None:
    with serving(shell.data, service_rate_limit=4) as server:
        done = shell.run("bench", *SHORT, "--json")

        assert done.code == 0, done
        refused = [phase["refused"] for phase in json.loads(done.out)["phases"]]
        assert any(phase.get("rate_limited", 0) > 0 for phase in refused), refused
        wait_until(lambda: exported(server).startswith('{"type":"readstate"'), "an export is let through")
        put_away(server)


# ---------------------------------------------------------------- wrong counts


def unread(channel: str, number: int, **more: Any) -> api.Unread:
    nothing = api.LastRead(None, 0, None, 0)
    return api.Unread(
        channel, number, str(number), number > 0, "reason" not in more, 0, None, nothing, None, False, **more
    )


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ([unread("a", 3), unread("b", 0)], []),
        ([unread("a", 2), unread("b", 0)], [("a", 3, 2)]),
        ([unread("a", 4), unread("b", 1)], [("a", 3, 4), ("b", 0, 1)]),
        ([unread("a", 3)], [("b", 0, None)]),
        ([unread("a", 3), unread("b", 0), unread("c", 1)], [("c", 0, 1)]),
        ([unread("a", 2, reason="capped"), unread("b", 0)], []),
        ([unread("a", 4, reason="capped"), unread("b", 0)], [("a", 3, 4)]),
        ([unread("a", 3, reason="stale"), unread("b", 0)], [("a", 3, 3)]),
    ],
)
def test_a_count_is_right_or_it_is_named(found: list[api.Unread], wrong: list[tuple[str, int, int | None]]) -> None:
    differ = bench_data.differences("bob", {"a": 3, "b": 0}, found)

    assert [(one.channel_id, one.expected, one.unread) for one in differ] == wrong
    assert all(one.user_id == "bob" for one in differ)


def test_a_read_behind_its_back_is_noticed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    compare = bench_load.Run._compare
    monkeypatch.setattr(bench_load, "TIMEOUT", 0.5)

    async def after_a_read(run: bench_load.Run) -> None:
        prefix = run.report.prefix
        async with Client(server.url, server.service_key) as client:
            await client.read(f"{prefix}-u0", f"{prefix}-c0")
            await client.send(f"{prefix}-c0", f"{prefix}-w0", text="one more", wait=True)
        await compare(run)

    monkeypatch.setattr(bench_load.Run, "_compare", after_a_read)

    done = CliRunner().invoke(app, ["bench", *SHORT, "--url", server.url, "--key", server.service_key])

    assert done.exit_code == 1, done
    assert "are wrong" in done.stdout
    assert re.search(r"bench-\w+-u0 +bench-\w+-c0 +[\d,]+ +1\b", done.stdout), done.stdout
    put_away(server)


# ---------------------------------------------------------------- a run that ends early


class Begun:
    """A run that would take long, in the midst of its messages."""

    def __init__(self, server: Server) -> None:
        shell = Shell(server.data_dir.parent)
        self._out, self._err = shell.directory / "out", shell.directory / "err"
        with self._out.open("w") as out, self._err.open("w") as err:
            words = ("bench", *SMALL, "--seconds", "60")
            self.command = Command(*words, env=shell.environ, cwd=shell.directory, stdout=out, stderr=err)
        wait_until(lambda: '"type":"message"' in exported(server), "messages are sent")

    def ended(self) -> Done:
        return Done(self.command.wait(DEADLINE), self._out.read_text(), self._err.read_text())


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(server: Server, sign: signal.Signals) -> None:
    run = Begun(server)

    run.command.send_signal(sign)
    done = run.ended()

    assert (done.code, done.out) == (130, "")
    assert "interrupted" in done.err
    assert "Traceback" not in done.err
    put_away(server)


def test_an_error_ends_the_run_and_what_it_made_is_taken_away(shell: Shell) -> None:
    with serving(shell.data, max_batch=9) as server:
        error = shell.refuses("bench", *SHORT)

        assert "messages, 10 at once: " in error
        assert "(too_large)" in error
        put_away(server)


def test_what_cannot_be_taken_away_is_told(server: Server) -> None:
    run = Begun(server)

    server.kill()
    done = run.ended()

    assert (done.code, done.out) == (1, "")
    assert "not everything could be removed" in done.err
    prefix = prefix_in(done.err)
    assert f"readstate bench --remove {prefix} --users 6 --channels 3" in done.err
    assert "error: messages, 100 at once: " in done.err
    assert "Traceback" not in done.err


# ---------------------------------------------------------------- not without a service, nor without its key


def test_it_needs_a_running_service(shell: Shell) -> None:
    assert "no service runs over" in shell.refuses("bench")
    assert not shell.data.exists()
    assert "(unreachable)" in shell.refuses("bench", "--url", "http://127.0.0.1:1", "--key", "k")


def test_it_needs_a_service_key(shell: Shell, server: Server) -> None:
    token = shell.says("token", "bob").strip()

    error = shell.refuses("bench", "--key", token)

    assert "a user's token may not do this: give a service key" in error
    assert "(forbidden)" in error
    assert "(invalid_token)" in shell.refuses("bench", "--key", "wrong")
    assert "bench-" not in exported(server)


@pytest.mark.parametrize(
    "words",
    [
        ("--users", "0"),
        ("--channels", "0"),
        ("--members", "2"),
        ("--members", "102"),
        ("--seconds", "0"),
        ("--seconds", "nan"),
        ("--seconds", "soon"),
        ("--connections", "0"),
        ("--batch", "0"),
        ("--users", "100000", "--members", "1001", "--channels", "1000"),
        ("--remove", "general"),
    ],
)
def test_numbers_that_make_no_sense_are_faults_of_usage(shell: Shell, words: tuple[str, ...]) -> None:
    assert "Usage: readstate bench" in shell.misunderstands("bench", *words)
