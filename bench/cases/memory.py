"""How much memory a read state takes in the hot store."""

import msgspec

from ..report import Result, number
from ..servers import child
from . import Setting

TARGET = 200
ABOUT = (
    "What the process grows by (resident set, after a garbage collection) while %s read states are loaded into the "
    "hot store as the durable store gives them, with ids `usr_`, `chn_` and 8 characters, `msg_` and a ULID; half "
    "of the channels small (ledger), half large (timeline), nothing unread. Then every one of them moves once."
)


class Growth(msgspec.Struct):
    """Bytes that the process has grown by."""

    states: int
    loaded: int
    moved: int


def run(setting: Setting) -> Result:
    """In a process of its own."""
    users = 500 if setting.quick else 10_000
    setting.say(f"loading {users * 100:,} read states")
    growth = msgspec.json.decode(child("bench.cases.memory_child", users), type=Growth)
    result = Result(ABOUT % f"{growth.states:,}")
    for what, grown in (("loaded", growth.loaded), ("after each has moved", growth.moved)):
        each = grown / growth.states
        result.add(f"bytes per read state, {what}", number(each), target=f"under {TARGET}", met=each < TARGET)
    return result
