"""Function calls for many users at once: one call per server, or per slot in a Cluster."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from readstate.domain.model import Generation

from . import Backend, Call
from .groups import Packed, run_grouped
from .user_rooms import UserFunction, UserKeys, encode

MAX_ITEMS = 500
"""Items in one call, by weight, so that no call blocks a server for long."""


class Packet:
    """The content of one call: users, ledgers, and items that refer to both by number, counted from 1."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.weight = 0
        self.users: dict[str, int] = {}
        self.ledgers: dict[tuple[str, str], int] = {}
        self.items: list[Any] = []
        self.indexes: list[int] = []
        """The index of each item in the caller's list."""
        self.updates: dict[int, int] = {}
        """Hot updates of this call: index in the caller's list -> number, counted from 1."""

    def user(self, user: str) -> int:
        return self.users.setdefault(user, len(self.users) + 1)

    def ledger(self, user: str, room: str) -> int:
        return self.ledgers.setdefault((user, room), len(self.ledgers) + 1)

    def add(self, index: int, item: Any) -> None:
        self.indexes.append(index)
        self.items.append(item)


class UserCalls:
    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.keys = UserKeys(backend.prefix)
        self._client = backend.client

    def packets(self) -> "Packets":
        return Packets(self, by_slot=self._client.is_cluster)

    async def one(
        self, function: UserFunction, user: str, *arguments: str | bytes | int, more: Iterable[bytes] = ()
    ) -> Any:
        return (await self.once(function, user, *arguments, more=more))[0]

    async def once(
        self, function: UserFunction, user: str, *arguments: str | bytes | int, more: Iterable[bytes] = ()
    ) -> tuple[Any, bool]:
        """Like `one`, and whether the call was sent more than once."""
        slot, keys = self.keys.of(user)
        call = Call(slot, [*function.keys(keys), *more], [*self._head(1), *arguments])
        values, repeated = await self._client.run(function, [call])
        return values[0], repeated

    async def parts(self, function: UserFunction, user: str, arguments: Sequence[bytes]) -> list[Any]:
        """Run a function once per argument, in one round trip. Other calls may run in between."""
        slot, keys = self.keys.of(user)
        calls = [Call(slot, function.keys(keys), [*self._head(1), argument]) for argument in arguments]
        return (await self._client.run(function, calls)).values

    async def many(
        self,
        function: UserFunction,
        packets: "Packets",
        *,
        updates: Sequence[Any] = (),
        generation: Generation | None = None,
    ) -> tuple[list[tuple[Packet, Any]], bool]:
        """Returns what each packet answered, and whether any call was sent more than once.

        With `generation`, raises Overtaken in any other generation. Packets of one slot are sent one after another,
        each after the answer to the one before, so a retry cannot reorder a user's writes.
        """
        answers: list[tuple[Packet, Any]] = []
        repeated = False
        for wave in packets.waves():
            calls = []
            for packet in wave:
                packed = [encode([updates[index] for index in packet.updates])] if packet.updates else []
                calls.append(self._call(function, packet, [*packed, encode(packet.items)]))
            values, again = await self._client.run(function, calls, generation)
            answers += zip(wave, values, strict=True)
            repeated = repeated or again
        return answers, repeated

    async def each(
        self, function: UserFunction, users: Sequence[str], ledger: str | None, *arguments: str | int
    ) -> list[Any]:
        """Run a function for many users, each with the ledger of the room `ledger` if given. One answer per user."""

        def pack(indexes: list[int]) -> Packed:
            some = [users[index] for index in indexes]
            keys = [key for user in some for key in function.keys(self.keys.of(user)[1])]
            keys += () if ledger is None else (self.keys.ledger(user, ledger) for user in some)
            return keys, [*self._head(len(some)), *arguments]

        things = ((self.keys.of(user)[0], 1, index) for index, user in enumerate(users))
        answers: list[Any] = [None] * len(users)
        for indexes, values in await run_grouped(self._client, function, things, MAX_ITEMS, pack):
            width = len(values) // len(indexes)
            for at, index in enumerate(indexes):
                answers[index] = values[at * width : (at + 1) * width]
        return answers

    def _call(self, function: UserFunction, packet: Packet, arguments: Sequence[str | bytes | int]) -> Call:
        keys = [key for user in packet.users for key in function.keys(self.keys.of(user)[1])]
        keys += [self.keys.ledger(user, room) for user, room in packet.ledgers]
        return Call(packet.slot, keys, [*self._head(len(packet.users)), *arguments])

    def _head(self, users: int) -> tuple[int, ...]:
        """The arguments that every function of users begins with."""
        return *self.backend.time(), self.backend.unread_cap, users


class Packets:
    """Sorts items into packets and keeps the order of each user's items."""

    def __init__(self, calls: UserCalls, by_slot: bool) -> None:
        self._calls = calls
        self._by_slot = by_slot
        self._open: dict[int, Packet] = {}
        self._all: list[Packet] = []

    def of(self, user: str, weight: int = 1) -> Packet:
        """The packet for the user's next item."""
        slot = self._calls.keys.of(user)[0]
        target = slot if self._by_slot else 0
        packet = self._open.get(target)
        if packet is None or (packet.weight + weight > MAX_ITEMS and packet.weight):
            packet = self._open[target] = Packet(slot)
            self._all.append(packet)
        packet.weight += weight
        return packet

    def waves(self) -> Iterator[list[Packet]]:
        """Groups of packets that may run at the same time: at most one per slot, or per server outside a Cluster."""
        waiting = self._all
        while waiting:
            wave: dict[int, Packet] = {}
            rest = []
            for packet in waiting:
                if wave.setdefault(packet.slot if self._by_slot else 0, packet) is not packet:
                    rest.append(packet)
            yield list(wave.values())
            waiting = rest
