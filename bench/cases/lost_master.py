"""What the loss of one of three masters costs PostgreSQL and readers, beside the loss of all of them."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import asyncpg  # type: ignore[import-untyped]
import msgspec
import uvloop

from readstate.adapters.sql.postgres.store import migrate
from readstate.adapters.valkey import slot_of, tag_of
from readstate.stack import Kafka, Postgres, ValkeyCluster
from readstate.timings import SqlTimings

from ..allocator import jemalloc
from ..cluster import ONE_WORKER, settings_of, uses, worker
from ..load import BenchmarkError, Load, bursting, encode
from ..quiet import Quiet
from ..report import Result, number, times
from ..servers import Server, readstate
from ..world import channel_id, check_pointers, put_channel, send, user_id, wake
from . import Setting

MASTERS, SLOTS = 3, 16_384
LOST = 1
"""The master that is lost."""
CHANNELS_OF_USER, MEMBERS = 5, 50
EACH = 2.0
"""Seconds from one read of a user to the next."""
MESSAGES = 2
"""In each channel before each stretch: more than anybody reads in it."""
AT_ONCE = 50
"""Users whose totals one request asks for."""
TARGET = 2.5
"""Times the loads by which the loss of everything exceeds that of one master. With equal masters it is 3."""
STATISTICS_SECONDS = 11
"""So late PostgreSQL counts what a connection did that has nothing to do since."""
LOADS = "readstate_hot_loads_total"
TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
ABOUT = (
    "The cluster profile on one machine: one `serve`, one worker with all roles, Kafka, PostgreSQL and three Valkey "
    "masters without replicas. {users:,} users with a connection each read once in {each:g} s (`POST …/read`), each "
    f"in {CHANNELS_OF_USER} channels of {MEMBERS} members. One master is emptied (FLUSHALL) and {{seconds}} s are "
    "measured; beside it the same with all masters, which is what the loss of one cost when all slots had one "
    "number, and the same without a loss. Loads are those of users, ledgers and channels from PostgreSQL; "
    "transactions are PostgreSQL's own count, processor time is that of its processes, each without what the same "
    "reads cost when nothing is lost. Others: users whose slots another master has. At the end every pointer that was "
    "acknowledged must be found, and all counts must be exact. {versions}."
)


@dataclass
class Measured:
    """Of one kind of loss, by stretch."""

    loads: list[int] = field(default_factory=list)
    transactions: list[int] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Seconds of PostgreSQL."""
    lost: list[Load] = field(default_factory=list)
    others: list[Load] = field(default_factory=list)


NOTHING, ONE, ALL = "nothing", "one", "all"


@dataclass
class Place:
    """What runs."""

    valkeys: ValkeyCluster
    postgres: Postgres
    serve: Server
    worker: Server

    def lose(self, what: str) -> None:
        nodes = {NOTHING: [], ONE: [self.valkeys.nodes[LOST]], ALL: list(self.valkeys.nodes)}[what]
        for node in nodes:
            node.demand("FLUSHALL")

    @property
    def postgres_cpu(self) -> float:
        assert self.postgres.process is not None
        return uses({"PostgreSQL": self.postgres.process.pid})["PostgreSQL"].cpu

    @property
    def loads(self) -> int:
        """Of both processes."""
        return sum(_loads(one) for one in (self.serve, self.worker))

    async def transactions(self) -> int:
        connection = await asyncpg.connect(self.postgres.url)
        try:
            return int(await connection.fetchval(TRANSACTIONS))
        finally:
            await connection.close()

    async def fresh(self, users: Sequence[str]) -> None:
        """Return when the totals of all users are exact."""
        parts = [users[start : start + AT_ONCE] for start in range(0, len(users), AT_ONCE)]
        bodies = [msgspec.json.encode({"users": part}) for part in parts]
        wire = self.serve.wire()
        for _ in range(600):
            if not any(b'"stale"' in wire.call("POST", "/v1/unread/batch", body) for body in bodies):
                return
            await asyncio.sleep(0.1)
        raise BenchmarkError("counts do not become exact again")


def _loads(server: Server) -> int:
    lines = server.wire().call("GET", "/metrics").decode().splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(LOADS))


class Crowd:
    """The users, and how far each has read."""

    def __init__(self, count: int) -> None:
        self.users = [user_id(number) for number in range(count)]
        self.channels = count * CHANNELS_OF_USER // MEMBERS
        self.head = 0
        self._rooms: dict[str, list[int]] = {user: [] for user in self.users}
        for channel in range(self.channels):
            for user in self.members(channel):
                self._rooms[user].append(channel)
        self.pointers: dict[str, dict[str, int]] = {user: {} for user in self.users}

    def members(self, channel: int) -> list[str]:
        first = channel * MEMBERS // CHANNELS_OF_USER
        return [self.users[(first + place) % len(self.users)] for place in range(MEMBERS)]

    def of_lost(self, is_lost: bool) -> list[str]:
        """Those whose slots the master has that is lost, or the others."""
        return [user for user in self.users if (slot_of(tag_of(user)) * MASTERS // SLOTS == LOST) is is_lost]

    def talk(self, server: Server) -> None:
        """New messages everywhere."""
        places = [(channel, self.head + step) for step in range(1, MESSAGES + 1) for channel in range(self.channels)]
        send(server.wire(), places)
        self.head += MESSAGES

    def _places(self, user: str) -> list[tuple[int, int]]:
        """What a user reads next: (channel, seq)."""
        seqs = range(self.head - MESSAGES + 1, self.head + 1)
        return [(channel, seq) for seq in seqs for channel in self._rooms[user]]

    def requests(self, user: str, key: str) -> list[bytes]:
        paths = (f"/v1/users/{user}/channels/{channel_id(channel)}/read" for channel, _ in self._places(user))
        bodies = (msgspec.json.encode({"up_to_seq": seq}) for _, seq in self._places(user))
        return [encode("POST", path, body, key) for path, body in zip(paths, bodies, strict=True)]

    def acknowledge(self, users: Sequence[str], load: Load) -> None:
        for user, answered in zip(users, load.answered, strict=True):
            self.pointers[user] |= {channel_id(room): seq for room, seq in self._places(user)[:answered]}


def run(setting: Setting) -> Result:
    """Nothing, one master and all masters are lost, in turns."""
    users, rounds, seconds = (100, 1, 6) if setting.quick else (400, 2, 10)
    quiet, crowd = Quiet(setting.say, setting.quick), Crowd(users)
    measured = {what: Measured() for what in (NOTHING, ONE, ALL)}
    with _running(setting) as place:
        setting.say("making channels")
        for channel in range(crowd.channels):
            put_channel(place.serve.wire(), channel, crowd.members(channel))
        wake(place.serve.wire(), crowd.users)
        if not setting.quick:
            uvloop.run(_stretch(place, crowd, NOTHING, seconds, Measured()))  # Kafka compiles itself in it
        for turn in range(1, rounds + 1):
            for what, found in measured.items():
                quiet.wait()
                setting.say(f"round {turn} of {rounds}: {what} lost")
                uvloop.run(_stretch(place, crowd, what, seconds, found))
        check_pointers(place.serve.wire(), crowd.pointers)
        versions = ", ".join(
            f"{name} {server.record.version}"
            for name, server in (("Valkey", place.valkeys.nodes[0]), ("PostgreSQL", place.postgres))
        )
    result = Result(ABOUT.format(users=users, each=EACH, seconds=seconds, versions=versions))
    _tell(result, measured)
    quiet.tell(result)
    return result


async def _stretch(place: Place, crowd: Crowd, what: str, seconds: float, found: Measured) -> None:
    """The seconds after a loss."""
    crowd.talk(place.serve)
    await place.fresh(crowd.users)
    await asyncio.sleep(STATISTICS_SECONDS)
    transactions, loads, cpu = await place.transactions(), place.loads, place.postgres_cpu
    place.lose(what)
    both = [crowd.of_lost(True), crowd.of_lost(False)]
    sources = [[crowd.requests(user, place.serve.key) for user in users] for users in both]
    lost, others = await asyncio.gather(
        *(bursting(place.serve.port, some, _is_read, seconds, len(some) / EACH) for some in sources)
    )
    found.loads.append(place.loads - loads)
    found.cpu.append(place.postgres_cpu - cpu)
    await asyncio.sleep(STATISTICS_SECONDS)
    found.transactions.append(await place.transactions() - transactions)
    found.lost.append(lost)
    found.others.append(others)
    for users, load in zip(both, (lost, others), strict=True):
        crowd.acknowledge(users, load)
    await place.fresh(crowd.users)


def _is_read(body: bytes) -> bool:
    return b'"changed":true' in body


def _tell(result: Result, measured: dict[str, Measured]) -> None:
    nothing, one, everything = (measured[what] for what in (NOTHING, ONE, ALL))
    loads = median(everything.loads) / max(1, median(one.loads))
    target = f"{TARGET} times fewer, or better"
    pair = [number(median(some.loads)) for some in (one, everything)]
    result.add("loads after the loss of one master", pair[0], f"{pair[1]} all", times(loads), target, loads >= TARGET)
    idle = median(nothing.transactions)
    more, most = (max(1, median(some.transactions) - idle) for some in (one, everything))
    result.add("transactions that the loss adds", number(more), f"{number(most)} all", times(most / more))
    idle_cpu = median(nothing.cpu)
    cpu, all_cpu = (max(0.01, median(some.cpu) - idle_cpu) for some in (one, everything))
    figures = number(1_000 * cpu), f"{number(1_000 * all_cpu)} all"
    result.add("processor time of PostgreSQL that the loss adds, ms", *figures, times(all_cpu / cpu))
    result.add("the same reads without a loss", f"{number(idle)} transactions, {number(1_000 * idle_cpu)} ms")
    result.add("reads of others, P50 / P95 / P99", _times(one.others), f"{_times(everything.others)} all")
    result.add("without a loss", _times(nothing.others))
    result.add("reads of lost users, P50 / P95 / P99", _times(one.lost), f"{_times(everything.lost)} all")


def _times(loads: Sequence[Load]) -> str:
    return " / ".join(number(median(load.latency(p) for load in loads)) for p in (50, 95, 99)) + " ms"


@contextlib.contextmanager
def _running(setting: Setting) -> Iterator[Place]:
    with contextlib.ExitStack() as stack:
        setting.say("starting Valkey, PostgreSQL and Kafka")
        home = setting.directory
        postgres, kafka = Postgres(home / "postgres"), Kafka(home / "kafka", options=())
        for server in (postgres, kafka):
            stack.callback(server.wipe)
            server.start()
        valkeys = stack.enter_context(ValkeyCluster(home / "valkeys", preload=jemalloc()))
        asyncio.run(migrate(postgres.url, SqlTimings()))
        settings = settings_of(valkeys.url, kafka, postgres)
        setting.say("starting serve and a worker")
        serve = readstate(home / "serve", **settings)
        place = Place(valkeys, postgres, serve, worker(home / "worker", "worker", ONE_WORKER["worker"], settings))
        for child in (place.serve, place.worker):
            stack.callback(child.stop)
            child.start()
        yield place
