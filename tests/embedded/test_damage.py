"""A damaged database: 503 and nothing of its insides, never an internal error, never a wrong count called exact."""

import asyncio
import random
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from readstate import Readstate
from readstate.domain.errors import StorageUnavailable
from readstate.gateway import asgi_app
from tests.cli.test_cli import Shell
from tests.conftest import GENERAL, JWT_SECRET, SERVICE_KEY, Chat, check_problem, eventually, of
from tests.effort import long
from tests.servers import serving

PAGE = 4096
TRUTH = {"alice": 0, "bob": 31, "carol": 40}
SECRETS: dict[str, Any] = {"service_keys": (SERVICE_KEY,), "jwt_secret": JWT_SECRET}
INSIDES = ("select", "insert", "sqlite", "malformed", "image", "table", "index", "/", "constraint")


@asynccontextmanager
async def over(data: Path, **settings: Any) -> AsyncIterator[tuple[Readstate, Chat]]:
    async with Readstate.open(data_dir=str(data), **SECRETS, **settings) as rs:
        transport = httpx.ASGITransport(app=asgi_app(rs), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as http:
            yield rs, Chat(http)


async def fill(chat: Chat) -> None:
    await chat.open_channel(*TRUTH)
    text = "x" * 700
    for number in range(40):
        await chat.post("alice", id=f"m{number}", text=text, mentions=["bob"] if number % 5 == 0 else [])
    await chat.reply("bob", "m1", "r1", "r2")
    await chat.read("bob", up_to="m7")
    await chat.read("bob", messages=["m9"])


def requests() -> list[tuple[str, str, Any]]:
    bob, channel = "/v1/users/bob", f"/v1/channels/{GENERAL}"
    message = {"channel_id": GENERAL, "sender_id": "alice", "text": "hello"}
    return [
        *(("GET", f"{of(user)}/{what}", None) for user in TRUTH for what in ("unread", "explain", "preferences")),
        *(("GET", f"{bob}/{what}", None) for what in ("unread", "unread/messages", "inbox", "threads", "badge")),
        *(("GET", f"{channel}/{what}", None) for what in ("members", "receipts", "messages/m3/seen")),
        ("GET", channel, None),
        ("GET", f"{bob}/presence", None),
        ("POST", "/v1/unread/batch", {"users": list(TRUTH)}),
        ("GET", "/readyz", None),
        ("POST", f"{of('carol')}/recount", None),
        ("POST", f"{of('bob')}/read", {"up_to": "m7"}),
        ("PUT", f"{of('bob')}/preferences", {"pinned": True}),
        ("POST", f"{bob}/badge/tap", None),
        ("POST", "/v1/messages", message | {"id": "m3"}),
        ("POST", "/v1/messages", message | {"thread_id": "m1", "id": "r9"}),
        ("PATCH", f"{channel}/messages/m20", {"text": "y" * 700}),
        ("POST", f"{channel}/members", {"add": ["dave"]}),
        ("PUT", "/v1/channels/another", {"type": "group", "members": ["bob"]}),
        ("DELETE", "/v1/users/carol", None),
        ("DELETE", channel, None),
    ]


async def check_all(chat: Chat) -> int:
    """Asks everything there is to ask; how many answers were refusals."""
    refused = 0
    for method, path, body in requests():
        answer = await chat.call(method, path, body)
        if answer.status_code == 503:
            code = "unavailable" if path == "/readyz" else "storage_unavailable"
            check_problem(answer, 503, code)
            assert not [word for word in INSIDES if word in answer.json()["detail"].lower()], answer.text
            refused += 1
            continue
        assert answer.status_code < 500, f"{method} {path}: {answer.text[:300]}"
        if answer.is_success and path.endswith("/unread") and "/channels/" in path and method == "GET":
            user = path.split("/")[3]
            assert (answer.json()["unread"], answer.json()["exact"]) == (TRUTH[user], True), path
    return refused


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda page: bytes(len(page)),
    "noise": lambda page: random.Random(7).randbytes(len(page)),
    "head": lambda page: b"\xff" * 16 + page[16:],
    "half": lambda page: page[: len(page) // 2] + random.Random(9).randbytes(len(page) - len(page) // 2),
}


@pytest.mark.parametrize("kind", ["zeros", "noise", *long(["head", "half"])])
async def test_whatever_page_is_damaged_answers_are_right_or_refused(tmp_path: Path, kind: str) -> None:
    sound = tmp_path / "sound"
    async with over(sound) as (_, chat):
        await fill(chat)
    content = (sound / "readstate.db").read_bytes()
    refused = started = 0
    details: list[str] = []
    for start in range(PAGE, len(content), PAGE):
        data = tmp_path / str(start)
        data.mkdir()
        damaged = content[:start] + DAMAGES[kind](content[start : start + PAGE]) + content[start + PAGE :]
        (data / "readstate.db").write_bytes(damaged)
        try:
            async with over(data, accept_data_loss=True) as (_, chat):
                started += 1
                refused += await check_all(chat)
        except StorageUnavailable as error:
            details.append(error.detail)
        shutil.rmtree(data)

    assert all("cannot be" in detail for detail in details), details
    assert started > 3
    assert refused > 3, "nothing was hit"


async def test_damage_under_a_running_service(tmp_path: Path) -> None:
    async with over(tmp_path / "data") as (rs, chat):
        await fill(chat)
        file = tmp_path / "data" / "readstate.db"
        with closing(sqlite3.connect(file)) as db:
            db.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        content = file.read_bytes()
        assert len(content) > 20 * PAGE
        with file.open("r+b") as opened:
            opened.seek(PAGE)
            opened.write(random.Random(3).randbytes(len(content) - PAGE))
        await rs.evict()

        assert await check_all(chat) > 10

        with file.open("r+b") as opened:
            opened.write(content)
        assert await chat.count("bob") == TRUTH["bob"]


@pytest.mark.parametrize("kind", ["zeros", "noise", *long(["head", "half"])])
def test_a_damaged_file_at_the_start_is_one_clear_line(tmp_path: Path, kind: str) -> None:
    shell = Shell(tmp_path)

    async def make() -> None:
        async with over(shell.data) as (_, chat):
            await fill(chat)

    asyncio.run(make())
    file = shell.data / "readstate.db"
    content = file.read_bytes()
    start = len(content) // PAGE // 2 * PAGE
    for at in (0, start):
        file.write_bytes(content[:at] + DAMAGES[kind](content[at : at + PAGE]) + content[at + PAGE :])

        said = shell.refuses("serve", "--port", "0")

        assert len(said.splitlines()) == 1, said
        assert "damaged" in said
        assert "readstate restore" in said


async def test_a_full_disk_is_not_ready_and_is_looked_at_once_a_second(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            chat = Chat(http, server.service_key)
            await chat.open_channel("alice", "bob")
            assert (await chat.call("GET", "/readyz")).status_code == 200
            server.limit_file_size((server.data_dir / "readstate.db-wal").stat().st_size)

            async def is_refused() -> bool:
                return (await chat.call("GET", "/readyz")).status_code == 503

            await eventually(is_refused, "a full disk is told")
            said = check_problem(await chat.call("GET", "/readyz"), 503, "unavailable")
            assert set(said["dependencies"]) == {"database"}
            server.lift_limit()

            async def is_ready() -> bool:
                return (await chat.call("GET", "/readyz")).status_code == 200

            await eventually(is_ready, "there is room again")


async def test_many_questions_are_one_look(tmp_path: Path) -> None:
    async with over(tmp_path / "data") as (rs, _):
        looks, all_asked = 0, asyncio.Event()

        async def look() -> None:
            nonlocal looks
            looks += 1
            await all_asked.wait()

        rs._profile.dependencies["counted"] = look
        asked = [asyncio.create_task(rs.ready()) for _ in range(50)]
        await asyncio.sleep(0)
        all_asked.set()

        assert {tuple(states.values()) for states in await asyncio.gather(*asked)} == {("ok", "ok")}
        assert looks == 1
