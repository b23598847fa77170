"""Reads through the packed function: how many a second, and how many a core of Valkey can do."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import msgspec
import uvloop
from redis.asyncio import Redis

from readstate.adapters.valkey.calls import MAX_ITEMS
from readstate.adapters.valkey.commands import ask
from readstate.adapters.valkey.hot import ExclusiveHot
from readstate.domain.hot_updates import FanOut
from readstate.domain.model import Entry, Mode, Pointer, Position, Preferences
from readstate.ports import LoadedUserRoom, Moved, Read

from ..baselines import pairs
from ..load import BenchmarkError
from ..quiet import Quiet
from ..report import Result, number, times
from ..servers import on_cores, two_cores
from ..valkey import Measured, hot_state, valkey
from . import Setting

TARGET = 150_000
USERS, CHANNELS = 500, 100
AT = 1_700_000_000_000
UNREAD = 3
"""Messages that a read clears, where it clears any."""
ABOUT = (
    f"{USERS} users in {CHANNELS} channels each, loaded in %s, which has one core; the caller has the other. Every "
    f"read moves another pointer forward by one message and is answered with where it stood and what is left. Packed: "
    f"{MAX_ITEMS} reads in a call, one call after another; ids of 12 characters. To clear: each of the ledgers "
    f"holds {UNREAD} messages, which the read removes. The bare function does one HGET and one HSET a read, with the "
    "same arguments, and nothing else: the ceiling of any function that keeps what it is told. A key per pair: "
    "one HSET and one ZREMRANGEBYSCORE for a read, which neither compares nor counts nor answers. A core of Valkey: "
    "reads by the processor time that the server has used."
)
BARE = """#!lua name=bare
-- KEYS: hashes of users; ARGV[1]: reads (MessagePack), each {key, field, seq, at, id}. Returns 1 for each.
redis.register_function('bare', function(keys, arguments)
  local answers = {}
  for index, read in ipairs(cmsgpack.unpack(arguments[1])) do
    local key = keys[read[1]]
    redis.call('HGET', key, read[2])
    redis.call('HSET', key, read[2], struct.pack('>BI8I4I8I4I8', 1, 0, read[3], read[4], 0, 0) .. read[5])
    answers[index] = 1
  end
  return answers
end)"""

Batch = Sequence[tuple[int, int]]
"""(user, channel) of reads that go together."""
_encode = msgspec.msgpack.Encoder().encode


def user(number_: int) -> str:
    """`U` and 8 digits."""
    return f"U{number_:08d}"


def channel(number_: int) -> str:
    """`C` and 8 digits."""
    return f"C{number_:08d}"


def place(seq: int) -> Position:
    """The message of a channel with a seq; all channels have the same."""
    return Position(seq, f"msg_{seq:08d}", AT + seq * 1000)


@dataclass
class Way:
    """One way to read, and what it came to: reads in a second, and by second of the server's processor."""

    name: str
    read: Callable[[Sequence[Batch], int], Awaitable[None]]
    batches: Sequence[Batch]
    clears: bool = False
    rates: list[float] = field(default_factory=list)
    by_core: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """The median."""
        return median(self.rates)

    @property
    def core(self) -> float:
        """The median."""
        return median(self.by_core)


def run(setting: Setting) -> Result:
    """All ways in turns."""
    core, other = two_cores()
    with valkey(setting.directory, core) as server, on_cores(other):
        return uvloop.run(_measure(setting, server, 2 if setting.quick else 7))


async def _measure(setting: Setting, server: Measured, rounds: int) -> Result:
    setting.say("loading")
    hot = await hot_state(server.url)
    client = Redis.from_url(server.url, protocol=2, max_connections=64)
    await _load(hot)
    reader = Reader(hot, client)
    everything = [[(number_, n) for number_ in range(USERS)] for n in range(CHANNELS)]
    await reader.bare(everything, 0)  # its hashes are as large as those of the others
    await reader.pairs_pipelined(everything, 0)
    ways = _ways(reader, 10 if setting.quick else 40)
    quiet = Quiet(setting.say, setting.quick)
    seq = 0
    for turn in range(rounds + 1):
        quiet.wait()
        setting.say(f"round {turn} of {rounds}")
        for way in ways:
            seq += UNREAD + 1
            if way.clears:
                await reader.fill(way.batches, seq)
            await _time(way, server, seq, counts=turn > 0)
    await reader.check()
    await client.aclose()
    await hot.close()
    return _result(server, ways, quiet)


async def _load(hot: ExclusiveHot) -> None:
    for number_ in range(USERS):
        name = user(number_)
        user_rooms = [
            LoadedUserRoom(channel(n), True, Mode.LEDGER, 0, True, Pointer(), Preferences(), AT, False)
            for n in range(CHANNELS)
        ]
        if not await hot.users.install(name, await hot.users.begin(name), user_rooms):
            raise BenchmarkError(f"{name} was not loaded")


def _ways(reader: "Reader", calls: int) -> list[Way]:
    """One read a user: a call has a channel of everyone. Ten: a call has ten channels of a tenth of the users."""
    one_each = [[(number_, n) for number_ in range(USERS)] for n in range(calls)]
    ten_each = [
        [(tenth * (USERS // 10) + number_, ten * 10 + n) for number_ in range(USERS // 10) for n in range(10)]
        for ten in range(CHANNELS // 10)
        for tenth in range(10)
    ][:calls]
    singles = [[pair] for batch in one_each[: max(1, calls // 10)] for pair in batch]
    return [
        Way("packed, one read a user, nothing to clear", reader.packed, one_each),
        Way("packed, ten reads a user, nothing to clear", reader.packed, ten_each),
        Way("packed, one read a user, to clear", reader.packed, one_each, clears=True),
        Way("packed, ten reads a user, to clear", reader.packed, ten_each, clears=True),
        Way("bare function, packed, one read a user", reader.bare, one_each),
        Way("bare function, packed, ten reads a user", reader.bare, ten_each),
        Way("a key per pair, pipelined", reader.pairs_pipelined, one_each),
        Way("one read a call, one after another", reader.packed, singles),
        Way("one read a call, 64 at the same time", reader.at_once, singles),
        Way("a key per pair, one after another", reader.pairs_single, singles),
    ]


class Reader:
    """Reads in all these ways."""

    def __init__(self, hot: ExclusiveHot, client: Redis) -> None:
        self._hot = hot
        self._client = client
        self._change = 0
        self._last: dict[tuple[int, int], int] = {}

    async def fill(self, batches: Sequence[Batch], seq: int) -> None:
        """Messages up to this seq into the ledgers that will be read."""
        users: dict[int, list[str]] = {}
        for batch in batches:
            for number_, n in batch:
                users.setdefault(n, []).append(user(number_))
        for step in range(UNREAD):
            self._change += 1
            at = place(seq - UNREAD + 1 + step)
            entry = Entry(at.seq, at.id or "", at.at or 0, False)
            for n, names in users.items():
                fan = FanOut(channel(n), self._change, tuple(names), entry, latest_at=entry.at)
                await self._hot.users.apply([fan])

    async def packed(self, batches: Sequence[Batch], seq: int) -> None:
        """As the service does."""
        to = place(seq)
        for batch in batches:
            moved = await self._hot.users.move([Read(user(number_), channel(n), to) for number_, n in batch])
            if not all(isinstance(one, Moved) and one.changed and one.unread == 0 for one in moved):
                raise BenchmarkError(f"a pointer did not move: {moved[:3]}")
        self._last |= {pair: seq for batch in batches for pair in batch}

    async def at_once(self, batches: Sequence[Batch], seq: int) -> None:
        """By many callers, each with its own calls one after another."""
        await asyncio.gather(*(self.packed(batches[start::64], seq) for start in range(64)))

    async def bare(self, batches: Sequence[Batch], seq: int) -> None:
        """As little as a function can do."""
        to = place(seq)
        await ask(self._client, "FUNCTION", "LOAD", "REPLACE", BARE)
        for batch in batches:
            places: dict[int, int] = {}
            reads = [
                (places.setdefault(number_, len(places) + 1), channel(n), to.seq, to.at, to.id) for number_, n in batch
            ]
            keys = [f"bare:{user(number_)}" for number_ in places]
            answers = await ask(self._client, "FCALL", "bare", len(keys), *keys, _encode(reads))
            if len(answers) != len(batch):
                raise BenchmarkError("the bare function left something out")

    async def pairs_pipelined(self, batches: Sequence[Batch], seq: int) -> None:
        """A key per user and channel, as many reads in a pipeline as elsewhere in a call."""
        id_, at = place(seq).id or "", place(seq).at or 0
        for batch in batches:
            await pairs.read_many(self._client, [(user(number_), channel(n), id_, at) for number_, n in batch])

    async def pairs_single(self, batches: Sequence[Batch], seq: int) -> None:
        """A key per user and channel, two commands for every read."""
        id_, at = place(seq).id or "", place(seq).at or 0
        for batch in batches:
            for number_, n in batch:
                await pairs.read(self._client, user(number_), channel(n), id_, at)

    async def check(self) -> None:
        """Every pointer is where it was last moved to."""
        for number_ in range(USERS):
            view = await self._hot.users.view(user(number_), "all")
            found = (
                {} if view is None else {user_room.channel_id: user_room.pointer.seq for user_room in view.user_rooms}
            )
            for n in range(CHANNELS):
                if found.get(channel(n)) != self._last.get((number_, n), 0):
                    raise BenchmarkError(f"{user(number_)} in {channel(n)} is elsewhere: {found.get(channel(n))}")


async def _time(way: Way, server: Measured, seq: int, counts: bool) -> None:
    reads = sum(map(len, way.batches))
    used, begin = server.cpu(), time.perf_counter()
    await way.read(way.batches, seq)
    taken, used = time.perf_counter() - begin, server.cpu() - used
    if counts:
        way.rates.append(reads / taken)
        way.by_core.append(reads / used)


def _result(server: Measured, ways: list[Way], quiet: Quiet) -> Result:
    result = Result(ABOUT % server.version)
    named = {way.name: way for way in ways}
    for way in ways[:4]:
        each = way.name.split(", ")[1]
        ceiling = named[f"bare function, packed, {each}"]
        what = f"reads by core of Valkey: {way.name}"
        other = f"{number(ceiling.core)} bare function"
        asked = (f"{TARGET:,} or more", way.core >= TARGET)
        result.add(what, number(way.core), other, times(way.core / ceiling.core), *asked)
    pipelined = named["a key per pair, pipelined"]
    for way in ways[:4]:
        other = f"{number(pipelined.rate)} {pipelined.name}"
        result.add(f"reads in a second: {way.name}", number(way.rate), other, times(way.rate / pipelined.rate))
    other = f"{number(pipelined.core)} {pipelined.name}"
    for way in ways[:1]:
        result.add(f"reads by core of Valkey: {way.name}", number(way.core), other, times(way.core / pipelined.core))
    single = named["a key per pair, one after another"]
    for way in ways[-3:-1]:
        other = f"{number(single.rate)} {single.name}"
        result.add(f"reads in a second: {way.name}", number(way.rate), other, times(way.rate / single.rate))
        result.add(f"reads by core of Valkey: {way.name}", number(way.core), f"{number(single.core)} {single.name}")
    quiet.tell(result)
    return result
