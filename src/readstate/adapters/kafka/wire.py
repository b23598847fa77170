"""Events as Kafka records, and back.

Instances of different versions read each other's records: unknown fields are ignored, and later fields have defaults.
"""

from collections.abc import Callable
from zlib import crc32

from msgspec import Struct, json

from readstate.domain.events import VERSION, AnyChannelEvent, DeadLetter, ReadEvent, UnsentEvent
from readstate.domain.facts import Key
from readstate.domain.rooms import channel_and_thread, is_thread, partition_of, thread_room

from .producer import Record


class NotAnEvent(ValueError):
    """A record that this version cannot decode. The reason contains field names but none of the record's content."""


class _ReadOnWire(Struct, frozen=True, gc=False):
    """A read state. In a thread, channel and thread are separate fields."""

    user_id: str
    channel_id: str
    epoch: int
    last_read_seq: int
    apart: tuple[int, ...] = ()
    last_read_id: str | None = None
    last_read_at: int | None = None
    read_at: int = 0
    change: int = 0
    created_at: int = 0
    thread_id: str | None = None
    v: int = VERSION


class _Whose(Struct, frozen=True, gc=False):
    """The owner and the room of a read state; the other fields are not decoded."""

    user_id: str
    channel_id: str
    thread_id: str | None = None


_encode = json.Encoder().encode
_decode_read = json.Decoder(_ReadOnWire).decode
_decode_whose = json.Decoder(_Whose).decode
_decode_channel_event: Callable[[bytes], AnyChannelEvent] = json.Decoder(AnyChannelEvent).decode
_decode_unsent = json.Decoder(UnsentEvent).decode
_decode_dead_letter = json.Decoder(DeadLetter).decode


# ---------------------------------------------------------------- to the log


def read_record(event: ReadEvent, partitions: int) -> Record:
    """Key: user and channel."""
    value: ReadEvent | _ReadOnWire = event
    channel = event.channel_id
    if is_thread(channel):
        channel, thread = channel_and_thread(channel)
        value = _ReadOnWire(
            event.user_id,
            channel,
            event.epoch,
            event.last_read_seq,
            event.apart,
            event.last_read_id,
            event.last_read_at,
            event.read_at,
            event.change,
            event.created_at,
            thread,
            event.v,
        )
    key = f"{event.user_id}:{channel}".encode()
    return Record(key, _encode(value), crc32(key) % partitions)


def channel_record(event: AnyChannelEvent, partitions: int) -> Record:
    """Key: the channel, so that each channel has one order."""
    return Record(event.channel_id.encode(), _encode(event), partition_of(event.channel_id, partitions))


def unsent_record(event: UnsentEvent, partitions: int) -> Record:
    """Key: the receiver."""
    key = event.receiver_id.encode()
    return Record(key, _encode(event), crc32(key) % partitions)


def dead_letter_record(letter: DeadLetter, partitions: int) -> Record:
    """Keeps the partition of the failed event, so that a channel's dead letters keep their order."""
    return Record(b"", _encode(letter), letter.partition % partitions)


# ---------------------------------------------------------------- from the log; all raise NotAnEvent


def decode_read(value: bytes) -> ReadEvent:
    try:
        event = _decode_read(value)
    except (ValueError, RecursionError) as error:
        raise NotAnEvent(_reason(error)) from None
    room = event.channel_id if event.thread_id is None else thread_room(event.channel_id, event.thread_id)
    return ReadEvent(
        event.user_id,
        room,
        event.epoch,
        event.last_read_seq,
        event.apart,
        event.last_read_id,
        event.last_read_at,
        event.read_at or event.created_at,
        event.change,
        event.created_at,
        event.v,
    )


def decode_whose(value: bytes) -> Key:
    """The user and the room of a read state whose other values may be invalid."""
    try:
        event = _decode_whose(value)
    except (ValueError, RecursionError) as error:
        raise NotAnEvent(_reason(error)) from None
    room = event.channel_id if event.thread_id is None else thread_room(event.channel_id, event.thread_id)
    return event.user_id, room


def decode_channel_event(value: bytes) -> AnyChannelEvent:
    try:
        return _decode_channel_event(value)
    except (ValueError, RecursionError) as error:
        raise NotAnEvent(_reason(error)) from None


def decode_unsent(value: bytes) -> UnsentEvent:
    try:
        return _decode_unsent(value)
    except (ValueError, RecursionError) as error:
        raise NotAnEvent(_reason(error)) from None


def decode_dead_letter(value: bytes) -> DeadLetter:
    try:
        return _decode_dead_letter(value)
    except (ValueError, RecursionError) as error:
        raise NotAnEvent(_reason(error)) from None


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
