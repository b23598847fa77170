"""How throughput grows with processes: one against two `serve`, one against two persisters."""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import uvloop

from ..cluster import Cluster, running
from ..landing import OURS, landing
from ..load import Load, bursting
from ..meter import Spent, before
from ..quiet import Quiet
from ..report import Result, number, times
from ..servers import Server
from ..world import Readers, Town, user_id, wake
from . import Setting

SIZE = 500
CONNECTIONS = 8
"""Of all instances together."""
ABOUT = (
    "Reads in batches as in cluster_reads, over the same servers; {processes}, and then a second process of one kind "
    f"beside the first. The {CONNECTIONS} connections are shared by the instances. A second process helps as long as "
    "one is the bottleneck and there is a core for it: this machine has {cores}, for the servers and the load "
    "generator too, so the processor time of 1,000 reads says more than the rate. {versions}."
)


@dataclass
class Shape:
    """So many processes of each kind, and what was measured with them."""

    name: str
    serves: Sequence[Server]
    readers: Readers
    answered: list[float] = field(default_factory=list)
    landed: list[float] = field(default_factory=list)
    spent: Spent = field(default_factory=Spent)
    reads: int = 0


def run(setting: Setting) -> Result:
    """One of each, two instances, two persisters, two of both."""
    rounds, seconds, messages = (1, 2, 3) if setting.quick else (3, 6, 8)
    quiet = Quiet(setting.say, setting.quick)
    town = Town() if setting.quick else Town(users=5_000, small=250, large=25)
    with running(setting.directory, setting.say) as cluster, contextlib.ExitStack() as stack:
        setting.say("making channels")
        wire = cluster.serve.wire()
        town.build(wire)
        cluster.settle()
        wake(wire, [user_id(user) for user in range(town.users)])
        readers = Readers(town, CONNECTIONS, SIZE)

        def measure(name: str, serves: Sequence[Server], count: int) -> Shape:
            shape = Shape(name, serves, readers)
            for turn in range(1, count + 1):
                town.talk([wire], messages)
                cluster.settle()
                quiet.wait()
                setting.say(f"{name}, round {turn} of {count}")
                uvloop.run(_round(cluster, shape, messages, seconds))
            return shape

        measure("getting warm", [cluster.serve], 1)
        first = measure("one serve, one persister", [cluster.serve], rounds)
        second = stack.enter_context(cluster.another("serve"))
        two_serves = measure("two serve, one persister", [cluster.serve, second], rounds)
        stack.enter_context(cluster.another("persister"))
        two_persisters = measure("one serve, two persisters", [cluster.serve], rounds)
        both = measure("two serve, two persisters", [cluster.serve, second], rounds)
        cores = len(os.sched_getaffinity(0))
        about = ABOUT.format(processes=cluster.processes, versions=cluster.versions, cores=f"{cores} cores")
    result = Result(about)
    for shape in (first, two_serves, two_persisters, both):
        _tell(result, shape, first)
    quiet.tell(result)
    return result


async def _round(cluster: Cluster, shape: Shape, messages: int, seconds: float) -> None:
    servers = shape.serves
    sources = [shape.readers.requests(server.key, messages, "up_to_seq") for server in servers]
    turns = [range(index, CONNECTIONS, len(servers)) for index in range(len(servers))]
    begin = await before(cluster)
    loads = await asyncio.gather(
        *(
            bursting(server.port, [source[turn] for turn in mine], _all, seconds)
            for server, source, mine in zip(servers, sources, turns, strict=True)
        )
    )
    shape.readers.acknowledge(_answered(loads, turns))
    moved = shape.readers.expected().items()
    expected = {(user, channel): seq for user, pointers in moved for channel, seq in pointers.items() if seq}
    end, _ = await landing(cluster, cluster.postgres.url, OURS, expected)
    reads = SIZE * sum(load.requests for load in loads)
    shape.answered.append(SIZE * sum(load.rate for load in loads))
    shape.landed.append(reads / (end.at - begin.at))
    shape.spent.add(begin, end)
    shape.reads += reads


def _answered(loads: Sequence[Load], turns: Sequence[range]) -> list[int]:
    """By connection, as the readers count them."""
    answered = [0] * CONNECTIONS
    for load, mine in zip(loads, turns, strict=True):
        for turn, count in zip(mine, load.answered, strict=True):
            answered[turn] = count
    return answered


def _all(body: bytes) -> bool:
    return body.count(b'"changed":true') == SIZE


def _tell(result: Result, shape: Shape, first: Shape) -> None:
    for what, mine, alone in (
        ("reads answered in a second", shape.answered, first.answered),
        ("reads in a second, in PostgreSQL", shape.landed, first.landed),
    ):
        rate, other = median(mine), median(alone)
        beside = (f"{number(other)} with one of each", times(rate / other)) if shape is not first else ("", "")
        result.add(f"{shape.name}: {what}", number(rate), *beside)
    busy = sum(shape.spent.cpu.values()) / shape.spent.seconds
    result.add(f"{shape.name}: cores busy", f"{busy:.2f} of {len(os.sched_getaffinity(0))}")
    shape.spent.tell(result, shape.name, "reads", shape.reads)
