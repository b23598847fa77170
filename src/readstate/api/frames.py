"""The frames of the WebSocket: JSON objects with a `type`."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from .fields import (
    ChannelId,
    Cursor,
    Epoch,
    Exact,
    HasUnread,
    Id,
    InexactReason,
    InputChannelId,
    InputEpoch,
    Label,
    LastReadSeq,
    LatestMessage,
    MentionCount,
    MessageTime,
    Muted,
    NotExact,
    Preview,
    ReadAt,
    SenderCount,
    SenderId,
    Silent,
    ThreadId,
    UnreadCount,
    about,
)
from .inbox import ArchivedChannel, Conversation, FirstUnread, LatestReply
from .preferences import PreferencesView
from .reads import LastRead, MessagesRead, Pointer, ReadTarget, UnreadFrom, UpTo, UpToSeq, UpToTime

Ref = str | int
"""What a client calls one of its frames; its answer says the same."""
RefGiven = Annotated[Ref | None, about("What the device called the frame.")]
ServerTime = Annotated[int, about("The service's clock, in ms since 1970.")]
LastReadId = Annotated[str | None, about("The message up to which everything is read.")]

# ---------------------------------------------------------------- client to server


class ClientFrame(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, gc=False, tag_field="type"):
    """What a device sends. Its answer is `ack` or `error`."""

    ref: RefGiven = None


class Hello(ClientFrame, frozen=True, kw_only=True, tag="hello"):
    """The first frame: which device this is, and what it has seen last."""

    device: Annotated[Id, about("Which of the user's devices this is: an id that stays the same for it.")]
    token: Annotated[str | None, about("If it came neither in the header nor as a subprotocol.")] = None
    resume: Annotated[
        str | None, about("The newest cursor that the device has: a `resume`, or the `sync` of a bulk sync.")
    ] = None


class Focus(ClientFrame, frozen=True, kw_only=True, tag="channel.focus"):
    """The channel is open: what is there is read, and what comes is read at once."""

    channel_id: InputChannelId
    read: Annotated[bool, about("False leaves the pointer where it is. Else everything that is there is read.")] = True


class Blur(ClientFrame, frozen=True, kw_only=True, tag="channel.blur"):
    """The channel is open no more."""

    channel_id: InputChannelId


class MarkRead(ClientFrame, frozen=True, kw_only=True, tag="mark_read"):
    """Read everything, up to a place, or exactly these messages; or a thread."""

    channel_id: InputChannelId
    thread_id: Annotated[Id | None, about("Read this thread, not the channel: whole, or `up_to` a reply.")] = None
    up_to: UpTo = None
    up_to_seq: UpToSeq = None
    up_to_time: UpToTime = None
    messages: MessagesRead = None
    epoch: InputEpoch = None

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

    channel_id: InputChannelId
    from_: UnreadFrom = field(name="from")
    epoch: InputEpoch = None


class Auth(ClientFrame, frozen=True, kw_only=True, tag="auth"):
    """A new token, before the old one expires."""

    token: Annotated[str, Meta(min_length=1), about("A new token of the same user.")]


class BadgeTap(ClientFrame, frozen=True, kw_only=True, tag="badge.tap"):
    """Show who wrote while the user was away, and set the badge to 0; with a cursor, more of what a tap showed."""

    cursor: Cursor = None


class Ping(ClientFrame, frozen=True, kw_only=True, tag="ping"):
    """Is anybody there?"""


AnyClientFrame = Hello | Focus | Blur | MarkRead | MarkUnread | Auth | BadgeTap | Ping

# ---------------------------------------------------------------- server to client: answers


class ServerFrame(Struct, kw_only=True, frozen=True, gc=False, tag_field="type"):
    """What the service sends. Clients ignore frames and fields that they don't know."""


class Ready(ServerFrame, frozen=True, kw_only=True, tag="ready"):
    """The connection is live."""

    user_id: Annotated[str, about("Whose events these are.")]
    connection_id: Annotated[str, about("This connection.")]
    instance_id: Annotated[str, about("The process that serves it.")]
    server_time: ServerTime
    version: Annotated[str, about("The service's version.")]
    expires_at: Annotated[int | None, about("When the token expires, in ms since 1970; null for a service key.")]
    display_cap: Annotated[int, about("Labels show numbers up to this one.")]
    resume: Annotated[str, about("What the device came with; else the cursor from which on it gets events.")]


class Error(ServerFrame, frozen=True, kw_only=True, tag="error", omit_defaults=True):
    """A frame could not be done, and has changed nothing."""

    code: Annotated[str, about("The error, for programs.")]
    detail: Annotated[str, about("The error, for people.")]
    retry: Annotated[bool, about("Whether the same request may succeed later.")]
    ref: RefGiven = None
    field: Annotated[str | None, about("The field or parameter that is wrong.")] = None


class Pong(ServerFrame, frozen=True, kw_only=True, tag="pong"):
    """Everything that was announced before the ping came before this."""

    server_time: ServerTime
    ref: Annotated[Ref | UnsetType, about("What the device called the frame.")] = UNSET


# ---------------------------------------------------------------- server to client: events


class Event(ServerFrame, frozen=True, kw_only=True):
    """Something happened. A device comes back with the newest `resume` it has seen."""

    resume: str


class MessageNew(Event, frozen=True, kw_only=True, tag="message.new"):
    """A message came."""

    channel_id: ChannelId
    message_id: Annotated[str, about("The message.")]
    seq: Annotated[int | None, about("Its place in the channel: 1, 2, 3 …; null for a reply in a thread only.")]
    sender_id: SenderId
    at: MessageTime
    preview: Preview
    counts: Annotated[bool, about("Whether it adds one to this user's unread.")]
    mentions_me: Annotated[bool, about("Whether it mentions the user.")]
    silent: Silent
    epoch: Annotated[
        int | UnsetType, about("The user's epoch in the channel, for a read that answers this message.")
    ] = UNSET
    thread_id: ThreadId | UnsetType = UNSET
    thread_seq: Annotated[int | UnsetType, about("Its place in the thread.")] = UNSET


class ReadPointerUpdated(Event, frozen=True, kw_only=True, tag="read_pointer.updated"):
    """The user has read, or marked unread, elsewhere."""

    channel_id: ChannelId
    last_read_id: LastReadId
    last_read_seq: LastReadSeq
    last_read_at: Annotated[int | None, about("The time of that message.")]
    epoch: Epoch
    unread: UnreadCount
    label: Label
    has_unread: HasUnread
    exact: Exact
    mentions: MentionCount
    first_unread: FirstUnread
    latest: LatestMessage
    muted: Muted
    instance_id: Annotated[str, about("Where the change came from.")]
    reason: InexactReason = UNSET
    archived: ArchivedChannel = UNSET


class UnreadUpdated(Event, frozen=True, kw_only=True, tag="unread.updated"):
    """Counts changed by something else: a delete, an edit, a preference, a recount."""

    channel_id: ChannelId
    unread: UnreadCount
    label: Label
    has_unread: HasUnread
    exact: Exact
    mentions: MentionCount
    first_unread: FirstUnread
    last_read: Pointer
    latest: LatestMessage
    muted: Muted
    reason: InexactReason = UNSET
    archived: ArchivedChannel = UNSET


class ChannelUpdated(Event, frozen=True, kw_only=True, tag="channel.updated"):
    """The user joined it, or it was renamed, or the preferences for it changed."""

    channel_id: ChannelId
    conversation: Annotated[Conversation, about("The row of the inbox, as it stands now.")]
    preferences: Annotated[PreferencesView, about("What the user wants of the channel.")]


class ChannelRemoved(Event, frozen=True, kw_only=True, tag="channel.removed"):
    """The user left it, or it was deleted."""

    channel_id: ChannelId


class ReceiptUpdated(Event, frozen=True, kw_only=True, tag="receipt.updated"):
    """Somebody else has read, or marked unread."""

    channel_id: ChannelId
    user_id: Annotated[str, about("Who has read.")]
    last_read_id: LastReadId
    last_read_seq: LastReadSeq
    read_at: ReadAt


class BadgeUpdated(Event, frozen=True, kw_only=True, tag="badge.updated"):
    """How many different people wrote while the user was away."""

    senders: SenderCount
    label: Label


class ThreadUpdated(Event, frozen=True, kw_only=True, tag="thread.updated"):
    """A followed thread changed; or it is followed no more."""

    thread_id: ThreadId
    channel_id: ChannelId
    unread: UnreadCount
    label: Label
    latest: LatestReply
    last_read: Annotated[LastRead, about("The reply up to which the thread is read.")]
    followed: Annotated[bool, about("False: the thread is followed no more. Drop it.")]
    exact: NotExact = UNSET
    reason: InexactReason = UNSET


class SyncRequired(Event, frozen=True, kw_only=True, tag="sync.required"):
    """What was missed can't be given whole: sync over HTTP, and go on from there."""

    reason: Annotated[str, about("Why, for people.")]
