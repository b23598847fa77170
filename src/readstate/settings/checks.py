"""What may be wrong with the value of a setting."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from readstate.domain.errors import ConfigurationError

Value = str | int | tuple[str, ...]
Check = Callable[[str], str | None]
"""What is wrong with a text, as the end of a sentence about it; None: nothing."""


@dataclass(frozen=True)
class About:
    """What the table says of one setting besides its type and default."""

    help: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    """Those of the type, if it is a Literal."""
    secret: bool = False
    url: bool = False
    """May hold a password, which is never shown."""
    check: Check | None = None


def refuse(faults: list[str]) -> None:
    """Raise one ConfigurationError that names all the faults, if there are any."""
    if len(faults) == 1:
        raise ConfigurationError(faults[0])
    if faults:
        raise ConfigurationError("\n".join([f"{len(faults)} settings are not valid:", *(f"  {f}" for f in faults)]))


def faults(value: object, default: Value, about: About, source: str) -> list[str]:
    """What is wrong with one value, each fault beginning with where the value came from."""
    shown = "the value" if about.secret or about.url else repr(value)
    if isinstance(default, bool):
        problems = [] if isinstance(value, bool) else [f"{shown} is neither true nor false"]
    elif isinstance(default, int):
        problems = _number_faults(value, shown, about)
    elif isinstance(default, tuple):
        problems = _list_faults(value, shown, about.check)
    elif not isinstance(value, str):
        problems = [f"{shown} is not a text"]
    elif about.choices and value not in about.choices:
        problems = [f"{shown} is not one of {', '.join(about.choices)}"]
    else:
        problems = _text_faults(value, shown, about.check)
    return [f"{source}: {problem}" for problem in problems]


def _number_faults(value: object, shown: str, about: About) -> list[str]:
    if not isinstance(value, int) or isinstance(value, bool):
        return [f"{shown} is not a whole number"]
    if about.low is not None and value < about.low:
        return [f"{shown} is below the least, {about.low}"]
    if about.high is not None and value > about.high:
        return [f"{shown} is above the most, {about.high}"]
    return []


def _list_faults(value: object, shown: str, check: Check | None) -> list[str]:
    if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
        return [f"{shown} is not a list of texts"]
    found = ((number, check(item)) for number, item in enumerate(value, 1)) if check else ()
    return [f"item {number} {problem}" for number, problem in found if problem]


def _text_faults(value: str, shown: str, check: Check | None) -> list[str]:
    if re.search("[\0\ud800-\udfff]", value):
        return [f"{shown} holds bytes that are no text"]
    problem = check(value) if check else None
    return [f"{shown} {problem}"] if problem else []


# ---------------------------------------------------------------- texts

_HOST = r"(?:[0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\])"
_SERVER = rf"{_HOST}(?::[0-9]{{1,5}})?"
_SERVERS = rf"(?:[^/@?#]*@)?{_SERVER}(?:,{_SERVER})*"
_POSTGRES = re.compile(rf"postgres(?:ql)?://(?:{_SERVERS})?(?:/[^/?#]*)?(?:\?[^#]*)?")
_SINGLE = rf"rediss?://(?:[^/@?#]*@)?{_SERVER}(?:/[0-9]*)?(?:\?[^#]*)?"
_CLUSTER = rf"rediss?\+cluster://{_SERVERS}/?(?:\?[^#]*)?"
_ENCODE = "(in a password, write / as %2F, @ as %40, ? as %3F and # as %23)"


def _like(pattern: str, problem: str) -> Check:
    """The check that a whole text matches a pattern. `{}` in the problem stands for the text."""
    return lambda value: None if re.fullmatch(pattern, value) else problem.format(repr(value))


def database_url(value: str) -> str | None:
    if not value or (value.startswith("sqlite:///") and value != "sqlite:///"):
        return None
    scheme = value.partition(":")[0]
    if scheme in {"cassandra", "dynamodb"}:
        return f"names {scheme}, which is not available in this version: it stores in SQLite or PostgreSQL"
    if scheme not in {"postgresql", "postgres"}:
        return "is not of the form sqlite:///path or postgresql://user:password@host/name"
    if not _POSTGRES.fullmatch(value):
        return f"is not of the form postgresql://user:password@host:port/name {_ENCODE}"
    return None


hot_url = _like(
    f"|{_SINGLE}|{_CLUSTER}",
    "is not of the form redis://user:password@host:port/0, rediss://… or redis+cluster://host:port,host:port "
    + _ENCODE,
)
broker = _like(rf"{_HOST}:[0-9]{{1,5}}", "({}) is not of the form host:port")
topic_prefix = _like(r"[0-9A-Za-z._-]{0,64}", "is not at most 64 letters, digits, dots, dashes and underscores")
host = _like(r"[0-9A-Za-z.:_%-]+", "is not a host name or an address")
not_empty = _like(r"(?s:.*\S.*)", "is empty")
origin = _like(
    rf"\*|(?i:https?)://{_HOST}(?::[0-9]{{1,5}})?", "({}) is not a web origin such as https://chat.example.com"
)


def key_prefix(value: str) -> str | None:
    if re.fullmatch(r"[!-~]*", value) and not set(value) & set("{}*?[]\\") and len(value) <= 64:
        return None
    return "is not at most 64 printable ASCII characters without spaces, braces, brackets, *, ? and \\"


def service_key(value: str) -> str | None:
    if not re.fullmatch(r"[!-~]*", value):
        return "has characters that are not printable ASCII"
    return None if len(value) >= 16 else "is shorter than 16 characters"


def jwt_secret(value: str) -> str | None:
    return None if not value or len(value.encode()) >= 32 else "is shorter than 32 bytes, which HS256 needs"


def jwks(value: str) -> str | None:
    if "://" in value and not re.fullmatch(r"https?://[^/\s]+(/\S*)?", value):
        return "is neither a file nor an http(s) URL"
    return None


def instance_id(value: str) -> str | None:
    return None if value.isprintable() and len(value.encode()) <= 128 else "is not at most 128 printable bytes"
