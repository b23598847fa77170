"""Function calls about the presence of many users at once."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from readstate.adapters.valkey import Backend, Call, Function, slot_of, tag_of
from readstate.adapters.valkey.commands import encode
from readstate.adapters.valkey.functions import COMMAND
from readstate.adapters.valkey.groups import Packed, chunks, run_grouped
from readstate.domain.model import NO_GENERATION, Generation
from readstate.domain.slots import SlotGenerations

from .instances import MAX_USERS, Instances

LEAVE = Function("presence_leave")

Key = tuple[str, str]
"""(device, connection). The connection of a device that is only reported is empty."""

encode_text = msgspec.json.Encoder().encode


class PresenceCalls:
    def __init__(self, backend: Backend, instances: Instances) -> None:
        self.backend = backend
        self.instances = instances
        self.keys_of = lru_cache(maxsize=100_000)(self._keys_of)

    def _keys_of(self, user: str) -> tuple[int, tuple[str, str, str]]:
        """The user's slot, and the keys of devices, of unproven messages, and of those kept after the user left."""
        families = ("presence", "unproven", "left")
        devices, unproven, left = (f"{self.backend.prefix}{family}:{tag_of(user)}" for family in families)
        return slot_of(devices), (devices, unproven, left)

    def entry(self, key: Key) -> str:
        """The name of a device among a user's devices."""
        return encode_text((self.instances.name if key[1] else "", *key)).decode()

    async def answers(self, function: Function, items: Mapping[str, Any], *more: int) -> dict[str, Any]:
        """One answer per user. An empty answer counts only if the generation still stands: it may be due to a loss."""
        found: dict[str, Any] = {}
        todo = dict(items)
        while todo:
            known = await self.settled(todo)
            found |= await self.decide(function, todo, known, *more)
            todo = {user: item for user, item in todo.items() if not found[user]}
            if todo:
                stands = await self.stands(known, todo)
                todo = {user: item for user, item in todo.items() if user not in stands}
        return found

    async def settled(self, users: Iterable[str]) -> SlotGenerations:
        """The generations in which it may be decided that these users are away."""
        return await self.instances.settled({self.keys_of(user)[0] for user in users})

    async def stands(self, known: SlotGenerations, users: Collection[str]) -> set[str]:
        """Those of these users whose slots, and the leases, were not lost since."""
        slots = {user: self.keys_of(user)[0] for user in users}
        leases = self.instances.slot
        generation = self.backend.generation
        await generation.check({*slots.values(), leases})
        if generation.of(leases) != known.of(leases):
            return set()
        return {user for user, slot in slots.items() if generation.of(slot) == known.of(slot)}

    def generation_of(self, user: str, known: SlotGenerations | None = None) -> Generation:
        return (known or self.backend.generation.slots).of(self.keys_of(user)[0])

    async def decide(
        self, function: Function, items: Mapping[str, Any], known: SlotGenerations | None, *more: int
    ) -> dict[str, Any]:
        """Run a function until it answers for every user: it needs to know of each instance involved whether it lives.

        In a generation other than the one in `known` (None: any), the function answers that nothing is known.
        """
        found: dict[str, Any] = {}
        todo = dict(items)
        while todo:
            parts = await self.run(function, todo, known, *more)
            unknown = {name.decode() for _, (_, names) in parts for name in names}
            for users, (answers, _) in parts:
                found |= {user: answer for user, answer in zip(users, answers, strict=True) if answer is not None}
            todo = {user: item for user, item in todo.items() if user not in found}
            if unknown:
                await self.instances.learn(unknown)
        return found

    async def run(
        self, function: Function, items: Mapping[str, Any], known: SlotGenerations | None = None, *more: int
    ) -> list[tuple[list[str], Any]]:
        """Run a function for many users. Returns the users of each call, and its answer."""
        head = (self.backend.clock(), encode(list(self.instances.live)), encode(list(self.instances.gone)))
        width = 3 if function is LEAVE else 2

        def pack(users: list[str]) -> Packed:
            keys = [key for user in users for key in self.keys_of(user)[1][:width]]
            number = NO_GENERATION if known is None else self.generation_of(users[0], known)
            return keys, [*head, number, encode([items[user] for user in users]), *more]

        things = ((self.keys_of(user)[0], 1, user) for user in items)
        return await run_grouped(self.backend.client, function, things, MAX_USERS, pack)

    async def commands(self, commands: Sequence[Call]) -> None:
        """Each runs one command on one key."""
        for some in chunks(commands, MAX_USERS):
            await self.backend.client.run(COMMAND, some)
