"""What scripts of several kinds share: their text, what goes into one call, and what to do when one fails."""

from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from . import Generation, Script, ValkeyClient

T = TypeVar("T")


def script(*names: str) -> Script:
    """A script of the hot state, after what all of them share."""
    return Script.load("readstate.adapters.valkey.lua", "shared", *names)


class Group(NamedTuple, Generic[T]):
    """What one call is about: things of one server, or of one slot in a Cluster."""

    slot: int
    things: list[T]


def groups(client: ValkeyClient, things: Iterable[tuple[int, int, T]], most: int) -> Iterator[Group[T]]:
    """Group (slot, weight, thing). No group weighs more than `most`, unless a single thing does."""
    begun: dict[int, tuple[list[T], int]] = {}
    for slot, weight, thing in things:
        place = slot if client.is_cluster else 0
        group, weighs = begun.get(place, ([], 0))
        if group and weighs + weight > most:
            yield Group(place, group)
            group, weighs = [], 0
        group.append(thing)
        begun[place] = group, weighs + weight
    for place, (group, _) in begun.items():
        yield Group(place, group)


@contextmanager
def all_or_reload(generation: Generation) -> Iterator[None]:
    """The durable store has taken it already: if the hot store may have missed it, everything is loaded again.

    Where the hot store is shared, the caller repeats it instead.
    """
    try:
        yield
    except BaseException:  # whoever is cancelled does not know either
        generation.missed()
        raise


async def once_or_reload(generation: Generation, answer: Awaitable[tuple[T, bool]]) -> tuple[T, bool]:
    """For what would undo something newer if it came late: one that was sent twice may still arrive."""
    with all_or_reload(generation):
        value, repeated = await answer
    if repeated:
        generation.missed()
    return value, repeated
