"""Generations by slot: the number of each of the 16,384 slots of the hot store.

A single server, or memory, has one range. Numbers come from one counter: a slot that is lost gets a number above every
number of every slot. So a slot has lost nothing since some time if its number is at most the highest of that time.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .model import NO_GENERATION, Generation

SLOTS = 16_384


class SlotRange(NamedTuple):
    """As the durable table has it."""

    first: int
    last: int
    number: Generation
    run: str
    """The run id of the server that owned the slots when they got the number; empty: it did not answer."""


class LostRange(NamedTuple):
    first: int
    last: int
    run: str
    """The run id of the server that owns the slots now; empty: it does not answer."""


class SlotGenerations:
    """A snapshot of the table, by slot. It never changes."""

    def __init__(self, ranges: Iterable[SlotRange] = ()) -> None:
        self.ranges = tuple(ranges)
        self._numbers = [NO_GENERATION] * SLOTS
        self._runs = [""] * SLOTS
        for first, last, number, run in self.ranges:
            self._numbers[first : last + 1] = [number] * (last + 1 - first)
            self._runs[first : last + 1] = [run] * (last + 1 - first)
        self.highest = max((one.number for one in self.ranges), default=NO_GENERATION)
        self.lowest = min(self._numbers)

    def of(self, slot: int) -> Generation:
        return self._numbers[slot]

    def run_of(self, slot: int) -> str:
        return self._runs[slot]

    def highest_of(self, run: str) -> Generation:
        """The highest number among the slots of a server."""
        return max((one.number for one in self.ranges if one.run == run), default=NO_GENERATION)

    def numbers(self) -> frozenset[Generation]:
        return frozenset(one.number for one in self.ranges)


def ranges_of(runs: Sequence[str | None]) -> list[LostRange]:
    """Slots as ranges. `runs`: for each slot the run id of its owner if it is lost, else None."""
    found: list[LostRange] = []
    for slot, run in enumerate(runs):
        if run is None:
            continue
        if found and found[-1].last == slot - 1 and found[-1].run == run:
            found[-1] = LostRange(found[-1].first, slot, run)
        else:
            found.append(LostRange(slot, slot, run))
    return found


def renewed(known: Iterable[SlotRange], lost: Iterable[LostRange], number: Generation) -> list[SlotRange]:
    """The table after these slots have got a number. Neighbours that are alike become one range."""
    slots: list[tuple[Generation, str] | None] = [None] * SLOTS
    for first, last, before, run in known:
        slots[first : last + 1] = [(before, run)] * (last + 1 - first)
    for first, last, run in lost:
        slots[first : last + 1] = [(number, run)] * (last + 1 - first)
    found: list[SlotRange] = []
    for slot, value in enumerate(slots):
        if value is None:
            continue
        if found and found[-1].last == slot - 1 and found[-1][2:] == value:
            found[-1] = found[-1]._replace(last=slot)
        else:
            found.append(SlotRange(slot, slot, *value))
    return found
