"""What a client raises: the service's own errors, each by its code, and faults on the way to the service.

    ApiError                    everything below; itself for codes that this version does not know
    ├── NotYet (202)            accepted; the effect follows (cluster profile)
    ├── BadRequest (400) …      every class of `readstate.domain.errors`, which says what each one means
    └── NoAnswer (0)            Unreachable, Interrupted, TimedOut, NotReadstate

An unknown code is raised as the class of its status. So `except NotFound` also catches what a newer service tells
apart.
"""

from typing import TypeVar

from readstate.domain.errors import *  # noqa: F403 - one tree of errors for the service and its clients
from readstate.domain.errors import ReadstateError, by_code

E = TypeVar("E", bound=ReadstateError)

ApiError = ReadstateError
"""The service refused, or did not answer. `retry`: whether the same call may succeed later."""


class NoAnswer(ReadstateError):
    """No Readstate service answered. `status` is 0, or the status of the server that answered instead."""

    code = "no_answer"
    status = 0


class Unreachable(NoAnswer):
    """There was no connection, so nothing was asked."""

    code = "unreachable"


class Interrupted(NoAnswer):
    """The connection broke before the answer. It is unknown whether the service did anything."""

    code = "interrupted"
    retry = True


class TimedOut(NoAnswer):
    """The deadline passed before the answer. It is unknown whether the service did anything."""

    code = "timeout"
    retry = True


class NotReadstate(NoAnswer):
    """The server that answered is not a Readstate service of this version."""

    code = "not_readstate"


def refusal(code: str, status: int, detail: str, field: str | None = None) -> ReadstateError:
    """The error that a service answered: of the class of its code, else of its status."""
    kind = by_code().get(code) or _BY_STATUS.get(status, ReadstateError)
    return as_answered(kind(detail, field=field), code, status)


def as_answered(error: E, code: str, status: int, *, retry: bool | None = None) -> E:
    """The error with the code and status of the answer instead of those of its class."""
    error.code, error.status = code, status
    error.retry = error.retry if retry is None else retry
    return error


_BY_STATUS = {kind.status: kind for kind in ReadstateError.__subclasses__() if kind in by_code().values()}
