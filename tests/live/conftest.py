"""The whole service on a real port in this process: HTTP for the backend, WebSockets for devices."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from prometheus_client import generate_latest

from readstate import Readstate, telemetry
from readstate.cli.serving import server_config
from readstate.timings import LiveTimings
from tests import stores
from tests.conftest import JWT_SECRET, SERVICE_KEY, WAIT, Chat

from .device import Device, open_device


class LiveService:
    """A service, the backend's view of it, and the devices that are connected to it."""

    def __init__(self, rs: Readstate, chat: Chat, url: str) -> None:
        self.rs = rs
        self.chat = chat
        self.url = url
        self.devices: list[Device] = []

    async def device(self, user: str, name: str = "phone", **options: Any) -> Device:
        """A device of a user that is live, and has heard nothing but the start."""
        device = await open_device(self.url, user, name, **options)
        self.devices.append(device)
        return device

    async def fresh(self, user: str, name: str = "phone", **options: Any) -> Device:
        """The same, and what was told at its start is forgotten."""
        device = await self.device(user, name, **options)
        await device.heard()
        device.frames.clear()
        return device

    async def metric(self, name: str, **labels: str) -> float:
        """The value of a metric, 0 if it was never counted. What HTTP tells may be a second old."""
        wanted = name + ("{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}" if labels else "")
        lines = generate_latest(telemetry.REGISTRY).decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == wanted), 0.0)


class _Server(uvicorn.Server):
    """Started and stopped by the test, not by signals or a loop of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def live_service(
    data_dir: Path, *, clock: Any = None, send_buffer: int | None = None, **settings: Any
) -> AsyncIterator[LiveService]:
    """The service as `readstate serve` runs it, but in this process."""
    options: dict[str, Any] = {"service_keys": (SERVICE_KEY,), "jwt_secret": JWT_SECRET, "data_dir": str(data_dir)}
    options |= stores.UNLIMITED | stores.settings_of(data_dir) | {"timings": stores.timings()} | settings
    options |= {} if clock is None else {"clock": clock}
    options["timings"] = replace(options["timings"], live=LiveTimings(retry=0.01))
    async with Readstate.open(**options) as rs, stores.with_workers(rs):
        listener = socket.socket(proto=socket.IPPROTO_TCP)  # so that asyncio sets TCP_NODELAY
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        listener.bind(("127.0.0.1", 0))
        config = server_config(rs)
        config.load()
        server = _Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup([listener])
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            # Devices come over the network. The backend takes a shorter way, which is half the work.
            transport = httpx.ASGITransport(app=config.loaded_app)
            async with httpx.AsyncClient(transport=transport, base_url=url, headers=WAIT) as http:
                service = LiveService(rs, Chat(http, settle=partial(stores.settle, rs)), url)
                yield service
                await asyncio.gather(*(device.close() for device in service.devices))
        finally:
            await server.shutdown([listener])


@pytest.fixture(params=["ledger", "timeline"])
def mode(request: pytest.FixtureRequest) -> str:
    """How channels of two members and more are counted."""
    return str(request.param)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[LiveService]:
    """A service with alice, bob and carol in the channel general."""
    async with live_service(tmp_path) as service:
        await service.chat.open_channel("alice", "bob", "carol")
        yield service


@pytest.fixture
async def either(tmp_path: Path, mode: str) -> AsyncIterator[LiveService]:
    """The same, told twice: once counting by ledgers, once by timelines."""
    async with live_service(tmp_path, fanout_max_members=100 if mode == "ledger" else 1) as service:
        await service.chat.open_channel("alice", "bob", "carol")
        yield service
