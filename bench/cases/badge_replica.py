"""The newly-unread badge at scale: what Status Update and the write replica spare the hot store."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import uvloop

from readstate.adapters.memory.bus import LocalBus
from readstate.adapters.sql.postgres.store import PostgresStore
from readstate.adapters.sql.session import as_json
from readstate.adapters.valkey.hot import ExclusiveHot
from readstate.domain.events import UnsentEvent
from readstate.domain.model import Undelivered
from readstate.stack import Postgres
from readstate.timings import SqlTimings
from readstate.workers.status_update import StatusUpdate

from ..load import BenchmarkError
from ..quiet import Quiet
from ..report import Result, number, times
from ..servers import on_cores, two_cores
from ..valkey import Measured, command, hot_state, valkey
from ..world import channel_id, message_id, user_id
from . import Setting

SENDERS = 10
"""How many different people write to each receiver."""
BATCH = 5_000
TARGET = 0.9
AT = 1_700_000_000_000
ABOUT = (
    "%s, each on its own, the main one with a core to itself. Messages to %s receivers who are away, each from one of "
    f"{SENDERS} people who write again and again, as events of `ON_MSG_UNSENT` in batches of %s: Status Update folds a "
    "batch and makes packed calls. Compared with one `SADD` for each event, as its own round trip, and with the same "
    "in pipelines of a batch, over a blocking socket. In turns, over the same events. Afterwards every badge must be "
    "what %s counts from the rows of `undelivered`. Main: the processor time of the main store. Writes: senders that "
    "are written to the main store."
)


@dataclass
class Contender:
    """One way to take events in, and what it took."""

    name: str
    seconds: list[float] = field(default_factory=list)
    cpu: float = 0.0
    writes: int = 0
    events: int = 0

    @property
    def pace(self) -> float:
        """Events in a second."""
        return self.events / sum(self.seconds)

    @property
    def cost(self) -> float:
        """Microseconds of the main store for an event."""
        return 1e6 * self.cpu / self.events


def events_of(dice: random.Random, receivers: int, size: int, first: int) -> list[UnsentEvent]:
    """A batch: who writes to whom is drawn anew for each."""
    found = []
    for number_ in range(first, first + size):
        receiver, sender = dice.randrange(receivers), dice.randrange(SENDERS)
        names = (_sender(receiver, sender), user_id(receiver), message_id(receiver, number_), channel_id(receiver))
        found.append(UnsentEvent(*names, AT + number_, AT + number_, AT + number_))
    return found


def _sender(receiver: int, number_: int) -> str:
    return user_id(1 << 24 | receiver * SENDERS + number_)


def run(setting: Setting) -> Result:
    """Four ways, in turns."""
    core, other = two_cores()
    with (
        Postgres(setting.directory / "postgres") as database,
        valkey(setting.directory, core) as main,
        valkey(setting.directory / "second", other) as replica,
        on_cores(other),
    ):
        return uvloop.run(_measure(setting, database, main, replica))


async def _measure(setting: Setting, database: Postgres, main: Measured, replica: Measured) -> Result:
    receivers, size, rounds = (100, 1_000, 3) if setting.quick else (1_000, BATCH, 40)
    quiet, dice = Quiet(setting.say, setting.quick), random.Random(1)
    durable = await PostgresStore.open(database.url, 100, SqlTimings())
    alone = await hot_state(main.url, "alone:")
    replicated = await hot_state(main.url, "replicated:", replica.url)
    for hot in (alone, replicated):
        await _load(hot, receivers)
    ways = [Contender(name) for name in ("single", "pipelined", "alone", "replicated")]
    for turn in range(rounds):
        setting.say(f"turn {turn + 1} of {rounds}")
        if turn % 10 == 0:
            quiet.wait()
        events = events_of(dice, receivers, size, turn * size)
        await durable._run("put_undelivered", rows=as_json([_undelivered(event) for event in events]))
        for place in range(len(ways)):
            await _take(ways[(place + turn) % len(ways)], main, alone, replicated, durable, events)
    await _check(durable, alone, replicated, receivers)
    result = Result(ABOUT % (main.version, f"{receivers:,}", f"{size:,}", f"PostgreSQL {database.record.version}"))
    _tell(result, *ways)
    quiet.tell(result)
    for one in (alone, replicated, durable):
        await one.close()
    return result


async def _load(hot: ExclusiveHot, receivers: int) -> None:
    """Nobody has written yet, and every badge is in the hot store."""
    for receiver in range(receivers):
        ticket = await hot.badges.begin(user_id(receiver))
        assert ticket is not None
        await hot.badges.install(user_id(receiver), ticket, 0, frozenset())


def _undelivered(event: UnsentEvent) -> Undelivered:
    return Undelivered(event.receiver_id, event.accepted_at, event.sender_id, event.channel_id, event.message_id)


async def _take(
    way: Contender,
    main: Measured,
    alone: ExclusiveHot,
    replicated: ExclusiveHot,
    durable: PostgresStore,
    events: Sequence[UnsentEvent],
) -> None:
    commands = [command(b"SADD", b"plain:" + one.receiver_id.encode(), one.sender_id.encode()) for one in events]
    main.line.ask([command(b"CONFIG", b"RESETSTAT")])
    used, begin = main.cpu(), time.perf_counter()
    match way.name:
        case "single":
            for one in commands:
                main.line.ask([one])
        case "pipelined":
            main.line.ask(commands)
        case name:
            hot = alone if name == "alone" else replicated
            await StatusUpdate(hot.badges, durable, LocalBus()).handle(events)
    way.seconds.append(time.perf_counter() - begin)
    way.cpu += main.cpu() - used
    way.writes += main.calls("sadd")
    way.events += len(events)


async def _check(durable: PostgresStore, alone: ExclusiveHot, replicated: ExclusiveHot, receivers: int) -> None:
    """All ways of counting agree."""
    for receiver in range(receivers):
        user = user_id(receiver)
        counts = [await hot.badges.count(user) for hot in (alone, replicated)]
        by_sql = await durable.badge_count(user)
        if counts != [by_sql, by_sql]:
            raise BenchmarkError(f"the badge of {user} is {counts} by the sets and {by_sql} by SQL")


def _tell(result: Result, single: Contender, pipelined: Contender, alone: Contender, replicated: Contender) -> None:
    saved = 1 - replicated.writes / alone.writes
    result.add(
        "writes to the main store that the replica saves",
        f"{saved:.1%}",
        f"{number(replicated.writes)} of {number(alone.writes)} are left",
        target=f"{TARGET:.0%} or more",
        met=saved >= TARGET,
    )
    result.add(
        "writes for 1,000 events: folded, without a replica",
        number(1000 * alone.writes / alone.events),
        f"{number(1000 * single.writes / single.events)} plain",
        times(single.writes / single.events * alone.events / alone.writes),
    )
    result.add(
        "main, an event: with the replica beside without",
        f"{number(replicated.cost)} µs",
        f"{number(alone.cost)} µs without",
        times(alone.cost / replicated.cost),
    )
    for way, label in ((alone, "without a replica"), (replicated, "with a replica")):
        for other, what in ((single, "a SADD each"), (pipelined, "SADDs in pipelines")):
            result.add(
                f"events in a second by Status Update, {label}",
                number(way.pace),
                f"{number(other.pace)} {what}",
                times(way.pace / other.pace),
            )
    result.add(
        "main, an event: Status Update without a replica",
        f"{number(alone.cost)} µs",
        f"{number(single.cost)} µs a SADD each, {number(pipelined.cost)} µs in pipelines",
        times(single.cost / alone.cost),
    )
