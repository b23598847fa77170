"""How fast a product moves in, and how much memory that takes."""

import msgspec

from ..report import Result, number
from ..servers import child
from . import Setting

ABOUT = (
    "An import of %s records (channels of 20 members with 479 messages each, texts of 16 characters, as an export "
    "writes them) into an empty store, in pieces of 500 kB, each answered when it is durable; in one process, with "
    "the library. Memory is the peak of the resident set, and how much of it was there before the first piece. Then "
    "the same file again, which changes nothing, and an export of it all."
)


class Figures(msgspec.Struct):
    """Of one run."""

    rows: int
    seconds: float
    again: float
    export: float
    before: int
    peak: int


def run(setting: Setting) -> Result:
    """In a process of its own."""
    channels = 20 if setting.quick else 2_000
    setting.say(f"importing {channels * 500:,} records")
    figures = msgspec.json.decode(child("bench.cases.import_child", setting.directory, channels), type=Figures)
    result = Result(ABOUT % f"{figures.rows:,}")
    result.add("records imported, in a second", number(figures.rows / figures.seconds))
    result.add("records imported again, in a second", number(figures.rows / figures.again))
    result.add("records exported, in a second", number(figures.rows / figures.export))
    result.add("MB of memory before the import", number(figures.before / 2**20))
    result.add("MB of memory at the peak", number(figures.peak / 2**20), target="bounded")
    return result
