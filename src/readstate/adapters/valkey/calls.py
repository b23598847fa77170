"""Function calls for many users at once: one call per server, or per slot in a Cluster."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from readstate.domain.model import Generation

from . import Backend, Call, Function
from .commands import Word, encode
from .groups import Packed, run_grouped
from .user_rooms import UserFunction, UserKeys

T = TypeVar("T")

MAX_ITEMS = 500
"""Items in one call, by weight, so that no call blocks a server for long."""
MAX_SENT = 10 * MAX_ITEMS
"""Items in one pipeline, by weight, so that a server answers the last call in time."""


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
        self.updates: dict[int, tuple[int, Any]] = {}
        """Hot updates of this call and their numbers, counted from 1, by the index in the caller's list."""

    def numbers(self, user: str, room: str) -> tuple[int, int]:
        """Of the user, and of the user's ledger in the room."""
        ledger = self.ledgers.setdefault((user, room), len(self.ledgers) + 1)
        return self.users.setdefault(user, len(self.users) + 1), ledger

    def number_of_update(self, index: int, update: Any) -> int:
        return self.updates.setdefault(index, (len(self.updates) + 1, update))[0]

    def add(self, index: int, item: Any) -> None:
        self.indexes.append(index)
        self.items.append(item)


class UserCalls:
    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.keys = UserKeys(backend.prefix)
        self._client = backend.client

    def packets(self) -> "Packets":
        return Packets(self.keys, by_slot=self._client.is_cluster)

    async def one(self, function: UserFunction, user: str, *arguments: Word, more: Iterable[bytes] = ()) -> Any:
        return (await self.once(function, user, *arguments, more=more))[0]

    async def once(
        self, function: UserFunction, user: str, *arguments: Word, more: Iterable[bytes] = ()
    ) -> tuple[Any, bool]:
        """Like `one`, and whether the call was sent more than once."""
        keys, packed = self._packed(function, [user], (), *arguments)
        call = Call(self.keys.of(user)[0], [*keys, *more], packed)
        values, repeated = await self._client.run(function, [call])
        return values[0], repeated

    async def parts(self, function: UserFunction, user: str, arguments: Sequence[bytes]) -> list[Any]:
        """Run a function once per argument, in one round trip. Other calls may run in between."""
        slot = self.keys.of(user)[0]
        calls = [Call(slot, *self._packed(function, [user], (), argument)) for argument in arguments]
        return (await self._client.run(function, calls)).values

    async def many(
        self,
        function: Function,
        packets: "Packets",
        pack: Callable[[Packet], Packed],
        generation: Generation | None = None,
    ) -> tuple[list[tuple[Packet, Any]], bool]:
        """Returns what each packet answered, and whether any call was sent more than once.

        With `generation`, raises Overtaken in any other generation. The packets of a wave are sent in one pipeline per
        server. A retry repeats only those that failed, so they may run in any order. No two of them have a user in
        common, so this cannot reorder a user's writes. The next wave continues the items of some users: it is sent
        after the last answer to this one.
        """
        answers: list[tuple[Packet, Any]] = []
        repeated = False
        for wave in packets.waves():
            calls = [Call(packet.slot, *pack(packet)) for packet in wave]
            values, again = await self._client.run(function, calls, generation)
            answers += zip(wave, values, strict=True)
            repeated = repeated or again
        return answers, repeated

    def packing(self, function: UserFunction) -> Callable[[Packet], Packed]:
        """Packs the items, and the hot updates if there are any, as MessagePack."""

        def pack(packet: Packet) -> Packed:
            updates = [encode([one for _, one in packet.updates.values()])] if packet.updates else []
            return self._packed(function, packet.users, packet.ledgers, *updates, encode(packet.items))

        return pack

    async def each(
        self, function: UserFunction, users: Sequence[str], ledger: str | None, *arguments: str | int
    ) -> list[Any]:
        """Run a function for many users, each with the ledger of the room `ledger` if given. One answer per user."""

        def pack(indexes: list[int]) -> Packed:
            some = [users[index] for index in indexes]
            ledgers = [] if ledger is None else [(user, ledger) for user in some]
            return self._packed(function, some, ledgers, *arguments)

        things = ((self.keys.of(user)[0], 1, index) for index, user in enumerate(users))
        answers: list[Any] = [None] * len(users)
        for indexes, values in await run_grouped(self._client, function, things, MAX_ITEMS, pack):
            width = len(values) // len(indexes)
            for at, index in enumerate(indexes):
                answers[index] = values[at * width : (at + 1) * width]
        return answers

    def _packed(
        self, function: UserFunction, users: Collection[str], ledgers: Iterable[tuple[str, str]], *arguments: Word
    ) -> Packed:
        keys = [key for user in users for key in function.keys(self.keys.of(user)[1])]
        keys += [self.keys.ledger(user, room) for user, room in ledgers]
        return keys, self.arguments(len(users), *arguments)

    def arguments(self, users: int, *more: Word) -> list[Word]:
        """What every function of users receives after the generation: now, expiry, cap, how many users."""
        return [*self.backend.time(), self.backend.unread_cap, users, *more]


class Packets:
    """Sorts items into packets: all items of a user into one, in their order, as far as it has room."""

    def __init__(self, keys: UserKeys, by_slot: bool) -> None:
        self._keys = keys
        self._by_slot = by_slot
        self._open: dict[int, Packet] = {}
        """By slot, the packet that takes the next user."""
        self._waves: list[list[Packet]] = []

    def place(self, items: Iterable[tuple[str, int, T]]) -> Iterator[tuple[Packet, T]]:
        """Sort items, each with its user and weight. Returns each with its packet; the caller adds it there."""
        by_user: dict[str, list[tuple[int, T]]] = {}
        for user, weight, item in items:
            by_user.setdefault(user, []).append((weight, item))
        for user, own in by_user.items():
            packet = self.first(user, sum(weight for weight, _ in own))
            wave = 0
            for weight, item in own:
                if packet.weight and packet.weight + weight > MAX_ITEMS:
                    wave += 1
                    packet = self._new(packet.slot, wave)
                packet.weight += weight
                yield packet, item

    def first(self, user: str, weight: int) -> Packet:
        """The packet for a user's first item. Has room for all of them, unless no packet has."""
        slot = self._keys.of(user)[0] if self._by_slot else 0
        packet = self._open.get(slot)
        if packet is None or packet.weight + weight > MAX_ITEMS:
            packet = self._open[slot] = self._new(slot, 0)
        return packet

    def _new(self, slot: int, wave: int) -> Packet:
        if wave == len(self._waves):
            self._waves.append([])
        packet = Packet(slot)
        self._waves[wave].append(packet)
        return packet

    def waves(self) -> Iterator[list[Packet]]:
        """Groups of packets that may run at the same time: no two of a group have a user in common."""
        for wave in self._waves:
            group: list[Packet] = []
            weight = 0
            for packet in wave:
                if group and weight + packet.weight > MAX_SENT:
                    yield group
                    group, weight = [], 0
                group.append(packet)
                weight += packet.weight
            yield group
