"""Folds a batch of read states, so that each user and channel is written once."""

from collections.abc import Sequence

from msgspec.structs import replace

from readstate.domain.events import ReadEvent
from readstate.domain.facts import Key
from readstate.domain.rules import merge


def fold_reads(events: Sequence[ReadEvent]) -> list[ReadEvent]:
    folded: dict[Key, ReadEvent] = {}
    for event in events:
        key = (event.user_id, event.channel_id)
        known = folded.get(key)
        folded[key] = event if known is None else _merge_events(known, event)
    return list(folded.values())


def _merge_events(a: ReadEvent, b: ReadEvent) -> ReadEvent:
    """Usually the further one as it is: only what differs from it is worth a new object."""
    at_a, at_b = (a.epoch, a.last_read_seq), (b.epoch, b.last_read_seq)
    further, other = (a, b) if at_a >= at_b else (b, a)
    apart, read_at = further.apart, further.read_at
    if a.epoch == b.epoch and (a.apart or b.apart):
        apart = tuple(sorted(merge(further.pointer, other.pointer).apart))
    if at_a == at_b:
        read_at = max(read_at, other.read_at)
    change = max(a.change, b.change)
    if (apart, read_at, change) == (further.apart, further.read_at, further.change):
        return further
    return replace(further, apart=apart, read_at=read_at, change=change)
