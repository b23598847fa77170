"""Which things go into one script call: all of one server, or all of one slot in a Cluster."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from ..valkey import Fleet

T = TypeVar("T")


class Group(NamedTuple, Generic[T]):
    """What one call is about."""

    slot: int
    things: Sequence[T]


def groups(fleet: Fleet, things: Iterable[tuple[int, int, T]], most: int) -> Iterator[Group[T]]:
    """Group (slot, weight, thing). No group weighs more than `most`, unless a single thing does."""
    open_groups: dict[int, tuple[list[T], int]] = {}
    for slot, weight, thing in things:
        place = slot if fleet.is_cluster else 0
        group, weighs = open_groups.get(place, ([], 0))
        if group and weighs + weight > most:
            yield Group(place, group)
            group, weighs = [], 0
        group.append(thing)
        open_groups[place] = group, weighs + weight
    for place, (group, _) in open_groups.items():
        yield Group(place, group)
