"""Users besides channels: presence, the offline badge."""

from typing import Annotated

from msgspec import Meta, Struct

from .fields import EARLIER, NOW, Cursor, Id, Label, Request, SenderCount, SenderId, about
from .messages import MessageView


class PutPresence(Request, frozen=True, kw_only=True):
    """A device of a user, as a product with connections of its own sees it."""

    device: Annotated[Id, about("The device.", "phone")]
    online: Annotated[bool, about("Whether a device is connected.", True)]
    focus: Annotated[
        Id | None,
        about("The channel that is open on the device: what arrives there is read at once.", "general"),
    ] = None
    ttl: Annotated[
        int,
        Meta(ge=1, le=86_400),
        about("Seconds after which the device is gone unless it is reported again."),
    ] = 60


class PresenceView(Struct, frozen=True, gc=False):
    """Whether a user is online."""

    online: Annotated[bool, about("Whether a device is connected.", True)]
    last_seen: Annotated[int | None, about("When a device was last connected; null if never.", NOW)]
    devices: Annotated[list[str], about("The devices that are connected.", ["phone"])]


class Badge(Struct, frozen=True, gc=False):
    """How many different people wrote while the user was away."""

    senders: SenderCount
    label: Annotated[Label, Meta(examples=["4"])]
    since: Annotated[int | None, about("The last tap.", EARLIER)]


class FromSender(Struct, frozen=True, gc=False):
    """What one person wrote meanwhile, newest first."""

    sender_id: SenderId
    messages: Annotated[list[MessageView], about("The messages.")]


class Tap(Struct, frozen=True, gc=False):
    """What a tap on the badge shows; the badge is 0 then. Who wrote very much may be on several pages."""

    senders: Annotated[SenderCount, Meta(examples=[1])]
    tapped_at: Annotated[int, about("When the badge was tapped, in ms since 1970.", NOW)]
    by_sender: Annotated[list[FromSender], about("What was written meanwhile, by who wrote it.")]
    cursor: Annotated[Cursor, about("For more of what this tap shows; to ask for it taps nothing.")] = None
