"""The table of slots, in memory in place of the durable one, and names of which a Cluster's master is known."""

from collections.abc import Sequence

from readstate.adapters.valkey import slot_of, tag_of
from readstate.adapters.valkey.keys import shard_of
from readstate.domain.model import NO_GENERATION, Generation
from readstate.domain.slots import SLOTS, LostRange, SlotRange, renewed

MASTERS = 3


class Slots:
    """Gives a number as often as it is asked for one."""

    def __init__(self, number: int = NO_GENERATION) -> None:
        self.number = Generation(number)
        self.raised = 0
        self.ranges: list[SlotRange] = []

    async def slots(self) -> list[SlotRange]:
        return self.ranges

    async def renew_slots(
        self, seen: Sequence[SlotRange], lost: Sequence[LostRange], above: int, now: int, every: int
    ) -> list[SlotRange] | None:
        if list(seen) != self.ranges:
            return None
        self.raised += 1
        self.number = Generation(max(self.number, above) + 1)
        self.ranges = renewed(self.ranges, lost, self.number)
        return self.ranges


def user_in(master: int) -> str:
    """A user whose slot a master owns."""
    names = (f"user{number}" for number in range(1_000))
    return next(name for name in names if slot_of(tag_of(name)) * MASTERS // SLOTS == master)


def room_in(master: int) -> str:
    """A channel whose slot a master owns."""
    names = (f"room{number}" for number in range(1_000))
    return next(name for name in names if slot_of(tag_of(str(shard_of(name)))) * MASTERS // SLOTS == master)
