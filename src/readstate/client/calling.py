"""How a call is made: encode, send, try again where that is safe, decode."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from .errors import ApiError, Interrupted, NotFound, NotReadstate, TimedOut, Unreachable, as_answered, refusal
from .retries import Retries

T = TypeVar("T")
Query = Mapping[str, str | int | bool | Sequence[str] | None]

CONNECT_TIMEOUT = 5.0
JSON = "application/json"
PROBLEM = "application/problem+json"
JSON_LINES = "application/x-ndjson"


class Problem(msgspec.Struct, frozen=True):
    """An error of the service (`application/problem+json`)."""

    code: str
    detail: str
    retry: bool = False
    field: str | None = None


class Caller:
    """Calls one service with one key or user token. Use it with `async with`, or close it."""

    def __init__(
        self,
        base_url: str,
        key: str | None,
        *,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._base = base_url.rstrip("/")
        self._retries = retries or Retries()
        timeout = httpx.Timeout(self._retries.deadline, connect=min(CONNECT_TIMEOUT, self._retries.deadline))
        self._http = httpx.AsyncClient(headers=headers, transport=transport, timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _call(
        self,
        method: str,
        path: str,
        answer: type[T],
        body: object = None,
        *,
        query: Query | None = None,
        repeatable: bool | None = None,
        content_type: str = JSON,
        wait: bool = False,
    ) -> T:
        """Ask and decode. `repeatable`: a retry is safe; by default that depends on the method."""
        content = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        headers = {} if content is None else {"Content-Type": content_type}
        if wait:
            headers["Prefer"] = "wait"
        request = self._request(method, path, content, query, headers)
        safe = method in {"GET", "PUT", "DELETE"} if repeatable is None else repeatable
        return _decode(await self._until_answered(request, repeatable=safe), answer)

    async def _delete(self, path: str) -> None:
        """Delete. That it is not there after an earlier try means that this one has done it."""
        try:
            await self._call("DELETE", path, dict[str, Any])
        except NotFound as error:
            if error.tries == 1:
                raise

    async def _stream(self, path: str) -> AsyncGenerator[bytes, None]:
        """The bytes of a long answer as they come. It is tried again only as long as none has come."""
        request = self._request("GET", path, None, None, {})
        response = await self._until_answered(request, repeatable=True, stream=True)
        try:
            async for chunk in response.aiter_bytes():
                yield chunk
        except httpx.HTTPError as error:
            raise self._fault(error) from error
        finally:
            await response.aclose()

    def _request(
        self, method: str, path: str, content: bytes | None, query: Query | None, headers: Mapping[str, str]
    ) -> httpx.Request:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            return self._http.build_request(
                method, self._base + path, content=content, params=given or None, headers=headers
            )
        except httpx.InvalidURL as error:
            raise Unreachable(f"{self._base} is not an address: {error}") from error

    async def _until_answered(
        self, request: httpx.Request, *, repeatable: bool, stream: bool = False
    ) -> httpx.Response:
        end = time.monotonic() + self._retries.deadline
        tried = 0
        while True:
            tried += 1
            try:
                return await self._once(request, end - time.monotonic(), stream=stream)
            except ApiError as error:
                error.tries = tried
                pause = self._retries.pause(error, end - time.monotonic(), repeatable=repeatable)
                if pause is None:
                    raise
            await self._retries.wait(pause)

    async def _once(self, request: httpx.Request, left: float, *, stream: bool) -> httpx.Response:
        try:
            async with asyncio.timeout(left):
                response = await self._http.send(request, stream=stream)
                if not _is_answer(response):
                    await response.aread()
        except TimeoutError as error:
            raise self._timed_out() from error
        except httpx.HTTPError as error:
            raise self._fault(error) from error
        if _is_answer(response):
            return response
        await response.aclose()
        raise _refusal(response)

    def _fault(self, error: httpx.HTTPError) -> ApiError:
        """What became of a call that has no answer."""
        if isinstance(error, _NEVER_SENT):
            unreachable = Unreachable(f"{self._base} cannot be reached: {error}")
            unreachable.retry = not isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError)
            return unreachable
        if isinstance(error, httpx.TimeoutException):
            return self._timed_out()
        return Interrupted(f"{self._base} broke off before its answer: {error}")

    def _timed_out(self) -> ApiError:
        return TimedOut(f"{self._base} did not answer in time")


_NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)


def path(*segments: str) -> str:
    """The path of what these ids and words name."""
    return "/v1/" + "/".join(_segment(segment) for segment in segments)


def _segment(text: str) -> str:
    """A path segment for any id: also for "." and "..", which URLs would otherwise take as directions."""
    return text.replace(".", "%2E") if text in {".", ".."} else quote(text, safe="")


def _is_answer(response: httpx.Response) -> bool:
    """False for a 202 that says in a problem that the request is accepted and not applied yet."""
    return response.is_success and response.headers.get("content-type") != PROBLEM


def _decode(response: httpx.Response, answer: type[T]) -> T:
    try:
        return msgspec.json.decode(response.content, type=answer)
    except msgspec.MsgspecError as error:
        detail = f"{response.url} answers with something that is not Readstate's: {error}"
        raise as_answered(NotReadstate(detail), NotReadstate.code, response.status_code) from error


def _refusal(response: httpx.Response) -> ApiError:
    try:
        problem = msgspec.json.decode(response.content, type=Problem)
    except msgspec.MsgspecError:
        refused = _foreign(response)
    else:
        refused = refusal(problem.code, response.status_code, problem.detail, problem.field)
        refused.retry = problem.retry
    after = response.headers.get("retry-after", "")
    refused.retry_after = float(after) if after.isascii() and after.isdigit() else None
    return refused


def _foreign(response: httpx.Response) -> ApiError:
    """The answer of a proxy or of another server."""
    status = response.status_code
    code, detail = f"http_{status}", f"{response.url} answered {status}"
    if status in {429, 503}:
        return refusal(code, status, detail)
    if status in {502, 504}:
        return as_answered(Interrupted(detail), code, status)
    return as_answered(NotReadstate(detail), code, status, retry=status >= 500)
