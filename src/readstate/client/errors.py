"""What a client raises, as one tree: the service's own errors, each by its code, and faults on the way to it.

    ApiError                    everything below; itself for codes that this version does not know
    ├── NotYet (202)            taken; the effect follows (cluster profile)
    ├── BadRequest (400)        BrokenJson, BadPath, WrongContentType, UnknownFrame, InvalidCursor
    ├── Unauthenticated (401)   InvalidToken, TokenExpired
    ├── Forbidden (403)
    ├── NotFound (404)          ChannelNotFound, MessageNotFound, ThreadNotFound, NotAMember, UndoNotFound
    ├── MethodNotAllowed (405)
    ├── RequestTimeout (408)
    ├── Conflict (409)          ChannelArchived, DirectChannelFull, MessageDeleted
    ├── TooLarge (413)
    ├── Invalid (422)           InvalidId, MessageWithoutSeq, ReplyToReply
    ├── RateLimited (429)       TooManyDevices
    ├── HeadersTooLarge (431)
    ├── Unavailable (503)       StorageUnavailable, HotStoreUnavailable, LogUnavailable, MessagesBehind,
    │                           TooManyConnections, Stopping
    └── NoAnswer (0)            Unreachable, Interrupted, TimedOut, NotReadstate

A code that this version does not know is raised as the class of its status, so that `except NotFound`
also catches what a newer service has come to tell apart.
"""

from collections.abc import Iterator

from readstate.domain import errors as served


class ApiError(Exception):
    """The service refused, or did not answer. `retry` tells whether the same call may succeed later."""

    def __init__(
        self,
        code: str,
        status: int,
        detail: str,
        *,
        retry: bool = False,
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.code, self.status, self.detail, self.retry = code, status, detail, retry
        self.field = field
        """The field of the request that is at fault."""
        self.retry_after = retry_after
        """Seconds after which the service asks to be called again."""
        self.tries = 1
        """How often the call was tried."""


class NotYet(ApiError):
    """Taken, and done for sure: only the effect was not there yet when the service answered (202)."""


class BadRequest(ApiError):
    """The request cannot be understood."""


class InvalidCursor(BadRequest):
    """The cursor was not made by this service for this list, or is too old: begin again without it."""


class BrokenJson(BadRequest):
    """The body is not JSON in UTF-8."""


class UnknownFrame(BadRequest):
    """There is no such type of frame."""


class BadPath(BadRequest):
    """The path is not percent-encoded UTF-8."""


class WrongContentType(BadRequest):
    """The body must be of another type."""


class Unauthenticated(ApiError):
    """There is no key or token, or not a good one."""


class InvalidToken(Unauthenticated):
    """The key or token is not valid."""


class TokenExpired(Unauthenticated):
    """The token has expired."""


class Forbidden(ApiError):
    """This key or token may not do that."""


class NotFound(ApiError):
    """What the call names is not there."""


class ChannelNotFound(NotFound):
    """There is no such channel."""


class MessageNotFound(NotFound):
    """There is no such message."""


class ThreadNotFound(NotFound):
    """There is no such thread, or the user does not follow it."""


class NotAMember(NotFound):
    """The user is not a member of the channel."""


class UndoNotFound(NotFound):
    """The undo token is unknown, used or over."""


class MethodNotAllowed(ApiError):
    """The path exists, but not with this method."""


class RequestTimeout(ApiError):
    """The request did not arrive in time; nothing was changed."""


class Conflict(ApiError):
    """The state of things does not allow this."""


class ChannelArchived(Conflict):
    """The channel is archived and takes no messages."""


class DirectChannelFull(Conflict):
    """A direct channel has two members at most."""


class MessageDeleted(Conflict):
    """The message is deleted."""


class TooLarge(ApiError):
    """The request is over a limit on size."""


class Invalid(ApiError):
    """A field is not valid."""


class InvalidId(Invalid):
    """An id is 1 to 128 bytes of printable UTF-8."""


class MessageWithoutSeq(Invalid):
    """The message has no place in the channel."""


class ReplyToReply(Invalid):
    """A thread hangs on a root message, not on a reply."""


class RateLimited(ApiError):
    """Too many requests; nothing was changed."""


class TooManyDevices(RateLimited):
    """The user has too many live connections."""


class HeadersTooLarge(ApiError):
    """The request line and headers are over the limit."""


class Unavailable(ApiError):
    """Not available right now; nothing was changed."""


class StorageUnavailable(Unavailable):
    """The durable store cannot be used; nothing was changed."""


class HotStoreUnavailable(Unavailable):
    """The hot store cannot be reached; nothing is lost, try again."""


class LogUnavailable(Unavailable):
    """The log cannot be written; nothing was changed."""


class MessagesBehind(Unavailable):
    """Accepted messages have waited too long to be applied; nothing was changed."""


class TooManyConnections(Unavailable):
    """The service has as many connections as it takes; nothing was changed."""


class Stopping(Unavailable):
    """The service is stopping; nothing was changed."""


class NoAnswer(ApiError):
    """There was no answer of a Readstate service; `status` is 0, or that of whoever answered instead."""


class Unreachable(NoAnswer):
    """There was no connection, so nothing was asked."""


class Interrupted(NoAnswer):
    """The connection broke before the answer: whether anything was done is not known."""


class TimedOut(NoAnswer):
    """The deadline passed before the answer: whether anything was done is not known."""


class NotReadstate(NoAnswer):
    """What answered there is not a Readstate service of this version."""


def refusal(
    code: str, status: int, detail: str, *, retry: bool, field: str | None = None, retry_after: float | None = None
) -> ApiError:
    """The exception for what a service told: by its code, else by its status."""
    kind = BY_CODE.get(code) or _BY_STATUS.get(status, ApiError)
    return kind(code, status, detail, retry=retry, field=field, retry_after=retry_after)


def _told() -> Iterator[tuple[type[served.ReadstateError], type[ApiError]]]:
    """Every error of the service that has a class of the same name here."""
    for name, kind in vars(served).items():
        mine = globals().get(name)
        if isinstance(kind, type) and issubclass(kind, served.ReadstateError) and isinstance(mine, type):
            yield kind, mine


BY_CODE = {kind.code: mine for kind, mine in _told()}
_BY_STATUS = {kind.status: mine for kind, mine in _told() if kind.__base__ is served.ReadstateError}
