"""The cluster profile: any number of processes over Valkey or Redis, Kafka and PostgreSQL."""

import asyncio
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path

import structlog

from readstate.adapters.kafka.backlog import Backlog, Sources
from readstate.adapters.kafka.client import kafka_options
from readstate.adapters.kafka.log import KafkaLog, SpooledReads
from readstate.adapters.kafka.producer import KafkaProducer
from readstate.adapters.kafka.sender import Sender
from readstate.adapters.kafka.spool import Spool
from readstate.adapters.kafka.spool_directory import SpoolDirectory
from readstate.adapters.kafka.spool_notes import SpoolReport
from readstate.adapters.kafka.stopping import StopDeadline
from readstate.adapters.kafka.topics import TopicCheck, Topics
from readstate.adapters.kafka.waits import Waits
from readstate.adapters.kafka.watcher import Watcher
from readstate.adapters.memory.bus import LocalBus
from readstate.adapters.sql.postgres.store import PostgresStore
from readstate.adapters.sql.store import SqlStore
from readstate.adapters.valkey import DurableCounter
from readstate.adapters.valkey.bus.bus import ValkeyBus
from readstate.adapters.valkey.hot import HotOptions, SharedHot
from readstate.adapters.valkey.notes import ValkeyNotes
from readstate.domain.announcements import Announcement
from readstate.domain.errors import ConfigurationError, ReadstateError
from readstate.domain.model import NO_GENERATION, NO_POSITION
from readstate.ports import Hot
from readstate.services.cursors import Cursors
from readstate.services.freshness import NeverFresh, ReadLogProgress, Trailing
from readstate.services.pending_writes import UnannouncedWrites
from readstate.workers.receipt_persister import SharedPersister, SpoolRestorer, TopicPersister

from .consistency import Shared
from .wiring import Parts, Profile, Services

log = structlog.get_logger()


class Cluster(Profile):
    durable: PostgresStore
    hot: SharedHot
    bus: ValkeyBus
    log: KafkaLog
    sender: Sender
    spool: Spool
    spools: SpoolDirectory
    watcher: Watcher
    backlog: Backlog
    notes: ValkeyNotes
    freshness: Trailing

    def __post_init__(self) -> None:
        self.loss = ConfigurationError()
        """No other process can take a cluster over; the only reason is that Kafka, unavailable at the start, turns out
        not to match the settings.
        """
        self.topics = Topics(self.settings.topic_prefix)
        self.options = kafka_options(self.settings)
        self.stop_deadline = StopDeadline(self.timings.kafka)
        self.topic_check = TopicCheck(
            self.options, self.topics, self.settings.partitions, self.timings.kafka, self.stop_deadline
        )
        self._aside_at = 0

    def begin_stop(self) -> None:
        self.stop_deadline.begin()

    def lags(self) -> dict[str, str]:
        return {"messages": self.backlog.state()}

    async def start(self, services: Services) -> tuple[SqlStore, Hot]:
        s = self.settings
        await asyncio.to_thread(Path(s.data_dir).mkdir, parents=True, exist_ok=True)
        self.durable = await PostgresStore.open(
            s.database_url,
            s.fanout_max_members,
            self.timings.sql,
            s.database_connections,
            keeps_badge=s.badge_mode != "off",
        )
        self.stack.push_async_callback(self.durable.close)
        self.dependencies["database"] = self.durable.ping
        store_id = await self.durable.store_id()
        cursors = Cursors(await self.durable.cursor_key(), store_id)
        await self._open_hot(store_id)
        await self._open_log()
        self.durable, self.hot = self.traced(self.durable, self.hot)
        if self.tracing is not None:
            self.log, self.sender = self.tracing.log(self.log), self.tracing.log(self.sender)
        progress = ReadLogProgress(
            spooled=self._spooled,
            ends=lambda: self.watcher.ends(self.topics.reads),
            committed=lambda: self.watcher.committed(self.topics.persister, self.topics.reads),
        )
        self.freshness = Trailing(
            self.notes, self.durable, progress, self.timings.services, s.wait_timeout, self.backlog.stale, s.partitions
        )
        parts = Parts(
            self.log,
            self.hot,
            self.durable,
            self.bus,
            self.freshness,
            UnannouncedWrites(),
            store_id,
            cursors,
            self.instance_id,
            batchers=self.batchers,
            timings=self.timings,
            consistency=Shared(),
        )
        services.assemble(s, self.clock, parts)
        self._assemble_aside(parts)
        self.stack.push_async_callback(services.finish)

        async def on_announcements(announcements: Sequence[Announcement]) -> None:
            services.positions.on_announcements(announcements)
            # Devices before waiting requests, as in the embedded profile.
            try:
                await services.live.on_announcements(announcements)
            finally:
                self.log.on_announcements(announcements)

        self.bus.subscribe(on_announcements, services.live.on_gap, services.live.is_idle)
        self.run(self.freshness.run())
        self.run(self._heartbeat(services))
        self.run(self.spools.keep_adopting())
        return self.durable, self.hot

    async def without_hot_store(self) -> Services | None:
        """They keep loaded state for a moment."""
        now = self.clock()
        if now - self._aside_at > self.timings.services.aside_ms:
            self._aside_at = now
            await self._aside.clear()
        return self._alone

    def _assemble_aside(self, parts: Parts) -> None:
        self._aside = self.memory_hot(NO_GENERATION, NO_POSITION)
        self._alone = Services()
        # Store id 0 makes its cursors invalid elsewhere: changes since such a cursor can't be found later.
        aside = parts._replace(hot=self._aside, bus=LocalBus(), freshness=NeverFresh(), store_id=0)
        self._alone.assemble(self.settings, self.clock, aside)

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
        counter, timings = DurableCounter(store_id, self.durable), self.timings.valkey
        self.hot = SharedHot(options, counter, self.clock, timings, self.instance_id, s.partitions)
        self.stack.push_async_callback(self.hot.close)
        self.dependencies["hot_store"] = self.hot.ping
        self.run(self.hot.libraries.keep_tidy())
        self.notes = self.hot.notes
        self.bus = ValkeyBus(s.hot_url, timings, prefix=s.key_prefix, instance_id=self.instance_id)
        self.stack.push_async_callback(self.bus.close)

    async def _open_log(self) -> None:
        s, timings = self.settings, self.timings.kafka
        await self.topic_check.attempt()
        producer = KafkaProducer(self.options, timings, self.stop_deadline)
        self.stack.push_async_callback(producer.close)
        self.watcher = Watcher(self.options, s.partitions, timings, self.stop_deadline)
        self.stack.push_async_callback(self.watcher.close)
        self.backlog = self._make_backlog()
        traced = producer if self.tracing is None else self.tracing.producer(producer)
        self.sender = Sender(traced, self.topics, s.partitions, self.topic_check.done, self.backlog, self._may_pack)
        self.log = KafkaLog(
            self.sender,
            await self._open_spool(),
            self.backlog,
            self.watcher,
            self.hot.channels.offsets,
            Waits(self.instance_id),
            s.wait_timeout,
            timings,
        )
        self.stack.push_async_callback(self.log.close)
        self.run(self._retry_topic_check())
        await self.log.start()
        self.dependencies["log"] = self._ping_log
        self.run(self.backlog.run())
        await self.backlog.looked()

    async def _open_spool(self) -> SpooledReads:
        s = self.settings
        merging = TopicPersister(self.durable)
        persister = SharedPersister(merging, self.hot.users, _everybody, self.clock, s.persist_rate)
        restorer = SpoolRestorer(persister, self.sender.send_reads, self.bus)
        self.spools = SpoolDirectory(
            Path(s.data_dir), s.spool_max, restorer.restore, self.durable, self.clock, self.timings.kafka
        )
        self.spool, notes = await self.spools.open_own()
        self._spool_report = SpoolReport(self.spool, notes, self.notes, self.hot.users, self.instance_id)
        return SpooledReads(self.sender, self.spool, notes.keep, s.produce_timeout / 1000, self.timings.kafka)

    def _make_backlog(self) -> Backlog:
        s, topics = self.settings, self.topics
        sources = Sources(
            ends=lambda: self.watcher.ends(topics.messages),
            committed=lambda: self.watcher.committed(topics.writer, topics.messages),
            ends_before=lambda seconds: self.watcher.ends_before(topics.messages, seconds),
            applied=self.hot.channels.offsets,
        )
        return Backlog(sources, s.partitions, self.timings.kafka, stale_after=s.stale_after, max_lag=s.max_lag)

    def _may_pack(self) -> bool:
        """Whether events may share records. An older process would put such a record among the dead letters."""
        setting = self.settings.packed_records
        return self.hot.all_read_packed() if setting == "auto" else setting == "on"

    async def _ping_log(self) -> None:
        await self.watcher.ends(self.topics.messages)

    async def _spooled(self) -> bool:
        return bool(await self.notes.spooled() or await self.durable.spools(self.clock()))

    # ------------------------------------------------------------ in the background

    async def _retry_topic_check(self) -> None:
        """An error that would have prevented the start ends the process now."""
        try:
            await self.topic_check.retry()
        except ReadstateError as error:
            self.loss = error
            self.lost.set()

    async def _heartbeat(self, services: Services) -> None:
        while True:
            try:
                await self._spool_report.renew()
                await self.hot.join()
                await services.presence.expire()
            except ReadstateError as error:
                log.debug("a heartbeat was missed", action="heartbeat", reason=error.explained)
            except Exception:
                log.error("a heartbeat failed", action="heartbeat", traceback=traceback.format_exc())
            await asyncio.sleep(self.timings.kafka.heartbeat)


async def _everybody(users: Collection[str]) -> Collection[str]:
    return users
