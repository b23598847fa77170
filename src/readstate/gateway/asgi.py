"""The few names of ASGI that the gateway uses."""

from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

Header = tuple[bytes, bytes]

API_HEADERS: tuple[Header, ...] = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""Answers are about one user at one moment, and never anything but what their type says."""


class Answer(NamedTuple):
    """A whole HTTP response but for its length, which is told when it is sent."""

    status: int
    headers: list[Header]
    body: bytes


class Stream(NamedTuple):
    """An HTTP response whose body is sent while it is being made."""

    status: int
    headers: list[Header]
    chunks: AsyncGenerator[bytes, None]


class Disconnected(Exception):
    """The client has gone before its request was complete."""


def content_type(value: str) -> Header:
    """A Content-Type header."""
    return (b"content-type", value.encode())
