"""A login with hot state in Valkey: all channels of a user who is in very many of them, as one page."""

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import uvloop
from redis.asyncio import Redis

from readstate import Readstate
from readstate.adapters.valkey import Call, Function, ValkeyClient
from readstate.adapters.valkey import channels as valkey_channels
from readstate.adapters.valkey import users as valkey_users
from readstate.adapters.valkey import views as valkey_views
from readstate.adapters.valkey.client import Answers
from readstate.api import NewMessage, UserRead
from readstate.cli.process import GC_THRESHOLDS

from .. import seed
from ..baselines import pairs
from ..load import BenchmarkError
from ..quiet import Quiet
from ..report import Result, number, times
from ..servers import child, on_cores, two_cores
from ..valkey import Measured, valkey
from ..world import SENDER, channel_id, message_id
from . import Setting

USERS = {seed.TIDY: ("1% unread", 80), seed.BUSY: ("all unread", 2.5)}
AIMS = {seed.TIDY: "", seed.BUSY: " (aim 4×)"}
READ = 1
"""How far the busy user has read every channel."""
AT = 1_700_000_000_000
ABOUT = (
    "`sync` of a user in %s channels, all that is unread on one page, with totals; in one process, with the library; "
    "hot state in %s on a core of its own, warm, durable store in SQLite. Before every round a message arrives "
    "in one of the channels. Compared with a key per user and channel on the same server, read by one HGETALL and one "
    "ZCARD for each: pipelined by the client library that Readstate uses, or by hand over a bare socket. Those "
    "answers are only pointers and counts; Readstate's hold the newest message, the first unread one and labels, in "
    "order. All must count the same. The server's processor time does not depend on the language of the client."
)

Ask = Callable[[str], Awaitable[tuple[int, int]]]
"""(channels with something unread, messages unread) of a user."""


@dataclass
class Side:
    """One way to ask, and how long it took, in ms: all in all, and of the server's processor."""

    name: str
    ask: Ask
    taken: dict[str, list[float]] = field(default_factory=lambda: {user: [] for user in USERS})
    served: dict[str, list[float]] = field(default_factory=lambda: {user: [] for user in USERS})

    def wall(self, user: str) -> float:
        """The median."""
        return median(self.taken[user])

    def server(self, user: str) -> float:
        """The median."""
        return median(self.served[user])


@dataclass
class Noted:
    """The calls of one function."""

    calls: int = 0
    taken: float = 0.0
    served: float = 0.0


def run(setting: Setting) -> Result:
    """1% unread, and all unread, in turns."""
    channels, rounds = (2_000, 2) if setting.quick else (100_000, 5)
    setting.say(f"making {channels:,} channels")
    child("bench.seed", setting.directory / "readstate", channels)
    core, other = two_cores()
    with valkey(setting.directory, core) as server, on_cores(other), _collector_as_in_service():
        return uvloop.run(_measure(setting, server, channels, rounds))


@contextmanager
def _collector_as_in_service() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    yield
    gc.set_threshold(*before)


async def _measure(setting: Setting, server: Measured, channels: int, rounds: int) -> Result:
    quiet = Quiet(setting.say, setting.quick)
    names = [channel_id(channel) for channel in range(channels)]
    client = Redis.from_url(server.url, protocol=2)
    data = str(setting.directory / "readstate")
    setting.say("the first message of every channel is read")
    await _begin_to_read(data, channels)
    async with Readstate.open(data_dir=data, hot_url=server.url, key_prefix="rs:", max_page=100_000) as service:
        setting.say("loading")
        server.line.ask(_as_pairs(channels))
        for user in USERS:
            await service.unread.sync(user, limit=channels)
        sides = [
            Side("Readstate", lambda user: _ours(service, user)),
            Side("HGETALL + ZCARD", lambda user: _by_library(client, user, names)),
            Side("HGETALL + ZCARD, bare socket", lambda user: _by_line(server, user, names)),
            Side("the same with HGETALL of the newest message", lambda user: _in_full(client, user, names)),
            Side("HGETALL alone", lambda user: _pointers(client, user, names)),
        ]
        heads = [seed.MESSAGES + (channel in seed.extra(channels)) for channel in range(channels)]
        chance = random.Random(11)
        for turn in range(1, rounds + 1):
            channel = chance.randrange(channels)
            heads[channel] += 1
            await _arrive(service, server, channel, heads[channel])
            quiet.wait()
            setting.say(f"round {turn} of {rounds}")
            await _round(sides, server)
        calls = {user: await _calls(service, server, user) for user in USERS}
    await client.aclose()
    return _result(ABOUT % (f"{channels:,}", server.version), sides, calls, quiet)


# ---------------------------------------------------------------- the scene


async def _begin_to_read(data: str, channels: int) -> None:
    """The busy user reads the first message everywhere, so that every pair has a pointer."""
    async with Readstate.open(data_dir=data, hot_memory=4096) as service:
        size = service.settings.max_batch
        for start in range(0, channels, size):
            reads = [
                UserRead(user_id=seed.BUSY, channel_id=channel_id(channel), up_to_seq=READ)
                for channel in range(start, min(start + size, channels))
            ]
            outcomes = await service.reads.mark_many(reads)
            if not all(outcome.changed for outcome in outcomes):
                raise BenchmarkError("not every pointer moved")


def _as_pairs(channels: int) -> Iterator[bytes]:
    extra = seed.extra(channels)
    for channel in range(channels):
        name, head = channel_id(channel), seed.MESSAGES + (channel in extra)
        yield pairs.set_latest(name, message_id(channel, head), AT + head, head, SENDER, seed.TEXT)
        for user, read in ((seed.TIDY, seed.MESSAGES), (seed.BUSY, READ)):
            yield pairs.set_pointer(user, name, message_id(channel, read), AT + read)
            if read < head:
                ids = [(message_id(channel, seq), AT + seq) for seq in range(read + 1, head + 1)]
                yield pairs.put_unread(user, name, ids)


async def _arrive(service: Readstate, server: Measured, channel: int, seq: int) -> None:
    name, id_ = channel_id(channel), message_id(channel, seq)
    message = NewMessage(id=id_, channel_id=name, sender_id=SENDER, text=seed.TEXT, outside=True)
    [result] = await service.messages.send([message])
    if result.status != "accepted":
        raise BenchmarkError(f"a message was not accepted: {result}")
    server.line.ask([pairs.put_unread(user, name, [(id_, AT + seq)]) for user in USERS])


# ---------------------------------------------------------------- the ways to ask


async def _ours(service: Readstate, user: str) -> tuple[int, int]:
    page = await service.unread.sync(user, limit=service.settings.max_page)
    if page.cursor is not None:
        raise BenchmarkError("a page was not enough")
    return len(page.channels), page.totals.unread


async def _by_library(client: Redis, user: str, names: list[str]) -> tuple[int, int]:
    rows = await pairs.sync(client, user, names)
    return len(rows), sum(row.unread for row in rows)


async def _in_full(client: Redis, user: str, names: list[str]) -> tuple[int, int]:
    rows = await pairs.full_sync(client, user, names)
    return len(rows), sum(row.unread for row in rows)


async def _by_line(server: Measured, user: str, names: list[str]) -> tuple[int, int]:
    rows = pairs.sync_by_line(server.line, user, names)
    return len(rows), sum(row.unread for row in rows)


async def _pointers(client: Redis, user: str, names: list[str]) -> tuple[int, int]:
    return await pairs.pointers(client, user, names), -1


async def _round(sides: list[Side], server: Measured) -> None:
    for user in USERS:
        seen = []
        for side in sides:
            used, begin = server.cpu(), time.perf_counter()
            seen.append(await side.ask(user))
            side.taken[user].append((time.perf_counter() - begin) * 1000)
            side.served[user].append((server.cpu() - used) * 1000)
            await asyncio.sleep(0)
        if len(set(seen[:-1])) > 1:
            raise BenchmarkError(f"they disagree about {user}: {seen}")


# ---------------------------------------------------------------- what each call takes

_FUNCTIONS = {
    function.name: f"{module.__name__.rpartition('_')[2]}.{name.lower()}"
    for module in (valkey_channels, valkey_users, valkey_views)
    for name, function in vars(module).items()
    if isinstance(function, Function)
}


async def _calls(service: Readstate, server: Measured, user: str) -> dict[str, Noted]:
    """The functions that one sync runs, and what each takes."""
    noted: dict[str, Noted] = {}
    plain = ValkeyClient.run

    async def run(client: ValkeyClient, function: Function, calls: list[Call]) -> Answers:
        used, begin = server.cpu(), time.perf_counter()
        answers = await plain(client, function, calls)
        one = noted.setdefault(_FUNCTIONS[function.name], Noted())
        one.taken += (time.perf_counter() - begin) * 1000
        one.served += (server.cpu() - used) * 1000
        one.calls += len(calls)
        return answers

    ValkeyClient.run = run  # type: ignore[assignment,method-assign]
    try:
        await _ours(service, user)
    finally:
        ValkeyClient.run = plain  # type: ignore[method-assign]
    return noted


def _result(about: str, sides: list[Side], calls: dict[str, dict[str, Noted]], quiet: Quiet) -> Result:
    result = Result(about)
    ours, by_library, *rest = sides
    for user, (named, target) in USERS.items():
        ratio = by_library.wall(user) / ours.wall(user)
        result.add(
            f"all of it, {named}",
            f"{number(ours.wall(user))} ms",
            f"{number(by_library.wall(user))} ms {by_library.name}",
            times(ratio),
            f"{target}× or more{AIMS[user]}",
            ratio >= target,
        )
        for side in rest:
            result.add(
                f"all of it, {named}",
                f"{number(ours.wall(user))} ms",
                f"{number(side.wall(user))} ms {side.name}",
                times(side.wall(user) / ours.wall(user)),
            )
        result.add(
            f"processor time of the server, {named}",
            f"{number(ours.server(user))} ms",
            f"{number(by_library.server(user))} ms {by_library.name}",
            times(by_library.server(user) / ours.server(user)),
        )
    for user, (named, _) in USERS.items():
        for function, one in sorted(calls[user].items(), key=lambda item: -item[1].taken):
            what = f"of it `{function}`, {one.calls} calls, {named}"
            result.add(what, f"{number(one.taken)} ms, {number(one.served)} of the server")
    quiet.tell(result)
    return result
