"""Durable reads, one in a request: Readstate, the plain one, and a bare endpoint as the ceiling."""

from statistics import median

from ..load import Load, burst
from ..report import Result, number, times
from ..servers import Server, bare, on_cores, plain, readstate, two_cores
from ..world import Readers, Town, check_pointers, user_id, wake
from . import Setting

CONNECTIONS = 64
TARGET = 10_000
TARGET_RATIO = 5
TARGET_BARE, AIM_BARE = 0.58, 0.65
ABOUT = (
    f"`POST /v1/users/…/channels/…/read`, one read in a request, over {CONNECTIONS} connections; the server on one "
    "core, the load generator on the other. The people and channels are those of reads_batch. The plain server "
    "writes one transaction per read; the bare one is an ASGI endpoint without checks, counts or routes "
    "that shares commits: the ceiling of this stack."
)


def run(setting: Setting) -> Result:
    """All three, in turns."""
    makers = {"readstate": readstate, "plain": plain, "bare": bare}
    servers = {name: make(setting.directory / name) for name, make in makers.items()}
    core, _ = two_cores()
    try:
        for server in servers.values():
            server.start(core)
        return _measure(setting, servers)
    finally:
        for server in servers.values():
            server.stop()


def _measure(setting: Setting, servers: dict[str, Server]) -> Result:
    rounds, seconds, messages = (1, 1, 3) if setting.quick else (3, 2, 6)
    town = Town()
    setting.say("making channels")
    wires = [servers[name].wire() for name in ("readstate", "plain")]
    for wire in wires:
        town.build(wire)
    wake(wires[0], [user_id(user) for user in range(town.users)])
    readers = {name: Readers(town, CONNECTIONS, 1) for name in servers}
    loads: dict[str, list[Load]] = {name: [] for name in servers}
    for turn in range(1, rounds + 1):
        town.talk(wires, messages)
        for name, server in servers.items():
            setting.say(f"round {turn} of {rounds}, {name}")
            requests = readers[name].requests(server.key, messages, "up_to_seq")
            with on_cores(two_cores()[1]):
                load = burst(server.port, requests, _changed if name == "readstate" else bool, seconds)
            readers[name].acknowledge(load.answered)
            loads[name].append(load)
    setting.say("killing the server, looking for every read")
    servers["readstate"].kill()
    servers["readstate"].start()
    checked = check_pointers(servers["readstate"].wire(), readers["readstate"].expected())
    return _result(loads, checked)


def _changed(body: bytes) -> bool:
    return b'"changed":true' in body


def _result(loads: dict[str, list[Load]], checked: int) -> Result:
    rates = {name: median(load.rate for load in taken) for name, taken in loads.items()}
    latencies = {
        name: " / ".join(number(median(load.latency(p) for load in taken)) for p in (50, 95, 99)) + " ms"
        for name, taken in loads.items()
    }
    ours = rates["readstate"]
    ratio, ceiling = ours / rates["plain"], ours / rates["bare"]
    result = Result(ABOUT)
    result.add("durable reads in a second", number(ours), target=f"{TARGET:,} or more", met=ours >= TARGET)
    result.add(
        "beside the plain one",
        number(ours),
        f"{number(rates['plain'])} plain",
        times(ratio),
        f"{TARGET_RATIO}× or more",
        ratio >= TARGET_RATIO,
    )
    target = f"{TARGET_BARE}× or more (aim {AIM_BARE}×)"
    beside = f"{number(rates['bare'])} bare"
    result.add("beside the bare one", number(ours), beside, times(ceiling), target, ceiling >= TARGET_BARE)
    for name in ("plain", "bare"):
        result.add("P50 / P95 / P99", latencies["readstate"], f"{latencies[name]} {name}")
    result.add("pointers lost by SIGKILL", f"0 of {checked:,}", target="0", met=True)
    return result
