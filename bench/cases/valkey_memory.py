"""How much of Valkey's memory a read state takes, and a message in a ledger."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvloop

from readstate.adapters.valkey.hot import ExclusiveHot
from readstate.domain.hot_updates import FanOut
from readstate.domain.model import ChangeNumber, Entry, Mode, Pointer, Preferences
from readstate.ports import LoadedUserRoom

from ..baselines import pairs
from ..load import BenchmarkError
from ..report import Result, number, times
from ..valkey import PART, Measured, command, hot_state, valkey
from ..world import channel_id, message_id, user_id
from . import Setting

TARGET = 90
AT_ONCE = 64
"""Users that are loaded at the same time."""
AT = 1_700_000_000_000
ABOUT = (
    "What %s has allocated more (`used_memory`, less what it keeps for connections) when it holds so many read states, "
    "as the durable store gives them, nothing unread; beside a key per user and channel. Usual ids: `U` and 8 digits, "
    "`C` and 8 digits, messages of 12 characters. Long ids: `usr_`, `chn_` and 8 characters, `msg_` and a ULID. The "
    "pointer is the hash of a user's seats; the inbox, a sorted set of the user's channels, comes to it. A user in "
    "more than 512 channels has a hash that is no longer compact. Then messages come into ledgers; a ledger is a "
    "sorted set, and a row in the user's hash of counts."
)


@dataclass(frozen=True)
class Ids:
    """How ids look."""

    name: str
    user: Callable[[int], str]
    channel: Callable[[int], str]
    message: Callable[[int, int], str]


USUAL = Ids("usual ids", lambda n: f"U{n:08d}", lambda n: f"C{n:08d}", lambda channel, seq: f"{channel:07d}{seq:05d}")
LONG = Ids("long ids", user_id, channel_id, message_id)


@dataclass(frozen=True)
class Town:
    """So many users, each in so many channels of their own."""

    ids: Ids
    users: int
    channels: int

    @property
    def states(self) -> int:
        """How many read states there are."""
        return self.users * self.channels

    def pairs(self) -> Iterator[tuple[str, int]]:
        """(user, number of the channel)."""
        return ((self.ids.user(user), channel) for user in range(self.users) for channel in range(self.channels))

    def user_rooms(self, user: int) -> list[LoadedUserRoom]:
        """A user, as the durable store has it."""
        return [
            LoadedUserRoom(
                channel_id=self.ids.channel(channel),
                member=True,
                mode=Mode.LEDGER,
                change=90,
                empty=True,
                pointer=Pointer(
                    0, 40, frozenset(), self.ids.message(channel, 40), AT + channel, 0, ChangeNumber(1 + user)
                ),
                preferences=Preferences(),
                latest_at=AT + channel,
                archived=False,
            )
            for channel in range(self.channels)
        ]


def run(setting: Setting) -> Result:
    """Everything of one kind, then everything of the other, on the same server."""
    many, some = (10_000, 10_000) if setting.quick else (1_000_000, 250_000)
    towns = [Town(USUAL, many // 100, 100), Town(LONG, some // 100, 100), Town(USUAL, some // 1000, 1000)]
    with valkey(setting.directory) as server:
        result = Result(ABOUT % server.version)
        for place, town in enumerate(towns):
            setting.say(f"{town.states:,} read states, {town.ids.name}, {town.channels} channels a user")
            _tell_states(result, town, uvloop.run(_states(server, town)), _as_pairs(server, town), place == 0)
        for messages in (1, 10, 1000):
            setting.say(f"ledgers of {messages}")
            entries = 10_000 if setting.quick else 100_000
            channels = 100 if messages < 1000 else 10
            town = Town(USUAL, max(1, entries // channels // messages), channels)
            _tell_ledgers(result, town, messages, uvloop.run(_ledgers(server, town, messages)), server)
    return result


# ---------------------------------------------------------------- read states


async def _states(server: Measured, town: Town) -> tuple[float, float]:
    """Bytes of a pointer, and with the inbox."""
    server.empty()
    before = server.memory()
    hot = await hot_state(server.url)
    await _load(hot, town)
    await hot.close()
    both = server.memory() - before
    keys = [f"inbox:{{{town.ids.user(user)}}}".encode() for user in range(town.users)]
    removed = sum(server.line.ask([command(b"DEL", key) for key in keys]))
    if removed != town.users:
        raise BenchmarkError(f"there were {removed} inboxes instead of {town.users}")
    pointers = server.memory() - before
    return pointers / town.states, both / town.states


async def _load(hot: ExclusiveHot, town: Town) -> None:
    async def load(user: int) -> None:
        name = town.ids.user(user)
        if not await hot.users.install(name, await hot.users.begin(name), town.user_rooms(user)):
            raise BenchmarkError(f"{name} was not loaded")

    for start in range(0, town.users, AT_ONCE):
        await asyncio.gather(*(load(user) for user in range(start, min(start + AT_ONCE, town.users))))


def _as_pairs(server: Measured, town: Town) -> float:
    """Bytes of a key per user and channel."""
    server.empty()
    before = server.memory()
    ids = town.ids
    server.line.ask(
        pairs.set_pointer(user, ids.channel(channel), ids.message(channel, 40), AT + channel)
        for user, channel in town.pairs()
    )
    return (server.memory() - before) / town.states


def _tell_states(result: Result, town: Town, ours: tuple[float, float], theirs: float, asked: bool) -> None:
    pointer, both = ours
    what = f"{town.states:,}, {town.ids.name}, {town.channels:,} channels a user"
    other = f"{number(theirs)} a key per pair"
    limit, met = (f"{TARGET} or less", pointer <= TARGET) if asked else ("", None)
    result.add(f"bytes per read state: {what}", number(pointer), other, times(theirs / pointer), limit, met)
    result.add(f"with the inbox: {what}", number(both), other, times(theirs / both))


# ---------------------------------------------------------------- ledgers


async def _ledgers(server: Measured, town: Town, messages: int) -> float:
    """Bytes of a message in a ledger."""
    server.empty()
    hot = await hot_state(server.url)
    await _load(hot, town)
    users, ids = tuple(map(town.ids.user, range(town.users))), town.ids
    nowhere = FanOut(ids.channel(town.channels), 1, users, Entry(1, "nothing", AT, False), latest_at=AT)
    await hot.users.apply([nowhere])  # the server has the functions then, and nothing else is new
    before = server.memory()
    for seq in range(41, 41 + messages):
        for start in range(0, town.channels, 10):
            fans = [
                FanOut(
                    ids.channel(channel),
                    50 + seq,
                    users,
                    Entry(seq, ids.message(channel, seq), AT + seq * 1000 + channel, False),
                    latest_at=AT + seq * 1000 + channel,
                )
                for channel in range(start, min(start + 10, town.channels))
            ]
            await hot.users.apply(fans)
    grown = server.memory() - before
    unread_summary = await hot.users.unread_summary(users[0])
    if unread_summary is None or unread_summary.plain[0] != town.channels * messages:
        raise BenchmarkError(f"not every message is in its ledger: {unread_summary}")
    await hot.close()
    return grown / town.states / messages


def _tell_ledgers(result: Result, town: Town, messages: int, ours: float, server: Measured) -> None:
    server.empty()
    before = server.memory()
    ids = town.ids
    for start in range(0, messages, PART):
        seqs = range(41 + start, 41 + min(start + PART, messages))
        server.line.ask(
            pairs.put_unread(
                user, ids.channel(channel), [(ids.message(channel, seq), AT + seq * 1000 + channel) for seq in seqs]
            )
            for user, channel in town.pairs()
        )
    theirs = (server.memory() - before) / town.states / messages
    what = f"bytes per message in ledgers of {messages:,}"
    result.add(what, number(ours), f"{number(theirs)} a set per pair", times(theirs / ours))
