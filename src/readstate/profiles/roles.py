"""The roles of a worker process in the cluster profile: each consumer with its Kafka options and its handler."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from readstate.adapters.kafka import wire
from readstate.adapters.kafka.channel_events import ChannelEvents, LogPositions
from readstate.adapters.kafka.consumer import KafkaConsumer
from readstate.adapters.kafka.topics import MOST_BYTES_OF_ALL
from readstate.domain.events import Consumed
from readstate.domain.facts import Effect
from readstate.services.pending_writes import UnannouncedWrites
from readstate.services.undelivered import LateBadges
from readstate.tasks import cancel
from readstate.workers import AUDITOR, DEAD_LETTERS, MESSAGE_WRITER, RECEIPT_PERSISTER, RECONCILER, STATUS_UPDATE
from readstate.workers.auditor import auditor
from readstate.workers.dead_letters import DeadLetters, FailedEvents
from readstate.workers.focused_reads import FocusedReads
from readstate.workers.gathering import GatherAhead
from readstate.workers.message_writer import MessageWriter
from readstate.workers.on_failure import RetryBatch
from readstate.workers.overlap import OverlappingRunner
from readstate.workers.periodic import PeriodicJobs
from readstate.workers.receipt_persister import SharedPersister, TopicPersister
from readstate.workers.reconciler import reconciler
from readstate.workers.runner import Consumer, Gather, Runner
from readstate.workers.status_update import StatusUpdate, unsent_messages

from .service import Readstate

MAX_UNSENT = 5_000
MAX_DEAD_LETTERS = 100
FETCHED_BYTES = 64 * 1024
FETCHED_MS = 100
"""`fetch.min.bytes` and `fetch.wait.max.ms` of the persister: it gathers anyway, so the broker may answer less often.
"""
HEARTBEATS = 4
"""Per session timeout: two may be lost."""
HANGS, HANGS_AT_LEAST = 3, 10_000
"""`max.poll.interval.ms`: three session timeouts, at least 10 s. A rebalance waits this long for a dead member, and
after a restart a broker may also wait for one that has left.
"""

T = TypeVar("T")
Handle = Callable[[Sequence[Consumed]], Awaitable[None]]
DeadLetter = Callable[[Consumed, str, int], Awaitable[None]]


class WorkerSupervisor:
    def __init__(self, service: Readstate, roles: Sequence[str]) -> None:
        self._service = service
        self._cluster = service.cluster
        self._timings = service.timings
        self._roles = roles
        self._running: list[Runner | PeriodicJobs] = []
        self._tasks: list[asyncio.Task[None]] = []
        cluster, durable, clock = self._cluster, service.durable, service.clock
        self._dead_letters = DeadLetters(
            durable,
            service.hot.users,
            clock,
            cluster.topics.reads,
            wire.split_reads,
            wire.decode_read,
            wire.decode_whose,
        )
        self._failed = FailedEvents(cluster.sender.dead, self._dead_letters, durable, clock, MOST_BYTES_OF_ALL)

    def states(self) -> dict[str, str]:
        """Each role, and "ok" or why it makes no progress."""
        return {one.name: one.state for one in self._running}

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until `stopping` is set, and finish the batches in flight. If one role fails, all stop.

        Consumes nothing before the topics are checked: with another number of partitions, channels would be mixed up.
        """
        await _first(self._cluster.topic_check.done, stopping)
        if stopping.is_set():
            return
        for role in self._roles:
            await self._start_role(role)
        work = [asyncio.create_task(one.run(stopping)) for one in self._running]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            stopping.set()
            await asyncio.wait(work)
            for task in self._tasks:
                await cancel(task)
        for one in work:
            one.result()

    async def _start_role(self, role: str) -> None:
        service, settings, timings = self._service, self._service.settings, self._timings.workers
        match role:
            case _ if role == MESSAGE_WRITER:
                await self._start_message_writer()
            case _ if role == RECEIPT_PERSISTER:
                self._start_receipt_persister()
            case _ if role == STATUS_UPDATE:
                self._start_status_update()
            case _ if role == DEAD_LETTERS:
                self._start_dead_letters()
            case _ if role == RECONCILER:
                every = settings.reconcile_every
                self._running.append(reconciler(service.repair, service.badge, every, timings))
            case _ if role == AUDITOR:
                self._running.append(auditor(service.audit, service.repair.claim, settings.audit_sample, timings))

    async def _start_message_writer(self) -> None:
        topics = self._cluster.topics
        consumer = self._consumer(topics.writer, topics.messages)
        positions = await log_positions(self._service, consumer)
        self._tasks.append(asyncio.create_task(positions.keep()))

        async def dead_letter(record: Consumed, reason: str, tries: int) -> None:
            """Also passes its offset, so that no request waits for it any longer."""
            await self._failed.to_topic(record, reason, tries)
            await positions.skipped(record)

        gather = Gather(self._service.settings.write_batch, self._timings.workers.gather_messages)
        events, timings = channel_events(self._service, positions), self._timings.workers
        self._running.append(
            OverlappingRunner(
                MESSAGE_WRITER,
                consumer,
                events.handle,
                dead_letter,
                gather,
                timings,
                self._service.tracing,
                begin=events.begin,
            )
        )

    def _start_receipt_persister(self) -> None:
        service, topics, timings = self._service, self._cluster.topics, self._timings.workers
        handle = _decoded(wire.decode_reads, lambda events: persister.handle(events))  # noqa: PLW0108 - made below
        consumer = self._consumer(topics.persister, topics.reads, gathers=True)
        ahead = GatherAhead(consumer, wire.count_reads, timings.gather_slice)
        gather = Gather(service.settings.persist_batch, timings.gather_reads, wire.split_record)
        runner = self._start(RECEIPT_PERSISTER, ahead, handle, gather, self._failed.to_topic)
        persister = SharedPersister(
            TopicPersister(service.durable),
            service.hot.users,
            self._cluster.freshness.to_merge,
            service.clock,
            service.settings.persist_rate,
            runner.rest,
        )

    def _start_status_update(self) -> None:
        topics, timings = self._cluster.topics, self._timings.workers
        update = StatusUpdate(self._service.hot.badges, self._service.durable, self._cluster.bus)
        handle = _decoded(wire.decode_unsents, update.handle)
        gather = Gather(MAX_UNSENT, timings.gather_unsent, wire.split_unsent)
        consumer = self._consumer(topics.status_update, topics.unsent)
        ahead = GatherAhead(consumer, wire.count_unsent, timings.gather_slice)
        self._start(STATUS_UPDATE, ahead, handle, gather, self._failed.to_list)

    def _start_dead_letters(self) -> None:
        topics = self._cluster.topics
        handle = _decoded(lambda value: [wire.decode_dead_letter(value)], self._dead_letters.handle)
        gather = Gather(MAX_DEAD_LETTERS, self._timings.workers.gather_dead_letters)
        consumer = self._consumer(topics.dead_letters, topics.dead(topics.reads), topics.dead(topics.messages))
        self._start(DEAD_LETTERS, consumer, handle, gather, self._failed.to_list)

    def _consumer(self, group: str, *topics: str, gathers: bool = False) -> KafkaConsumer:
        silence = self._service.settings.session_timeout
        hangs = max(HANGS * silence, HANGS_AT_LEAST)
        options = {
            "session.timeout.ms": silence,
            "heartbeat.interval.ms": silence // HEARTBEATS,
            "max.poll.interval.ms": hangs,
        }
        if gathers:
            options |= {"fetch.min.bytes": FETCHED_BYTES, "fetch.wait.max.ms": FETCHED_MS}
        # Longer than a rebalance waits for a dead member.
        timings = replace(self._timings.kafka, stuck=2 * hangs / 1000)
        cluster = self._cluster
        return KafkaConsumer(
            {**cluster.options, **options}, group, topics, timings, cluster.watcher, cluster.stop_deadline
        )

    def _start(
        self,
        role: str,
        consumer: Consumer,
        handle: Handle,
        gather: Gather,
        dead_letter: DeadLetter,
    ) -> Runner:
        timings, tracing = self._timings.workers, self._service.tracing
        runner = Runner(role, consumer, handle, dead_letter, gather, timings, tracing)
        self._running.append(runner)
        return runner


def _decoded(decode: Callable[[bytes], Iterable[T]], handle: Callable[[Sequence[T]], Awaitable[None]]) -> Handle:
    async def handle_records(records: Sequence[Consumed]) -> None:
        await handle([event for record in records for event in decode(record.value)])

    return handle_records


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            await cancel(wait)


async def log_positions(service: Readstate, consumer: KafkaConsumer) -> LogPositions:
    cluster = service.cluster
    topic = cluster.topics.messages
    return LogPositions(
        consumer,
        cluster.watcher,
        topic,
        await cluster.watcher.topic_id(topic),
        service.durable,
        cluster.hot.channels,
        cluster.notes,
        service.timings.workers.positions,
    )


def channel_events(service: Readstate, positions: LogPositions) -> ChannelEvents:
    """The message writer over Kafka."""
    cluster, hot = service.cluster, service.hot

    async def note_away(effects: Sequence[Effect]) -> None:
        if service.settings.badge_mode == "precomputed" and (messages := unsent_messages(effects, service.clock())):
            await cluster.sender.unsent(messages)

    writer = MessageWriter(
        service.durable,
        hot,
        cluster.bus,
        note_away,
        FocusedReads(hot.users, hot.presence, service.focus.read),
        RetryBatch(LateBadges(service.durable, hot.badges, cluster.bus), cluster.log.reads, service.clock),
        UnannouncedWrites(),
        service.instance_id,
    )
    return ChannelEvents(positions, writer.store, writer.spread, cluster.notes, cluster.freshness)
