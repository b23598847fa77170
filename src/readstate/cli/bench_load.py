"""The load of `readstate bench`: a world made up for it, requests over many connections, and what must come out."""

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count, cycle, islice
from typing import ParamSpec, TypeVar

import httpx
from msgspec import Struct
from rich.progress import Progress

from readstate import api
from readstate.api import NewMessage, UserRead
from readstate.client import ApiError, Client, Retries
from readstate.client.errors import Forbidden, NotFound, NotReadstate, NotYet, RateLimited, Unavailable, refusal
from readstate.domain.errors import ReadstateError
from readstate.domain.errors import Unavailable as OutOfOrder

from .place import Place

T = TypeVar("T")
P = ParamSpec("P")
Job = Callable[["Phase", Client], Awaitable[int]]
"""One request of a phase over some connection; answers how many messages, reads or syncs it was."""
PATIENCE = 30.0
"""Seconds that one request may be refused, and that nothing may move where something must."""
PAUSE = 0.2
TEXT = "The quick brown fox jumps over the lazy dog."
MOST_CHECKED = 200
MEMBERS_AT_ONCE = 500


class Figures(Struct, frozen=True):
    """What came out of a phase. Latencies are those of answered requests."""

    name: str
    requests: int
    done: int
    seconds: float
    per_second: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    busy: float
    """Share of the time that this process itself was busy. Near 1 it is the limit, not the service."""
    refused: dict[str, int]
    """Requests that were told to come back later (429 and 503), by code."""


class Wrong(Struct, frozen=True):
    """A count that is not what it must be."""

    user_id: str
    channel_id: str
    expected: int
    unread: int | None
    """None if the user's sync does not have the channel."""
    reason: str | None = None


class Left(Struct):
    """What is still there of a run."""

    channels: int
    users: int


class Report(Struct, kw_only=True):
    """All that a run found."""

    prefix: str
    users: int
    channels: int
    members: int
    connections: int
    batch: int
    phases: list[Figures] = []
    counted_after: float = 0.0
    """Seconds from the answer to the last message until all had their place."""
    checked_users: int = 0
    checked_counts: int = 0
    wrong: list[Wrong] = []
    left: Left


# ---------------------------------------------------------------- what a run makes, and what it knows of it


class World:
    """Channels and users of one run, under a prefix that nobody else has, and what must be unread for whom."""

    def __init__(self, prefix: str, users: int, channels: int, members: int) -> None:
        self.prefix = prefix
        self.members = members
        self.channels = [f"{prefix}-c{number}" for number in range(channels)]
        self.readers = [f"{prefix}-u{number}" for number in range(users)]
        self.writers = {channel: f"{prefix}-w{number}" for number, channel in enumerate(self.channels)}
        self.readers_of = {
            channel: [self.readers[(number * (members - 1) + place) % users] for place in range(members - 1)]
            for number, channel in enumerate(self.channels)
        }
        self.user_rooms = [(user, channel) for channel, readers in self.readers_of.items() for user in readers]
        self.sent = Counter[str]()
        """Messages in each channel. Nobody else writes there, so it is the last seq too."""
        self.read = dict.fromkeys(self.user_rooms, 0)
        """Up to which seq each reader has read each channel."""
        self.left = Left(0, 0)

    def is_made(self) -> None:
        """From now on something of it may be there."""
        self.left.channels, self.left.users = len(self.channels), len(self.readers) + len(self.writers)

    def note(self, read: UserRead) -> None:
        """A read was done."""
        user_room = str(read.user_id), str(read.channel_id)
        self.read[user_room] = max(self.read[user_room], read.up_to_seq or 0)

    def expected(self, users: Iterable[str]) -> dict[str, dict[str, int]]:
        """What must be unread for these users, by channel: all that the writer sent, but for what was read."""
        found: dict[str, dict[str, int]] = {user: {} for user in users}
        for (user, channel), seq in self.read.items():
            if user in found:
                found[user][channel] = self.sent[channel] - seq
        return found


def differences(user: str, expected: dict[str, int], found: Iterable[api.Unread]) -> list[Wrong]:
    """Counts of a user that are not what they must be. One that is capped is a lower bound."""
    rows = {row.channel_id: row for row in found}
    wrong = [Wrong(user, name, 0, row.unread) for name, row in rows.items() if name not in expected]
    for channel, number in expected.items():
        row = rows.get(channel)
        if row is None:
            wrong.append(Wrong(user, channel, number, None))
        elif not (row.unread <= number if row.reason == "capped" else row.exact and row.unread == number):
            wrong.append(Wrong(user, channel, number, row.unread, row.reason or None))
    return wrong


# ---------------------------------------------------------------- asking


class Interrupted(Exception):
    """Somebody wants the run to end."""


class Phase:
    """Requests of one kind, and how they went."""

    def __init__(self, *, patient: bool = False) -> None:
        self.done = 0
        self._patient = patient
        """Whether it also waits for a service that does not answer."""
        self._begun, self._worked = time.monotonic(), time.process_time()
        self._latencies: list[float] = []
        self._refused: Counter[str] = Counter()

    async def ask(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask until there is an answer. What is refused for now is asked again: it cannot be done twice."""
        end = time.monotonic() + PATIENCE
        while True:
            begun = time.perf_counter()
            try:
                answer = await call(*args, **kwargs)
            except ApiError as error:
                if time.monotonic() > end or not self._is_passing(error):
                    raise
                self._refused[error.code] += 1
                await asyncio.sleep(error.retry_after or 1)
            else:
                self._latencies.append(time.perf_counter() - begun)
                return answer

    def _is_passing(self, error: ApiError) -> bool:
        return isinstance(error, RateLimited | Unavailable | NotYet) or (self._patient and error.retry)

    def lasts(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._begun

    def figures(self, name: str) -> Figures:
        """What came out of it until now."""
        seconds = self.lasts()
        ordered = sorted(self._latencies)
        return Figures(
            name=name,
            requests=len(ordered),
            done=self.done,
            seconds=round(seconds, 3),
            per_second=round(self.done / seconds, 1),
            p50_ms=_percentile(ordered, 0.5),
            p95_ms=_percentile(ordered, 0.95),
            p99_ms=_percentile(ordered, 0.99),
            busy=round((time.process_time() - self._worked) / seconds, 2),
            refused=dict(self._refused),
        )


def _percentile(ordered: list[float], share: float) -> float | None:
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)] * 1000, 2)


class Run:
    """A load on a service: so many connections, each with one request after the other."""

    def __init__(self, place: Place, world: World, seconds: float, connections: int, batch: int, bar: Progress) -> None:
        self._place = place
        self._world = world
        self._seconds = seconds
        self._connections = connections
        self._clients: list[Client] = []
        self._batch = batch
        self._bar = bar
        self._stopped = False
        self.shared = True
        """Whether others share its hot state, as in the cluster profile. That is so until it says otherwise."""
        self.fault: ReadstateError | None = None
        """Why not everything could be taken away."""
        self.report = Report(
            prefix=world.prefix,
            users=len(world.readers),
            channels=len(world.channels),
            members=world.members,
            connections=connections,
            batch=batch,
            left=world.left,
        )

    def interrupt(self, *_: object) -> None:
        """Let the requests under way end, and begin no more: what they make must be known. The second time: at once."""
        if self._stopped:
            raise KeyboardInterrupt
        self._stopped = True

    async def measure(self) -> None:
        """Make a world, measure, and check."""
        world, batch = self._world, self._batch
        async with self._connected():
            await self._look()
            world.is_made()
            await self._all("making channels", map(self._make, world.channels))
            await self._timed(f"messages, {batch} at once", map(self._send, self._messages()))
            await self._counted()
            one_by_one, together = self._reads(world.user_rooms[::2]), self._reads(world.user_rooms[1::2])
            await self._timed("reads, one by one", map(self._read, one_by_one))
            await self._timed(f"reads, {batch} at once", map(self._read_many, _batches(together, batch)))
            await self._timed("syncs", map(self._sync, cycle(world.readers)))
            await self._compare()

    async def remove(self) -> None:
        """Take away what an earlier run has left."""
        async with self._connected():
            await self._look()
        self._world.is_made()
        await self.take_away(erase=True)

    async def take_away(self, *, erase: bool) -> None:
        """Leave nothing behind, if anything was made. Why that can't be is noted in `fault`."""
        world = self._world
        if not world.left.channels:
            return
        self._stopped = False
        try:
            async with self._connected():
                await self._all("taking channels away", map(self._delete, world.channels))
                if erase:
                    await self._all("taking users away", map(self._erase, [*world.readers, *world.writers.values()]))
        except ReadstateError as error:
            self.fault = error

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        """A client for each connection: what many share costs each request the more, the more there are."""
        url, key = self._place.address()
        context = self._place.tls() or httpx.create_ssl_context()
        async with AsyncExitStack() as stack:
            self._clients = []
            for _ in range(self._connections):
                transport = None if self._place.url else httpx.AsyncHTTPTransport(verify=context)
                client = Client(url, key, retries=Retries(tries=1), transport=transport)
                self._clients.append(await stack.enter_async_context(client))
            yield

    async def _look(self) -> None:
        """See who answers, before anything is made there."""
        client = self._clients[0]
        try:
            await client.totals(())
        except Forbidden as error:
            detail = "a user's token may not do this: give a service key (--key or READSTATE_KEY)"
            raise Forbidden(detail) from error
        with suppress(NotReadstate, NotFound):  # a proxy that hides it
            self.shared = "log" in (await client.ready())["dependencies"]

    # ------------------------------------------------------------ many requests at once

    async def _spread(
        self, jobs: Iterator[Job], phase: Phase, told: Callable[[], None], seconds: float = math.inf
    ) -> None:
        """Do jobs over all connections, until they or the time are up. After a fault those under way are finished."""
        faults: list[Exception] = []

        async def connection(client: Client) -> None:
            try:
                while not (faults or self._stopped) and phase.lasts() < seconds and (job := next(jobs, None)):
                    number = await job(phase, client)
                    phase.done += number
                    told()
            except Exception as error:  # of any kind: the other connections must not go on
                faults.append(error)

        await asyncio.gather(*map(connection, self._clients))
        if faults:
            raise faults[0]
        if self._stopped:
            raise Interrupted

    async def _all(self, name: str, jobs: Iterable[Job]) -> None:
        listed = list(jobs)
        phase, task = Phase(patient=True), self._bar.add_task(name, total=len(listed), said="")
        await self._spread(iter(listed), phase, lambda: self._bar.update(task, completed=phase.done))
        self._bar.remove_task(task)

    async def _timed(self, name: str, jobs: Iterator[Job]) -> None:
        phase, task = Phase(), self._bar.add_task(name, total=self._seconds, said="")

        def told() -> None:
            self._bar.update(task, completed=phase.lasts(), said=f"{phase.done:,}")

        try:
            await self._spread(jobs, phase, told, self._seconds)
        except ReadstateError as error:
            error.detail = f"{name}: {error.detail}"
            raise
        self.report.phases.append(phase.figures(name))
        self._bar.remove_task(task)

    # ------------------------------------------------------------ the load

    def _messages(self) -> Iterator[list[NewMessage]]:
        """Batches that go through all channels in turn. Their ids make it harmless to send one again."""
        world = self._world
        made = (
            NewMessage(id=f"{world.prefix}-m{number}", channel_id=channel, sender_id=world.writers[channel], text=TEXT)
            for number, channel in enumerate(cycle(world.channels))
        )
        return _batches(made, self._batch)

    def _reads(self, user_rooms: list[tuple[str, str]]) -> Iterator[UserRead]:
        """Reads that each go one message further, through all seats in turn, until there is nothing more to read."""
        for seq in count(1):
            going = [(user, channel) for user, channel in user_rooms if seq <= self._world.sent[channel]]
            if not going:
                return
            for user, channel in going:
                yield UserRead(user_id=user, channel_id=channel, up_to_seq=seq)

    def _make(self, channel: str) -> Job:
        async def make(phase: Phase, client: Client) -> int:
            members = [self._world.writers[channel], *self._world.readers_of[channel]]
            first, *others = _batches(iter(members), MEMBERS_AT_ONCE)
            await phase.ask(client.put_channel, channel, type="channel", members=first)
            for more in others:
                await phase.ask(client.change_members, channel, add=more)
            return 1

        return make

    def _delete(self, channel: str) -> Job:
        async def delete(phase: Phase, client: Client) -> int:
            with suppress(NotFound, NotYet):  # it was not made; or it will be gone for sure
                await phase.ask(client.delete_channel, channel)
            self._world.left.channels -= 1
            return 1

        return delete

    def _erase(self, user: str) -> Job:
        async def erase(phase: Phase, client: Client) -> int:
            await phase.ask(client.erase_user, user)
            self._world.left.users -= 1
            return 1

        return erase

    def _send(self, batch: list[NewMessage]) -> Job:
        async def send(phase: Phase, client: Client) -> int:
            _require(await phase.ask(client.send_many, batch))
            self._world.sent.update(Counter(str(message.channel_id) for message in batch))
            return len(batch)

        return send

    def _read(self, read: UserRead) -> Job:
        async def mark(phase: Phase, client: Client) -> int:
            user, channel = str(read.user_id), str(read.channel_id)
            await phase.ask(client.read, user, channel, up_to_seq=read.up_to_seq)
            self._world.note(read)
            return 1

        return mark

    def _read_many(self, batch: list[UserRead]) -> Job:
        async def mark(phase: Phase, client: Client) -> int:
            _require(await phase.ask(client.read_many, batch))
            for read in batch:
                self._world.note(read)
            return len(batch)

        return mark

    def _sync(self, user: str) -> Job:
        async def sync(phase: Phase, client: Client) -> int:
            await phase.ask(client.sync, user)
            return 1

        return sync

    # ------------------------------------------------------------ is it right?

    async def _counted(self) -> None:
        """Wait until every message has its place. In a cluster workers give it: as long as they get on."""
        world, seen = self._world, Counter[str]()
        begun = moved = time.monotonic()
        while behind := [channel for channel in world.channels if seen[channel] < world.sent[channel]]:
            before = seen.total()
            await self._all("waiting for counts", [self._place_of(channel, seen) for channel in behind])
            if seen.total() > before:
                moved = time.monotonic()
                continue
            if time.monotonic() - moved > PATIENCE:
                missing = world.sent.total() - before
                raise OutOfOrder(f"{missing:,} messages were taken and do not appear: does a worker run?")
            await asyncio.sleep(PAUSE)
        self.report.counted_after = round(time.monotonic() - begun, 3)

    def _place_of(self, channel: str, seen: Counter[str]) -> Job:
        async def look(phase: Phase, client: Client) -> int:
            latest = (await phase.ask(client.get_channel, channel)).latest
            seen[channel] = (latest.seq if latest else 0) or 0
            return 1

        return look

    async def _compare(self) -> None:
        """Compare counts with what they must be. In a cluster what is wrong has some time to become right."""
        world = self._world
        users = random.sample(world.readers, min(len(world.readers), MOST_CHECKED))
        expected = world.expected(users)
        self.report.checked_users, self.report.checked_counts = len(users), sum(map(len, expected.values()))
        end = time.monotonic() + (PATIENCE if self.shared else 0)
        while True:
            wrong: list[Wrong] = []
            await self._all("checking", [self._check(user, expected[user], wrong) for user in users])
            self.report.wrong = wrong
            if not wrong or time.monotonic() >= end:
                return
            users = list({one.user_id for one in wrong})
            await asyncio.sleep(PAUSE)

    def _check(self, user: str, expected: dict[str, int], wrong: list[Wrong]) -> Job:
        async def check(phase: Phase, client: Client) -> int:
            page = await phase.ask(client.sync, user, only_unread=False)
            rows = page.channels
            while page.cursor:
                page = await phase.ask(client.sync, user, only_unread=False, cursor=page.cursor)
                rows += page.channels
            wrong.extend(differences(user, expected, rows))
            return 1

        return check


def _batches(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while batch := list(islice(items, size)):
        yield batch


def _require(results: Iterable[api.SendResult | api.ReadOutcome]) -> None:
    """Of many in one request, all must be done."""
    for one in results:
        if one.status == "rejected":
            raise refusal(str(one.code), 422, str(one.detail))
