"""The embedded profile on PostgreSQL beside SQLite: single reads and batches."""

import contextlib
from dataclasses import dataclass, field
from statistics import median

from readstate.stack import Postgres

from ..load import Load, burst
from ..quiet import Quiet
from ..report import Result, number, times
from ..servers import Server, readstate
from ..world import Readers, Town, check_pointers, user_id, wake
from . import Setting

SIZE = 500
CONNECTIONS = 8
SINGLE_CONNECTIONS = 64
TARGET, AIM = 60_000, 80_000
STORES = ("PostgreSQL", "SQLite")
ABOUT = (
    "`readstate serve`, embedded, hot state in memory, the durable store in {version} or in SQLite; everything shares "
    "the cores. The people and channels are those of reads_batch, half of the pairs for each way of reading. "
    f"`POST /v1/reads` with {SIZE} reads in a request over {CONNECTIONS} connections, and single reads over "
    f"{SINGLE_CONNECTIONS}; in turns. Every read moves a pointer by one message and is answered when it is committed. "
    "At the end the service is killed (`SIGKILL`) and started again, and every pointer must be where it was "
    "acknowledged."
)


@dataclass
class Side:
    """One store."""

    server: Server
    readers: dict[str, Readers]
    loads: dict[str, list[Load]] = field(default_factory=lambda: {"batches": [], "single": []})

    def rate(self, way: str) -> float:
        """Reads in a second."""
        return median(load.rate for load in self.loads[way]) * (SIZE if way == "batches" else 1)


def run(setting: Setting) -> Result:
    """Both stores and both ways, in turns."""
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(Postgres(setting.directory / "postgres"))
        servers = {
            "PostgreSQL": readstate(setting.directory / "on-postgres", database_url=postgres.url),
            "SQLite": readstate(setting.directory / "on-sqlite"),
        }
        for server in servers.values():
            stack.callback(server.stop)
            server.start()
        result = Result(ABOUT.format(version=f"PostgreSQL {postgres.record.version}"))
        _measure(setting, servers, result)
        return result


def _measure(setting: Setting, servers: dict[str, Server], result: Result) -> None:
    rounds, seconds, messages = (1, 1, 3) if setting.quick else (3, 3, 14)
    town = Town()
    half = len(town.pairs) // 2
    parts = {"batches": town.pairs[:half], "single": town.pairs[half:]}
    wires = [server.wire() for server in servers.values()]
    setting.say("making channels")
    for wire in wires:
        town.build(wire)
        wake(wire, [user_id(user) for user in range(town.users)])
    sides = {name: Side(server, _readers(town, parts)) for name, server in servers.items()}
    quiet = Quiet(setting.say, setting.quick)
    for turn in range(1, rounds + 1):
        town.talk(wires, messages)
        for way in parts:
            for name, side in sides.items():
                quiet.wait()
                setting.say(f"round {turn} of {rounds}, {name}, {way}")
                requests = side.readers[way].requests(side.server.key, messages, "up_to_seq")
                load = burst(side.server.port, requests, _all if way == "batches" else _changed, seconds)
                side.readers[way].acknowledge(load.answered)
                side.loads[way].append(load)
    setting.say("killing the servers, looking for every read")
    checked = {name: _survived(side) for name, side in sides.items()}
    _tell(result, sides, checked)
    quiet.tell(result)


def _readers(town: Town, parts: dict[str, list[tuple[int, int]]]) -> dict[str, Readers]:
    readers = {}
    for way, (connections, size) in {"batches": (CONNECTIONS, SIZE), "single": (SINGLE_CONNECTIONS, 1)}.items():
        part = Town(town.users, town.small, town.large)
        part.pairs = parts[way]
        readers[way] = Readers(part, connections, size)
    return readers


def _all(body: bytes) -> bool:
    return body.count(b'"changed":true') == SIZE


def _changed(body: bytes) -> bool:
    return b'"changed":true' in body


def _survived(side: Side) -> int:
    side.server.kill()
    side.server.start()
    expected = side.readers["single"].expected()
    for user, pointers in side.readers["batches"].expected().items():
        expected.setdefault(user, {}).update(pointers)
    return check_pointers(side.server.wire(), expected)


def _tell(result: Result, sides: dict[str, Side], checked: dict[str, int]) -> None:
    postgres, sqlite = (sides[name] for name in STORES)
    for way, what in (("single", "single reads in a second"), ("batches", f"reads in a second, batches of {SIZE}")):
        mine, theirs = postgres.rate(way), sqlite.rate(way)
        target = f"{TARGET:,} or more (aim {AIM:,})" if way == "batches" else ""
        met = mine >= TARGET if way == "batches" else None
        result.add(
            f"{what}: on PostgreSQL beside SQLite",
            number(mine),
            f"{number(theirs)} SQLite",
            times(mine / theirs),
            target,
            met,
        )
        ours, other = (
            " / ".join(number(median(load.latency(p) for load in side.loads[way])) for p in (50, 95, 99)) + " ms"
            for side in (postgres, sqlite)
        )
        result.add(f"{way}, P50 / P95 / P99", ours, f"{other} SQLite")
    for name, count in checked.items():
        result.add(f"pointers lost by SIGKILL, {name}", f"0 of {count:,}", target="0", met=True)
