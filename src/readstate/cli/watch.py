"""`readstate watch`: a user's events as they come."""

import asyncio
import random
import sys
import time
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing, suppress
from typing import Annotated, NamedTuple
from urllib.parse import quote

import msgspec
import typer
from msgspec import UNSET
from rich.text import Text
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from readstate.api import frames
from readstate.client.errors import (
    Forbidden,
    Interrupted,
    NotReadstate,
    TimedOut,
    TokenExpired,
    Unauthenticated,
    Unreachable,
    as_answered,
    refusal,
)
from readstate.domain.errors import Invalid, ReadstateError
from readstate.domain.rules import check_user_id

from .chat import User
from .chat import count as number_of
from .help import examples
from .output import console, plain
from .place import Json, Place, at_a_place

app = typer.Typer()

ME = "me"
ANSWER_SECONDS = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
STEADY_SECONDS = 10.0
"""A connection that has lasted so long was a good one: the next pause is short again."""
NOT_AUTHENTICATED, TOKEN_EXPIRED = 4401, 4403
REASONS = {
    1006: "it broke",
    1012: "the service restarts",
    1013: "the service can't look up what was missed",
    4408: "too much waited to be printed",
}

AnyEvent = (
    frames.MessageNew
    | frames.ReadPointerUpdated
    | frames.UnreadUpdated
    | frames.ChannelUpdated
    | frames.ChannelRemoved
    | frames.ReceiptUpdated
    | frames.BadgeUpdated
    | frames.ThreadUpdated
    | frames.SyncRequired
)
STYLES = {
    "message.new": "green",
    "read_pointer.updated": "cyan",
    "unread.updated": "yellow",
    "channel.updated": "magenta",
    "channel.removed": "magenta",
    "receipt.updated": "blue",
    "badge.updated": "bright_red",
    "thread.updated": "bright_green",
    "sync.required": "bold red",
}

HELP = (
    "Print a user's events as they come, until Ctrl+C.\n\n"
    "With the service key it only looks on: the user does not become online by it. With a user's token it is one of "
    "the user's devices. It comes back by itself after a lost connection, and then tells what was missed. "
    "With --json each event is one line, as the service sent it."
)


@app.command(
    rich_help_panel="Understand it",
    help=HELP,
    epilog=examples(
        "readstate watch bob",
        "readstate watch bob --only message.new --only badge.updated",
        "readstate watch bob --json --count 1",
        "readstate watch bob --since zzZUTpShc88AAAABAAAADAXPAAABoeH5F5w",
    ),
)
@at_a_place
def watch(
    user: User,
    only: Annotated[
        list[str] | None, typer.Option(help="Only events of this type, such as message.new; may be repeated.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Begin with what happened since this cursor: a resume, or a sync.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many events.")] = None,
    device: Annotated[str, typer.Option(help="With a user's token: which device this is.")] = "readstate watch",
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Print a user's events as they come, until Ctrl+C."""
    for name in only or ():
        if name not in STYLES:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(STYLES)}", param_hint="--only")
    tail = Tail(place, user if user == ME else check_user_id(user), device, since)
    with suppress(KeyboardInterrupt):  # how it is meant to end
        asyncio.run(_print(tail, only, count, as_json=as_json))
    if not as_json and tail.resume:
        _say(f"to go on from here: --since {tail.resume}")


async def _print(tail: "Tail", only: Collection[str] | None, count: int | None, *, as_json: bool) -> None:
    printed = 0
    async with aclosing(tail.events()) as events:
        async for event in events:
            if only and event.type not in only:
                continue
            if as_json:
                sys.stdout.write(event.text + "\n")
                sys.stdout.flush()
            else:
                console().print(line(event), soft_wrap=True)
            printed += 1
            if printed == count:
                return


def _say(text: str) -> None:
    console(stderr=True).print(Text(text, "dim"), soft_wrap=True)


# ---------------------------------------------------------------- the events, over as many connections as it takes


class Told(NamedTuple):
    """An event, and how the service told it."""

    type: str
    text: str
    event: AnyEvent | None
    """None if it is of a type that only a newer version knows."""


class Tail:
    """What happens to one user. A lost connection is made again, and goes on where the last one ended."""

    def __init__(self, place: Place, user: str, device: str, since: str | None) -> None:
        self._place = place
        self._user = user
        self._device = device
        self._newest: dict[tuple[str, str], int] = {}
        """The last seq of each channel and thread: what comes twice after a fault is told once."""
        self.resume = since

    async def events(self) -> AsyncGenerator[Told, None]:
        """Every event, once. Raises when there is no service at first, or when coming back would not help."""
        socket = await self._connect()
        _say(f"watching {plain(self._user)}")
        tries = 0
        while True:
            began = time.monotonic()
            try:
                while True:
                    event = _told(await socket.recv())
                    if event is not None and self._is_new(event):
                        yield event
            except ConnectionClosed as closed:
                why = _reason(closed)
            finally:
                await socket.close()
            _say(f"the connection has ended ({why}); coming back")
            tries = 0 if time.monotonic() - began > STEADY_SECONDS else tries + 1
            socket = await self._come_back(tries)
            _say("back; what was missed comes first")

    def _is_new(self, told: Told) -> bool:
        if told.event is None:
            return True
        self.resume = told.event.resume or self.resume
        if not isinstance(told.event, frames.MessageNew):
            return True
        place, seq = _place(told.event)
        if seq <= self._newest.get(place, 0):
            return False
        self._newest[place] = seq
        return True

    async def _come_back(self, tries: int) -> ClientConnection:
        """A new connection, after pauses that grow and are shortened by chance."""
        while True:
            await asyncio.sleep(random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2**tries)))
            tries = min(tries + 1, 10)
            try:
                return await self._connect()
            except ReadstateError as error:
                if not error.retry:
                    raise

    async def _connect(self) -> ClientConnection:
        """A connection that is live."""
        url, key = self._place.address()
        target = f"ws{url.removeprefix('http').rstrip('/')}/v1/ws?user={quote(self._user, safe='')}"
        try:
            socket = await connect(
                target,
                additional_headers={"Authorization": f"Bearer {key}"},
                proxy=True if self._place.url else None,  # a service on this machine needs none
                ssl=self._place.tls() if url.startswith("https:") else None,
                open_timeout=ANSWER_SECONDS,
                close_timeout=1,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            detail = f"{url} answered {status}: there is no live service"
            raise as_answered(NotReadstate(detail), f"http_{status}", status, retry=status >= 500) from error
        except (OSError, InvalidHandshake, InvalidURI) as error:
            unreachable = Unreachable(f"{url} cannot be reached: {error}")
            unreachable.retry = not isinstance(error, InvalidURI)
            raise unreachable from error
        try:
            self._greeted(await self._hello(socket, url))
        except BaseException:
            await socket.close()
            raise
        return socket

    async def _hello(self, socket: ClientConnection, url: str) -> frames.Ready:
        hello = frames.Hello(device=self._device, resume=self.resume)
        try:
            await socket.send(msgspec.json.encode(hello).decode())
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = msgspec.json.decode(await socket.recv(), type=frames.Ready | frames.Error)
        except ConnectionClosed as closed:
            _reason(closed)
            raise Interrupted(f"{url} broke off before its answer") from closed
        except TimeoutError as error:
            raise TimedOut(f"{url} did not answer in time") from error
        except msgspec.MsgspecError as error:
            raise NotReadstate(f"{url} answers with something that is not Readstate's") from error
        if isinstance(answer, frames.Error):
            raise as_answered(refusal(answer.code, 0, answer.detail, answer.field), answer.code, 0, retry=answer.retry)
        return answer

    def _greeted(self, ready: frames.Ready) -> None:
        """The service says whose events these are: a token's user, or whom a service key has named."""
        if self._user == ME and ready.expires_at is None:
            raise Invalid("a service key has no 'me': name the user by its id")
        if self._user not in {ME, ready.user_id}:
            raise Forbidden(f"the token is {ready.user_id}'s, not {self._user}'s")
        self.resume = ready.resume or self.resume


def _reason(closed: ConnectionClosed) -> str:
    """Why a connection has ended; raises where another one would end the same way."""
    code, text = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
    if code == NOT_AUTHENTICATED:
        raise Unauthenticated(text or "the key or token is not valid") from None
    if code == TOKEN_EXPIRED:
        raise TokenExpired("the token has expired: take a new one") from None
    return REASONS.get(code) or f"{code} {plain(text)}".strip()


def _told(data: str | bytes) -> Told | None:
    """A frame, if it is an event."""
    text = data if isinstance(data, str) else data.decode()
    try:
        event = msgspec.json.decode(text, type=AnyEvent)
        return Told(str(event.__struct_config__.tag), text, event)
    except msgspec.ValidationError:
        frame = msgspec.json.decode(text)
    return Told(str(frame["type"]), text, None) if "resume" in frame else None


def _place(message: frames.MessageNew) -> tuple[tuple[str, str], int]:
    """Where a message stands: in its channel, or else in its thread."""
    if message.seq is not None:
        return (message.channel_id, ""), message.seq
    return (message.channel_id, message.thread_id or ""), message.thread_seq or 0


# ---------------------------------------------------------------- for people


def line(told: Told) -> Text:
    """An event in one line: when it came, what it is, and what matters of it."""
    clock = time.strftime("%H:%M:%S")
    what = told.text if told.event is None else _what(told.event)
    kind = Text(told.type.ljust(20), STYLES.get(told.type, ""))
    return Text.assemble((clock, "dim"), "  ", kind, "  ", plain(what))


def _what(event: AnyEvent) -> str:
    match event:
        case frames.MessageNew():
            return f"{event.channel_id}  {_message(event)}"
        case frames.ReadPointerUpdated():
            place = _up_to(event.last_read_id, event.last_read_seq)
            return f"{event.channel_id}  read up to {place}, {_figures(event.unread, event.mentions)}"
        case frames.UnreadUpdated():
            return f"{event.channel_id}  {_counts(event)}"
        case frames.ChannelUpdated():
            return f"{event.channel_id}  {_conversation(event)}"
        case frames.ChannelRemoved():
            return f"{event.channel_id}  left, or deleted"
        case frames.ReceiptUpdated():
            place = _up_to(event.last_read_id, event.last_read_seq)
            return f"{event.channel_id}  {event.user_id} has read up to {place}"
        case frames.BadgeUpdated():
            who = number_of(event.senders, "person", "people") if event.senders else "nobody"
            return f"{who} wrote while the user was away"
        case frames.ThreadUpdated():
            state = f"{event.unread} unread" if event.followed else "not followed any more"
            return f"{event.channel_id}  thread {event.thread_id}: {state}"
        case frames.SyncRequired():
            return event.reason


def _message(event: frames.MessageNew) -> str:
    said = f"{event.sender_id}: {event.preview}" if event.preview else f"{event.message_id} by {event.sender_id}"
    notes = (
        event.seq is not None and f"seq {event.seq}",
        event.thread_id is not UNSET and f"thread {event.thread_id}",
        event.counts and "+1",
        event.mentions_me and "mentioned",
        event.silent and "silent",
    )
    return f"{said}  ({_listed(*notes)})"


def _counts(event: frames.UnreadUpdated) -> str:
    inexact = not event.exact and f"not exact: {event.reason}"
    figures = _figures(event.unread, event.mentions)
    return _listed(figures, inexact, event.muted and "muted", event.archived is True and "archived")


def _conversation(event: frames.ChannelUpdated) -> str:
    row, wanted = event.conversation, event.preferences
    flags = (wanted.muted and "muted", wanted.pinned and "pinned", wanted.archived and "archived")
    return _listed(row.name, _figures(row.unread, row.mentions), *flags)


def _figures(unread: int, mentions: int) -> str:
    return _listed(f"{unread} unread", mentions and number_of(mentions, "mention"))


def _up_to(message: str | None, seq: int) -> str:
    return f"{message} (seq {seq})" if message else f"seq {seq}"


def _listed(*words: object) -> str:
    """Those of the words that hold."""
    return ", ".join(str(word) for word in words if word)
