"""A cluster in one process, step by step: instances over a real Valkey, a real write replica and a real PostgreSQL.

The log between them is a list that stands still until it is told to go on. So a test says when a message is written,
when the badges hear of it, who dies in between and what comes again.
"""

import atexit
import functools
import secrets
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

import pytest

from readstate.adapters.memory.bus import LocalBus
from readstate.adapters.memory.presence import MemoryPresence
from readstate.adapters.sql.postgres.store import PostgresStore
from readstate.adapters.valkey import DurableCounter, ValkeyClient
from readstate.adapters.valkey.hot import HotOptions, SharedHot
from readstate.api import NewMessage, PutChannel, PutPreferences, PutPresence, Tap
from readstate.domain.announcements import Announcement, BadgeChanged
from readstate.domain.events import AnyChannelEvent, Delivery, MessageEvent, ReadEvent, UnsentEvent
from readstate.domain.facts import Effect
from readstate.profiles.consistency import Shared
from readstate.profiles.wiring import Parts, Services
from readstate.services.cursors import Cursors
from readstate.services.freshness import AlwaysFresh
from readstate.services.pending_writes import UnannouncedWrites
from readstate.services.undelivered import LateBadges
from readstate.settings import make_settings
from readstate.stack import Valkey
from readstate.timings import Timings, ValkeyTimings
from readstate.workers.focused_reads import FocusedReads
from readstate.workers.message_writer import MessageWriter
from readstate.workers.on_failure import RetryBatch
from readstate.workers.receipt_persister import TopicPersister
from readstate.workers.status_update import StatusUpdate
from tests.conftest import Clock
from tests.contract.postgres import postgres
from tests.contract.valkey import PATIENCE, single
from tests.folder import folder

SOURCE = "the log"
FANOUT = 4
"""Channels with more members are counted by timeline."""
PAGE = 50
"""So many messages are shown at once."""


@functools.cache
def second() -> Valkey:
    """The write replica: started when the first test needs it, gone with the process."""
    valkey = Valkey(folder() / "replica", persistent=False)
    atexit.register(valkey.wipe)
    return valkey.start()


DEFAULT = ValkeyTimings()
PATIENT = ValkeyTimings(replica_answer=PATIENCE, replica_pause=0.0)
"""On a busy machine the replica is waited for, and asked again at once when it has failed."""


class Died(Exception):
    """A worker was killed."""


class StillLog:
    """What is appended stays where it is; what changes a channel's members is applied at once, with all before it."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self.messages: list[Delivery] = []
        self.unsent: list[UnsentEvent] = []

    async def channel_events(self, events: Sequence[AnyChannelEvent], wait: bool = True) -> Sequence[Effect | None]:
        first = len(self.messages)
        self.messages += [Delivery(event, first + place, 0) for place, event in enumerate(events)]
        if all(isinstance(event, MessageEvent) for event in events):
            return [None] * len(events)
        return (await self._cluster.write())[-len(events) :]

    async def reads(self, events: Sequence[ReadEvent]) -> None:
        await self._cluster.persister.handle(events)

    async def settled(self, channels: Collection[str]) -> bool:
        return False


class Cluster:
    """Two instances, and the workers behind the log."""

    def __init__(self, durable: PostgresStore, hots: Sequence[SharedHot], clock: Clock, store_id: int) -> None:
        self.durable = durable
        self.hots = hots
        self.hot = hots[0]
        self.clock = clock
        self.log = StillLog(self)
        self.persister = TopicPersister(durable)
        self.told: list[Announcement] = []
        self.instances = [self._instance(hot, store_id, number) for number, hot in enumerate(hots)]
        self.written = self.updated = 0
        """Up to where the workers have come."""
        self._writer_dies = False
        self.writer = self.another_writer()
        self.status_update = StatusUpdate(self.hot.badges, durable, self._bus())

    def another_writer(self) -> MessageWriter:
        """One that knows nothing of what others have done."""
        hot, bus = self.hot, self._bus()
        return MessageWriter(
            self.durable,
            hot,
            bus,
            self._note_away,
            FocusedReads(hot.users, hot.presence, self.instances[0].focus.read),
            RetryBatch(LateBadges(self.durable, hot.badges, bus), self.log.reads, self.clock),
            UnannouncedWrites(),
            "writer",
        )

    def _instance(self, hot: SharedHot, store_id: int, number: int) -> Services:
        services = Services()
        parts = Parts(
            self.log,
            hot,
            self.durable,
            self._bus(),
            AlwaysFresh(),
            UnannouncedWrites(),
            store_id,
            Cursors(b"a key", store_id),
            f"instance {number}",
            consistency=Shared(),
            timings=Timings(),
        )
        services.assemble(make_settings(fanout_max_members=FANOUT, max_page=PAGE), self.clock, parts)
        return services

    def _bus(self) -> LocalBus:
        async def on_announcements(announcements: Sequence[Announcement]) -> None:
            self.told += announcements

        async def missed(_: float) -> None:
            raise AssertionError("nothing is missed here")

        bus = LocalBus()
        bus.subscribe(on_announcements, missed, lambda: False)
        return bus

    # ------------------------------------------------------------ what people do

    async def open(self, channel: str, *members: str, type: str = "group") -> None:  # noqa: A002 - the product's word
        await self.instances[0].channels.put(channel, PutChannel(type=type, members=members))  # type: ignore[arg-type]

    async def send(self, sender: str, channel: str, id_: str, *mentions: str, instance: int = 0) -> None:
        """It is accepted: in the log, not written yet."""
        message = NewMessage(id=id_, channel_id=channel, sender_id=sender, text=id_, mentions=mentions)
        [result] = await self.instances[instance].messages.send([message])
        assert result.status == "accepted", result

    async def reply(self, sender: str, channel: str, root: str, id_: str) -> None:
        message = NewMessage(id=id_, channel_id=channel, sender_id=sender, text=id_, thread_id=root)
        [result] = await self.instances[0].messages.send([message])
        assert result.status == "accepted", result

    async def say(self, sender: str, channel: str, id_: str, *mentions: str) -> None:
        """It is accepted and written, and the badges have heard of it."""
        await self.send(sender, channel, id_, *mentions)
        await self.settle()

    async def comes_online(self, user: str) -> None:
        await self.instances[0].presence.put(user, PutPresence(device="phone", online=True, ttl=86_400))

    async def goes_away(self, user: str) -> None:
        await self.instances[0].presence.put(user, PutPresence(device="phone", online=False))

    async def connects(self, user: str) -> None:
        """By a device with a connection."""
        await self.instances[0].presence.connected(user, "phone", "k1")

    async def is_cut(self, user: str) -> None:
        """Without a goodbye: what was not confirmed has not got through."""
        await self.instances[0].presence.disconnected(user, "phone", "k1")

    async def confirms(self, user: str) -> None:
        """Everything that was sent to the device."""
        self.hot.presence.sent(await self.hot.presence.unproven(user))
        self.instances[0].presence.alive(user)

    async def mute(self, user: str, channel: str, muted: bool = True) -> None:
        await self.instances[0].preferences.put(user, channel, PutPreferences(muted=muted))

    async def tap(self, user: str, instance: int = 0) -> Tap:
        return await self.instances[instance].badge.tap(user)

    async def badge(self, user: str, instance: int = 0) -> int:
        """The number that is kept ready. Nothing is under way: the durable store counts the same."""
        by_set = await self.instances[instance].badge.count(user)
        by_sql = await self.durable.badge_count(user)
        assert by_set == by_sql, f"{user}: {by_set} by the set, {by_sql} by SQL"
        return by_set

    def badges_told(self) -> list[str]:
        """Whose badges were announced since the last question."""
        told, self.told = self.told, []
        return [one.user_id for one in told if isinstance(one, BadgeChanged)]

    # ------------------------------------------------------------ what workers do

    async def write(self, most: int | None = None) -> list[Effect]:
        """The message writer takes a batch."""
        batch = self.log.messages[self.written :][:most]
        effects = await self.writer.handle(batch, SOURCE) if batch else []
        self.written += len(batch)
        return effects

    async def write_and_die(self, most: int | None = None) -> None:
        """It has committed, and is killed before anybody hears of it: the batch comes again."""
        if self.log.messages[self.written :][:most]:
            self._writer_dies = True
            try:
                with pytest.raises(Died):
                    await self.write(most)
            finally:
                self._writer_dies = False

    async def update(self, most: int | None = None, again: int = 0) -> None:
        """Status Update takes a batch, with so many events that it has had before."""
        first = max(0, self.updated - again)
        batch = self.log.unsent[first:][: None if most is None else most + again]
        if batch:
            await self.status_update.handle(batch)
        self.updated = max(self.updated, first + len(batch))

    async def settle(self) -> None:
        """Everything that is under way arrives."""
        await self.write()
        await self.update()

    async def _note_away(self, effects: Sequence[Effect]) -> None:
        if self._writer_dies:
            raise Died
        for effect in effects:
            for one in effect.undelivered:
                names = (one.sender_id, one.receiver_id, one.message_id, one.channel_id)
                self.log.unsent.append(UnsentEvent(*names, one.accepted_at, one.accepted_at, self.clock()))


@asynccontextmanager
async def a_cluster(
    clock: Clock, main: str | None = None, replica: str | None = None, timings: ValkeyTimings = DEFAULT
) -> AsyncIterator[Cluster]:
    """With a database and keys of its own."""
    prefix = f"{secrets.token_hex(6)}:"
    async with postgres(FANOUT) as durable:
        store_id = await durable.store_id()
        presence = MemoryPresence(clock)  # here it is about badges: whoever connects anywhere is known everywhere
        options = HotOptions(
            url=single().url if main is None else main,
            prefix=prefix,
            unread_cap=10_000,
            ledger_ttl=3600,
            replica_url=second().url if replica is None else replica,
        )
        counter = DurableCounter(store_id, durable)
        hots = [SharedHot(options, counter, clock, timings, f"instance {number}", partitions=1) for number in range(2)]
        for hot in hots:
            hot.presence = presence
        cluster = Cluster(durable, hots, clock, store_id)
        try:
            yield cluster
        finally:
            for services in cluster.instances:
                await services.finish()
            for hot in hots:
                await hot.close()


@asynccontextmanager
async def outsider(url: str) -> AsyncIterator[ValkeyClient]:
    """Connections of somebody who has nothing to do with us."""
    client = ValkeyClient(url, ValkeyTimings(patience=PATIENCE))
    try:
        await client.masters()
        yield client
    finally:
        await client.close()
