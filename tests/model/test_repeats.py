"""A writer that dies anywhere, and another one that begins where the offsets stand: nothing is lost or doubled.

The judge is a store that got the same events once, in order, without any death.
"""

import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from readstate.adapters.memory.bus import LocalBus
from readstate.adapters.memory.hot import MemoryHot
from readstate.adapters.memory.log import LocalLog
from readstate.adapters.sql.sqlite.store import SqliteStore
from readstate.adapters.sql.store import SqlStore
from readstate.adapters.valkey import DurableCounter
from readstate.adapters.valkey.hot import ExclusiveHot, HotOptions
from readstate.domain.errors import ReadstateError
from readstate.domain.events import (
    AnyChannelEvent,
    ChannelEvent,
    DeleteEvent,
    Delivery,
    EditEvent,
    MembersEvent,
    MessageEvent,
    ReadEvent,
)
from readstate.domain.facts import Effect
from readstate.domain.model import NO_POSITION, Generation, LogPosition
from readstate.ports import NOTHING_COMPLETE, Hot, Online, Seen
from readstate.profiles.consistency import Exclusive
from readstate.profiles.wiring import Parts, Services
from readstate.services.cursors import Cursors
from readstate.services.freshness import AlwaysFresh
from readstate.services.pending_writes import UnannouncedWrites
from readstate.services.undelivered import LateBadges
from readstate.settings import make_settings
from readstate.timings import SqlTimings, Timings, ValkeyTimings
from readstate.workers.focused_reads import FocusedReads
from readstate.workers.message_writer import MessageWriter
from readstate.workers.on_failure import RetryBatch
from readstate.workers.receipt_persister import ReceiptPersister
from tests.contract import valkey
from tests.contract.postgres import postgres
from tests.online import nobody

FANOUT = 3
USERS = ("ann", "bob", "cat", "dan", "eve")
CHANNELS = ("c0", "c1")
PARTS = len(CHANNELS)
LOG = "a-log"
START = 1_700_000_000_000


class Death(Exception):
    """Of the writer, at a place of the test's choice."""


class Mortal(SqlStore):
    """A store whose caller may die right after the commit."""

    def __init__(self, store: SqlStore, random: Random) -> None:
        self.__dict__.update(store.__dict__)
        self._random = random
        self.deaths = 0

    async def apply(
        self,
        deliveries: Sequence[Delivery],
        online: Online,
        source: str = "",
        complete: Mapping[int, LogPosition] = NOTHING_COMPLETE,
    ) -> list[Effect]:
        effects = await super().apply(deliveries, online, source, complete)
        if not self.deaths or self._random.random() < 0.4:
            self.deaths += 1
            raise Death
        return effects


class World:
    """A service over a store and hot state, and its writer."""

    def __init__(self, durable: SqlStore, hot: Hot, clock: Callable[[], int]) -> None:
        self.durable = durable
        self.hot = hot
        self.persister = ReceiptPersister(durable)
        self.services = Services()
        bus = LocalBus()

        async def note_away(effects: Sequence[Effect]) -> None:
            await hot.badges.add([one for effect in effects for one in effect.undelivered])

        async def read_in_focus(places: Sequence[Seen]) -> None:
            await self.services.focus.read(places)

        writing = UnannouncedWrites()
        self.writer = MessageWriter(
            durable,
            hot,
            bus,
            note_away,
            FocusedReads(hot.users, hot.presence, read_in_focus),
            RetryBatch(LateBadges(durable, hot.badges, bus), self._log_reads, clock),
            writing,
            "w",
        )
        log = LocalLog(NO_POSITION, self.writer.handle, self._log_reads)
        cursors = Cursors(b"a key", 1)
        parts = Parts(
            log,
            hot,
            durable,
            bus,
            AlwaysFresh(),
            writing,
            1,
            cursors,
            "w",
            consistency=Exclusive(),
            timings=Timings(),
        )
        self.services.assemble(make_settings(fanout_max_members=FANOUT), clock, parts)

    async def _log_reads(self, events: Sequence[ReadEvent]) -> None:
        await self.persister.handle(events)


def clock_from(start: int) -> Callable[[], int]:
    ticks = itertools.count(start)
    return lambda: next(ticks)


@asynccontextmanager
async def in_memory(directory: Path, clock: Callable[[], int]) -> AsyncIterator[tuple[SqlStore, Hot]]:
    store = await SqliteStore.open(directory / "store.db", FANOUT, SqlTimings())
    hot = MemoryHot(
        unread_cap=50, generation=Generation(1), position=NO_POSITION, clock=clock, ledger_ttl=10**6, max_bytes=10**9
    )
    yield store, hot
    await store.close()


@asynccontextmanager
async def on_servers(directory: Path, clock: Callable[[], int]) -> AsyncIterator[tuple[SqlStore, Hot]]:
    async with postgres(FANOUT) as store, valkey.hot_store(valkey.single) as servers:
        options = HotOptions(
            url=valkey.single().url, prefix=f"{servers.prefix}repeats:", unread_cap=50, ledger_ttl=10**6
        )
        counter = DurableCounter(await store.store_id(), store)
        hot = ExclusiveHot(options, counter, clock, ValkeyTimings(), position=NO_POSITION)
        yield store, hot
        await hot.close()


def made_up(random: Random, count: int) -> list[AnyChannelEvent]:
    """Events of channels, as producers would bring them."""
    times = itertools.count(START)
    ids = itertools.count(1)
    events: list[AnyChannelEvent] = []
    for channel in CHANNELS:
        events.append(ChannelEvent(channel_id=channel, created_at=next(times), type="group"))
        events.append(MembersEvent(channel_id=channel, created_at=next(times), add=("ann", "bob")))
    said: dict[str, list[str]] = {channel: [] for channel in CHANNELS}

    def say(channel: str, at: int) -> AnyChannelEvent:
        roots = said[channel]
        thread = random.choice(roots) if roots and random.random() < 0.3 else None
        id_ = f"m{next(ids)}"
        if thread is None:
            roots.append(id_)
        mentions = tuple(random.sample((*USERS, "@channel"), random.choice((0, 0, 1))))
        return MessageEvent(
            channel_id=channel,
            created_at=at,
            at=at,
            id=id_,
            sender_id=random.choice(USERS),
            thread_id=thread,
            also_to_channel=thread is not None and random.random() < 0.4,
            mentions=mentions,
            silent=random.random() < 0.1,
        )

    def other(channel: str, at: int) -> AnyChannelEvent:
        known = random.choice(said[channel] or ["m0"])
        some = tuple(random.sample(USERS, random.randint(1, 3)))
        return random.choice(
            (
                DeleteEvent(channel_id=channel, created_at=at, id=known),
                EditEvent(channel_id=channel, created_at=at, id=known, mentions=some[:1]),
                MembersEvent(channel_id=channel, created_at=at, add=some, history=random.choice(("read", "unread", 1))),
                MembersEvent(channel_id=channel, created_at=at, remove=some[:1]),
                ChannelEvent(channel_id=channel, created_at=at, name=f"n{at}"),
                ChannelEvent(channel_id=channel, created_at=at, action="delete" if random.random() < 0.2 else "put"),
            )
        )

    for _ in range(count):
        channel = random.choice(CHANNELS)
        events.append((say if random.random() < 0.6 else other)(channel, next(times)))
    return events


def as_log(events: Sequence[AnyChannelEvent]) -> list[Delivery]:
    ends = [0] * PARTS
    deliveries = []
    for event in events:
        part = CHANNELS.index(event.channel_id)
        deliveries.append(Delivery(event, ends[part], part))
        ends[part] += 1
    return deliveries


async def rows(store: SqlStore) -> dict[Any, Any]:
    """All that was decided, but for what depends on when pointers came to the store."""
    found: dict[Any, Any] = {}
    for channel in CHANNELS:
        known = (await store.load_channels([channel])).get(channel)
        found[channel] = known and (known.last_seq, known.change, known.member_count, known.mode, known.latest)
        found[channel, "members"] = [(one.user_id, one.active) for one in await store.members(channel, "", 100)]
        messages = await store.messages_since(channel, NO_POSITION, 1_000)
        found[channel, "messages"] = [(one.id, one.seq, one.thread_seq, one.deleted, one.mentions) for one in messages]
    for user in USERS:
        for user_room in await store.load_user(user):
            found[user, user_room.channel_id] = (
                user_room.member,
                user_room.pointer.seq,
                sorted(user_room.pointer.apart),
            )
        found[user, "badge"] = await store.badge_count(user)
    return found


async def look(world: World, random: Random) -> None:
    """Somebody asks: then their state is hot from now on."""
    user, channel = random.choice(USERS), random.choice(CHANNELS)
    try:
        await world.services.unread.of_channel(user, channel)
        await world.services.threads.panel(user)
    except ReadstateError:
        pass


async def check(world: World) -> None:
    """What is hot is what a fresh look at the store gives."""
    for user in USERS:
        for channel in CHANNELS:
            try:
                why = await world.services.explain.explain(user, channel)
            except ReadstateError:
                continue
            assert (why.hot, why.agrees) == (why.durable, True), (user, channel, why)
        hot = await world.services.threads.panel(user)
        sync = await world.services.unread.sync(user)
        badge = await world.hot.badges.count(user)
        assert badge in {None, await world.durable.badge_count(user)}, user
        await world.hot.users.forget(user)
        assert await world.services.threads.panel(user) == hot
        fresh = await world.services.unread.sync(user)
        assert (fresh.totals, fresh.threads, fresh.channels) == (sync.totals, sync.threads, sync.channels)


async def run(world: World, log: Sequence[Delivery], random: Random) -> None:
    """A writer after another, each from the offsets that were committed."""
    done = 0
    while done < len(log):
        batch = log[done : done + random.randint(1, 8)]
        try:
            await look(world, random)
            await world.writer.handle(batch, LOG)
            if random.random() < 0.3:
                raise Death  # before the offsets are committed
            done += len(batch)
        except Death:
            continue


KINDS = {"memory": in_memory, "servers": on_servers}
SHORTLY = [*(("memory", seed) for seed in range(10)), ("servers", 0)]
LONG = [*(("memory", seed) for seed in range(10, 30)), *(("servers", seed) for seed in range(1, 8))]


@pytest.mark.parametrize(("kind", "seed"), [*SHORTLY, *(pytest.param(*one, marks=pytest.mark.long) for one in LONG)])
async def test_whatever_a_dying_writer_leaves_is_brought_to_its_end(kind: str, seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    log = as_log(made_up(random, 60))
    async with AsyncExitStack() as stack:
        straight = await SqliteStore.open(tmp_path / "straight.db", FANOUT, SqlTimings())
        stack.push_async_callback(straight.close)
        for delivery in log:
            await straight.apply([delivery], nobody, LOG)
        clock = clock_from(START + 10_000)
        store, hot = await stack.enter_async_context(KINDS[kind](tmp_path, clock))
        mortal = Mortal(store, random)
        world = World(mortal, hot, clock)

        await run(world, log, random)

        assert await rows(mortal) == await rows(straight)
        await check(world)
