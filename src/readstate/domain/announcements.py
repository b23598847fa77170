"""What is told to the instances that hold devices, after it is durable. Best effort: what was missed is resumed.

Instances of different versions tell each other: a tag keeps its meaning, and new fields have defaults.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from msgspec import Struct

from .model import Channel, Message, Pointer, Undelivered


class MessageCame(Struct, frozen=True, gc=False, tag_field="kind", tag="message"):
    """A message came into a channel, or into a thread of it."""

    message: Message
    instance_id: str
    """Where it was written."""
    reached: tuple[Undelivered, ...] = ()
    """To whom it goes as to people who are online."""
    read_before: bool = False
    """The sender has read what others wrote before it by sending it."""


class ChannelTouched(Struct, frozen=True, gc=False, tag_field="kind", tag="channel"):
    """Something else about a channel changed that its members see."""

    channel_id: str
    what: Literal["counts", "conversation"]
    """An edit or a delete; a new name, picture or state."""


class MembersChanged(Struct, frozen=True, gc=False, tag_field="kind", tag="members"):
    """These are members now, and these no more."""

    channel_id: str
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class ThreadTouched(Struct, frozen=True, gc=False, tag_field="kind", tag="thread"):
    """A thread changed for these followers; those who follow it no more are told so."""

    room: str
    users: tuple[str, ...]


class PointerMoved(Struct, frozen=True, gc=False, tag_field="kind", tag="pointer"):
    """A user has read, or marked unread."""

    user_id: str
    channel_id: str
    """Or the room of a thread."""
    before: Pointer
    pointer: Pointer
    instance_id: str
    origin: str | None = None
    """The connection that did it: it has its answer."""


class UserRoomChanged(Struct, frozen=True, gc=False, tag_field="kind", tag="seat"):
    """A user's own view of a channel changed: preferences, or a repair."""

    user_id: str
    channel_id: str
    conversation: bool = False
    """Also what the inbox shows."""


class BadgeChanged(Struct, frozen=True, gc=False, tag_field="kind", tag="badge"):
    """Another number is on the offline badge."""

    user_id: str


class StateReplaced(Struct, frozen=True, gc=False, tag_field="kind", tag="replaced"):
    """These users' state is another one altogether (an import, an erase): only a sync helps."""

    users: tuple[str, ...]
    reason: str


class Outcome(Struct, frozen=True, gc=False, tag_field="kind", tag="outcome"):
    """What became of an event of a channel, to the instance that waits for it."""

    ref: str
    """As the event carries it."""
    code: str | None = None
    """Why it was refused; None: it was done."""
    detail: str = ""
    field: str | None = None
    message: Message | None = None
    channel: Channel | None = None
    duplicate: bool = False
    added: int = 0
    removed: int = 0


Announcement = (
    MessageCame
    | ChannelTouched
    | MembersChanged
    | ThreadTouched
    | PointerMoved
    | UserRoomChanged
    | BadgeChanged
    | StateReplaced
    | Outcome
)

OnAnnouncements = Callable[[Sequence[Announcement]], Awaitable[None]]
"""Takes what was announced."""
OnGap = Callable[[float], Awaitable[None]]
"""Is told that announcements of the last so many seconds may have been missed, before anything newer."""
