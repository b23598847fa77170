"""The top of an inbox: a user in very many conversations beside one in few.

`python -m bench.cases.inbox DIRECTORY CONVERSATIONS` fills a data directory through the library.
"""

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec
import uvloop

from readstate import Readstate
from readstate.api import NewMessage, PutChannel, ReadAll

from ..load import BenchmarkError, Wire, encode
from ..report import Result, number, times
from ..servers import Server, child, on_cores, readstate, two_cores
from ..world import SENDER, channel_id, message_id, send, user_id
from . import Setting

TOP = 20
FEW = 100
TARGET = 2.0
AT_ONCE = 1_000
ABOUT = (
    f"`GET /v1/users/…/inbox?limit={TOP}` of a user in %s conversations beside one in {FEW}, in turns. Before every "
    "request a message arrives in one of the conversations, and it must be on top of the answer. Tidy: one "
    "conversation in a hundred has something unread. Busy: all have."
)


@dataclass
class Person:
    """A user with so many conversations, and how long the top of the inbox took, in ms."""

    named: str
    user: str
    channels: range
    tidy: bool
    taken: dict[str, list[float]] = field(default_factory=lambda: {"recent": [], "unread_first": []})


def people(conversations: int) -> list[Person]:
    """Few and many conversations, tidy and busy; nobody shares a channel."""
    starts = [0, FEW, 2 * FEW, 2 * FEW + conversations]
    sizes = [FEW, FEW, conversations, conversations]
    return [
        Person(
            f"{'tidy' if place % 2 == 0 else 'busy'}, {size:,}",
            user_id(place + 1),
            range(start, start + size),
            place % 2 == 0,
        )
        for place, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]


async def fill(directory: Path, conversations: int) -> None:
    """One message in every conversation; the tidy have read it, and then got one more in every hundredth."""
    async with Readstate.open(data_dir=str(directory), hot_memory=4096) as service:
        for person in people(conversations):
            new = PutChannel(type="group", members=(person.user,))
            for start in range(0, len(person.channels), AT_ONCE):
                part = person.channels[start : start + AT_ONCE]
                await asyncio.gather(*(service.channels.put(channel_id(channel), new) for channel in part))
                await _say(service, part, 1)
            if person.tidy:
                await service.reads.mark_all(person.user, ReadAll(all=True))
                await _say(service, person.channels[::100], 2)


async def _say(service: Readstate, channels: Sequence[int], seq: int) -> None:
    messages = [
        NewMessage(
            id=message_id(channel, seq), channel_id=channel_id(channel), sender_id=SENDER, text="Noon?", outside=True
        )
        for channel in channels
    ]
    results = await service.messages.send(messages)
    assert all(result.seq == seq for result in results)


def run(setting: Setting) -> Result:
    """The top 20 of 10,000 conversations beside the top 20 of 100."""
    conversations, rounds = (1_000, 10) if setting.quick else (10_000, 100)
    setting.say(f"making {2 * conversations:,} conversations")
    child("bench.cases.inbox", setting.directory, conversations)
    server = readstate(setting.directory, hot_memory="2048")
    core, other = two_cores()
    server.start(core)
    try:
        with on_cores(other):
            return _measure(setting, server, conversations, rounds)
    finally:
        server.stop()


def _measure(setting: Setting, server: Server, conversations: int, rounds: int) -> Result:
    everyone = people(conversations)
    wire = server.wire()
    heads = {
        channel: 1 + (person.tidy and place % 100 == 0)
        for person in everyone
        for place, channel in enumerate(person.channels)
    }
    chance = random.Random(5)
    for turn in range(rounds + 1):
        setting.say(f"round {turn} of {rounds}")
        for person in everyone:
            for order, taken in person.taken.items():
                channel = chance.choice(person.channels)
                heads[channel] += 1
                send(wire, [(channel, heads[channel])])
                taken.append(_top(wire, server.key, person, order, channel))
                if person.tidy:
                    wire.call("POST", f"/v1/users/{person.user}/channels/{channel_id(channel)}/read", b"{}")
    return _result(everyone, conversations)


def _top(wire: Wire, key: str, person: Person, order: str, channel: int) -> float:
    """Milliseconds for the top of the inbox, which must begin with this channel."""
    request = encode("GET", f"/v1/users/{person.user}/inbox?limit={TOP}&order={order}", b"", key)
    begin = time.perf_counter()
    body = wire.exchange(request)
    taken = (time.perf_counter() - begin) * 1000
    rows = msgspec.json.decode(body)["conversations"]
    if len(rows) != TOP or rows[0]["channel_id"] != channel_id(channel):
        raise BenchmarkError(f"{channel_id(channel)} is not on top: {body[:500]!r}")
    return taken


def _result(everyone: Sequence[Person], conversations: int) -> Result:
    result = Result(ABOUT % f"{conversations:,}")
    for few, many in (everyone[::2], everyone[1::2]):
        for order in few.taken:
            # The first one loads the user.
            small, large = median(few.taken[order][1:]), median(many.taken[order][1:])
            result.add(
                f"top {TOP}, {order}, {many.named} beside {FEW}",
                f"{number(large)} ms",
                f"{number(small)} ms",
                times(large / small),
                f"{TARGET:.0f}× or less",
                large / small <= TARGET,
            )
    return result


if __name__ == "__main__":
    uvloop.run(fill(Path(sys.argv[1]), int(sys.argv[2])))
