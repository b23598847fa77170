"""Two users in very many channels: one who has read nearly everything, and one who has read nothing.

`python -m bench.seed DIRECTORY CHANNELS` fills a data directory through the library, in a process of its own.
"""

import asyncio
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import uvloop

from readstate import Readstate
from readstate.api import NewMessage, PutChannel, ReadAll

from .baselines.plain import open_database
from .world import SENDER, channel_id, message_id, user_id

TIDY = user_id(1)
"""Has read all but the last message of every hundredth channel."""
BUSY = user_id(2)
"""Has read nothing."""
MESSAGES = 3
"""In every channel; every hundredth has one more."""
TEXT = "See you at noon?"
AT_ONCE = 1_000


def extra(channels: int) -> range:
    """The channels with a message that the tidy user has not read."""
    return range(0, channels, 100)


def places(channels: int) -> Iterator[tuple[int, int]]:
    """The (channel, seq) of what everyone has read, in the order in which it was said."""
    return ((channel, seq) for seq in range(1, MESSAGES + 1) for channel in range(channels))


async def fill_readstate(directory: Path, channels: int) -> None:
    """The scene, through the library."""
    async with Readstate.open(data_dir=str(directory), hot_memory=4096) as service:
        for start in range(0, channels, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, channels))
            new = PutChannel(type="group", members=(TIDY, BUSY))
            await asyncio.gather(*(service.channels.put(channel_id(number), new) for number in numbers))
        await _send(service, list(places(channels)))
        await service.reads.mark_all(TIDY, ReadAll(all=True))
        await _send(service, [(channel, MESSAGES + 1) for channel in extra(channels)])


async def _send(service: Readstate, wanted: list[tuple[int, int]]) -> None:
    for start in range(0, len(wanted), AT_ONCE):
        results = await service.messages.send(
            [
                NewMessage(
                    id=message_id(channel, seq),
                    channel_id=channel_id(channel),
                    sender_id=SENDER,
                    text=TEXT,
                    outside=True,
                )
                for channel, seq in wanted[start : start + AT_ONCE]
            ]
        )
        assert all(result.status == "accepted" for result in results)


def fill_plain(directory: Path, channels: int) -> None:
    """The same scene in the tables of the plain server."""
    directory.mkdir(parents=True, exist_ok=True)
    database = open_database(str(directory / "plain.db"))
    with database:
        database.execute("BEGIN")
        _fill_plain(database, channels)
    database.execute("PRAGMA optimize")
    database.close()


def _fill_plain(database: sqlite3.Connection, channels: int) -> None:
    said = list(places(channels)) + [(channel, MESSAGES + 1) for channel in extra(channels)]
    heads = dict(said)
    times = {channel: time for time, (channel, _) in enumerate(said)}
    database.executemany(
        "INSERT INTO channels VALUES (?, ?, ?)",
        [(channel_id(channel), heads[channel], times[channel]) for channel in range(channels)],
    )
    database.executemany(
        "INSERT INTO members VALUES (?, ?)",
        [(user, channel_id(channel)) for user in (TIDY, BUSY) for channel in range(channels)],
    )
    database.executemany(
        "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)",
        (
            (channel_id(channel), seq, message_id(channel, seq), SENDER, time, TEXT)
            for time, (channel, seq) in enumerate(said)
        ),
    )
    database.executemany(
        "INSERT INTO reads VALUES (?, ?, ?, 0)",
        [(TIDY, channel_id(channel), MESSAGES) for channel in range(channels)],
    )


if __name__ == "__main__":
    uvloop.run(fill_readstate(Path(sys.argv[1]), int(sys.argv[2])))
