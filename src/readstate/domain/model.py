"""The values everything is made of. No I/O, no clock, no rules.

Those that are only stored, never shown, are arrays in JSON.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Literal, NewType

from msgspec import Meta, Struct

MAX_NUMBER = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""

ChannelType = Literal["direct", "group", "channel"]
RoomType = Literal["direct", "group", "channel", "thread"]
ReceiptsPreference = Literal["public", "private"]
CountPreference = Literal["all", "mentions", "none"]
Number = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
History = Literal["read", "unread"] | Annotated[int, Meta(ge=0, le=1_000_000)]
"""What a join reads: everything, nothing, or all but the last n messages."""

Clock = Callable[[], int]
"""Milliseconds since 1970."""

# Counters, as in docs/glossary.md. They are plain integers: the types only let mypy find one in the place of another.
Seq = NewType("Seq", int)
"""Of a message in its room."""
Epoch = NewType("Epoch", int)
"""Of a user in a room."""
ChangeNumber = NewType("ChangeNumber", int)
"""Of a room, or of a user."""
Generation = NewType("Generation", int)
"""Of the hot store."""
DropNumber = NewType("DropNumber", int)
"""Of state dropped from the hot store. Under Valkey, the generation is part of it."""
LogPosition = NewType("LogPosition", int)
"""Of an event in its partition of the log. It never falls, as an offset may."""

NO_CHANGE, NO_GENERATION, NO_POSITION = ChangeNumber(0), Generation(0), LogPosition(0)
"""Before the first."""

FOREVER = MAX_NUMBER
"""`muted_until` of a mute without an end."""


class Mode(StrEnum):
    """How a channel is counted: a set per member, or one timeline for all of them."""

    LEDGER = "ledger"
    TIMELINE = "timeline"


class ReadState(Struct, frozen=True, gc=False, array_like=True):
    """What a user has read in a channel: everything up to `seq`, and the seqs in `apart` beyond it."""

    epoch: int = 0
    seq: int = 0
    apart: frozenset[int] = frozenset()


class Position(Struct, frozen=True, gc=False, array_like=True):
    """A position in a room. Order by `at` and order by `seq` are the same."""

    seq: int
    id: str | None
    at: int | None


START = Position(0, None, None)
"""Before the first message."""


class Pointer(ReadState, frozen=True, gc=False, array_like=True):
    """A read state together with the id and time of the message that it points at."""

    id: str | None = None
    at: int | None = None
    read_at: int = 0
    """When the pointer last moved."""
    change: ChangeNumber = NO_CHANGE
    """The user's change number when anything last changed here."""

    @property
    def position(self) -> Position:
        """Where it points."""
        return Position(self.seq, self.id, self.at)

    @property
    def state(self) -> ReadState:
        """What is read, without where and when."""
        return ReadState(self.epoch, self.seq, self.apart)


class Latest(Struct, frozen=True, gc=False):
    """The newest message of a channel that is not deleted."""

    id: Annotated[str, Meta(description="The message.", examples=["msg_42"])]
    seq: Annotated[int, Meta(description="Its place in the channel, or in the thread.", examples=[42])]
    at: Annotated[int, Meta(description="Its time, in ms since 1970.", examples=[1_769_851_800_000])]
    sender_id: Annotated[str, Meta(description="Who sent it.", examples=["alice"])]
    preview: Annotated[str | None, Meta(description="What an inbox shows of it.", examples=["Lunch at one?"])]


class Channel(Struct, frozen=True, gc=False):
    """A channel as its own order of events has made it."""

    channel_id: str
    type: RoomType = "group"
    name: str | None = None
    avatar: str | None = None
    archived: bool = False
    deleted: bool = False
    mode: Mode = Mode.LEDGER
    member_count: int = 0
    last_seq: int = 0
    last_id: str | None = None
    last_at: int = 0
    change: ChangeNumber = NO_CHANGE
    """Raised by everything that changes the channel."""
    position: LogPosition = NO_POSITION
    """Where in the log the last change stands."""
    latest: Latest | None = None
    peers: tuple[str, ...] = ()
    """The members, if they are two people."""

    @property
    def end(self) -> Position:
        """The position of the newest message that was ever given a seq, deleted or not."""
        return Position(self.last_seq, self.last_id, self.last_at) if self.last_seq else START

    @property
    def latest_at(self) -> int:
        """The time of the latest message; 0: there is none."""
        return self.latest.at if self.latest is not None else 0


class Message(Struct, frozen=True, gc=False):
    """A message as it is stored. `seq` is None for a backfill and for a reply in a thread only."""

    channel_id: str
    id: str
    seq: int | None
    sender_id: str
    at: int
    sent_at: int | None = None
    text: str | None = None
    preview: str | None = None
    thread_id: str | None = None
    thread_seq: int | None = None
    mentions: tuple[str, ...] = ()
    """User ids; `@channel` when all members are meant."""
    silent: bool = False
    deleted: bool = False
    backfill: bool = False
    change: ChangeNumber = NO_CHANGE
    """The channel's change number that brought it."""
    position: LogPosition = NO_POSITION
    """Where in the log it stands."""


class Preferences(Struct, frozen=True, gc=False, array_like=True):
    """What a user wants of one channel."""

    muted_until: int = 0
    count: CountPreference = "all"
    receipts: ReceiptsPreference = "public"
    pinned: bool = False
    archived_seq: int = -1
    """Archived until somebody else writes after this seq; -1: not archived."""
    change: ChangeNumber = NO_CHANGE
    """The user's change number that set them: older preferences never replace newer ones.

    `user_prefer.lua` finds it by its position, so new preferences come after it.
    """


NO_PREFERENCES = Preferences()
"""Of a user who has asked for nothing."""


class Member(Struct, frozen=True, gc=False):
    """A user in a channel, or one who has left it (`active` false)."""

    channel_id: str
    user_id: str
    active: bool = True
    joined_seq: int = 0
    joined_at: int = 0
    skipped: tuple[tuple[int, int], ...] = ()
    """(after, up to): ranges of seqs that joins alone marked as read, and that are no receipts."""
    joined_position: LogPosition = NO_POSITION
    """Where in the log the join stands; 0: it was imported, or is from before this was kept."""


class Reading(Struct, frozen=True, gc=False, array_like=True):
    """How far a member has read, and what of it joins alone marked: ranges (after, up to)."""

    user_id: str
    pointer: Pointer
    skipped: tuple[tuple[int, int], ...] = ()


class SeenPosition(Struct, frozen=True, gc=False):
    """How far somebody has read in a channel, as others may see it."""

    channel_id: str
    user_id: str
    last_read_id: str | None
    """None where it isn't known."""
    last_read_seq: int
    read_at: int


class Undelivered(Struct, frozen=True, gc=False, cache_hash=True):
    """A message that came while its receiver had no device connected."""

    receiver_id: str
    accepted_at: int
    sender_id: str
    channel_id: str
    message_id: str


class Away(Struct, frozen=True, gc=False):
    """A message, and who of its receivers had no device connected when it came."""

    channel_id: str
    message_id: str
    sender_id: str
    accepted_at: int
    receivers: tuple[str, ...]
    """In the order of ids. The sender may be among them, so that messages of several senders have the same ones."""

    @property
    def others(self) -> tuple[str, ...]:
        """The receivers without the sender."""
        if self.sender_id not in self.receivers:
            return self.receivers
        return tuple(user for user in self.receivers if user != self.sender_id)


class Entry(Struct, frozen=True, gc=False, array_like=True):
    """A message as counting sees it."""

    seq: int
    id: str
    at: int
    mention: bool
