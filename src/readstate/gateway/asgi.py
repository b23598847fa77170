"""The names of ASGI that the gateway uses."""

from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

Header = tuple[bytes, bytes]

API_HEADERS: tuple[Header, ...] = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""Answers are about one user at one time, so they are not cached; browsers must not guess their type."""
JSON_HEADERS: list[Header] = [(b"content-type", b"application/json"), *API_HEADERS]


class Answer(NamedTuple):
    """An HTTP response without its length, which is added when it is sent."""

    status: int
    headers: list[Header]
    body: bytes


class Stream(NamedTuple):
    """An HTTP response whose body is sent while it is produced."""

    status: int
    headers: list[Header]
    chunks: AsyncGenerator[bytes, None]


class Disconnected(Exception):
    """The client disconnected before its request was complete."""


def content_type(value: str) -> Header:
    return (b"content-type", value.encode())
