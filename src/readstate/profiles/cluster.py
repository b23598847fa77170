"""The cluster profile: any number of processes over Valkey or Redis, Kafka and PostgreSQL."""

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from readstate.adapters.kafka.backlog import Backlog, Sources
from readstate.adapters.kafka.log import KafkaLog
from readstate.adapters.kafka.producer import KafkaProducer, make_topics
from readstate.adapters.kafka.spool import Send, Spool
from readstate.adapters.kafka.spool_notes import SpoolNotes
from readstate.adapters.kafka.topics import Topics, kafka_options
from readstate.adapters.kafka.watcher import Watcher
from readstate.adapters.memory.bus import LocalBus
from readstate.adapters.memory.hot import MemoryHot
from readstate.adapters.sql.postgres.store import PostgresStore
from readstate.adapters.sql.store import SqlStore
from readstate.adapters.valkey import DurableCounter
from readstate.adapters.valkey.bus.bus import ValkeyBus
from readstate.adapters.valkey.hot import HotOptions, SharedHot
from readstate.adapters.valkey.notes import ValkeyNotes
from readstate.batching import Batcher
from readstate.domain.announcements import Announcement, UserRoomChanged
from readstate.domain.errors import ConfigurationError, LogUnavailable, ReadstateError, Unavailable
from readstate.domain.events import ReadEvent
from readstate.domain.hot_updates import Merged
from readstate.ports import Clock, Hot
from readstate.services.cursors import Cursors
from readstate.services.freshness import NeverFresh, Trailing
from readstate.services.pending_writes import UnannouncedWrites
from readstate.settings import Settings
from readstate.tasks import cancel
from readstate.timings import Timings
from readstate.workers.receipt_persister import ReceiptPersister, SharedPersister, pointer_of

from .consistency import Shared
from .wiring import Parts, Services

if TYPE_CHECKING:
    from readstate.tracing import Tracing

log = structlog.get_logger()

SPOOLS = "spool"
MAX_SPOOLS = 1_000
HEARTBEAT_SECONDS = 1.0
ADOPT_SECONDS = 30.0
TOPICS_SECONDS = 0.5
ASIDE_MS = 1_000
"""While the hot store is unavailable, state that was loaded without it is kept this long."""


class Cluster:
    """Opens servers and services; closes them with the stack."""

    durable: PostgresStore
    hot: SharedHot
    bus: ValkeyBus
    log: KafkaLog
    watcher: Watcher
    backlog: Backlog
    notes: ValkeyNotes
    freshness: Trailing

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        timings: Timings,
        instance_id: str,
        stack: contextlib.AsyncExitStack,
        tracing: "Tracing | None",
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.timings = timings
        self.instance_id = instance_id
        self.topics = Topics(settings.topic_prefix)
        self.options = kafka_options(settings)
        self._stack = stack
        self._tracing = tracing
        self.dependencies: dict[str, Callable[[], Awaitable[None]]] = {}
        self.lost = asyncio.Event()
        self.loss: ReadstateError = ConfigurationError()
        """Why `lost` is set. No other process can take a cluster over; the only reason is that Kafka, unavailable at
        the start, turns out not to match the settings.
        """
        self.topics_seen = asyncio.Event()
        """Set when the topics exist with as many partitions as the settings say."""
        self._alone: Services | None = None
        self._aside: MemoryHot | None = None
        self._aside_at = 0

    def lags(self) -> dict[str, str]:
        return {"messages": self.backlog.state()}

    async def start(self, services: Services) -> tuple[SqlStore, Hot]:
        s = self.settings
        await asyncio.to_thread(Path(s.data_dir).mkdir, parents=True, exist_ok=True)
        self.durable = await PostgresStore.open(s.database_url, s.fanout_max_members, s.database_connections)
        self._stack.push_async_callback(self.durable.close)
        self.dependencies["database"] = self.durable.ping
        store_id = await self.durable.store_id()
        cursors = Cursors(await self.durable.cursor_key(), store_id)
        await self._open_hot(store_id)
        await self._open_log()
        if self._tracing is not None:
            self.durable = self._tracing.durable(self.durable, "postgresql")
            self.hot = self._tracing.hot(self.hot, "redis")
            self.log = self._tracing.log(self.log)
        self.freshness = Trailing(
            self.notes,
            self._spooled,
            self._ends,
            self._committed,
            s.wait_timeout,
            self.backlog.stale,
            s.partitions,
        )
        parts = Parts(
            self.log,
            self.hot,
            self.durable,
            self.durable.transfer,
            self.bus,
            self.freshness,
            UnannouncedWrites(),
            store_id,
            cursors,
            self.instance_id,
            alone=False,
            batchers=Batcher if self._tracing is None else self._tracing.batchers,
            timings=self.timings,
            consistency=Shared(),
        )
        services.assemble(s, self.clock, parts)
        self._assemble_aside(parts)
        self._stack.push_async_callback(services.live.close)
        self._stack.push_async_callback(services.reads.close)
        self._stack.push_async_callback(services.presence.close)

        async def on_announcements(announcements: Sequence[Announcement]) -> None:
            # Devices before waiting requests, as in the embedded profile.
            try:
                await services.live.on_announcements(announcements)
            finally:
                self.log.on_announcements(announcements)

        self.bus.subscribe(on_announcements, services.live.on_gap, services.live.is_idle)
        for work in (self.freshness.run(), self._heartbeat(services), self._adopt_spools()):
            self._stack.push_async_callback(cancel, asyncio.create_task(work))
        return self.durable, self.hot

    async def without_hot_store(self) -> Services | None:
        """The services over the durable store alone. They keep loaded state for at most `ASIDE_MS`."""
        if self._alone is None or self._aside is None:
            return None
        now = self.clock()
        if now - self._aside_at > ASIDE_MS:
            self._aside_at = now
            await self._aside.clear()
        return self._alone

    def _assemble_aside(self, parts: Parts) -> None:
        s = self.settings
        self._aside = MemoryHot(
            unread_cap=s.unread_cap,
            generation=0,
            position=0,
            clock=self.clock,
            ledger_ttl=s.ledger_ttl,
            max_bytes=s.hot_memory * 2**20,
        )
        self._alone = Services()
        # Store id 0 makes its cursors invalid elsewhere: changes since such a cursor can't be found later.
        aside = parts._replace(hot=self._aside, bus=LocalBus(), freshness=NeverFresh(), store_id=0)
        self._alone.assemble(s, self.clock, aside)

    # ------------------------------------------------------------ servers

    async def _open_hot(self, store_id: int) -> None:
        s = self.settings
        options = HotOptions(
            url=s.hot_url,
            prefix=s.key_prefix,
            unread_cap=s.unread_cap,
            ledger_ttl=s.ledger_ttl,
            replica_url=s.write_replica_url,
        )
        counter, timings = DurableCounter(store_id, self.durable.next_generation), self.timings.valkey
        self.hot = SharedHot(options, counter, self.clock, timings, self.instance_id, s.partitions)
        self._stack.push_async_callback(self.hot.close)
        self.dependencies["hot_store"] = self.hot.ping
        self.notes = self.hot.notes
        self.bus = ValkeyBus(s.hot_url, timings, prefix=s.key_prefix, instance_id=self.instance_id)
        self._stack.push_async_callback(self.bus.close)

    async def _open_log(self) -> None:
        s = self.settings
        seen = await self._make_topics()
        producer = KafkaProducer(self.options)
        self._stack.push_async_callback(producer.close)
        self.watcher = Watcher(self.options, s.partitions)
        self._stack.push_async_callback(self.watcher.close)
        self.backlog = self._make_backlog()
        persister = ReceiptPersister(self.durable, shared=True)
        self._restoring = SharedPersister(persister, self.hot.users, _always, self.clock, s.persist_rate)
        spool = await asyncio.to_thread(_own_spool, Path(s.data_dir), s.spool_max, self._restore)
        self._spool_notes = SpoolNotes(spool, self.durable, self.clock)
        self.log = KafkaLog(
            producer if self._tracing is None else self._tracing.producer(producer),
            spool,
            self.topics,
            self.watcher,
            self.backlog,
            partitions=s.partitions,
            instance_id=self.instance_id,
            produce_timeout=s.produce_timeout / 1000,
            wait_timeout=s.wait_timeout,
            applied=self.hot.channels.offsets,
            note_spool=self._spool_notes.keep,
            topics_seen=seen,
        )
        self._stack.push_async_callback(self.log.close)
        if seen:
            self.topics_seen.set()
        else:
            self._stack.push_async_callback(cancel, asyncio.create_task(self._keep_making_topics(self.log)))
        await self.log.start()
        self.dependencies["log"] = self._ping_log
        self._stack.push_async_callback(cancel, asyncio.create_task(self.backlog.run()))
        await self.backlog.looked()

    def _make_backlog(self) -> Backlog:
        s, topics = self.settings, self.topics
        sources = Sources(
            ends=lambda: self.watcher.ends(topics.messages),
            committed=lambda: self.watcher.committed(topics.writer, topics.messages),
            ends_before=lambda seconds: self.watcher.ends_before(topics.messages, seconds),
            applied=self.hot.channels.offsets,
        )
        return Backlog(sources, s.partitions, stale_after=s.stale_after, max_lag=s.max_lag)

    async def _make_topics(self) -> bool:
        """Returns False if Kafka is unavailable. Reads work without it, so the process starts anyway."""
        try:
            await asyncio.to_thread(make_topics, self.options, self.topics.all, self.settings.partitions)
        except LogUnavailable as error:
            log.warning("topics are not made yet", action="kafka", reason=error.explained)
            return False
        return True

    async def _keep_making_topics(self, log: KafkaLog) -> None:
        """Retry until the topics exist. An error that would have prevented the start ends the process now."""
        while not self.topics_seen.is_set():
            await asyncio.sleep(TOPICS_SECONDS)
            try:
                if await self._make_topics():
                    log.topics_seen = True
                    self.topics_seen.set()
            except ReadstateError as error:
                self.loss = error
                self.lost.set()
                return

    async def _ping_log(self) -> None:
        await self.watcher.ends(self.topics.messages)

    async def _spooled(self) -> bool:
        return bool(await self.notes.spooled() or await self.durable.spools(self.clock()))

    async def _ends(self) -> dict[int, int]:
        return await self.watcher.ends(self.topics.reads)

    async def _committed(self) -> dict[int, int]:
        return await self.watcher.committed(self.topics.persister, self.topics.reads)

    # ------------------------------------------------------------ in the background

    async def _heartbeat(self, services: Services) -> None:
        """Publish the depth of the spool, merge the spool into a hot store after a loss, and expire overdue devices."""
        noted = generation = 0
        while True:
            try:
                depth = self.log.spooled
                await self._spool_notes.keep()
                if depth or noted:
                    await self.notes.note_spool(self.instance_id, depth)
                    noted = depth
                if generation != (generation := self.notes.seen()) and depth:
                    await self._merge_spool()
                await services.presence.expire()
            except ReadstateError as error:
                log.debug("a heartbeat was missed", action="heartbeat", reason=error.explained)
            except Exception:
                log.error("a heartbeat failed", action="heartbeat", traceback=traceback.format_exc())
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _merge_spool(self) -> None:
        """Merge this process's spool into the hot store after a loss: no other store has these reads."""
        async for events in self.log.pending_spool():
            await self.hot.users.apply([merged(event) for event in events])

    async def _restore(self, events: Sequence[ReadEvent]) -> None:
        """Write reads from another process's spool to the stores directly, not through the log.

        Other instances wait for that spool only for a limited time. After that the hot store may count as fresh without
        these reads, and the persister no longer merges what it reads from the log into the hot store. So they go to the
        durable store, and then to the users in the hot store who were loaded before.
        """
        try:
            await asyncio.sleep(self._restoring.throttle_delay())
            await self._restoring.handle(events)
        except Unavailable:
            raise
        except Exception:  # an event fails by itself: the persister's runner finds it and dead-letters it
            log.error("a spool can't be restored and is sent", action="spool", traceback=traceback.format_exc())
            await self.log.send_reads(events)
        await self.bus.publish([UserRoomChanged(event.user_id, event.channel_id) for event in events])

    async def _adopt_spools(self) -> None:
        """Restore the spools of processes that died and were not restarted."""
        while True:
            for directory in await asyncio.to_thread(_spools, Path(self.settings.data_dir)):
                with contextlib.suppress(ReadstateError):
                    await self._adopt(directory)
            await asyncio.sleep(ADOPT_SECONDS)

    async def _adopt(self, directory: Path) -> None:
        spool = await asyncio.to_thread(Spool.open, directory, max_bytes=self.settings.spool_max * 2**20)
        notes = SpoolNotes(spool, self.durable, self.clock)

        async def restore(events: Sequence[ReadEvent]) -> None:
            await notes.keep()
            await self._restore(events)

        try:
            if spool.depth and await spool.drain(restore):
                await notes.keep()
                log.info("the spool of a process that is gone has been restored", action="spool", spool=directory.name)
        finally:
            await spool.close()


async def _always() -> bool:
    return True


def merged(event: ReadEvent) -> Merged:
    return Merged(event.channel_id, event.user_id, pointer_of(event))


def _spools(data_dir: Path) -> list[Path]:
    return sorted((data_dir / SPOOLS).glob("*"))


def _own_spool(data_dir: Path, max_mib: int, restore: Send) -> Spool:
    """Open the first spool directory that no other process holds."""
    for number in range(MAX_SPOOLS):
        try:
            return Spool.open(data_dir / SPOOLS / str(number), max_bytes=max_mib * 2**20, restore=restore)
        except ConfigurationError:
            if number == MAX_SPOOLS - 1:
                raise
    raise AssertionError("the last one was taken or refused")
