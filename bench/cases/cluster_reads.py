"""Reads of the cluster profile, end to end: HTTP, Valkey, Kafka, the answer, and then PostgreSQL."""

import asyncio
import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import asyncpg  # type: ignore[import-untyped]
import msgspec
import uvloop

from ..cluster import Cluster, Use, running, uses
from ..lag import CHANNELS as PROBED
from ..lag import USER as PROBER
from ..lag import Probe
from ..landing import OURS, THEIRS, Table, landing
from ..load import BenchmarkError, Load, bursting, encode
from ..meter import Spent, before
from ..quiet import Quiet
from ..report import Result, number, times
from ..servers import Server
from ..world import SENDER, Readers, Target, Town, channel_id, put_channel, send, user_id, wake
from . import Setting

SIZE = 500
CONNECTIONS = 8
SINGLE_CONNECTIONS = 64
REPEATS = 4
TWICE = 2
PACE = 15_000
"""Reads in a second at which the lag is measured."""
PACED_STEPS = 5
"""How far each pointer may move meanwhile; batches at full speed move the same pointers."""
TARGET, AIM = 30_000, 50_000
TARGET_RATIO, AIM_RATIO = 30, 50
TARGET_SINGLE, AIM_SINGLE = 5, 8
TARGET_P50 = 15
"""Milliseconds of a single read."""
TARGET_LAG, AIM_LAG = 0.8, 0.4
"""Seconds, at that pace."""
LAG_AT_FULL_SPEED = 5
TARGET_DEDUP = 0.3
WRITTEN = "SELECT n_tup_ins + n_tup_upd FROM pg_stat_user_tables WHERE relname = 'read_receipts'"
SPOOLED = "readstate_kafka_fallback_total"
STATISTICS_SECONDS = 11
"""So late PostgreSQL counts what a connection did that has nothing to do since."""
ABOUT = (
    "The cluster profile on one machine, everything on the same cores: the load generator, {processes}; {versions}, "
    "configured as docs/servers.md advises, with one broker and replicas nowhere; `packed_records` is on, as `auto` is "
    "after the first minute. A read is answered when Kafka has "
    "acknowledged it (`produce_timeout` is 5 s, so "
    f"that none goes to the spool because the machine is busy). `POST /v1/reads` with {SIZE} reads in a request over "
    f"{CONNECTIONS} connections, every read another pointer by one message, with more left unread ({{users:,}} users, "
    "{pairs:,} pairs of user and channel, half of them in channels of 100 and half in channels of 1,000 members); the "
    f"same with repeats: each pointer moves {REPEATS} times, by {TWICE} reads in each of two requests that follow each "
    f"other; {PACE:,} reads in a second in such batches, at even "
    f"distances; single reads over {SINGLE_CONNECTIONS} connections. Beside it, over the same servers and in turns, "
    "the plain design (baselines/plain_cluster.py): one write to Valkey, one record that is waited for, one upsert for "
    "each record; it takes single reads only. A first round does not count: Kafka compiles itself in it. "
    "In PostgreSQL: from the first request until the last read is there; 200 rows are looked up every 50 ms, and then "
    "all of them. Round trips are Valkey's writes to its clients. "
    "Lag: a user who reads 20 times in a second meanwhile, from the answer until another connection sees the row. "
    "At the end every pointer that was acknowledged must be in PostgreSQL. Processor time is that of each process "
    "with its children; memory is that at the end (PSS)."
)


@dataclass
class Side:
    """One way of reading at one server, and what was measured with it."""

    name: str
    server: Server
    readers: Readers
    size: int
    target: Target
    probe: Probe
    check: Callable[[bytes], bool]
    pace: int = 0
    """Reads in a second; 0: as fast as they are answered."""
    loads: list[Load] = field(default_factory=list)
    landed: list[float] = field(default_factory=list)
    """Reads in a second, until the last was in PostgreSQL."""
    lags: list[Sequence[float]] = field(default_factory=list)
    spent: Spent = field(default_factory=Spent)

    def forget(self) -> None:
        """What was measured so far does not count."""
        self.loads, self.landed, self.lags, self.spent = [], [], [], Spent()

    @property
    def expected(self) -> dict[tuple[str, str], int]:
        """Where pointers must be that were moved."""
        moved = self.readers.expected().items()
        return {(user, channel): seq for user, pointers in moved for channel, seq in pointers.items() if seq}

    @property
    def reads(self) -> int:
        """All that were answered."""
        return sum(load.requests * self.size for load in self.loads)

    @property
    def rate(self) -> float:
        """Reads answered in a second."""
        return median(load.rate * self.size for load in self.loads)

    def lag(self, percent: float) -> float:
        """Seconds; all rounds together."""
        lags = sorted(lag for some in self.lags for lag in some)
        if not lags:
            raise BenchmarkError(f"{self.name}: the probe had nothing to read")
        return lags[min(len(lags) - 1, int(len(lags) * percent / 100))]


class Scrollers(Readers):
    """Readers who scroll: each request has two messages of every pointer, and two requests follow each other."""

    def __init__(self, town: Town, connections: int) -> None:
        super().__init__(town, connections, SIZE // TWICE)

    def _of_connection(self, index: int, key: str, steps: int, target: Target) -> Iterator[bytes]:
        self._requests = steps // TWICE
        for block, pointer in zip(self._blocks[index], self._pointers[index], strict=True):
            for step in range(1, self._requests * TWICE + 1, TWICE):
                yield scroll(block, pointer + step, key)

    def acknowledge(self, answered: Sequence[int]) -> None:
        """Note how many requests of each connection were answered."""
        for pointers, count in zip(self._pointers, answered, strict=True):
            for place in range(len(pointers)):
                pointers[place] += TWICE * max(0, min(self._requests, count - place * self._requests))


def scroll(block: Sequence[tuple[int, int]], seq: int, key: str) -> bytes:
    """A request in which every pointer moves to this seq, and then to the next."""
    reads = [
        {"user_id": user_id(user), "channel_id": channel_id(channel), "up_to_seq": seq + step}
        for step in range(TWICE)
        for user, channel in block
    ]
    return encode("POST", "/v1/reads", msgspec.json.encode({"reads": reads}), key)


@dataclass
class Plan:
    """How much is measured."""

    town: Town
    rounds: int
    seconds: float
    messages: int
    probes: int
    """Messages in each channel of the probe."""
    pace: int = PACE

    @classmethod
    def of(cls, quick: bool) -> "Plan":
        """Quick: only to see that it works."""
        if quick:
            return cls(Town(users=2_000, small=100, large=10), 1, 3, 5, 30, pace=PACE // 10)
        return cls(Town(users=5_000, small=250, large=25), 3, 8, 8, 130)

    def part(self, start: float, end: float) -> Town:
        """The same town, but only so much of its pairs."""
        town, every = copy.copy(self.town), len(self.town.pairs)
        town.pairs = self.town.pairs[int(every * start) : int(every * end)]
        return town


def run(setting: Setting) -> Result:
    """All in turns."""
    plan = Plan.of(setting.quick)
    with running(setting.directory, setting.say) as cluster:
        sides = _begin(setting, cluster, plan)
        quiet = Quiet(setting.say, setting.quick)
        *alternating, scrolling = sides
        for turn in range(plan.rounds + 1):
            _talk(setting, cluster, plan.town, plan.messages + PACED_STEPS)
            for side in alternating:
                quiet.wait()
                setting.say(f"round {turn} of {plan.rounds}, {side.name}" if turn else f"getting warm, {side.name}")
                steps = PACED_STEPS if side.pace else plan.messages
                uvloop.run(_round(cluster, side, steps, plan.seconds))
                if not turn:
                    side.forget()
        folded = _repeats(setting, cluster, plan, scrolling)
        setting.say("looking for every read")
        checked = uvloop.run(_check(cluster, sides))
        cluster.settle()
        about = ABOUT.format(
            processes=cluster.processes, versions=cluster.versions, users=plan.town.users, pairs=len(plan.town.pairs)
        )
        result = Result(about)
        _tell(result, sides, folded, checked)
        result.add(
            "reads that waited in the spool, because Kafka took longer than `produce_timeout`", _spooled(cluster)
        )
        _tell_use(result, sides[0], uses(cluster.pids))
        quiet.tell(result)
        return result


# ---------------------------------------------------------------- the scene


def _begin(setting: Setting, cluster: Cluster, plan: Plan) -> list[Side]:
    """Make the channels, and wake the users."""
    setting.say("making channels")
    wire, town = cluster.serve.wire(), plan.town
    town.build(wire)
    for channel in PROBED:
        put_channel(wire, channel, [user_id(PROBER), SENDER])
    send(wire, [(channel, seq) for seq in range(1, plan.probes + 1) for channel in PROBED])
    cluster.settle()
    setting.say("loading users")
    wake(wire, [*(user_id(user) for user in range(town.users)), user_id(PROBER)])
    ours = Probe(cluster.serve, cluster.postgres.url, OURS.of_user, plan.probes)
    theirs = Probe(cluster.plain, cluster.plain_database, THEIRS.of_user, 10 * plan.probes)
    singles, batched = plan.part(0.8, 1), Readers(plan.part(0, 0.6), CONNECTIONS, SIZE)
    return [
        Side("batches", cluster.serve, batched, SIZE, "up_to_seq", ours, _all),
        Side(f"{PACE:,} in a second", cluster.serve, batched, SIZE, "up_to_seq", ours, _all, pace=plan.pace),
        Side("single", cluster.serve, Readers(singles, SINGLE_CONNECTIONS, 1), 1, "up_to_seq", ours, _changed),
        Side("plain", cluster.plain, Readers(singles, SINGLE_CONNECTIONS, 1), 1, "up_to_seq", theirs, bool),
        Side("repeats", cluster.serve, Scrollers(plan.part(0.6, 0.8), CONNECTIONS), SIZE, "up_to_seq", ours, _all),
    ]


def _all(body: bytes) -> bool:
    return body.count(b'"changed":true') == SIZE


def _changed(body: bytes) -> bool:
    return b'"changed":true' in body


def _talk(setting: Setting, cluster: Cluster, town: Town, messages: int) -> None:
    setting.say("sending messages")
    town.talk([cluster.serve.wire()], messages)
    cluster.settle()


# ---------------------------------------------------------------- measuring


async def _round(cluster: Cluster, side: Side, messages: int, seconds: float) -> None:
    """A burst, and the time until all of it is in PostgreSQL."""
    requests = side.readers.requests(side.server.key, messages, side.target)
    begin = await before(cluster)
    load = asyncio.create_task(bursting(side.server.port, requests, side.check, seconds, rate=side.pace / side.size))
    probing = asyncio.create_task(side.probe.during(load))
    done = await load
    side.readers.acknowledge(done.answered)
    end, _ = await landing(cluster, *_table(cluster, side), side.expected)
    side.loads.append(done)
    side.landed.append(done.requests * side.size / (end.at - begin.at))
    side.lags.append(await probing)
    side.spent.add(begin, end)


def _table(cluster: Cluster, side: Side) -> tuple[str, Table]:
    if side.server is cluster.plain:
        return cluster.plain_database, THEIRS
    return cluster.postgres.url, OURS


def _repeats(setting: Setting, cluster: Cluster, plan: Plan, side: Side) -> float:
    """A burst with repeats; the share of the reads that needed no row of their own."""
    _talk(setting, cluster, plan.town, REPEATS)
    setting.say("with repeats")
    before = uvloop.run(_written(cluster))
    uvloop.run(_round(cluster, side, REPEATS, plan.seconds))
    after = uvloop.run(_written(cluster))
    return 1 - (after - before) / (side.reads + len(side.lags[0]))


async def _written(cluster: Cluster) -> int:
    """Rows of read states that were written since the beginning."""
    await asyncio.sleep(STATISTICS_SECONDS)
    connection = await asyncpg.connect(cluster.postgres.url)
    try:
        return int(await connection.fetchval(WRITTEN))
    finally:
        await connection.close()


async def _check(cluster: Cluster, sides: Sequence[Side]) -> int:
    """Every pointer that was acknowledged is in PostgreSQL; returns how many of ours."""
    checked = 0
    for mine in (True, False):
        of_design = [side for side in sides if (side.server is cluster.serve) is mine]
        expected = {pair: seq for side in of_design for pair, seq in side.expected.items()}
        _, count = await landing(cluster, *_table(cluster, of_design[0]), expected)
        checked += count if mine else 0
    return checked


def _spooled(cluster: Cluster) -> str:
    for line in cluster.serve.wire().call("GET", "/metrics").decode().splitlines():
        if line.startswith(SPOOLED):
            return f"{float(line.split()[1]):,.0f}"
    raise BenchmarkError(f"there is no {SPOOLED} in the metrics")


# ---------------------------------------------------------------- telling


def _tell(result: Result, sides: Sequence[Side], folded: float, checked: int) -> None:
    batches, paced, single, plain, repeats = sides
    rate, landed, slow = batches.rate, median(batches.landed), median(plain.landed)
    target = f"{TARGET:,} or more (aim {AIM:,})"
    result.add("batches: reads answered in a second", number(rate), target=target, met=rate >= TARGET)
    result.add("batches: reads in a second, in PostgreSQL", number(landed), target=target, met=landed >= TARGET)
    _tell_ratio(result, "batches beside the plain design, answered", rate, plain.rate, TARGET_RATIO, AIM_RATIO)
    _tell_ratio(result, "batches beside the plain design, in PostgreSQL", landed, slow, TARGET_RATIO, AIM_RATIO)
    result.add(f"request of {SIZE}, acknowledged, P50 / P95 / P99", _latency(batches))
    _tell_lag(result, "batches: lag until in PostgreSQL, P50 / P95 / P99", batches, plain)
    _tell_paced(result, paced)
    result.add("with repeats: reads answered in a second", number(repeats.rate))
    what = "with repeats: reads that needed no row of their own"
    result.add(what, f"{folded:.0%}", target=f"over {TARGET_DEDUP:.0%}", met=folded > TARGET_DEDUP)
    _tell_lag(result, "with repeats: lag until in PostgreSQL, P50 / P95 / P99", repeats)
    _tell_ratio(result, "single reads answered in a second", single.rate, plain.rate, TARGET_SINGLE, AIM_SINGLE)
    _tell_ratio(result, "single reads in a second, in PostgreSQL", median(single.landed), slow)
    p50 = median(load.latency(50) for load in single.loads)
    what, target = "single read acknowledged, P50 / P95 / P99", f"P50 under {TARGET_P50} ms"
    result.add(what, _latency(single), f"{_latency(plain)} plain", "", target, p50 < TARGET_P50)
    _tell_lag(result, "single: lag until in PostgreSQL, P50 / P95 / P99", single, plain)
    result.add("acknowledged pointers that are not in PostgreSQL", f"0 of {checked:,}", target="0", met=True)
    for side in sides:
        side.spent.tell(result, side.name, "reads", side.reads)


def _tell_paced(result: Result, side: Side) -> None:
    """The lag at an even pace; without that pace it says nothing."""
    rate, lag = side.rate, side.lag(95)
    result.add(f"asked for {PACE:,} reads in a second: answered", number(rate))
    what = f"at {PACE:,} reads in a second: lag until in PostgreSQL, P50 / P95 / P99"
    target = f"P95 under {TARGET_LAG} s (aim {AIM_LAG} s)"
    result.add(what, _lag(side), target=target, met=lag < TARGET_LAG and rate > 0.95 * PACE)


def _tell_ratio(result: Result, what: str, mine: float, theirs: float, target: float = 0, aim: float = 0) -> None:
    wanted = f"{target:g}× or more (aim {aim:g}×)" if target else ""
    met = mine / theirs >= target if target else None
    result.add(what, number(mine), f"{number(theirs)} plain", times(mine / theirs), wanted, met)


def _latency(side: Side) -> str:
    return " / ".join(number(median(load.latency(p) for load in side.loads)) for p in (50, 95, 99)) + " ms"


def _tell_lag(result: Result, what: str, side: Side, other: Side | None = None) -> None:
    beside = f"{_lag(other)} plain" if other is not None else ""
    result.add(what, _lag(side), beside, "", f"P95 under {LAG_AT_FULL_SPEED} s", side.lag(95) < LAG_AT_FULL_SPEED)


def _lag(side: Side) -> str:
    return " / ".join(number(side.lag(p)) for p in (50, 95, 99)) + " s"


def _tell_use(result: Result, batches: Side, now: dict[str, Use]) -> None:
    """What bounds the rate, as the processor times show it, and memory."""
    cores = len(os.sched_getaffinity(0))
    cpu, seconds = batches.spent.cpu, batches.spent.seconds
    total = sum(cpu.values())
    name, most = max(cpu.items(), key=lambda one: one[1])
    text = (
        f"the processors: these processes keep {total / seconds:.1f} of {cores} cores busy; most of it is "
        f"{name} ({most / total:.0%}, {most / seconds:.2f} of a core)"
    )
    result.add("batches: the bottleneck", text)
    memory = ", ".join(f"{name} {one.memory / 2**20:.0f}" for name, one in now.items())
    result.add("memory at the end, MiB", memory)
