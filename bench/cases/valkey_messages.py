"""What one message costs with hot state in Valkey: by ledger and by timeline, in channels of different sizes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import uvloop
from redis.asyncio import Redis

from readstate import Readstate
from readstate.api import ChangeMembers, NewMessage, PutChannel

from ..baselines import pairs
from ..load import BenchmarkError
from ..quiet import Quiet
from ..report import Result, number, times
from ..servers import on_cores, two_cores
from ..valkey import Measured, valkey
from ..world import SENDER, channel_id, message_id, user_id
from . import Setting

LEDGER_MEMBERS = 1_000
TARGET = 1.5
AT = 1_700_000_000_000
ABOUT = (
    "`send` of one message in one process, with the library; hot state in %s on a core of its own, durable store in "
    f"SQLite. `fanout_max_members` is {LEDGER_MEMBERS:,}, so that a channel of {LEDGER_MEMBERS:,} members is counted "
    f"by ledger and a channel of one more by timeline; %s members of every channel are in the hot state. In "
    "turns. Compared with a sorted set per user and channel on the same server: a pipeline of one ZADD a member, "
    "without anything durable. Hot: the processor time of Valkey for one message."
)


@dataclass
class Channel:
    """A channel, and what its messages took, in ms."""

    number: int
    members: int
    head: int = 0
    taken: list[float] = field(default_factory=list)
    served: list[float] = field(default_factory=list)

    @property
    def wall(self) -> float:
        """The median."""
        return median(self.taken)

    @property
    def server(self) -> float:
        """By message: a single one is too short for the server's clock."""
        return sum(self.served) / len(self.served)


def run(setting: Setting) -> Result:
    """All channels in turns."""
    big = [LEDGER_MEMBERS + 1, 2_000, 3_000] if setting.quick else [LEDGER_MEMBERS + 1, 10_000, 100_000]
    channels = [Channel(place, size) for place, size in enumerate([LEDGER_MEMBERS, *big])]
    core, other = two_cores()
    with valkey(setting.directory, core) as server, on_cores(other):
        return uvloop.run(_measure(setting, server, channels, 3 if setting.quick else 42))


async def _measure(setting: Setting, server: Measured, channels: list[Channel], turns: int) -> Result:
    client = Redis.from_url(server.url, protocol=2)
    quiet = Quiet(setting.say, setting.quick)
    loaded = LEDGER_MEMBERS // 10 if setting.quick else LEDGER_MEMBERS
    fan_out = Channel(-1, LEDGER_MEMBERS)
    async with Readstate.open(
        data_dir=str(setting.directory / "readstate"),
        hot_url=server.url,
        key_prefix="rs:",
        fanout_max_members=LEDGER_MEMBERS,
    ) as service:
        for channel in channels:
            setting.say(f"making a channel of {channel.members:,} members")
            await _make(service, channel, loaded)
        for turn in range(turns):
            if turn % 10 == 0:
                quiet.wait()
            setting.say(f"turn {turn + 1} of {turns}")
            ledger, *timelines = channels
            await _fan_out(client, server, fan_out)
            await _send(service, server, ledger)
            for place in range(len(timelines)):  # each as often as the others right after the ledger, which leaves work
                await _send(service, server, timelines[(place + turn) % len(timelines)])
        await _check(service, channels)
    await client.aclose()
    return _result(ABOUT % (server.version, f"{loaded:,}"), channels, fan_out, quiet)


def _members(channel: Channel) -> list[str]:
    return [user_id(channel.number << 24 | place) for place in range(channel.members)]


async def _make(service: Readstate, channel: Channel, loaded: int) -> None:
    name, members, size = channel_id(channel.number), _members(channel), service.settings.max_batch
    await service.channels.put(name, PutChannel(type="group"))
    for start in range(0, len(members), size):
        await service.channels.change_members(name, ChangeMembers(add=tuple(members[start : start + size])))
    await _totals(service, members[:loaded])


async def _totals(service: Readstate, users: Sequence[str]) -> dict[str, int]:
    size = service.settings.max_batch
    found: dict[str, int] = {}
    for start in range(0, len(users), size):
        totals = await service.unread.totals(users[start : start + size])
        found |= {user: one.unread for user, one in totals.items()}
    return found


async def _send(service: Readstate, server: Measured, channel: Channel) -> None:
    channel.head += 1
    message = NewMessage(
        id=message_id(channel.number, channel.head),
        channel_id=channel_id(channel.number),
        sender_id=SENDER,
        text="See you at noon?",
        outside=True,
    )
    used, begin = server.cpu(), time.perf_counter()
    [result] = await service.messages.send([message])
    channel.taken.append((time.perf_counter() - begin) * 1000)
    channel.served.append((server.cpu() - used) * 1000)
    if result.status != "accepted":
        raise BenchmarkError(f"a message was not accepted: {result}")


async def _fan_out(client: Redis, server: Measured, channel: Channel) -> None:
    channel.head += 1
    users = [user_id(place) for place in range(channel.members)]
    used, begin = server.cpu(), time.perf_counter()
    await pairs.fan_out(client, users, channel_id(0), message_id(0, channel.head), AT + channel.head)
    channel.taken.append((time.perf_counter() - begin) * 1000)
    channel.served.append((server.cpu() - used) * 1000)


async def _check(service: Readstate, channels: Sequence[Channel]) -> None:
    for channel in channels:
        found = await _totals(service, _members(channel)[:10])
        if set(found.values()) != {channel.head}:
            raise BenchmarkError(f"{channel.head} messages were sent to {channel.members} members, counted: {found}")


def _result(about: str, channels: list[Channel], fan_out: Channel, quiet: Quiet) -> Result:
    result = Result(about)
    ledger, small, *big = channels
    what = f"one message to {LEDGER_MEMBERS:,} members"
    for name, mine, theirs in (
        (what, ledger.wall, small.wall),
        (f"{what}, hot", ledger.server, small.server),
    ):
        result.add(f"{name}: timeline", f"{number(theirs)} ms", f"{number(mine)} ms ledger", times(mine / theirs))
    result.add(
        f"{what}, hot: ledger",
        f"{number(ledger.server)} ms",
        f"{number(fan_out.server)} ms, {LEDGER_MEMBERS:,} ZADD",
        times(fan_out.server / ledger.server),
    )
    for channel in big:
        for name, mine, theirs in (("", channel.wall, small.wall), (", hot", channel.server, small.server)):
            result.add(
                f"one message{name}, timeline: {channel.members:,} members beside {small.members:,}",
                f"{number(mine)} ms",
                f"{number(theirs)} ms",
                times(mine / theirs),
                f"{TARGET}× or less",
                mine / theirs <= TARGET,
            )
    quiet.tell(result)
    return result
