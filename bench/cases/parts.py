"""What the parts can do alone: the hot store's moves and the durable store's merges."""

import msgspec

from ..report import Result, number
from ..servers import child
from . import Setting

ABOUT = (
    "The parts of a read, each alone in a process, 500 reads in a call: moves of pointers in the hot store, and "
    "merges of read states into the SQLite file, every call with its own durable commit. A request for reads "
    "needs both, and HTTP around them."
)


class Rates(msgspec.Struct):
    """Reads in a second."""

    moves: float
    merges: float


def run(setting: Setting) -> Result:
    """In a process of its own."""
    setting.say("hot store and durable store, one after the other")
    turns = 10 if setting.quick else 100
    rates = msgspec.json.decode(child("bench.cases.parts_child", setting.directory, turns), type=Rates)
    result = Result(ABOUT)
    result.add("pointers moved in the hot store, in a second", number(rates.moves))
    result.add("read states merged into SQLite, in a second", number(rates.merges))
    return result
