"""After a storm: what was acknowledged is there, once; every count is the one that plain counting gives."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import httpx

from readstate.adapters.sql.postgres.store import PostgresStore
from readstate.domain.errors import LogUnavailable
from readstate.timings import SqlTimings
from tests.cluster.fleet import ClusterProcesses, lags
from tests.conftest import Chat, segment

from .clients import FANOUT, PEOPLE, ROOMS
from .devices import LiveDevice
from .records import Records, Violation, World

GRACE_IS_OVER = "timeout graceful shutdown exceeded"
SETTLE_SECONDS = 40.0


@dataclass(frozen=True)
class Message:
    """A row of the database."""

    channel: str
    id: str
    seq: int
    sender: str
    deleted: bool
    mentions: frozenset[str]


class Judge:
    """Looks at a cluster in peace, from outside, and lists what is wrong."""

    def __init__(self, fleet: ClusterProcesses, records: Records, devices: Sequence[LiveDevice]) -> None:
        self._fleet = fleet
        self._records = records
        self._devices = devices
        self.faults: list[str] = []

    async def judge(self) -> list[str]:
        """All that is wrong besides what clients have found; nothing, if all is right."""
        await self._settle()
        await self._check_devices()
        url = f"{self._fleet.backends.postgres.url.rpartition('/')[0]}/{self._fleet.stores.database}"
        connection = await asyncpg.connect(url)
        store = await PostgresStore.open(url, FANOUT, SqlTimings())
        try:
            async with self._fleet.chat() as chat:
                messages = await self._messages(connection)
                await self._check_places(connection, messages)
                self._check_messages(messages)
                await self._check_members(connection)
                await self._check_readings(connection, chat, messages)
                await self._check_badges(store, chat, messages)
                await self._check_dead_letters(connection)
        finally:
            await connection.close()
            await store.close()
        await self._check_metrics()
        self._check_logs()
        return self.faults

    # ------------------------------------------------------------ waiting

    async def _settle(self) -> None:
        """Until nothing is left in the log or in a spool, and the hot state is known to be whole."""
        end = time.monotonic() + SETTLE_SECONDS
        while left := await self._left():
            if time.monotonic() > end:
                states = [await _get(f"{child.url}/readyz") for child in self._fleet.children]
                behind = [await _lines(child.url, "readstate_consumer_lag") for child in self._fleet.children]
                self.faults.append(f"not settled after {SETTLE_SECONDS:.0f} s: {left}, {states}, by process: {behind}")
                return
            await asyncio.sleep(0.1)

    async def _left(self) -> dict[str, Any]:
        try:
            left: dict[str, Any] = {name: lag for name, lag in (await lags(self._fleet)).items() if lag}
        except LogUnavailable as error:  # a broker that was killed may need a while to know its groups again
            return {"the log": error.detail}
        if spooled := sum([await _metric(one.url, "readstate_spool_depth") for one in self._fleet.children]):
            left["spool"] = spooled
        for number in range(len(self._fleet.serves)):  # each finds out by itself that nothing waits any more
            async with self._fleet.chat(number) as chat:
                for user in PEOPLE:
                    rows = (await chat.sync(user, only_unread="false"))["channels"]
                    if stale := [row["channel_id"] for row in rows if not row["exact"]]:
                        left[f"stale for {user}"] = stale
        return left

    async def _check_devices(self) -> None:
        """First of all: counting anew would tell them what they should know already."""
        for device in self._devices:
            try:
                await device.comes_to_agree()
            except Violation as violation:
                self.faults.append(str(violation))

    # ------------------------------------------------------------ messages

    async def _messages(self, connection: Any) -> dict[str, list[Message]]:
        rows = await connection.fetch(
            "SELECT channel_id, id, seq, sender_id, deleted, mentions FROM messages WHERE sender_id <> '' ORDER BY seq"
        )
        found: dict[str, list[Message]] = {channel: [] for channel in ROOMS}
        for channel, id_, seq, sender, deleted, mentions in rows:
            found[channel].append(Message(channel, id_, seq, sender, deleted, frozenset(mentions)))
        return found

    async def _check_places(self, connection: Any, messages: dict[str, list[Message]]) -> None:
        """Seqs are 1, 2, 3 … to the last one that was given."""
        ends = dict(await connection.fetch("SELECT channel_id, last_seq FROM channels"))
        for channel, found in messages.items():
            if [one.seq for one in found] != list(range(1, ends[channel] + 1)):
                self.faults.append(f"{channel}: seqs up to {ends[channel]} are {[one.seq for one in found]}")

    def _check_messages(self, messages: dict[str, list[Message]]) -> None:
        there = {(one.channel, one.id): one for found in messages.values() for one in found}
        for key, sent in self._records.sent.items():
            found = there.pop(key, None)
            if found is None:
                if sent.acknowledged:
                    self.faults.append(f"acknowledged and not there: {sent}")
                continue
            if sent.seq not in {None, found.seq}:
                self.faults.append(f"told another place: {sent}, {found}")
            if sent.delete_acknowledged and not found.deleted:
                self.faults.append(f"deleted and there again: {sent}")
            if found.deleted and not sent.delete_tried:
                self.faults.append(f"deleted by nobody: {found}")
        self.faults += [f"sent by nobody: {one}" for one in there.values()]

    # ------------------------------------------------------------ members and readings

    async def _check_members(self, connection: Any) -> None:
        rows = await connection.fetch("SELECT user_id, channel_id FROM members WHERE active")
        there = {(user, channel) for user, channel in rows}
        expected = {(user, channel) for channel, (_, members) in ROOMS.items() for user in members}
        expected |= {key for key, user_room in self._records.user_rooms.items() if user_room.inside}
        if there != expected:
            self.faults.append(f"members: too many {there - expected}, missing {expected - there}")

    async def _check_readings(self, connection: Any, chat: Chat, messages: dict[str, list[Message]]) -> None:
        rows = await connection.fetch("SELECT user_id, channel_id, epoch, last_read_seq, apart FROM read_receipts")
        durable = {(row[0], row[1]): (row[2], row[3]) for row in rows}
        for (user, channel), reading in self._records.readings.items():
            user_room = self._records.user_rooms.get((user, channel))
            if user_room is not None and not (user_room.inside and user_room.certain):
                continue
            row = await chat.unread(user, channel)
            last = row["last_read"]
            worlds = reading.may_be(last["seq"], last["epoch"])
            right = {(_count(user, messages[channel], world)) for world in worlds}
            story = "\n    ".join(reading.story)
            if (row["unread"], row["mentions"]) not in right or not row["exact"]:
                self.faults.append(f"{user} in {channel}: {row}, but {right} by {reading}\n    {story}")
            known = durable.get((user, channel), (0, 0))
            if known != (last["epoch"], last["seq"]) and reading.doubtful:
                known = await self._healed(connection, chat, user, channel, last)
            if known != (last["epoch"], last["seq"]):
                self.faults.append(f"{user} in {channel}: hot {last}, durable {known}\n    {story}")
            await self._check_explained(chat, user, channel)
        for poster in ("peter", "paul"):
            await self._check_poster(chat, poster, messages)

    async def _healed(self, connection: Any, chat: Chat, user: str, channel: str, last: Any) -> tuple[int, int]:
        """A read that nobody was answered may be in the hot store alone, until the next one: that brings it along."""
        await chat.read(user, channel, up_to_seq=last["seq"], epoch=last["epoch"])
        await self._settle()
        row = await connection.fetchrow(
            "SELECT epoch, last_read_seq FROM read_receipts WHERE user_id = $1 AND channel_id = $2", user, channel
        )
        return tuple(row) if row is not None else (0, 0)

    async def _check_poster(self, chat: Chat, user: str, messages: dict[str, list[Message]]) -> None:
        """Has read nothing but by writing."""
        for channel, (_, members) in ROOMS.items():
            if user not in members:
                continue
            last = max((one.seq for one in messages[channel] if one.sender == user), default=0)
            expected = _count(user, messages[channel], World(last))
            row = await chat.unread(user, channel)
            if (row["last_read"]["seq"], (row["unread"], row["mentions"])) != (last, expected):
                self.faults.append(f"{user} in {channel}: {row}, but {expected} after {last}")
            await self._check_explained(chat, user, channel)

    async def _check_explained(self, chat: Chat, user: str, channel: str) -> None:
        """All ways of counting agree, and counting anew changes nothing."""
        why = await chat.explain(user, channel)
        if not why["agrees"] or why["hot"] != why["durable"]:
            self.faults.append(f"{user} in {channel}: does not agree: {why}")
        recount = await chat.recount(user, channel)
        if recount["before"] != recount["after"]:
            self.faults.append(f"{user} in {channel}: drift: {recount}")

    # ------------------------------------------------------------ badges, leftovers

    async def _check_badges(self, store: PostgresStore, chat: Chat, messages: dict[str, list[Message]]) -> None:
        for user in PEOPLE:
            shown = (await chat.ask("GET", f"/v1/users/{segment(user)}/badge"))["senders"]
            counted = await store.badge_count(user)
            if shown != counted:
                self.faults.append(f"badge of {user}: {shown} by the set, {counted} by SQL")
            grows = any(user in members for channel, (_, members) in ROOMS.items() if channel == "g0")
            if user not in self._records.tapped and not grows:
                expected = len(_senders(user, messages))
                if counted != expected:
                    self.faults.append(f"badge of {user}: {counted}, but {expected} people wrote")

    async def _check_dead_letters(self, connection: Any) -> None:
        rows = await connection.fetch("SELECT topic, place, error FROM dead_letters")
        self.faults += [f"put aside: {tuple(row)}" for row in rows]

    async def _check_metrics(self) -> None:
        for child in self._fleet.children:
            for name in ("readstate_drift_total", "readstate_dead_letters_total"):
                if found := await _metric(child.url, name):
                    self.faults.append(f"{child.data_dir.name}: {name} is {found:.0f}")

    def _check_logs(self) -> None:
        """Nothing has failed in a way that nobody expected."""
        for child in self._fleet.children:
            lines = [line for line in child.log if '"level": "error"' in line or line.startswith("Traceback")]
            if any(GRACE_IS_OVER in line for line in lines):  # a stop does not wait for requests that wait for servers
                lines = [line for line in lines if '"uvicorn.error"' not in line]
            self.faults += [f"{child.data_dir.name} says: {line.strip()[:2000]}" for line in lines[:3]]


def _count(user: str, messages: list[Message], world: World) -> tuple[int, int]:
    """Unread messages, and those of them that mention the user."""
    unread = [
        one
        for one in messages
        if one.seq > world.seq and one.seq not in world.apart and one.sender != user and not one.deleted
    ]
    return len(unread), sum(user in one.mentions for one in unread)


def _senders(user: str, messages: dict[str, list[Message]]) -> set[str]:
    """Who wrote to a user who is never there."""
    found = set()
    for channel, (kind, members) in ROOMS.items():
        for one in messages[channel]:
            counts = user in one.mentions or (len(members) <= FANOUT and kind != "channel")
            if user in members and one.sender != user and counts:
                found.add(one.sender)
    return found


async def _get(url: str) -> str:
    async with httpx.AsyncClient(timeout=30) as http:
        return (await http.get(url)).text


async def _metric(url: str, name: str) -> float:
    return sum(float(line.rpartition(" ")[2]) for line in await _lines(url, name))


async def _lines(url: str, name: str) -> list[str]:
    """What a process says of a metric."""
    lines = (await _get(f"{url}/metrics")).splitlines()
    return [line for line in lines if line.partition("{")[0].partition(" ")[0] == name]
