"""Opaque cursors: what a list or a sync goes on from."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from operator import le
from typing import TypeVar
from zlib import crc32

import msgspec

from ..errors import Invalid, InvalidCursor
from ..rooms import partition_of

C = TypeVar("C", bound=msgspec.Struct)


class SyncCursor(msgspec.Struct, frozen=True, array_like=True, tag="s", forbid_unknown_fields=True):
    """A moment of a user's sync: the user's change number, and a place in every part of the log."""

    change: int
    positions: tuple[int, ...]
    at: int
    """When it was: what ends by itself, like a mute, has no number."""
    store: int
    """Which store's numbers these are."""
    sure: bool = True
    """False: reads may have been missing that only the log had, so everything of the user's own may have changed."""

    def is_before(self, other: "SyncCursor") -> bool:
        """Whether it is an earlier moment of the same store."""
        if self.store != other.store or len(self.positions) != len(other.positions):
            return False
        return self.change <= other.change and all(map(le, self.positions, other.positions))

    def position_of(self, room: str) -> int:
        """The place in the part of the log that a channel or thread has its order in."""
        return self.positions[partition_of(room, len(self.positions))]


class SyncPage(msgspec.Struct, frozen=True, array_like=True, tag="p", forbid_unknown_fields=True):
    """The last row of a page of a sync."""

    sync: str
    since: str | None
    read: bool
    at: int
    channel_id: str


class MembersAfter(msgspec.Struct, frozen=True, array_like=True, tag="m", forbid_unknown_fields=True):
    """The last member of a page."""

    user_id: str


class MessagesAfter(msgspec.Struct, frozen=True, array_like=True, tag="u", forbid_unknown_fields=True):
    """The last message of a page of unread messages."""

    order: str
    at: int
    channel_id: str


class ThreadsAfter(msgspec.Struct, frozen=True, array_like=True, tag="t", forbid_unknown_fields=True):
    """The last thread of a page."""

    at: int
    room: str


class InboxAfter(msgspec.Struct, frozen=True, array_like=True, tag="i", forbid_unknown_fields=True):
    """The last conversation of a page."""

    order: str
    filter: str
    sync: str
    pinned: int
    read: int
    at: int
    channel_id: str


class TapAfter(msgspec.Struct, frozen=True, array_like=True, tag="b", forbid_unknown_fields=True):
    """The last message of a page of what a tap shows."""

    since: int
    tapped_at: int
    senders: int
    accepted_at: int
    at: int
    channel_id: str
    message_id: str


def encode(cursor: msgspec.Struct, owner: str) -> str:
    """A cursor as text that is safe in a URL. Only good for its owner: the user or channel whose list it is."""
    raw = msgspec.msgpack.encode(cursor)
    return urlsafe_b64encode(_mark(raw, owner) + raw).decode().rstrip("=")


def in_doubt(sync: str, owner: str) -> str:
    """The cursor of the same moment, at which reads may have been missing."""
    return encode(msgspec.structs.replace(decode(sync, SyncCursor, owner), sure=False), owner)


def decode(text: str, kind: type[C], owner: str, field: str = "cursor") -> C:
    """A cursor of this kind and owner; InvalidCursor if it is anything else."""
    try:
        bare = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        if bare[:4] == _mark(bare[4:], owner):
            return msgspec.msgpack.decode(bare[4:], type=kind)
    except (ValueError, UnicodeEncodeError, msgspec.MsgspecError):
        pass
    raise InvalidCursor(f"{field} was not made by this service for this list", field=field)


def _mark(raw: bytes, owner: str) -> bytes:
    return crc32(raw + owner.encode()).to_bytes(4)


def page_size(limit: int | None, default: int, most: int) -> int:
    """How many rows a page has: what the caller wants, within what the settings allow."""
    if limit is None:
        return min(default, most)
    if not 1 <= limit <= most:
        raise Invalid(f"limit must be from 1 to {most}", field="limit")
    return limit
