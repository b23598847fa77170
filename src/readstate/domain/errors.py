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

    def __init_subclass__(cls, *, code: str | None = None, status: int | None = None) -> None:
        """What a class does not give, it has from its base."""
        cls.code = cls.code if code is None else code
        cls.status = cls.status if status is None else status

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


class BadRequest(ReadstateError, code="bad_request", status=400):
    """The request cannot be understood."""


class BrokenJson(BadRequest, code="broken_json"):
    """The body is not JSON in UTF-8."""


class UnknownFrame(BadRequest, code="unknown_frame"):
    """There is no such type of frame."""


class InvalidCursor(BadRequest, code="invalid_cursor"):
    """The cursor was not made by this service for this list, or is too old: begin again without it."""


class BadPath(BadRequest, code="bad_path"):
    """The path is not percent-encoded UTF-8."""


class WrongContentType(BadRequest, code="wrong_content_type"):
    """The body must be application/json."""


class Unauthenticated(ReadstateError, code="unauthenticated", status=401):
    """Send a service key or a user token as 'Authorization: Bearer ...'."""


class InvalidToken(Unauthenticated, code="invalid_token"):
    """The token is not valid."""


class TokenExpired(Unauthenticated, code="token_expired"):
    """The token has expired."""


class Forbidden(ReadstateError, code="forbidden", status=403):
    """This principal may not do that."""


class NotFound(ReadstateError, code="not_found", status=404):
    """There is nothing here."""


class ChannelNotFound(NotFound, code="channel_not_found"):
    """There is no such channel."""


class MessageNotFound(NotFound, code="message_not_found"):
    """There is no such message."""


class ThreadNotFound(NotFound, code="thread_not_found"):
    """There is no message for this thread to hang on."""


class NotAMember(NotFound, code="not_a_member"):
    """The user is not a member of the channel."""


class UndoNotFound(NotFound, code="undo_not_found"):
    """The undo token is unknown, used or over."""


class NotYet(ReadstateError, code="accepted", status=202):
    """Taken; the effect follows. It was waited for in vain so far."""


class MethodNotAllowed(ReadstateError, code="method_not_allowed", status=405):
    """The path exists, but not with this method."""


class RequestTimeout(ReadstateError, code="request_timeout", status=408):
    """The request did not arrive in time; the connection is closed."""

    retry = True


class Conflict(ReadstateError, code="conflict", status=409):
    """The state of things does not allow this."""


class ChannelArchived(Conflict, code="channel_archived"):
    """The channel is archived and takes no messages."""


class DirectChannelFull(Conflict, code="direct_channel_full"):
    """A direct channel has two members at most."""


class MessageDeleted(Conflict, code="message_deleted"):
    """The message is deleted."""


class TooLarge(ReadstateError, code="too_large", status=413):
    """The request is over a limit on size."""


class Invalid(ReadstateError, code="invalid", status=422):
    """A field is not valid."""


class InvalidId(Invalid, code="invalid_id"):
    """An id is 1 to 128 bytes of printable UTF-8."""


class MessageWithoutSeq(Invalid, code="message_without_seq"):
    """The message has no place in the channel (a backfill, or a reply in a thread only)."""


class ReplyToReply(Invalid, code="reply_to_reply"):
    """A thread hangs on a root message, not on a reply."""


class RateLimited(ReadstateError, code="rate_limited", status=429):
    """Too many requests."""

    retry = True


class TooManyDevices(RateLimited, code="too_many_devices"):
    """The user has too many live connections."""


class HeadersTooLarge(ReadstateError, code="headers_too_large", status=431):
    """The request line and headers are over the limit; the connection is closed."""


class Unavailable(ReadstateError, code="unavailable", status=503):
    """Not available right now; nothing was changed."""

    retry = True


class StorageUnavailable(Unavailable, code="storage_unavailable"):
    """The durable store cannot be used (disk full, read-only, locked or damaged); nothing was changed."""

    uncertain = False
    """True: it may have been done all the same."""


class HotStoreUnavailable(Unavailable, code="hot_store_unavailable"):
    """The hot store cannot be reached; nothing is lost, try again."""


class LogUnavailable(Unavailable, code="log_unavailable"):
    """The log cannot be written; nothing was changed."""


class MessagesBehind(Unavailable, code="messages_behind"):
    """Accepted messages have waited for longer than MAX_LAG to be applied; nothing was changed."""


class TooManyConnections(Unavailable, code="too_many_connections"):
    """The service has as many connections as it takes; try again later."""


class Stopping(Unavailable, code="stopping"):
    """The service is stopping."""


class ConfigurationError(ReadstateError, code="configuration"):
    """The settings are not valid."""


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
