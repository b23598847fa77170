"""A store that cannot be written: 503, nothing half done, and recovery without a restart."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from readstate import Readstate
from readstate.gateway import asgi_app
from readstate.timings import SqlTimings, Timings
from tests.conftest import SERVICE_KEY, Chat, check_problem, eventually, of
from tests.servers import Server, serving

USERS = ("alice", "bob", "carol", "dave")
CHANNELS = ("small", "large")


async def prepare(chat: Chat) -> None:
    """Two channels, one counted in each way, with history."""
    await chat.open_channel("alice", "bob", channel="small")
    await chat.open_channel(*USERS, channel="large")
    for channel in CHANNELS:
        await chat.post_all(
            {"channel_id": channel, "sender_id": "alice", "id": f"m{number}", "text": "x" * 500} for number in range(30)
        )
        await chat.read("bob", channel, messages=["m5"])
        await chat.read("bob", channel, up_to="m1")


def writes() -> list[tuple[str, str, Any]]:
    """One request of every kind that writes."""
    long = "x" * 4000
    requests: list[tuple[str, str, Any]] = [
        ("PUT", "/v1/channels/new", {"type": "group", "members": ["alice"]}),
        ("POST", "/v1/users/bob/read", {"all": True}),
        ("POST", "/v1/users/bob/read", {"items": [{"channel_id": "small"}, {"channel_id": "large"}]}),
    ]
    for channel in CHANNELS:
        message = {"channel_id": channel, "sender_id": "alice", "text": long, "mentions": ["bob"]}
        requests += [
            ("POST", "/v1/messages", message | {"id": "lost"}),
            ("PUT", f"/v1/channels/{channel}", {"name": "Renamed"}),
            ("POST", f"/v1/channels/{channel}/members", {"add": ["erin"], "remove": ["carol"]}),
            ("PATCH", f"/v1/channels/{channel}/messages/m9", {"text": long, "mentions": ["bob"]}),
            ("DELETE", f"/v1/channels/{channel}/messages/m10", None),
            ("POST", f"{of('bob', channel)}/read", {}),
            ("POST", f"{of('bob', channel)}/read", {"messages": ["m7"]}),
            ("POST", f"{of('bob', channel)}/unread", {"from": "m0"}),
            ("PUT", f"{of('bob', channel)}/preferences", {"muted": True}),
        ]
    return [*requests, ("DELETE", "/v1/channels/small", None)]


async def check_nothing_works_and_nothing_changes(chat: Chat, before: dict[str, Any]) -> None:
    """Every write is refused alone and together with others; every question is answered as before."""
    for method, path, body in writes():
        check_problem(await chat.call(method, path, body), 503, "storage_unavailable")
    for refused in await asyncio.gather(*(chat.call(*write) for write in writes())):
        check_problem(refused, 503, "storage_unavailable")
    await check_batches_fail(chat)
    assert await chat.snapshot(USERS, CHANNELS) == before
    for user, channel in [("bob", "small"), ("bob", "large"), ("carol", "large")]:
        await chat.count(user, channel)
    assert (await chat.call("GET", "/v1/channels/new")).status_code == 404
    assert (await chat.call("GET", "/healthz")).status_code == 200


async def check_batches_fail(chat: Chat) -> None:
    """A batch that cannot be stored is refused as a whole, so that its sender tries again."""
    message = {"channel_id": "small", "sender_id": "alice", "id": "lost"}
    read = {"user_id": "bob", "channel_id": "small"}
    batch = await chat.call("POST", "/v1/messages", {"messages": [message, message | {"channel_id": "large"}]})
    reads = await chat.call("POST", "/v1/reads", {"reads": [read, read | {"channel_id": "large"}]})

    check_problem(batch, 503, "storage_unavailable")
    check_problem(reads, 503, "storage_unavailable")


async def check_all_works_again(chat: Chat) -> None:
    """Once there is room, the same requests are done, with no gap from those that were refused."""

    async def is_written() -> bool:
        answer = await chat.call("POST", f"{of('bob', 'small')}/read", {"up_to": "m2"})
        return answer.is_success

    await eventually(is_written, "the service writes again")
    for channel in CHANNELS:
        sent = await chat.post("alice", channel, id="lost", mentions=["bob"])
        assert (sent["status"], sent["seq"]) == ("accepted", 31)
        await chat.read("bob", channel, up_to="m29")
        assert await chat.waiting("bob", channel=channel) == ["lost"]
        assert (await chat.unread("bob", channel))["mentions"] == 1
        await chat.delete("m10", channel)
    await check_counts(chat)
    assert (await chat.call("GET", "/readyz")).status_code == 200


async def check_counts(chat: Chat) -> None:
    for channel in CHANNELS:
        assert await chat.count("bob", channel) == 1
    for user in ("carol", "dave"):
        assert await chat.count(user, "large") == 30


@asynccontextmanager
async def talking_to(server: Server) -> AsyncIterator[Chat]:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        yield Chat(http, server.service_key)


def room_for(server: Server, extra: int) -> int:
    """A size that the write-ahead log has reached already, but for `extra` bytes."""
    return (server.data_dir / "readstate.db-wal").stat().st_size + extra


@pytest.mark.parametrize("extra", [0, 100, 4000])
async def test_a_full_disk_refuses_writes_and_recovers_by_itself(tmp_path: Path, extra: int) -> None:
    with serving(tmp_path / "data", fanout_max_members=2) as server:
        async with talking_to(server) as chat:
            await prepare(chat)
            before = await chat.snapshot(USERS, CHANNELS)

            server.limit_file_size(room_for(server, extra))
            await check_nothing_works_and_nothing_changes(chat, before)
            server.lift_limit()

            await check_all_works_again(chat)

        server.kill()
        server.start()
        async with talking_to(server) as chat:
            await check_counts(chat)


PAGE = 4096 + 24
"""What one page takes in the write-ahead log."""

WHOLE_OR_NOT: dict[str, Callable[[int], tuple[str, str, Any]]] = {
    "send": lambda n: ("POST", "/v1/messages", new_message(n)),
    "send without an id": lambda n: ("POST", "/v1/messages", new_message(n) | {"id": None}),
    "send in both channels": lambda n: (
        "POST",
        "/v1/messages",
        {"messages": [new_message(n, channel) for channel in CHANNELS]},
    ),
    "read": lambda n: ("POST", f"{of('bob', 'large')}/read", {"up_to": f"m{n + 3}"}),
    "read one by one": lambda n: ("POST", f"{of('bob', 'large')}/read", {"messages": [f"m{29 - n}"]}),
    "mark unread": lambda n: ("POST", f"{of('bob', 'large')}/unread", {"from": f"m{n % 3}"}),
    "mark all read": lambda _: ("POST", "/v1/users/carol/read", {"all": True}),
    "join": lambda n: ("POST", "/v1/channels/large/members", {"add": [f"erin{n}"], "history": 2}),
    "leave": lambda n: ("POST", "/v1/channels/large/members", {"remove": ["dave"]}),
    "new channel": lambda n: ("PUT", f"/v1/channels/new{n}", {"type": "group", "members": ["bob", "alice"]}),
    "edit": lambda n: ("PATCH", f"/v1/channels/large/messages/m{n}", {"text": "y" * 4000, "mentions": ["bob"]}),
    "delete": lambda n: ("DELETE", f"/v1/channels/large/messages/m{n}", None),
    "prefer": lambda n: ("PUT", f"{of('bob', 'large')}/preferences", {"muted": n % 2 == 0}),
    "delete a channel": lambda _: ("DELETE", "/v1/channels/small", None),
}


def new_message(number: int, channel: str = "large") -> dict[str, Any]:
    text = "x" * 3000
    return {"channel_id": channel, "sender_id": "alice", "id": f"n{number}", "text": text, "mentions": ["bob"]}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("full") / "data", fanout_max_members=2) as server:
        yield server


@pytest.mark.parametrize("kind", WHOLE_OR_NOT)
async def test_a_disk_that_fills_up_within_a_write_does_it_wholly_or_not_at_all(full: Server, kind: str) -> None:
    async with talking_to(full) as chat:
        await start_over(chat)
        refused = 0
        for pages in range(12):
            method, path, body = WHOLE_OR_NOT[kind](pages)
            before = await chat.snapshot(USERS, CHANNELS)
            full.limit_file_size(room_for(full, pages * PAGE))
            answer = await chat.call(method, path, body)
            full.lift_limit()
            if answer.is_success:
                break
            check_problem(answer, 503, "storage_unavailable")
            assert await chat.snapshot(USERS, CHANNELS) == before, f"half done with room for {pages} pages"
            refused += 1
        else:
            pytest.fail("refused with a lot of room")
        assert refused, "done without any room"


async def start_over(chat: Chat) -> None:
    """The two channels as they are at first, in a service that has served another story."""
    for channel in CHANNELS:
        if (await chat.call("GET", f"/v1/channels/{channel}")).is_success:
            await chat.delete_channel(channel)
    await prepare(chat)


async def test_a_disk_without_any_room_and_a_kill_lose_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "data", fanout_max_members=2) as server:
        async with talking_to(server) as chat:
            await prepare(chat)
            before = await chat.snapshot(USERS, CHANNELS)
            server.limit_file_size(0)
            await check_nothing_works_and_nothing_changes(chat, before)

        server.kill()
        server.start()

        async with talking_to(server) as chat:
            assert await chat.snapshot(USERS, CHANNELS) == before
            await check_all_works_again(chat)


async def test_a_disk_that_fills_up_under_load_loses_nothing_acknowledged(tmp_path: Path) -> None:
    with serving(tmp_path / "data", fanout_max_members=2) as server:
        async with talking_to(server) as chat:
            await prepare(chat)
            server.limit_file_size(room_for(server, 100_000))
            message = {"sender_id": "alice", "text": "x" * 2000}

            async def send(number: int) -> tuple[str, str] | None:
                channel = CHANNELS[number % 2]
                whole = message | {"channel_id": channel, "id": f"n{number}"}
                answer = await chat.call("POST", "/v1/messages", whole)
                if answer.is_success:
                    return channel, f"n{number}"
                check_problem(answer, 503, "storage_unavailable")
                return None

            results = await asyncio.gather(*(send(number) for number in range(400)))
            assert None in results, "the disk never became full"
            accepted = {result for result in results if result}
            await check_stored(chat, accepted)
            server.lift_limit()
            again = await asyncio.gather(*(send(number) for number in range(400)))
            assert None not in again
            await check_stored(chat, {result for result in again if result})


async def check_stored(chat: Chat, accepted: set[tuple[str, str]]) -> None:
    """What was accepted is there, nothing else is, and the seqs have no gap."""
    for channel in CHANNELS:
        shown = await chat.all_waiting("bob", channel)
        new = {message["id"] for message in shown if message["id"].startswith("n")}
        assert new == {name for place, name in accepted if place == channel}
        await chat.count("bob", channel)
        assert (await chat.explain("bob", channel))["latest_seq"] == 30 + len(new)


async def test_a_store_that_another_program_locks_refuses_writes_and_recovers_by_itself(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data_dir": str(tmp_path), "fanout_max_members": 2, "service_keys": (SERVICE_KEY,)}
    impatient = Timings(sql=SqlTimings(busy=0.02))
    async with Readstate.open(timings=impatient, **options) as rs:
        transport = httpx.ASGITransport(app=asgi_app(rs))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            chat = Chat(http)
            await prepare(chat)
            before = await chat.snapshot(USERS, CHANNELS)

            with contextlib.closing(sqlite3.connect(rs.settings.database_path)) as other:
                other.execute("BEGIN IMMEDIATE")
                await check_nothing_works_and_nothing_changes(chat, before)
                await rs.evict()
                assert await chat.snapshot(USERS, CHANNELS) == before

            await check_all_works_again(chat)
