"""An HTTP client of the service: one method per call, answers as the structs of `readstate.api`.

async with Client("http://127.0.0.1:8080", key) as readstate:
    await readstate.send(NewMessage(channel_id="general", sender_id="alice", text="hello"))
    print((await readstate.unread("bob", "general")).label)
"""

from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from . import api

T = TypeVar("T")
TIMEOUT = httpx.Timeout(30.0, connect=5.0)


class ApiError(Exception):
    """The service refused, or did not answer (`status` is then 0). `retry` tells whether trying again may help."""

    def __init__(self, code: str, status: int, detail: str, *, retry: bool, field: str | None = None) -> None:
        super().__init__(detail)
        self.code, self.status, self.detail, self.retry, self.field = code, status, detail, retry, field


class Problem(msgspec.Struct, frozen=True):
    """An error as the service tells it (`application/problem+json`)."""

    code: str
    detail: str
    retry: bool = False
    field: str | None = None


class SendResults(msgspec.Struct, frozen=True):
    """What became of the messages of one request."""

    results: list[api.SendResult]


class Client:
    """Calls one service with one key or user token. Use it with `async with`."""

    def __init__(self, base_url: str, key: str | None, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._base = base_url.rstrip("/")
        self._http = httpx.AsyncClient(headers=headers, transport=transport, timeout=TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def put_channel(self, channel: str, change: api.PutChannel) -> api.ChannelView:
        """Create or update a channel."""
        return await self._call("PUT", _path("channels", channel), api.ChannelView, change)

    async def change_members(self, channel: str, change: api.ChangeMembers) -> api.MembersChanged:
        """Add and remove members."""
        return await self._call("POST", _path("channels", channel, "members"), api.MembersChanged, change)

    async def send(self, message: api.NewMessage) -> api.SendResult:
        """Send one message."""
        answer = await self._call("POST", _path("messages"), SendResults, message)
        return answer.results[0]

    async def read(self, user: str, channel: str, target: api.ReadTarget) -> api.ReadResult:
        """Mark as read what `target` names."""
        return await self._call("POST", _in_channel(user, channel, "read"), api.ReadResult, target)

    async def mark_unread(self, user: str, channel: str, target: api.MarkUnread) -> api.ReadResult:
        """Make a message and all later ones unread."""
        return await self._call("POST", _in_channel(user, channel, "unread"), api.ReadResult, target)

    async def unread(self, user: str, channel: str) -> api.Unread:
        """What is unread in one channel."""
        return await self._call("GET", _in_channel(user, channel, "unread"), api.Unread)

    async def sync(
        self,
        user: str,
        *,
        only_unread: bool = True,
        since: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> api.Sync:
        """One page of what is unread in all channels, or of what changed since a sync cursor."""
        query = {"only_unread": str(only_unread).lower(), "since": since, "limit": limit, "cursor": cursor}
        return await self._call("GET", _path("users", user, "unread"), api.Sync, query=query)

    async def explain(self, user: str, channel: str) -> api.Explanation:
        """Why a count is what it is."""
        return await self._call("GET", _in_channel(user, channel, "explain"), api.Explanation)

    async def recount(self, user: str, channel: str) -> api.Recount:
        """Count again from the durable store."""
        return await self._call("POST", _in_channel(user, channel, "recount"), api.Recount)

    async def ready(self) -> dict[str, Any]:
        """What the service says of its dependencies; raises when one of them is down."""
        return await self._call("GET", "/readyz", dict[str, Any])

    async def _call(
        self,
        method: str,
        path: str,
        answer: type[T],
        body: api.Request | None = None,
        query: dict[str, Any] | None = None,
    ) -> T:
        response = await self._request(method, path, body, query)
        if response.is_success:
            return _decode(response, answer)
        raise _refusal(response)

    async def _request(
        self, method: str, path: str, body: api.Request | None = None, query: dict[str, Any] | None = None
    ) -> httpx.Response:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        content = msgspec.json.encode(body) if body is not None else None
        given = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            return await self._http.request(
                method, self._base + path, content=content, params=given or None, headers=headers
            )
        except httpx.TimeoutException as error:
            raise ApiError("timeout", 0, f"{self._base} did not answer in time", retry=True) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ApiError("unreachable", 0, f"{self._base} cannot be reached: {error}", retry=True) from error


def _path(*segments: str) -> str:
    return "/v1/" + "/".join(_segment(segment) for segment in segments)


def _segment(text: str) -> str:
    """A path segment for any id: also for "." and "..", which URLs would otherwise take as directions."""
    return text.replace(".", "%2E") if text in {".", ".."} else quote(text, safe="")


def _in_channel(user: str, channel: str, what: str) -> str:
    return _path("users", user, "channels", channel, what)


def _decode(response: httpx.Response, answer: type[T]) -> T:
    try:
        return msgspec.json.decode(response.content, type=answer)
    except msgspec.MsgspecError as error:
        detail = f"{response.url} answers with something that is not Readstate's: {error}"
        raise ApiError("not_readstate", response.status_code, detail, retry=False) from error


def _refusal(response: httpx.Response) -> ApiError:
    status = response.status_code
    try:
        problem = msgspec.json.decode(response.content, type=Problem)
    except msgspec.MsgspecError:
        return ApiError(f"http_{status}", status, f"{response.url} answered {status}", retry=status >= 500)
    return ApiError(problem.code, status, problem.detail, retry=problem.retry, field=problem.field)
