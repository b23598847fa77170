"""The HTTP API: every path, and what it does."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from msgspec import json
from prometheus_client import CONTENT_TYPE_LATEST, Counter, Histogram, generate_latest

from .. import telemetry
from ..api import (
    AllRead,
    ChangeMembers,
    ChannelView,
    Explanation,
    MarkUnread,
    MembersChanged,
    MembersPage,
    MessageEdit,
    MessageView,
    NewMessage,
    PreferencesView,
    PutChannel,
    PutPreferences,
    ReadAll,
    ReadResult,
    ReadTarget,
    Recount,
    SendResult,
    Sync,
    Undone,
    Unread,
    UnreadMessages,
)
from ..errors import TooLarge
from . import access
from .asgi import Answer, content_type
from .auth import Principal
from .decoding import (
    Decode,
    Nothing,
    Query,
    Reads,
    Undo,
    Users,
    boolean,
    ids,
    one_of,
    one_or_many,
    text,
    whole,
)
from .problems import NotReady, by_code

if TYPE_CHECKING:
    from ..app import Readstate


class Call:
    """One request as its handler sees it: allowed, and decoded."""

    __slots__ = ("body", "channel", "message", "own", "query", "rs", "user")

    def __init__(self, rs: "Readstate", principal: Principal | None, path: dict[str, str]) -> None:
        self.rs = rs
        self.own = principal.user if principal else None
        """The user of the token; None for a service."""
        self.user = path.get("user", "")
        self.channel = path.get("channel", "")
        self.message = path.get("message", "")
        self.body: Any = None
        self.query: dict[str, Any] = {}


Handler = Callable[[Call], Awaitable[Any]]
"""Does what is asked; what it returns becomes the JSON of the answer, unless it is an Answer itself."""


class For(Enum):
    """Who may call a route."""

    ANYONE = "also without a key or token"
    SERVICE = "service keys"
    USER = "also a user: the one in the path, in a channel of its own"


@dataclass(frozen=True)
class Route:
    """A method on a path, with its meters made once."""

    method: str
    pattern: str
    handler: Handler
    open_to: For = For.USER
    body: Decode | None = None
    query: Query = field(default_factory=dict)
    status: int = 200
    seconds: Histogram = field(init=False)
    counts: dict[int, Counter] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", telemetry.HTTP_SECONDS.labels(self.pattern))

    def count(self, status: int, seconds: float) -> None:
        """Meter one request."""
        self.seconds.observe(seconds)
        counter = self.counts.get(status)
        if counter is None:
            counter = telemetry.HTTP_REQUESTS.labels(self.pattern, self.method, str(status))
            self.counts[status] = counter
        counter.inc()


# ---------------------------------------------------------------- channels


async def put_channel(call: Call) -> ChannelView:
    """Create or update a channel."""
    return await call.rs.channels.put(call.channel, call.body)


async def get_channel(call: Call) -> ChannelView:
    """A channel."""
    return await call.rs.channels.get(call.channel)


async def delete_channel(call: Call) -> dict[str, Any]:
    """Delete a channel and all that hangs on it."""
    await call.rs.channels.delete(call.channel)
    return {"channel_id": call.channel, "deleted": True}


async def change_members(call: Call) -> MembersChanged:
    """Add and remove members."""
    return await call.rs.channels.change_members(call.channel, call.body)


async def get_members(call: Call) -> MembersPage:
    """The members of a channel, by id."""
    return await call.rs.channels.members(call.channel, **call.query)


# ---------------------------------------------------------------- messages


async def post_messages(call: Call) -> dict[str, list[SendResult]]:
    """Send one message, or several. One that is rejected is an error; of several, each has its result."""
    if isinstance(call.body, NewMessage):
        (result,) = await _send(call, [call.body])
        if result.status == "rejected":
            raise by_code(result.code, result.detail, result.field)
        return {"results": [result]}
    return {"results": await _send(call, call.body.messages)}


async def _send(call: Call, messages: list[NewMessage]) -> list[SendResult]:
    if len(messages) > (most := call.rs.settings.max_batch):
        raise TooLarge(f"messages: at most {most} at once", field="messages")
    if call.own is None:
        return await call.rs.messages.send(messages)
    results = [await access.refusal(call.rs, call.own, message) for message in messages]
    allowed = [message for message, refused in zip(messages, results, strict=True) if refused is None]
    sent = iter(await call.rs.messages.send(allowed) if allowed else ())
    return [refused or next(sent) for refused in results]


async def patch_message(call: Call) -> MessageView:
    """Edit a message's text or mentions."""
    await access.require_authorship(call.rs, call.own, call.channel, call.message)
    return await call.rs.messages.edit(call.channel, call.message, call.body)


async def delete_message(call: Call) -> dict[str, Any]:
    """Delete a message."""
    await access.require_authorship(call.rs, call.own, call.channel, call.message)
    await call.rs.messages.delete(call.channel, call.message)
    return {"id": call.message, "channel_id": call.channel, "deleted": True}


# ---------------------------------------------------------------- reads


async def mark_read(call: Call) -> ReadResult:
    """Mark read: everything, up to a place, or exactly these messages."""
    return await call.rs.reads.mark_read(call.user, call.channel, call.body)


async def mark_unread(call: Call) -> ReadResult:
    """Mark unread from a message on."""
    return await call.rs.reads.mark_unread(call.user, call.channel, call.body)


async def mark_many(call: Call) -> dict[str, Any]:
    """Mark read for any users at once."""
    return {"results": await call.rs.reads.mark_many(call.body.reads)}


async def mark_all(call: Call) -> AllRead:
    """Mark read in all channels of a user, or in a list of them."""
    body: ReadAll = call.body
    await access.require_membership(call.rs, call.own, (item.channel_id for item in body.items or ()))
    return await call.rs.reads.mark_all(call.user, body)


async def undo(call: Call) -> Undone:
    """Take a mark-all-read back."""
    return await call.rs.reads.undo(call.user, call.body.undo)


# ---------------------------------------------------------------- unread


async def get_unread(call: Call) -> Unread:
    """What is unread in one channel."""
    return await call.rs.unread.of_channel(call.user, call.channel)


async def sync(call: Call) -> Sync:
    """What is unread in all of a user's channels, or what has changed there."""
    await access.require_membership(call.rs, call.own, call.query.get("channels", ()))
    return await call.rs.unread.sync(call.user, **call.query)


async def unread_messages(call: Call) -> UnreadMessages:
    """The unread messages themselves."""
    if (channel := call.query.get("channel")) is not None:
        await access.require_membership(call.rs, call.own, (channel,))
    return await call.rs.unread.messages(call.user, **call.query)


async def totals(call: Call) -> dict[str, Any]:
    """Totals of many users."""
    return {"users": await call.rs.unread.totals([str(user) for user in call.body.users])}


# ---------------------------------------------------------------- preferences, explain


async def get_preferences(call: Call) -> PreferencesView:
    """What a user wants of a channel."""
    return await call.rs.preferences.get(call.user, call.channel)


async def put_preferences(call: Call) -> PreferencesView:
    """Change what a user wants of a channel."""
    return await call.rs.preferences.put(call.user, call.channel, call.body)


async def explain(call: Call) -> Explanation:
    """Why a count is what it is."""
    return await call.rs.explain.explain(call.user, call.channel)


async def recount(call: Call) -> Recount:
    """Load a count again from the durable store."""
    return await call.rs.explain.recount(call.user, call.channel)


# ---------------------------------------------------------------- running it


async def healthz(_: Call) -> dict[str, str]:
    """The process answers; nothing more."""
    return {"status": "ok"}


async def readyz(call: Call) -> dict[str, Any]:
    """Whether everything that it needs works."""
    dependencies = await call.rs.ready()
    if any(state != "ok" for state in dependencies.values()):
        raise NotReady(dependencies)
    return {"status": "ok", "dependencies": dependencies}


async def metrics(_: Call) -> Answer:
    """Figures for Prometheus."""
    return Answer(200, [content_type(CONTENT_TYPE_LATEST)], generate_latest(telemetry.REGISTRY))


# ---------------------------------------------------------------- the table

_PAGE: Query = {"limit": whole, "cursor": text}
_SYNC: Query = {**_PAGE, "channels": ids, "only_unread": boolean, "since": text}
_MESSAGES: Query = {**_PAGE, "channel": text, "order": one_of("newest", "oldest", "channel")}

_CHANNEL = "/v1/channels/{channel}"
_MESSAGE = _CHANNEL + "/messages/{message}"
_USER = "/v1/users/{user}"
_THERE = _USER + "/channels/{channel}"


def _json(type_: type) -> Decode:
    decode: Decode = json.Decoder(type_).decode
    return decode


_ROUTES = [
    Route("PUT", _CHANNEL, put_channel, For.SERVICE, _json(PutChannel)),
    Route("GET", _CHANNEL, get_channel),
    Route("DELETE", _CHANNEL, delete_channel, For.SERVICE),
    Route("POST", _CHANNEL + "/members", change_members, For.SERVICE, _json(ChangeMembers)),
    Route("GET", _CHANNEL + "/members", get_members, query=_PAGE),
    Route("POST", "/v1/messages", post_messages, body=one_or_many, status=202),
    Route("PATCH", _MESSAGE, patch_message, body=_json(MessageEdit)),
    Route("DELETE", _MESSAGE, delete_message),
    Route("GET", _USER + "/unread", sync, query=_SYNC),
    Route("GET", _USER + "/unread/messages", unread_messages, query=_MESSAGES),
    Route("GET", _THERE + "/unread", get_unread),
    Route("POST", _THERE + "/unread", mark_unread, body=_json(MarkUnread)),
    Route("POST", _THERE + "/read", mark_read, body=_json(ReadTarget)),
    Route("POST", "/v1/reads", mark_many, For.SERVICE, _json(Reads)),
    Route("POST", _USER + "/read", mark_all, body=_json(ReadAll)),
    Route("POST", _USER + "/read/undo", undo, body=_json(Undo)),
    Route("GET", _THERE + "/preferences", get_preferences),
    Route("PUT", _THERE + "/preferences", put_preferences, body=_json(PutPreferences)),
    Route("GET", _THERE + "/explain", explain),
    Route("POST", _THERE + "/recount", recount, body=_json(Nothing)),
    Route("POST", "/v1/unread/batch", totals, For.SERVICE, _json(Users)),
    Route("GET", "/healthz", healthz, For.ANYONE),
    Route("GET", "/readyz", readyz, For.ANYONE),
    Route("GET", "/metrics", metrics, For.ANYONE),
]


def routes() -> list[Route]:
    """All routes; whatever answers GET answers HEAD."""
    return _ROUTES + [replace(route, method="HEAD") for route in _ROUTES if route.method == "GET"]
