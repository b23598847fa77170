"""The first page of a login: a user in very many channels."""

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import msgspec

from .. import seed
from ..load import BenchmarkError, Wire, encode
from ..report import Result, number, times
from ..servers import Server, child, on_cores, plain, readstate, two_cores
from ..world import channel_id, send
from . import Setting

PAGE = 100
TARGET_TIDY, AIM_TIDY, TARGET_BUSY = 40, 50, 8
"""Times faster than the plain server."""
SLOWER_COLD = 1.5
ABOUT = (
    f"`GET /v1/users/…/unread?limit={PAGE}` of a user in %s channels with three messages or four: the first page, "
    "with totals. Before every request a message arrives in one of the channels, so that no answer can be "
    "prepared. Both servers must give the same totals, and the same channel first. The plain server counts with "
    "one SQL statement. Cold: the first request after a start of the server."
)


@dataclass
class Side:
    """One of the servers, and how long its pages took, in ms."""

    server: Server
    wire: Wire
    cold: dict[str, float] = field(default_factory=dict)
    warm: dict[str, list[float]] = field(default_factory=lambda: {seed.TIDY: [], seed.BUSY: []})

    def page(self, user: str) -> tuple[float, Mapping[str, Any]]:
        """Milliseconds, and the page."""
        request = encode("GET", f"/v1/users/{user}/unread?limit={PAGE}", b"", self.server.key)
        begin = time.perf_counter()
        body = self.wire.exchange(request)
        taken = (time.perf_counter() - begin) * 1000
        return taken, msgspec.json.decode(body)


def run(setting: Setting) -> Result:
    """1% unread, and all unread, in turns."""
    channels, rounds = (2_000, 3) if setting.quick else (100_000, 11)
    servers = [readstate(setting.directory / "readstate", hot_memory="2048"), plain(setting.directory / "plain")]
    setting.say(f"making {channels:,} channels")
    child("bench.seed", setting.directory / "readstate", channels)
    seed.fill_plain(setting.directory / "plain", channels)
    core, other = two_cores()
    try:
        for server in servers:
            server.start(core)
        with on_cores(other):
            sides = [Side(server, server.wire()) for server in servers]
            return _measure(setting, sides, channels, rounds)
    finally:
        for server in servers:
            server.stop()


def _measure(setting: Setting, sides: list[Side], channels: int, rounds: int) -> Result:
    heads = [seed.MESSAGES + (channel in seed.extra(channels)) for channel in range(channels)]
    chance = random.Random(11)
    setting.say("first pages after a start")
    for user in (seed.TIDY, seed.BUSY):
        for side in sides:
            side.cold[user], page = side.page(user)
            if page.get("cursor"):  # the second page waits for the load behind the first: nothing runs beside the next
                side.wire.call("GET", f"/v1/users/{user}/unread?limit={PAGE}&cursor={page['cursor']}")
    for turn in range(1, rounds + 1):
        setting.say(f"round {turn} of {rounds}")
        for user in (seed.TIDY, seed.BUSY):
            channel = chance.randrange(channels)
            heads[channel] += 1
            _round(sides, user, channel, heads[channel])
    return _result(sides, channels)


def _round(sides: list[Side], user: str, channel: int, seq: int) -> None:
    """A message arrives, then the page is asked for; both servers must see the same."""
    seen = []
    for side in sides:
        send(side.wire, [(channel, seq)])
        taken, page = side.page(user)
        side.warm[user].append(taken)
        totals = page["totals"]
        seen.append((totals["unread"], totals["channels"], len(page["channels"]), page["channels"][0]["channel_id"]))
    if seen[0] != seen[1] or seen[0][3] != channel_id(channel):
        raise BenchmarkError(f"the servers disagree: {seen}")


def _result(sides: list[Side], channels: int) -> Result:
    ours, other = sides
    result = Result(ABOUT % f"{channels:,}")
    for user, named, target in ((seed.TIDY, "1% unread", TARGET_TIDY), (seed.BUSY, "all unread", TARGET_BUSY)):
        mine, theirs = median(ours.warm[user]), median(other.warm[user])
        ratio = theirs / mine
        result.add(
            f"first page, {named}",
            f"{number(mine)} ms",
            f"{number(theirs)} ms plain",
            times(ratio),
            f"{target}× or more (aim {AIM_TIDY}×)" if target == TARGET_TIDY else f"{target}× or more",
            ratio >= target,
        )
    for user, named in ((seed.TIDY, "1% unread"), (seed.BUSY, "all unread")):
        mine, theirs = ours.cold[user], other.cold[user]
        wanted, met = f"at most {SLOWER_COLD:g} times as long (aim: as long)", mine <= SLOWER_COLD * theirs
        result.add(
            f"cold, {named}", f"{number(mine)} ms", f"{number(theirs)} ms plain", times(theirs / mine), wanted, met
        )
    return result
