"""Channels and badges in a real Valkey against the memory of a process: whatever happens, they say the same."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from readstate.adapters.memory.badges import MemoryBadges
from readstate.adapters.memory.channels import MemoryChannels
from readstate.adapters.valkey import Call, Function, ValkeyClient
from readstate.adapters.valkey.badges import ValkeyBadges
from readstate.adapters.valkey.channels import ValkeyChannels
from readstate.adapters.valkey.client import Answers
from readstate.domain.hot_updates import ChannelHotUpdate
from readstate.domain.model import (
    ChangeNumber,
    Channel,
    Entry,
    Generation,
    Latest,
    LogPosition,
    Mode,
    ReadState,
    Undelivered,
)
from readstate.ports import CountQuery, HotBadges, HotChannels, TimelineLoad
from tests.conftest import Clock
from tests.contract.conftest import badges_over, channels_over
from tests.contract.valkey import PATIENT, HotStore, hot_store, single
from tests.effort import examples

CAP = 3
NAMES = ["c", "d", "ledger"]
USERS = ["bob", "{bob}"]
NOW = 1_700_000_000_000

seqs = some.integers(1, 9)
changes = some.integers(0, 12)
names = some.sampled_from(NAMES)
users = some.sampled_from(USERS)
several = some.frozensets(seqs, max_size=6)


class Twice(ValkeyClient):
    """Sends everything twice, as if the first answer was lost."""

    async def run(self, function: Function, calls: Sequence[Call], generation: Generation | None = None) -> Answers:
        answers = await super().run(function, calls, generation)
        await super().run(function, calls, generation)
        return answers


def channel(name: str, change: int, deleted: bool = False) -> Channel:
    mode = Mode.LEDGER if name == "ledger" else Mode.TIMELINE
    latest = Latest(f"m{change}", change, NOW + change, "alice", None) if change % 3 else None
    return Channel(
        name,
        mode=mode,
        change=ChangeNumber(change),
        position=LogPosition(change),
        last_seq=change,
        latest=latest,
        deleted=deleted,
    )


def entry(seq: int, everyone: bool) -> Entry:
    return Entry(seq, f"m{seq}", NOW + seq, everyone)


# ---------------------------------------------------------------- channels


class Apply(NamedTuple):
    steps: list[tuple[str, int, str, int, bool]]

    async def to(self, channels: HotChannels) -> None:
        await channels.apply([self.step(*step) for step in self.steps])

    @staticmethod
    def step(name: str, change: int, kind: str, seq: int, everyone: bool) -> ChannelHotUpdate:
        put = entry(seq, everyone) if kind == "put" else None
        stands = channel(name, change, deleted=kind == "delete")
        return ChannelHotUpdate(stands, change, put, seq if kind == "remove" else 0)


class Install(NamedTuple):
    name: str
    change: int

    async def to(self, channels: HotChannels) -> None:
        await channels.install([channel(self.name, self.change)])


class InstallTimeline(NamedTuple):
    name: str
    change: int
    seqs: frozenset[int]
    everyone: frozenset[int]
    floor: int

    async def to(self, channels: HotChannels) -> bool:
        entries = [entry(seq, seq in self.everyone) for seq in sorted(self.seqs) if seq > self.floor]
        return await channels.install_timeline(TimelineLoad(self.name, self.change, entries, self.floor))


class Forget(NamedTuple):
    name: str

    async def to(self, channels: HotChannels) -> None:
        await channels.forget(self.name)


class Ask(NamedTuple):
    name: str
    seq: int
    apart: frozenset[int]
    named: frozenset[int]

    async def to(self, channels: HotChannels) -> Any:
        state = ReadState(0, self.seq, frozenset(seq for seq in self.apart if seq > self.seq))
        query = CountQuery("bob", self.name, state, tuple(self.named))
        return await channels.count([query, CountQuery("carol", self.name, ReadState()), query])


steps = some.tuples(
    names, changes, some.sampled_from(["put", "put", "put", "remove", "note", "delete"]), seqs, some.booleans()
)
happenings = some.one_of(
    some.builds(Apply, some.lists(steps, max_size=6)),
    some.builds(Install, names, changes),
    some.builds(InstallTimeline, names, changes, several, several, some.integers(0, 4)),
    some.builds(Ask, names, some.integers(0, 9), several, several),
    some.builds(Forget, names),
)


@pytest.mark.parametrize("twice", [False, True], ids=["once", "every call repeated"])
@settings(max_examples=examples(20))
@given(some.lists(happenings, min_size=5, max_size=40))
def test_channels_say_the_same_as_memory(twice: bool, story: list[Any]) -> None:
    async def run(store: HotStore) -> None:
        hot: ValkeyChannels = channels_over(store, Clock(), CAP)
        plain = MemoryChannels(unread_cap=CAP, clock=Clock())
        for change, name in enumerate(NAMES):  # something to begin with
            for one in (hot, plain):
                await one.install([channel(name, change)])
                await one.install_timeline(TimelineLoad(name, change, [], 0))
        for happening in story:
            assert await happening.to(hot) == await happening.to(plain), happening
            assert await hot.channels(NAMES) == await plain.channels(NAMES), happening
            everything = [CountQuery("bob", name, ReadState()) for name in NAMES]
            assert await hot.count(everything) == await plain.count(everything), happening
        assert await hot.positions() == await plain.positions()

    over_valkey(run, twice)


def over_valkey(run: Callable[[HotStore], Awaitable[None]], twice: bool = False) -> None:
    async def work() -> None:
        async with hot_store(single) as store:
            if not twice:
                return await run(store)
            client = Twice(single().url, PATIENT, store.generation)
            try:
                await run(store._replace(client=client))
            finally:
                await client.close()

    asyncio.run(work())


# ---------------------------------------------------------------- badges


class Hands(NamedTuple):
    """What whoever loads and taps has in hand."""

    tickets: dict[str, int]
    tokens: dict[str, list[int]]


class Add(NamedTuple):
    messages: list[tuple[str, int, str]]

    async def to(self, badges: HotBadges, hands: Hands) -> dict[str, bool]:
        return await badges.add([Undelivered(user, at, sender, "c", "m") for user, at, sender in self.messages])


class Hold(NamedTuple):
    user: str

    async def to(self, badges: HotBadges, hands: Hands) -> None:
        hands.tokens.setdefault(self.user, []).append(await badges.hold(self.user))


class Release(NamedTuple):
    user: str

    async def to(self, badges: HotBadges, hands: Hands) -> None:
        if tokens := hands.tokens.get(self.user):
            await badges.release(self.user, tokens.pop(0))


class Begin(NamedTuple):
    user: str

    async def to(self, badges: HotBadges, hands: Hands) -> bool:
        ticket = await badges.begin(self.user)
        hands.tickets[self.user] = ticket or 0
        return ticket is None


class InstallBadge(NamedTuple):
    user: str
    tap: int
    senders: frozenset[str]

    async def to(self, badges: HotBadges, hands: Hands) -> bool:
        return await badges.install(self.user, hands.tickets.get(self.user, 0), self.tap, self.senders)


class ForgetBadge(NamedTuple):
    user: str

    async def to(self, badges: HotBadges, hands: Hands) -> None:
        await badges.forget(self.user)


senders = some.sampled_from(["alice", "carol", "dave", "张"])
moments = some.integers(0, 9)
on_badges = some.one_of(
    some.builds(Add, some.lists(some.tuples(users, moments, senders), max_size=5)),
    some.builds(Hold, users),
    some.builds(Release, users),
    some.builds(Release, users),
    some.builds(Begin, users),
    some.builds(Begin, users),
    some.builds(InstallBadge, users, moments, some.frozensets(senders)),
    some.builds(InstallBadge, users, moments, some.frozensets(senders)),
    some.builds(ForgetBadge, users),
)


@pytest.mark.parametrize("twice", [False, True], ids=["once", "every call repeated"])
@settings(max_examples=examples(20))
@given(some.lists(on_badges, min_size=5, max_size=40))
def test_badges_say_the_same_as_memory(twice: bool, story: list[Any]) -> None:
    async def run(store: HotStore) -> None:
        hot: ValkeyBadges = badges_over(store, Clock())
        plain = MemoryBadges()
        in_hot, in_plain = Hands({}, {}), Hands({}, {})
        for happening in story:
            answer, expected = await happening.to(hot, in_hot), await happening.to(plain, in_plain)
            # A call that was sent twice can say of the second time only that nothing is new.
            assert answer == expected or (twice and isinstance(happening, Add)), happening
            for user in USERS:
                assert await hot.count(user) == await plain.count(user), happening
            assert await hot.counts(USERS) == await plain.counts(USERS), happening

    over_valkey(run, twice)


# ---------------------------------------------------------------- a store that is emptied at any moment


class Story:
    """One channel as the durable store has it after each change, and how far the hot store was told."""

    def __init__(self, store: HotStore) -> None:
        self.store = store
        self.channels = channels_over(store, Clock(), 100)
        self.history: list[tuple[Channel, list[Entry]]] = [(channel("c", 0), [])]
        self.steps: list[ChannelHotUpdate] = []
        self.told = 0
        self.loads = [self.load(), self.load()]
        self.answers = 0

    async def commit(self) -> None:
        """The durable store takes a message, or every third time the deletion of one."""
        change, entries = len(self.history), self.history[-1][1]
        stands, put, remove = channel("c", change), None, 0
        if change % 3 == 0 and entries:
            remove, entries = entries[0].seq, entries[1:]
        else:
            put = entry(change, everyone=False)
            entries = [*entries, put]
        self.history.append((stands, entries))
        self.steps.append(ChannelHotUpdate(stands, change, put, remove))

    async def tell(self) -> None:
        """The hot store takes what the durable one has taken."""
        if self.told < len(self.steps):
            await self.channels.apply([self.steps[self.told]])
            self.told += 1

    async def lose(self) -> None:
        await self.store.empty()

    async def doubt(self) -> None:
        self.store.generation.distrust()

    async def load(self) -> AsyncGenerator[None, None]:
        """What a loader does. It may stand still at every `yield`, for as long as it takes."""
        while True:
            generation = await self.channels.generation()
            yield
            loaded, _ = self.history[-1]
            yield
            await self.channels.install([loaded], generation)
            yield
            now, entries = self.history[-1]
            yield
            await self.channels.install_timeline(TimelineLoad("c", now.change, entries, 0))

    async def first_loader(self) -> None:
        await anext(self.loads[0])

    async def second_loader(self) -> None:
        await anext(self.loads[1])

    async def check(self) -> None:
        possible = self.history[self.told :]
        [known] = await self.channels.channels(["c"])
        assert known is None or known in [stands for stands, _ in possible]
        [count] = await self.channels.count([CountQuery("bob", "c", ReadState())])
        assert count is None or count.count in [len(entries) for _, entries in possible]
        self.answers += count is not None


moves = [Story.commit, Story.tell, Story.first_loader, Story.second_loader, Story.lose, Story.doubt]
often = [Story.tell, *[Story.first_loader, Story.second_loader] * 3]


@settings(max_examples=examples(25))
@given(some.lists(some.sampled_from(moves + often), min_size=10, max_size=60))
def test_a_store_that_is_emptied_at_any_moment_says_what_is_right_or_nothing(story: list[Any]) -> None:
    async def run(store: HotStore) -> None:
        told = Story(store)
        for move in story:
            await move(told)
            await told.check()
        for load in told.loads:
            await load.aclose()

    over_valkey(run)


def test_a_load_that_nothing_disturbs_is_taken() -> None:
    async def run(store: HotStore) -> None:
        told = Story(store)
        for move in [Story.commit, Story.tell, *[Story.first_loader] * 5]:
            await move(told)
        await told.check()
        assert told.answers == 1
        await told.loads[0].aclose()

    over_valkey(run)
