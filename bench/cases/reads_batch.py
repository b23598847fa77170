"""Durable reads in batches of 500, each of which moves a pointer."""

from statistics import median

from ..load import Load, burst
from ..report import Result, number
from ..servers import Server, readstate
from ..world import Readers, Target, Town, check_pointers, user_id, wake
from . import Setting

CONNECTIONS = 8
SIZE = 500
TARGET = 100_000
ABOUT = (
    f"`POST /v1/reads` with {SIZE} reads in a request over {CONNECTIONS} connections; server and load generator "
    "share two cores. 2,000 users in 100 channels of 100 members (ledger) and 10 of 1,000 (timeline); every read "
    "moves another pointer by one message. At the end the server is killed (`SIGKILL`) and started again, and "
    "every pointer must be where it was acknowledged."
)


def run(setting: Setting) -> Result:
    """Reads by seq and reads by message id, in turns."""
    rounds, messages = (1, 4) if setting.quick else (3, 14)
    server = readstate(setting.directory)
    server.start()
    try:
        return _measure(setting, server, rounds, messages)
    finally:
        server.stop()


def _measure(setting: Setting, server: Server, rounds: int, messages: int) -> Result:
    town = Town()
    readers = Readers(town, CONNECTIONS, SIZE)
    setting.say("making channels")
    wire = server.wire()
    town.build(wire)
    wake(wire, [user_id(user) for user in range(town.users)])
    loads: dict[Target, list[Load]] = {"up_to_seq": [], "up_to": []}
    for turn in range(1, rounds + 1):
        for target, taken in loads.items():
            setting.say(f"round {turn} of {rounds}, {target}")
            town.talk([wire], messages)
            requests = readers.requests(server.key, messages, target)
            load = burst(server.port, requests, _all_changed, 30)
            readers.acknowledge(load.answered)
            taken.append(load)
    setting.say("killing the server, looking for every read")
    server.kill()
    server.start()
    checked = check_pointers(server.wire(), readers.expected())
    return _result(loads, checked)


def _all_changed(body: bytes) -> bool:
    return body.count(b'"changed":true') == SIZE


def _result(loads: dict[Target, list[Load]], checked: int) -> Result:
    result = Result(ABOUT)
    for target, taken in loads.items():
        rate = median(load.rate * SIZE for load in taken)
        named = "by seq" if target == "up_to_seq" else "by message id"
        result.add(
            f"durable reads in a second, {named}",
            number(rate),
            target=f"{TARGET:,} or more",
            met=rate >= TARGET,
        )
        latency = " / ".join(number(median(load.latency(p) for load in taken)) for p in (50, 95, 99))
        result.add(f"request of {SIZE}, {named}, P50 / P95 / P99", f"{latency} ms")
    result.add("pointers lost by SIGKILL", f"0 of {checked:,}", target="0", met=True)
    return result
