"""What a device asks for on its live connection, frame by frame."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, structs

from readstate.api import MarkUnread, ReadTarget, ThreadRead, Unread, frames
from readstate.domain.errors import Forbidden, Invalid, ReadstateError
from readstate.domain.rules import check_id

from .codes import TRY_AGAIN, Closed

if TYPE_CHECKING:
    from .connection import Connection


class Commands:
    """What the frames of a connection ask for, after its `hello`."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._rs = connection.rs
        self._user = connection.user
        self._focus: str | None = None
        self._handlers: dict[type, Callable[[Any], Awaitable[None]]] = {
            frames.Hello: self._hello_again,
            frames.Focus: self._on_focus,
            frames.Blur: self._on_blur,
            frames.MarkRead: self._on_read,
            frames.MarkUnread: self._on_unread,
            frames.Auth: self._on_auth,
            frames.BadgeTap: self._on_tap,
            frames.Ping: self._on_ping,
        }

    async def run(self, frame: frames.AnyClientFrame) -> None:
        await self._handlers[type(frame)](frame)

    async def _hello_again(self, frame: frames.Hello) -> None:
        raise Invalid("hello was said", field="type")

    async def _on_focus(self, frame: frames.Focus) -> None:
        """Open a channel. The answer has the unread state before, for the red line, and after."""
        if self._connection.observes:
            raise Forbidden("Who only watches has nothing open.")
        channel = check_id(frame.channel_id, "channel_id")
        before = await self._rs.renderer.unread(self._user, channel)
        opened_before = self._focus
        await self._set_focus(channel)
        try:
            if frame.read:
                await self._rs.reads.read(self._user, channel, ReadTarget(), self._connection.connection_id)
            after = await self._figures(channel)
        except ReadstateError:
            await self._take_back_focus(opened_before)
            raise
        self._connection.ack(frame, {**structs.asdict(before), "after": after})

    async def _on_blur(self, frame: frames.Blur) -> None:
        if check_id(frame.channel_id, "channel_id") == self._focus:
            await self._set_focus(None)
        self._connection.ack(frame, {})

    async def _set_focus(self, channel: str | None) -> None:
        await self._rs.presence.focus(self._user, self._connection.device, self._connection.connection_id, channel)
        self._focus = channel

    async def _take_back_focus(self, channel: str | None) -> None:
        """Restore the previous focus, since a refused focus must not read anything. If that fails, disconnect."""
        try:
            await self._set_focus(channel)
        except ReadstateError as error:
            raise Closed(TRY_AGAIN, error.detail[:100]) from None

    async def _on_read(self, frame: frames.MarkRead) -> None:
        channel = check_id(frame.channel_id, "channel_id")
        if frame.thread_id is None:
            moved = await self._rs.reads.read(self._user, channel, frame.target, self._connection.connection_id)
            self._connection.ack_read(frame, await self._figures(channel), moved.changed)
            return
        if (frame.up_to_seq, frame.up_to_time, frame.messages, frame.epoch) != (None, None, None, None):
            raise Invalid("a thread is read whole, or up_to a reply", field="thread_id")
        thread = check_id(frame.thread_id, "thread_id")
        request = ThreadRead(up_to=frame.up_to)
        answer = await self._rs.threads.read(self._user, channel, thread, request, self._connection.connection_id)
        self._connection.ack(frame, structs.asdict(answer))

    async def _on_unread(self, frame: frames.MarkUnread) -> None:
        channel = check_id(frame.channel_id, "channel_id")
        request = MarkUnread(from_=frame.from_, epoch=frame.epoch)
        moved = await self._rs.reads.unread(self._user, channel, request, self._connection.connection_id)
        if moved.changed and self._focus == channel:
            self._focus = None
        self._connection.ack_read(frame, await self._figures(channel), moved.changed)

    async def _figures(self, channel: str) -> Unread:
        """The counts as of this position among the frames."""
        now = await self._rs.renderer.unread(self._user, channel)
        self._rs.live.showed(self._user, now)
        return now

    async def _on_auth(self, frame: frames.Auth) -> None:
        principal = await self._connection.verify(b"Bearer " + frame.token.encode())
        if principal.user != (None if self._connection.observes else self._user):
            raise Forbidden("The new token is another user's.")
        self._connection.take(principal)
        self._connection.ack(
            frame, {"expires_at": None if principal.expires is None else int(principal.expires * 1000)}
        )

    async def _on_tap(self, frame: frames.BadgeTap) -> None:
        self._connection.ack(frame, structs.asdict(await self._rs.badge.tap(self._user, frame.cursor)))

    async def _on_ping(self, frame: frames.Ping) -> None:
        await self._rs.live.flushed(self._user)
        ref = UNSET if frame.ref is None else frame.ref
        self._connection.send(frames.Pong(server_time=self._rs.clock(), ref=ref))
