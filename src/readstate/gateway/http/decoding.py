"""Decodes bodies and queries, and explains what is wrong with them."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any
from urllib.parse import parse_qsl

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType, ValidationError, json

from readstate.api import Id, NewMessage, Request, UserRead
from readstate.api.fields import Cursor, about
from readstate.domain.errors import (
    BadRequest,
    BrokenJson,
    Invalid,
    InvalidId,
    ReadstateError,
    TooLarge,
    WrongContentType,
)
from readstate.domain.rules import check_id
from readstate.gateway.asgi import Disconnected, Receive

from .problems import BadIdInUrl

Decode = Callable[[bytes], Any]
"""Decodes a body; raises what msgspec raises."""

_MAX_SHOWN = 200


# ---------------------------------------------------------------- bodies that only HTTP has


class Nothing(Request, frozen=True):
    """A request without any field."""


class TapBadge(Request, frozen=True):
    """A tap, or with the cursor of its answer the next page of it."""

    cursor: Cursor = None


class Reads(Request, frozen=True):
    """Reads of any users."""

    reads: Annotated[
        tuple[UserRead, ...],
        about("Reads of any users.", maxItems="max_batch"),
    ]


class Users(Request, frozen=True):
    """Users whose totals are asked for."""

    users: Annotated[tuple[Id, ...], about("The users.", ["alice", "bob"], maxItems="max_batch")]


class Undo(Request, frozen=True):
    """The token that a mark-all-read gave."""

    undo: Annotated[str, about("Takes it back, for 10 minutes.", "4f0c2b9e")]


class Messages(Request, frozen=True):
    """Several messages."""

    messages: Annotated[tuple[NewMessage, ...], about("The messages.", maxItems="max_batch")]


class _Either(Struct):
    messages: Raw | UnsetType = UNSET


_either = json.Decoder(_Either).decode
_one_message = json.Decoder(NewMessage).decode
_many_messages = json.Decoder(Messages).decode
_anything = json.Decoder().decode


def one_or_many(body: bytes) -> NewMessage | Messages:
    """A single message, or `{"messages": [...]}`."""
    return _one_message(body) if _either(body).messages is UNSET else _many_messages(body)


# ---------------------------------------------------------------- bodies


async def read_body(receive: Receive, declared: bytes | None, limit: int) -> bytes:
    """The whole body. Stops at the first byte over the limit, or before reading if Content-Length exceeds it."""
    if declared is not None and declared.isdigit() and (len(declared) > 18 or int(declared) > limit):
        raise _too_large(limit)
    event = await receive()
    body: bytes = event.get("body", b"")
    if event.get("more_body"):
        body = await _read_on(receive, body, limit)
    elif event["type"] == "http.disconnect":
        raise Disconnected
    if len(body) > limit:
        raise _too_large(limit)
    return body


async def _read_on(receive: Receive, first: bytes, limit: int) -> bytes:
    chunks, size = [first], len(first)
    while size <= limit:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Disconnected
        chunk = event.get("body", b"")
        chunks.append(chunk)
        size += len(chunk)
        if not event.get("more_body"):
            break
    return b"".join(chunks)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is over {limit} bytes.")


def decode(make: Decode, body: bytes, content_type: bytes | None) -> Any:
    """Decode a body. An empty one counts as `{}`."""
    if not body:
        body = b"{}"
    elif content_type != b"application/json":
        _check_content_type(content_type)
    try:
        return make(body)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise explain(error, body) from None


def lines(body: bytes, content_type: bytes | None) -> bytes:
    """JSON Lines, undecoded: the import checks each line."""
    if body:
        _check_content_type(content_type, b"application/x-ndjson")
    return body


def _check_content_type(value: bytes | None, wanted: bytes = b"application/json") -> None:
    kind, *parameters = (value or b"").lower().split(b";")
    names = (parameter.strip().partition(b"=") for parameter in parameters)
    charsets = [charset.strip(b"\"' ") for name, _, charset in names if name.strip() == b"charset"]
    if kind.strip() != wanted or any(charset not in {b"utf-8", b"utf8"} for charset in charsets):
        raise WrongContentType(f"Send the body with 'Content-Type: {wanted.decode()}', in UTF-8.")


def explain(error: Exception, body: bytes) -> ReadstateError:
    """What is wrong with a body. A type error may hide that the rest is not JSON, which is then the better answer."""
    if isinstance(error, ValidationError):
        try:
            _anything(body)
        except ValidationError:
            pass
        except (DecodeError, UnicodeDecodeError, RecursionError) as worse:
            error = worse
    return _invalid(str(error)) if isinstance(error, ValidationError) else _broken(error)


def _broken(error: Exception) -> BrokenJson:
    if isinstance(error, UnicodeDecodeError):
        return BrokenJson("The body is not UTF-8.")
    if isinstance(error, RecursionError):
        return BrokenJson("The body is nested too deeply.")
    reason = str(error).removeprefix("JSON is malformed: ")
    return BrokenJson(f"The body is not JSON in UTF-8: {reason[:_MAX_SHOWN]}.")


_PLACE = re.compile(r"(?s)(.*) - at `\$(.*)`")
_NAMED = re.compile(r"(?s)Object (contains unknown|missing required) field `(.*)`")


def _invalid(message: str) -> Invalid:
    """Translate msgspec's message, such as "Expected `int`, got `str` - at `$.reads[3].up_to_seq`"."""
    reason, place = match.groups() if (match := _PLACE.fullmatch(message)) else (message, "")
    if named := _NAMED.fullmatch(reason):
        kind, name = named.groups()
        place = f"{place}.{name}"
        reason = "is not a field of this request" if kind == "contains unknown" else "is required"
    else:
        reason = reason[0].lower() + reason[1:].replace("`", "")
    field = place.lstrip(".")[:_MAX_SHOWN]
    return Invalid(f"{field or 'the body'}: {reason[:_MAX_SHOWN]}", field=field or None)


# ---------------------------------------------------------------- queries

Query = Mapping[str, Callable[[str], Any]]
"""The parameters of a route, each with the function that parses it (or raises ValueError)."""


def text(value: str) -> str:
    return value


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


def channels(value: str) -> list[str]:
    """Comma-separated channel ids. If the parameter is repeated, each value is one id, commas included."""
    return _checked(value.split(","))


def _checked(names: list[str]) -> list[str]:
    return [id_in_url(name, "channels") for name in names]


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
    field = name[:_MAX_SHOWN]
    if (parse := query.get(name)) is None:
        raise Invalid(f"{field}: is not a parameter of this request", field=field)
    if len(values) > 1:
        if parse is channels:
            return _checked(values)
        raise Invalid(f"{field}: is given more than once", field=field)
    try:
        return parse(values[0])
    except ValueError as error:
        raise Invalid(f"{field}: {error}", field=field) from None
