"""The events of the log. JSON, each with a version `v` and `created_at`. Readers ignore unknown fields."""

from typing import Literal, NamedTuple

from msgspec import UNSET, Struct, UnsetType

from .model import ChangeNumber, ChannelType, History, Pointer

VERSION = 1


class Consumed(NamedTuple):
    """A record of the log, as a consumer gets it. The value is an encoded event."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes
    epoch: int = -1
    """The leader epoch under which the broker took the record; -1: not known."""
    nth: int = -1
    """Which state of a packed record the value is, from 0; -1: the whole record."""


class ReadEvent(Struct, frozen=True, gc=False):
    """The read state after a read. It carries the state, not the operation, so that it merges."""

    user_id: str
    channel_id: str
    epoch: int
    last_read_seq: int
    apart: tuple[int, ...]
    last_read_id: str | None
    last_read_at: int | None
    read_at: int
    change: ChangeNumber
    """The user's change number, for sync cursors."""
    created_at: int
    v: int = VERSION

    @property
    def pointer(self) -> Pointer:
        return Pointer(
            self.epoch,
            self.last_read_seq,
            frozenset(self.apart),
            self.last_read_id,
            self.last_read_at,
            self.read_at,
            self.change,
        )


def read_event(user: str, channel: str, pointer: Pointer, now: int) -> ReadEvent:
    return ReadEvent(
        user,
        channel,
        pointer.epoch,
        pointer.seq,
        tuple(sorted(pointer.apart)) if pointer.apart else (),
        pointer.id,
        pointer.at,
        pointer.read_at or now,
        pointer.change,
        now,
    )


class ChannelLogEvent(Struct, frozen=True, gc=False, tag_field="kind", kw_only=True):
    """Base of everything that changes a channel. The log orders them per channel."""

    channel_id: str
    created_at: int
    v: int = VERSION
    in_doubt: bool = False
    """Its epochs may be too low: the hot store was lost, and the database lacked reads that only the log had."""
    ref: str | None = None
    """The instance that waits for the effect, a colon, and its number of the request; None: no instance waits."""


class MessageEvent(ChannelLogEvent, frozen=True, kw_only=True, tag="message"):
    """A message was accepted. `at` is already clamped to the clock at acceptance."""

    id: str
    sender_id: str
    at: int
    sent_at: int | None = None
    text: str | None = None
    preview: str | None = None
    thread_id: str | None = None
    also_to_channel: bool = False
    mentions: tuple[str, ...] = ()
    silent: bool = False
    backfill: bool = False
    epoch: int = 0
    """The sender's epoch at acceptance. It ends an earlier mark-unread, even one that is not stored yet."""


class EditEvent(ChannelLogEvent, frozen=True, kw_only=True, tag="edit"):
    """A message was edited. Fields that are not set stay as they are."""

    id: str
    text: str | None | UnsetType = UNSET
    preview: str | None | UnsetType = UNSET
    mentions: tuple[str, ...] | UnsetType = UNSET


class DeleteEvent(ChannelLogEvent, frozen=True, kw_only=True, tag="delete"):
    id: str


class MembersEvent(ChannelLogEvent, frozen=True, kw_only=True, tag="members"):
    """Members were added or removed; with `thread_id`, followers of that thread."""

    thread_id: str | None = None
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    history: History = "read"
    epochs: dict[str, int] = {}
    """The epochs of users who join again; as in a message."""


class ChannelEvent(ChannelLogEvent, frozen=True, kw_only=True, tag="channel"):
    """A channel was created, changed or deleted. Fields that are not set stay as they are."""

    action: Literal["put", "delete"] = "put"
    type: ChannelType | UnsetType = UNSET
    name: str | None | UnsetType = UNSET
    avatar: str | None | UnsetType = UNSET
    archived: bool | UnsetType = UNSET


AnyChannelEvent = MessageEvent | EditEvent | DeleteEvent | MembersEvent | ChannelEvent


class UnsentEvent(Struct, frozen=True, gc=False):
    """A message arrived while its receiver was away."""

    sender_id: str
    receiver_id: str
    message_id: str
    channel_id: str
    at: int
    """The message's own time."""
    accepted_at: int
    """Compared with the time of a tap."""
    created_at: int
    v: int = VERSION


class UnsentMessage(Struct, frozen=True, gc=False):
    """A message, and all receivers who were away: an `UnsentEvent` for each."""

    sender_id: str
    message_id: str
    channel_id: str
    at: int
    accepted_at: int
    created_at: int
    receivers: tuple[str, ...]

    def event(self, receiver: str) -> UnsentEvent:
        message = (self.message_id, self.channel_id, self.at, self.accepted_at, self.created_at)
        return UnsentEvent(self.sender_id, receiver, *message)


class DeadLetter(Struct, frozen=True, gc=False):
    """An event that failed three times, with the reason."""

    event: str
    """The event as read, byte for byte where it is text."""
    error: str
    tries: int
    topic: str
    partition: int
    offset: int
    created_at: int
    v: int = VERSION
    index: int = -1
    """Its place in a packed record; -1: it had a record to itself."""


class Delivery(Struct, frozen=True, gc=False):
    """An event with its position in the log."""

    event: AnyChannelEvent
    position: int
    part: int = -1
    """The partition of a shared log, in which `position` is an offset; -1: a log of this process alone."""
    epoch: int = -1
    """The broker's leader epoch for the record; -1: unknown. It never falls within a partition."""
