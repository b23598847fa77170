"""The roles of a worker process in the cluster profile: each consumer with its Kafka options and its handler.

`_Writer` connects the message writer to Kafka. Offsets restart when a topic is recreated and repeat when a partition
loses its tail, so it keeps a base per partition that turns offsets into log positions that never fall.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog
from msgspec import json
from msgspec.structs import replace

from readstate.adapters.kafka.consumer import Consumed, KafkaConsumer
from readstate.adapters.kafka.producer import MOST_BYTES_OF_ALL
from readstate.adapters.kafka.wire import (
    decode_channel_event,
    decode_dead_letter,
    decode_read,
    decode_unsent,
    decode_whose,
)
from readstate.domain.errors import TooLarge
from readstate.domain.events import DeadLetter, Delivery, UnsentEvent
from readstate.domain.facts import Effect
from readstate.services.pending_writes import UnannouncedWrites
from readstate.tasks import cancel
from readstate.telemetry import DLT_FAILED, UNSENT
from readstate.workers import AUDITOR, DEAD_LETTERS, MESSAGE_WRITER, RECEIPT_PERSISTER, RECONCILER, STATUS_UPDATE
from readstate.workers.auditor import Auditor
from readstate.workers.dead_letters import DeadLetters
from readstate.workers.message_writer import MessageWriter
from readstate.workers.receipt_persister import ReceiptPersister, SharedPersister
from readstate.workers.reconciler import Reconciler
from readstate.workers.runner import Runner
from readstate.workers.status_update import StatusUpdate

from .service import Readstate

log = structlog.get_logger()

MAX_UNSENT = 5_000
MAX_LETTERS = 100
SHOWN_BYTES = 64 * 1024
"""Kept of an event that is too large for the list: enough to recognize it."""
GATHER_SECONDS = 1.0
"""Reads are gathered this long, or until a batch is full."""
FETCHED_BYTES = 64 * 1024
FETCHED_MS = 250
"""`fetch.min.bytes` and `fetch.wait.max.ms` of the persister: it gathers anyway, so the broker may answer less often.
"""
UNSENT_SECONDS = 0.2
WRITE_SECONDS = 0.005
"""Messages are gathered only this long: senders wait for them."""
PLACES_SECONDS = 1.0
SIGNS_OF_LIFE = 4
"""Heartbeats per session timeout: two may be lost."""
HANGS, HANGS_AT_LEAST = 3, 10_000
"""`max.poll.interval.ms`: three session timeouts, at least 10 s. A rebalance waits this long for a dead member, and
after a restart a broker may also wait for one that has left.
"""

Handle = Callable[[Sequence[Consumed]], Awaitable[None]]
Bury = Callable[[Consumed, str, int], Awaitable[None]]


class WorkerSupervisor:
    def __init__(self, service: Readstate, roles: Sequence[str]) -> None:
        self._service = service
        self._cluster = service.cluster
        self._roles = roles
        self._runners: list[Runner[Consumed]] = []
        self._periodic: list[Reconciler | Auditor] = []
        self._beside: list[asyncio.Task[None]] = []

    def states(self) -> dict[str, str]:
        """Each role, and "ok" or why it makes no progress."""
        return {one.name: one.state for one in (*self._runners, *self._periodic)}

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until `stopping` is set, and finish the batches in flight. If one role fails, all stop.

        Consumes nothing before the topics are seen: with another number of partitions, channels would be mixed up.
        """
        await _first(self._cluster.topics_seen, stopping)
        if stopping.is_set():
            return
        for role in self._roles:
            await self._start_role(role)
        work = [asyncio.create_task(one.run(stopping)) for one in (*self._runners, *self._periodic)]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            stopping.set()
            await asyncio.wait(work)
            for task in self._beside:
                await cancel(task)
        for one in work:
            one.result()

    async def _start_role(self, role: str) -> None:
        topics, settings = self._cluster.topics, self._service.settings
        match role:
            case _ if role == MESSAGE_WRITER:
                consumer = self._consumer(topics.writer, topics.messages)
                writer = _Writer(self._service, consumer, await self._cluster.watcher.topic_id(topics.messages))
                self._beside.append(asyncio.create_task(writer.keep_places()))
                self._start(role, consumer, writer.handle, settings.write_batch, WRITE_SECONDS, writer.dead_letter)
            case _ if role == RECEIPT_PERSISTER:
                consumer = self._consumer(topics.persister, topics.reads, gathers=True)
                persister = self._persister()
                handle, most = _persist(persister), settings.persist_batch
                self._start(role, consumer, handle, most, GATHER_SECONDS, self._dead_letter, persister.throttle_delay)
            case _ if role == STATUS_UPDATE:
                consumer = self._consumer(topics.status_update, topics.unsent)
                self._start(role, consumer, self._update_status(), MAX_UNSENT, UNSENT_SECONDS, self._list)
            case _ if role == DEAD_LETTERS:
                dead = (topics.dead(topics.reads), topics.dead(topics.messages))
                consumer = self._consumer(topics.dead_letters, *dead)
                self._start(role, consumer, self._repair(), MAX_LETTERS, GATHER_SECONDS, self._list)
            case _ if role == RECONCILER:
                self._periodic.append(Reconciler(self._service.repair, self._service.badge, settings.reconcile_every))
            case _ if role == AUDITOR:
                self._periodic.append(Auditor(self._service.audit, self._service.repair.claim, settings.audit_sample))

    def _consumer(self, group: str, *topics: str, gathers: bool = False) -> KafkaConsumer:
        silence = self._service.settings.session_timeout
        hangs = max(HANGS * silence, HANGS_AT_LEAST)
        options = {
            "session.timeout.ms": silence,
            "heartbeat.interval.ms": silence // SIGNS_OF_LIFE,
            "max.poll.interval.ms": hangs,
        }
        if gathers:
            options |= {"fetch.min.bytes": FETCHED_BYTES, "fetch.wait.max.ms": FETCHED_MS}
        watcher, patience = self._cluster.watcher, 2 * hangs / 1000  # longer than a rebalance waits for a dead member
        return KafkaConsumer({**self._cluster.options, **options}, group, topics, watcher, patience=patience)

    def _start(
        self,
        role: str,
        consumer: KafkaConsumer,
        handle: Handle,
        most: int,
        seconds: float,
        dead_letter: Bury,
        throttle_delay: Callable[[], float] = lambda: 0.0,
    ) -> None:
        tracing = self._service.tracing
        self._runners.append(
            Runner(
                role,
                consumer,
                handle,
                dead_letter,
                most=most,
                seconds=seconds,
                throttle_delay=throttle_delay,
                tracing=tracing,
            )
        )

    # ------------------------------------------------------------ handlers

    def _persister(self) -> SharedPersister:
        service, cluster = self._service, self._cluster
        return SharedPersister(
            ReceiptPersister(service.durable.merge_unless_erased),
            service.hot.users,
            cluster.freshness.must_merge,
            service.clock,
            service.settings.persist_rate,
        )

    def _update_status(self) -> Handle:
        update = StatusUpdate(self._service.hot.badges, self._service.durable, self._cluster.bus)

        async def handle(records: Sequence[Consumed]) -> None:
            await update.handle([decode_unsent(record.value) for record in records])

        return handle

    def _repair(self) -> Handle:
        letters = _dead_letters(self._service)

        async def handle(records: Sequence[Consumed]) -> None:
            await letters.handle([decode_dead_letter(record.value) for record in records])

        return handle

    # ------------------------------------------------------------ dead letters

    async def _dead_letter(self, record: Consumed, reason: str, tries: int) -> None:
        await _put_aside(self._service, make_dead_letter(record, reason, tries, self._service.clock()))

    async def _list(self, record: Consumed, reason: str, tries: int) -> None:
        """For events that can't be repaired: to the list in the database, not to a dead-letter topic."""
        failed = fitting(make_dead_letter(record, reason, tries, self._service.clock()))
        await self._service.durable.put_dead_letters([failed])
        DLT_FAILED.labels(record.topic).inc()


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            await cancel(wait)


def _persist(persister: SharedPersister) -> Handle:
    async def handle(records: Sequence[Consumed]) -> None:
        await persister.handle([decode_read(record.value) for record in records])

    return handle


async def _put_aside(service: Readstate, failed: DeadLetter) -> None:
    """Send a failed event to its dead-letter topic.

    An event grows when it becomes text in a dead letter. If Kafka refuses it for its size, it is repaired or listed
    here; otherwise it would end every process that consumes it.
    """
    try:
        await service.cluster.log.dead(failed.topic, [failed])
    except TooLarge:
        await _dead_letters(service).handle([fitting(failed)])


def _dead_letters(service: Readstate) -> DeadLetters:
    return DeadLetters(
        service.durable,
        service.hot.users,
        service.clock,
        reads=service.cluster.topics.reads,
        decode=decode_read,
        whose=decode_whose,
    )


def make_dead_letter(record: Consumed, reason: str, tries: int, now: int) -> DeadLetter:
    text = record.value.decode("utf-8", "replace")
    return DeadLetter(text, reason, tries, record.topic, record.partition, record.offset, now)


def fitting(failed: DeadLetter) -> DeadLetter:
    """The dead letter as the list in the database can hold it, with the complete event if it can ever be replayed.

    Kafka accepts no event above `MOST_BYTES_OF_ALL`. JSON inside JSON is at most twice as large, but arbitrary bytes
    may grow beyond what the database takes; of those only the first bytes are kept.
    """
    size = len(failed.event.encode())
    failed = replace(failed, error=_beginning(failed.error))
    if size <= MOST_BYTES_OF_ALL and len(json.encode(failed.event)) <= 2 * MOST_BYTES_OF_ALL + 2:
        return failed
    shown = _beginning(failed.event)
    lost = f" (only the first {len(shown.encode()):,} of {size:,} bytes are kept: it can't be played again)"
    return replace(failed, event=shown, error=failed.error + lost)


def _beginning(text: str) -> str:
    return text.encode()[:SHOWN_BYTES].decode(errors="ignore")


class _Writer:
    """The message writer over Kafka, which publishes the log positions it has applied."""

    def __init__(self, service: Readstate, consumer: KafkaConsumer, source: str) -> None:
        self._service = service
        self._cluster = service.cluster
        self._consumer = consumer
        self._source = source
        self._next: dict[int, int] = {}
        """The next offset of each partition, as far as this process has applied it."""
        self._bases: dict[int, int] = {}
        hot = service.hot
        self._writer = MessageWriter(
            service.durable,
            hot.users,
            hot.channels,
            hot.badges,
            hot.presence,
            self._cluster.bus,
            self._cluster.log.reads,
            self._note_away,
            service.focus.read,
            None,
            UnannouncedWrites(),
            service.clock,
            service.instance_id,
        )

    async def handle(self, records: Sequence[Consumed]) -> None:
        """Apply a batch, then publish its log positions.

        Events with epochs that may be too low (`in_doubt`) wait until the hot store is fresh.
        """
        events = [Delivery(decode_channel_event(one.value), one.offset, one.partition, one.epoch) for one in records]
        if any(one.event.in_doubt for one in events):
            await self._cluster.notes.generation()
            await self._cluster.freshness.caught_up()
        await self._make_sure_of_source(records)
        effects = await self._writer.handle(events, self._source)
        self._bases |= {one.part: of.position - one.position - 1 for one, of in zip(events, effects, strict=True)}
        await self._done(records)

    async def dead_letter(self, record: Consumed, reason: str, tries: int) -> None:
        """Dead-letter an event and pass its offset, so that no request waits for it any longer."""
        await _put_aside(self._service, make_dead_letter(record, reason, tries, self._service.clock()))
        await self._done([record])

    async def keep_places(self) -> None:
        """Publish the positions of newly assigned partitions, and of all partitions when the hot store has lost them.

        Also looks for partitions that have lost their tail.
        """
        generation = 0
        while True:
            try:
                await self._look_for_cuts()
                number = await self._cluster.notes.generation()
                if self._consumer.taken() or number != generation:
                    ends = await self._consumer.ends()
                    await self._pass({part: done for (_, part), (done, end) in ends.items() if done <= end})
                    generation = number
            except Exception as error:
                log.debug("places are not told yet", action=MESSAGE_WRITER, reason=repr(error))
            await asyncio.sleep(PLACES_SECONDS)

    async def _look_for_cuts(self) -> None:
        """A partition that ends before the applied offset has lost its tail: its next records are new, not replays.

        The applied offset is read before the end, so a partition that has lost nothing never appears to end before it.
        """
        durable, mine = self._service.durable, {part for _, part in self._consumer.assigned()}
        places = {part: place for part, place in (await durable.places(self._source)).items() if part in mine}
        ends = await self._cluster.watcher.ends(self._cluster.topics.messages) if places else {}
        cut = [part for part, (_, offset) in places.items() if ends.get(part, offset) < offset]
        if not cut or await self._is_made_anew():
            return
        for part in cut:
            position, applied = places[part]
            if await durable.cut(self._source, part, ends[part], places[part]):
                faults = {"part": part, "end": ends[part], "applied": applied}
                log.warning("a partition has lost its end: its offsets are used again", action=MESSAGE_WRITER, **faults)
                self._bases[part] = position - ends[part]
                await self._pass({part: ends[part]})

    async def _make_sure_of_source(self, records: Sequence[Consumed]) -> None:
        """If a partition does not continue at the expected offset, check whether the topic was recreated.

        Its offsets restart then. Taken for offsets of the old topic, they would count as applied.
        """
        firsts = {one.partition: one.offset for one in reversed(records)}
        if not firsts.items() <= self._next.items():
            await self._is_made_anew()

    async def _is_made_anew(self) -> bool:
        source = await self._cluster.watcher.topic_id(self._cluster.topics.messages)
        if source == self._source:
            return False
        log.warning("the topic was made anew: its offsets begin again", action=MESSAGE_WRITER)
        self._source, self._bases = source, {}
        return True

    async def _done(self, records: Sequence[Consumed]) -> None:
        ends = {one.partition: one.offset + 1 for one in records}
        await self._pass(ends)
        self._next |= ends

    async def _pass(self, offsets: dict[int, int]) -> None:
        """Publish that everything before these offsets is applied."""
        bases = self._bases  # of this source: a recreated topic gets a new dict
        if not offsets.keys() <= bases.keys():
            places = await self._service.durable.places(self._source)
            bases |= {part: position - offset for part, (position, offset) in places.items()}
        known = {part: (bases[part] + offset, offset) for part, offset in offsets.items() if part in bases}
        await self._cluster.hot.channels.passed(known)

    async def _note_away(self, effects: Sequence[Effect]) -> None:
        now = self._service.clock()
        events = [
            UnsentEvent(
                one.sender_id,
                one.receiver_id,
                one.message_id,
                one.channel_id,
                effect.message.at if effect.message is not None else one.accepted_at,
                one.accepted_at,
                now,
            )
            for effect in effects
            for one in effect.undelivered
        ]
        if events:
            await self._cluster.log.unsent(events)
            UNSENT.inc(len(events))
