"""Devices over a power cut: what they come back with is still good, and nothing is missed."""

import asyncio
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import GENERAL, JWT_SECRET, SERVICE_KEY, WAIT, Chat
from tests.servers import Server, serving

from .device import Device, open_device
from .state import Follower


class LiveService:
    """A service in a child process, at whatever address it has now."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.chat: Chat

    async def device(self, user: str, name: str = "phone", **options: Any) -> Device:
        return await open_device(self.server.url, user, name, **options)


async def test_nothing_is_missed_over_power_cuts(tmp_path: Path) -> None:
    """Messages and reads go on; the service is killed in the middle of them, and the device comes back each time."""
    with serving(tmp_path / "data", service_keys=SERVICE_KEY, jwt_secret=JWT_SECRET) as server:
        service = LiveService(server)
        accepted: list[int] = []
        follower: Follower | None = None
        for life in range(3):
            async with httpx.AsyncClient(base_url=server.url, headers=WAIT, timeout=30) as http:
                service.chat = chat = Chat(http)
                if follower is None:
                    await chat.open_channel("alice", "bob")
                    follower = await Follower(service, "bob", "phone").start()
                else:
                    await follower.come_back()
                    await follower.agrees()
                writing = asyncio.create_task(write(chat, f"life {life}", accepted))
                await follower.device.first("message.new", message_id=f"life {life}, 20")
                await follower.device.ask("mark_read", channel_id=GENERAL, up_to=f"life {life}, {5 * life + 1}")
                await asyncio.to_thread(server.kill)
                await writing
            await asyncio.to_thread(server.start)
        async with httpx.AsyncClient(base_url=server.url, headers=WAIT, timeout=30) as http:
            service.chat = Chat(http)
            assert follower is not None
            await follower.come_back()
            await follower.agrees()
            heard = {message["seq"] for message in follower.messages}
            assert set(accepted) <= heard
            await follower.device.close()


async def write(chat: Chat, name: str, accepted: list[int]) -> None:
    """Writes until the service is gone."""
    for number in range(1, 10_000):
        try:
            result = await chat.post("alice", id=f"{name}, {number}", text="hello")
        except httpx.TransportError:
            return
        accepted.append(result["seq"])


async def test_a_power_cut_in_focus_shows_at_worst_what_was_read_last_again(tmp_path: Path) -> None:
    """Reads by focus may be gathered for up to a second: then they are written, and stay."""
    with serving(tmp_path / "data", service_keys=SERVICE_KEY, jwt_secret=JWT_SECRET) as server:
        async with httpx.AsyncClient(base_url=server.url, headers=WAIT, timeout=30) as http:
            chat = Chat(http)
            await chat.open_channel("alice", "bob")
            phone, laptop = [await open_device(server.url, "bob", name) for name in ("phone", "laptop")]
            await phone.ask("channel.focus", channel_id=GENERAL)
            await chat.send("alice", "m1", "m2")
            await laptop.first("read_pointer.updated", last_read_id="m2")  # it is told when it is written
            await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with httpx.AsyncClient(base_url=server.url, headers=WAIT, timeout=30) as http:
            assert await Chat(http).count("bob") == 0
            back = await open_device(server.url, "bob", resume=laptop.resume)
            await back.close()
