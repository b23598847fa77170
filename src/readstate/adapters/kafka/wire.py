"""Events as Kafka records, and back.

Instances of different versions read each other's records: unknown fields are ignored, and later fields have defaults.

A *packed* record (`v` is 2) holds many events of one partition: read states, each as a record of its own would hold it;
or one message and all receivers who were away.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from zlib import crc32

from msgspec import Raw, Struct, json
from msgspec.structs import asdict

from readstate.domain.events import (
    VERSION,
    AnyChannelEvent,
    Consumed,
    DeadLetter,
    ReadEvent,
    UnsentEvent,
    UnsentMessage,
)
from readstate.domain.facts import Key
from readstate.domain.model import NO_CHANGE, ChangeNumber
from readstate.domain.rooms import channel_and_thread, is_thread, partition_of, thread_room

from .producer import Record

T = TypeVar("T")

PACKED = 2
"""The version of packed records."""
MOST_PACKED_BYTES = 256_000
"""The largest packed record."""
MOST_OF_A_MESSAGE = 10_000
"""Bytes for what a packed record says of its message, besides the receivers: ids and times."""


class NotAnEvent(ValueError):
    """A record that this version cannot decode. The reason contains field names but none of the record's content."""


class _Whose(Struct, frozen=True, gc=False):
    """The owner and the room of a read state. In a thread, channel and thread are separate fields."""

    user_id: str
    channel_id: str
    thread_id: str | None = None


class _ReadOnWire(_Whose, frozen=True, gc=False, kw_only=True):
    """A read state."""

    epoch: int
    last_read_seq: int
    apart: tuple[int, ...] = ()
    last_read_id: str | None = None
    last_read_at: int | None = None
    read_at: int = 0
    change: ChangeNumber = NO_CHANGE
    created_at: int = 0
    v: int = VERSION


class _Packed(Struct, frozen=True, gc=False):
    """`states` is None in a record that is not packed."""

    states: list[_ReadOnWire] | None = None


class _PackedWhole(Struct, frozen=True, gc=False):
    """The same, without threads, and with all fields of today."""

    states: list[ReadEvent] | None = None


class _PackedBytes(Struct, frozen=True, gc=False):
    """The same, with states or receivers that may be invalid."""

    states: list[Raw] | None = None
    receivers: list[Raw] | None = None


class _Message(Struct, frozen=True, gc=False):
    """A message that came while receivers were away."""

    sender_id: str
    message_id: str
    channel_id: str
    at: int
    accepted_at: int
    created_at: int
    v: int = VERSION


class _Unsent(_Message, frozen=True, gc=False):
    """With its receivers; None in a record that is not packed."""

    receivers: list[str] | None = None


_encode = json.Encoder().encode


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    decode = json.Decoder(kind).decode

    def decoded(value: bytes) -> Any:
        try:
            return decode(value)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise NotAnEvent(reason) from None

    return decoded


# ---------------------------------------------------------------- to the log


def read_record(event: ReadEvent, partitions: int) -> Record:
    """Key: user and channel."""
    key = _read_key(event)
    return Record(key, _encode(_read_value(event)), crc32(key) % partitions)


def read_records(events: Sequence[ReadEvent], partitions: int, *, packed: bool) -> list[Record]:
    """One record for each event, or, if they may be packed, for each partition."""
    if not packed:
        return [read_record(event, partitions) for event in events]
    together: dict[int, list[ReadEvent]] = defaultdict(list)
    for event in events:
        together[crc32(_read_key(event)) % partitions].append(event)
    return [record for partition, some in together.items() for record in _packed_records(some, partition)]


def _packed_records(events: Sequence[ReadEvent], partition: int) -> Iterator[Record]:
    """A state that is alone in its record is not packed."""
    for some, value in _within_limit(events, _read_values):
        yield Record(b"" if len(some) > 1 else _read_key(some[0]), value, partition)


def _within_limit(
    items: Sequence[T], encode: Callable[[Sequence[T]], bytes], most: int = MOST_PACKED_BYTES
) -> Iterator[tuple[Sequence[T], bytes]]:
    """The items in as few parts as a limit in bytes allows, each with its value."""
    value = encode(items)
    if len(items) == 1 or len(value) <= most:
        yield items, value
        return
    middle = len(items) // 2
    yield from _within_limit(items[:middle], encode, most)
    yield from _within_limit(items[middle:], encode, most)


def _read_values(events: Sequence[ReadEvent]) -> bytes:
    values = list(map(_read_value, events))
    return _encode({"v": PACKED, "states": values} if len(values) > 1 else values[0])


def _read_key(event: ReadEvent) -> bytes:
    channel = event.channel_id
    if is_thread(channel):
        channel, _ = channel_and_thread(channel)
    return f"{event.user_id}:{channel}".encode()


def _read_value(event: ReadEvent) -> ReadEvent | dict[str, Any]:
    if not is_thread(event.channel_id):
        return event
    channel, thread = channel_and_thread(event.channel_id)
    return asdict(event) | {"channel_id": channel, "thread_id": thread}


def channel_record(event: AnyChannelEvent, partitions: int) -> Record:
    """Key: the channel, so that each channel has one order."""
    return Record(event.channel_id.encode(), _encode(event), partition_of(event.channel_id, partitions))


def unsent_record(event: UnsentEvent, partitions: int) -> Record:
    """Key: the receiver."""
    key = event.receiver_id.encode()
    return Record(key, _encode(event), crc32(key) % partitions)


def unsent_records(messages: Sequence[UnsentMessage], partitions: int, *, packed: bool) -> list[Record]:
    """One record for each receiver or, if they may be packed, for each message and partition of receivers."""
    if not packed:
        return [unsent_record(one.event(user), partitions) for one in messages for user in one.receivers]
    groups: dict[tuple[str, ...], list[_Group]] = {}  # messages of a quiet channel have the same receivers
    records = []
    for one in messages:
        if (found := groups.get(one.receivers)) is None:
            found = groups[one.receivers] = _groups(one.receivers, partitions)
        message = (one.sender_id, one.message_id, one.channel_id, one.at, one.accepted_at, one.created_at, PACKED)
        head = _encode(_Message(*message))[:-1] + b',"receivers":'
        for partition, receivers, text in found:
            if len(receivers) == 1:
                records.append(unsent_record(one.event(receivers[0]), partitions))
            else:
                records.append(Record(b"", b"%b%b}" % (head, text), partition))
    return records


_Group = tuple[int, Sequence[str], bytes]
"""A partition, some of its receivers, and their list as JSON."""


def _groups(receivers: Sequence[str], partitions: int) -> list[_Group]:
    together: dict[int, list[str]] = defaultdict(list)
    for user in receivers:
        together[crc32(user.encode()) % partitions].append(user)
    return [
        (partition, part, text)
        for partition, users in together.items()
        for part, text in _within_limit(users, _encode, MOST_PACKED_BYTES - MOST_OF_A_MESSAGE)
    ]


def dead_letter_record(letter: DeadLetter, partitions: int) -> Record:
    """Keeps the partition of the failed event, so that a channel's dead letters keep their order."""
    return Record(b"", _encode(letter), letter.partition % partitions)


# ---------------------------------------------------------------- from the log; all raise NotAnEvent

decode_channel_event: Callable[[bytes], AnyChannelEvent] = _decoder(AnyChannelEvent)
decode_unsent: Callable[[bytes], UnsentEvent] = _decoder(UnsentEvent)
decode_dead_letter: Callable[[bytes], DeadLetter] = _decoder(DeadLetter)
_decode_read: Callable[[bytes], _ReadOnWire] = _decoder(_ReadOnWire)
_decode_packed: Callable[[bytes], _Packed] = _decoder(_Packed)
_decode_packed_whole: Callable[[bytes], _PackedWhole] = _decoder(_PackedWhole)
_decode_packed_bytes: Callable[[bytes], _PackedBytes] = _decoder(_PackedBytes)
_decode_whose: Callable[[bytes], _Whose] = _decoder(_Whose)
_decode_receivers: Callable[[bytes], _Unsent] = _decoder(_Unsent)


def decode_read(value: bytes) -> ReadEvent:
    """The state of a record that is not packed."""
    return _read_event(_decode_read(value))


def decode_reads(value: bytes) -> list[ReadEvent]:
    """The states of a record, packed or not."""
    if b'"thread_id"' not in value:  # which would be ignored
        with suppress(NotAnEvent):  # an older record lacks fields
            found = _decode_packed_whole(value).states
            if found is not None and 0 not in [one.read_at for one in found]:
                return found
    states = _decode_packed(value).states
    return [decode_read(value)] if states is None else list(map(_read_event, states))


def count_reads(record: Consumed) -> int:
    """About how many states a record holds, without decoding it."""
    return max(1, record.value.count(b'"user_id":'))


def split_reads(value: bytes) -> list[bytes]:
    """The states of a packed record, each as a record of its own would hold it. Other values stay whole.

    Does not look into the states: one that cannot be decoded is returned like the others.
    """
    try:
        states = _decode_packed_bytes(value).states
    except NotAnEvent:
        states = None
    return list(map(bytes, states)) if states else [value]


def split_record(record: Consumed) -> list[Consumed]:
    """A record of reads as one for each of its states."""
    values = split_reads(record.value)
    if record.nth >= 0 or values == [record.value]:
        return [record]
    return [record._replace(value=value, nth=nth) for nth, value in enumerate(values)]


def decode_unsents(value: bytes) -> list[UnsentEvent]:
    """The events of a record, packed or not."""
    one = _decode_receivers(value)
    if one.receivers is None:
        return [decode_unsent(value)]
    message = (one.message_id, one.channel_id, one.at, one.accepted_at, one.created_at)
    return [UnsentEvent(one.sender_id, receiver, *message) for receiver in one.receivers]


def count_unsent(record: Consumed) -> int:
    """About how many events a record holds, without decoding it."""
    return record.value.count(b'","') + 1 if b'"receivers"' in record.value else 1


def split_unsent(record: Consumed) -> list[Consumed]:
    """A record of undelivered messages as one for each receiver. Other records stay whole."""
    try:
        receivers = _decode_packed_bytes(record.value).receivers
    except NotAnEvent:
        receivers = None
    if not receivers:
        return [record]
    fields = {name: value for name, value in json.decode(record.value).items() if name != "receivers"}
    values = [_encode(fields | {"receiver_id": receiver, "v": VERSION}) for receiver in receivers]
    return [record._replace(value=value, nth=nth) for nth, value in enumerate(values)]


def _read_event(event: _ReadOnWire) -> ReadEvent:
    return ReadEvent(
        event.user_id,
        _room(event),
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
    event = _decode_whose(value)
    return event.user_id, _room(event)


def _room(event: _Whose) -> str:
    return event.channel_id if event.thread_id is None else thread_room(event.channel_id, event.thread_id)
