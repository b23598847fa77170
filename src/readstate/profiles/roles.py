"""The workers of a process in the cluster profile: each role with its consumer."""

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
"""Of what the list can't hold: enough to see what it was."""
GATHER_SECONDS = 1.0
"""So long reads are gathered; less, if a batch is full."""
FETCHED_BYTES = 64 * 1024
FETCHED_MS = 250
"""So much, or so long, Kafka gathers of what is gathered here anyway: it answers less often."""
UNSENT_SECONDS = 0.2
WRITE_SECONDS = 0.005
"""So long messages are: somebody waits for them."""
PLACES_SECONDS = 1.0
SIGNS_OF_LIFE = 4
"""Of a consumer, in the time after which it is given up: two may be lost."""
HANGS, HANGS_AT_LEAST = 3, 10_000
"""So many such times, and milliseconds, a worker may get nothing done. It is also how long its group waits for one that
does not come when it is shared out anew, and brokers do forget after a restart that one is gone.
"""

Handle = Callable[[Sequence[Consumed]], Awaitable[None]]
Bury = Callable[[Consumed, str, int], Awaitable[None]]


class WorkerSupervisor:
    """Runs roles over an open service of the cluster profile."""

    def __init__(self, service: Readstate, roles: Sequence[str]) -> None:
        self._service = service
        self._cluster = service.cluster
        self._roles = roles
        self._runners: list[Runner[Consumed]] = []
        self._periodic: list[Reconciler | Auditor] = []
        self._beside: list[asyncio.Task[None]] = []

    def states(self) -> dict[str, str]:
        """Each role, and "ok" or why it does not get on."""
        return {one.name: one.state for one in (*self._runners, *self._periodic)}

    async def run(self, stopping: asyncio.Event) -> None:
        """Until it is told to stop: what was taken is finished then. A role that fails by itself ends all.

        Nothing is taken before the topics are seen: with another number of partitions channels would be mixed up.
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
                self._periodic.append(Auditor(self._service.repair, settings.audit_sample))

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
        watcher, patience = self._cluster.watcher, 2 * hangs / 1000  # not while the group waits for another
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

    # ------------------------------------------------------------ what each does with a batch

    def _persister(self) -> SharedPersister:
        service, cluster = self._service, self._cluster
        return SharedPersister(
            ReceiptPersister(service.durable, shared=True),
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

    # ------------------------------------------------------------ what fails again and again

    async def _dead_letter(self, record: Consumed, reason: str, tries: int) -> None:
        """To the topic of dead letters."""
        await _put_aside(self._service, make_dead_letter(record, reason, tries, self._service.clock()))

    async def _list(self, record: Consumed, reason: str, tries: int) -> None:
        """Where nothing can be repaired: it is listed."""
        failed = fitting(make_dead_letter(record, reason, tries, self._service.clock()))
        await self._service.durable.put_dead_letters([failed])
        DLT_FAILED.labels(record.topic).inc()


async def _first(*events: asyncio.Event) -> None:
    """Returns when one of them is set."""
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
    """To the topic of dead letters. As text in a letter an event is larger than it was: one that Kafka does not take
    any more is repaired or listed here and now, or it would end every process that comes to it.
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
    """An event that failed, with the reason."""
    text = record.value.decode("utf-8", "replace")
    return DeadLetter(text, reason, tries, record.topic, record.partition, record.offset, now)


def fitting(failed: DeadLetter) -> DeadLetter:
    """The letter as the list in the database can hold it: with all of the event, if that could ever be played again.

    Kafka takes no larger one; and JSON, put into JSON, has at most twice its size, while the database might not take
    what junk may grow to.
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
    """The message writer over a shared log, and what it tells of its places."""

    def __init__(self, service: Readstate, consumer: KafkaConsumer, source: str) -> None:
        self._service = service
        self._cluster = service.cluster
        self._consumer = consumer
        self._source = source
        self._next: dict[int, int] = {}
        """The offset that each partition goes on with, as far as this process has done it."""
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
            service.reads.read_in_focus,
            None,
            UnannouncedWrites(),
            service.clock,
            service.instance_id,
        )

    async def handle(self, records: Sequence[Consumed]) -> None:
        """Apply a batch; its places are told when all of it is done."""
        events = [Delivery(decode_channel_event(one.value), one.offset, one.partition, one.epoch) for one in records]
        if any(one.event.in_doubt for one in events):
            await self._cluster.notes.generation()
            await self._cluster.freshness.caught_up()
        await self._make_sure_of_source(records)
        effects = await self._writer.handle(events, self._source)
        self._bases |= {one.part: of.position - one.position - 1 for one, of in zip(events, effects, strict=True)}
        await self._done(records)

    async def dead_letter(self, record: Consumed, reason: str, tries: int) -> None:
        """Put an event aside: nobody waits for it any longer."""
        await _put_aside(self._service, make_dead_letter(record, reason, tries, self._service.clock()))
        await self._done([record])

    async def keep_places(self) -> None:
        """Tells the places of partitions that were taken over, and all of them when the hot store has lost them. Looks
        for partitions that have lost their end.
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
        """A partition that ends before what is applied has lost its end: what comes there is new, and no replay.

        Its place is read first: a log that has lost nothing never ends before it.
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
        """Where a partition does not go on as it should, the topic may have been made anew meanwhile.

        Its offsets begin again then: taken for those of the old one, they would count as done.
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
        """Everything before these offsets is applied."""
        bases = self._bases  # of this source, should another one be found meanwhile
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
