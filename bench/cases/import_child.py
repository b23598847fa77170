"""Writes a file as an export would, imports it twice, exports it, and prints the figures. Run by its benchmark."""

import asyncio
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from readstate import Readstate

from ..world import channel_id, message_id, user_id
from .import_rows import Figures
from .memory_child import resident

MEMBERS, MESSAGES = 20, 479
CHUNK = 500_000
START = 1_700_000_000_000


def lines(channels: int) -> Iterator[dict[str, object]]:
    """Everything, in the order of an export. Of the members of a channel, each has read a bit further."""
    yield {"type": "readstate", "version": 1}
    for channel in range(channels):
        yield {"type": "channel", "channel_id": channel_id(channel), "kind": "group", "last_seq": MESSAGES}
    for channel in range(channels):
        for seq in range(1, MESSAGES + 1):
            yield {
                "type": "message",
                "channel_id": channel_id(channel),
                "id": message_id(channel, seq),
                "at": START + seq * 1000,
                "sender_id": user_id(channel * 7 + seq % MEMBERS),
                "seq": seq,
                "text": "See you at noon?",
            }
    for channel in range(channels):
        for place in range(MEMBERS):
            last_read = {"seq": MESSAGES - place, "id": message_id(channel, MESSAGES - place)}
            user = user_id(channel * 7 + place)
            yield {"type": "member", "channel_id": channel_id(channel), "user_id": user, "last_read": last_read}


def write(path: Path, channels: int) -> int:
    """Write the file; returns how many records it has."""
    encoder, count = msgspec.json.Encoder(), -1
    with path.open("wb") as file:
        for line in lines(channels):
            file.write(encoder.encode(line) + b"\n")
            count += 1
    return count


def chunks(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Pieces that end with a line, and the number of the first line of each."""
    first, rest = 1, b""
    while data := file.read(CHUNK - len(rest)):
        whole, _, rest_after = (rest + data).rpartition(b"\n")
        yield first, whole + b"\n"
        first, rest = first + whole.count(b"\n") + 1, rest_after


async def import_all(service: Readstate, path: Path) -> float:
    """Import the file; returns the seconds that it took."""
    begin = time.perf_counter()
    with path.open("rb") as file:
        for first_line, data in chunks(file):
            report = await service.transfer.import_lines(data, first_line=first_line)
            assert not report.refused, report.refused[0]
    return time.perf_counter() - begin


async def export_all(service: Readstate) -> tuple[float, int]:
    """Export everything; returns the seconds that it took, and the number of lines."""
    begin, count = time.perf_counter(), 0
    async for chunk in service.transfer.export():
        count += chunk.count(b"\n")
    return time.perf_counter() - begin, count


async def main(directory: Path, channels: int) -> None:
    path = directory / "moving.jsonl"
    rows = write(path, channels)
    async with Readstate.open(data_dir=str(directory / "data")) as service:
        before = resident()
        seconds = await import_all(service, path)
        user = user_id((channels - 1) * 7 + MEMBERS - 1)
        unread = (await service.unread.of_channel(user, channel_id(channels - 1))).unread
        assert unread == MEMBERS - 1 - 1, unread  # one of them is the user's own
        again = await import_all(service, path)
        export, count = await export_all(service)
        assert count == rows + 1, count
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.buffer.write(msgspec.json.encode(Figures(rows, seconds, again, export, before, peak)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
