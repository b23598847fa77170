"""Queries: their parameters, how each is parsed, and what the documentation says of it."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from readstate.domain.errors import BadRequest, Invalid, InvalidId
from readstate.domain.rules import check_id

from .decoding import MAX_SHOWN
from .problems import BadIdInUrl


class Parameter(NamedTuple):
    """A query parameter: its parser (which may raise ValueError) and its documentation.

    A limit in the schema that is a setting is given as the name of the setting.
    """

    parse: Callable[..., Any]
    about: str
    schema: Mapping[str, Any]


Query = Mapping[str, Parameter]

# ---------------------------------------------------------------- parsers


def whole(value: str) -> int:
    if not re.fullmatch("-?[0-9]{1,18}", value):
        raise ValueError("must be a whole number")
    return int(value)


def from_one(value: str) -> int:
    if (number := whole(value)) < 1:
        raise ValueError("must be 1 or more")
    return number


def boolean(value: str) -> bool:
    try:
        return {"true": True, "1": True, "false": False, "0": False}[value]
    except KeyError:
        raise ValueError("must be true or false") from None


def one_of(*choices: str) -> Callable[[str], str]:
    def choose(value: str) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value

    return choose


def id_in_url(value: str, field: str, check: Callable[[str, str], str] = check_id) -> str:
    """An id in a path or query; BadIdInUrl if it is not valid."""
    try:
        return check(value, field)
    except InvalidId as error:
        raise BadIdInUrl(error.detail, field=error.field) from None


def channel(value: str) -> str:
    return id_in_url(value, "channel")


def channels(*values: str) -> list[str]:
    """Comma-separated channel ids. If the parameter is repeated, each value is one id, commas included."""
    return [id_in_url(name, "channels") for name in (values if len(values) > 1 else values[0].split(","))]


def parse_query(query: Query, raw: bytes) -> dict[str, Any]:
    """The values of a query string. Parameters that are not given are left out."""
    if not raw:
        return {}
    given: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise BadRequest("The query is not percent-encoded UTF-8.") from None
    for name, value in pairs:
        given.setdefault(name, []).append(value)
    return {name: _parameter(query, name, values) for name, values in given.items()}


def _parameter(query: Query, name: str, values: list[str]) -> Any:
    field = name[:MAX_SHOWN]
    if (parameter := query.get(name)) is None:
        raise Invalid(f"{field}: is not a parameter of this request", field=field)
    if len(values) > 1 and parameter.parse is not channels:
        raise Invalid(f"{field}: is given more than once", field=field)
    try:
        return parameter.parse(*values)
    except ValueError as error:
        raise Invalid(f"{field}: {error}", field=field) from None


# ---------------------------------------------------------------- the queries of the API


def _limit(default: int) -> Parameter:
    about = "How many items a page has at most."
    return Parameter(whole, about, {"type": "integer", "minimum": 1, "maximum": "max_page", "default": default})


def _choice(about: str, *choices: str) -> Parameter:
    return Parameter(one_of(*choices), about, {"type": "string", "enum": list(choices), "default": choices[0]})


def _flag(about: str, default: bool) -> Parameter:
    return Parameter(boolean, about, {"type": "boolean", "default": default})


_TEXT = {"type": "string"}
ID = {"type": "string", "minLength": 1, "maxLength": 128}
_IDS = {"type": "array", "items": ID}

_CURSOR = Parameter(str, "`cursor` of the page before: the page after it.", _TEXT)
_IN_CHANNEL = Parameter(channel, "Only in this channel.", ID)

MEMBERS = {"limit": _limit(100), "cursor": _CURSOR}
SYNC = {
    "channels": Parameter(
        channels, "Only these channels, separated by commas. An id that has a comma: repeat it.", _IDS
    ),
    "only_unread": _flag("Only channels with something unread.", default=True),
    "since": Parameter(str, "`sync` of an earlier answer: only what has changed since.", _TEXT),
    "limit": _limit(1000),
    "cursor": _CURSOR,
}
EXPLAIN = {"keys": _flag("Also what the hot store has of the user and the channel, key by key.", default=False)}
MESSAGES = {
    "channel": _IN_CHANNEL,
    "order": _choice("In which order they come.", "newest", "oldest", "channel"),
    "limit": _limit(100),
    "cursor": _CURSOR,
}
INBOX = {
    "order": _choice("By latest activity alone, or unread conversations first.", "recent", "unread_first"),
    "filter": _choice("Which conversations.", "all", "unread", "archived"),
    "limit": _limit(20),
    "cursor": _CURSOR,
}
THREADS = {
    "filter": _choice("Which threads.", "all", "unread"),
    "channel": _IN_CHANNEL,
    "limit": _limit(20),
    "cursor": _CURSOR,
}

IMPORT = {
    "first_line": Parameter(
        from_one, "The number of the first line that is sent.", {"type": "integer", "minimum": 1, "default": 1}
    ),
    "stop": _flag("Stop at the first record that can't be taken.", default=False),
}
