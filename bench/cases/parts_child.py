"""Times the hot store and the durable store from within. Run by the parts benchmark."""

import sys
import time
from pathlib import Path

import msgspec
import uvloop

from readstate.adapters.memory.users import MemoryUsers
from readstate.adapters.sql.sqlite.store import SqliteStore
from readstate.domain.events import ReadEvent
from readstate.domain.model import ChangeNumber, Generation
from readstate.ports import Moved, Read
from readstate.timings import SqlTimings

from ..world import channel_id, user_id
from .memory_child import channels_of, load, place
from .parts import Rates

USERS = 200
SIZE = 500


def now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def reads(turn: int) -> list[Read]:
    """One for each of 500 (user, channel), each further than the turn before."""
    pairs = [(user, channel) for user in range(USERS) for channel in channels_of(user, USERS)]
    start = turn * SIZE % len(pairs)
    return [
        Read(user_id(user), channel_id(channel), place(channel, 100 + turn))
        for user, channel in pairs[start : start + SIZE]
    ]


async def moves(turns: int) -> float:
    """Pointers moved in a second."""
    hot = MemoryUsers(unread_cap=10_000, generation=Generation(1), clock=now, ledger_ttl=2_592_000)
    for user in range(USERS):
        await hot.install(user_id(user), await hot.begin(user_id(user)), load(user, USERS))
    batches = [reads(turn) for turn in range(turns)]
    begin = time.perf_counter()
    results = [await hot.move(batch) for batch in batches]
    rate = turns * SIZE / (time.perf_counter() - begin)
    assert all(isinstance(moved, Moved) and moved.changed for result in results for moved in result)
    return rate


async def merges(directory: Path, turns: int) -> float:
    """Read states made durable in a second."""
    store = await SqliteStore.open(directory / "parts.db", 100, SqlTimings())
    batches = [[_event(read) for read in reads(turn)] for turn in range(turns)]
    begin = time.perf_counter()
    for batch in batches:
        await store.merge(batch)
    rate = turns * SIZE / (time.perf_counter() - begin)
    await store.close()
    return rate


def _event(read: Read) -> ReadEvent:
    to = read.to
    return ReadEvent(read.user_id, read.channel_id, 0, to.seq, (), to.id, to.at, now(), ChangeNumber(to.seq), now())


async def main(directory: Path, turns: int) -> None:
    """Both, one after the other."""
    rates = Rates(await moves(turns), await merges(directory, turns))
    sys.stdout.buffer.write(msgspec.json.encode(rates))


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), int(sys.argv[2])))
