"""The commands that look after the stores, where there is no cluster."""

from pathlib import Path

import pytest

from tests.cli.test_cli import Shell
from tests.servers import serving


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def talk(shell: Shell) -> None:
    shell.says("channel", "general", "--type", "group", "--member", "alice", "--member", "bob")
    shell.says("send", "general", "alice", "hello", "--id", "m1")


def test_an_audit_of_one_file(shell: Shell) -> None:
    assert "there is no store" in shell.refuses("audit")
    talk(shell)
    assert shell.says("audit") == "recounted 2: all agree\n"
    assert shell.answers("audit", "--sample", "1") == {"counted": 1, "badges": 0, "drift": []}
    with serving(shell.data):
        assert "another process has the store" in shell.refuses("audit")


@pytest.mark.parametrize(
    "words", [("reconcile",), ("rebuild",), ("dlt", "list"), ("dlt", "replay", "1"), ("dlt", "drop", "1"), ("worker",)]
)
def test_what_only_a_cluster_needs_says_so(shell: Shell, words: tuple[str, ...]) -> None:
    talk(shell)
    assert "this is for the cluster profile" in shell.refuses(*words)


@pytest.mark.parametrize("words", [("dlt", "replay"), ("dlt", "drop"), ("dlt", "replay", "1", "--all")])
def test_which_letters_must_be_said(shell: Shell, words: tuple[str, ...]) -> None:
    assert "the ids of dead letters" in " ".join(shell.misunderstands(*words).split())


def test_a_role_that_there_is_not(shell: Shell) -> None:
    cluster = {
        "READSTATE_PROFILE": "cluster",
        "READSTATE_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "READSTATE_HOT_URL": "redis://127.0.0.1:1",
        "READSTATE_KAFKA_BOOTSTRAP": "127.0.0.1:1",
    }
    done = shell.run("worker", "pianist", **cluster)
    assert done.code == 2
    assert "there is no role 'pianist'" in " ".join(done.err.split())
