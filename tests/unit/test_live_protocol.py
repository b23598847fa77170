"""What a device sends, as it may arrive: in pieces, several at once, broken. No network, so each piece is certain."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState
from websockets.frames import Opcode

from readstate.gateway.ws.protocol import MAX_PARTS, LiveProtocol, live_protocol
from readstate.timings import HttpTimings

LIMIT = 70_000
"""Bytes that a message may have."""
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
MASK = b"\x11\x22\x33\x44"
PART_OF_TEXT, CONTINUED, LAST, BINARY, GOODBYE, PING, PONG = 0x01, 0x00, 0x80, 0x82, 0x88, 0x89, 0x8A


def frame(payload: bytes, first: int = 0x81, mask: bytes = MASK) -> bytes:
    """A frame of a client; a whole text if nothing else is said."""
    size = len(payload)
    if size < 126:
        head = bytes([first, 0x80 + size])
    elif size < 65_536:
        head = bytes([first, 0xFE]) + size.to_bytes(2)
    else:
        head = bytes([first, 0xFF]) + size.to_bytes(8)
    return head + mask + masked(payload, mask)


def masked(payload: bytes, mask: bytes = MASK) -> bytes:
    return bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


class Wire:
    """The transport: keeps what is written, and says whether it is read."""

    def __init__(self) -> None:
        self.written = b""
        self.reading = True
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, _: str) -> None:
        return None


class Line:
    """A connection as the server has it; the test is the device, and takes what came in place of the application."""

    def __init__(self, protocol: LiveProtocol, wire: Wire) -> None:
        self._protocol = protocol
        self.wire = wire

    def arrives(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._protocol.data_received(piece)

    async def take(self) -> Any:
        """The next message, which has come already."""
        event = cast("dict[str, Any]", await asyncio.wait_for(self._protocol.receive(), 5))
        return event.get("text", event.get("bytes", event["type"]))

    async def take_all(self) -> list[Any]:
        taken = []
        while not self._protocol.queue.empty():
            taken.append(await self.take())
        return taken

    def answers(self) -> list[tuple[int, bytes]]:
        """The small frames that were sent to the device."""
        return list(_small_frames(self.wire.written))

    def closed_with(self) -> int:
        [code] = [int.from_bytes(payload[:2]) for opcode, payload in self.answers() if opcode == Opcode.CLOSE]
        return code


def _small_frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        end = 2 + data[1]
        yield data[0] & 0x0F, data[2:end]
        data = data[end:]


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    accepted = asyncio.Event()

    async def app(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        accepted.set()
        await asyncio.Event().wait()

    config = uvicorn.Config(
        app, log_config=None, ws_max_size=LIMIT, ws_per_message_deflate=False, ws_ping_interval=None
    )
    state = ServerState()
    protocol = live_protocol(HttpTimings())(config=config, server_state=state, app_state={})
    wire = Wire()
    protocol.connection_made(cast("asyncio.Transport", wire))
    protocol.data_received(HANDSHAKE)
    await asyncio.wait_for(accepted.wait(), 5)
    assert wire.written.startswith(b"HTTP/1.1 101")
    wire.written = b""
    yield Line(protocol, wire)
    for task in state.tasks:
        task.cancel()
    if protocol.close_timer is not None:
        protocol.close_timer.cancel()


@pytest.mark.parametrize("size", [0, 1, 125, 126, 4_095, 4_096, 4_097, 65_535, 65_536, LIMIT])
async def test_a_text_of_any_size_arrives(line: Line, size: int) -> None:
    text = ("0123456789" * (size // 10 + 1))[:size]

    line.arrives(frame(text.encode()))

    assert await line.take_all() == [text]
    assert line.wire.reading


async def test_text_is_utf8(line: Line) -> None:
    line.arrives(frame("\u2603 \U0001f600".encode()))

    assert await line.take_all() == ["\u2603 \U0001f600"]


async def test_a_message_over_the_limit_ends_the_connection(line: Line) -> None:
    line.arrives(frame(b"x" * (LIMIT + 1)))

    assert line.closed_with() == 1009
    assert await line.take_all() == ["websocket.disconnect"]


async def test_parts_over_the_limit_together_end_the_connection(line: Line) -> None:
    line.arrives(frame(b"x" * LIMIT, PART_OF_TEXT), frame(b"x", LAST))

    assert line.closed_with() == 1009
    assert await line.take_all() == ["websocket.disconnect"]


BROKEN = {
    "not masked": (1002, b"\x81\x05hello"),
    "not masked and empty": (1002, b"\x81\x00"),
    "the first reserved bit, for compression": (1002, frame(b"hello", 0xC1)),
    "the second reserved bit": (1002, frame(b"hello", 0xA1)),
    "the third reserved bit": (1002, frame(b"hello", 0x91)),
    "an unknown opcode": (1002, frame(b"hello", 0x83)),
    "a continuation of nothing": (1002, frame(b"hello", LAST)),
    "a ping in parts": (1002, frame(b"", 0x09)),
    "a ping that is too long": (1002, frame(b"x" * 126, PING)),
    "a text within a text in parts": (1002, frame(b"hel", PART_OF_TEXT) + frame(b"lo")),
    "no utf-8": (1007, frame(b"\xff\xfe")),
    "half a character": (1007, frame("\u2603".encode()[:2])),
    "half of a surrogate pair": (1007, frame(b"\xed\xa0\x80")),
    "half a character in two parts": (1007, frame(b"\xe2", PART_OF_TEXT) + frame(b"\x98", LAST)),
}


@pytest.mark.parametrize(("code", "data"), BROKEN.values(), ids=BROKEN)
async def test_a_broken_frame_ends_the_connection_and_is_no_message(line: Line, code: int, data: bytes) -> None:
    line.arrives(data)

    assert line.closed_with() == code
    assert await line.take_all() == ["websocket.disconnect"]


@pytest.mark.parametrize("apart", [True, False])
async def test_after_a_broken_frame_nothing_is_heard(line: Line, apart: bool) -> None:
    pieces = [b"\x81\x05hello", frame(b"later")]

    line.arrives(*(pieces if apart else [b"".join(pieces)]))

    assert await line.take_all() == ["websocket.disconnect"]


async def test_a_frame_that_is_shorter_than_it_says_waits_for_the_rest(line: Line) -> None:
    whole = frame(b"x" * 200)

    line.arrives(whole[:-1])
    assert await line.take_all() == []

    line.arrives(whole[-1:])
    assert await line.take_all() == ["x" * 200]


async def test_wherever_a_stream_is_cut_the_same_messages_arrive(line: Line) -> None:
    stream = frame(b"one") + frame(b"tw", PART_OF_TEXT) + frame(b"", PING) + frame(b"o", LAST) + frame(b"y" * 130)
    for cut in range(1, len(stream)):
        line.arrives(stream[:cut], stream[cut:])

        assert await line.take_all() == ["one", "two", "y" * 130], cut


async def test_a_stream_byte_by_byte_arrives(line: Line) -> None:
    line.arrives(*(bytes([byte]) for byte in frame(b"one") + frame(b"two")))

    assert await line.take_all() == ["one", "two"]


@pytest.mark.parametrize("head", [2, 6])
async def test_a_payload_that_arrives_behind_its_header_is_never_taken_for_a_frame(line: Line, head: int) -> None:
    """Some clients write the two apart, and what is masked looks like anything, also like a frame."""
    mask = b"\x81\x84\x80\x80" if head == 2 else b"\x80" * 4
    like_a_frame = frame(b"forged", mask=b"\x80" * 4) if head == 6 else b"\x80" * 6
    whole = bytes([0x81, 0x80 + len(like_a_frame)]) + mask + like_a_frame

    line.arrives(whole[:head], whole[head:])
    line.arrives(frame(b"next"))

    assert await line.take_all() == [masked(like_a_frame, mask).decode(), "next"]


async def test_control_frames_are_answered_in_between(line: Line) -> None:
    line.arrives(frame(b"1", PING), frame(b"one"), frame(b"2", PONG))
    assert await line.take() == "one"
    line.arrives(frame(b"tw", PART_OF_TEXT), frame(b"3", PING), frame(b"o", LAST))

    assert await line.take_all() == ["two"]
    assert line.answers() == [(Opcode.PONG, b"1"), (Opcode.PONG, b"3")]


async def test_frames_behind_one_that_waits_are_taken_in_order_and_reading_stops(line: Line) -> None:
    line.arrives(frame(b"one"))
    assert not line.wire.reading
    line.arrives(frame(b"two"), frame(b"ping", PING), frame(b"\0\1", BINARY))  # were under way
    assert line.answers() == [], "what comes behind a message that waits is not parsed"

    assert [await line.take() for _ in range(3)] == ["one", "two", b"\0\1"]

    assert line.wire.reading
    assert line.answers() == [(Opcode.PONG, b"ping")]


async def test_a_goodbye_behind_a_message_that_waits_comes_after_it(line: Line) -> None:
    line.arrives(frame(b"one") + frame(b"\x03\xe8", GOODBYE))

    assert await line.take_all() == ["one", "websocket.disconnect"]
    assert line.closed_with() == 1000


async def test_a_device_that_does_not_read_is_not_heard_until_it_does(line: Line) -> None:
    protocol = line._protocol
    line.wire.get_write_buffer_size = lambda: 0  # type: ignore[attr-defined]
    protocol.pause_writing()
    assert not line.wire.reading
    line.arrives(frame(b"one"))  # was under way
    assert await line.take_all() == []

    protocol.resume_writing()

    assert await line.take_all() == ["one"]
    assert line.wire.reading


async def test_a_message_in_too_many_parts_ends_the_connection(line: Line) -> None:
    line.arrives(frame(b"x", PART_OF_TEXT), *[frame(b"x", CONTINUED)] * MAX_PARTS)

    assert line.closed_with() == 4429
    assert await line.take_all() == ["websocket.disconnect"]
