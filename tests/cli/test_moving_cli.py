"""`readstate export`, `import` and `erase` in processes of their own, beside a service and without one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import Done, Shell
from tests.servers import serving

LONG_AGO = 1_700_000_000_000
HEADER = {"type": "readstate", "version": 1}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Shell:
    """Another place, with no store yet."""
    (tmp_path / "elsewhere").mkdir()
    return Shell(tmp_path / "elsewhere")


def talk(shell: Shell) -> None:
    shell.says("channel", "general", "--type", "group", "--member", "alice", "--member", "bob")
    for name in ("m1", "m2", "m3"):
        shell.says("send", "general", "alice", f"this is {name}", "--id", name)
    shell.says("read", "bob", "general", "--up-to", "m1")


def records(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()][1:]


def write(path: Path, *lines: Any) -> str:
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in (HEADER, *lines)))
    return str(path)


def channel() -> dict[str, Any]:
    return {"type": "channel", "channel_id": "general", "kind": "group"}


def messages(count: int) -> list[dict[str, Any]]:
    fields = {"type": "message", "channel_id": "general", "sender_id": "alice", "text": "hello " * 50}
    return [fields | {"id": f"m{number}", "at": LONG_AGO + number} for number in range(count)]


def test_a_store_moves_to_another_place(shell: Shell, elsewhere: Shell, tmp_path: Path) -> None:
    talk(shell)
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"

    assert "wrote 7 lines" in shell.run("export", "--output", str(first)).err
    assert "accepted 6 records, refused 0 lines" in elsewhere.says("import", str(first))
    elsewhere.run("export", "-o", str(second))

    assert records(first) == records(second)
    assert elsewhere.answers("unread", "bob", "general")["unread"] == 2
    assert first.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.glob("*.part")) == []


def test_a_running_service_moves_out_and_in(shell: Shell, elsewhere: Shell, tmp_path: Path) -> None:
    talk(shell)
    file = tmp_path / "all.jsonl"
    with serving(shell.data):
        file.write_text(shell.says("export"))
    with serving(elsewhere.data):
        assert "accepted 6 records" in elsewhere.says("import", str(file))
        assert elsewhere.answers("unread", "bob", "general")["unread"] == 2
        assert "erased bob: 1 channels" in elsewhere.says("erase", "bob", "--yes")
        assert "no member" in elsewhere.refuses("unread", "bob", "general")


def test_refused_lines_are_named_and_the_others_taken(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path / "file", channel(), "{", *messages(2), {"type": "member", "channel_id": "general"})

    done = shell.run("import", file)

    assert done.code == 1
    assert "accepted 3 records, refused 2 lines" in done.out
    assert "line 3: the line is not JSON" in done.err
    assert "line 6: Object missing required field user_id" in done.err


def test_an_import_stops_on_request_and_goes_on_from_there(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "file"
    first, second = messages(2)

    stopped = shell.run("import", write(path, channel(), first, "{", second), "--stop-on-error")

    assert stopped.code == 1
    assert "continue with --from-line 4" in stopped.err
    report = shell.answers("import", write(path, channel(), first, second, messages(3)[2]), "--from-line", "4")
    assert (report["accepted"], report["refused"], report["next_line"]) == (2, [], 6)


def test_another_versions_file_is_not_taken_from_any_line(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(json.dumps(HEADER | {"version": 2}) + "\n" + json.dumps(channel()) + "\n")

    for line in ("1", "2"):
        done = shell.run("import", str(path), "--from-line", line)
        assert done.code == 1
        assert "line 1: the file has version 2; this Readstate reads version 1" in done.err
        assert "accepted 0 records" in done.out


def test_a_line_longer_than_a_request_is_refused_alone(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path / "file", channel(), "x" * 1_200_000, *messages(1))

    report = json.loads(shell.run("import", file, "--json").out)

    assert report["accepted"] == 2
    assert report["refused"] == [{"line": 3, "reason": "the line is longer than 500,000 bytes"}]


def test_a_large_file_goes_in_many_requests(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path / "file", channel(), *messages(4000))
    assert Path(file).stat().st_size > 1_500_000

    with serving(shell.data):
        report = shell.answers("import", file)

    assert (report["accepted"], report["next_line"]) == (4001, 4003)


def test_an_import_from_a_pipe(shell: Shell) -> None:
    content = "".join(json.dumps(one) + "\n" for one in (HEADER, channel(), *messages(3)))

    done = subprocess.run(
        [sys.executable, "-m", "readstate", "import", "-"],
        cwd=shell.directory,
        env=shell.environ,
        input=content,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert Done(done.returncode, done.stdout, done.stderr) == Done(0, "accepted 4 records, refused 0 lines\n", "")


def test_an_interrupted_import_tells_where_to_go_on(shell: Shell, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "readstate", "import", str(pipe)]
    child = subprocess.Popen(
        command, cwd=shell.directory, env=shell.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with pipe.open("w") as file:
        file.writelines(json.dumps(one) + "\n" for one in (HEADER, channel(), *messages(4000)))
        file.flush()  # a pipe holds little: most of it is imported by now
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)

    assert child.returncode == 130
    assert "accepted" in out
    assert "interrupted: continue with --from-line" in err


def test_an_empty_file_is_not_an_export(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    done = shell.run("import", str(tmp_path / "empty"))

    assert done.code == 1
    assert "line 1: the first line must be the header" in done.err


def test_a_file_that_is_not_there(shell: Shell) -> None:
    assert "No such file" in shell.refuses("import", "nothing.jsonl")


def test_an_export_of_nothing_needs_a_store(shell: Shell) -> None:
    assert "there is no store" in shell.refuses("export")


def test_erase_asks_first(shell: Shell) -> None:
    talk(shell)

    done = shell.run("erase", "bob")

    assert done.code == 1
    assert "Erase everything but the messages of bob?" in done.err
    assert shell.answers("unread", "bob", "general")["unread"] == 2
    assert "erased nobody: 0 channels" in shell.says("erase", "nobody", "--yes")
