"""The real `readstate` in processes of its own: beside a running service, and on a data directory alone."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest

from readstate.cli.target import Target
from readstate.client import ApiError, Client
from tests import commands
from tests.servers import DEADLINE, Server, serving, wait_until


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


class Shell:
    """A directory in which commands are run; `data` in it is the data directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("READSTATE_")}
        self.environ["READSTATE_DATA_DIR"] = str(self.data)

    def run(self, *words: str, **variables: str) -> Done:
        done = commands.run(*words, env=self.environ | variables, cwd=self.directory, timeout=DEADLINE)
        return Done(done.returncode, done.stdout, done.stderr)

    def run_bare(self, *words: str, **variables: str) -> Done:
        """In an interpreter that has imported nothing."""
        return self._run("-m", "readstate", *words, **variables)

    def run_without(self, library: str, *words: str, **variables: str) -> Done:
        """As on a machine that does not have a library."""
        program = f"import sys; sys.modules[{library!r}] = None; from readstate.cli import main; main()"
        return self._run("-c", program, *words, **variables)

    def _run(self, *words: str, **variables: str) -> Done:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.directory,
            env=self.environ | variables,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def says(self, *words: str, **variables: str) -> str:
        """What a command that succeeds prints."""
        done = self.run(*words, **variables)
        assert done.code == 0, done
        assert done.err == ""
        return done.out

    def answers(self, *words: str, **variables: str) -> Any:
        """What a command that succeeds prints for scripts."""
        return json.loads(self.says(*words, "--json", **variables))

    def refuses(self, *words: str, **variables: str) -> str:
        """What a command says that cannot do it."""
        return self._fails(1, *words, **variables)

    def misunderstands(self, *words: str) -> str:
        """What a command says that was not called as it should be."""
        return self._fails(2, *words)

    def _fails(self, code: int, *words: str, **variables: str) -> str:
        done = self.run(*words, **variables)
        assert done.code == code, done
        assert done.out == ""
        assert "Traceback" not in done.err
        return done.err


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def server(shell: Shell) -> Iterator[Server]:
    with serving(shell.data) as server:
        yield server


@pytest.fixture(params=["a service runs", "no service runs"])
def anywhere(request: pytest.FixtureRequest, shell: Shell) -> Shell:
    """A shell in which commands must do the same, whether a service runs over its data or not."""
    if request.param == "a service runs":
        request.getfixturevalue("server")
    return shell


def one_channel(shell: Shell, *texts: str) -> None:
    """Alice writes m1, m2 … to bob. Not by commands: a process for each would make the tests slow."""
    Target(data_dir=shell.data).call(lambda client: fill(client, *texts), creates=True)


async def fill(client: Client, *texts: str, channel: str = "general", to: str = "bob") -> None:
    await client.put_channel(channel, type="channel", members=("alice", to))
    for number, text in enumerate(texts, 1):
        await client.send(channel, "alice", text=text, id=f"m{number}")


# ---------------------------------------------------------------- what people do


def test_messages_are_sent_read_counted_and_explained(anywhere: Shell) -> None:
    anywhere.says("channel", "general", "--type", "group", "--member", "alice")
    channel = anywhere.answers("channel", "general", "--name", "General", "--member", "bob")
    assert (channel["type"], channel["name"], channel["member_count"]) == ("group", "General", 2)

    for number in (1, 2, 3):
        sent = anywhere.answers("send", "general", "alice", f"text {number}", "--id", f"m{number}")
        assert (sent["status"], sent["seq"]) == ("accepted", number)
    assert anywhere.answers("send", "general", "alice", "again", "--id", "m3")["status"] == "duplicate"

    assert anywhere.answers("unread", "bob")["totals"] == {"unread": 3, "mentions": 0, "channels": 1}
    assert anywhere.answers("read", "bob", "general", "--up-to", "m1")["unread"] == 2
    assert anywhere.answers("read", "bob", "general", "--message", "m3")["unread"] == 1
    unread = anywhere.answers("unread", "bob", "general")
    assert (unread["unread"], unread["first_unread"]["id"], unread["exact"]) == (1, "m2", True)
    why = anywhere.answers("explain", "bob", "general")
    assert (why["after_pointer"], why["minus"]["read_apart"], why["agrees"]) == (2, 1, True)
    assert anywhere.answers("recount", "bob", "general") == {"before": 1, "after": 1}


@pytest.mark.usefixtures("server")
def test_what_the_hot_store_has_is_shown_in_words(shell: Shell) -> None:
    one_channel(shell, "one", "two", "three")
    shell.says("read", "bob", "general", "--up-to", "m1")
    shell.says("read", "bob", "general", "--message", "m3")

    assert "keys" not in shell.answers("explain", "bob", "general")
    kept = shell.answers("explain", "bob", "general", "--keys")["keys"]
    assert any(key["facts"].get("read one by one") == "3" for key in kept)
    shown = shell.says("explain", "bob", "general", "--keys")
    assert "seq 1 (m1, sent " in shown
    assert "first " in shown


def test_people_get_tables(shell: Shell) -> None:
    one_channel(shell, "hello", "world")

    everything = shell.says("unread", "bob")
    assert "general" in everything
    assert "alice: world" in everything
    assert "2 unread and 0 mentions in 1 channel" in everything
    assert "m1 (seq 1" in shell.says("unread", "bob", "general")
    explained = shell.says("explain", "bob", "general")
    assert "= 2  unread" in explained
    assert "ledger" in explained
    assert "the hot store had nothing of them" in shell.says("explain", "bob", "general", "--keys")
    assert "read up to m2 (seq 2); 0 unread" in shell.says("read", "bob", "general")
    assert "nothing new" in shell.says("read", "bob", "general")
    assert "bob has nothing unread" in shell.says("unread", "bob")
    assert "general" in shell.says("unread", "bob", "--all")
    assert "0 unread, as before" in shell.says("recount", "bob", "general")


def test_members_join_with_as_much_history_as_they_are_given(shell: Shell) -> None:
    one_channel(shell, "one", "two", "three")

    assert shell.answers("join", "general", "carol", "dave")["member_count"] == 4
    assert "added 1; general has 5 members" in shell.says("join", "general", "erin", "--history", "2")

    assert shell.answers("unread", "carol", "general")["unread"] == 0
    assert shell.answers("unread", "erin", "general")["unread"] == 2


def test_a_message_may_mention_be_silent_or_come_from_outside(shell: Shell) -> None:
    one_channel(shell)

    shell.says("send", "general", "alice", "look", "--mention", "bob", "--mention", "carol")
    shell.says("send", "general", "release-bot", "psst", "--outside", "--silent")
    shell.says("send", "general", "release-bot", "all of you", "--outside", "--mention", "@channel")

    unread = shell.answers("unread", "bob", "general")
    assert (unread["unread"], unread["mentions"], unread["latest"]["seq"]) == (2, 2, 3)


@pytest.mark.parametrize(
    ("target", "left"),
    [(("--up-to-seq", "2"), 1), (("--up-to-time", "2100-01-01T00:00:00Z"), 0), (("--up-to-time", "1"), 3)],
)
def test_reads_go_up_to_a_place_or_a_time(shell: Shell, target: tuple[str, ...], left: int) -> None:
    one_channel(shell, "one", "two", "three")

    assert shell.answers("read", "bob", "general", *target)["unread"] == left


@pytest.mark.parametrize("name", ["a/b", "..", "100%", "[red]x", "ä ö", "?a=b#c"])
def test_odd_ids_reach_the_service_unharmed(shell: Shell, name: str) -> None:
    Target(data_dir=shell.data).call(lambda client: fill(client, "hello", channel=name, to=name), creates=True)

    told = shell.says("unread", name, name)

    assert name in told
    assert "alice: hello" in told


def test_texts_cannot_drive_the_terminal(shell: Shell) -> None:
    one_channel(shell, "\x1b[2Jgone")

    assert "\x1b" not in shell.says("unread", "bob")


async def a_thread(client: Client) -> None:
    await fill(client, "hello", "world")
    await client.send("general", "bob", id="r1", thread_id="m1", text="a reply")


def test_people_see_their_inbox_badge_threads_and_who_has_seen_what(anywhere: Shell) -> None:
    Target(data_dir=anywhere.data).call(a_thread, creates=True)
    anywhere.says("send", "general", "alice", "@bob look", "--mention", "bob", "--id", "m3")

    [row] = anywhere.answers("inbox", "bob")["conversations"]
    assert (row["channel_id"], row["unread"], row["last_message"]["id"]) == ("general", 3, "m3")
    assert anywhere.answers("threads", "alice", "--filter", "unread")["totals"] == {"unread": 1, "threads": 1}
    assert anywhere.answers("badge", "bob")["senders"] == 1
    assert anywhere.answers("badge", "bob", "--tap")["by_sender"][0]["sender_id"] == "alice"
    assert anywhere.answers("badge", "bob")["senders"] == 0
    anywhere.says("read", "bob", "general")
    assert anywhere.answers("seen", "general", "m2")["count"] == 1
    assert anywhere.answers("mark-unread", "bob", "general", "m2")["unread"] == 2
    assert anywhere.answers("seen", "general", "m2")["count"] == 0


def test_people_get_tables_of_these_too(shell: Shell) -> None:
    Target(data_dir=shell.data).call(a_thread, creates=True)
    shell.says("send", "general", "alice", "@bob look", "--mention", "bob", "--id", "m3")

    inbox = shell.says("inbox", "bob", "--order", "unread_first")
    assert "alice: @bob look" in inbox
    assert "bob has no archived conversations" in shell.says("inbox", "bob", "--filter", "archived")
    threads = shell.says("threads", "alice")
    assert "bob: a reply" in threads
    assert "1 unread reply in 1 thread" in threads
    assert "bob has no unread threads" in shell.says("threads", "bob", "--filter", "unread")
    assert "carol follows no threads" in shell.says("threads", "carol")
    assert "1 person wrote to bob while away" in shell.says("badge", "bob")
    tapped = shell.says("badge", "bob", "--tap")
    assert "@bob look" in tapped
    assert "1 person; the badge is 0 now" in tapped
    assert "nobody wrote to bob while away" in shell.says("badge", "bob", "--tap")
    assert "0 people wrote to bob while away since 20" in shell.says("badge", "bob")
    assert "seen by 0 of 1" in shell.says("seen", "general", "m1")
    shell.says("read", "bob", "general")
    assert "bob" in shell.says("seen", "general", "m1")
    assert "2 unread; read up to m1 (seq 1)" in shell.says("mark-unread", "bob", "general", "m2")


# ---------------------------------------------------------------- how commands find their service


def test_a_token_lets_its_user_in_and_nobody_else(shell: Shell, server: Server) -> None:
    one_channel(shell, "hello")
    token = shell.says("token", "bob", "--ttl", "5m", "--claim", "tenant=acme").strip()

    mine = httpx.get(f"{server.url}/v1/users/me/unread", headers={"Authorization": f"Bearer {token}"}, timeout=30)
    assert mine.json()["totals"]["unread"] == 1
    at_url = {"READSTATE_URL": server.url, "READSTATE_KEY": token}
    assert shell.answers("unread", "bob", **at_url)["totals"]["unread"] == 1
    assert "(forbidden)" in shell.refuses("unread", "alice", **at_url)


def test_tokens_carry_what_the_service_is_configured_to_ask_for(shell: Shell) -> None:
    asked = {"jwt_issuer": "acme", "jwt_audience": "chat", "jwt_user_claim": "uid"}
    variables = {f"READSTATE_{name.upper()}": value for name, value in asked.items()}
    with serving(shell.data, **asked) as server:
        token = shell.answers("token", "bob", **variables)["token"]

        mine = httpx.get(f"{server.url}/v1/users/me/unread", headers={"Authorization": f"Bearer {token}"}, timeout=30)
        assert mine.status_code == 200, mine.text


def test_a_url_and_a_key_reach_a_service_from_anywhere(shell: Shell, server: Server, tmp_path: Path) -> None:
    one_channel(shell, "hello")
    elsewhere = Shell(tmp_path / "..")
    at_url = ("--url", server.url, "--key", server.service_key)

    assert elsewhere.answers("unread", "bob", *at_url)["totals"]["unread"] == 1
    assert "(configuration)" in elsewhere.refuses("unread", "bob", "--url", server.url)
    assert "(invalid_token)" in elsewhere.refuses("unread", "bob", "--url", server.url, "--key", "wrong")


def test_after_a_crash_commands_open_the_store_themselves(shell: Shell, server: Server) -> None:
    one_channel(shell, "hello")
    server.kill()

    assert (shell.data / "service.json").exists()
    assert shell.answers("unread", "bob")["totals"]["unread"] == 1


def test_what_was_done_without_a_service_is_there_when_one_starts(shell: Shell) -> None:
    one_channel(shell, "hello")

    with serving(shell.data):
        assert shell.answers("unread", "bob")["totals"]["unread"] == 1


def test_asking_in_the_wrong_directory_makes_no_store(shell: Shell) -> None:
    assert "there is no store in" in shell.refuses("unread", "bob")
    assert "there is no store in" in shell.refuses("token", "bob")
    assert not shell.data.exists()


# ---------------------------------------------------------------- the service as a process


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_service_cleanly(shell: Shell, server: Server, sign: signal.Signals) -> None:
    told = shell.data / "service.json"
    assert json.loads(told.read_text()) == {"url": server.url, "pid": server.pid}
    assert stat.S_IMODE(told.stat().st_mode) == 0o600

    os.kill(server.pid, sign)

    assert server.wait_for_exit() == 0
    assert not told.exists()
    assert [json.loads(line)["event"] for line in server.log] == ["listening", "stopping", "stopped"]


def test_a_request_under_way_is_finished_before_the_service_stops(shell: Shell, server: Server) -> None:
    one_channel(shell)
    body = json.dumps({"channel_id": "general", "sender_id": "alice", "text": "last words"}).encode()
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=DEADLINE) as connection:
        connection.sendall(
            b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Expect: 100-continue\r\n"
            + f"Authorization: Bearer {server.service_key}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: any("stopping" in line for line in server.log), "the service is stopping")
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 202")

    assert server.wait_for_exit() == 0
    assert shell.answers("unread", "bob")["totals"]["unread"] == 1


def test_a_second_service_over_the_same_data_is_refused(shell: Shell, server: Server) -> None:
    error = shell.refuses("serve", "--port", "0")

    assert str(shell.data) in error
    assert json.loads((shell.data / "service.json").read_text())["pid"] == server.pid
    assert httpx.get(f"{server.url}/readyz", timeout=30).status_code == 200


def test_a_taken_port_is_told_plainly(shell: Shell, server: Server) -> None:
    port = server.url.rpartition(":")[2]

    error = shell.refuses("serve", "--port", port, "--data-dir", str(shell.directory / "other"))

    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in error


def test_more_than_one_worker_is_refused_with_the_reason(shell: Shell) -> None:
    error = shell.refuses("serve", "--workers", "2")

    assert "--workers: 2 is not possible in the embedded profile" in error
    assert not shell.data.exists()


def test_all_faulty_settings_are_named_at_once(shell: Shell) -> None:
    error = shell.refuses("serve", "--log-level", "loud", READSTATE_PORT="abc", READSTATE_PROT="1")

    assert error.startswith("error: 3 settings are not valid (configuration)")
    assert "READSTATE_PORT: 'abc' is not a whole number" in error
    assert "did you mean READSTATE_PORT?" in error
    assert "--log-level" in error


# ---------------------------------------------------------------- faults of the caller


def test_what_the_service_refuses_is_one_line_with_its_code(anywhere: Shell) -> None:
    one_channel(anywhere)

    for words in [("unread", "bob", "nowhere"), ("read", "bob", "general", "--up-to", "m9")]:
        error = anywhere.refuses(*words)
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        assert "_not_found)" in error or "not_a_member)" in error
    assert "(invalid_id)" in anywhere.refuses("channel", "x" * 129, "--type", "group")


def test_a_service_that_does_not_answer_is_told_plainly(shell: Shell) -> None:
    error = shell.refuses("unread", "bob", "--url", "http://127.0.0.1:1", "--key", "k")

    assert error.startswith("error: http://127.0.0.1:1 cannot be reached")
    assert "(unreachable)" in error


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("send", "general"),
        ("read", "bob", "general", "--up-to", "m1", "--up-to-seq", "1"),
        ("read", "bob", "general", "--up-to-seq", "-1"),
        ("join", "general", "bob", "--history", "some"),
        ("inbox", "bob", "--filter", "good"),
        ("threads", "bob", "--limit", "0"),
        ("token", "bob", "--ttl", "soon"),
        ("token", "bob", "--claim", "exp=1"),
        ("serve", "--port", "high"),
    ],
)
def test_faults_of_usage_have_their_own_exit_code(shell: Shell, words: tuple[str, ...]) -> None:
    assert "Usage: readstate" in shell.misunderstands(*words)


def test_without_a_command_it_prints_its_help(shell: Shell) -> None:
    done = shell.run_bare()

    assert (done.code, done.err) == (0, "")
    assert all(word in done.out for word in ("serve", "token", "send", "unread", "explain", "doctor", "migrate"))
    assert shell.says("--version").startswith("readstate 0.")


# ---------------------------------------------------------------- doctor and migrate


def states(shell: Shell) -> tuple[int, dict[str, str]]:
    done = shell.run("doctor", "--json")
    return done.code, {found["check"]: found["state"] for found in json.loads(done.out)["findings"]}


def test_the_doctor_finds_a_sound_service_sound(anywhere: Shell) -> None:
    one_channel(anywhere, "hello")

    code, found = states(anywhere)

    assert code == 0
    assert set(found) > {"settings", "data directory", "secrets", "database", "schema", "service", "sqlite"}
    assert "fail" not in found.values()
    assert "secrets" in anywhere.says("doctor")


def test_the_doctor_tells_what_is_wrong(shell: Shell) -> None:
    one_channel(shell, "hello")
    (shell.data / "service-key").chmod(0o644)
    (shell.data / "readstate.db").write_bytes(b"this was a database" * 1000)

    code, found = states(shell)

    assert code == 1
    assert (found["secrets"], found["database"]) == ("fail", "fail")
    assert "chmod 600" in shell.run("doctor").out
    assert shell.run("doctor", READSTATE_PORT="abc").code == 1


def test_migrate_brings_a_store_up_to_date_and_says_from_where(shell: Shell) -> None:
    assert "there is no store in" in shell.refuses("migrate", "--check")

    moved = shell.answers("migrate")

    assert moved["from"] == 0
    assert moved["to"] >= 1
    assert "up to date" in shell.says("migrate", "--check")
    assert shell.answers("migrate") == {"from": moved["to"], "to": moved["to"], "applied": False}


# ---------------------------------------------------------------- the client that commands use


async def test_the_client_marks_unread_and_raises_what_the_service_refuses(server: Server) -> None:
    async with Client(server.url, server.service_key) as client:
        await fill(client, "one", "two")
        await client.read("bob", "general")

        assert (await client.mark_unread("bob", "general", "m2")).unread == 1
        with pytest.raises(ApiError, match="m9") as refused:
            await client.mark_unread("bob", "general", "m9")

    error = refused.value
    assert (error.code, error.status, error.retry) == ("message_not_found", 404, False)
