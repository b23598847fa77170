"""Events to connected devices: how many in a second, how soon, and what a connection costs in memory."""

import asyncio
import contextlib
import resource
import secrets
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import jwt
import msgspec
import uvloop

from ..load import HOST, BenchmarkError, Wire
from ..report import Result, number, times
from ..servers import Server, on_cores, readstate, two_cores
from ..world import channel_id, put_channel, user_id, wake
from . import Setting
from .live_devices import BATCH, SENDERS, Crowd, Flow, Talk, resident

DEVICES = 1_000
GROUPS, GROUP_SIZE = 20, 100
PAIRS = 500
TARGET_RATE, AIM_RATE = 95_000, 120_000
TARGET_LATENCY = 50
ABOUT = (
    f"{DEVICES:,} users with one device each, connected to `/v1/ws`; the server on one core, devices and senders on "
    f"the other. `POST /v1/messages` with {BATCH} messages in a request, each to another channel, over {SENDERS} "
    f"connections. Groups: {GROUPS} channels of {GROUP_SIZE} members (ledger), so that a message is {GROUP_SIZE} "
    "events. At full speed a sender goes on when its request is answered; the rate is that of `message.new` frames at "
    "the devices, from the first request to the last frame. At half of Readstate's rate, requests come at even "
    "distances, and every frame is timed from the answer to its request (below zero: the frame was there first). Every "
    "device must get every message once. The bare servers are the same server library without tokens, store and "
    "counts: they send one ready frame of the same size to every member. One awaits ASGI's `send` for every frame, "
    "the other makes a single write for each device and turn of the event loop. Memory is what the resident set of "
    "the server grows by while the devices connect; their users were loaded before."
)


@dataclass
class Side:
    """One server, its devices, and what was measured with it."""

    name: str
    server: Server
    crowd: Crowd
    groups: Talk
    grown: int = 0
    """Bytes for all connections."""
    floods: list[Flow] = field(default_factory=list)
    paced: list[Flow] = field(default_factory=list)


def run(setting: Setting) -> Result:
    """Readstate and the two bare servers, in turns."""
    core, other = two_cores()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_many_files())
        stack.enter_context(on_cores(other))
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))

        def begin(name: str, server: Server, tokens: dict[str, str]) -> Side:
            stack.callback(server.stop)
            server.start(core)
            setting.say(f"{name}: connecting {DEVICES:,} devices")
            side = _begin(name, server, tokens, runner)
            stack.callback(lambda: runner.run(side.crowd.close()))
            return side

        return _measure(setting, runner, begin)


Begin = Callable[[str, Server, dict[str, str]], Side]


def _measure(setting: Setting, runner: asyncio.Runner, begin: Begin) -> Result:
    rounds, seconds = (1, 0.5) if setting.quick else (3, 2.0)
    secret = secrets.token_urlsafe(32)
    users = [user_id(user) for user in range(DEVICES)]
    claims = {"exp": int(time.time()) + 3600}
    tokens = {user: jwt.encode({"sub": user} | claims, secret, "HS256") for user in users}
    ours = begin("readstate", readstate(setting.directory, jwt_secret=secret), tokens)
    runner.run(ours.crowd.flood(ours.groups, seconds / 2))
    size = ours.crowd.tally.size
    sides = [ours, *(begin(way, _echo(way, size), tokens) for way in ("asgi", "direct"))]
    for turn in range(1, rounds + 1):
        for side in sides:
            setting.say(f"round {turn} of {rounds}, {side.name}, full speed")
            side.floods.append(runner.run(side.crowd.flood(side.groups, seconds)))
            setting.say(f"round {turn} of {rounds}, {side.name}, half speed")
            half = median(flow.rate for flow in ours.floods) / 2
            side.paced.append(runner.run(side.crowd.pace(side.groups, half, seconds)))
    setting.say("direct channels, and one of everybody")
    pairs, everyone = _other_talks(ours.server.wire())
    others = {
        "direct channels (2 members)": runner.run(ours.crowd.flood(pairs, seconds)),
        f"a channel of {DEVICES:,} (timeline)": runner.run(ours.crowd.flood(everyone, seconds)),
    }
    ours.crowd.check(ours.groups, pairs, everyone)
    for side in sides[1:]:
        side.crowd.check(side.groups)
    return _result(sides, others, size)


def _begin(name: str, server: Server, tokens: dict[str, str], runner: asyncio.Runner) -> Side:
    """Make the groups, wake the users, connect their devices."""
    users = list(tokens)
    stride = DEVICES // GROUP_SIZE
    members: dict[int, Sequence[str]] = {channel: users[channel % stride :: stride] for channel in range(GROUPS)}
    wire = server.wire()
    for channel, inside in members.items():
        put_channel(wire, channel, inside)
    wake(wire, users)
    side = Side(name, server, Crowd(server, tokens), Talk(members))
    before = resident(server.pid)
    runner.run(side.crowd.connect())
    side.grown = resident(server.pid) - before
    return side


def _other_talks(wire: Wire) -> tuple[Talk, Talk]:
    users = [user_id(user) for user in range(DEVICES)]
    pairs: dict[int, Sequence[str]] = {1_000 + pair: users[2 * pair : 2 * pair + 2] for pair in range(PAIRS)}
    for channel, two in pairs.items():
        body = msgspec.json.encode({"type": "direct", "members": two})
        wire.call("PUT", f"/v1/channels/{channel_id(channel)}", body)
    put_channel(wire, 2_000, users)
    return Talk(pairs), Talk({2_000: users})


def _echo(way: str, size: int) -> Server:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-m", "bench.baselines.echo_ws", str(port), way, str(size)]
    return Server(f"the bare server ({way})", command, {}, port, "none")


@contextlib.contextmanager
def _many_files() -> Iterator[None]:
    """Within this, this process and those it starts may hold a connection for every device."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * DEVICES + 500
    if most != resource.RLIM_INFINITY and most < wanted:
        raise BenchmarkError(f"the system allows a process {most} open files; {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, wanted), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


def _result(sides: Sequence[Side], others: dict[str, Flow], size: int) -> Result:
    ours, *bare = sides
    rates = {side.name: median(flow.rate for flow in side.floods) for side in sides}
    rate = rates[ours.name]
    result = Result(f"{ABOUT} A frame of `message.new` had {size} bytes.")
    what = "events delivered in a second, groups"
    result.add(what, number(rate), target=f"{TARGET_RATE:,} or more (aim {AIM_RATE:,})", met=rate >= TARGET_RATE)
    for side in bare:
        limit = rates[side.name]
        result.add("beside the bare one", number(rate), f"{number(limit)} bare, {side.name}", times(rate / limit))
    _add_latencies(result, sides)
    for what, flow in others.items():
        result.add(f"events delivered in a second, {what}", number(flow.rate))
    _add_costs(result, sides)
    return result


def _add_latencies(result: Result, sides: Sequence[Side]) -> None:
    ours, *bare = sides
    spreads = {side.name: _spread([flow.after_answer for flow in side.paced]) for side in sides}
    slowest = median(_percentile(flow.after_answer, 99) for flow in ours.paced)
    rate = number(median(flow.rate for flow in ours.paced))
    result.add(
        f"answer to frame at {rate} events in a second, P50 / P95 / P99",
        spreads[ours.name],
        target=f"P99 under {TARGET_LATENCY} ms",
        met=slowest < TARGET_LATENCY,
    )
    for side in bare:
        result.add("beside the bare one", spreads[ours.name], f"{spreads[side.name]} bare, {side.name}")
    result.add("request to frame, P50 / P95 / P99", _spread([flow.after_request for flow in ours.paced]))


def _add_costs(result: Result, sides: Sequence[Side]) -> None:
    ours, *bare = sides
    costs = {side.name: median(1e6 * flow.server_cpu / flow.frames for flow in side.floods) for side in sides}
    for side in bare:
        result.add(
            "µs of the server's processor time for an event",
            number(costs[ours.name]),
            f"{number(costs[side.name])} bare, {side.name}",
        )
    for what, flows in (("at full speed", ours.floods), ("at half of it", ours.paced)):
        busy = median(flow.server_cpu / flow.seconds for flow in flows)
        load = median(flow.generator_cpu / flow.seconds for flow in flows)
        result.add(f"cores busy {what}: server, generator", f"{busy:.2f}, {load:.2f}")
    kinds: Counter[str] = sum((flow.others for flow in (*ours.floods, *ours.paced)), Counter())
    told = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common()) or "none"
    result.add("other events meanwhile", told)
    for side in bare:
        result.add(
            "kB of memory for an idle connection",
            number(ours.grown / DEVICES / 1000),
            f"{number(side.grown / DEVICES / 1000)} bare, {side.name}",
        )


def _percentile(seconds: Sequence[float], percent: float) -> float:
    """Milliseconds."""
    return seconds[min(len(seconds) - 1, int(len(seconds) * percent / 100))] * 1000


def _spread(rounds: Sequence[Sequence[float]]) -> str:
    return " / ".join(number(median(_percentile(one, p) for one in rounds)) for p in (50, 95, 99)) + " ms"
