"""The embedded store as a file: backed up and restored, and refused when a part of it is gone."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.test_cli import Shell
from tests.conftest import GENERAL, JWT_SECRET, SERVICE_KEY, WAIT, Chat, check_problem, eventually
from tests.live.device import open_device
from tests.servers import Server, serving

SECRETS: dict[str, Any] = {"service_keys": SERVICE_KEY, "jwt_secret": JWT_SECRET}
PEOPLE = ("alice", "bob", "carol")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Shell:
    """Another place, with no store yet."""
    (tmp_path / "elsewhere").mkdir()
    return Shell(tmp_path / "elsewhere")


@asynccontextmanager
async def talking_to(server: Server) -> AsyncIterator[Chat]:
    async with httpx.AsyncClient(base_url=server.url, headers=WAIT, timeout=60) as http:
        yield Chat(http)


async def talk(chat: Chat) -> None:
    await chat.open_channel(*PEOPLE)
    await chat.send("alice", *(f"m{number}" for number in range(10)))
    await chat.reply("carol", "m1", "r1")
    await chat.read("bob", up_to="m4")


def back_up(shell: Shell, file: Path, *words: str) -> None:
    done = shell.run("backup", str(file), *words)
    assert done.code == 0, done
    assert "wrote" in done.out
    assert "The file holds no secrets" in done.err
    assert file.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in file.parent.glob(f"*{file.name}*")] == [file.name]


def restore(shell: Shell, file: Path) -> None:
    done = shell.run("restore", str(file))
    assert done.code == 0, done
    assert "restored" in done.out
    assert "The file holds no secrets" in done.err


async def stopped(server: Server) -> str:
    """What a service says that does not start."""
    before = len(server.log)
    server.launch()
    assert await asyncio.to_thread(server.wait_for_exit) == 1
    said = "".join(server.log[before:])
    assert "Traceback" not in said, said
    return said


# ---------------------------------------------------------------- backups


async def test_a_backup_of_a_running_service_has_everything_acknowledged_before_it(
    shell: Shell, elsewhere: Shell, tmp_path: Path
) -> None:
    file = tmp_path / "copy.db"
    done: dict[str, int] = {}
    with serving(shell.data, **SECRETS) as server:
        async with talking_to(server) as chat:
            await chat.open_channel(*PEOPLE)

            async def write(sender: str) -> None:
                for number in range(100_000):
                    result = await chat.post(sender, id=f"{sender}{number}", text="hello " * 50)
                    await chat.read(sender, up_to_seq=result["seq"])
                    done[sender] = result["seq"]

            writing = [asyncio.create_task(write(person)) for person in PEOPLE]

            async def everyone_wrote() -> bool:
                return len(done) == len(PEOPLE) and min(done.values()) > 100

            await eventually(everyone_wrote, "everyone has written")
            before = dict(done)
            await asyncio.to_thread(back_up, shell, file)
            assert all(not task.done() for task in writing), "the service went on meanwhile"
            for task in writing:
                task.cancel()
            await asyncio.gather(*writing, return_exceptions=True)

    assert plain(file) == ("delete", "ok", 0)
    restore(elsewhere, file)
    with serving(elsewhere.data, **SECRETS) as server:
        async with talking_to(server) as chat:
            for person, seq in before.items():
                assert (await chat.unread(person))["last_read"]["seq"] >= seq
                await chat.count(person)
            assert (await chat.channel())["latest"]["seq"] >= max(before.values())


def plain(file: Path) -> tuple[str, str, int]:
    """How a file is written, whether it is whole, and whether it says that somebody has it open."""
    with closing(sqlite3.connect(file)) as db:
        one = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "integrity_check")]
        return one[0], one[1], db.execute("SELECT value FROM meta WHERE key = 'open'").fetchone()[0]


async def test_what_is_restored_is_the_same_and_no_cursor_from_before_is_believed(
    shell: Shell, elsewhere: Shell, tmp_path: Path
) -> None:
    file = tmp_path / "copy.db"
    with serving(shell.data, **SECRETS) as server:
        async with talking_to(server) as chat:
            await talk(chat)
            phone = await open_device(server.url, "bob", "phone")
            before = await chat.snapshot(PEOPLE, [GENERAL])
            sync = (await chat.sync("bob"))["sync"]
            await asyncio.to_thread(back_up, shell, file)
            await chat.send("alice", "lost")
            await phone.first("message.new", message_id="lost")
            await phone.close()

    restore(elsewhere, file)
    with serving(elsewhere.data, **SECRETS) as server:
        async with talking_to(server) as chat:
            assert await chat.snapshot(PEOPLE, [GENERAL]) == before
            assert (await chat.post("alice", id="new"))["seq"] == 11
            answer = await chat.call("GET", "/v1/users/bob/unread", params={"since": sync})
            assert (answer.json()["code"], answer.json()["field"]) == ("invalid_cursor", "since")
            back = await open_device(server.url, "bob", "phone", resume=phone.resume)
            await back.first("sync.required")
            await back.close()


def test_a_store_that_nobody_has_open_is_backed_up_too(shell: Shell, elsewhere: Shell, tmp_path: Path) -> None:
    shell.says("channel", GENERAL, "--type", "group", "--member", "alice", "--member", "bob")
    shell.says("send", GENERAL, "alice", "hello")
    file = tmp_path / "copy.db"

    back_up(shell, file)
    assert "exists already" in shell.refuses("backup", str(file))
    back_up(shell, file, "--force")
    restore(elsewhere, file)

    assert elsewhere.answers("unread", "bob", GENERAL)["unread"] == 1
    assert shell.answers("unread", "bob", GENERAL)["unread"] == 1


def test_a_killed_services_store_is_backed_up_with_its_log(shell: Shell, elsewhere: Shell, tmp_path: Path) -> None:
    file = tmp_path / "copy.db"
    with serving(shell.data) as server:
        shell.says("channel", GENERAL, "--type", "group", "--member", "alice", "--member", "bob")
        server.kill()

        back_up(shell, file)
        restore(elsewhere, file)
        assert elsewhere.answers("unread", "bob", GENERAL)["unread"] == 0

        server.start()


def test_what_is_no_backup_is_not_restored(shell: Shell, elsewhere: Shell, tmp_path: Path) -> None:
    shell.says("channel", GENERAL, "--type", "group", "--member", "alice")
    file = tmp_path / "copy.db"
    back_up(shell, file)
    whole = file.read_bytes()

    def refused(content: bytes, statement: str = "") -> str:
        file.write_bytes(content)
        if statement:
            with closing(sqlite3.connect(file, isolation_level=None)) as db:
                db.execute(statement)
        said = elsewhere.refuses("restore", str(file))
        assert not (elsewhere.data / "readstate.db").exists()
        assert not list(elsewhere.data.glob("*.part"))
        return said

    assert "is empty" in refused(b"")
    assert "damaged" in refused(b"this was a database" * 1000)
    assert "damaged" in refused(whole[:8192] + b"\0" * 8192 + whole[16384:])
    assert "no store of Readstate" in refused(b"", "CREATE TABLE t (a)")
    assert "made by a newer Readstate" in refused(whole, "PRAGMA user_version = 9999")
    assert "no backup" in refused(whole, "UPDATE meta SET value = 1 WHERE key = 'open'")
    assert "not there" in elsewhere.refuses("restore", "nothing.db")

    file.write_bytes(whole)
    restore(elsewhere, file)
    assert "not empty (readstate.db)" in elsewhere.refuses("restore", str(file))


def test_secrets_may_stay_where_a_backup_is_restored(shell: Shell, tmp_path: Path) -> None:
    shell.says("channel", GENERAL, "--type", "group", "--member", "alice")
    file, key = tmp_path / "copy.db", (shell.data / "service-key").read_text()
    back_up(shell, file)
    for one in shell.data.glob("readstate.db*"):
        one.unlink()

    restore(shell, file)

    assert (shell.data / "service-key").read_text() == key
    assert shell.answers("unread", "alice", GENERAL)["unread"] == 0


def test_a_store_on_a_server_is_for_its_own_tools(shell: Shell) -> None:
    for command in ("backup", "restore"):
        said = shell.refuses(command, "copy.db", READSTATE_DATABASE_URL="postgresql://u@127.0.0.1:1/nothing")
        assert "pg_dump" in said


def test_a_backup_needs_a_store_and_is_not_the_store(shell: Shell) -> None:
    assert "there is no store" in shell.refuses("backup", "copy.db")
    shell.says("channel", GENERAL, "--type", "group", "--member", "alice")
    assert "is the store itself" in shell.refuses("backup", str(shell.data / "readstate.db"), "--force")


# ---------------------------------------------------------------- a part is gone


@pytest.mark.parametrize("cut", ["deleted", "emptied"])
async def test_a_log_that_is_gone_after_a_kill_is_refused(tmp_path: Path, cut: str) -> None:
    with serving(tmp_path / "data", **SECRETS) as server:
        async with talking_to(server) as chat:
            await talk(chat)
        server.kill()
        log = server.data_dir / "readstate.db-wal"
        if cut == "deleted":
            log.unlink()
        else:
            log.write_bytes(b"")

        for _ in range(2):
            said = await stopped(server)
            assert "the write-ahead log of the store" in said
            assert "--accept-data-loss" in said

        with serving(server.data_dir, "--accept-data-loss", **SECRETS) as again:
            async with talking_to(again) as chat:
                await chat.open_channel(*PEOPLE, channel="another")
            assert await asyncio.to_thread(again.stop) == 0
        server.start()


async def test_a_copy_of_the_file_of_a_running_service_is_refused(shell: Shell, tmp_path: Path) -> None:
    with serving(shell.data, **SECRETS) as server:
        async with talking_to(server) as chat:
            await talk(chat)
        copy = tmp_path / "copy"
        copy.mkdir()
        (copy / "readstate.db").write_bytes((shell.data / "readstate.db").read_bytes())

        said = await stopped(Server(copy, **SECRETS))

        assert "a copy of a file in use" in said


@pytest.mark.parametrize("what", ["empty", "gone"])
async def test_a_file_without_a_byte_or_only_a_log_is_refused(tmp_path: Path, what: str) -> None:
    with serving(tmp_path / "data", **SECRETS) as server:
        async with talking_to(server) as chat:
            await talk(chat)
        server.kill()
        file = server.data_dir / "readstate.db"
        if what == "empty":
            file.write_bytes(b"")
        else:
            file.unlink()

        said = await stopped(server)
        assert ("is empty (0 bytes)" if what == "empty" else "only its write-ahead log is there") in said

        with serving(server.data_dir, accept_data_loss="true", **SECRETS) as again:
            async with talking_to(again) as chat:
                check_problem(await chat.call("GET", f"/v1/channels/{GENERAL}"), 404, "channel_not_found")


def test_after_a_kill_commands_leave_a_store_that_starts(shell: Shell) -> None:
    with serving(shell.data) as server:
        server.kill()
        for words in (["migrate", "--check"], ["migrate"], ["doctor"], ["channel", "c", "--type", "group"], ["doctor"]):
            shell.run(*words)
        server.start()


async def test_a_stop_with_a_full_disk_leaves_a_store_that_starts(tmp_path: Path) -> None:
    with serving(tmp_path / "data", **SECRETS) as server:
        async with talking_to(server) as chat:
            await talk(chat)
            before = await chat.snapshot(PEOPLE, [GENERAL])
        server.limit_file_size(0)
        await asyncio.to_thread(server.stop)

        server.start()

        async with talking_to(server) as chat:
            assert await chat.snapshot(PEOPLE, [GENERAL]) == before
