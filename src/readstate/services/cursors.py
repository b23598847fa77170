"""Opaque cursors, from which a list or a sync continues.

A cursor is signed with a key of the store, for its kind, its owner and its store. So the service accepts only a cursor
that it gave to this owner. Numbers are bounded nevertheless, so that none can overflow in SQL.
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
from readstate.domain.model import ChangeNumber, LogPosition
from readstate.domain.rooms import partition_of

C = TypeVar("C", bound=msgspec.Struct)

_pack = msgspec.msgpack.Encoder().encode
_URL_SAFE = bytes.maketrans(b"+/", b"-_")

MARK_BYTES = 8
MAX_NUMBER = 2**63 - 2
"""The databases have 64 bits, and a query may add one to a number."""
MAX_TEXT = 300
"""Two ids and what joins them, as in the room name of a thread."""

_BOUNDS = Meta(ge=0, le=MAX_NUMBER)

Number = Annotated[int, _BOUNDS]
Negated = Annotated[int, Meta(ge=-MAX_NUMBER, le=0)]
Flag = Annotated[int, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class SyncCursor(msgspec.Struct, frozen=True, array_like=True, tag="s", forbid_unknown_fields=True):
    """Where a user's sync continues: the user's change number and a position in every partition of the log."""

    change: Annotated[ChangeNumber, _BOUNDS]
    positions: Annotated[tuple[Annotated[LogPosition, _BOUNDS], ...], Meta(min_length=1)]
    at: Number
    """Its time in ms: what ends by itself, like a mute, has no change number."""
    store: Number
    """The id of the store that the numbers belong to."""
    sure: bool = True
    """False: reads that only the log had may have been missing, so all of the user's own state counts as changed."""

    def is_before(self, other: "SyncCursor") -> bool:
        """Whether both are of one store, and nothing in this cursor is later than in the other."""
        if self.store != other.store or len(self.positions) != len(other.positions):
            return False
        return self.change <= other.change and all(map(le, self.positions, other.positions))

    def position_of(self, room: str) -> LogPosition:
        """The position in the partition that orders this channel or thread."""
        return self.positions[partition_of(room, len(self.positions))]


class SyncPage(msgspec.Struct, frozen=True, array_like=True, tag="p", forbid_unknown_fields=True):
    """The last row of a page of a sync."""

    sync: str
    since: str | None
    read: bool
    at: Number
    channel_id: Text


class MembersAfter(msgspec.Struct, frozen=True, array_like=True, tag="m", forbid_unknown_fields=True):
    user_id: Text


class MessagesAfter(msgspec.Struct, frozen=True, array_like=True, tag="u", forbid_unknown_fields=True):
    """The last message of a page of unread messages."""

    order: Text
    at: Number
    channel_id: Text


class ThreadsAfter(msgspec.Struct, frozen=True, array_like=True, tag="t", forbid_unknown_fields=True):
    at: Negated
    room: Text


class InboxAfter(msgspec.Struct, frozen=True, array_like=True, tag="i", forbid_unknown_fields=True):
    order: Text
    filter: Text
    sync: str
    pinned: Flag
    read: Flag
    at: Negated
    channel_id: Text


class TapAfter(msgspec.Struct, frozen=True, array_like=True, tag="b", forbid_unknown_fields=True):
    """The last message of a page of a tap."""

    since: Number
    tapped_at: Number
    senders: Number
    accepted_at: Number
    at: Number
    channel_id: Text
    message_id: Text


class Cursors:
    """Every process over one store has the same key, so each accepts the cursors of the others."""

    def __init__(self, key: bytes, store_id: int) -> None:
        self._hash = blake2b(digest_size=MARK_BYTES, key=key, salt=store_id.to_bytes(8))

    def encode(self, cursor: msgspec.Struct, owner: str) -> str:
        """URL-safe text. Valid only for its owner: the user or channel whose list it continues."""
        return self.encode_bytes(cursor, owner).decode()

    def encode_bytes(self, cursor: msgspec.Struct, owner: str) -> bytes:
        """As `encode`. Every event to every device carries a cursor, so this must be cheap."""
        raw = _pack(cursor)
        return b2a_base64(self._mark(raw, owner) + raw, newline=False).translate(_URL_SAFE).rstrip(b"=")

    def decode(self, text: str, kind: type[C], owner: str, field: str = "cursor") -> C:
        """Raises InvalidCursor unless the cursor was made for this kind and owner."""
        try:
            bare = b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
            mark, raw = bare[:MARK_BYTES], bare[MARK_BYTES:]
            if compare_digest(mark, self._mark(raw, owner)):
                return msgspec.msgpack.decode(raw, type=kind)
        except (ValueError, msgspec.MsgspecError):
            pass
        raise InvalidCursor(f"{field} was not made by this service for this list", field=field)

    def in_doubt(self, sync: str, owner: str) -> str:
        """The same sync cursor, marked as made while reads may have been missing."""
        return self.encode(msgspec.structs.replace(self.decode(sync, SyncCursor, owner), sure=False), owner)

    def _mark(self, raw: bytes, owner: str) -> bytes:
        """`raw` begins with the tag of its kind. Ids contain no NUL, so an owner cannot run into `raw`."""
        signing = self._hash.copy()
        signing.update(b"%b\0%b" % (owner.encode(), raw))
        return signing.digest()


def page_size(limit: int | None, default: int, most: int) -> int:
    if limit is None:
        return min(default, most)
    if not 1 <= limit <= most:
        raise Invalid(f"limit must be from 1 to {most}", field="limit")
    return limit
