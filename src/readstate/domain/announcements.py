"""Announcements: what the bus carries to the instances that hold devices, once it is durable.

Best effort: a device that missed some resumes. Instances of different versions exchange them, so a tag keeps its
meaning and new fields have defaults.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from msgspec import Struct

from .model import Channel, Message, Pointer, Undelivered


class MessageCame(Struct, frozen=True, gc=False, tag_field="kind", tag="message"):
    """A new message in a channel, or in a thread of it."""

    message: Message
    instance_id: str
    """The instance that accepted it."""
    reached: tuple[Undelivered, ...] = ()
    """Receivers who were online."""
    read_before: bool = False
    """By sending it, the sender has read what others wrote before it."""


class ChannelTouched(Struct, frozen=True, gc=False, tag_field="kind", tag="channel"):
    """Another change of a channel that its members see."""

    channel_id: str
    what: Literal["counts", "conversation"]
    """`counts`: an edit or a delete; `conversation`: a new name, picture or state."""


class MembersChanged(Struct, frozen=True, gc=False, tag_field="kind", tag="members"):
    channel_id: str
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class ThreadTouched(Struct, frozen=True, gc=False, tag_field="kind", tag="thread"):
    """A thread changed for these users. It also reaches those who no longer follow it."""

    room: str
    users: tuple[str, ...]


class PointerMoved(Struct, frozen=True, gc=False, tag_field="kind", tag="pointer"):
    """A user has read or marked unread."""

    user_id: str
    channel_id: str
    """A channel, or the room of a thread."""
    before: Pointer
    pointer: Pointer
    instance_id: str
    origin: str | None = None
    """The connection that did it, which has its answer already."""


class UserRoomChanged(Struct, frozen=True, gc=False, tag_field="kind", tag="seat"):
    """A user's own view of a channel changed: preferences, or a repair.

    The tag `seat` is an older word for a user room. It is on the wire, so it stays.
    """

    user_id: str
    channel_id: str
    conversation: bool = False
    """What the inbox shows has changed too."""


class BadgeChanged(Struct, frozen=True, gc=False, tag_field="kind", tag="badge"):
    user_id: str


class StateReplaced(Struct, frozen=True, gc=False, tag_field="kind", tag="replaced"):
    """The whole state of these users was replaced (import, erase). Their devices must sync."""

    users: tuple[str, ...]
    reason: str


class Outcome(Struct, frozen=True, gc=False, tag_field="kind", tag="outcome"):
    """What an event did, for the instance that waits for it."""

    ref: str
    """The `ref` of the event."""
    code: str | None = None
    """Why the event was refused; None: it was applied."""
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
OnGap = Callable[[float], Awaitable[None]]
"""Called before any newer announcement when those of the last n seconds may have been missed."""
