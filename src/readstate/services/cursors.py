"""Opaque cursors: what a list or a sync goes on from.

A cursor is signed with a key that only the store has, for its kind, its owner and its store. So a cursor is what the
service gave out, to this owner, or it is refused. Numbers are bounded all the same: none of them may overflow in SQL.
"""

from base64 import b64decode
from binascii import b2a_base64
from hashlib import blake2b
from hmac import compare_digest
from operator import le
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from readstate.domain.errors import Invalid, InvalidCursor
from readstate.domain.rooms import partition_of

C = TypeVar("C", bound=msgspec.Struct)

_pack = msgspec.msgpack.Encoder().encode
_URL_SAFE = bytes.maketrans(b"+/", b"-_")

MARK_BYTES = 8
MAX_NUMBER = 2**63 - 2
"""The databases have 64 bits, and a search may begin one after a number."""
MAX_TEXT = 300
"""Two ids, as in the room of a thread, and what is between them."""

Number = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Negated = Annotated[int, Meta(ge=-MAX_NUMBER, le=0)]
Flag = Annotated[int, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class SyncCursor(msgspec.Struct, frozen=True, array_like=True, tag="s", forbid_unknown_fields=True):
    """A moment of a user's sync: the user's change number, and a place in every part of the log."""

    change: Number
    positions: Annotated[tuple[Number, ...], Meta(min_length=1)]
    at: Number
    """When it was: what ends by itself, like a mute, has no number."""
    store: Number
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
    at: Number
    channel_id: Text


class MembersAfter(msgspec.Struct, frozen=True, array_like=True, tag="m", forbid_unknown_fields=True):
    """The last member of a page."""

    user_id: Text


class MessagesAfter(msgspec.Struct, frozen=True, array_like=True, tag="u", forbid_unknown_fields=True):
    """The last message of a page of unread messages."""

    order: Text
    at: Number
    channel_id: Text


class ThreadsAfter(msgspec.Struct, frozen=True, array_like=True, tag="t", forbid_unknown_fields=True):
    """The last thread of a page."""

    at: Negated
    room: Text


class InboxAfter(msgspec.Struct, frozen=True, array_like=True, tag="i", forbid_unknown_fields=True):
    """The last conversation of a page."""

    order: Text
    filter: Text
    sync: str
    pinned: Flag
    read: Flag
    at: Negated
    channel_id: Text


class TapAfter(msgspec.Struct, frozen=True, array_like=True, tag="b", forbid_unknown_fields=True):
    """The last message of a page of what a tap shows."""

    since: Number
    tapped_at: Number
    senders: Number
    accepted_at: Number
    at: Number
    channel_id: Text
    message_id: Text


class Cursors:
    """Makes cursors and takes them back. Every process over one store has the same key, and so the same cursors."""

    def __init__(self, key: bytes, store_id: int) -> None:
        self._hash = blake2b(digest_size=MARK_BYTES, key=key, salt=store_id.to_bytes(8))

    def encode(self, cursor: msgspec.Struct, owner: str) -> str:
        """A cursor as text that is safe in a URL. Only good for its owner: the user or channel whose list it is."""
        return self.encode_bytes(cursor, owner).decode()

    def encode_bytes(self, cursor: msgspec.Struct, owner: str) -> bytes:
        """The same as bytes. Every event to every device carries one, so it must be cheap."""
        raw = _pack(cursor)
        return b2a_base64(self._mark(raw, owner) + raw, newline=False).translate(_URL_SAFE).rstrip(b"=")

    def decode(self, text: str, kind: type[C], owner: str, field: str = "cursor") -> C:
        """A cursor of this kind and owner; InvalidCursor if it is anything else."""
        try:
            bare = b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
            mark, raw = bare[:MARK_BYTES], bare[MARK_BYTES:]
            if compare_digest(mark, self._mark(raw, owner)):
                return msgspec.msgpack.decode(raw, type=kind)
        except (ValueError, msgspec.MsgspecError):
            pass
        raise InvalidCursor(f"{field} was not made by this service for this list", field=field)

    def in_doubt(self, sync: str, owner: str) -> str:
        """The cursor of the same moment, at which reads may have been missing."""
        return self.encode(msgspec.structs.replace(self.decode(sync, SyncCursor, owner), sure=False), owner)

    def _mark(self, raw: bytes, owner: str) -> bytes:
        """The kind is in `raw`, which begins with its tag; no id has a NUL in it."""
        signing = self._hash.copy()
        signing.update(b"%b\0%b" % (owner.encode(), raw))
        return signing.digest()


def page_size(limit: int | None, default: int, most: int) -> int:
    """How many rows a page has: what the caller wants, within what the settings allow."""
    if limit is None:
        return min(default, most)
    if not 1 <= limit <= most:
        raise Invalid(f"limit must be from 1 to {most}", field="limit")
    return limit
