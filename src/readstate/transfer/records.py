"""Records of an export: JSON Lines, one record per line, distinguished by `type`.

Also the checked values that an import makes of them, which any store can take.
"""

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
"""Not bounded here, because an export writes whatever is stored; `lines.py` bounds it on import."""
MAX_SEQ = 2**31
"""The largest seq of an import, so that as many can follow: Valkey keeps seqs in 32 bits."""
MAX_EPOCH = 2**46
"""The largest epoch: Valkey scripts write numbers below 10^14 exactly, JSON readers read those below 2^53."""
Skipped = tuple[tuple[Seq, Seq], ...]
"""(after, up to): ranges of seqs that only joins marked as read."""


# ---------------------------------------------------------------- lines


class Line(
    Struct, tag_field="type", omit_defaults=True, forbid_unknown_fields=True, kw_only=True, frozen=True, gc=False
):
    """Base of every record: unknown fields are refused."""


class Header(Line, tag="readstate", forbid_unknown_fields=False, kw_only=True, frozen=True):
    """The first line. Unknown fields are ignored."""

    version: int
    exported_at: int | None = None


class LatestLine(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True, frozen=True, gc=False):
    """The newest message that is not deleted, as an inbox shows it."""

    id: Id
    at: Time
    sender_id: Id
    seq: Seq | None = None
    """None: the room's `last_seq`."""
    preview: str | None = None


class ChannelLine(Line, tag="channel", kw_only=True, frozen=True):
    """`last_*` and `latest` say where the history ended, for a file without messages."""

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
    """`last_*` and `latest` say where the replies ended."""

    channel_id: Id
    thread_id: Id
    deleted: bool = False
    last_seq: Seq = 0
    last_id: Id | None = None
    last_at: Time | None = None
    latest: LatestLine | None = None


class MessageLine(Line, tag="message", kw_only=True, frozen=True):
    """Without a seq, a message takes the next one of its channel (a reply: of its thread)."""

    channel_id: Id
    id: Id
    at: Time
    sender_id: Id | None = None
    """None: all that is known is that this id is deleted."""
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
    muted: bool | Time = False
    count: CountPreference = "all"
    receipts: ReceiptsPreference = "public"
    pinned: bool = False
    archived: bool | Seq = False
    """A number: archived until another user writes after this seq."""


class MemberLine(Line, tag="member", kw_only=True, frozen=True):
    """A member of a channel, or one who has left it (`active` false)."""

    channel_id: Id
    user_id: Id
    active: bool = True
    joined_seq: Seq = 0
    joined_at: Time = 0
    skipped: Skipped = ()
    preferences: PreferencesLine | None = None
    last_read: LastReadLine | None = None


class FollowLine(Line, tag="follow", kw_only=True, frozen=True):
    """A follower of a thread, or one who no longer follows it (`active` false)."""

    channel_id: Id
    thread_id: Id
    user_id: Id
    active: bool = True
    joined_seq: Seq = 0
    joined_at: Time = 0
    skipped: Skipped = ()
    last_read: LastReadLine | None = None


class PointerLine(Line, tag="pointer", kw_only=True, frozen=True):
    """The read pointer of a user who was never a member, but wrote from outside."""

    channel_id: Id
    user_id: Id
    last_read: LastReadLine
    thread_id: Id | None = None


class UserLine(Line, tag="user", kw_only=True, frozen=True):
    """State of a user that belongs to no channel."""

    user_id: Id
    receipts: ReceiptsPreference = "public"
    last_tap: Time = 0
    last_seen: Time = 0


Record = ChannelLine | ThreadLine | MessageLine | MemberLine | FollowLine | PointerLine | UserLine


# ---------------------------------------------------------------- what they become


class GivenRead(Struct, frozen=True, gc=False):
    """A read pointer, given by seq, by id, or by time."""

    epoch: int = 0
    seq: int | None = None
    apart: frozenset[int] = frozenset()
    id: str | None = None
    at: int | None = None
    read_at: int | None = None


class GivenUserRoom(Struct, frozen=True, gc=False):
    """A user in a room: membership (None for a pointer alone), preferences and pointer."""

    room: str
    user_id: str
    member: Member | None
    preferences: Preferences
    read: GivenRead | None
    presumed: bool = False
    """Derived from messages of a thread, not from a record."""


class GivenUser(Struct, frozen=True, gc=False):
    user_id: str
    last_tap: int
    last_seen: int
    receipts: ReceiptsPreference


Given = Channel | Message | GivenUserRoom | GivenUser
"""A record that is valid in itself. The fold decides whether it fits the store."""


class Numbered(Struct, frozen=True, gc=False):
    line: int
    given: Given


# ---------------------------------------------------------------- what the store did with them


class Taken(Struct, frozen=True, gc=False):
    """What the durable store did with a batch of records, and whose hot state is stale now."""

    refused: list[Refused]
    rooms: dict[str, int] = field(default_factory=dict)
    """Rooms that changed, and their change numbers."""
    users: Sequence[str] = ()


class ErasedRows(Struct, frozen=True, gc=False):
    """What an erase removed, and whose hot state is stale now."""

    erased: Erased
    rooms: dict[str, Channel]
    """The channels and threads that the user was in, as they are now."""
    receivers: list[str]
    """Users whose badges counted the erased user."""
