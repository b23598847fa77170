"""Many devices: one that does not read, a thousand that come and go, and a service that stops."""

import asyncio
import gc
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from readstate.live.sessions import UserSession
from tests.conftest import JWT_SECRET, SERVICE_KEY, WAIT, Chat, eventually, token_for
from tests.servers import Server, serving

from .conftest import LiveService, live_service
from .device import open_device

KEY = "dGhlIHNhbXBsZSBub25jZQ=="


class Deaf:
    """A device that says hello and then never reads its socket again."""

    def __init__(self, url: str, user: str) -> None:
        place = urlsplit(url)
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect((place.hostname, place.port))
        self.socket.sendall(
            f"GET /v1/ws HTTP/1.1\r\nHost: {place.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n"
            f"Authorization: Bearer {token_for(user)}\r\n\r\n".encode()
        )
        self.socket.recv(4096)  # the service has switched protocols
        hello = json.dumps({"type": "hello", "device": "deaf"}).encode()
        masked = bytes([0x81, 0x80 | len(hello), 0, 0, 0, 0]) + hello  # a mask of zeros changes nothing
        self.socket.sendall(masked)

    def close(self) -> None:
        self.socket.close()


@asynccontextmanager
async def backend(server: Server) -> AsyncIterator[Chat]:
    async with httpx.AsyncClient(base_url=server.url, headers=WAIT, timeout=30) as http:
        yield Chat(http)


async def is_online(service: LiveService, user: str) -> bool:
    return bool((await service.chat.presence(user))["online"])


async def test_a_slow_device_is_closed_and_others_are_not_delayed(tmp_path: Path) -> None:
    async with live_service(tmp_path, max_queue=65_536, send_buffer=4096) as service:
        await service.chat.open_channel("alice", "bob", "carol")
        closed = await service.metric("readstate_ws_closed_total", code="4408")
        deaf = await asyncio.to_thread(Deaf, service.url, "bob")
        await eventually(lambda: is_online(service, "bob"), "bob's device is connected")
        carol = await service.fresh("carol")
        sent = 0
        while await is_online(service, "bob"):
            assert sent < 20_000, "the device that does not read was never closed"
            await service.chat.post_all(
                {"channel_id": "general", "sender_id": "alice", "text": "x" * 100, "id": f"m{sent + n}"}
                for n in range(100)
            )
            sent += 100
            await carol.first("message.new", message_id=f"m{sent - 1}")  # whoever reads hears all of it meanwhile
        messages = await carol.heard("message.new")
        assert [event["seq"] for event in messages] == list(range(1, sent + 1))

        async def closed_as_too_slow() -> bool:
            return await service.metric("readstate_ws_closed_total", code="4408") == closed + 1

        await eventually(closed_as_too_slow, "it is counted as too slow")
        deaf.close()
        again = await service.device("bob")
        await again.quiet()


async def test_a_thousand_connections_come_and_go_and_leave_nothing_behind(tmp_path: Path) -> None:
    async with live_service(tmp_path) as service:
        people = [f"p{number}" for number in range(50)]
        await service.chat.open_channel("alice", *people)
        tasks = len(asyncio.all_tasks())
        stop = asyncio.Event()

        async def write() -> int:
            number = 0
            while not stop.is_set():
                await service.chat.post("alice", text="hello", id=f"m{number}")
                number += 1
            return number

        async def live(number: int) -> None:
            """Comes, hears something, and goes: properly, without a word, or in the middle of coming."""
            device = await open_device(service.url, people[number % 50], f"device {number}", hello=number % 10 != 9)
            if number % 10 != 9:
                await device.first("message.new")
            await (device.cut() if number % 3 else device.close())

        writer = asyncio.create_task(write())
        gate = asyncio.Semaphore(100)

        async def one(number: int) -> None:
            async with gate:
                await live(number)

        await asyncio.gather(*(one(number) for number in range(1000)))
        stop.set()
        assert await writer > 0

        async def nothing_is_left() -> bool:
            return await service.metric("readstate_ws_connections") == 0 and len(asyncio.all_tasks()) <= tasks

        await eventually(nothing_is_left, "all connections and their tasks have ended")
        assert [(await service.chat.presence(name))["devices"] for name in people] == [[]] * 50
        await service.rs.live.close()
        gc.collect()
        assert not [one for one in gc.get_objects() if isinstance(one, UserSession)]


async def test_a_stop_says_come_back_and_nothing_is_lost_over_it(tmp_path: Path) -> None:
    with serving(tmp_path, service_keys=SERVICE_KEY, jwt_secret=JWT_SECRET) as server:
        async with backend(server) as chat:
            await chat.open_channel("alice", "bob")
            bob = await open_device(server.url, "bob")
            await chat.send("alice", "a1", "a2")
        stopped = asyncio.create_task(asyncio.to_thread(server.stop))
        assert await bob.ended() == 1012
        assert await stopped == 0
        await asyncio.to_thread(server.start)
        async with backend(server) as chat:
            await chat.send("alice", "a3")
            back = await open_device(server.url, "bob", resume=bob.resume)
            await back.quiet()
            frames = bob.frames + back.frames
            assert {frame["message_id"] for frame in frames if frame["type"] == "message.new"} == {"a1", "a2", "a3"}
            told = [frame["unread"] for frame in back.frames if frame["type"] == "unread.updated"]
            assert told[-1] == await chat.count("bob") == 3

            async def only_a3_came_while_bob_was_away() -> bool:
                return await chat.badge("bob") == 1

            await eventually(only_a3_came_while_bob_was_away, "the badge is 1")
            await back.close()
