"""The wire format of the bus: numbered batches, as JSON.

Reads go to a channel of their own, which outside subscribers may read too. Their batches look like this:

    {"v": 1, "publisher": "i1:5f0c", "number": 7, "after": 6, "changes": [{"user_id": "bob", "channel_id": "general",
     "last_read_seq": 12, "last_read_id": "m12", "epoch": 0, "instance_id": "i1", …}]}

All other batches have `announcements` in place of `changes`. A batch with neither is a heartbeat of its publisher.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

from msgspec import MsgspecError, Raw, Struct, ValidationError, json, structs

from readstate.domain.announcements import Announcement, MessageCame, PointerMoved
from readstate.domain.model import NO_CHANGE, ChangeNumber, Pointer
from readstate.domain.rooms import channel_and_thread, is_thread, thread_room

VERSION = 1
"""To be raised only if readers of the older version could not read a batch at all."""


class Before(Struct, frozen=True, gc=False):
    """The pointer before the change."""

    epoch: int = 0
    last_read_seq: int = 0


class PointerChange(Struct, frozen=True, gc=False, omit_defaults=True):
    """A user has read or marked unread. The field names are documented and must not change."""

    user_id: str
    channel_id: str
    last_read_seq: int
    last_read_id: str | None
    epoch: int
    instance_id: str
    """The instance that made the change."""
    thread_id: str | None = None
    """If set, the pointer is that of this thread in the channel."""
    last_read_at: int | None = None
    read_at: int = 0
    apart: tuple[int, ...] = ()
    before: Before = Before()
    change: ChangeNumber = NO_CHANGE
    origin: str | None = None


class Head(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a batch belongs among the batches of its publisher."""

    v: int
    publisher: str
    """One run of an instance: a restart makes a new publisher."""
    number: int
    """Counted from 1; a heartbeat repeats the number of the last batch."""
    after: int
    """Batches up to this number had certainly reached the server when this one was sent; later ones may be lost."""
    bye: bool = False
    """The publisher's last batch: none of its batches is lost."""


class Batch(Head, frozen=True, kw_only=True):
    """One message on a pub/sub channel."""

    changes: tuple[PointerChange, ...] = ()
    announcements: tuple[Announcement, ...] = ()
    """All but reads."""


class _Loose(Head, frozen=True, kw_only=True):
    """A batch that may have entries this version does not know: they are decoded one by one."""

    changes: tuple[Raw, ...] = ()
    announcements: tuple[Raw, ...] = ()


class _Skimmed(Head, frozen=True, kw_only=True):
    """A batch whose entries are not decoded."""

    changes: Raw = Raw()
    announcements: Raw = Raw()


class Received(NamedTuple):
    head: Head
    announcements: Sequence[Announcement]
    skipped: int
    """Entries that this version does not know."""
    is_heartbeat: bool


_MALFORMED = (MsgspecError, UnicodeDecodeError, RecursionError)
_encode = json.Encoder().encode
_decode = json.Decoder(Batch).decode
_skim = json.Decoder(_Skimmed).decode
_decode_loose = json.Decoder(_Loose).decode
_decode_change = json.Decoder(PointerChange).decode
_decode_other: "json.Decoder[Announcement]" = json.Decoder(Announcement)


def runs(announcements: Sequence[Announcement]) -> Iterator[tuple[bool, tuple[Announcement, ...]]]:
    """Split announcements, in order, where the channel changes: (whether these are reads, the announcements)."""
    for reads, some in groupby(announcements, lambda one: isinstance(one, PointerMoved)):
        yield reads, tuple(some)


def without_text(one: Announcement) -> Announcement:
    """Devices receive only the preview, so the full text is not published."""
    if isinstance(one, MessageCame) and one.message.text is not None:
        return structs.replace(one, message=structs.replace(one.message, text=None))
    return one


def encode(
    publisher: str, number: int, after: int, announcements: Sequence[Announcement] = (), bye: bool = False
) -> bytes:
    """A batch of reads, a batch of other announcements, or a heartbeat."""
    changes = tuple(_to_wire(one) for one in announcements if isinstance(one, PointerMoved))
    others = tuple(one for one in announcements if not isinstance(one, PointerMoved))
    batch = Batch(
        v=VERSION, publisher=publisher, number=number, after=after, bye=bye, changes=changes, announcements=others
    )
    return _encode(batch)


def decode(data: bytes) -> Received | None:
    """Decode the entries that this version knows and count the others. None: not a batch."""
    try:
        batch = _decode(data)
        if batch.v <= VERSION:
            announcements = [*map(_from_wire, batch.changes), *batch.announcements]
            return Received(batch, announcements, 0, not announcements)
    except ValidationError:
        pass  # of another version, or of another program
    except _MALFORMED:
        return None
    return _decode_one_by_one(data)


def skim(data: bytes) -> Received | None:
    """Decode only the publisher, the numbers, and whether there are entries. None: not a batch."""
    try:
        found = _skim(data)
    except _MALFORMED:
        return None
    return Received(found, (), 0, not bytes(found.changes) and not bytes(found.announcements))


def _decode_one_by_one(data: bytes) -> Received | None:
    try:
        loose = _decode_loose(data)
    except _MALFORMED:
        return None
    total = len(loose.changes) + len(loose.announcements)
    known: list[Announcement] = []
    if loose.v <= VERSION:
        for raw in loose.changes:
            with suppress(*_MALFORMED):
                known.append(_from_wire(_decode_change(raw)))
        for raw in loose.announcements:
            with suppress(*_MALFORMED):
                known.append(_decode_other.decode(raw))
    return Received(loose, known, total - len(known), total == 0)


def _to_wire(moved: PointerMoved) -> PointerChange:
    room, pointer = moved.channel_id, moved.pointer
    channel, thread = channel_and_thread(room) if is_thread(room) else (room, None)
    return PointerChange(
        user_id=moved.user_id,
        channel_id=channel,
        thread_id=thread,
        last_read_seq=pointer.seq,
        last_read_id=pointer.id,
        epoch=pointer.epoch,
        instance_id=moved.instance_id,
        last_read_at=pointer.at,
        read_at=pointer.read_at,
        apart=tuple(sorted(pointer.apart)) if pointer.apart else (),
        before=Before(moved.before.epoch, moved.before.seq),
        change=pointer.change,
        origin=moved.origin,
    )


def _from_wire(change: PointerChange) -> PointerMoved:
    return PointerMoved(
        user_id=change.user_id,
        channel_id=change.channel_id if change.thread_id is None else thread_room(change.channel_id, change.thread_id),
        before=Pointer(change.before.epoch, change.before.last_read_seq),
        pointer=Pointer(
            change.epoch,
            change.last_read_seq,
            frozenset(change.apart),
            id=change.last_read_id,
            at=change.last_read_at,
            read_at=change.read_at,
            change=change.change,
        ),
        instance_id=change.instance_id,
        origin=change.origin,
    )
