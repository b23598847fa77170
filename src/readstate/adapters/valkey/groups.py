"""Shared by the scripts of the hot state: their text, grouping into calls, and what happens when one fails."""

from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from . import Generation, Script, ValkeyClient

T = TypeVar("T")


def script(*names: str) -> Script:
    """A script of the hot state, with the part that all of them share in front."""
    return Script.load("readstate.adapters.valkey.lua", "shared", *names)


class Group(NamedTuple, Generic[T]):
    """The content of one call: things of one server, or of one slot in a Cluster."""

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
    """For changes that the durable store already has: if the hot store may have missed one, everything is reloaded.

    Where the hot store is shared, the caller retries instead.
    """
    try:
        yield
    except BaseException:  # also on cancellation: the outcome is unknown
        generation.missed()
        raise


async def once_or_reload(generation: Generation, answer: Awaitable[tuple[T, bool]]) -> tuple[T, bool]:
    """For calls whose late copy would undo something newer: if one was sent twice, a copy may still arrive."""
    with all_or_reload(generation):
        value, repeated = await answer
    if repeated:
        generation.missed()
    return value, repeated
