"""Shared by calls of the hot state: how they are grouped, and what happens when one fails."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from . import Call, Function, Generation, ValkeyClient
from .commands import Word

T = TypeVar("T")

Packed = tuple[Sequence[str | bytes], Sequence[Word]]
"""The keys and the arguments of a call."""
Things = Iterable[tuple[int, int, T]]
"""(slot, weight, thing)."""
Pack = Callable[[list[T]], Packed]


async def run_grouped(
    client: ValkeyClient, function: Function, things: Things[T], most: int, pack: Pack[T]
) -> list[tuple[list[T], Any]]:
    """Run a function, with one call for all things of a server, or of a slot in a Cluster.

    No call weighs more than `most`, unless a single thing does. Returns the things of each call, and its answer.
    """
    groups = list(_groups(client.is_cluster, things, most))
    calls = [Call(slot, *pack(group)) for slot, group in groups]
    values = (await client.run(function, calls)).values
    return [(group, value) for (_, group), value in zip(groups, values, strict=True)]


async def run_for_each(
    client: ValkeyClient, function: Function, things: Things[T], most: int, pack: Pack[T]
) -> list[tuple[T, Any]]:
    """`run_grouped` for a function that returns one answer per thing. Returns each thing and its answer."""
    found = await run_grouped(client, function, things, most, pack)
    return [pair for group, answers in found for pair in zip(group, answers, strict=True)]


def _groups(by_slot: bool, things: Things[T], most: int) -> Iterator[tuple[int, list[T]]]:
    begun: dict[int, tuple[list[T], int]] = {}
    for slot, weight, thing in things:
        target = slot if by_slot else 0
        group, weighs = begun.get(target, ([], 0))
        if group and weighs + weight > most:
            yield target, group
            group, weighs = [], 0
        group.append(thing)
        begun[target] = group, weighs + weight
    for target, (group, _) in begun.items():
        yield target, group


def chunks(things: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    return (things[start : start + most] for start in range(0, len(things), most))


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
