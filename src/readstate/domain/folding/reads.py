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
    further, other = (a, b) if (a.epoch, a.last_read_seq) >= (b.epoch, b.last_read_seq) else (b, a)
    state = merge(further.pointer, other.pointer)
    same = (a.epoch, a.last_read_seq) == (b.epoch, b.last_read_seq)
    return replace(
        further,
        apart=tuple(sorted(state.apart)),
        read_at=max(a.read_at, b.read_at) if same else further.read_at,
        change=max(a.change, b.change),
    )
