"""PostgreSQL that dies, hangs or is cut off: errors say to come again, and nothing acknowledged is lost."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from enum import Enum

import pytest

from readstate.adapters.sql.postgres.store import PostgresStore
from readstate.domain.errors import ConfigurationError, StorageUnavailable
from readstate.domain.events import ChannelEvent, Delivery, MembersEvent, MessageEvent, ReadEvent, read_event
from readstate.domain.facts import Effect
from readstate.domain.model import NO_POSITION, Pointer
from readstate.stack import Postgres
from readstate.timings import SqlTimings
from tests.online import nobody

from ..conftest import eventually
from ..contract.postgres import database, server

NOW = 1_700_000_000_000
positions = itertools.count(1)
USUAL = SqlTimings()


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """One that may be killed, and keeps what it has acknowledged."""
    with Postgres(tmp_path_factory.mktemp("outages") / "postgres") as postgres:
        yield postgres


@pytest.fixture
async def mortal(own_server: Postgres) -> AsyncIterator[Postgres]:
    await asyncio.to_thread(own_server.start)
    yield own_server
    own_server.resume()


@contextlib.asynccontextmanager
async def opened(url: str, timings: SqlTimings = USUAL) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(url, 100, timings)
    try:
        yield store
    finally:
        await store.close()


async def begin(store: PostgresStore, name: str) -> None:
    created = ChannelEvent(channel_id=name, created_at=NOW, type="group")
    joined = MembersEvent(channel_id=name, created_at=NOW, add=("alice", "bob"))
    await store.apply([Delivery(created, next(positions)), Delivery(joined, next(positions))], online=nobody)


async def say(store: PostgresStore, name: str, id_: str) -> Effect:
    message = MessageEvent(channel_id=name, created_at=NOW, id=id_, sender_id="alice", at=NOW, text=id_)
    [effect] = await store.apply([Delivery(message, next(positions))], online=nobody)
    return effect


def read(user: str, seq: int) -> ReadEvent:
    return read_event(user, "c", Pointer(seq=seq), NOW)


async def answers(store: PostgresStore) -> bool:
    try:
        await store.ping()
    except StorageUnavailable:
        return False
    return True


# ---------------------------------------------------------------- killed


async def test_a_kill_under_load_loses_nothing_acknowledged_and_needs_no_help(mortal: Postgres) -> None:
    acknowledged: list[str] = []
    failed = asyncio.Event()
    ids = itertools.count(1)

    async def write(store: PostgresStore) -> None:
        while not failed.is_set() or await answers(store) is False:
            id_ = f"m{next(ids)}"
            try:
                await say(store, "load", id_)
            except StorageUnavailable:
                failed.set()
            else:
                acknowledged.append(id_)

    async with opened(mortal.url) as store:
        await begin(store, "load")
        writing = [asyncio.create_task(write(store)) for _ in range(5)]

        async def are_there() -> bool:
            return len(acknowledged) > 50

        await eventually(are_there, "some messages are written")
        await asyncio.to_thread(mortal.kill)
        await failed.wait()
        with pytest.raises(StorageUnavailable):
            await store.load_user("bob")
        await asyncio.to_thread(mortal.start)
        await asyncio.wait_for(asyncio.gather(*writing), 60)
        found = await store.by_id([("load", id_) for id_ in acknowledged])
        assert {id_ for _, id_ in found} == set(acknowledged)
        stored = sorted(message.seq or 0 for message in await store.messages_since("load", NO_POSITION, 100_000))
        assert stored == list(range(1, len(stored) + 1))


async def test_a_restart_while_nothing_happens_goes_unnoticed(mortal: Postgres) -> None:
    async with opened(mortal.url) as store:
        await begin(store, "quiet")
        await asyncio.gather(*(store.badge_count(f"u{n}") for n in range(50)))
        await asyncio.to_thread(mortal.stop)
        await asyncio.to_thread(mortal.start)
        assert (await say(store, "quiet", "m1")).message is not None
        assert len(await store.load_user("bob")) >= 1


async def test_one_that_hangs_is_given_up_and_taken_up_again(mortal: Postgres) -> None:
    impatient = SqlTimings(statement=0.5, late_answer=2.0, free_connection=0.5, connect=2.0)
    async with opened(mortal.url, impatient) as store:
        mortal.pause()
        with pytest.raises(StorageUnavailable):
            await store.ping()
        with pytest.raises(StorageUnavailable):
            await store.load_user("bob")
        mortal.resume()
        await eventually(lambda: answers(store), "the database answers again")


# ---------------------------------------------------------------- cut off


class Cut(Enum):
    """When the wire breaks."""

    BEFORE = 1
    """What the store sends does not get there."""
    BETWEEN = 2
    """It gets there, but no answer comes back."""
    AFTER = 3
    """The answer is the last that comes back."""


class Wire:
    """Between the store and the server. `cut` looks at what the store sends, and may break the wire once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._pairs: set[asyncio.Task[None]] = set()
        self.cut: Callable[[bytes], Cut | None] = lambda _: None

    async def __aenter__(self) -> "Wire":
        self._listener = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port: int = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        self.cut_all()
        await asyncio.gather(*self._pairs, return_exceptions=True)

    def stop(self) -> None:
        """Let nobody connect any more."""
        self._listener.close()

    def cut_all(self) -> None:
        for pair in self._pairs:
            pair.cancel()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pairs.add(task)
        there, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        back = asyncio.create_task(_copy(there, writer))
        try:
            while data := await reader.read(65_536):
                if (cut := self.cut(data)) is not None:
                    self.cut = lambda _: None
                    back.cancel()
                    await asyncio.gather(back, return_exceptions=True)
                    await _last(cut, data, there, to_server, writer)
                    return
                to_server.write(data)
                await to_server.drain()
        except asyncio.CancelledError:
            pass
        finally:
            back.cancel()
            writer.close()
            to_server.transport.abort()
            self._pairs.discard(task)


async def _last(
    cut: Cut, data: bytes, there: asyncio.StreamReader, to_server: asyncio.StreamWriter, back: asyncio.StreamWriter
) -> None:
    if cut is Cut.BEFORE:
        return
    to_server.write(data)
    answer = await there.read(65_536)
    if cut is Cut.AFTER:
        back.write(answer)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with Wire(server().port) as wire:
        yield wire


@pytest.fixture
async def over_wire(wire: Wire) -> AsyncIterator[PostgresStore]:
    async with database() as url:
        before, _, after = url.rpartition(str(server().port))
        async with opened(f"{before}{wire.port}{after}?sslmode=disable") as store:
            await begin(store, "c")
            yield store


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.BETWEEN])
async def test_a_commit_without_an_answer_says_so_and_is_safe_to_repeat(
    over_wire: PostgresStore, wire: Wire, cut: Cut
) -> None:
    wire.cut = lambda data: cut if b"COMMIT\0" in data else None
    with pytest.raises(StorageUnavailable, match="safe to repeat"):
        await say(over_wire, "c", "m1")
    again = await say(over_wire, "c", "m1")
    assert again.duplicate is (cut is Cut.BETWEEN)
    assert again.message is not None
    assert again.message.seq == 1
    other = (await say(over_wire, "c", "m2")).message
    assert other is not None
    assert other.seq == 2


async def test_a_connection_lost_after_the_commit_is_not_noticed(over_wire: PostgresStore, wire: Wire) -> None:
    for n in range(1, 6):
        wire.cut = lambda data: Cut.AFTER if b"COMMIT\0" in data else None
        effect = await say(over_wire, "c", f"m{n}")
        assert not effect.duplicate
        assert effect.message is not None
        assert effect.message.seq == n


async def test_nor_is_one_lost_before_the_commit(over_wire: PostgresStore, wire: Wire) -> None:
    wire.cut = lambda data: Cut.BEFORE if b"INSERT INTO messages" in data else None
    assert not (await say(over_wire, "c", "m1")).duplicate
    wire.cut_all()
    assert (await over_wire.load_channels(["c"]))["c"].last_seq == 1


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.BETWEEN])
async def test_a_read_whose_connection_is_lost_is_written_over_another_one(
    over_wire: PostgresStore, wire: Wire, cut: Cut
) -> None:
    wire.cut = lambda data: cut if b"usr_bob" in data else None
    await over_wire.merge([read("usr_bob", 5)])
    [room] = await over_wire.load_user("usr_bob")
    assert room.pointer.seq == 5


async def test_a_read_that_may_be_written_and_cannot_be_repeated_says_so(over_wire: PostgresStore, wire: Wire) -> None:
    written = asyncio.Event()

    def cut(data: bytes) -> Cut | None:
        if b"usr_bob" not in data:
            return None
        wire.stop()
        written.set()
        return Cut.BETWEEN

    wire.cut = cut
    with pytest.raises(StorageUnavailable, match="safe to repeat") as lost:
        await over_wire.merge([read("usr_bob", 5)])
    assert lost.value.uncertain
    assert written.is_set()


# ---------------------------------------------------------------- at the start


async def test_a_server_that_is_not_there_may_come_later() -> None:
    with pytest.raises(StorageUnavailable, match="cannot be reached"):
        await PostgresStore.open("postgresql://somebody:secret@127.0.0.1:1/x", 100, SqlTimings())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda url: url.replace("//readstate:", "//readstate:not"), "password authentication failed"),
        (lambda url: url + "_not", "does not exist"),
        (lambda url: url + "?sslmode=perhaps", "sslmode"),
        (lambda url: url + "?no_such_parameter=1", "no_such_parameter"),
    ],
)
async def test_a_url_that_cannot_work_is_a_matter_of_configuration(change: Callable[[str], str], reason: str) -> None:
    url = server().url
    password = url.split("@", maxsplit=1)[0].rpartition(":")[2]
    with pytest.raises(ConfigurationError, match=reason) as refused:
        await PostgresStore.open(change(url), 100, SqlTimings())
    assert password not in str(refused.value)
