"""Decodes bodies, and explains what is wrong with them."""

import re
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType, ValidationError, json

from readstate.api import Id, NewMessage, Request, UserRead
from readstate.api.fields import Cursor, about
from readstate.domain.errors import (
    BrokenJson,
    Invalid,
    ReadstateError,
    TooLarge,
    WrongContentType,
)
from readstate.gateway.asgi import Disconnected, Receive

Decode = Callable[[bytes], Any]
"""Decodes a body; raises what msgspec raises."""

MAX_SHOWN = 200


# ---------------------------------------------------------------- bodies that only HTTP has


class Nothing(Request, frozen=True):
    """A request without any field."""


class TapBadge(Request, frozen=True):
    """A tap, or with the cursor of its answer the next page of it."""

    cursor: Cursor = None


class Reads(Request, frozen=True):
    """Reads of any users."""

    reads: Annotated[tuple[UserRead, ...], about("Reads of any users.", maxItems="max_batch")]


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
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Disconnected
        chunks.append(event.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise _too_large(limit)
        more = event.get("more_body", False)
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
    return BrokenJson(f"The body is not JSON in UTF-8: {reason[:MAX_SHOWN]}.")


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
    field = place.lstrip(".")[:MAX_SHOWN]
    return Invalid(f"{field or 'the body'}: {reason[:MAX_SHOWN]}", field=field or None)
