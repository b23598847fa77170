"""Errors as `application/problem+json` (RFC 9457)."""

import math
import sqlite3
import sys
import time
from http import HTTPStatus
from typing import Annotated

import structlog
from msgspec import UNSET, MsgspecError, Struct, UnsetType, json

from readstate.api.fields import about
from readstate.domain.errors import (
    InvalidId,
    MethodNotAllowed,
    RateLimited,
    ReadstateError,
    StorageUnavailable,
    Unavailable,
    by_code,
)
from readstate.gateway.asgi import Answer, Header, content_type

from .answers import Dependencies, Readiness

PROBLEM = content_type("application/problem+json")
AUTHENTICATE: Header = (b"www-authenticate", b"Bearer")

BEHIND = "behind"
"""Prefix of the state of a dependency that works but lags."""
QUIET_SECONDS = 10.0

_encode = json.Encoder().encode
_quiet_until: dict[str, float] = {}

log = structlog.get_logger()


class Problem(Struct, kw_only=True):
    """An error as callers get it."""

    type: Annotated[str, about("The kind of problem; `code` says more.")] = "about:blank"
    title: Annotated[str, about("What the HTTP status means.", "Not Found")]
    status: Annotated[int, about("The HTTP status.", 404)]
    code: Annotated[str, about("The error, for programs.", "channel_not_found")]
    detail: Annotated[str, about("The error, for people.", "there is no channel 'general'")]
    field: Annotated[str | UnsetType, about("The field or parameter that is wrong.", "channel_id")] = UNSET
    retry: Annotated[bool, about("Whether the same request may succeed later.")]
    dependencies: Dependencies | UnsetType = UNSET


class TooOften(RateLimited):
    """Too many requests, with the seconds after which the next one has a chance."""

    def __init__(self, wait: float) -> None:
        super().__init__("Too many requests: slow down and try again.")
        self.wait = wait


class NotReady(Unavailable):
    """A dependency is down."""

    def __init__(self, dependencies: dict[str, str]) -> None:
        down = "; ".join(f"{name}: {state}" for name, state in dependencies.items() if state != "ok")
        super().__init__(f"Not ready: {down}.")
        self.dependencies = dependencies


def readiness(states: dict[str, str]) -> Readiness:
    """The answer of `/readyz`. Raises NotReady if something is down.

    A message writer that is behind leaves the service ready: every instance sees the same lag, and a load balancer
    would remove all of them.
    """
    behind = {name for name, state in states.items() if state.startswith(BEHIND)}
    if any(state != "ok" for name, state in states.items() if name not in behind):
        raise NotReady(states)
    return Readiness(states, "behind" if behind else "ok")


class BadIdInUrl(InvalidId):
    """An id in a path or query is 1 to 128 bytes of printable UTF-8, percent-encoded."""

    status = 400


class WrongMethod(MethodNotAllowed):
    """The path exists, with other methods."""

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method[:20]} is not possible here: use {allowed}.")
        self.allowed = allowed


def storage_fault(error: Exception) -> StorageUnavailable | None:
    """The error to answer with if the database, or the data in it, has failed; else None.

    Stores translate most faults themselves. What a damaged file raises beyond that is recognized by its class only.
    """
    kinds: list[type[Exception]] = [sqlite3.Error, MsgspecError]
    if (asyncpg := sys.modules.get("asyncpg")) is not None:  # an extra
        kinds.append(asyncpg.PostgresError)
    if isinstance(error, tuple(kinds)):
        return StorageUnavailable("the database has failed, or holds something that cannot be read; try again")
    return None


def problem(error: ReadstateError) -> Answer:
    if error.reason:
        _log_reason(error)
    body = Problem(
        title=HTTPStatus(error.status).phrase,
        status=error.status,
        code=error.code,
        detail=error.detail,
        field=UNSET if error.field is None else error.field,
        retry=error.retry,
        dependencies=error.dependencies if isinstance(error, NotReady) else UNSET,
    )
    return Answer(error.status, [PROBLEM, *_headers(error)], _encode(body))


def _log_reason(error: ReadstateError) -> None:
    """Log the reason that the answer omits, at most once in `QUIET_SECONDS` per error code."""
    now = time.monotonic()
    if now >= _quiet_until.get(error.code, 0):
        _quiet_until[error.code] = now + QUIET_SECONDS
        log.warning("requests fail", action="http.request", code=error.code, reason=error.explained)


def _headers(error: ReadstateError) -> list[Header]:
    if isinstance(error, WrongMethod):
        return [(b"allow", error.allowed.encode())]
    if error.status == 401:
        return [AUTHENTICATE]
    if error.status in {429, 503}:
        wait = error.wait if isinstance(error, TooOften) else 1
        return [(b"retry-after", b"%d" % max(1, math.ceil(wait)))]
    return []


def all_codes() -> list[str]:
    """Every code that an answer may have."""
    return sorted({ReadstateError.code} | {code for code, error in by_code().items() if error.status != 500})
