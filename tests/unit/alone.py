"""The gateway alone, over a service that only writes down what it is asked."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from readstate.api import LastRead, ReadResult
from readstate.gateway import asgi_app
from readstate.gateway.asgi import Event
from readstate.gateway.auth.authenticator import make_token
from readstate.settings import make_settings
from readstate.timings import Timings

if TYPE_CHECKING:
    from readstate.profiles.service import Readstate

KEY = "a-service-key-of-good-length"
SECRET = "a secret of at least thirty-two bytes"
ALL_READ = ReadResult(LastRead("m5", 5, 1_700_000_000_000, 0), 0, "", True)


class Notebook:
    """Stands for the whole service: writes down every call, and answers what it was given to answer."""

    def __init__(self, **settings: Any) -> None:
        self.settings = make_settings(service_keys=(KEY,), jwt_secret=SECRET, **settings)
        self.timings = Timings()
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {"mark_read": ALL_READ, "ready": {"database": "ok"}}
        self.members_of: dict[str, set[str]] = {}
        self.channels = self.messages = self.reads = self.unread = self.preferences = Service(self)
        self.inbox = self.badge = self.threads = self.receipts = self.presence = Service(self)
        self.transfer = Transfer(self)
        self.tracing = None

    async def ready(self) -> Any:
        return self.answers["ready"]

    async def is_member(self, user: str, *channels: str) -> bool:
        return all(user in self.members_of.get(channel, ()) for channel in channels)


class Service:
    """Any part of the service: every method of it exists."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            self._notebook.calls.append((name, *arguments, *named.items()))
            answer = self._notebook.answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


class Transfer(Service):
    """Moving in and out: an export comes in pieces, each of them bytes, or an error."""

    async def export(self) -> AsyncIterator[bytes]:
        for piece in self._notebook.answers["export"]:
            if isinstance(piece, Exception):
                raise piece
            self._notebook.calls.append(("exported", piece))
            await asyncio.sleep(0)  # others have their turn, as with any real store
            yield piece


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Chat:
    """Speaks ASGI to a gateway, as nothing but a test would."""

    def __init__(self, **settings: Any) -> None:
        self.service = Notebook(**settings)
        self.app = asgi_app(cast("Readstate", self.service))
        self.events: Iterator[Event] = iter(())
        self.sent: list[Event] = []

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] = b"",
        token: str | None = KEY,
        *,
        query: str = "",
        headers: dict[str, str] | None = None,
        **scope: Any,
    ) -> Answer:
        given = {"content-type": "application/json", **(headers or {})}
        if token is not None:
            given["authorization"] = f"Bearer {token}"
        whole = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            **scope,
        }
        chunks = [body] if isinstance(body, bytes) else body
        self.events = iter(
            [
                *({"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks),
                {"type": "http.request"},
            ]
        )
        await self.run(whole)
        return self.answer()

    async def run(self, scope: dict[str, Any]) -> None:
        self.sent = []

        async def receive() -> Event:
            if (event := next(self.events, None)) is None:
                await asyncio.Event().wait()  # the client stays, and has nothing more to say
            return cast("Event", event)

        async def send(event: Event) -> None:
            self.sent.append(event)

        await self.app(scope, receive, send)

    def answer(self) -> Answer:
        start, *rest = self.sent
        assert [event.get("more_body", False) for event in rest] == [True] * (len(rest) - 1) + [False]
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], headers, b"".join(event["body"] for event in rest))


def user(name: str) -> str:
    return make_token(SECRET, name, 3600)
