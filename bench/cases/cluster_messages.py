"""Messages of the cluster profile: accepted when Kafka has them, done when the writer has applied them."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import asyncpg  # type: ignore[import-untyped]
import msgspec
import uvloop

from ..cluster import Cluster, running, until
from ..load import BenchmarkError, Load, Wire, bursting, encode
from ..meter import Spent, after, before
from ..quiet import Quiet
from ..report import Result, number, times
from ..servers import Server
from ..world import channel_id, message_batch, put_channel, user_id, wake
from . import Setting

SIZE = 100
CONNECTIONS = 8
SINGLE_CONNECTIONS = 64
TARGETS = {(2, True): (9.0, 15.0), (100, True): (2.5, 5.0)}
"""Ratio and aim beside the plain design, by members and whether in batches."""
NONE = (0.0, 0.0)
HEADS = "SELECT sum(last_seq) FROM channels WHERE channel_id = ANY($1)"
LOADED = 1_000
"""Members of a large channel that are in the hot store."""
ABOUT = (
    "The cluster profile on one machine, everything on the same cores: the load generator, {processes}; {versions}, "
    "configured as docs/servers.md advises. "
    f"`POST /v1/messages`, {SIZE} in a request over {CONNECTIONS} connections, and one in a request over "
    f"{SINGLE_CONNECTIONS}; each to the next of the channels of one size: {{sizes}}. Channels of 2 and of 100 members "
    f"are counted by ledger, and all their members are in the hot store; those of 10,000 by timeline, and {LOADED:,} "
    "members are. A message is accepted when Kafka has acknowledged it; it is done when the writer has applied it, in "
    "PostgreSQL and in Valkey, so that counts have it. In a second: from the first request until the last message is "
    "done; processor time until the badges are done too. At the end every message must be in PostgreSQL, and "
    "members must have as many unread. Beside it, over the "
    "same servers and in turns, the plain design (baselines/plain_cluster.py), one message in a request: a record "
    "that is waited for, a consumer that stores one message after another and puts it into a sorted set of every "
    "member, in one pipeline. Nobody is connected."
)


@dataclass
class Kind:
    """Channels of one size."""

    members: int
    channels: Sequence[int]
    batched: int
    """Messages of one round, in batches."""
    single: int
    plain: int
    """Fewer, where each takes long."""
    heads: dict[str, dict[int, int]] = field(default_factory=lambda: {"ours": {}, "plain": {}})
    """The newest seq of each channel, at each server."""

    def inside(self, channel: int) -> list[str]:
        """Who is in a channel; nobody is in two of the large ones."""
        first = channel * 37 % 5_000 if self.members <= 100 else 10_000 + (channel - self.channels[0]) * self.members
        return [user_id(first + place) for place in range(self.members)]

    def places(self, side: str, count: int) -> Iterator[tuple[int, int]]:
        """The next (channel, seq), one channel after another."""
        heads = self.heads[side]
        for index in range(count):
            channel = self.channels[index % len(self.channels)]
            heads[channel] = heads.get(channel, 0) + 1
            yield channel, heads[channel]


@dataclass
class Pace:
    """What was measured of one way of sending to channels of one size."""

    loads: list[Load] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    """Messages in a second."""
    spent: Spent = field(default_factory=Spent)
    """Until also the badges are done."""
    messages: int = 0


def _kinds(quick: bool) -> list[Kind]:
    if quick:
        return [
            Kind(2, range(1_000, 1_020), 200, 64, 64),
            Kind(100, range(2_000, 2_005), 100, 64, 64),
            Kind(10_000, range(3_000, 3_001), 100, 64, 3),
        ]
    return [
        Kind(2, range(1_000, 1_200), 4_000, 2_000, 1_000),
        Kind(100, range(2_000, 2_020), 2_000, 1_000, 300),
        Kind(10_000, range(3_000, 3_003), 2_000, 1_000, 20),
    ]


def run(setting: Setting) -> Result:
    """All sizes and both servers, in turns."""
    kinds, rounds = _kinds(setting.quick), 1 if setting.quick else 3
    quiet = Quiet(setting.say, setting.quick)
    with running(setting.directory, setting.say) as cluster:
        for kind in kinds:
            setting.say(f"making channels of {kind.members:,} members")
            _make(cluster, kind)
        paces = {(kind.members, way): Pace() for kind in kinds for way in ("batches", "single", "plain")}
        for turn in range(1, rounds + 1):
            for kind in kinds:
                for way in ("batches", "single", "plain"):
                    quiet.wait()
                    setting.say(f"round {turn} of {rounds}, {kind.members:,} members, {way}")
                    uvloop.run(_round(cluster, kind, way, paces[kind.members, way]))
        setting.say("looking for every message")
        checked = uvloop.run(_check(cluster, kinds))
        sizes = ", ".join(f"{len(kind.channels)} of {kind.members:,} members" for kind in kinds)
        result = Result(ABOUT.format(processes=cluster.processes, versions=cluster.versions, sizes=sizes))
    _tell(result, kinds, paces, checked)
    quiet.tell(result)
    return result


def _make(cluster: Cluster, kind: Kind) -> None:
    for server in (cluster.serve, cluster.plain):
        wire = server.wire()
        for channel in kind.channels:
            put_channel(wire, channel, kind.inside(channel))
    wire = cluster.serve.wire()
    for channel in kind.channels:
        wake(wire, kind.inside(channel)[:LOADED])
    cluster.settle()


# ---------------------------------------------------------------- measuring


async def _round(cluster: Cluster, kind: Kind, way: str, pace: Pace) -> None:
    """A burst, and the time until all of it is done."""
    server, side = (cluster.plain, "plain") if way == "plain" else (cluster.serve, "ours")
    count = {"batches": kind.batched, "single": kind.single, "plain": kind.plain}[way]
    places = list(kind.places(side, count))
    size, connections = (SIZE, CONNECTIONS) if way == "batches" else (1, SINGLE_CONNECTIONS)
    requests = _requests(server, places, size, connections)
    async with cluster.watching() as progress:
        begin = await before(cluster)
        load = await bursting(server.port, requests, _accepts(size), 300)
        await _until_stored(cluster.plain_database if way == "plain" else cluster.postgres.url, kind, side)
        if way != "plain":
            await progress.applied()
        end = time.perf_counter()
        if way != "plain":
            await progress.settled()
        pace.spent.add(begin, await after(cluster))
    pace.loads.append(load)
    pace.done.append(count / (end - begin.at))
    pace.messages += count


def _requests(server: Server, places: Sequence[tuple[int, int]], size: int, connections: int) -> list[list[bytes]]:
    parts = [places[start : start + size] for start in range(0, len(places), size)]
    requests = [encode("POST", "/v1/messages", message_batch(part), server.key) for part in parts]
    return [requests[start::connections] for start in range(min(connections, len(requests)))]


def _accepts(size: int) -> Callable[[bytes], bool]:
    return lambda body: body.count(b'"accepted"') == size


async def _until_stored(database: str, kind: Kind, side: str) -> None:
    """Return when PostgreSQL has every message of these channels, whose seqs have no gaps."""
    wanted = sum(kind.heads[side].values())
    names = [channel_id(channel) for channel in kind.channels]
    connection = await asyncpg.connect(database)
    heads = await connection.prepare(HEADS)

    async def stored() -> bool:
        return bool(await heads.fetchval(names) == wanted)

    try:
        await until(stored, "every message is in PostgreSQL")
    finally:
        await connection.close()


async def _check(cluster: Cluster, kinds: Sequence[Kind]) -> int:
    """Every message is stored, and counted for those who are asked."""
    for kind in kinds:
        await _until_stored(cluster.postgres.url, kind, "ours")
        wire = cluster.serve.wire()
        for channel in kind.channels[:3]:
            _check_counts(wire, kind, channel)
    return sum(sum(kind.heads["ours"].values()) for kind in kinds)


def _check_counts(wire: Wire, kind: Kind, channel: int) -> None:
    for user in kind.inside(channel)[:3]:
        answer = wire.call("GET", f"/v1/users/{user}/channels/{channel_id(channel)}/unread")
        found, wanted = msgspec.json.decode(answer)["unread"], kind.heads["ours"][channel]
        if found != wanted:
            raise BenchmarkError(f"{wanted} messages were sent to {channel_id(channel)}, {user} has {found} unread")


# ---------------------------------------------------------------- telling


def _tell(result: Result, kinds: Sequence[Kind], paces: dict[tuple[int, str], Pace], checked: int) -> None:
    for kind in kinds:
        batches, single, plain = (paces[kind.members, way] for way in ("batches", "single", "plain"))
        to = f"{kind.members:,} members"
        theirs = median(plain.done)
        for name, pace in ((f"batches of {SIZE}", batches), ("single", single)):
            mine = median(pace.done)
            what, (target, aim) = (
                f"{to}: messages done in a second, {name}",
                TARGETS.get((kind.members, pace is batches), NONE),
            )
            wanted, met = (f"{target:g}× or more (aim {aim:g}×)", mine / theirs >= target) if target else ("", None)
            result.add(what, number(mine), f"{number(theirs)} plain", times(mine / theirs), wanted, met)
        for name, pace, size in ((f"batches of {SIZE}", batches, SIZE), ("single", single, 1)):
            accepted = median(load.rate * size for load in pace.loads)
            other = number(median(load.rate for load in plain.loads)) + " plain" if size == 1 else ""
            result.add(f"{to}: accepted in a second, {name}", number(accepted), other)
        result.add(f"{to}: accepted, single, P50 / P95 / P99", _latency(single), f"{_latency(plain)} plain")
        for name, pace in ((f"batches of {SIZE}", batches), ("single", single), ("plain", plain)):
            pace.spent.tell(result, f"{to}, {name}", "messages", pace.messages)
    result.add("accepted messages that are not in PostgreSQL", f"0 of {checked:,}", target="0", met=True)


def _latency(pace: Pace) -> str:
    return " / ".join(number(median(load.latency(p) for load in pace.loads)) for p in (50, 95, 99)) + " ms"
