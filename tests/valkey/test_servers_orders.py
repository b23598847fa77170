"""Loaders and a live writer race for one user, in every order: Valkey ends where memory does, and both are right."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

import pytest

from readstate.adapters.memory.users import MemoryUsers
from readstate.domain.hot_updates import FanOut, Joined, Left, OwnRead, UserHotUpdate
from readstate.domain.model import NO_PREFERENCES, START, Entry, Generation, Mode, Pointer, Position, ReadState
from readstate.ports import HotUsers, LedgerLoad, LoadedUserRoom, Moved, Read
from tests.contract.conftest import ManualClock, users_over
from tests.contract.valkey import cluster, hot_store, single

ROOM = "room"
NOW = 1_700_000_000_000
AT_ONCE = 40
"""Orders that are gone through at the same time, each with a user of its own."""


def entry(seq: int) -> Entry:
    return Entry(seq, f"m{seq}", NOW + seq, False)


class Stored(NamedTuple):
    """What the durable store says of bob in the room."""

    change: int
    seqs: frozenset[int]
    """Of the messages that stand."""
    pointer: Pointer = Pointer()
    member: bool = True
    known: bool = True
    """Whether it has anything to say."""

    @property
    def unread(self) -> list[int]:
        state = self.pointer
        return sorted(seq for seq in self.seqs if seq > state.seq and seq not in state.apart)

    def user_rooms(self) -> list[LoadedUserRoom]:
        place = (ROOM, self.member, Mode.LEDGER, self.change, not self.unread)
        return [LoadedUserRoom(*place, self.pointer, NO_PREFERENCES, NOW, False)] if self.known else []

    def ledger(self, user: str, state: ReadState) -> LedgerLoad:
        """As it is looked up for a state that a user room has shown."""
        found = [entry(seq) for seq in sorted(self.seqs) if seq > state.seq and seq not in state.apart]
        return LedgerLoad(user, ROOM, state, self.change, found)


class Happening(NamedTuple):
    """A change of the room: how the store stands before and after it, and what the hot state is told."""

    before: Stored
    after: Stored
    steps: Callable[[str], list[UserHotUpdate]]


def seqs(*seqs: int) -> frozenset[int]:
    return frozenset(seqs)


READ_3 = Pointer(0, 3, frozenset(), "m3", NOW + 3)
HAPPENINGS = {
    "the first message": Happening(
        Stored(5, seqs()),
        Stored(6, seqs(1)),
        lambda user: [FanOut(ROOM, 6, (user,), entry(1), sender="alice", latest_at=NOW)],
    ),
    "a message": Happening(
        Stored(5, seqs(1)),
        Stored(6, seqs(1, 2)),
        lambda user: [FanOut(ROOM, 6, (user,), entry(2), sender="alice", latest_at=NOW)],
    ),
    "a delete": Happening(
        Stored(5, seqs(1, 2)),
        Stored(6, seqs(2)),
        lambda user: [FanOut(ROOM, 6, (user,), remove=Position(1, "m1", NOW + 1), latest_at=NOW)],
    ),
    "leaving": Happening(
        Stored(5, seqs(1, 2)), Stored(6, seqs(1, 2), member=False), lambda user: [Left(ROOM, 6, (user,))]
    ),
    "joining": Happening(
        Stored(5, seqs(1, 2), known=False),
        Stored(6, seqs(1, 2)),
        lambda user: [Joined(ROOM, 6, Mode.LEDGER, 2, NOW, False, ((user, Pointer()),))],
    ),
    "an own message": Happening(
        Stored(5, seqs(1, 2)),
        Stored(6, seqs(1, 2, 3), READ_3),
        lambda user: [
            FanOut(ROOM, 6, (user,), entry(3), sender=user, latest_at=NOW),
            OwnRead(ROOM, user, 3, READ_3),
        ],
    ),
}


def orders(*sequences: str) -> Iterator[tuple[str, ...]]:
    """All ways in which these sequences can come between each other; each keeps its own order."""
    labels = [label for sequence in sequences for label in [sequence[0]] * len(sequence.split())]
    steps = {sequence[0]: sequence.split() for sequence in sequences}
    for order in sorted(set(itertools.permutations(labels))):
        left = {label: iter(words) for label, words in steps.items()}
        yield tuple(next(left[label]) for label in order)


async def as_loaded(users: HotUsers, user: str, stored: Stored) -> list[int] | None:
    """What is unread once all is loaded that is missing; None for somebody who is no member."""
    while (view := await users.view(user, [ROOM])) is None:
        assert await users.install(user, await users.begin(user), stored.user_rooms())
    if not view.user_rooms or not view.user_rooms[0].member:
        return None
    if view.user_rooms[0].ledger is None:
        assert await users.install_ledgers([stored.ledger(user, view.user_rooms[0].pointer.state)]) == [True]
        view = await users.view(user, [ROOM])
        assert view is not None
    ledger = view.user_rooms[0].ledger
    assert ledger is not None
    return [ledger.count, 0 if ledger.first is None else int((ledger.first.id or "m0")[1:])]


def expected(stored: Stored) -> list[int] | None:
    if not stored.member:
        return None
    return [len(stored.unread), stored.unread[0] if stored.unread else 0]


def merged(one: Pointer, other: Pointer) -> Pointer:
    """What the store makes of two pointers of one epoch."""
    ahead = max(one, other, key=lambda pointer: pointer.seq)
    apart = frozenset(seq for seq in one.apart | other.apart if seq > ahead.seq)
    return Pointer(0, ahead.seq, apart, ahead.id, ahead.at)


class Race:
    """One order, gone through step by step."""

    def __init__(self, users: HotUsers, user: str, happening: Happening) -> None:
        self.users = users
        self.user = user
        self.happening = happening
        self.stored = happening.before
        self.tickets: dict[str, int] = {}
        self.loads: dict[str, list[LoadedUserRoom]] = {}
        self.ledgers: dict[str, LedgerLoad] = {}
        self.moved: Moved | None = None
        self.answers: list[object] = []

    async def go(self, order: Sequence[str]) -> tuple[list[object], list[int] | None]:
        """What was answered on the way, and what is unread in the end."""
        for word in order:
            who, _, what = word.partition(".")
            step: Callable[[str], Awaitable[object]] = getattr(self, what)
            self.answers.append(await step(who))
        return self.answers, await as_loaded(self.users, self.user, self.stored)

    # ------------------------------------------------------------ a loader

    async def begin(self, who: str) -> None:
        self.tickets[who] = await self.users.begin(self.user)

    async def look_up(self, who: str) -> None:
        self.loads[who] = self.stored.user_rooms()

    async def install(self, who: str) -> bool:
        return await self.users.install(self.user, self.tickets[who], self.loads[who])

    # ------------------------------------------------------------ a loader of the ledger

    async def look_up_ledger(self, who: str) -> None:
        view = await self.users.view(self.user, [ROOM])
        state = ReadState() if view is None or not view.user_rooms else view.user_rooms[0].pointer.state
        self.ledgers[who] = self.stored.ledger(self.user, state)

    async def install_ledger(self, who: str) -> list[bool]:
        return await self.users.install_ledgers([self.ledgers[who]])

    # ------------------------------------------------------------ the writer, and the user

    async def commit(self, who: str) -> None:
        after = self.happening.after
        self.stored = after._replace(pointer=merged(self.stored.pointer, after.pointer))

    async def tell(self, who: str) -> list[ReadState]:
        return [moved.pointer.state for moved in await self.users.apply(self.happening.steps(self.user))]

    async def read(self, who: str) -> object:
        """The first message, alone."""
        [found] = await self.users.move([Read(self.user, ROOM, START, (1,), ids=("m1",))])
        self.moved = found if isinstance(found, Moved) else None
        return None if self.moved is None else self.moved.pointer.state

    async def store(self, who: str) -> None:
        if self.moved is not None:
            self.stored = self.stored._replace(pointer=merged(self.stored.pointer, self.moved.pointer))

    async def fail(self, who: str) -> None:
        """The store has refused the read."""
        await self.users.forget(self.user)


@pytest.fixture
async def users() -> AsyncIterator[HotUsers]:
    async with hot_store(single) as store:
        yield users_over(store, ManualClock())


@pytest.fixture
async def users_of_cluster() -> AsyncIterator[HotUsers]:
    async with hot_store(cluster) as store:
        yield users_over(store, ManualClock())


async def go_through(users: HotUsers, happening: Happening, some: Sequence[tuple[str, ...]], loaded: bool) -> None:
    """Every order over Valkey and in memory."""

    async def one(number: int, order: tuple[str, ...]) -> None:
        user = f"bob {number}"
        memory = MemoryUsers(unread_cap=5, generation=Generation(1), clock=ManualClock(), ledger_ttl=60)
        found = []
        for adapter in (memory, users):
            if loaded:
                ticket = await adapter.begin(user)
                assert await adapter.install(user, ticket, happening.before.user_rooms())
            race = Race(adapter, user, happening)
            found.append(await race.go(order))
            assert found[-1][1] == expected(race.stored), f"{order}: {found[-1]}, expected {expected(race.stored)}"
        assert found[1] == found[0], order

    for start in range(0, len(some), AT_ONCE):
        async with asyncio.TaskGroup() as tasks:
            for n, order in enumerate(some[start : start + AT_ONCE], start):
                tasks.create_task(one(n, order))


LOADERS_AND_WRITER = list(orders("1.begin 1.look_up 1.install", "2.begin 2.look_up 2.install", "w.commit w.tell"))


@pytest.mark.parametrize("name", HAPPENINGS)
async def test_two_loaders_and_a_writer(users: HotUsers, name: str) -> None:
    """Every order with a message; some of them, always the same, with everything else."""
    assert len(LOADERS_AND_WRITER) == 560
    some = LOADERS_AND_WRITER if name == "a message" else random.Random(name).sample(LOADERS_AND_WRITER, 100)
    await go_through(users, HAPPENINGS[name], some, loaded=False)


@pytest.mark.parametrize("name", HAPPENINGS)
async def test_two_loaders_and_a_writer_over_a_cluster(users_of_cluster: HotUsers, name: str) -> None:
    some = random.Random(name).sample(LOADERS_AND_WRITER, 20)
    await go_through(users_of_cluster, HAPPENINGS[name], some, loaded=False)


@pytest.mark.parametrize("name", ["a message", "a delete", "leaving", "an own message"])
async def test_two_loaders_of_a_ledger_a_writer_and_a_read(users: HotUsers, name: str) -> None:
    every = list(
        orders(
            "1.look_up_ledger 1.install_ledger",
            "2.look_up_ledger 2.install_ledger",
            "w.commit w.tell",
            "u.read u.store",
        )
    )
    assert len(every) == 2520
    await go_through(users, HAPPENINGS[name], random.Random(name).sample(every, 100), loaded=True)


@pytest.mark.parametrize("name", ["a message", "a delete"])
async def test_a_loader_of_a_ledger_a_loader_of_the_user_a_writer_and_a_read_that_fails(
    users: HotUsers, name: str
) -> None:
    every = list(
        orders("1.look_up_ledger 1.install_ledger", "2.begin 2.look_up 2.install", "w.commit w.tell", "u.read u.fail")
    )
    await go_through(users, HAPPENINGS[name], random.Random(name).sample(every, 100), loaded=True)
