"""How the items of many users are sorted into calls, and that a retry keeps the order of a user's writes."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from redis.exceptions import TryAgainError

from readstate.adapters.memory.users import MemoryUsers
from readstate.adapters.valkey import ValkeyClient
from readstate.adapters.valkey.calls import MAX_ITEMS, MAX_SENT, Packets, UserCalls
from readstate.adapters.valkey.user_rooms import UserKeys
from readstate.adapters.valkey.users import ValkeyUsers
from readstate.domain.hot_updates import FanOut
from readstate.domain.model import Entry, Generation, Mode, Pointer, Preferences
from readstate.ports import HotUsers, LoadedUserRoom, Move, Moved, Read, Rewind
from readstate.stack import Valkey, ValkeyCluster
from tests.contract.test_hot_users import place
from tests.contract.valkey import HotStore, cluster, hot_store, single

NOW = 1_700_000_000_000
USERS = [f"user{n}" for n in range(12)]


# ---------------------------------------------------------------- sorting


def waves_of(*items: tuple[str, int], by_slot: bool = False) -> list[list[list[str]]]:
    """The waves, their packets, and the items of each, which are named by their user and their order."""
    packets = Packets(UserKeys(""), by_slot)
    placed: dict[int, list[str]] = {}
    things = ((user, weight, f"{user}{n}") for n, (user, weight) in enumerate(items))
    for packet, thing in packets.place(things):
        placed.setdefault(id(packet), []).append(thing)
    return [[placed[id(packet)] for packet in wave] for wave in packets.waves()]


def test_all_items_of_a_user_are_in_one_packet_in_their_order() -> None:
    found = waves_of(("a", 1), ("b", MAX_ITEMS - 2), ("c", 2), ("a", 1))
    assert found == [[["a0", "a3", "b1"], ["c2"]]]


def test_a_user_with_too_many_items_continues_in_a_later_wave() -> None:
    found = waves_of(("a", 1), ("b", MAX_ITEMS - 1), ("b", 2), ("c", 1), ("b", MAX_ITEMS))
    assert found == [[["a0"], ["b1", "c3"]], [["b2"]], [["b4"]]]


def test_an_item_that_weighs_more_than_a_packet_has_one_of_its_own() -> None:
    assert waves_of(("a", 3 * MAX_ITEMS), ("a", 1), ("b", 1)) == [[["a0"], ["b2"]], [["a1"]]]


def test_a_pipeline_has_no_more_than_a_server_answers_in_time() -> None:
    most = MAX_SENT // MAX_ITEMS
    found = waves_of(*((f"user{n}", MAX_ITEMS) for n in range(most + 1)))
    assert [len(wave) for wave in found] == [most, 1]


def test_in_a_cluster_a_packet_has_one_slot() -> None:
    assert len(waves_of(*((user, 1) for user in USERS), by_slot=True)[0]) == len(USERS)


# ---------------------------------------------------------------- sending


class Sent:
    """Sees what a client sends, and may refuse some of it."""

    def __init__(self, client: ValkeyClient, patch: pytest.MonkeyPatch) -> None:
        self._send = client._send
        self.pipelines: list[int] = []
        """How many calls each had."""
        self.refuse_first = False
        patch.setattr(client, "_send", self._sends)

    async def _sends(self, address: str, batch: Any, part: Sequence[int], asking: bool = False) -> list[Any]:
        self.pipelines.append(len(part))
        refused, self.refuse_first = self.refuse_first, False
        found = await self._send(address, batch, part[1:] if refused else part, asking) if part[refused:] else []
        return [TryAgainError("the slot is moving"), *found] if refused else found


@pytest.fixture(params=[single, cluster])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[HotStore]:
    server: Callable[[], Valkey | ValkeyCluster] = request.param
    async with hot_store(server, shared=True) as store:
        yield store


@pytest.fixture
async def users(store: HotStore) -> ValkeyUsers:
    return ValkeyUsers(UserCalls(store.backend(lambda: NOW)))


async def load(users: HotUsers, names: Sequence[str]) -> None:
    for name in names:
        user_room = LoadedUserRoom("c", True, Mode.LEDGER, 0, True, Pointer(), Preferences(), 0, False)
        assert await users.install(name, await users.begin(name), [user_room])


async def test_packets_of_different_users_take_one_round_trip(
    users: ValkeyUsers, store: HotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("readstate.adapters.valkey.calls.MAX_ITEMS", 3)
    await load(users, USERS)
    sent = Sent(store.client, monkeypatch)
    moves = [Read(name, "c", place(seq)) for seq in (1, 2) for name in USERS]

    found = await users.move(moves)

    assert [one.pointer.seq for one in found if isinstance(one, Moved)] == [1] * len(USERS) + [2] * len(USERS)
    assert len(sent.pipelines) == len(await store.client.masters())


async def test_a_retry_does_not_reorder_the_writes_of_a_user(
    users: ValkeyUsers, store: HotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first packet of a wave is refused once, while everything else that was sent with it is applied."""
    monkeypatch.setattr("readstate.adapters.valkey.calls.MAX_ITEMS", 4)
    memory = MemoryUsers(unread_cap=5, generation=Generation(2), clock=lambda: NOW, ledger_ttl=60)
    moves: list[Move] = []
    for name in ("ann", "bob"):
        moves += [Read(name, "c", place(5)), Rewind(name, "c", 3, place(2), ()), Read(name, "c", place(4))] * 3
    for one in (users, memory):
        await load(one, ["ann", "bob"])
    sent = Sent(store.client, monkeypatch)
    sent.refuse_first = True

    found = await users.move(moves)

    expected = await memory.move(moves)
    for now, wanted in zip(found, expected, strict=True):
        assert isinstance(now, Moved)
        assert isinstance(wanted, Moved)
        assert (now.before.state, now.pointer.state) == (wanted.before.state, wanted.pointer.state)
    assert len(sent.pipelines) > 3, "the refused one is sent again, before the next wave"


async def test_hot_updates_of_a_user_keep_their_order_in_packets_of_any_size(
    users: ValkeyUsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("readstate.adapters.valkey.calls.MAX_ITEMS", 2)
    await load(users, USERS)
    updates = [
        FanOut("c", seq, tuple(USERS), Entry(seq, f"m{seq}", 1000 + seq, False), named=frozenset()) for seq in (1, 2, 3)
    ]
    await users.apply([*updates, FanOut("c", 4, tuple(USERS), None, remove=place(2))])
    for name in USERS:
        view = await users.view(name, ["c"])
        assert view is not None
        assert view.user_rooms[0].ledger is not None
        assert view.user_rooms[0].ledger.count == 2
