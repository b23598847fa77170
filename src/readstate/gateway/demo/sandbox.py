"""The demo page: what it is made of, and a sandbox of made-up people for everyone who opens it.

A sandbox lives inside the running service under ids of its own. Whoever gets one gets tokens of its people
and of nobody else; it is removed when they have expired.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, convert, structs

from readstate.api import NewMessage, PutChannel, PutPreferences, ReadTarget, SendResult
from readstate.domain.errors import ChannelNotFound
from readstate.gateway.asgi import Answer, content_type
from readstate.gateway.auth.authenticator import load_secrets, make_token, required_claims
from readstate.gateway.http.calls import Call, For, Handler, Route
from readstate.gateway.http.pages import page_headers
from readstate.gateway.http.problems import TooOften
from readstate.gateway.ratelimit import RateLimiter
from readstate.settings import Settings

from . import story

if TYPE_CHECKING:
    from readstate.profiles.service import Readstate

TOKEN_SECONDS = 3_600
SESSIONS_PER_DAY = 200
DAY = 86_400.0

_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"
_MEDIA = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
_HEADERS = page_headers("script-src 'self'", "style-src 'self'", "img-src 'self' data:")


def is_on(settings: Settings) -> bool:
    """Whether the page is served: it must be asked for, and needs a secret to sign with."""
    return settings.demo and bool(settings.jwt_secret or not settings.jwks)


# ---------------------------------------------------------------- routes


def routes() -> list[Route]:
    """The page, its files, and the maker of sandboxes. Each call has limits of its own."""
    web = files("readstate").joinpath("web")
    listed = [
        Route(_file(web / "demo.html", "text/html; charset=utf-8"), "GET", "/demo", For.ANYONE, media="text/html"),
        Route(Sessions().make, "POST", "/demo/session", For.ANYONE, status=201),
    ]
    for entry in sorted(web.iterdir(), key=lambda file: file.name):
        kind = _MEDIA.get(entry.name[entry.name.rfind(".") :])
        if kind is not None and entry.is_file():
            media = kind.partition(";")[0]
            listed.append(Route(_file(entry, kind), "GET", f"/demo/{entry.name}", For.ANYONE, media=media))
    return listed


def _file(file: Traversable, kind: str) -> Handler:
    answer = Answer(200, [content_type(kind), *_HEADERS], file.read_bytes())

    async def serve(call: Call) -> Answer:
        return answer

    return serve


# ---------------------------------------------------------------- sessions


class Person(Struct, frozen=True):
    """A person of a sandbox, with the token to act as them."""

    id: str
    name: str
    token: str


class Said(Struct, frozen=True, omit_defaults=True):
    """A message of a sandbox, as the store of a chat product would have it."""

    channel_id: str
    id: str
    sender_id: str
    text: str
    at: int
    seq: int | None
    thread_seq: int | None = None
    thread_id: str | None = None
    mentions: tuple[str, ...] = ()
    silent: bool = False


class Session(Struct, frozen=True):
    """A sandbox that was just made."""

    people: list[Person]
    channels: list[story.Room]
    messages: list[Said]


class _Made(NamedTuple):
    at: float
    suffix: str


class Sessions:
    """Makes sandboxes: one a second, a bounded number a day; what is over is removed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rate = RateLimiter(1, clock, burst=1)
        self._made: deque[_Made] = deque()
        """Of the last day, the oldest first."""
        self._standing: deque[_Made] = deque()

    async def make(self, call: Call) -> Session:
        """Make a sandbox of people, channels and messages."""
        made = self._take()
        await self._remove_old(call.service)
        self._standing.append(made)
        return await _Sandbox(call.service, made.suffix).fill()

    def _take(self) -> _Made:
        now = self._clock()
        while self._made and self._made[0].at <= now - DAY:
            self._made.popleft()
        if len(self._made) >= SESSIONS_PER_DAY:
            raise TooOften(self._made[0].at + DAY - now)
        if wait := self._rate.take("session"):
            raise TooOften(wait)
        made = _Made(now, "".join(secrets.choice(_ALPHABET) for _ in range(6)))
        self._made.append(made)
        return made

    async def _remove_old(self, rs: "Readstate") -> None:
        over = self._clock() - TOKEN_SECONDS
        while self._standing and self._standing[0].at <= over:
            await _Sandbox(rs, self._standing.popleft().suffix).remove()


class _Sandbox:
    """The people, channels and messages of the story under ids with one suffix."""

    def __init__(self, rs: "Readstate", suffix: str) -> None:
        self._rs = rs
        self._suffix = suffix

    async def fill(self) -> Session:
        rooms = [structs.replace(room, id=self._id(room.id), members=self._ids(room.members)) for room in story.ROOMS]
        for room in rooms:
            wanted = PutChannel(type=room.type, name=room.name, members=room.members)
            await self._rs.channels.put(room.id, wanted)
        said = await self._say()
        await self._settle()
        return Session(self._people(), rooms, said)

    async def remove(self) -> None:
        """Remove all of it. Visitors may have removed parts before."""
        for room in story.ROOMS:
            with suppress(ChannelNotFound):
                await self._rs.channels.delete(self._id(room.id))
        for person in story.PEOPLE:
            await self._rs.transfer.erase_user(self._id(person))

    async def _say(self) -> list[Said]:
        now = self._rs.clock()
        messages = [self._message(line, now - int(line.ago * 60_000)) for line in story.LINES]
        results: list[SendResult] = []
        # In batches of which each fits whatever the service allows.
        most = min(self._rs.settings.max_batch, 100)
        for start in range(0, len(messages), most):
            results += await self._rs.messages.send(messages[start : start + most])
        return list(map(_said, messages, results))

    def _message(self, line: story.Line, at: int) -> NewMessage:
        return NewMessage(
            channel_id=self._id(line.room),
            sender_id=self._id(line.sender),
            id=self._id(line.key) if line.key else None,
            at=at,
            text=line.text,
            thread_id=self._id(line.thread) if line.thread else None,
            mentions=self._ids(line.mentions),
            silent=line.silent,
        )

    async def _settle(self) -> None:
        """What the two people of the page have read, and what they want of the noisy channel."""
        for person, places in story.READ_UP_TO.items():
            for room, key in places.items():
                await self._rs.reads.mark_read(self._id(person), self._id(room), ReadTarget(up_to=self._id(key)))
        prefer = self._rs.preferences.put
        await prefer(self._id("alice"), self._id("general"), PutPreferences(pinned=True))
        await prefer(self._id("alice"), self._id("builds"), PutPreferences(muted=True))
        await prefer(self._id("bob"), self._id("builds"), PutPreferences(count="mentions"))

    def _people(self) -> list[Person]:
        settings = self._rs.settings
        secret = load_secrets(settings).jwt_secret

        def person(id_: str, name: str) -> Person:
            return Person(id_, name, make_token(secret, id_, TOKEN_SECONDS, required_claims(settings, id_)))

        return [person(self._id(key), name) for key, name in story.PEOPLE.items()]

    def _id(self, name: str) -> str:
        return f"{name}-{self._suffix}"

    def _ids(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(self._id(name) for name in names)


def _said(message: NewMessage, result: SendResult) -> Said:
    given = structs.asdict(message) | {"id": result.id, "seq": result.seq, "thread_seq": result.thread_seq}
    return convert(given, Said)
