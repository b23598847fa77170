"""How announcements travel between instances: numbered batches, as JSON.

Reads go on a channel of their own that outside subscribers may read too, so they look like this:

    {"v": 1, "publisher": "i1:5f0c", "number": 7, "after": 6, "changes": [{"user_id": "bob", "channel_id": "general",
     "last_read_seq": 12, "last_read_id": "m12", "epoch": 0, "instance_id": "i1", …}]}

Everything else has `announcements` in place of `changes`. A batch with neither says that its publisher lives.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from msgspec import MsgspecError, Raw, Struct, ValidationError, json, structs

from readstate.domain.announcements import (
    Announcement,
    BadgeChanged,
    ChannelTouched,
    MembersChanged,
    MessageCame,
    Outcome,
    PointerMoved,
    StateReplaced,
    ThreadTouched,
    UserRoomChanged,
)
from readstate.domain.model import Pointer
from readstate.domain.rooms import channel_and_thread, is_thread, thread_room

VERSION = 1
"""Raised only when those who know the older one could not read a batch at all."""

Other = (
    MessageCame
    | ChannelTouched
    | MembersChanged
    | ThreadTouched
    | UserRoomChanged
    | BadgeChanged
    | StateReplaced
    | Outcome
)  # all but reads


class Before(Struct, frozen=True, gc=False):
    """Where a pointer was."""

    epoch: int = 0
    last_read_seq: int = 0


class PointerChange(Struct, frozen=True, gc=False, omit_defaults=True):
    """A user has read, or marked unread. These names are documented: they stay."""

    user_id: str
    channel_id: str
    last_read_seq: int
    last_read_id: str | None
    epoch: int
    instance_id: str
    """Where it was done."""
    thread_id: str | None = None
    """The pointer is that of a thread in the channel."""
    last_read_at: int | None = None
    read_at: int = 0
    apart: tuple[int, ...] = ()
    before: Before = Before()
    change: int = 0
    origin: str | None = None


class Batch(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a publisher says at once."""

    v: int
    publisher: str
    """An instance, since its start."""
    number: int
    """Of this batch, from 1; if it says nothing: of the last one."""
    after: int
    """All up to this number were handed over for sure when this one was sent; others may be lost."""
    changes: tuple[PointerChange, ...] = ()
    announcements: tuple[Other, ...] = ()
    bye: bool = False
    """It was the last one, and nothing is lost."""


class _Loose(Struct, frozen=True, kw_only=True):
    """A batch of another version: what is in it may be unknown."""

    v: int
    publisher: str
    number: int
    after: int
    changes: tuple[Raw, ...] = ()
    announcements: tuple[Raw, ...] = ()
    bye: bool = False


class _Skimmed(Struct, frozen=True, kw_only=True):
    """A batch of which only the outside is looked at."""

    v: int
    publisher: str
    number: int
    after: int
    changes: Raw = Raw()
    announcements: Raw = Raw()
    bye: bool = False


class Received(NamedTuple):
    """A batch as it came."""

    batch: Batch
    skipped: int
    """Announcements of another version that this one doesn't know."""
    said_nothing: bool
    """It is a sign of life."""


_encode = json.Encoder().encode
_decode = json.Decoder(Batch).decode
_skim = json.Decoder(_Skimmed).decode
_decode_loose = json.Decoder(_Loose).decode
_decode_change = json.Decoder(PointerChange).decode
_decode_other: "json.Decoder[Other]" = json.Decoder(Other)


def runs(announcements: Sequence[Announcement]) -> Iterator[tuple[bool, tuple[Announcement, ...]]]:
    """Announcements in their order, cut where they change the channel: (whether these are reads, they)."""
    for reads, some in groupby(announcements, lambda one: isinstance(one, PointerMoved)):
        yield reads, tuple(some)


def without_text(one: Announcement) -> Announcement:
    """As others need it: devices are told the preview, so the whole text need not travel."""
    if isinstance(one, MessageCame) and one.message.text is not None:
        return structs.replace(one, message=structs.replace(one.message, text=None))
    return one


def encode(publisher: str, number: int, after: int, said: Sequence[Announcement] = (), bye: bool = False) -> bytes:
    """A batch of reads, of anything else, or of nothing."""
    changes = tuple(_to_wire(one) for one in said if isinstance(one, PointerMoved))
    others = tuple(one for one in said if not isinstance(one, PointerMoved))
    return _encode(
        Batch(
            v=VERSION, publisher=publisher, number=number, after=after, changes=changes, announcements=others, bye=bye
        )
    )


def decode(data: bytes) -> Received | None:
    """A batch with what is known of it; None if it is none."""
    try:
        batch = _decode(data)
        if batch.v <= VERSION:
            return Received(batch, 0, not batch.changes and not batch.announcements)
    except ValidationError:
        pass  # of another version, or by somebody else
    except (MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return _decode_one_by_one(data)


def skim(data: bytes) -> Received | None:
    """A batch that is not looked into: who says it, and whether it says anything; None if it is none."""
    try:
        found = _skim(data)
    except (MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    batch = Batch(v=found.v, publisher=found.publisher, number=found.number, after=found.after, bye=found.bye)
    return Received(batch, 0, not bytes(found.changes) and not bytes(found.announcements))


def said(batch: Batch) -> list[Announcement]:
    """What a batch announces."""
    return [*map(_from_wire, batch.changes), *batch.announcements]


def _decode_one_by_one(data: bytes) -> Received | None:
    try:
        loose = _decode_loose(data)
    except (MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    changes, others, skipped = [], [], 0
    for raw in loose.changes:
        try:
            changes.append(_decode_change(raw))
        except (MsgspecError, RecursionError):
            skipped += 1
    for raw in loose.announcements:
        try:
            others.append(_decode_other.decode(raw))
        except (MsgspecError, RecursionError):
            skipped += 1
    known = loose.v <= VERSION
    batch = Batch(
        v=loose.v,
        publisher=loose.publisher,
        number=loose.number,
        after=loose.after,
        changes=tuple(changes) if known else (),
        announcements=tuple(others) if known else (),
        bye=loose.bye,
    )
    total = len(loose.changes) + len(loose.announcements)
    return Received(batch, skipped if known else total, total == 0)


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
