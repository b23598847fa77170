"""A chat product that talks to Readstate over HTTP, in the product's words. Shared by all tests over HTTP."""

import asyncio
import importlib.util
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import jwt
import pytest
import structlog
from hypothesis import HealthCheck, settings

from readstate.domain.errors import LogUnavailable
from tests import stores

settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")

# Whoever is started in the background has Ctrl+C turned off, and so have all that it starts: tests press it.
with suppress(ValueError):
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test meets a certificate of a public authority, and to read those of all authorities takes 40 ms for each client.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.devnull
# httpx looks for it on the disk in each request. Where it is not installed, that is in vain.
if importlib.util.find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]

SLOW = [
    "test_js_client",
    "test_on_servers",
    "test_no_addresses",
    "test_chaos",
    "test_three_brokers",
    "test_stateful",
    "test_fleet",
    "test_crash",
]
"""They take long by themselves, and begin first: no process is left with one of them when the others are done."""
SERVICE_KEY = "the-service-key-of-the-tests"
JWT_SECRET = "the-jwt-secret-of-the-tests-with-32-bytes-or-more"
GENERAL = "general"
WAIT = {"prefer": "wait"}
"""Sent with every request: messages have their places when the answer comes, whatever the log is."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After they were shuffled."""
    order = {stem: number for number, stem in enumerate(SLOW)}
    items.sort(key=lambda item: order.get(item.path.stem, len(SLOW)))


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command that runs inside of a test sets up logging for the whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _stores_for_one_test(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    directory = getattr(request.node, "funcargs", {}).get("tmp_path")
    if directory is not None:
        stores.give_back(directory)


class Clock:
    """A clock that moves only when told."""

    def __init__(self) -> None:
        self.now = int(time.time()) * 1000

    def __call__(self) -> int:
        return self.now

    def advance(self, *, seconds: float = 0, ms: int = 0) -> None:
        self.now += int(seconds * 1000) + ms


def segment(name: str) -> str:
    """An id as one segment of a path; dots are encoded so that no client takes '..' for a step up."""
    return quote(name, safe="").replace(".", "%2E")


def token_for(user: str, *, secret: str = JWT_SECRET, ttl: int = 3600, **claims: Any) -> str:
    """A user token signed with the shared secret; `claims` come on top."""
    return jwt.encode({"sub": user, "exp": int(time.time()) + ttl} | claims, secret, "HS256")


async def eventually(condition: Callable[[], Awaitable[bool]], what: str, deadline: float = 60) -> None:
    """Returns when the condition holds; fails with `what` when it does not within the deadline.

    A broker that has too much to do for an answer is asked again.
    """
    end = time.monotonic() + deadline
    while not await _holds(condition):
        assert time.monotonic() < end, f"waited {deadline} s in vain until {what}"
        await asyncio.sleep(0.02)


async def _holds(condition: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await condition()
    except LogUnavailable:
        return False


def check_problem(answer: httpx.Response, status: int, code: str, field: str | None = None) -> Any:
    """The answer is a problem with this status, code and field, and is complete in itself."""
    assert answer.status_code == status, f"{answer.status_code} instead of {status}: {answer.text[:500]}"
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == code, problem
    assert problem["status"] == status
    assert problem["type"]
    assert problem["title"]
    assert problem["detail"]
    assert problem["retry"] is (status in {429, 503})
    if status in {429, 503}:
        assert int(answer.headers["retry-after"]) >= 1
    if field is not None:
        assert problem.get("field", "").startswith(field), problem
    return problem


class Chat:
    """One principal of the HTTP API. Every word of it is one request; what fails, fails the test."""

    evict: Callable[[], Awaitable[None]]
    """Makes the service forget what it holds in memory; only there where it runs in this process."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        token: str | None = SERVICE_KEY,
        settle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.http = http
        self.token = token
        self._settle = settle

    async def settled(self) -> None:
        """Returns when badges, cursors and receipts are what they will be: in a cluster they follow a moment later."""
        if self._settle is not None:
            await self._settle()

    def with_token(self, token: str | None) -> "Chat":
        """The same service seen by another principal."""
        return Chat(self.http, token, self._settle)

    def as_user(self, user: str) -> "Chat":
        """The same service seen by a user of the product."""
        return self.with_token(token_for(user))

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """One request, whatever its answer. `body` is sent as JSON, `options` go to httpx."""
        headers = {"authorization": f"Bearer {self.token}"} if self.token is not None else {}
        headers |= options.pop("headers", {})
        if body is not None:
            options["json"] = body
        return await self.http.request(method, path, headers=headers, **options)

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """One request that must succeed, and what it answers."""
        answer = await self.call(method, path, body, **options)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        return answer.json() if answer.content else None

    # ------------------------------------------------------------ channels and members

    async def open_channel(self, *members: str, channel: str = GENERAL, **fields: Any) -> Any:
        return await self.change_channel(channel, **{"type": "group", "members": members} | fields)

    async def change_channel(self, channel: str = GENERAL, **fields: Any) -> Any:
        return await self.ask("PUT", f"/v1/channels/{segment(channel)}", fields)

    async def channel(self, channel: str = GENERAL) -> Any:
        return await self.ask("GET", f"/v1/channels/{segment(channel)}")

    async def delete_channel(self, channel: str = GENERAL) -> None:
        await self.ask("DELETE", f"/v1/channels/{segment(channel)}")

    async def join(self, *users: str, channel: str = GENERAL, history: str | int = "read") -> Any:
        body = {"add": users, "history": history}
        return await self.ask("POST", f"/v1/channels/{segment(channel)}/members", body)

    async def leave(self, *users: str, channel: str = GENERAL) -> Any:
        return await self.ask("POST", f"/v1/channels/{segment(channel)}/members", {"remove": users})

    async def members(self, channel: str = GENERAL, **params: Any) -> Any:
        return await self.ask("GET", f"/v1/channels/{segment(channel)}/members", params=params)

    # ------------------------------------------------------------ messages

    async def post(self, sender: str, channel: str = GENERAL, **message: Any) -> Any:
        """Sends one message and returns its result."""
        body = {"channel_id": channel, "sender_id": sender} | message
        answer = await self.call("POST", "/v1/messages", body)
        assert answer.status_code == 202, answer.text
        [result] = answer.json()["results"]
        return result

    async def post_all(self, messages: Iterable[dict[str, Any]]) -> list[Any]:
        """Sends many messages in one request and returns their results."""
        results: list[Any] = (await self.ask("POST", "/v1/messages", {"messages": list(messages)}))["results"]
        return results

    async def send(self, sender: str, *ids: str, channel: str = GENERAL, **message: Any) -> list[str]:
        """Sends one accepted message for each id."""
        for name in ids:
            result = await self.post(sender, channel, id=name, text=f"this is {name}", **message)
            assert result["status"] == "accepted", result
        return list(ids)

    async def edit(self, message: str, channel: str = GENERAL, **changes: Any) -> Any:
        return await self.ask("PATCH", message_path(channel, message), changes)

    async def delete(self, message: str, channel: str = GENERAL) -> Any:
        return await self.ask("DELETE", message_path(channel, message))

    # ------------------------------------------------------------ reading

    async def read(self, user: str, channel: str = GENERAL, **target: Any) -> Any:
        return await self.ask("POST", f"{of(user, channel)}/read", target)

    async def mark_unread(self, user: str, message: str, channel: str = GENERAL, **more: Any) -> Any:
        return await self.ask("POST", f"{of(user, channel)}/unread", {"from": message} | more)

    async def read_many(self, *reads: dict[str, Any]) -> list[Any]:
        results: list[Any] = (await self.ask("POST", "/v1/reads", {"reads": reads}))["results"]
        return results

    async def read_all(self, user: str, **body: Any) -> Any:
        return await self.ask("POST", f"/v1/users/{segment(user)}/read", body or {"all": True})

    async def undo(self, user: str, token: str) -> Any:
        return await self.ask("POST", f"/v1/users/{segment(user)}/read/undo", {"undo": token})

    # ------------------------------------------------------------ what is unread

    async def unread(self, user: str, channel: str = GENERAL) -> Any:
        return await self.ask("GET", f"{of(user, channel)}/unread")

    async def count(self, user: str, channel: str = GENERAL) -> int:
        """The exact unread count, which all ways of asking for it agree on."""
        answer = await self.unread(user, channel)
        assert answer["exact"] is True, answer
        why = await self.explain(user, channel)
        assert why["agrees"] is True, why
        assert why["unread"] == answer["unread"], why
        return int(answer["unread"])

    async def waiting(self, user: str, **params: Any) -> list[str]:
        """The ids of the unread messages, as the unread view lists them."""
        answer = await self.ask("GET", f"/v1/users/{segment(user)}/unread/messages", params=params)
        return [message["id"] for message in answer["messages"]]

    async def all_waiting(self, user: str, channel: str) -> list[Any]:
        """All unread messages of one channel, oldest first, page by page."""
        found: list[Any] = []
        params = {"channel": channel, "order": "oldest", "limit": "1000"}
        while True:
            page = await self.ask("GET", f"/v1/users/{segment(user)}/unread/messages", params=params)
            found += page["messages"]
            if page["cursor"] is None:
                return found
            params["cursor"] = page["cursor"]

    async def sync(self, user: str, **params: Any) -> Any:
        await self.settled()
        return await self.ask("GET", f"/v1/users/{segment(user)}/unread", params=params)

    async def totals(self, user: str) -> Any:
        return (await self.sync(user))["totals"]

    async def explain(self, user: str, channel: str = GENERAL) -> Any:
        return await self.ask("GET", f"{of(user, channel)}/explain")

    async def recount(self, user: str, channel: str = GENERAL) -> Any:
        return await self.ask("POST", f"{of(user, channel)}/recount")

    async def prefer(self, user: str, channel: str = GENERAL, **preferences: Any) -> Any:
        return await self.ask("PUT", f"{of(user, channel)}/preferences", preferences)

    async def prefer_everywhere(self, user: str, **preferences: Any) -> Any:
        return await self.ask("PUT", f"/v1/users/{segment(user)}/preferences", preferences)

    # ------------------------------------------------------------ among people

    async def inbox(self, user: str, **params: Any) -> Any:
        return await self.ask("GET", f"/v1/users/{segment(user)}/inbox", params=params)

    async def conversations(self, user: str, **params: Any) -> list[str]:
        """The channels of a page of the inbox, in its order."""
        return [row["channel_id"] for row in (await self.inbox(user, **params))["conversations"]]

    async def badge(self, user: str) -> int:
        """The number on the badge, which all ways of asking for it agree on once it stands still."""
        await self.settled()
        path = f"/v1/users/{segment(user)}/badge"
        senders = (await self.ask("GET", path))["senders"]
        while True:
            totals = await self.ask("POST", "/v1/unread/batch", {"users": [user]})
            before, senders = senders, (await self.ask("GET", path))["senders"]
            if senders == before:
                assert totals["users"][user]["badge"] == senders, totals
                return int(senders)

    async def tap(self, user: str) -> Any:
        return await self.ask("POST", f"/v1/users/{segment(user)}/badge/tap")

    async def reply(self, sender: str, thread: str, *ids: str, channel: str = GENERAL, **message: Any) -> list[str]:
        """Sends one accepted reply for each id."""
        return await self.send(sender, *ids, channel=channel, thread_id=thread, **message)

    async def threads(self, user: str, **params: Any) -> Any:
        return await self.ask("GET", f"/v1/users/{segment(user)}/threads", params=params)

    async def unread_replies(self, user: str, **params: Any) -> dict[str, int]:
        """The followed threads and what is unread in each, the latest activity first."""
        return {row["thread_id"]: row["unread"] for row in (await self.threads(user, **params))["threads"]}

    async def follow(self, user: str, thread: str, channel: str = GENERAL) -> Any:
        return await self.ask("PUT", f"{of(user, channel)}/threads/{segment(thread)}/follow")

    async def unfollow(self, user: str, thread: str, channel: str = GENERAL) -> Any:
        return await self.ask("DELETE", f"{of(user, channel)}/threads/{segment(thread)}/follow")

    async def read_thread(self, user: str, thread: str, channel: str = GENERAL, **target: Any) -> Any:
        return await self.ask("POST", f"{of(user, channel)}/threads/{segment(thread)}/read", target)

    async def seen(self, message: str, channel: str = GENERAL) -> Any:
        await self.settled()
        return await self.ask("GET", f"{message_path(channel, message)}/seen")

    async def seen_by(self, message: str, channel: str = GENERAL) -> list[str]:
        """Who has seen a message, by name; the count says the same."""
        answer = await self.seen(message, channel)
        names = sorted(reader["user_id"] for reader in answer["users"])
        assert answer["count"] == len(names), answer
        return names

    async def receipts(self, channel: str = GENERAL) -> dict[str, int]:
        """How far everyone has read."""
        await self.settled()
        answer = await self.ask("GET", f"/v1/channels/{segment(channel)}/receipts")
        return {receipt["user_id"]: receipt["last_read_seq"] for receipt in answer["receipts"]}

    async def presence(self, user: str) -> Any:
        return await self.ask("GET", f"/v1/users/{segment(user)}/presence")

    async def comes_online(self, user: str, device: str = "phone", **fields: Any) -> Any:
        body = {"device": device, "online": True, "ttl": 3600} | fields
        return await self.ask("PUT", f"/v1/users/{segment(user)}/presence", body)

    async def goes_away(self, user: str, device: str = "phone") -> Any:
        return await self.ask("PUT", f"/v1/users/{segment(user)}/presence", {"device": device, "online": False})

    async def snapshot(self, users: Iterable[str], channels: Iterable[str]) -> dict[str, Any]:
        """Everything that can be seen of these users and channels."""
        seen: dict[str, Any] = {}
        for channel in channels:
            seen[channel] = await self.channel(channel), await self.members(channel)
        for user in users:
            rows = await self.sync(user, only_unread="false")
            seen[user] = rows["totals"], rows["channels"], await self.waiting(user)
            for row in rows["channels"]:
                path = of(user, row["channel_id"])
                seen[path] = await self.ask("GET", f"{path}/explain"), await self.ask("GET", f"{path}/preferences")
        return seen


def of(user: str, channel: str = GENERAL) -> str:
    """The path of a user in a channel."""
    return f"/v1/users/{segment(user)}/channels/{segment(channel)}"


def message_path(channel: str, message: str) -> str:
    """The path of a message."""
    return f"/v1/channels/{segment(channel)}/messages/{segment(message)}"


async def three_channels(chat: Chat) -> None:
    """Bob has 1, 2 and 3 unread messages in the channels a, b and c; c has the latest activity."""
    at = 1_700_000_000_000
    for number, channel in enumerate("abc", 1):
        await chat.open_channel("alice", "bob", channel=channel)
        for place in range(1, number + 1):
            at += 1000
            await chat.send("alice", f"{channel}{place}", channel=channel, at=at)


@asynccontextmanager
async def in_process(data_dir: Path, **settings: Any) -> AsyncIterator[Chat]:
    """The service in this process, without a socket, seen by a service key."""
    # Imported late: tests of single modules share this file and need no whole service.
    from readstate import Readstate
    from readstate.gateway import asgi_app
    from readstate.gateway.demo.sandbox import is_on as demo_is_on

    options: dict[str, Any] = {"service_keys": (SERVICE_KEY,), "jwt_secret": JWT_SECRET, "data_dir": str(data_dir)}
    options |= stores.UNLIMITED | stores.settings_of(data_dir) | {"timings": stores.timings()} | settings
    async with Readstate.open(**options) as rs, stores.with_workers(rs):
        transport = httpx.ASGITransport(app=asgi_app(rs, demo=demo_is_on(rs.settings)))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=WAIT) as http:
            chat = Chat(http, settle=partial(stores.settle, rs))
            chat.evict = partial(stores.evict, rs)
            yield chat
