"""The limit of live delivery: every message that is posted goes as one frame to all devices of its channel.

`python -m bench.baselines.echo_ws PORT WAY BYTES`: the server library of Readstate and nothing else. No tokens, no
store, no counts, no bounded queues; a frame is made once for a message, and is BYTES long for everyone. WAY is how
frames leave: `asgi` (a task for each device that awaits `send`) or `direct` (one write for each device and turn of the
event loop, past ASGI).
"""

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from ..load import HOST

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

FORM = (
    '{"type":"message.new","channel_id":"%s","message_id":"%s","seq":%d,"sender_id":"%s","at":1700000000000,'
    '"preview":"%s","counts":true,"mentions_me":false,"silent":false,"resume":"%s"}'
)


class Message(msgspec.Struct):
    id: str
    channel_id: str
    sender_id: str
    text: str


class Messages(msgspec.Struct):
    messages: list[Message]


class Members(msgspec.Struct):
    """Who is in a channel: given when it is made, or added."""

    add: list[str] = []
    members: list[str] = []


class Hello(msgspec.Struct):
    """The device is named after its user here."""

    device: str


class Device(Protocol):
    """Takes text that goes out as one frame."""

    def push(self, text: str, frame: bytes) -> None: ...


class AwaitedDevice:
    """Sends as the ASGI standard has it: a task takes from a queue and awaits each frame."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._texts: deque[str] = deque()
        self._filled = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._write())

    def push(self, text: str, frame: bytes) -> None:
        self._texts.append(text)
        self._filled.set()

    async def _write(self) -> None:
        while await self._filled.wait():
            while self._texts:
                await self._send({"type": "websocket.send", "text": self._texts.popleft()})
            self._filled.clear()


class Turn:
    """The devices with something to send: one callback at the end of the turn writes for all of them."""

    def __init__(self) -> None:
        self._devices: list[DirectDevice] = []

    def add(self, device: "DirectDevice") -> None:
        if not self._devices:
            asyncio.get_running_loop().call_soon(self._end)
        self._devices.append(device)

    def _end(self) -> None:
        devices, self._devices = self._devices, []
        for device in devices:
            device.flush()


turn = Turn()


class DirectDevice:
    """Joins the frames of a turn and hands them to the transport."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._frames: list[bytes] = []

    def push(self, text: str, frame: bytes) -> None:
        if not self._frames:
            turn.add(self)
        self._frames.append(frame)

    def flush(self) -> None:
        frames, self._frames = self._frames, []
        self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))


class DirectProtocol(WebSocketsSansIOProtocol):
    """Shows the application its transport."""

    async def run_asgi(self) -> None:
        """Run the application."""
        self.scope["state"]["transport"] = self.transport
        await super().run_asgi()


def framed(text: bytes) -> bytes:
    """A text frame of a server: not masked, in one piece."""
    size = len(text)
    return b"\x81%c%b" % (size, text) if size < 126 else b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), text)


class Echo:
    """Devices by user, users by channel."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._seq = 0
        self._members: dict[str, list[str]] = {}
        self._devices: dict[str, Device] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket of a device, or a request that makes a channel or sends messages."""
        if scope["type"] == "websocket":
            await self._connect(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        user = msgspec.json.decode((await receive())["text"], type=Hello).device
        await send({"type": "websocket.send", "text": '{"type":"ready"}'})
        await send({"type": "websocket.send", "text": '{"type":"badge.updated"}'})
        transport = scope["state"].get("transport")
        self._devices[user] = AwaitedDevice(send) if transport is None else DirectDevice(transport)
        while (await receive())["type"] != "websocket.disconnect":
            pass
        del self._devices[user]

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", scope["method"] != "GET"
        while more:
            part = await receive()
            body, more = body + part["body"], part["more_body"]
        answer = self._take(scope["path"], body) if body else b"{}"
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def _take(self, path: str, body: bytes) -> bytes:
        if path == "/v1/messages":
            messages = msgspec.json.decode(body, type=Messages).messages
            for message in messages:
                self._fan_out(message)
            return msgspec.json.encode({"results": [{"status": "accepted"}] * len(messages)})
        given = msgspec.json.decode(body, type=Members)
        self._members.setdefault(path.split("/")[3], []).extend(given.add + given.members)
        return b"{}"

    def _fan_out(self, message: Message) -> None:
        self._seq += 1
        values = (message.channel_id, message.id, self._seq, message.sender_id, message.text)
        text = FORM % (*values, "x" * (self._size - len(FORM % (*values, ""))))
        frame = framed(text.encode())
        for user in self._members[message.channel_id]:
            self._devices[user].push(text, frame)


def main(port: int, way: str, size: int) -> None:
    """Serve until a signal."""
    uvicorn.run(
        Echo(size),
        host=HOST,
        port=port,
        loop="uvloop",
        http="httptools",
        ws=DirectProtocol if way == "direct" else WebSocketsSansIOProtocol,
        ws_per_message_deflate=False,
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
