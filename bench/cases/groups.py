"""Messages to groups of 80 people who are all away, beside six who sync and read: embedded, and a small cluster."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import asyncpg  # type: ignore[import-untyped]
import msgspec
import uvloop

from ..cluster import ONE_WORKER, Cluster, running, until
from ..load import HOST, BenchmarkError, Reply, bursting, encode
from ..meter import Spent, after, before
from ..quiet import Quiet
from ..report import Result, number
from ..servers import Server, readstate
from ..world import channel_id, message_batch, put_channel, user_id, wake
from . import Setting

GROUPS = 10
MEMBERS = 80
USERS = 200
SENDERS = tuple(user_id(0xF000 + number) for number in range(4))
"""Write everything; they are in no group."""
READERS = 6
ALONE, BESIDE = 100, 20
"""Messages in a request."""
CONNECTIONS = 4
TARGET_CLUSTER, AIM_CLUSTER = 500, 1_000
TARGET_ALONE, AIM_ALONE = 2_500, 4_000
TARGET_BESIDE, AIM_BESIDE = 600, 1_000
TARGET_BYTES, AIM_BYTES = 600, 400
HEADS = "SELECT sum(last_seq) FROM channels WHERE channel_id = ANY($1)"
ABOUT = (
    f"{GROUPS} groups of {MEMBERS} members out of {USERS} users, of whom nobody is connected and nobody taps the "
    f"badge; {len(SENDERS)} people from outside write in turns. `POST /v1/messages` over {CONNECTIONS} connections: "
    f"{ALONE} in a request while nothing else happens, and {BESIDE} in a request beside {READERS} members who, one "
    "request after another, sync (`GET …/unread`) and read the first channel with something unread. In a second: from "
    "the first request until the last message is applied. Embedded: SQLite, one process; disk is what its data "
    "directory has grown by between two stops. Cluster: {processes}; {versions}; disk is that of the database. At the "
    "end members who read nothing must have every message unread."
)


@dataclass
class Groups:
    """The groups, and how much was said in them."""

    heads: Counter[int] = field(default_factory=Counter)

    @staticmethod
    def members(group: int) -> list[str]:
        return [user_id((group * 37 + place) % USERS) for place in range(MEMBERS)]

    def make(self, server: Server) -> None:
        wire = server.wire()
        for group in range(GROUPS):
            put_channel(wire, group, self.members(group))
        wake(wire, [user_id(user) for user in range(USERS)])

    def requests(self, server: Server, count: int, size: int) -> list[list[bytes]]:
        """For each connection, of groups of its own, so that seqs come in order."""
        sources: list[list[bytes]] = []
        for connection in range(CONNECTIONS):
            places = list(self._places(range(connection, GROUPS, CONNECTIONS), count // CONNECTIONS))
            parts = [places[start : start + size] for start in range(0, len(places), size)]
            sources.append([encode("POST", "/v1/messages", message_batch(part, SENDERS), server.key) for part in parts])
        return sources

    def _places(self, groups: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
        for index in range(count):
            group = groups[index % len(groups)]
            self.heads[group] += 1
            yield group, self.heads[group]

    def check(self, server: Server, readers: Sequence[str]) -> int:
        """Members who read nothing have everything unread; returns how many messages there are."""
        wire = server.wire()
        for group in range(GROUPS):
            for user in [member for member in self.members(group) if member not in readers][:2]:
                answer = wire.call("GET", f"/v1/users/{user}/channels/{channel_id(group)}/unread")
                if (found := msgspec.json.decode(answer)["unread"]) != self.heads[group]:
                    raise BenchmarkError(f"{self.heads[group]} messages were sent, {user} has {found} unread")
        return self.heads.total()


READING = [user_id(37 * group + 5) for group in range(READERS)]
"""Each is in several groups."""


@dataclass
class Readers:
    """People who sync and read, as long as others write."""

    server: Server
    syncs: list[float] = field(default_factory=list)
    """Seconds of each."""
    reads: int = 0
    over: bool = False

    async def run(self) -> None:
        """Until it is over."""
        await asyncio.gather(*map(self._one, READING))

    async def _one(self, user: str) -> None:
        reader, writer = await asyncio.open_connection(HOST, self.server.port)
        reply = Reply()

        async def ask(method: str, path: str, body: bytes = b"") -> bytes:
            writer.write(encode(method, f"/v1/users/{user}/{path}", body, self.server.key))
            while (answer := reply.feed(await reader.read(1 << 16))) is None:
                pass
            if answer[0] >= 300:
                raise BenchmarkError(f"{answer[0]} {answer[1][:500]!r}")
            return answer[1]

        while not self.over:
            begin = time.perf_counter()
            channels = msgspec.json.decode(await ask("GET", "unread?limit=100"))["channels"]
            self.syncs.append(time.perf_counter() - begin)
            for row in channels[:1]:
                await ask("POST", f"channels/{row['channel_id']}/read", b"{}")
                self.reads += 1
        writer.close()


@dataclass
class Pace:
    """What was measured of one way."""

    rates: list[float] = field(default_factory=list)
    """Messages in a second."""
    syncs: list[float] = field(default_factory=list)
    reads: int = 0
    seconds: float = 0.0
    messages: int = 0


def run(setting: Setting) -> Result:
    """Embedded first, then the cluster."""
    quiet = Quiet(setting.say, setting.quick)
    result = Result("")
    _embedded(setting, quiet, result)
    _cluster(setting, quiet, result)
    quiet.tell(result)
    return result


async def _round(
    server: Server, groups: Groups, pace: Pace, count: int, beside: bool, applied: Callable[[], Awaitable[None]]
) -> None:
    """So many messages, until they are applied."""
    requests = groups.requests(server, count, BESIDE if beside else ALONE)
    readers = Readers(server)
    reading = asyncio.create_task(readers.run()) if beside else None
    begin = time.perf_counter()
    await bursting(server.port, requests, lambda body: b'"accepted"' in body and b'"error"' not in body, 300)
    await applied()
    seconds = time.perf_counter() - begin
    readers.over = True
    if reading is not None:
        await reading
    sent = count // CONNECTIONS * CONNECTIONS
    pace.rates.append(sent / seconds)
    pace.messages += sent
    pace.seconds += seconds
    pace.syncs += readers.syncs
    pace.reads += readers.reads


# ---------------------------------------------------------------- embedded


def _embedded(setting: Setting, quiet: Quiet, result: Result) -> None:
    rounds, alone, beside = (1, 400, 160) if setting.quick else (3, 4_000, 2_000)
    home = setting.directory / "embedded"
    server, groups = readstate(home), Groups()
    paces = {False: Pace(), True: Pace()}
    try:
        server.start()
        groups.make(server)
        server.stop()
        empty = _size(home)
        server.start()
        for turn in range(1, rounds + 1):
            for way, count in ((False, alone), (True, beside)):
                quiet.wait()
                setting.say(f"embedded, round {turn} of {rounds}, {'beside readers' if way else 'alone'}")
                uvloop.run(_round(server, groups, paces[way], count, way, _at_once))
        sent = groups.check(server, READING)
        server.stop()
        disk = (_size(home) - empty) / sent
    finally:
        server.stop()
    rate = median(paces[False].rates)
    target = f"{TARGET_ALONE:,} or more (aim {AIM_ALONE:,})"
    what = f"embedded, alone, requests of {ALONE}: messages in a second"
    result.add(what, number(rate), target=target, met=rate >= TARGET_ALONE)
    rate = median(paces[True].rates)
    target = f"{TARGET_BESIDE:,} or more (aim {AIM_BESIDE:,})"
    what = f"embedded, beside {READERS} readers, requests of {BESIDE}: messages in a second"
    result.add(what, number(rate), target=target, met=rate >= TARGET_BESIDE)
    _tell_readers(result, "embedded", paces[True])
    _tell_disk(result, f"embedded, {sent:,} messages", disk)


async def _at_once() -> None:
    """An answer means that it is applied."""


def _size(home: Path) -> int:
    return sum(file.stat().st_size for file in home.rglob("*") if file.is_file())


# ---------------------------------------------------------------- cluster


def _cluster(setting: Setting, quiet: Quiet, result: Result) -> None:
    rounds, count = (1, 160) if setting.quick else (3, 2_000)
    groups, pace, spent = Groups(), Pace(), Spent()
    with running(setting.directory / "cluster", setting.say, ONE_WORKER) as cluster:
        groups.make(cluster.serve)
        cluster.settle()
        empty = uvloop.run(_database_size(cluster))
        for turn in range(1, rounds + 1):
            quiet.wait()
            setting.say(f"cluster, round {turn} of {rounds}")
            uvloop.run(_metered(cluster, groups, pace, spent, count))
        sent = groups.check(cluster.serve, READING)
        disk = (uvloop.run(_database_size(cluster)) - empty) / sent
        result.about = ABOUT.format(processes=cluster.processes, versions=cluster.versions)
    rate = median(pace.rates)
    target = f"{TARGET_CLUSTER:,} or more (aim {AIM_CLUSTER:,})"
    what = f"cluster, beside {READERS} readers, requests of {BESIDE}: messages applied in a second"
    result.add(what, number(rate), target=target, met=rate >= TARGET_CLUSTER)
    _tell_readers(result, "cluster", pace)
    result.add(f"cluster, {sent:,} messages: bytes of disk a message, in PostgreSQL", number(disk))
    spent.tell(result, "cluster", "messages", pace.messages)


async def _metered(cluster: Cluster, groups: Groups, pace: Pace, spent: Spent, count: int) -> None:
    async with cluster.watching() as progress:

        async def applied() -> None:
            await _stored(cluster, groups)
            await progress.applied()

        begin = await before(cluster)
        await _round(cluster.serve, groups, pace, count, True, applied)
        await progress.settled()
        spent.add(begin, await after(cluster))


async def _stored(cluster: Cluster, groups: Groups) -> None:
    names, wanted = [channel_id(group) for group in range(GROUPS)], groups.heads.total()
    connection = await asyncpg.connect(cluster.postgres.url)
    heads = await connection.prepare(HEADS)

    async def there() -> bool:
        return bool(await heads.fetchval(names) == wanted)

    try:
        await until(there, "every message is in PostgreSQL")
    finally:
        await connection.close()


async def _database_size(cluster: Cluster) -> int:
    connection = await asyncpg.connect(cluster.postgres.url)
    try:
        return int(await connection.fetchval("SELECT pg_database_size(current_database())"))
    finally:
        await connection.close()


# ---------------------------------------------------------------- telling


def _tell_readers(result: Result, what: str, pace: Pace) -> None:
    syncs = sorted(pace.syncs)
    latency = " / ".join(number(1_000 * syncs[min(len(syncs) - 1, len(syncs) * p // 100)]) for p in (50, 95, 99))
    each = f"{number(len(syncs) / pace.seconds)} syncs, {number(pace.reads / pace.seconds)} reads"
    result.add(f"{what}: meanwhile, in a second", each)
    result.add(f"{what}: sync, P50 / P95 / P99", f"{latency} ms")


def _tell_disk(result: Result, what: str, disk: float) -> None:
    target = f"{TARGET_BYTES} or less (aim {AIM_BYTES})"
    result.add(f"{what}: bytes of disk a message", number(disk), target=target, met=disk <= TARGET_BYTES)
