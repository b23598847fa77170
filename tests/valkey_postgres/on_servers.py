"""The service on Valkey and PostgreSQL in this process, and clients that use it while the servers fail."""

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from readstate import Readstate
from readstate.adapters.valkey.hot import ExclusiveHot
from readstate.api import ChangeMembers, MarkUnread, NewMessage, PutChannel, ReadTarget, UserTotals
from readstate.domain.errors import Unavailable
from readstate.timings import Timings, ValkeyTimings
from tests.conftest import eventually
from tests.contract import valkey
from tests.contract.postgres import used_database
from tests.model.naive import NaiveChat
from tests.model.values import Message

T = TypeVar("T")
Fault = Callable[[], Awaitable[object]]

SMALL, BIG = "small", "big"
FANOUT = 4
"""Channels with more members are counted by timeline."""
INSISTENCE = 60.0
"""Seconds for which a client comes back with what was refused."""


@asynccontextmanager
async def on_servers(
    directory: Path, hot_url: str, database_url: str | None = None, **settings: Any
) -> AsyncIterator[Readstate]:
    """The service over servers, with keys of its own; and a database of its own if none is named."""
    if database_url is None:
        async with used_database() as url, on_servers(directory, hot_url, url, **settings) as rs:
            yield rs
        return
    options: dict[str, Any] = {"key_prefix": f"{secrets.token_hex(6)}:", "fanout_max_members": FANOUT} | settings
    async with Readstate.open(data_dir=str(directory), database_url=database_url, hot_url=hot_url, **options) as rs:
        yield rs


ASKS_AGAIN = Timings(valkey=ValkeyTimings(patience=valkey.PATIENCE, answer=1.0))
"""A service that waits a second for an answer of Valkey, and asks again for long."""


@contextmanager
def impatient(rs: Readstate) -> Iterator[None]:
    """What is asked meanwhile gives a Valkey up soon. Only around a fault: a busy machine may be as slow."""
    store = hot(rs)
    with pytest.MonkeyPatch.context() as change:
        for one in (store._client, store._generation):
            change.setattr(one, "_timings", replace(one._timings, patience=0.5))
        yield


def hot(rs: Readstate) -> ExclusiveHot:
    """The hot state of a service over Valkey."""
    found = rs.hot
    assert isinstance(found, ExclusiveHot)
    return found


def message(sender: str, name: str, channel: str = SMALL, **fields: Any) -> NewMessage:
    return NewMessage(channel_id=channel, sender_id=sender, id=name, **fields)


async def two_channels(rs: Readstate, small: Sequence[str] = ("alice", "bob"), big: int = FANOUT + 2) -> None:
    """One that is counted by ledgers, and one with more members that is counted by its timeline."""
    await rs.channels.put(SMALL, PutChannel(type="group", members=tuple(small)))
    members = (*small, *(f"guest{n}" for n in range(big - len(small))))
    await rs.channels.put(BIG, PutChannel(type="group", members=members))


async def count(rs: Readstate, user: str, channel: str = SMALL) -> int:
    """The exact count, which the durable store agrees with."""
    row = await rs.unread.of_channel(user, channel)
    assert row.exact, row
    why = await rs.explain.explain(user, channel)
    assert why.agrees, why
    assert why.unread == why.durable == row.unread, (why, row)
    return row.unread


class Insistence:
    """Comes back with what was refused for a time, as every client should."""

    def __init__(self) -> None:
        self.refusals: Counter[str] = Counter()
        """How often something was refused, by code."""

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer that comes in the end. Every error on the way must say: come again."""
        end = time.monotonic() + INSISTENCE
        while True:
            try:
                return await call()
            except Unavailable as error:
                self._note(error, end)
            await asyncio.sleep(0.01)  # a client that comes back, not one that waits for something

    def _note(self, error: Unavailable, end: float) -> None:
        self.refusals[error.code] += 1
        assert error.retry
        assert error.status == 503
        assert time.monotonic() < end, f"refused for {INSISTENCE:.0f} s: {error.code} {error.detail}"


class Clients(Insistence):
    """One client a user, all at once: each does at random what users do, and looks at what it is told.

    Nobody else acts for its user, so a client knows what its user has read. What others write and delete at the
    same moment may be counted or not; everything else must be exact. The naive chat is the judge.
    """

    def __init__(self, rs: Readstate, rooms: Mapping[str, Sequence[str]], seed: int) -> None:
        super().__init__()
        self.rs = rs
        self.users = sorted({user for members in rooms.values() for user in members})
        self.done = 0
        self._rooms = rooms
        self._random = random.Random(seed)
        self._seed = seed
        self._naive = NaiveChat(lambda: 0, fanout_max_members=FANOUT)
        self._begun: dict[str, set[str]] = {room: set() for room in rooms}
        """Messages that somebody has begun to send."""
        self._deleting: set[str] = set()
        self._last: Counter[str] = Counter()
        self._faults: list[tuple[int, Fault]] = []
        self._under_way: list[asyncio.Task[object]] = []

    async def gather(self) -> None:
        """Everyone comes in."""
        for room, members in self._rooms.items():
            await self.rs.channels.put(room, PutChannel(type="group", members=tuple(members)))
            self._naive.put_channel(room, members)

    async def act(self, times: int, faults: Iterable[tuple[int, Fault]] = ()) -> None:
        """So many things are done in all; each fault comes after so many of them, while the others go on."""
        self._faults = sorted(((self.done + after, fault) for after, fault in faults), key=lambda pair: pair[0])
        end = self.done + times
        async with asyncio.TaskGroup() as tasks:
            for user in self.users:
                tasks.create_task(self._client(user, random.Random(f"{self._seed} {user} {self.done}"), end))
        await asyncio.gather(*self._under_way)
        self._under_way.clear()

    async def _client(self, user: str, dice: random.Random, end: int) -> None:
        rooms = [room for room, members in self._rooms.items() if user in members]
        kinds = [self._send] * 5 + [self._read_up_to] * 3 + [self._read_one_by_one] * 3 + [self._mark_unread] * 2
        kinds += [self._delete] * 2 + [self._leave_and_come_back] + [self._look] * 5
        while self.done < end:
            self.done += 1
            while self._faults and self._faults[0][0] <= self.done:
                self._under_way.append(asyncio.ensure_future(self._faults.pop(0)[1]()))
            await dice.choice(kinds)(user, dice.choice(rooms), dice)

    # ------------------------------------------------------------ what a client does

    async def _send(self, user: str, room: str, dice: random.Random) -> None:
        self._last[user] += 1
        name = f"{user}-{self._last[user]}"
        self._begun[room].add(name)
        [sent] = await self.insist(lambda: self.rs.messages.send([message(user, name, room)]))
        assert sent.status in {"accepted", "duplicate"}, sent
        assert sent.seq is not None
        self._naive.channels[room].messages.append(Message(name, user, 0, sent.seq))
        self._naive.channels[room].messages.sort(key=lambda known: known.seq or 0)
        self._naive._read_up_to(user, room, sent.seq)

    async def _read_up_to(self, user: str, room: str, dice: random.Random) -> None:
        if known := self._naive.channels[room].messages:
            name = dice.choice(known).id
            await self.insist(lambda: self.rs.reads.mark_read(user, room, ReadTarget(up_to=name)))
            self._naive.mark_read(user, room, up_to=name)

    async def _read_one_by_one(self, user: str, room: str, dice: random.Random) -> None:
        if known := self._naive.channels[room].messages:
            names = tuple({dice.choice(known).id for _ in range(2)})
            await self.insist(lambda: self.rs.reads.mark_read(user, room, ReadTarget(messages=names)))
            self._naive.mark_read(user, room, messages=names)

    async def _mark_unread(self, user: str, room: str, dice: random.Random) -> None:
        if known := [m.id for m in self._naive.channels[room].messages if not _may_be_deleted(m.id)]:
            name = dice.choice(known)
            await self.insist(lambda: self.rs.reads.mark_unread(user, room, MarkUnread(from_=name)))
            self._naive.mark_unread(user, room, name)

    async def _delete(self, user: str, room: str, dice: random.Random) -> None:
        mine = [m for m in self._naive.channels[room].messages if m.sender == user and _may_be_deleted(m.id)]
        if known := [m.id for m in mine if m.id not in self._deleting]:
            name = dice.choice(known)
            self._deleting.add(name)
            await self.insist(lambda: self.rs.messages.delete(room, name))
            self._naive.delete(room, name)

    async def _leave_and_come_back(self, user: str, room: str, dice: random.Random) -> None:
        left, back = ChangeMembers(remove=(user,)), ChangeMembers(add=(user,), history="unread")
        await self.insist(lambda: self.rs.channels.change_members(room, left))
        await self.insist(lambda: self.rs.channels.change_members(room, back))

    async def _look(self, user: str, room: str, dice: random.Random) -> None:
        """Between what must be counted and what may be."""
        unread = {known.id for known in self._naive.unread_messages(user, room)}
        known = {known.id for known in self._naive.channels[room].messages}
        row = await self.insist(lambda: self.rs.unread.of_channel(user, room))
        least = len(unread - self._deleting)
        most = len(unread | {name for name in self._begun[room] - known if not name.startswith(f"{user}-")})
        assert row.exact, row
        assert least <= row.unread <= most, f"{user} in {room}: {row.unread}, but at least {least} and at most {most}"

    # ------------------------------------------------------------ in the end

    async def check(self) -> None:
        """Nothing is under way: all counts are those of the naive chat, and explain agrees."""
        for user in self.users:
            rooms = [room for room, members in self._rooms.items() if user in members]
            total = sum([await self._check_room(user, room) for room in rooms])
            assert (await self._totals(user)).unread == total, user

    async def _totals(self, user: str) -> UserTotals:
        return (await self.insist(lambda: self.rs.unread.totals([user])))[user]

    async def _check_room(self, user: str, room: str) -> int:
        wanted = [known.id for known in self._naive.unread_messages(user, room)]
        row = await self.insist(lambda: self.rs.unread.of_channel(user, room))
        why = await self.insist(lambda: self.rs.explain.explain(user, room))
        context = f"{user} in {room}: {row}, {why}, expected {wanted}"
        assert row.unread == len(wanted), context
        assert row.exact, context
        assert (row.first_unread.id if row.first_unread else None) == (wanted[0] if wanted else None), context
        assert why.agrees, context
        assert why.hot == why.durable == row.unread, context
        return len(wanted)

    async def check_after_reloading(self) -> None:
        """What stands now, and what stands when all hot state is loaded anew: so it is what is durable."""
        await self.check()
        await self.rs.evict()
        await self.check()


def _may_be_deleted(name: str) -> bool:
    """Every fourth message may be deleted; nobody marks unread from such a one."""
    return int(name.rpartition("-")[2]) % 4 == 3


def clients(rs: Readstate, seed: int) -> Clients:
    """Three users in a small channel, six in a big one."""
    users = ["ann", "bob", "cy", "dan", "eve", "fay"]
    return Clients(rs, {SMALL: users[:3], BIG: users, "pair": users[2:4]}, seed)


class Held:
    """Calls of something that wait: before they are made, or with the answer in hand."""

    def __init__(self, thing: Any, name: str, *, with_answer: bool = False, only_first: bool = False) -> None:
        self._call = getattr(thing, name)
        self._name = name
        self._with_answer = with_answer
        self._only_first = only_first
        self._waiting: list[asyncio.Future[None]] = []
        self._open = False
        setattr(thing, name, self._hold)

    async def _hold(self, *args: Any, **named: Any) -> Any:
        if self._with_answer:
            answer = await self._call(*args, **named)
            await self._wait()
            return answer
        await self._wait()
        return await self._call(*args, **named)

    async def _wait(self) -> None:
        if not self._open:
            self._open = self._only_first
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]

    async def reached(self, calls: int = 1) -> None:
        """So many wait now."""

        async def waiting() -> bool:
            return len(self._waiting) >= calls

        await eventually(waiting, f"{calls} calls of {self._name} wait")

    async def is_reached_before(self, other: asyncio.Task[Any]) -> bool:
        """Whether a call waits before something else is done."""

        async def either() -> bool:
            return bool(self._waiting) or other.done()

        await eventually(either, f"a call of {self._name} waits")
        return bool(self._waiting)

    def let_go(self) -> None:
        """Those that wait go on, and so do all that come."""
        self._open = True
        for one in self._waiting:
            if not one.done():
                one.set_result(None)

    def fail(self, error: Exception) -> None:
        """Those that wait fail; all that come go on."""
        self._open = True
        for one in self._waiting:
            if not one.done():
                one.set_exception(error)
