"""Routes: a method on a path, who may call it, what it takes, and its handler.

A route is declared once. The gateway serves from the declaration, and the OpenAPI document is generated from it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar, get_args

from msgspec import Struct, json
from prometheus_client import Counter, Histogram

from readstate import telemetry
from readstate.api import NewMessage
from readstate.domain.errors import ReadstateError
from readstate.gateway.auth.authenticator import Principal
from readstate.transfer.records import Header, Record

from .decoding import Messages, decode, lines, one_or_many
from .queries import Query

if TYPE_CHECKING:
    from readstate.profiles.service import Readstate
    from readstate.profiles.wiring import Services

P = ParamSpec("P")
H = TypeVar("H", bound="Handler")

JSON = "application/json"
LINES = "application/x-ndjson"


class Call:
    """One request as its handler sees it: authorized and decoded."""

    __slots__ = ("body", "channel", "message", "own", "query", "root", "rs", "service", "thread", "user", "wait")

    def __init__(self, rs: "Readstate", principal: Principal | None, path: dict[str, str]) -> None:
        self.service = rs
        self.rs: Services = rs
        """The services; while the hot store is unavailable, those that need none."""
        self.own = principal.user if principal else None
        """The user of the token; None for a service."""
        self.user = path.get("user", "")
        self.channel = path.get("channel", "")
        self.message = path.get("message", "")
        self.thread = path.get("thread", "")
        self.body: Any = None
        self.query: dict[str, Any] = {}
        self.wait = False
        """Whether the caller wants to wait for the effect (`Prefer: wait`)."""
        self.root = ""
        """The mount point of the gateway; set only for routes that are open to anyone."""


Handler = Callable[[Call], Awaitable[Any]]
"""Handles a call. The result becomes the JSON of the answer, unless it is an `Answer` or `Stream` itself.

Its docstring documents the route in the OpenAPI document, and its return type is the schema of the answer.
"""


class For(Enum):
    ANYONE = "also without a key or token"
    SERVICE = "service keys"
    USER = "also a user: the one in the path, in a channel of its own"


class Body(NamedTuple):
    """The body of a route: a value (or lines) of one of these types, and its decoder."""

    types: tuple[type[Struct], ...]
    read: Callable[[bytes, bytes | None], Any]
    """Takes the bytes and their content type."""
    media: str = JSON


def json_of(type_: type[Struct]) -> Body:
    return Body((type_,), partial(decode, json.Decoder(type_).decode))


ONE_OR_MANY = Body((NewMessage, Messages), partial(decode, one_or_many))
JSON_LINES = Body((Header, *get_args(Record)), lines, LINES)


@dataclass(frozen=True, eq=False)
class Route:
    """A method on a path, with its metrics created once."""

    handler: Handler
    method: str
    pattern: str
    open_to: For = For.USER
    body: Body | None = None
    query: Query = field(default_factory=dict)
    status: int = 200
    errors: tuple[type[ReadstateError], ...] = ()
    """Errors of this route, besides those of every route."""
    media: str = JSON
    """The media type of the answer."""
    without_hot_store: bool = False
    """The durable store alone can answer. Counts are stale then."""
    seconds: Histogram = field(init=False)
    counts: dict[int, Counter] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", telemetry.HTTP_SECONDS.labels(self.pattern))

    def count(self, status: int, seconds: float) -> None:
        self.seconds.observe(seconds)
        counter = self.counts.get(status)
        if counter is None:
            counter = telemetry.HTTP_REQUESTS.labels(self.pattern, self.method, str(status))
            self.counts[status] = counter
        counter.inc()


def _route(make: Callable[Concatenate[Handler, P], Route]) -> Callable[Concatenate["Group", P], Callable[[H], H]]:
    def route(group: "Group", /, *args: P.args, **kwargs: P.kwargs) -> Callable[[H], H]:
        def add(handler: H) -> H:
            group.routes.append(make(handler, *args, **kwargs))
            return handler

        return add

    return route


class Group:
    """Routes that belong together. `@group.route(...)` adds one: it takes what a `Route` takes after its handler."""

    def __init__(self, name: str, about: str) -> None:
        self.name = name
        self.about = about
        self.routes: list[Route] = []

    route = _route(Route)
