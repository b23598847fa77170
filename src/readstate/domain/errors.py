"""Everything that Readstate refuses, as one tree.

Each error has a `code` for programs, an HTTP `status`, and `retry`: whether the same request may
succeed later. The docstring is the default detail.

    ReadstateError
    ├── NotYet (202)            no fault: it is taken, and its effect follows
    ├── BadRequest (400)        the request cannot be understood
    ├── Unauthenticated (401)   nobody knows who asks
    ├── Forbidden (403)         we know who asks, and it may not
    ├── NotFound (404)          what it names is not there
    ├── RequestTimeout (408)    the request did not arrive in time
    ├── Conflict (409)          it is there, in a state that does not allow this
    ├── TooLarge (413)          over a limit on size
    ├── Invalid (422)           understood, but a field is wrong
    ├── RateLimited (429)       too often
    ├── HeadersTooLarge (431)   over the limit on request line and headers
    └── Unavailable (503)       a dependency is down; nothing was done
"""

import functools
from collections.abc import Mapping


class ReadstateError(Exception):
    """Something went wrong inside Readstate."""

    code: str = "internal"
    status: int = 500
    retry: bool = False
    retry_after: float | None = None
    """Seconds after which a service that refused asks to be called again; known to its clients."""
    tries: int = 1
    """How often a client tried before it raised this."""

    def __init__(self, detail: str | None = None, *, field: str | None = None, reason: str = "") -> None:
        self.detail = detail or (type(self).__doc__ or "").strip().splitlines()[0]
        self.field = field
        self.reason = reason
        """The words of a server or a library. They may name addresses: logs and commands show them, answers do not."""
        super().__init__(self.explained)

    @property
    def explained(self) -> str:
        """The detail with the reason, for operators."""
        return f"{self.detail} ({self.reason})" if self.reason else self.detail


class BadRequest(ReadstateError):
    """The request cannot be understood."""

    code = "bad_request"
    status = 400


class BrokenJson(BadRequest):
    """The body is not JSON in UTF-8."""

    code = "broken_json"


class UnknownFrame(BadRequest):
    """There is no such type of frame."""

    code = "unknown_frame"


class InvalidCursor(BadRequest):
    """The cursor was not made by this service for this list, or is too old: begin again without it."""

    code = "invalid_cursor"


class BadPath(BadRequest):
    """The path is not percent-encoded UTF-8."""

    code = "bad_path"


class WrongContentType(BadRequest):
    """The body must be application/json."""

    code = "wrong_content_type"


class Unauthenticated(ReadstateError):
    """Send a service key or a user token as 'Authorization: Bearer ...'."""

    code = "unauthenticated"
    status = 401


class InvalidToken(Unauthenticated):
    """The token is not valid."""

    code = "invalid_token"


class TokenExpired(Unauthenticated):
    """The token has expired."""

    code = "token_expired"


class Forbidden(ReadstateError):
    """This principal may not do that."""

    code = "forbidden"
    status = 403


class NotFound(ReadstateError):
    """There is nothing here."""

    code = "not_found"
    status = 404


class ChannelNotFound(NotFound):
    """There is no such channel."""

    code = "channel_not_found"


class MessageNotFound(NotFound):
    """There is no such message."""

    code = "message_not_found"


class ThreadNotFound(NotFound):
    """There is no message for this thread to hang on."""

    code = "thread_not_found"


class NotAMember(NotFound):
    """The user is not a member of the channel."""

    code = "not_a_member"


class UndoNotFound(NotFound):
    """The undo token is unknown, used or over."""

    code = "undo_not_found"


class NotYet(ReadstateError):
    """Taken; the effect follows. It was waited for in vain so far."""

    code = "accepted"
    status = 202


class MethodNotAllowed(ReadstateError):
    """The path exists, but not with this method."""

    code = "method_not_allowed"
    status = 405


class RequestTimeout(ReadstateError):
    """The request did not arrive in time; the connection is closed."""

    code = "request_timeout"
    status = 408
    retry = True


class Conflict(ReadstateError):
    """The state of things does not allow this."""

    code = "conflict"
    status = 409


class ChannelArchived(Conflict):
    """The channel is archived and takes no messages."""

    code = "channel_archived"


class DirectChannelFull(Conflict):
    """A direct channel has two members at most."""

    code = "direct_channel_full"


class MessageDeleted(Conflict):
    """The message is deleted."""

    code = "message_deleted"


class TooLarge(ReadstateError):
    """The request is over a limit on size."""

    code = "too_large"
    status = 413


class Invalid(ReadstateError):
    """A field is not valid."""

    code = "invalid"
    status = 422


class InvalidId(Invalid):
    """An id is 1 to 128 bytes of printable UTF-8."""

    code = "invalid_id"


class MessageWithoutSeq(Invalid):
    """The message has no place in the channel (a backfill, or a reply in a thread only)."""

    code = "message_without_seq"


class ReplyToReply(Invalid):
    """A thread hangs on a root message, not on a reply."""

    code = "reply_to_reply"


class RateLimited(ReadstateError):
    """Too many requests."""

    code = "rate_limited"
    status = 429
    retry = True


class TooManyDevices(RateLimited):
    """The user has too many live connections."""

    code = "too_many_devices"


class HeadersTooLarge(ReadstateError):
    """The request line and headers are over the limit; the connection is closed."""

    code = "headers_too_large"
    status = 431


class Unavailable(ReadstateError):
    """Not available right now; nothing was changed."""

    code = "unavailable"
    status = 503
    retry = True


class StorageUnavailable(Unavailable):
    """The durable store cannot be used (disk full, read-only, locked or damaged); nothing was changed."""

    code = "storage_unavailable"
    uncertain = False
    """True: it may have been done all the same."""


class HotStoreUnavailable(Unavailable):
    """The hot store cannot be reached; nothing is lost, try again."""

    code = "hot_store_unavailable"


class LogUnavailable(Unavailable):
    """The log cannot be written; nothing was changed."""

    code = "log_unavailable"


class MessagesBehind(Unavailable):
    """Accepted messages have waited for longer than MAX_LAG to be applied; nothing was changed."""

    code = "messages_behind"


class TooManyConnections(Unavailable):
    """The service has as many connections as it takes; try again later."""

    code = "too_many_connections"


class Stopping(Unavailable):
    """The service is stopping."""

    code = "stopping"


class ConfigurationError(ReadstateError):
    """The settings are not valid."""

    code = "configuration"


def of_code(code: str, detail: str | None = None, field: str | None = None) -> ReadstateError:
    """The error that another process reports by its code. A code of a newer version makes an internal error with it."""
    known = by_code().get(code)
    if known is None:
        return ReadstateError(f"{detail or 'refused'} ({code})", field=field)
    return known(detail, field=field)


@functools.cache
def by_code() -> Mapping[str, type[ReadstateError]]:
    """Of this module only: others derive errors that can't be made from a code."""
    return {
        kind.code: kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, ReadstateError)
    }
