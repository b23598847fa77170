"""Reads, and who has read what."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from readstate.domain.model import Number

from .fields import (
    EARLIER,
    NOW,
    Epoch,
    Exact,
    Id,
    InputChannelId,
    InputEpoch,
    InputUserId,
    Label,
    LastReadSeq,
    ReadAt,
    Request,
    Time,
    UnreadCount,
    UserId,
    about,
)

UpTo = Annotated[Id | None, about("Everything up to this message is read.", "msg_42")]
UpToSeq = Annotated[Number | None, about("Everything up to this seq is read.")]
UpToTime = Annotated[Time | None, about("Everything up to this time is read.")]
MessagesRead = Annotated[
    tuple[Id, ...] | None, about("Exactly these are read, whatever stands before them.", maxItems="max_batch")
]
UnreadFrom = Annotated[Id, about("The first message that is unread again.", "msg_40")]
_StaleReason = Annotated[Literal["stale"] | UnsetType, about("Why the count is not exact: it is the last known value.")]
_PlaceTime = Annotated[
    int | None, about("Its time. In answers ms since 1970; never the same for two messages of a channel.")
]
_Changed = Annotated[bool, about("Whether it changed anything.", True)]


class ReadTarget(Request, frozen=True, kw_only=True):
    """What is read: everything, or one of `up_to`, `up_to_seq`, `up_to_time`, `messages`."""

    up_to: UpTo = None
    up_to_seq: UpToSeq = None
    up_to_time: UpToTime = None
    messages: MessagesRead = None
    epoch: Annotated[InputEpoch, Meta(examples=[0])] = None


class ChannelRead(ReadTarget, frozen=True, kw_only=True):
    """A read in one of the user's channels."""

    channel_id: InputChannelId


class UserRead(ChannelRead, frozen=True, kw_only=True):
    """A read of any user."""

    user_id: InputUserId


class ReadAll(Request, frozen=True, kw_only=True):
    """Reads of one user over all channels, or over a list."""

    all: Annotated[bool, about("Read in all channels.", True)] = False
    up_to_time: UpToTime = None
    items: Annotated[tuple[ChannelRead, ...] | None, about("Reads in single channels.", maxItems="max_batch")] = None


class MarkUnread(Request, frozen=True, kw_only=True):
    """Makes a message and all later ones unread."""

    from_: UnreadFrom = field(name="from")
    epoch: InputEpoch = None


class ThreadRead(Request, frozen=True, kw_only=True):
    """Reads a thread: everything, or up to a reply."""

    up_to: Annotated[UpTo, Meta(examples=["msg_43"])] = None


class Place(Struct, frozen=True, gc=False):
    """Where a message stands."""

    id: Annotated[str | None, about("The message.", "msg_40")]
    seq: Annotated[int, about("Its place in the channel.", 40)]
    at: Annotated[_PlaceTime, Meta(examples=[EARLIER + 1000])]


class LastRead(Struct, frozen=True, gc=False):
    """A user's read pointer."""

    id: Annotated[str | None, about("The message; null when nothing is read.", "msg_39")]
    seq: Annotated[int, about("Everything up to this place is read; 0 when nothing is.", 39)]
    at: Annotated[_PlaceTime, Meta(examples=[EARLIER])]
    epoch: Epoch


Pointer = Annotated[LastRead, about("The read pointer: the message up to which everything is read.")]


class ReadResult(Struct, frozen=True, gc=False):
    """Where the pointer stands after a read, and what is left."""

    last_read: Annotated[Pointer, Meta(examples=[LastRead("msg_42", 42, NOW, 0)])]
    unread: Annotated[UnreadCount, Meta(examples=[0])]
    label: Annotated[Label, Meta(examples=[""])]
    changed: _Changed


class ReadOutcome(Struct, frozen=True, gc=False):
    """What became of one of many reads."""

    status: Annotated[Literal["ok", "rejected"], about("How it went.")]
    changed: _Changed
    code: Annotated[str | UnsetType, about("The error, for programs.")] = UNSET
    detail: Annotated[str | UnsetType, about("The error, for people.")] = UNSET


class ReadOutcomes(Struct, frozen=True, gc=False):
    """What became of each read, in the order of the request."""

    results: Annotated[list[ReadOutcome], about("One for each item, in the same order.")]


class AllRead(Struct, frozen=True, gc=False):
    """How many channels changed, and the token that takes it back."""

    changed: Annotated[int, about("In how many channels it changed anything.", 7)]
    undo: Annotated[str, about("Takes it back, for 10 minutes.", "4f0c2b9e")]


class Undone(Struct, frozen=True, gc=False):
    """How many channels have their earlier state again."""

    changed: Annotated[int, about("How many channels have their earlier state again.", 7)]


# ---------------------------------------------------------------- receipts


class Reader(Struct, frozen=True, gc=False):
    """Who has read a message, and when at the latest."""

    user_id: UserId
    read_at: ReadAt


class Seen(Struct, frozen=True, gc=False):
    """Who has seen a message, out of the members other than its sender."""

    count: Annotated[int, about("How many have read it.", 1)]
    of: Annotated[int, about("How many could have read it: the members other than its sender.", 2)]
    users: Annotated[list[Reader] | None, about("Null in large channels.")]
    exact: Exact = True
    reason: _StaleReason = UNSET


class Receipt(Struct, frozen=True, gc=False):
    """How far a member has read."""

    user_id: UserId
    last_read_seq: LastReadSeq
    read_at: ReadAt
    last_read_id: Annotated[str | None, about("Null where it isn't known.", "msg_42")] = None


class Receipts(Struct, frozen=True, gc=False):
    """How far the members of a channel have read; empty in large channels."""

    receipts: Annotated[list[Receipt], about("How far each member has read.")]
    exact: Exact = True
    reason: _StaleReason = UNSET
