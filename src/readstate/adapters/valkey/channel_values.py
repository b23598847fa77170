"""The state of a channel as the value of a field. Scripts read its head, which is packed; the rest is MessagePack."""

from struct import Struct as Packing
from typing import get_args

import msgspec
from msgspec import Struct

from readstate.domain.model import Channel, Latest, LogPosition, Mode, RoomType

from .commands import encode

_HEAD = Packing(">QB")
"""Change number, flags. Scripts read both."""
TIMELINE, ARCHIVED, DELETED = 1, 2, 4
_TYPES: tuple[RoomType, ...] = get_args(RoomType)
_TYPE_NUMBERS = {name: number for number, name in enumerate(_TYPES)}


class _Latest(Struct, frozen=True, gc=False, array_like=True):
    """Without id, seq and time if it is the last message of the channel, as it nearly always is."""

    sender_id: str
    preview: str | None
    id: str | None = None
    seq: int = 0
    at: int = 0


class _Rest(Struct, frozen=True, gc=False, array_like=True):
    """The value after the head. New fields go to the end: an older version ignores them."""

    type: int
    name: str | None
    avatar: str | None
    member_count: int
    last_seq: int
    last_id: str | None
    last_at: int
    position: LogPosition
    latest: _Latest | None
    peers: tuple[str, ...]


_decode_rest = msgspec.msgpack.Decoder(_Rest).decode


def encode_channel(channel: Channel) -> bytes:
    latest, newest = None, channel.latest
    if newest is not None:
        at_the_end = (newest.seq, newest.id, newest.at) == (channel.last_seq, channel.last_id, channel.last_at)
        latest = _Latest(newest.sender_id, newest.preview, *(() if at_the_end else (newest.id, newest.seq, newest.at)))
    rest = _Rest(
        _TYPE_NUMBERS[channel.type],
        channel.name,
        channel.avatar,
        channel.member_count,
        channel.last_seq,
        channel.last_id,
        channel.last_at,
        channel.position,
        latest,
        channel.peers,
    )
    flags = TIMELINE * (channel.mode is Mode.TIMELINE) + ARCHIVED * channel.archived + DELETED * channel.deleted
    return _HEAD.pack(channel.change, flags) + encode(rest)


def decode_channel(channel_id: str, value: bytes) -> Channel:
    change, flags = _HEAD.unpack_from(value)
    rest = _decode_rest(value[_HEAD.size :])
    latest, known = None, rest.latest
    if known is not None and known.id is not None:
        latest = Latest(known.id, known.seq, known.at, known.sender_id, known.preview)
    elif known is not None and rest.last_id is not None:
        latest = Latest(rest.last_id, rest.last_seq, rest.last_at, known.sender_id, known.preview)
    return Channel(
        channel_id,
        _TYPES[rest.type],
        rest.name,
        rest.avatar,
        bool(flags & ARCHIVED),
        bool(flags & DELETED),
        Mode.TIMELINE if flags & TIMELINE else Mode.LEDGER,
        rest.member_count,
        rest.last_seq,
        rest.last_id,
        rest.last_at,
        change,
        rest.position,
        latest,
        rest.peers,
    )
