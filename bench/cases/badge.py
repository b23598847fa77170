"""The offline badge: counted beforehand beside counted on the fly.

`python -m bench.cases.badge DIRECTORY NUMBER…` fills a data directory through the library.
"""

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec
import uvloop

from readstate import Readstate
from readstate.api import NewMessage, PutChannel

from ..load import BenchmarkError, Wire, encode
from ..report import Result, number, times
from ..servers import Server, child, on_cores, readstate, two_cores
from ..world import channel_id, message_id, user_id
from . import Setting

PEOPLE = 1_000
"""How many different people write at most."""
AT_ONCE = 1_000
ABOUT = (
    "`GET /v1/users/…/badge` of users with more and more undelivered messages, by a service that keeps the set of "
    "senders ready (`badge_mode=precomputed`) beside one that counts in SQL (`on_the_fly`), over the same data, in "
    f"turns. Up to {PEOPLE:,} different people wrote. Before every request a message of somebody new arrives; both "
    "must then give the same number."
)


def writer(number_: int) -> str:
    """Somebody who writes."""
    return user_id(1 << 24 | number_)


async def fill(directory: Path, sizes: Sequence[int]) -> None:
    """For each number a user who has got so many messages while away."""
    async with Readstate.open(data_dir=str(directory), hot_memory=4096) as service:
        for place, size in enumerate(sizes):
            await service.channels.put(channel_id(place), PutChannel(type="direct", members=(user_id(place),)))
            for start in range(0, size, AT_ONCE):
                messages = [
                    NewMessage(
                        id=message_id(place, seq),
                        channel_id=channel_id(place),
                        sender_id=writer(seq % PEOPLE),
                        text="Are you there?",
                        outside=True,
                    )
                    for seq in range(start + 1, min(start + AT_ONCE, size) + 1)
                ]
                results = await service.messages.send(messages)
                assert all(result.status == "accepted" for result in results)


def run(setting: Setting) -> Result:
    """10, 1,000 and 100,000 undelivered messages."""
    sizes, rounds = ([10, 1_000, 5_000], 10) if setting.quick else ([10, 1_000, 100_000], 100)
    ready, sql = setting.directory / "precomputed", setting.directory / "on_the_fly"
    setting.say(f"sending {sum(sizes):,} messages")
    child("bench.cases.badge", ready, *sizes)
    shutil.copytree(ready, sql)
    servers = [readstate(ready, badge_mode="precomputed"), readstate(sql, badge_mode="on_the_fly")]
    core, other = two_cores()
    try:
        for server in servers:
            server.start(core)
        with on_cores(other):
            return _measure(setting, servers, sizes, rounds)
    finally:
        for server in servers:
            server.stop()


def _measure(setting: Setting, servers: Sequence[Server], sizes: Sequence[int], rounds: int) -> Result:
    wires = [server.wire() for server in servers]
    result = Result(ABOUT)
    for place, size in enumerate(sizes):
        setting.say(f"{size:,} undelivered messages")
        expected = min(size, PEOPLE)
        taken: list[list[float]] = [[], []]
        # The first round loads the user.
        for turn in range(1, rounds + 2):
            for server, wire, mine in zip(servers, wires, taken, strict=True):
                _write(wire, place, PEOPLE + turn)
                mine.append(_badge(wire, server.key, user_id(place), expected + turn))
        ready, sql = (median(mine[1:]) for mine in taken)
        result.add(
            f"badge, {size:,} undelivered: ready beside SQL",
            f"{number(ready)} ms",
            f"{number(sql)} ms on the fly",
            times(sql / ready),
        )
    return result


def _write(wire: Wire, place: int, person: int) -> None:
    message = {"channel_id": channel_id(place), "sender_id": writer(person), "text": "And now?", "outside": True}
    wire.call("POST", "/v1/messages", msgspec.json.encode(message))


def _badge(wire: Wire, key: str, user: str, expected: int) -> float:
    """Milliseconds for the badge, which must be this number."""
    request = encode("GET", f"/v1/users/{user}/badge", b"", key)
    begin = time.perf_counter()
    body = wire.exchange(request)
    taken = (time.perf_counter() - begin) * 1000
    if msgspec.json.decode(body)["senders"] != expected:
        raise BenchmarkError(f"{expected} people wrote, but the badge is {body!r}")
    return taken


if __name__ == "__main__":
    uvloop.run(fill(Path(sys.argv[1]), [int(size) for size in sys.argv[2:]]))
