"""The records of an export, one per line, distinguished by `type`; and what an import makes of them."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct, field

from readstate.api import Erased, Id, Refused, Time
from readstate.domain.model import (
    Channel,
    ChannelType,
    CountPreference,
    Member,
    Message,
    Preferences,
    ReceiptsPreference,
)

VERSION = 1

Seq = Annotated[int, Meta(ge=0)]
"""Imports check its upper bound (`lines.py`); an export writes what is stored."""
MAX_SEQ = 2**31
"""The largest seq that an import may bring: as many may follow. The hot state in Valkey keeps seqs in 32 bits."""
MAX_EPOCH = 2**46
"""The largest epoch: scripts in Valkey write numbers below 10^14 exactly, JSON readers those below 2^53."""
Skipped = tuple[tuple[Seq, Seq], ...]
"""(after, up to): seqs that joins alone marked as read."""


# ---------------------------------------------------------------- lines


class Line(
    Struct, tag_field="type", omit_defaults=True, forbid_unknown_fields=True, kw_only=True, frozen=True, gc=False
):
    """Base of every record: unknown fields are refused."""


class Header(Line, tag="readstate", forbid_unknown_fields=False, kw_only=True, frozen=True):
    """The first line."""

    version: int
    exported_at: int | None = None


class LatestLine(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True, frozen=True, gc=False):
    """The newest message that is not deleted, as an inbox shows it."""

    id: Id
    at: Time
    sender_id: Id
    seq: Seq | None = None
    """Left out, it is the last one."""
    preview: str | None = None


class ChannelLine(Line, tag="channel", kw_only=True, frozen=True):
    """A channel. Without its history it says where that ended."""

    channel_id: Id
    kind: ChannelType
    name: str | None = None
    avatar: str | None = None
    archived: bool = False
    deleted: bool = False
    last_seq: Seq = 0
    last_id: Id | None = None
    last_at: Time | None = None
    latest: LatestLine | None = None


class ThreadLine(Line, tag="thread", kw_only=True, frozen=True):
    """A thread: where its replies ended."""

    channel_id: Id
    thread_id: Id
    deleted: bool = False
    last_seq: Seq = 0
    last_id: Id | None = None
    last_at: Time | None = None
    latest: LatestLine | None = None


class MessageLine(Line, tag="message", kw_only=True, frozen=True):
    """A message. Without a seq it takes the next one of its channel (a reply: of its thread)."""

    channel_id: Id
    id: Id
    at: Time
    sender_id: Id | None = None
    """Null: only that this id is deleted is known."""
    seq: Seq | None = None
    sent_at: Time | None = None
    text: str | None = None
    preview: str | None = None
    thread_id: Id | None = None
    thread_seq: Seq | None = None
    mentions: tuple[Id, ...] = ()
    silent: bool = False
    deleted: bool = False
    backfill: bool = False


class LastReadLine(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True, frozen=True, gc=False):
    """How far a user has read: by `seq`, else by the message's `id`, else everything up to the time `at`."""

    epoch: Seq = 0
    seq: Seq | None = None
    apart: tuple[Seq, ...] = ()
    id: Id | None = None
    at: Time | None = None
    read_at: Time | None = None


class PreferencesLine(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True, frozen=True, gc=False):
    """What a member wants of a channel."""

    muted: bool | Time = False
    count: CountPreference = "all"
    receipts: ReceiptsPreference = "public"
    pinned: bool = False
    archived: bool | Seq = False
    """A number: until another user writes after this seq."""


class MemberLine(Line, tag="member", kw_only=True, frozen=True):
    """A member of a channel, or one who has left it."""

    channel_id: Id
    user_id: Id
    active: bool = True
    joined_seq: Seq = 0
    joined_at: Time = 0
    skipped: Skipped = ()
    preferences: PreferencesLine | None = None
    last_read: LastReadLine | None = None


class FollowLine(Line, tag="follow", kw_only=True, frozen=True):
    """A follower of a thread, or one who follows it no more."""

    channel_id: Id
    thread_id: Id
    user_id: Id
    active: bool = True
    joined_seq: Seq = 0
    joined_at: Time = 0
    skipped: Skipped = ()
    last_read: LastReadLine | None = None


class PointerLine(Line, tag="pointer", kw_only=True, frozen=True):
    """The read pointer of a user who was never a member and wrote from outside."""

    channel_id: Id
    user_id: Id
    last_read: LastReadLine
    thread_id: Id | None = None


class UserLine(Line, tag="user", kw_only=True, frozen=True):
    """What is kept of a user besides channels."""

    user_id: Id
    receipts: ReceiptsPreference = "public"
    last_tap: Time = 0
    last_seen: Time = 0


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
