"""The load of `readstate bench`: requests over many connections, and the check of the counts."""

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count, cycle, islice
from typing import ParamSpec, TypeVar

import httpx
from rich.progress import Progress

from readstate.api import NewMessage, ReadOutcome, SendResult, UserRead
from readstate.client import ApiError, Client, Retries
from readstate.client.errors import Forbidden, NotFound, NotReadstate, NotYet, RateLimited, Unavailable, refusal
from readstate.domain.errors import ReadstateError
from readstate.domain.errors import Unavailable as NoProgress

from .bench_data import Dataset, PhaseResult, Report, WrongCount, differences
from .target import Target

T = TypeVar("T")
P = ParamSpec("P")
TIMEOUT = 30.0
"""Seconds that a request is retried, and that workers may make no progress."""
PAUSE = 0.2
TEXT = "The quick brown fox jumps over the lazy dog."
MOST_CHECKED = 200
MEMBERS_AT_ONCE = 500


class Interrupted(Exception):
    """The run was stopped by a signal."""


class Phase:
    """Requests of one kind, and their latencies."""

    def __init__(self, *, patient: bool = False) -> None:
        self.done = 0
        self._patient = patient
        """Whether it also retries while the service does not answer."""
        self._begun, self._worked = time.monotonic(), time.process_time()
        self._latencies: list[float] = []
        self._refused: Counter[str] = Counter()

    async def ask(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call until there is an answer. Refused requests are repeated; all of them are idempotent."""
        end = time.monotonic() + TIMEOUT
        while True:
            begun = time.perf_counter()
            try:
                answer = await call(*args, **kwargs)
            except ApiError as error:
                if time.monotonic() > end or not self._is_temporary(error):
                    raise
                self._refused[error.code] += 1
                await asyncio.sleep(error.retry_after or 1)
            else:
                self._latencies.append(time.perf_counter() - begun)
                return answer

    def _is_temporary(self, error: ApiError) -> bool:
        return isinstance(error, RateLimited | Unavailable | NotYet) or (self._patient and error.retry)

    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def result(self, name: str) -> PhaseResult:
        seconds = self.seconds()
        ordered = sorted(self._latencies)
        return PhaseResult(
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


Work = Callable[[T, Phase, Client], Awaitable[int]]
"""Requests for one item over a connection; returns how many messages, reads or syncs it did."""


def _percentile(ordered: list[float], share: float) -> float | None:
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)] * 1000, 2)


class Run:
    """A load on a service over a number of connections, each with one request at a time."""

    def __init__(
        self, target: Target, data: Dataset, seconds: float, connections: int, batch: int, bar: Progress
    ) -> None:
        self._target = target
        self.data = data
        self._seconds = seconds
        self._connections = connections
        self._clients: list[Client] = []
        self._batch = batch
        self._bar = bar
        self._stopped = False
        self.shared = True
        """Whether the service is a cluster; assumed until `/readyz` says otherwise."""
        self.fault: ReadstateError | None = None
        """Why not everything could be removed."""
        self.report = Report(
            prefix=data.prefix,
            users=len(data.readers),
            channels=len(data.channels),
            members=data.members,
            connections=connections,
            batch=batch,
            left=data.remaining,
        )

    def interrupt(self, *_: object) -> None:
        """Finish the requests in flight, whose effects must be known, and start no more. The second time: at once."""
        if self._stopped:
            raise KeyboardInterrupt
        self._stopped = True

    async def measure(self) -> None:
        """Create the channels, measure, and check the counts."""
        data, batch = self.data, self._batch
        async with self._connected():
            await self._check_access()
            data.mark_created()
            await self._all("creating channels", self._create, data.channels)
            await self._timed(f"messages, {batch} at once", self._send, self._messages())
            await self._wait_for_seqs()
            one_by_one, together = self._reads(data.user_rooms[::2]), self._reads(data.user_rooms[1::2])
            await self._timed("reads, one by one", self._read, one_by_one)
            await self._timed(f"reads, {batch} at once", self._read_many, _batches(together, batch))
            await self._timed("syncs", self._sync, cycle(data.readers))
            await self._compare()

    async def remove(self) -> None:
        """Remove what an earlier run has left."""
        async with self._connected():
            await self._check_access()
        self.data.mark_created()
        await self.clean_up(erase=True)

    async def clean_up(self, *, erase: bool) -> None:
        """Remove everything that was created. A failure is noted in `fault`."""
        data = self.data
        if not data.remaining.channels:
            return
        self._stopped = False
        try:
            async with self._connected():
                await self._all("deleting channels", self._delete, data.channels)
                if erase:
                    await self._all("erasing users", self._erase, [*data.readers, *data.writers.values()])
        except ReadstateError as error:
            self.fault = error

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        """A client for each connection: a shared connection pool costs more per request, the larger it is."""
        url, key = self._target.address()
        context = self._target.tls() or httpx.create_ssl_context()
        async with AsyncExitStack() as stack:
            self._clients = []
            for _ in range(self._connections):
                transport = None if self._target.url else httpx.AsyncHTTPTransport(verify=context)
                client = Client(url, key, retries=Retries(tries=1), transport=transport)
                self._clients.append(await stack.enter_async_context(client))
            yield

    async def _check_access(self) -> None:
        """Check the key and the profile, before anything is created."""
        client = self._clients[0]
        try:
            await client.totals(())
        except Forbidden as error:
            detail = "a user's token may not do this: give a service key (--key or READSTATE_KEY)"
            raise Forbidden(detail) from error
        with suppress(NotReadstate, NotFound):  # a proxy hides it
            self.shared = "log" in (await client.ready())["dependencies"]

    # ------------------------------------------------------------ concurrency

    async def _spread(
        self, work: Work[T], items: Iterator[T], phase: Phase, update: Callable[[], None], seconds: float = math.inf
    ) -> None:
        """Work over all connections until no item is left or the time is up. After an error those in flight finish."""
        faults: list[Exception] = []

        async def connection(client: Client) -> None:
            try:
                while not (faults or self._stopped) and phase.seconds() < seconds and (item := next(items, None)):
                    done = await work(item, phase, client)  # in two steps: the others count meanwhile
                    phase.done += done
                    update()
            except Exception as error:  # of any kind: the other connections must stop too
                faults.append(error)

        await asyncio.gather(*map(connection, self._clients))
        if faults:
            raise faults[0]
        if self._stopped:
            raise Interrupted

    async def _all(self, name: str, work: Work[T], items: Sequence[T]) -> None:
        phase, task = Phase(patient=True), self._bar.add_task(name, total=len(items), said="")
        await self._spread(work, iter(items), phase, lambda: self._bar.update(task, completed=phase.done))
        self._bar.remove_task(task)

    async def _timed(self, name: str, work: Work[T], items: Iterator[T]) -> None:
        phase, task = Phase(), self._bar.add_task(name, total=self._seconds, said="")

        def update() -> None:
            self._bar.update(task, completed=phase.seconds(), said=f"{phase.done:,}")

        try:
            await self._spread(work, items, phase, update, self._seconds)
        except ReadstateError as error:
            error.detail = f"{name}: {error.detail}"
            raise
        self.report.phases.append(phase.result(name))
        self._bar.remove_task(task)

    # ------------------------------------------------------------ the load

    def _messages(self) -> Iterator[list[NewMessage]]:
        """Batches over all channels in turn. Their ids make a repeated request harmless."""
        data = self.data
        messages = (
            NewMessage(id=f"{data.prefix}-m{number}", channel_id=channel, sender_id=data.writers[channel], text=TEXT)
            for number, channel in enumerate(cycle(data.channels))
        )
        return _batches(messages, self._batch)

    def _reads(self, user_rooms: list[tuple[str, str]]) -> Iterator[UserRead]:
        """Reads of one more message each, over all user rooms in turn, until everything is read."""
        for seq in count(1):
            unread = [(user, channel) for user, channel in user_rooms if seq <= self.data.sent[channel]]
            if not unread:
                return
            for user, channel in unread:
                yield UserRead(user_id=user, channel_id=channel, up_to_seq=seq)

    async def _create(self, channel: str, phase: Phase, client: Client) -> int:
        members = [self.data.writers[channel], *self.data.readers_of[channel]]
        first, *others = _batches(iter(members), MEMBERS_AT_ONCE)
        await phase.ask(client.put_channel, channel, type="channel", members=first)
        for more in others:
            await phase.ask(client.change_members, channel, add=more)
        return 1

    async def _delete(self, channel: str, phase: Phase, client: Client) -> int:
        with suppress(NotFound, NotYet):  # it was never created; or it is accepted and will be deleted
            await phase.ask(client.delete_channel, channel)
        self.data.remaining.channels -= 1
        return 1

    async def _erase(self, user: str, phase: Phase, client: Client) -> int:
        await phase.ask(client.erase_user, user)
        self.data.remaining.users -= 1
        return 1

    async def _send(self, batch: list[NewMessage], phase: Phase, client: Client) -> int:
        _require(await phase.ask(client.send_many, batch))
        self.data.sent.update(Counter(str(message.channel_id) for message in batch))
        return len(batch)

    async def _read(self, read: UserRead, phase: Phase, client: Client) -> int:
        await phase.ask(client.read, str(read.user_id), str(read.channel_id), up_to_seq=read.up_to_seq)
        self.data.note_read(read)
        return 1

    async def _read_many(self, batch: list[UserRead], phase: Phase, client: Client) -> int:
        _require(await phase.ask(client.read_many, batch))
        for read in batch:
            self.data.note_read(read)
        return len(batch)

    async def _sync(self, user: str, phase: Phase, client: Client) -> int:
        await phase.ask(client.sync, user)
        return 1

    # ------------------------------------------------------------ checks

    async def _wait_for_seqs(self) -> None:
        """Wait until every message has its seq. In a cluster workers assign it: wait while they make progress."""
        data, seen = self.data, Counter[str]()

        async def look(channel: str, phase: Phase, client: Client) -> int:
            latest = (await phase.ask(client.get_channel, channel)).latest
            seen[channel] = (latest.seq if latest else 0) or 0
            return 1

        begun = moved = time.monotonic()
        while behind := [channel for channel in data.channels if seen[channel] < data.sent[channel]]:
            before = seen.total()
            await self._all("waiting for workers", look, behind)
            if seen.total() > before:
                moved = time.monotonic()
                continue
            if time.monotonic() - moved > TIMEOUT:
                missing = data.sent.total() - before
                raise NoProgress(f"{missing:,} messages were accepted and do not appear: does a worker run?")
            await asyncio.sleep(PAUSE)
        self.report.counted_after = round(time.monotonic() - begun, 3)

    async def _compare(self) -> None:
        """Compare counts with the expected ones. In a cluster a wrong count has some time to become right."""
        data = self.data
        users = random.sample(data.readers, min(len(data.readers), MOST_CHECKED))
        expected = data.expected(users)
        wrong: list[WrongCount] = []

        async def check(user: str, phase: Phase, client: Client) -> int:
            page = await phase.ask(client.sync, user, only_unread=False)
            rows = page.channels
            while page.cursor:
                page = await phase.ask(client.sync, user, only_unread=False, cursor=page.cursor)
                rows += page.channels
            wrong.extend(differences(user, expected[user], rows))
            return 1

        self.report.checked_users, self.report.checked_counts = len(users), sum(map(len, expected.values()))
        end = time.monotonic() + (TIMEOUT if self.shared else 0)
        while True:
            wrong.clear()
            await self._all("checking", check, users)
            if not wrong or time.monotonic() >= end:
                self.report.wrong = wrong
                return
            users = list({one.user_id for one in wrong})
            await asyncio.sleep(PAUSE)


def _batches(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while batch := list(islice(items, size)):
        yield batch


def _require(results: Iterable[SendResult | ReadOutcome]) -> None:
    """All items of a batch must be done."""
    for one in results:
        if one.status == "rejected":
            raise refusal(str(one.code), 422, str(one.detail))
