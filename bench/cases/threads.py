"""What one reply costs in threads with few and with many followers."""

import time
from collections.abc import Sequence
from itertools import count
from statistics import median

import msgspec

from ..load import BenchmarkError, Wire, encode
from ..report import Result, number, times
from ..servers import Server, on_cores, readstate, two_cores
from ..world import SENDER, channel_id, message_id, put_channel, send, user_id, wake
from . import Setting

CHANNEL = 1
ABOUT = (
    "`POST /v1/messages` with one reply to a thread, one request after another, in turns; both threads are in one "
    "channel of 1,000 members, and a fifth of them is loaded in the hot store. Away: the reply goes to the badge of "
    "every follower. Connected: it only counts as unread."
)


def run(setting: Setting) -> Result:
    """A reply to 10 followers beside one to 1,000."""
    sizes = [10, 1_000]
    server = readstate(setting.directory, hot_memory="2048")
    core, other = two_cores()
    server.start(core)
    try:
        with on_cores(other):
            return _measure(setting, server, sizes, 20 if setting.quick else 200)
    finally:
        server.stop()


def _measure(setting: Setting, server: Server, sizes: Sequence[int], rounds: int) -> Result:
    wire = server.wire()
    members = [user_id(number_) for number_ in range(max(sizes))]
    setting.say(f"making threads with {' and '.join(f'{size:,}' for size in sizes)} followers")
    put_channel(wire, CHANNEL, members)
    roots = range(1, len(sizes) + 1)
    send(wire, [(CHANNEL, root) for root in roots])
    ids = count(len(sizes) + 1)
    for root, size in zip(roots, sizes, strict=True):
        wire.exchange(_reply(server.key, root, next(ids), members[:size]))  # who is mentioned follows
    wake(wire, members[::5])
    result = Result(ABOUT)
    for named in ("away", "connected"):
        setting.say(f"replying, followers {named}")
        costs = _costs(wire, server.key, roots, ids, rounds)
        result.add(
            f"one reply: {sizes[1]:,} followers beside {sizes[0]}, {named}",
            f"{number(costs[1])} ms",
            f"{number(costs[0])} ms",
            times(costs[1] / costs[0]),
        )
        if named == "away":
            _connect(wire, members)
    _check(wire, members[0], 2 * rounds + 1, len(sizes))
    return result


def _reply(key: str, root: int, number_: int, mentions: Sequence[str] = ()) -> bytes:
    message = {
        "id": message_id(CHANNEL, number_),
        "channel_id": channel_id(CHANNEL),
        "sender_id": SENDER,
        "thread_id": message_id(CHANNEL, root),
        "text": "Me too",
        "mentions": mentions,
        "outside": True,
    }
    return encode("POST", "/v1/messages", msgspec.json.encode(message), key)


def _costs(wire: Wire, key: str, roots: Sequence[int], ids: "count[int]", rounds: int) -> list[float]:
    """The median milliseconds of a reply to each thread."""
    taken: list[list[float]] = [[] for _ in roots]
    for _ in range(rounds):
        for root, mine in zip(roots, taken, strict=True):
            request = _reply(key, root, next(ids))
            begin = time.perf_counter()
            answer = wire.exchange(request)
            mine.append((time.perf_counter() - begin) * 1000)
            if b'"accepted"' not in answer:
                raise BenchmarkError(f"the reply was not accepted: {answer!r}")
    return [median(mine) for mine in taken]


def _connect(wire: Wire, users: Sequence[str]) -> None:
    """A device of each of them is connected from now on."""
    body = msgspec.json.encode({"device": "phone", "online": True, "ttl": 86_400})
    for user in users:
        wire.call("PUT", f"/v1/users/{user}/presence", body)


def _check(wire: Wire, user: str, replies: int, threads: int) -> None:
    """Every reply is unread for somebody who follows all threads."""
    totals = msgspec.json.decode(wire.call("GET", f"/v1/users/{user}/threads"))["totals"]
    if totals != {"unread": replies * threads, "threads": threads}:
        raise BenchmarkError(f"{replies} replies in each of {threads} threads, but unread are {totals}")
