"""A device that reads too slowly is told so, and loses nothing by it."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

from tests.conftest import GENERAL

from .conftest import LiveService, live_service
from .device import Device
from .test_presence import badge_becomes, gone

TEXT = "x" * 500


def narrow_socket(url: str) -> socket.socket:
    """A connection that holds little for a device that does not read."""
    place = urlsplit(url)
    narrow = socket.socket(proto=socket.IPPROTO_TCP)
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    narrow.connect((place.hostname, place.port))
    narrow.setblocking(False)
    return narrow


async def write_until_too_slow(service: LiveService, others: Device) -> int:
    """Writes until a connection is closed for being too slow; others hear all of it meanwhile."""
    before = await service.metric("readstate_ws_closed_total", code="4408")
    sent = 0
    while await service.metric("readstate_ws_closed_total", code="4408") == before:
        assert sent < 20_000, "the device that does not read is never closed"
        batch = [{"channel_id": GENERAL, "sender_id": "alice", "preview": TEXT} for _ in range(100)]
        await service.chat.post_all(batch)
        sent += 100
        await others.first("message.new", seq=sent)
    return sent


async def test_a_device_that_was_too_slow_is_told_and_comes_back_to_all_it_missed(tmp_path: Path) -> None:
    async with live_service(tmp_path, max_queue=65_536, send_buffer=4096) as service:
        await service.chat.open_channel("alice", "bob", "carol")
        slow = await service.fresh("bob", sock=narrow_socket(service.url))
        carol = await service.fresh("carol")
        slow.socket.transport.pause_reading()

        sent = await write_until_too_slow(service, carol)
        slow.socket.transport.resume_reading()

        assert await slow.ended() == 4408
        heard = [frame["seq"] for frame in slow.frames if frame["type"] == "message.new"]
        assert heard == list(range(1, len(heard) + 1))
        assert len(heard) < sent
        back = await service.device("bob", resume=slow.resume)
        events = await back.heard()
        told = {event["seq"] for event in events if event["type"] == "message.new"}
        complete = {*heard, *told} == set(range(1, sent + 1))
        assert complete or "sync.required" in {event["type"] for event in events}


async def test_a_device_that_reads_again_in_time_hears_everything(tmp_path: Path) -> None:
    async with live_service(tmp_path, send_buffer=4096) as service:
        await service.chat.open_channel("alice", "bob")
        slow = await service.fresh("bob", sock=narrow_socket(service.url))
        slow.socket.transport.pause_reading()
        batch = [{"channel_id": GENERAL, "sender_id": "alice", "preview": TEXT} for _ in range(1000)]
        await service.chat.post_all(batch)  # about 700 KB, under the bound of 1 MiB

        slow.socket.transport.resume_reading()

        assert [event["seq"] for event in await slow.heard("message.new")] == list(range(1, 1001))


async def test_a_device_that_takes_nothing_and_answers_no_ping_is_gone(tmp_path: Path) -> None:
    """What it has not taken stays in the connection, and would keep that open as long as the network does."""
    async with live_service(tmp_path, heartbeat=2, send_buffer=4096) as service:
        await service.chat.open_channel("alice", "bob")
        frozen = await service.fresh("bob", sock=narrow_socket(service.url))
        frozen.socket.transport.pause_reading()
        batch = [{"channel_id": GENERAL, "sender_id": "alice", "preview": TEXT} for _ in range(1000)]

        async with gone(service):
            await service.chat.post_all(batch)  # under the bound of 1 MiB

        await badge_becomes(service, 1)
        await frozen.cut()
