"""Channels and badges in real Valkey servers: what is lost is loaded again, and nobody ever sees anything older."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from readstate.adapters.memory.users import MemoryUsers
from readstate.adapters.sql.sqlite.store import SqliteStore
from readstate.adapters.valkey import slot_of
from readstate.adapters.valkey.channel_values import decode_channel, encode_channel
from readstate.adapters.valkey.channels import ValkeyChannels
from readstate.adapters.valkey.keys import shard_of
from readstate.domain.errors import HotStoreUnavailable
from readstate.domain.events import AnyChannelEvent, ChannelEvent, DeleteEvent, Delivery, MembersEvent, MessageEvent
from readstate.domain.hot_updates import ChannelHotUpdate
from readstate.domain.model import (
    ChangeNumber,
    Channel,
    Entry,
    Generation,
    Latest,
    LogPosition,
    Mode,
    Position,
    ReadState,
    Undelivered,
)
from readstate.ports import Count, CountQuery, TimelineLoad
from readstate.services.loading import Loader
from readstate.stack import Valkey, ValkeyCluster
from readstate.timings import SqlTimings
from tests.conftest import Clock
from tests.contract.conftest import badges_over, channels_over
from tests.contract.test_hot_badges import begin
from tests.contract.valkey import PATIENT, HotStore, ask_all, cluster, hot_store, single
from tests.online import nobody

CAP = 5
TTL = 60
NOW = 1_700_000_000_000
ODD_IDS = ["a", "{a}", "{a", "a}", "}{", "{}", "a:b", ":", "::", "{a}:b", "%7Ba%7D", "ä", "张三", "👍", "A", "{1}", "1"]


@pytest.fixture(params=[single, cluster])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[HotStore]:
    server: Callable[[], Valkey | ValkeyCluster] = request.param
    async with hot_store(server) as one:
        yield one


def big(change: int, name: str = "c", **more: Any) -> Channel:
    return Channel(
        name, mode=Mode.TIMELINE, change=ChangeNumber(change), position=LogPosition(change), last_seq=change, **more
    )


def entry(seq: int, everyone: bool = False) -> Entry:
    return Entry(seq, f"m:{seq}", NOW + seq, everyone)


def step(seq: int, name: str = "c") -> ChannelHotUpdate:
    return ChannelHotUpdate(big(seq, name), seq, entry(seq))


async def loaded(channels: ValkeyChannels, *seqs: int, name: str = "c") -> None:
    await channels.install([big(max(seqs, default=0), name)])
    assert await channels.install_timeline(TimelineLoad(name, max(seqs, default=0), [entry(s) for s in seqs], 0))


async def count(channels: ValkeyChannels, name: str = "c", seq: int = 0) -> int | None:
    [found] = await channels.count([CountQuery("bob", name, ReadState(0, seq))])
    return None if found is None else found.count


# ---------------------------------------------------------------- keys and values


async def test_ids_of_any_kind_are_told_apart_and_all_keys_of_a_channel_are_in_one_slot(store: HotStore) -> None:
    channels, badges = channels_over(store, Clock()), badges_over(store, Clock())
    for number, name in enumerate(ODD_IDS):
        await loaded(channels, *range(1, 2 + number % CAP), name=name)
        assert await badges.install(name, await begin(badges, name), 0, frozenset(ODD_IDS[:number]))

    assert [one and one.channel_id for one in await channels.channels(ODD_IDS)] == ODD_IDS
    assert [await count(channels, name) for name in ODD_IDS] == [1 + number % CAP for number in range(len(ODD_IDS))]
    assert [await badges.count(name) for name in ODD_IDS] == list(range(len(ODD_IDS)))
    for key in await keys_of(store):
        if name := key.partition("}:")[2]:
            assert slot_of(key) == slot_of(f"{store.prefix}channel-latest:{{{shard_of(name)}}}")


async def keys_of(store: HotStore) -> list[str]:
    found = await ask_all(store.outsider, "KEYS", f"{store.prefix}*")
    return [key.decode() for keys in found for key in keys]


def test_the_shard_of_a_channel_is_the_same_for_ever() -> None:
    assert [shard_of(name) for name in ("c", "general", "张三", "{a}:b")] == [879, 586, 202, 939]


def test_a_channel_that_a_newer_version_has_written_can_be_read() -> None:
    channel = big(7, latest=Latest("m7", 6, 5, "alice", "hello"), peers=("alice", "bob"))
    value = encode_channel(channel)
    head, array, rest = value[:9], value[9], value[10:]
    assert decode_channel("c", head + bytes([array + 2]) + rest + b"\xc0\x2a") == channel


# ---------------------------------------------------------------- loss


async def test_an_emptied_server_has_nothing_loaded_and_takes_everything_again(store: HotStore) -> None:
    channels, badges = channels_over(store, Clock()), badges_over(store, Clock())
    await loaded(channels, 1, 2)
    await badges.install("bob", await begin(badges, "bob"), 0, frozenset({"alice"}))
    generation = await channels.generation()

    await store.empty()

    assert await channels.channels(["c"]) == [None]
    assert await count(channels) is None
    assert await badges.count("bob") is None
    assert await channels.generation() != generation
    await loaded(channels, 1, 2)
    assert await count(channels) == 2


async def test_what_an_older_generation_has_left_counts_as_not_loaded(store: HotStore) -> None:
    channels, badges = channels_over(store, Clock()), badges_over(store, Clock())
    await loaded(channels, 1, 2)
    await badges.install("bob", await begin(badges, "bob"), 0, frozenset({"alice"}))
    ticket = await begin(badges, "carol")

    store.generation.distrust()

    assert await channels.channels(["c"]) == [None]
    assert await count(channels) is None
    assert await badges.count("bob") is None
    assert not await badges.install("carol", ticket, 0, frozenset())
    await channels.apply([step(3)])
    assert await channels.channels(["c"]) == [big(3)]
    assert await count(channels) is None


@pytest.mark.parametrize("family", ["timeline", "everyone", "timeline-state"])
async def test_a_timeline_of_which_a_part_is_gone_counts_as_not_loaded(store: HotStore, family: str) -> None:
    channels = channels_over(store, Clock())
    await channels.install([big(2)])
    assert await channels.install_timeline(TimelineLoad("c", 2, [entry(1, True), entry(2)], 0))
    await lose(store, f"{family}:{{{shard_of('c')}}}:c")

    assert await count(channels) is None
    await channels.apply([step(3)])
    assert await count(channels) is None
    assert await channels.install_timeline(TimelineLoad("c", 3, [entry(1), entry(2), entry(3)], 0))
    assert await count(channels) == 3


@pytest.mark.parametrize("family", ["badge", "senders"])
async def test_a_badge_of_which_a_part_is_gone_counts_as_not_loaded(store: HotStore, family: str) -> None:
    badges = badges_over(store, Clock())
    await badges.install("bob", await begin(badges, "bob"), 0, frozenset({"alice"}))
    await lose(store, f"{family}:{{bob}}")
    assert await badges.count("bob") is None
    assert await badges.install("bob", await begin(badges, "bob"), 0, frozenset({"alice", "carol"}))
    assert await badges.count("bob") == 2


async def lose(store: HotStore, key: str) -> None:
    await store.outsider.masters()
    assert await store.outsider.owner(slot_of(store.prefix + key)).delete(store.prefix + key) == 1


async def test_a_load_from_before_the_store_was_emptied_is_refused(store: HotStore) -> None:
    channels = channels_over(store, Clock())
    before = await channels.generation()
    await channels.apply([step(6)])
    await store.empty()
    assert not await channels.install([big(5)], before)
    assert await channels.channels(["c"]) == [None]
    assert not await channels.install_timeline(TimelineLoad("c", 5, [entry(5)], 0))


async def test_a_badge_whose_load_began_before_the_store_was_emptied_is_refused(store: HotStore) -> None:
    badges = badges_over(store, Clock())
    ticket = await begin(badges, "bob")
    await badges.add([Undelivered("bob", 1, "alice", "c", "m")])
    await store.empty()
    again = await begin(badges, "bob")
    assert not await badges.install("bob", ticket, 0, frozenset())
    assert not await badges.install("bob", again, 0, frozenset())  # a wrong ticket ends the load that is under way
    assert await badges.install("bob", await begin(badges, "bob"), 0, frozenset({"alice"}))


async def test_a_store_that_is_emptied_while_a_load_is_installed_takes_nothing_of_it(
    store: HotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = channels_over(store, Clock())
    before, look = await channels.generation(), store.generation.check
    neighbour = "c503"
    assert shard_of(neighbour) == shard_of("c")

    async def look_and_lose(slots: Collection[int]) -> int:
        number = await look(slots)
        await channels.apply([step(6)])
        await store.empty()
        await channels.apply([step(1, neighbour)])
        return number

    monkeypatch.setattr(store.generation, "check", look_and_lose)
    assert not await channels.install([big(5)], before)
    assert await channels.channels(["c", neighbour]) == [None, big(1, neighbour)]


async def test_a_step_that_did_not_arrive_makes_everything_be_loaded_again(tmp_path: Path) -> None:
    valkey = Valkey(tmp_path / "valkey", persistent=False)
    with valkey:
        async with hot_store(lambda: valkey) as store:
            channels, badges = channels_over(store, Clock()), badges_over(store, Clock())
            await loaded(channels, 1, 2)
            await badges.install("bob", await begin(badges, "bob"), 0, frozenset({"alice"}))
            valkey.pause()
            try:
                with pytest.MonkeyPatch.context() as impatient:
                    for one in (store.client, store.generation):
                        impatient.setattr(one, "_timings", replace(PATIENT, patience=0.2))
                    with pytest.raises(HotStoreUnavailable):
                        await channels.apply([step(3)])
            finally:
                valkey.resume()

            assert await channels.channels(["c"]) == [None]
            assert await count(channels) is None
            assert await badges.count("bob") is None
            assert await channels.positions() == (0,)


# ---------------------------------------------------------------- time


async def test_what_nobody_uses_is_gone_after_its_time(store: HotStore) -> None:
    clock = Clock()
    channels, badges = channels_over(store, clock), badges_over(store, clock)
    await loaded(channels, 1)
    await badges.install("bob", await begin(badges, "bob"), 0, frozenset({"alice"}))
    for _ in range(3):
        clock.advance(seconds=TTL - 1)
        assert await count(channels) == 1
        assert await badges.count("bob") == 1

    clock.advance(seconds=TTL)
    assert await count(channels) is None
    assert await badges.count("bob") is None
    await channels.apply([step(2)])
    assert await count(channels) is None


async def test_whatever_happens_in_a_channel_is_a_use(store: HotStore) -> None:
    clock = Clock()
    channels = channels_over(store, clock)
    await loaded(channels, 1)
    clock.advance(seconds=TTL - 1)
    await channels.apply([step(2)])
    clock.advance(seconds=TTL - 1)
    assert await count(channels) == 2


async def test_the_server_frees_what_nobody_uses(store: HotStore) -> None:
    channels, badges = channels_over(store, Clock()), badges_over(store, Clock())
    await loaded(channels)
    await channels.apply([ChannelHotUpdate(big(1), 1, entry(1, True))])
    await badges.install("bob", await begin(badges, "bob"), 0, frozenset({"alice"}))
    staying = ("generation:", "channel-latest:")
    mortal = [key for key in await keys_of(store) if not key.removeprefix(store.prefix).startswith(staying)]
    assert len(mortal) == 5
    for key in mortal:
        assert TTL * 1000 < await store.outsider.owner(slot_of(key)).pttl(key) < 3 * TTL * 1000, key


# ---------------------------------------------------------------- a timeline at its cap


async def test_a_long_timeline_is_loaded_in_parts_and_lets_its_oldest_go(store: HotStore) -> None:
    cap = 12_000
    channels = channels_over(store, Clock(), cap)
    await channels.install([big(cap)])
    entries = [entry(seq, seq % 1000 == 0) for seq in range(1, cap + 1)]
    assert await channels.install_timeline(TimelineLoad("c", cap, entries, 0))
    await channels.apply([step(cap + seq) for seq in range(1, 1_001)])

    states = [ReadState(), ReadState(0, 999), ReadState(0, 1_000), ReadState(0, 1_000, frozenset(range(1_001, 11_001)))]
    counts = await channels.count([CountQuery("bob", "c", state) for state in states])
    assert counts == [
        Count(cap, 11, Position(1_001, "m:1001", NOW + 1_001), True),
        Count(cap, 11, Position(1_001, "m:1001", NOW + 1_001), True),
        Count(cap, 11, Position(1_001, "m:1001", NOW + 1_001), False),
        Count(2_000, 1, Position(11_001, "m:11001", NOW + 11_001), False),
    ]
    assert not [key for key in await keys_of(store) if "staged" in key]


# ---------------------------------------------------------------- two loaders and a writer


async def test_two_loaders_and_a_writer_race_for_one_timeline(store: HotStore, tmp_path: Path) -> None:
    durable = await SqliteStore.open(tmp_path / "store.db", 2, SqlTimings())
    try:
        await Race(store, durable).run()
    finally:
        await durable.close()


class Race:
    """One writes, deletes and drops; two count all the time. Every count is one that was right while it was made."""

    MESSAGES = 120

    def __init__(self, store: HotStore, durable: SqliteStore) -> None:
        self.durable = durable
        self.store = store
        self.channels = channels_over(store, Clock(), 10_000)
        self.position = 0
        self.written = self.applied = 0
        self.is_over = False

    async def run(self) -> None:
        await self.apply(ChannelEvent(channel_id="c", created_at=NOW, type="channel"))
        await self.apply(MembersEvent(channel_id="c", created_at=NOW, add=("alice", "bob", "carol"), history="unread"))
        async with asyncio.TaskGroup() as tasks:
            counters = [tasks.create_task(self.keep_counting()) for _ in range(2)]
            tasks.create_task(self.write())
        assert min(counter.result() for counter in counters) > 0
        assert await self.count(self.loader()) == self.MESSAGES

    async def write(self) -> None:
        for number in range(self.MESSAGES):
            message = MessageEvent(channel_id="c", created_at=NOW, id=f"m{number}", sender_id="alice", text="", at=NOW)
            spurious = MessageEvent(channel_id="c", created_at=NOW, id=f"x{number}", sender_id="alice", text="", at=NOW)
            await self.apply(spurious, DeleteEvent(channel_id="c", created_at=NOW, id=f"x{number}"), message)
            if number % 7 == 0:
                await self.channels.forget("c")
            if number % 25 == 0:
                await self.store.empty()
        self.is_over = True

    async def apply(self, *events: AnyChannelEvent) -> None:
        deliveries = [Delivery(event, self.position + place) for place, event in enumerate(events, 1)]
        self.position += len(events)
        self.written += sum(isinstance(event, MessageEvent) and event.id.startswith("m") for event in events)
        effects = await self.durable.apply(deliveries, online=nobody)
        await self.channels.apply([step for effect in effects for step in effect.channel_updates])
        self.applied = self.written

    async def keep_counting(self) -> int:
        loader, counts = self.loader(), 0
        while not self.is_over:
            least = self.applied
            found = await self.count(loader)
            assert least <= found <= self.written
            counts += 1
        return counts

    def loader(self) -> Loader:
        async def nothing(_: int) -> None: ...

        users = MemoryUsers(unread_cap=10_000, generation=Generation(1), clock=Clock(), ledger_ttl=TTL)
        return Loader(users, self.channels, self.durable, 10_000, nothing)

    @staticmethod
    async def count(loader: Loader) -> int:
        return (await loader.counts([CountQuery("bob", "c", ReadState())]))[0].count
