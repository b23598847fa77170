"""What one message costs in channels of different sizes."""

import time
from collections.abc import Sequence
from statistics import median

from ..load import BenchmarkError, Wire, encode
from ..report import Result, number, times
from ..servers import Server, on_cores, readstate, two_cores
from ..world import message_batch, put_channel, user_id, wake
from . import Setting

TARGET = 1.5
ABOUT = (
    "`POST /v1/messages` to channels of different sizes, one request after another, in turns; a fifth of the "
    "members of each channel is loaded in the hot store. A single message is mostly its commit; in a request of "
    "100 messages one commit is shared."
)


def run(setting: Setting) -> Result:
    """A message to 100, to 1,000 and to 100,000 members."""
    sizes = [100, 1_000, 5_000] if setting.quick else [100, 1_000, 100_000]
    server = readstate(setting.directory, hot_memory="2048")
    core, other = two_cores()
    server.start(core)
    try:
        with on_cores(other):
            return _measure(setting, server, sizes)
    finally:
        server.stop()


def _measure(setting: Setting, server: Server, sizes: Sequence[int]) -> Result:
    wire = server.wire()
    for channel, size in enumerate(sizes):
        setting.say(f"making a channel of {size:,} members")
        members = [user_id(channel << 24 | place) for place in range(size)]
        put_channel(wire, channel, members)
        wake(wire, members[::5])
    result = Result(ABOUT)
    heads = [0] * len(sizes)
    turns = 20 if setting.quick else 300
    for messages, rounds in ((1, turns), (100, turns // 10)):
        setting.say(f"sending {messages} at a time")
        costs = _costs(wire, server.key, heads, messages, rounds)
        _tell(result, sizes, messages, costs)
    return result


def _costs(wire: Wire, key: str, heads: list[int], messages: int, rounds: int) -> list[float]:
    """The median milliseconds of a request to each channel."""
    taken: list[list[float]] = [[] for _ in heads]
    for _ in range(rounds):
        for channel, head in enumerate(heads):
            places = [(channel, head + step) for step in range(1, messages + 1)]
            request = encode("POST", "/v1/messages", message_batch(places), key)
            begin = time.perf_counter()
            answer = wire.exchange(request)
            taken[channel].append((time.perf_counter() - begin) * 1000)
            if answer.count(b'"accepted"') != messages:
                raise BenchmarkError(f"not every message was accepted: {answer[:500]!r}")
            heads[channel] += messages
    return [median(times_) for times_ in taken]


def _tell(result: Result, sizes: Sequence[int], messages: int, costs: Sequence[float]) -> None:
    what = "one message" if messages == 1 else f"{messages} messages in a request"
    ratio = costs[2] / costs[1]
    result.add(
        f"{what}: {sizes[2]:,} members beside {sizes[1]:,}",
        f"{number(costs[2])} ms",
        f"{number(costs[1])} ms",
        times(ratio),
        f"{TARGET}× or less",
        ratio <= TARGET,
    )
    result.add(f"{what}: {sizes[0]:,} members (ledger)", f"{number(costs[0])} ms")
