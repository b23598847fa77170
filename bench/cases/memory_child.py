"""Fills the hot store and prints how much the process has grown. Run by the memory benchmark."""

import asyncio
import gc
import os
import sys
import time
from pathlib import Path

import msgspec

from readstate.adapters.memory.users import MemoryUsers
from readstate.domain.model import ChangeNumber, Generation, Mode, Pointer, Position, Preferences
from readstate.ports import LoadedUserRoom, Moved, Read

from ..world import channel_id, message_id, user_id
from .memory import Growth

CHANNELS = 100
"""Of each user; half of them shared by a hundred people, half by everyone."""

_user_rooms = msgspec.json.Decoder(list[LoadedUserRoom])


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def channels_of(user: int, users: int) -> list[int]:
    """The channels of a user: small ones with its neighbours, and the large ones."""
    half = CHANNELS // 2
    circle = user // CHANNELS
    return [users + circle * half + place for place in range(half)] + list(range(half))


def place(channel: int, seq: int) -> Position:
    """The message at this place of a channel."""
    return Position(seq, message_id(channel, seq), 1_700_000_000_000 + seq * 1000 + channel)


def load(user: int, users: int) -> list[LoadedUserRoom]:
    """The user as the durable store gives it: decoded from JSON, sharing nothing with other users."""
    return _user_rooms.decode(msgspec.json.encode([_user_room(user, channel) for channel in channels_of(user, users)]))


def _user_room(user: int, channel: int) -> LoadedUserRoom:
    at = place(channel, 40 + user % 7)
    return LoadedUserRoom(
        channel_id=channel_id(channel),
        member=True,
        mode=Mode.TIMELINE if channel < CHANNELS // 2 else Mode.LEDGER,
        change=90,
        empty=True,
        pointer=Pointer(0, at.seq, frozenset(), at.id, at.at, 0, ChangeNumber(1 + user * CHANNELS)),
        preferences=Preferences(),
        latest_at=at.at or 0,
        archived=False,
    )


async def main(users: int) -> None:
    """Load everyone, then move every pointer."""
    hot = MemoryUsers(
        unread_cap=10_000, generation=Generation(1), clock=lambda: time.time_ns() // 1_000_000, ledger_ttl=2_592_000
    )
    load(0, users)
    before = resident()
    for user in range(users):
        ticket = await hot.begin(user_id(user))
        assert await hot.install(user_id(user), ticket, load(user, users))
    loaded = resident() - before
    for user in range(users):
        await _move(hot, user, users)
    growth = Growth(users * CHANNELS, loaded, resident() - before)
    sys.stdout.buffer.write(msgspec.json.encode(growth))


async def _move(hot: MemoryUsers, user: int, users: int) -> None:
    reads = [Read(user_id(user), channel_id(channel), place(channel, 50)) for channel in channels_of(user, users)]
    for moved in await hot.move(reads):
        assert isinstance(moved, Moved)
        assert moved.changed


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
