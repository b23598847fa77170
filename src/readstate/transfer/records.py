"""The records of an export, one per line, distinguished by `type`; and what an import makes of them."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct, field

from readstate.api import Erased, Id, Refused, Time
from readstate.api.channels import Archived, Avatar, Name
from readstate.api.fields import InputChannelId, InputUserId, Preview, Silent, about
from readstate.api.preferences import PreferencesLine, ReceiptsShown
from readstate.domain.model import Channel, ChannelType, Member, Message, Preferences, ReceiptsPreference

VERSION = 1

Seq = Annotated[int, Meta(ge=0)]
"""Imports check its upper bound (`lines.py`); an export writes what is stored."""
MAX_SEQ = 2**31
"""The largest seq that an import may bring: as many may follow. The hot state in Valkey keeps seqs in 32 bits."""
MAX_EPOCH = 2**46
"""The largest epoch: scripts in Valkey write numbers below 10^14 exactly, JSON readers those below 2^53."""

_ThreadId = Annotated[Id, about("The root message of the thread.")]
_MessageId = Annotated[Id, about("The message's id, unique in its channel.")]
_MessageTime = Annotated[Time, about("Its time, never the same for two messages of a channel.")]
_Deleted = Annotated[bool, about("Whether it is deleted.")]
_LastSeq = Annotated[Seq, about("The newest seq that was given.")]
_LastId = Annotated[Id | None, about("The newest message.")]
_LastAt = Annotated[Time | None, about("The time of the newest message.")]
_Active = Annotated[bool, about("False for one who has left.")]
_JoinedSeq = Annotated[Seq, about("The newest message when the user joined.")]
_JoinedAt = Annotated[Time, about("When the user joined.")]
_Skipped = Annotated[
    tuple[tuple[Seq, Seq], ...], about("Ranges (after, up to) of seqs that joins alone marked as read: no receipts.")
]


# ---------------------------------------------------------------- lines


class Line(
    Struct, tag_field="type", omit_defaults=True, forbid_unknown_fields=True, kw_only=True, frozen=True, gc=False
):
    """Base of every record: unknown fields are refused."""


class Header(Line, tag="readstate", forbid_unknown_fields=False, kw_only=True, frozen=True):
    """The first line."""

    version: Annotated[int, about("The version of the format.")]
    exported_at: Annotated[int | None, about("When it was exported, in ms since 1970.")] = None


class LatestLine(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True, frozen=True, gc=False):
    """The newest message that is not deleted, as an inbox shows it."""

    id: _MessageId
    at: _MessageTime
    sender_id: Annotated[Id, about("Who sent it.")]
    seq: Annotated[Seq | None, about("Left out, it is the last one.")] = None
    preview: Preview = None


class ChannelLine(Line, tag="channel", kw_only=True, frozen=True):
    """A channel. Without its history it says where that ended."""

    channel_id: InputChannelId
    kind: Annotated[ChannelType, about("direct: two people at most; group: invited; channel: open.")]
    name: Name = None
    avatar: Avatar = None
    archived: Archived = False
    deleted: _Deleted = False
    last_seq: _LastSeq = 0
    last_id: _LastId = None
    last_at: _LastAt = None
    latest: Annotated[LatestLine | None, about("The newest message that is not deleted.")] = None


class ThreadLine(Line, tag="thread", kw_only=True, frozen=True):
    """A thread: where its replies ended."""

    channel_id: InputChannelId
    thread_id: _ThreadId
    deleted: _Deleted = False
    last_seq: _LastSeq = 0
    last_id: _LastId = None
    last_at: _LastAt = None
    latest: Annotated[LatestLine | None, about("The newest message that is not deleted.")] = None


class MessageLine(Line, tag="message", kw_only=True, frozen=True):
    """A message. Without a seq it takes the next one of its channel (a reply: of its thread)."""

    channel_id: InputChannelId
    id: _MessageId
    at: _MessageTime
    sender_id: Annotated[Id | None, about("Who sent it. Null: only that this id is deleted is known.")] = None
    seq: Annotated[Seq | None, about("Its place in the channel: 1, 2, 3 …")] = None
    sent_at: Annotated[Time | None, about("The time that the sender gave, as it was.")] = None
    text: Annotated[str | None, about("What it says.")] = None
    preview: Preview = None
    thread_id: Annotated[Id | None, about("The root message of the thread.")] = None
    thread_seq: Annotated[Seq | None, about("Its place in the thread.")] = None
    mentions: Annotated[tuple[Id, ...], about("Who is mentioned: user ids, `@channel`.")] = ()
    silent: Silent = False
    deleted: _Deleted = False
    backfill: Annotated[bool, about("History: stored without a seq and never counted.")] = False


class LastReadLine(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True, frozen=True, gc=False):
    """How far a user has read: by `seq`, else by the message's `id`, else everything up to the time `at`."""

    epoch: Annotated[Seq, about("Raised by every mark-unread.")] = 0
    seq: Annotated[Seq | None, about("Everything up to this place is read.")] = None
    apart: Annotated[tuple[Seq, ...], about("Seqs beyond the pointer that were read one by one.")] = ()
    id: Annotated[Id | None, about("Everything up to this message is read.")] = None
    at: Annotated[Time | None, about("Everything up to this time is read.")] = None
    read_at: Annotated[
        Time | None, about("When the pointer last moved: the message was read at that time at the latest.")
    ] = None


_POINTER = about("The read pointer: the message up to which everything is read.")


class MemberLine(Line, tag="member", kw_only=True, frozen=True):
    """A member of a channel, or one who has left it."""

    channel_id: InputChannelId
    user_id: InputUserId
    active: _Active = True
    joined_seq: _JoinedSeq = 0
    joined_at: _JoinedAt = 0
    skipped: _Skipped = ()
    preferences: Annotated[PreferencesLine | None, about("What the member wants of the channel.")] = None
    last_read: Annotated[LastReadLine | None, _POINTER] = None


class FollowLine(Line, tag="follow", kw_only=True, frozen=True):
    """A follower of a thread, or one who follows it no more."""

    channel_id: InputChannelId
    thread_id: _ThreadId
    user_id: InputUserId
    active: _Active = True
    joined_seq: _JoinedSeq = 0
    joined_at: _JoinedAt = 0
    skipped: _Skipped = ()
    last_read: Annotated[LastReadLine | None, _POINTER] = None


class PointerLine(Line, tag="pointer", kw_only=True, frozen=True):
    """The read pointer of a user who was never a member and wrote from outside."""

    channel_id: InputChannelId
    user_id: InputUserId
    last_read: Annotated[LastReadLine, _POINTER]
    thread_id: Annotated[Id | None, about("The root message of the thread.")] = None


class UserLine(Line, tag="user", kw_only=True, frozen=True):
    """What is kept of a user besides channels."""

    user_id: InputUserId
    receipts: ReceiptsShown = "public"
    last_tap: Annotated[Time, about("When the badge was last tapped.")] = 0
    last_seen: Annotated[Time, about("When a device was last connected; 0 if never.")] = 0


Record = ChannelLine | ThreadLine | MessageLine | MemberLine | FollowLine | PointerLine | UserLine


# ---------------------------------------------------------------- what they become


class GivenRead(Struct, frozen=True, gc=False):
    """A read pointer as a record gives it: by seq, by id, or by time."""

    epoch: int = 0
    seq: int | None = None
    apart: frozenset[int] = frozenset()
    id: str | None = None
    at: int | None = None
    read_at: int | None = None


class GivenUserRoom(Struct, frozen=True, gc=False):
    """A user in a room: a membership (none for a pointer alone), preferences, a pointer."""

    room: str
    user_id: str
    member: Member | None
    preferences: Preferences
    read: GivenRead | None
    presumed: bool = False
    """Comes of what the user wrote in a thread, not of a record."""


class GivenUser(Struct, frozen=True, gc=False):
    """What is kept of a user."""

    user_id: str
    last_tap: int
    last_seen: int
    receipts: ReceiptsPreference


Given = Channel | Message | GivenUserRoom | GivenUser
"""A record that is right in itself. Whether it fits what the store has, the store's fold decides."""


class Numbered(Struct, frozen=True, gc=False):
    """A record and the line that it stands on."""

    line: int
    given: Given


# ---------------------------------------------------------------- what the store did with them


class Taken(Struct, frozen=True, gc=False):
    """What the durable store made of a batch of records, and whose hot state is no longer right."""

    refused: list[Refused]
    rooms: dict[str, int] = field(default_factory=dict)
    """Rooms that changed, and their change numbers."""
    users: Sequence[str] = ()


class ErasedRows(Struct, frozen=True, gc=False):
    """What an erase removed, and whose hot state is no longer right."""

    erased: Erased
    rooms: dict[str, Channel]
    """The channels and threads that the user was in, as they stand now."""
    receivers: list[str]
    """Whose badges counted the user."""
