"""What is unread: in a channel, in all of them, in threads; and the inbox."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from readstate.domain.model import Latest

from .channels import Avatar, JoinedSeq, Name, Type
from .fields import (
    EARLIER,
    NOW,
    ChannelId,
    Cursor,
    Exact,
    HasUnread,
    InexactReason,
    Label,
    LatestMessage,
    MentionCount,
    Muted,
    NotExact,
    ThreadId,
    UnreadCount,
    UserId,
    about,
)
from .messages import MessageView
from .preferences import Pinned
from .reads import LastRead, Place, Pointer

FirstUnread = Annotated[Place | None, about("The oldest unread message: where the red line goes.")]
ArchivedChannel = Annotated[
    bool | UnsetType, about("Only there if it is true: the channel is archived, and left out of the totals.")
]
LatestReply = Annotated[
    Latest | None,
    about("The newest reply; its `seq` is its place in the thread.", Latest("msg_43", 3, NOW, "carol", "Count me in")),
]
_SyncCursor = Annotated[str, about("Give it as `since` to get what has changed after this answer.", "kwIqBQ")]
_ChannelCount = Annotated[int, about("How many channels have anything unread.", 1)]


class Unread(Struct, frozen=True, gc=False):
    """What is unread for a user in a channel (`U` in the documentation)."""

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


class Totals(Struct, frozen=True, gc=False):
    """Sums over the channels that are not muted."""

    unread: UnreadCount
    mentions: MentionCount
    channels: _ChannelCount
    exact: NotExact = UNSET
    reason: InexactReason = UNSET


class ThreadTotals(Struct, frozen=True, gc=False):
    """Sums over the threads that a user follows."""

    unread: Annotated[UnreadCount, Meta(examples=[1])]
    threads: Annotated[int, about("How many followed threads have anything unread.", 1)]
    exact: NotExact = UNSET
    reason: InexactReason = UNSET


class Sync(Struct, frozen=True, gc=False):
    """A user's channels, or what has changed in them since a cursor."""

    totals: Annotated[Totals, about("Sums over everything, not over this page alone.")]
    threads: Annotated[ThreadTotals, about("Sums over the followed threads.")]
    channels: Annotated[list[Unread], about("What is unread in each channel.")]
    removed: Annotated[list[str], about("Channels that were left or deleted.", [])]
    cursor: Cursor
    sync: _SyncCursor


class UnreadMessages(Struct, frozen=True, gc=False):
    """Unread messages themselves."""

    messages: Annotated[list[MessageView], about("The messages.")]
    cursor: Cursor


class UserTotals(Struct, frozen=True, gc=False):
    """A user's totals, for a push notification."""

    unread: UnreadCount
    mentions: MentionCount
    channels: _ChannelCount
    threads: Annotated[int, about("Unread replies in followed threads.", 1)]
    badge: Annotated[int, about("How many different people wrote while the user was away.", 4)]
    exact: Exact
    reason: InexactReason = UNSET


class TotalsByUser(Struct, frozen=True, gc=False):
    """The totals of each user, by id."""

    users: Annotated[dict[str, UserTotals], about("The users.")]


class Conversation(Struct, frozen=True, gc=False):
    """A row of an inbox."""

    channel_id: ChannelId
    type: Type
    name: Name
    avatar: Avatar
    peer_id: Annotated[str | None, about("The other one, in a direct channel.")]
    last_message: LatestMessage
    unread: UnreadCount
    label: Label
    has_unread: HasUnread
    mentions: MentionCount
    muted: Muted
    pinned: Pinned
    exact: NotExact = UNSET
    reason: InexactReason = UNSET


class Inbox(Struct, frozen=True, gc=False):
    """A page of conversations."""

    conversations: Annotated[list[Conversation], about("The rows, in order.")]
    cursor: Cursor
    sync: _SyncCursor
    exact: Annotated[bool | UnsetType, about("Only there if it is false: conversations may be missing.")] = UNSET
    reason: InexactReason = UNSET


class ThreadView(Struct, frozen=True, gc=False):
    """A followed thread."""

    thread_id: ThreadId
    channel_id: ChannelId
    unread: Annotated[UnreadCount, Meta(examples=[1])]
    label: Annotated[Label, Meta(examples=["1"])]
    latest: LatestReply
    last_read: Annotated[Pointer, Meta(examples=[LastRead("msg_41", 2, EARLIER, 0)])]
    exact: NotExact = UNSET
    reason: InexactReason = UNSET


class Threads(Struct, frozen=True, gc=False):
    """A page of followed threads, by activity."""

    totals: Annotated[ThreadTotals, about("Sums over everything, not over this page alone.")]
    threads: Annotated[list[ThreadView], about("The followed threads.")]
    cursor: Cursor


# ---------------------------------------------------------------- why a count is what it is


class Minus(Struct, frozen=True, gc=False):
    """Why messages after the pointer are not unread; each message is in one group only."""

    own: Annotated[int, about("Sent by the user.", 0)]
    deleted: Annotated[int, about("Deleted.", 1)]
    silent: Annotated[int, about("Counted for nobody.", 1)]
    read_apart: Annotated[int, about("Read one by one.", 0)]


class HotKey(Struct, frozen=True, gc=False):
    """What the hot store keeps in one key of a user or a channel."""

    key: Annotated[str, about("Its name; in memory, what is kept there.", "read-pointer:{bob}")]
    expires_in: Annotated[float | None, about("Seconds; null: it does not expire by itself.", 2591999.5)]
    facts: Annotated[dict[str, str], about("Its content, in words.", {"pointer": "seq 41 (m41, sent …)", "epoch": "0"})]


class Explanation(Struct, frozen=True, gc=False):
    """Why an unread count is what it is."""

    channel_id: ChannelId
    user_id: UserId
    unread: UnreadCount
    exact: Exact
    mode: Annotated[
        Literal["ledger", "timeline"],
        about("How the channel is counted: by a set per member, or by one timeline for all."),
    ]
    pointer: Annotated[LastRead, about("The read pointer.")]
    joined_seq: JoinedSeq
    latest_seq: Annotated[int, about("The newest seq of the channel.", 44)]
    after_pointer: Annotated[int, about("How many messages have a seq after the pointer.", 5)]
    minus: Annotated[Minus, about("Why messages after the pointer are not unread.")]
    hot: Annotated[int, about("The count from the hot state.", 3)]
    durable: Annotated[int, about("The count from the durable store.", 3)]
    agrees: Annotated[bool, about("Whether the hot state and the durable store count the same.", True)]
    answered_by: Annotated[Literal["hot", "durable"], about("Which store the count came from.", "hot")]
    reason: InexactReason = UNSET
    keys: Annotated[
        list[HotKey] | UnsetType, about("What the hot store held before the count, if `keys` was asked for.")
    ] = UNSET


class Recount(Struct, frozen=True, gc=False):
    """An unread count before and after it was reloaded from the durable store."""

    before: Annotated[int, about("The count before.", 4)]
    after: Annotated[int, about("The count that the durable store gives, which holds now.", 3)]
