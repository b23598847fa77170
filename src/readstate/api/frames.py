"""The frames of the WebSocket: JSON objects with a `type`."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from readstate.domain.model import Latest, Number

from . import Conversation, Id, LastRead, Place, PreferencesView, ReadTarget, Reason, Time

Ref = str | int
"""What a client calls one of its frames; its answer says the same."""

# ---------------------------------------------------------------- client to server


class ClientFrame(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, gc=False, tag_field="type"):
    """What a device sends. Its answer is `ack` or `error`."""

    ref: Ref | None = None


class Hello(ClientFrame, frozen=True, kw_only=True, tag="hello"):
    """The first frame: which device this is, and what it has seen last."""

    device: Id
    token: str | None = None
    resume: str | None = None


class Focus(ClientFrame, frozen=True, kw_only=True, tag="channel.focus"):
    """The channel is open: what is there is read, and what comes is read at once."""

    channel_id: Id
    read: bool = True


class Blur(ClientFrame, frozen=True, kw_only=True, tag="channel.blur"):
    """The channel is open no more."""

    channel_id: Id


class MarkRead(ClientFrame, frozen=True, kw_only=True, tag="mark_read"):
    """Read everything, up to a place, or exactly these messages; or a thread."""

    channel_id: Id
    thread_id: Id | None = None
    up_to: Id | None = None
    up_to_seq: Number | None = None
    up_to_time: Time | None = None
    messages: tuple[Id, ...] | None = None
    epoch: Number | None = None

    @property
    def target(self) -> ReadTarget:
        """What is read."""
        return ReadTarget(
            up_to=self.up_to,
            up_to_seq=self.up_to_seq,
            up_to_time=self.up_to_time,
            messages=self.messages,
            epoch=self.epoch,
        )


class MarkUnread(ClientFrame, frozen=True, kw_only=True, tag="mark_unread"):
    """Make a message and every later one by somebody else unread."""

    channel_id: Id
    from_: Id = field(name="from")
    epoch: Number | None = None


class Auth(ClientFrame, frozen=True, kw_only=True, tag="auth"):
    """A new token, before the old one expires."""

    token: Annotated[str, Meta(min_length=1)]


class BadgeTap(ClientFrame, frozen=True, kw_only=True, tag="badge.tap"):
    """Show who wrote while the user was away, and set the badge to 0; with a cursor, more of what a tap showed."""

    cursor: str | None = None


class Ping(ClientFrame, frozen=True, kw_only=True, tag="ping"):
    """Is anybody there?"""


AnyClientFrame = Hello | Focus | Blur | MarkRead | MarkUnread | Auth | BadgeTap | Ping

# ---------------------------------------------------------------- server to client: answers


class ServerFrame(Struct, kw_only=True, frozen=True, gc=False, tag_field="type"):
    """What the service sends. Clients ignore frames and fields that they don't know."""


class Ready(ServerFrame, frozen=True, kw_only=True, tag="ready"):
    """The connection is live."""

    user_id: str
    connection_id: str
    instance_id: str
    server_time: int
    version: str
    expires_at: int | None
    """When the token expires; None for a service key."""
    display_cap: int
    """Labels show numbers up to this one."""
    resume: str


class Error(ServerFrame, frozen=True, kw_only=True, tag="error", omit_defaults=True):
    """A frame could not be done, and has changed nothing."""

    code: str
    detail: str
    retry: bool
    ref: Ref | None = None
    field: str | None = None


class Pong(ServerFrame, frozen=True, kw_only=True, tag="pong"):
    """Everything that was announced before the ping came before this."""

    server_time: int
    ref: Ref | UnsetType = UNSET


# ---------------------------------------------------------------- server to client: events


class Event(ServerFrame, frozen=True, kw_only=True):
    """Something happened. A device comes back with the newest `resume` it has seen."""

    resume: str


class MessageNew(Event, frozen=True, kw_only=True, tag="message.new"):
    """A message came."""

    channel_id: str
    message_id: str
    seq: int | None
    sender_id: str
    at: int
    preview: str | None
    counts: bool
    """Whether it adds one to this user's unread."""
    mentions_me: bool
    silent: bool
    epoch: int | UnsetType = UNSET
    """The user's epoch in the channel, for a read that answers this message."""
    thread_id: str | UnsetType = UNSET
    thread_seq: int | UnsetType = UNSET


class ReadPointerUpdated(Event, frozen=True, kw_only=True, tag="read_pointer.updated"):
    """The user has read, or marked unread, elsewhere."""

    channel_id: str
    last_read_id: str | None
    last_read_seq: int
    last_read_at: int | None
    epoch: int
    unread: int
    label: str
    has_unread: bool
    exact: bool
    mentions: int
    first_unread: Place | None
    latest: Latest | None
    muted: bool
    instance_id: str
    """Where the change came from."""
    reason: Reason | UnsetType = UNSET
    archived: bool | UnsetType = UNSET


class UnreadUpdated(Event, frozen=True, kw_only=True, tag="unread.updated"):
    """Counts changed by something else: a delete, an edit, a preference, a recount."""

    channel_id: str
    unread: int
    label: str
    has_unread: bool
    exact: bool
    mentions: int
    first_unread: Place | None
    last_read: LastRead
    latest: Latest | None
    muted: bool
    reason: Reason | UnsetType = UNSET
    archived: bool | UnsetType = UNSET


class ChannelUpdated(Event, frozen=True, kw_only=True, tag="channel.updated"):
    """The user joined it, or it was renamed, or the preferences for it changed."""

    channel_id: str
    conversation: Conversation
    preferences: PreferencesView


class ChannelRemoved(Event, frozen=True, kw_only=True, tag="channel.removed"):
    """The user left it, or it was deleted."""

    channel_id: str


class ReceiptUpdated(Event, frozen=True, kw_only=True, tag="receipt.updated"):
    """Somebody else has read, or marked unread."""

    channel_id: str
    user_id: str
    last_read_id: str | None
    last_read_seq: int
    read_at: int


class BadgeUpdated(Event, frozen=True, kw_only=True, tag="badge.updated"):
    """How many different people wrote while the user was away."""

    senders: int
    label: str


class ThreadUpdated(Event, frozen=True, kw_only=True, tag="thread.updated"):
    """A followed thread changed; or it is followed no more."""

    thread_id: str
    channel_id: str
    unread: int
    label: str
    latest: Latest | None
    last_read: LastRead
    followed: bool
    exact: bool | UnsetType = UNSET
    """Only there if it is false."""
    reason: Reason | UnsetType = UNSET


class SyncRequired(Event, frozen=True, kw_only=True, tag="sync.required"):
    """What was missed can't be given whole: sync over HTTP, and go on from there."""

    reason: str
