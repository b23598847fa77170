"""The event stream of `readstate watch` and how it is printed."""

import asyncio
import random
import sys
import time
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import NamedTuple, Union
from urllib.parse import quote

import msgspec
from msgspec import UNSET
from rich.text import Text
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from readstate.api import frames
from readstate.client import errors
from readstate.domain.errors import Invalid, ReadstateError

from .chat import count as number_of
from .output import console, note, plain
from .target import Target

ME = "me"
ANSWER_SECONDS = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
STEADY_SECONDS = 10.0
"""After a connection that lasted this long, the next pause is short again."""
NOT_AUTHENTICATED, TOKEN_EXPIRED = 4401, 4403
REASONS = {
    1006: "it broke",
    1012: "the service restarts",
    1013: "the service cannot look up what was missed",
    4408: "events were not printed fast enough",
}

STYLES: dict[str, str] = {
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
_decoder = msgspec.json.Decoder(Union[tuple(frames.Event.__subclasses__())])  # noqa: UP007 - of a tuple


async def print_events(
    stream: "EventStream", only: Collection[str] | None, count: int | None, *, as_json: bool
) -> None:
    printed = 0
    async with aclosing(stream.events()) as events:
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


def say(text: str) -> None:
    note(Text(text, "dim"))


# ---------------------------------------------------------------- the events, over one connection after another


class Received(NamedTuple):
    """An event and its frame."""

    type: str
    text: str
    event: frames.Event | None
    """None: a type that only a newer version knows."""


class EventStream:
    """The events of one user. Reconnects, and continues where the last connection ended."""

    def __init__(self, target: Target, user: str, device: str, since: str | None) -> None:
        self._target = target
        self._user = user
        self._device = device
        self._newest: dict[tuple[str, str], int] = {}
        """The last seq of each channel and thread: what is sent again after a reconnect is printed once."""
        self.resume = since

    async def events(self) -> AsyncGenerator[Received, None]:
        """Every event, once. Raises if there is no service at first, or if a reconnect would not help."""
        socket = await self._connect()
        say(f"watching {plain(self._user)}")
        tries = 0
        while True:
            began = time.monotonic()
            try:
                while True:
                    event = _received(await socket.recv())
                    if event is not None and self._is_new(event):
                        yield event
            except ConnectionClosed as closed:
                why = _reason(closed)
            finally:
                await socket.close()
            say(f"the connection has ended ({why}); reconnecting")
            tries = 0 if time.monotonic() - began > STEADY_SECONDS else tries + 1
            socket = await self._reconnect(tries)
            say("reconnected; what was missed comes first")

    def _is_new(self, received: Received) -> bool:
        if received.event is None:
            return True
        self.resume = received.event.resume or self.resume
        if not isinstance(received.event, frames.MessageNew):
            return True
        room, seq = _room_and_seq(received.event)
        if seq <= self._newest.get(room, 0):
            return False
        self._newest[room] = seq
        return True

    async def _reconnect(self, tries: int) -> ClientConnection:
        """A new connection, after random pauses that grow."""
        while True:
            await asyncio.sleep(random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2**tries)))
            tries = min(tries + 1, 10)
            try:
                return await self._connect()
            except ReadstateError as error:
                if not error.retry:
                    raise

    async def _connect(self) -> ClientConnection:
        """A connection that has said hello."""
        url, key = self._target.address()
        target = f"ws{url.removeprefix('http').rstrip('/')}/v1/ws?user={quote(self._user, safe='')}"
        try:
            socket = await connect(
                target,
                additional_headers={"Authorization": f"Bearer {key}"},
                proxy=True if self._target.url else None,  # a service on this machine needs none
                ssl=self._target.tls() if url.startswith("https:") else None,
                open_timeout=ANSWER_SECONDS,
                close_timeout=1,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            detail = f"{url} answered {status}: it serves no live updates"
            raise errors.as_answered(
                errors.NotReadstate(detail), f"http_{status}", status, retry=status >= 500
            ) from error
        except (OSError, InvalidHandshake, InvalidURI) as error:
            unreachable = errors.Unreachable(f"{url} cannot be reached: {error}")
            unreachable.retry = not isinstance(error, InvalidURI)
            raise unreachable from error
        try:
            self._check_ready(await self._hello(socket, url))
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
            raise errors.Interrupted(f"{url} closed the connection before its answer") from closed
        except TimeoutError as error:
            raise errors.TimedOut(f"{url} did not answer in time") from error
        except msgspec.MsgspecError as error:
            raise errors.NotReadstate(f"{url} answers with something else than Readstate") from error
        if isinstance(answer, frames.Error):
            raise errors.as_answered(
                errors.refusal(answer.code, 0, answer.detail, answer.field), answer.code, 0, retry=answer.retry
            )
        return answer

    def _check_ready(self, ready: frames.Ready) -> None:
        """The service names whose events these are: the token's user, or the one that a service key asked for."""
        if self._user == ME and ready.expires_at is None:
            raise Invalid("a service key has no 'me': name the user by its id")
        if self._user not in {ME, ready.user_id}:
            raise errors.Forbidden(f"the token is {ready.user_id}'s, not {self._user}'s")
        self.resume = ready.resume or self.resume


def _reason(closed: ConnectionClosed) -> str:
    """Why a connection has ended; raises if the next one would end the same way."""
    code, text = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
    if code == NOT_AUTHENTICATED:
        raise errors.Unauthenticated(text or "the key or token is not valid") from None
    if code == TOKEN_EXPIRED:
        raise errors.TokenExpired("the token has expired: take a new one") from None
    return REASONS.get(code) or f"{code} {plain(text)}".strip()


def _received(data: str | bytes) -> Received | None:
    """The event of a frame; None: it is no event."""
    text = data if isinstance(data, str) else data.decode()
    try:
        event = _decoder.decode(text)
        return Received(str(event.__struct_config__.tag), text, event)
    except msgspec.ValidationError:
        frame = msgspec.json.decode(text)
    return Received(str(frame["type"]), text, None) if "resume" in frame else None


def _room_and_seq(message: frames.MessageNew) -> tuple[tuple[str, str], int]:
    if message.seq is not None:
        return (message.channel_id, ""), message.seq
    return (message.channel_id, message.thread_id or ""), message.thread_seq or 0


# ---------------------------------------------------------------- printing


def line(received: Received) -> Text:
    """An event in one line: the time, its type, and what matters of it."""
    clock = time.strftime("%H:%M:%S")
    what = received.text if received.event is None else _what(received.event)
    kind = Text(received.type.ljust(20), STYLES.get(received.type, ""))
    return Text.assemble((clock, "dim"), "  ", kind, "  ", plain(what))


def _what(event: frames.Event) -> str:
    match event:
        case frames.MessageNew():
            return f"{event.channel_id}  {_message(event)}"
        case frames.ReadPointerUpdated():
            read = _up_to(event.last_read_id, event.last_read_seq)
            return f"{event.channel_id}  read up to {read}, {_counts(event.unread, event.mentions)}"
        case frames.UnreadUpdated():
            return f"{event.channel_id}  {_unread(event)}"
        case frames.ChannelUpdated():
            return f"{event.channel_id}  {_conversation(event)}"
        case frames.ChannelRemoved():
            return f"{event.channel_id}  left, or deleted"
        case frames.ReceiptUpdated():
            return (
                f"{event.channel_id}  {event.user_id} has read up to {_up_to(event.last_read_id, event.last_read_seq)}"
            )
        case frames.BadgeUpdated():
            who = number_of(event.senders, "person", "people") if event.senders else "nobody"
            return f"{who} wrote while the user was away"
        case frames.ThreadUpdated():
            state = f"{event.unread} unread" if event.followed else "not followed any more"
            return f"{event.channel_id}  thread {event.thread_id}: {state}"
        case frames.SyncRequired():
            return event.reason
    return ""


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


def _unread(event: frames.UnreadUpdated) -> str:
    inexact = not event.exact and f"not exact: {event.reason}"
    counts = _counts(event.unread, event.mentions)
    return _listed(counts, inexact, event.muted and "muted", event.archived is True and "archived")


def _conversation(event: frames.ChannelUpdated) -> str:
    row, wanted = event.conversation, event.preferences
    flags = (wanted.muted and "muted", wanted.pinned and "pinned", wanted.archived and "archived")
    return _listed(row.name, _counts(row.unread, row.mentions), *flags)


def _counts(unread: int, mentions: int) -> str:
    return _listed(f"{unread} unread", mentions and number_of(mentions, "mention"))


def _up_to(message: str | None, seq: int) -> str:
    return f"{message} (seq {seq})" if message else f"seq {seq}"


def _listed(*words: object) -> str:
    """Join the words that are true."""
    return ", ".join(str(word) for word in words if word)
