"""The HTTP API: every path, who may call it, what it takes, and what may go wrong."""

from dataclasses import replace
from typing import NamedTuple

from readstate import api
from readstate.domain import errors
from readstate.gateway.asgi import Answer, content_type
from readstate.gateway.openapi import document as openapi

from . import handlers as do
from .calls import JSON, JSON_LINES, LINES, ONE_OR_MANY, Call, For, Parameter, Route, json_of
from .decoding import Nothing, Reads, TapBadge, Undo, Users, boolean, channel, channels, from_one, one_of, text, whole
from .pages import docs_page

# ---------------------------------------------------------------- parameters of queries


def _limit(default: int) -> Parameter:
    about = "How many items a page has at most."
    return Parameter(whole, about, {"type": "integer", "minimum": 1, "maximum": "max_page", "default": default})


def _choice(about: str, *choices: str) -> Parameter:
    return Parameter(one_of(*choices), about, {"type": "string", "enum": list(choices), "default": choices[0]})


def _flag(about: str, default: bool) -> Parameter:
    return Parameter(boolean, about, {"type": "boolean", "default": default})


_TEXT = {"type": "string"}
_ID = {"type": "string", "minLength": 1, "maxLength": 128}
_IDS = {"type": "array", "items": _ID}

_CURSOR = Parameter(text, "`cursor` of the page before: the page after it.", _TEXT)
_IN_CHANNEL = Parameter(channel, "Only in this channel.", _ID)

_MEMBERS = {"limit": _limit(100), "cursor": _CURSOR}
_SYNC = {
    "channels": Parameter(
        channels, "Only these channels, separated by commas. An id that has a comma: repeat it.", _IDS
    ),
    "only_unread": _flag("Only channels with something unread.", default=True),
    "since": Parameter(text, "`sync` of an earlier answer: only what has changed since.", _TEXT),
    "limit": _limit(1000),
    "cursor": _CURSOR,
}
_MESSAGES = {
    "channel": _IN_CHANNEL,
    "order": _choice("In which order they come.", "newest", "oldest", "channel"),
    "limit": _limit(100),
    "cursor": _CURSOR,
}
_INBOX = {
    "order": _choice("By latest activity alone, or unread conversations first.", "recent", "unread_first"),
    "filter": _choice("Which conversations.", "all", "unread", "archived"),
    "limit": _limit(20),
    "cursor": _CURSOR,
}
_THREADS = {
    "filter": _choice("Which threads.", "all", "unread"),
    "channel": _IN_CHANNEL,
    "limit": _limit(20),
    "cursor": _CURSOR,
}

_IMPORT = {
    "first_line": Parameter(
        from_one, "The number of the first line that is sent.", {"type": "integer", "minimum": 1, "default": 1}
    ),
    "stop": _flag("Stop at the first record that can't be taken.", default=False),
}

# ---------------------------------------------------------------- about the API itself


async def openapi_json(call: Call) -> Answer:
    """This API as an OpenAPI 3.1 document."""
    return Answer(200, [content_type(JSON)], openapi.encoded(GROUPS, call.rs.settings, call.root))


async def docs(_: Call) -> Answer:
    """This API as a page to read and to try."""
    return docs_page()


# ---------------------------------------------------------------- the table


class Group(NamedTuple):
    """Routes that belong together."""

    name: str
    about: str
    routes: tuple[Route, ...]


_CHANNEL = "/v1/channels/{channel}"
_MESSAGE = _CHANNEL + "/messages/{message}"
_USER = "/v1/users/{user}"
_THERE = _USER + "/channels/{channel}"
_THREAD = _THERE + "/threads/{thread}"

_NO_CHANNEL = (errors.ChannelNotFound,)
_NO_MEMBER = (errors.ChannelNotFound, errors.NotAMember)
_NO_MESSAGE = (errors.ChannelNotFound, errors.MessageNotFound)
_NO_THREAD = (*_NO_MEMBER, errors.ThreadNotFound, errors.ReplyToReply)
_READS = (*_NO_MEMBER, errors.MessageNotFound, errors.MessageWithoutSeq)
_SENDS = (*_NO_MEMBER, errors.ThreadNotFound, errors.ReplyToReply, errors.ChannelArchived, errors.MessagesBehind)

GROUPS = (
    Group(
        "Channels",
        "Conversations, and who is in them.",
        (
            Route(
                "PUT",
                _CHANNEL,
                do.put_channel,
                For.SERVICE,
                json_of(api.PutChannel),
                errors=(errors.NotYet, errors.DirectChannelFull),
            ),
            Route("GET", _CHANNEL, do.get_channel, errors=_NO_CHANNEL, without_hot_store=True),
            Route("DELETE", _CHANNEL, do.delete_channel, For.SERVICE, errors=(errors.NotYet, *_NO_CHANNEL)),
            Route(
                "POST",
                _CHANNEL + "/members",
                do.change_members,
                For.SERVICE,
                json_of(api.ChangeMembers),
                errors=(errors.NotYet, *_NO_CHANNEL, errors.DirectChannelFull),
            ),
            Route(
                "GET", _CHANNEL + "/members", do.get_members, query=_MEMBERS, errors=_NO_CHANNEL, without_hot_store=True
            ),
        ),
    ),
    Group(
        "Messages",
        "What was said. Readstate gives every message its place (`seq`) and counts it.",
        (
            Route(
                "POST",
                "/v1/messages",
                do.post_messages,
                body=ONE_OR_MANY,
                status=202,
                errors=_SENDS,
                without_hot_store=True,
            ),
            Route(
                "PATCH",
                _MESSAGE,
                do.patch_message,
                body=json_of(api.MessageEdit),
                errors=(errors.NotYet, *_NO_MESSAGE, errors.MessageDeleted),
            ),
            Route("DELETE", _MESSAGE, do.delete_message, errors=(errors.NotYet, *_NO_MESSAGE)),
        ),
    ),
    Group(
        "Reading",
        "Marking read and unread.",
        (
            Route("POST", _THERE + "/read", do.mark_read, body=json_of(api.ReadTarget), errors=_READS),
            Route(
                "POST",
                _THERE + "/unread",
                do.mark_unread,
                body=json_of(api.MarkUnread),
                errors=(*_READS, errors.MessageDeleted),
            ),
            Route("POST", "/v1/reads", do.mark_many, For.SERVICE, json_of(Reads)),
            Route("POST", _USER + "/read", do.mark_all, body=json_of(api.ReadAll), errors=_READS),
            Route("POST", _USER + "/read/undo", do.undo, body=json_of(Undo), errors=(errors.UndoNotFound,)),
        ),
    ),
    Group(
        "Unread",
        "What is unread, where, and since when. Every count says whether it is exact.",
        (
            Route("GET", _USER + "/unread", do.sync, query=_SYNC, errors=_NO_MEMBER, without_hot_store=True),
            Route("GET", _THERE + "/unread", do.get_unread, errors=_NO_MEMBER, without_hot_store=True),
            Route(
                "GET",
                _USER + "/unread/messages",
                do.unread_messages,
                query=_MESSAGES,
                errors=_NO_MEMBER,
                without_hot_store=True,
            ),
            Route("POST", "/v1/unread/batch", do.totals, For.SERVICE, json_of(Users), without_hot_store=True),
            Route("GET", _THERE + "/explain", do.explain, errors=_NO_MEMBER),
            Route("POST", _THERE + "/recount", do.recount, For.SERVICE, json_of(Nothing), errors=_NO_MEMBER),
        ),
    ),
    Group(
        "Inbox",
        "The list of conversations.",
        (Route("GET", _USER + "/inbox", do.inbox, query=_INBOX, without_hot_store=True),),
    ),
    Group(
        "Badge",
        "How many different people wrote while no device of the user was connected.",
        (
            Route("GET", _USER + "/badge", do.get_badge, without_hot_store=True),
            Route("POST", _USER + "/badge/tap", do.tap_badge, body=json_of(TapBadge), errors=(errors.InvalidCursor,)),
        ),
    ),
    Group(
        "Threads",
        "Replies under a message. `{thread}` is the id of that message.",
        (
            Route("GET", _USER + "/threads", do.threads, query=_THREADS, errors=_NO_MEMBER, without_hot_store=True),
            Route(
                "PUT", _THREAD + "/follow", do.follow_thread, body=json_of(Nothing), errors=(errors.NotYet, *_NO_THREAD)
            ),
            Route("DELETE", _THREAD + "/follow", do.unfollow_thread, errors=(errors.NotYet, *_NO_THREAD)),
            Route(
                "POST",
                _THREAD + "/read",
                do.read_thread,
                body=json_of(api.ThreadRead),
                errors=(*_NO_THREAD, errors.MessageNotFound),
            ),
        ),
    ),
    Group(
        "Receipts",
        "Who has seen what, as far as they let it be known.",
        (
            Route(
                "GET",
                _MESSAGE + "/seen",
                do.seen,
                errors=(*_NO_MESSAGE, errors.MessageDeleted, errors.MessageWithoutSeq),
                without_hot_store=True,
            ),
            Route("GET", _CHANNEL + "/receipts", do.receipts, errors=_NO_CHANNEL, without_hot_store=True),
        ),
    ),
    Group(
        "Users",
        "Presence and preferences.",
        (
            Route("GET", _USER + "/presence", do.get_presence),
            Route(
                "PUT", _USER + "/presence", do.put_presence, For.SERVICE, json_of(api.PutPresence), errors=_NO_MEMBER
            ),
            Route("GET", _USER + "/preferences", do.get_user_preferences),
            Route("PUT", _USER + "/preferences", do.put_user_preferences, body=json_of(api.PutUserPreferences)),
            Route("GET", _THERE + "/preferences", do.get_preferences, errors=_NO_MEMBER),
            Route(
                "PUT", _THERE + "/preferences", do.put_preferences, body=json_of(api.PutPreferences), errors=_NO_MEMBER
            ),
        ),
    ),
    Group(
        "Moving",
        "Moving in, moving out, and erasing.",
        (
            Route("GET", "/v1/export", do.export, For.SERVICE, media=LINES),
            Route("POST", "/v1/import", do.import_lines, For.SERVICE, JSON_LINES, _IMPORT),
            Route("DELETE", _USER, do.erase_user, For.SERVICE),
        ),
    ),
    Group(
        "Operations",
        "For those who run it.",
        (
            Route("GET", "/healthz", do.healthz, For.ANYONE),
            Route("GET", "/readyz", do.readyz, For.ANYONE, errors=(errors.Unavailable,)),
            Route("GET", "/metrics", do.metrics, For.ANYONE, media="text/plain"),
            Route("GET", "/openapi.json", openapi_json, For.ANYONE),
            Route("GET", "/docs", docs, For.ANYONE, media="text/html"),
        ),
    ),
)


def routes(*more: Route) -> list[Route]:
    """All routes of the API, and more; whatever answers GET answers HEAD."""
    listed = [route for group in GROUPS for route in group.routes] + list(more)
    return listed + [replace(route, method="HEAD") for route in listed if route.method == "GET"]
