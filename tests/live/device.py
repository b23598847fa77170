"""A device of a user: one WebSocket connection, in the product's words."""

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.conftest import token_for

DEADLINE = 60.0
ANSWERS = frozenset({"ack", "error", "pong"})

Frame = dict[str, Any]


class Cut(AssertionError):
    """The connection ended before what was waited for came."""


class Device:
    """What one device says and hears. Frames are taken off the socket at once, in order."""

    def __init__(self, socket: ClientConnection, user: str, name: str) -> None:
        self.socket = socket
        self.user = user
        self.name = name
        self.ready: Frame = {}
        self.resume: str | None = None
        """The newest cursor that was seen: what the device comes back with."""
        self.frames: list[Frame] = []
        """Everything that came, in order, since `forget`."""
        self.on_frame: Callable[[Frame], None] = lambda _: None
        self._events: list[Frame] = []
        self._answers: dict[object, Frame] = {}
        self._asked: dict[object, Frame] = {}
        self._fault: Exception | None = None
        self._news = asyncio.Event()
        self._refs = itertools.count(1)
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for text in self.socket:
                self._take(json.loads(text))
        except ConnectionClosed:
            pass
        except Exception as error:
            self._fault = error
            await self.socket.close()
        finally:
            self._news.set()

    def _take(self, frame: Frame) -> None:
        self.frames.append(frame)
        self.resume = frame.get("resume") or self.resume
        if frame["type"] == "ready":
            self.ready = frame
        elif frame["type"] not in ANSWERS:
            self._events.append(frame)
        elif "ref" in frame:
            self._answers[frame["ref"]] = frame
        self.on_frame(self._told(frame))
        self._news.set()

    def _told(self, frame: Frame) -> Frame:
        """A frame with what it answers, for those who follow the whole conversation."""
        asked = self._asked.pop(frame["ref"], None) if "ref" in frame else None
        return frame if asked is None else {**frame, "answers": asked}

    # ------------------------------------------------------------ speaking

    async def say(self, kind: str, **fields: Any) -> None:
        """Sends a frame and waits for nothing."""
        await self.socket.send(json.dumps({"type": kind} | fields))

    async def do(self, kind: str, **fields: Any) -> Frame:
        """Sends a frame and returns its answer, whatever it is."""
        ref = fields.pop("ref", None) or f"{kind} {next(self._refs)}"
        self._asked[ref] = {"type": kind, "ref": ref} | fields
        try:
            await self.say(kind, ref=ref, **fields)
        except ConnectionClosed:
            raise Cut(f"{self} was closed ({self.socket.close_code}) before {kind} was sent") from None
        await self.until(lambda: ref in self._answers, f"{kind} is answered")
        return self._answers.pop(ref)

    async def ask(self, kind: str, **fields: Any) -> Frame:
        """Sends a frame that must be done, and returns its ack."""
        answer = await self.do(kind, **fields)
        assert answer["type"] == "ack", answer
        return answer

    async def hello(self, **fields: Any) -> None:
        """Says which device this is, and waits until it is live: told what it missed, and the badge."""
        await self.say("hello", device=self.name, **fields)
        await self.until(lambda: bool(self.ready), "the service is ready")
        await self.first("badge.updated")

    # ------------------------------------------------------------ hearing

    async def until(self, condition: Callable[[], bool], what: str, deadline: float = DEADLINE) -> None:
        """Returns when the condition holds; it is looked at after every frame."""
        try:
            async with asyncio.timeout(deadline):
                while not condition():
                    if self._fault is not None:
                        raise AssertionError(f"{self} can't take {self.frames[-1]}") from self._fault
                    if self._reader.done():
                        raise Cut(f"{self} was closed ({self.socket.close_code}) before {what}")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{self} waited {deadline} s in vain until {what}; heard {self.frames}") from None

    async def first(self, kind: str, **fields: Any) -> Frame:
        """The first event of a kind with these fields, of those that `heard` has not given out."""

        def found() -> Frame | None:
            return next((e for e in self._events if e["type"] == kind and fields.items() <= e.items()), None)

        await self.until(lambda: found() is not None, f"{kind} {fields} comes")
        event = found()
        assert event is not None
        return event

    async def quiet(self) -> None:
        """Returns when everything that was announced until now has come."""
        assert (await self.do("ping"))["type"] == "pong"

    async def heard(self, kind: str | None = None) -> list[Frame]:
        """The events (of a kind) that have come since this was asked last, in order."""
        await self.quiet()
        events, self._events = self._events, []
        return [event for event in events if kind in {None, event["type"]}]

    async def kinds(self) -> list[str]:
        """The kinds of the events that have come since `heard`, in order."""
        return [event["type"] for event in await self.heard()]

    # ------------------------------------------------------------ ends

    async def close(self) -> None:
        """Says goodbye."""
        await self.socket.close()
        await self._reader

    async def cut(self) -> None:
        """Is gone without a word, as in a tunnel."""
        self.socket.transport.abort()
        await self._reader

    async def ended(self) -> int | None:
        """The code with which the service closes the connection."""
        async with asyncio.timeout(DEADLINE):
            await self.socket.wait_closed()
            await self._reader
        return self.socket.close_code

    def __str__(self) -> str:
        return f"{self.user}'s {self.name}"


async def open_device(
    url: str,
    user: str,
    name: str = "phone",
    *,
    token: str | None = None,
    path: str = "/v1/ws",
    hello: bool = True,
    on_frame: Callable[[Frame], None] | None = None,
    **options: Any,
) -> Device:
    """A connection with the token in its header; live if it says `hello` (with `resume`)."""
    more = {key: options.pop(key) for key in ("resume",) if options.get(key) is not None}
    options.pop("resume", None)
    headers = {"Authorization": f"Bearer {token or token_for(user)}"}
    device = Device(await open_socket(url, path, additional_headers=headers, **options), user, name)
    if on_frame is not None:
        device.on_frame = on_frame
    if hello:
        await device.hello(**more)
    return device


async def open_socket(url: str, path: str = "/v1/ws", **options: Any) -> ClientConnection:
    """A bare connection, that has said nothing yet."""
    defaults = {"compression": None, "max_size": None, "ping_interval": None, "max_queue": None}
    options = defaults | {"open_timeout": DEADLINE} | options
    return await connect(url.replace("http", "ws", 1) + path, proxy=None, **options)
