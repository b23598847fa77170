"""Many writers on one PostgreSQL: orders, merges and locks that hold between processes, and the limits of one."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import reduce

import asyncpg  # type: ignore[import-untyped]
import pytest
from msgspec import structs

from readstate.adapters.sql.postgres.engine import PostgresEngine
from readstate.adapters.sql.postgres.store import PostgresStore
from readstate.adapters.sql.session import Session, as_json
from readstate.domain.errors import ConfigurationError, Invalid, StorageUnavailable
from readstate.domain.events import AnyChannelEvent, ChannelEvent, Delivery, MembersEvent, MessageEvent, ReadEvent
from readstate.domain.facts import Effect
from readstate.domain.model import ChangeNumber, Preferences, ReadState
from readstate.domain.rules import merge
from readstate.timings import SqlTimings
from tests.online import nobody

from ..contract.postgres import command, database

NOW = 1_700_000_000_000
positions = itertools.count(1)


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with database() as url:
        yield url


@pytest.fixture
async def opened(url: str) -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def stores(url: str, opened: AsyncExitStack) -> Sequence[PostgresStore]:
    """Two processes, as far as the database can tell."""
    both = [await PostgresStore.open(url, 100, SqlTimings()) for _ in range(2)]
    for store in both:
        opened.push_async_callback(store.close)
    return both


@pytest.fixture
async def store(stores: Sequence[PostgresStore]) -> PostgresStore:
    return stores[0]


async def apply(store: PostgresStore, *events: AnyChannelEvent) -> list[Effect]:
    return await store.apply([Delivery(event, next(positions)) for event in events], online=nobody)


def channel(name: str = "c") -> ChannelEvent:
    return ChannelEvent(channel_id=name, created_at=NOW, type="group")


def join(*users: str, name: str = "c") -> MembersEvent:
    return MembersEvent(channel_id=name, created_at=NOW, add=users)


def say(id_: str, sender: str = "alice", name: str = "c") -> MessageEvent:
    return MessageEvent(channel_id=name, created_at=NOW, id=id_, sender_id=sender, at=NOW, text=id_)


def read(user: str, state: ReadState, name: str = "c") -> ReadEvent:
    apart = tuple(sorted(state.apart))
    return ReadEvent(user, name, state.epoch, state.seq, apart, f"m{state.seq}", NOW, NOW, ChangeNumber(1), NOW)


async def pointer(store: PostgresStore, user: str) -> ReadState:
    [user_room] = await store.load_user(user)
    return user_room.pointer.state


def seqs(effects: Sequence[Effect]) -> list[int]:
    return [effect.message.seq or 0 for effect in effects if effect.message is not None]


# ---------------------------------------------------------------- two processes


async def test_two_writers_of_one_channel_give_every_seq_once_and_leave_no_gap(stores: Sequence[PostgresStore]) -> None:
    await apply(stores[0], channel(), join("alice", "bob"))
    batches = [[say(f"m{batch}-{n}") for n in range(20)] for batch in range(20)]
    writing = [apply(store, *batch) for store, batch in zip(itertools.cycle(stores), batches, strict=False)]
    given = [seqs(effects) for effects in await asyncio.gather(*writing)]
    assert sorted(seq for batch in given for seq in batch) == list(range(1, 401))
    assert all(batch == list(range(batch[0], batch[0] + 20)) for batch in given)


async def test_the_same_messages_by_both_are_stored_once(stores: Sequence[PostgresStore]) -> None:
    await apply(stores[0], channel(), join("alice"))
    events = [say(f"m{n}") for n in range(50)]
    both = await asyncio.gather(*(apply(store, *events) for store in stores))
    assert seqs(both[0]) == seqs(both[1]) == list(range(1, 51))
    assert sorted(effect.duplicate for effects in both for effect in effects) == [False] * 50 + [True] * 50


async def test_both_may_create_the_same_channels_at_once(stores: Sequence[PostgresStore]) -> None:
    names = [f"c{n}" for n in range(10)]

    async def create(store: PostgresStore, user: str) -> None:
        events: list[AnyChannelEvent] = []
        for name in random.sample(names, len(names)):
            events += [channel(name), join(user, name=name), say(f"by {user}", user, name)]
        await apply(store, *events)

    await asyncio.gather(create(stores[0], "alice"), create(stores[1], "bob"))
    for room in (await stores[0].load_channels(names)).values():
        assert (room.last_seq, room.member_count) == (2, 2)


async def test_states_merge_in_any_order_repeatedly_and_at_once(stores: Sequence[PostgresStore]) -> None:
    users = [f"u{n}" for n in range(12)]
    await apply(stores[0], channel(), join(*users))
    chance = random.Random(5)
    states = {
        user: [
            ReadState(
                chance.randrange(3), seq := chance.randrange(20), frozenset(seq + chance.randrange(1, 9) for _ in "ab")
            )
            for _ in range(10)
        ]
        for user in users
    }
    batches = [[read(user, chance.choice(states[user])) for user in chance.sample(users, 8)] for _ in range(60)]
    batches += [[read(user, states[user][n]) for user in users] for n in range(10)]
    chance.shuffle(batches)
    merging = [store.merge(batch) for store, batch in zip(itertools.cycle(stores), batches, strict=False)]
    await asyncio.gather(*merging)
    assert {user: await pointer(stores[0], user) for user in users} == {
        u: reduce(merge, states[u], ReadState()) for u in users
    }


async def test_messages_and_reads_at_once_get_through(stores: Sequence[PostgresStore]) -> None:
    """Events of several kinds lock pointers one after another, and merges lock many: nobody is left waiting."""
    users = [f"u{n}" for n in range(10)]
    await apply(stores[0], channel(), join(*users))

    async def write(batch: int) -> None:
        events: list[AnyChannelEvent] = []
        for user in random.sample(users, 10):
            events += [say(f"{batch} of {user}", user), channel()]
        await apply(stores[0], *events)

    async def merge() -> None:
        await stores[1].merge([read(user, ReadState(0, 1)) for user in users])

    await asyncio.gather(*(write(n) for n in range(5)), *(merge() for _ in range(30)))
    assert (await stores[0].load_channels(["c"]))["c"].last_seq == 50


# ---------------------------------------------------------------- one process


async def test_a_read_sees_every_write_asked_for_before_it(store: PostgresStore) -> None:
    await apply(store, channel(), join("bob"))
    for seq in range(1, 20):
        writing = asyncio.ensure_future(store.merge([read("bob", ReadState(0, seq))]))
        await asyncio.sleep(0)
        assert (await pointer(store, "bob")).seq == seq
        await writing


async def test_what_a_user_wants_last_holds(store: PostgresStore) -> None:
    await apply(store, channel(), join("bob"))
    wanted = [Preferences(muted_until=n) for n in range(1, 30)]
    await asyncio.gather(*(store.save_preferences("bob", "c", one, 1) for one in wanted))
    [user_room] = await store.load_user("bob")
    assert user_room.preferences == structs.replace(wanted[-1], change=1)


async def test_a_write_is_done_even_if_its_caller_goes_away(store: PostgresStore) -> None:
    await apply(store, channel(), join("bob"))
    writing = asyncio.ensure_future(store.merge([read("bob", ReadState(0, 7))]))
    await asyncio.sleep(0)
    writing.cancel()
    assert (await pointer(store, "bob")).seq == 7


async def test_a_cancelled_read_gives_its_connection_back(url: str, opened: AsyncExitStack) -> None:
    store = await PostgresStore.open(url, 100, SqlTimings(), max_connections=2)
    opened.push_async_callback(store.close)
    for _ in range(20):
        reading = asyncio.ensure_future(store.load_user("bob"))
        for _ in range(random.randrange(6)):
            await asyncio.sleep(0)
        reading.cancel()
    assert await store.load_user("bob") == []


async def test_closing_finishes_what_was_asked_for(url: str, store: PostgresStore) -> None:
    await apply(store, channel(), join("bob"))
    other = await PostgresStore.open(url, 100, SqlTimings())
    writing = [asyncio.ensure_future(other.merge([read("bob", ReadState(0, n))])) for n in range(1, 31)]
    await asyncio.sleep(0)
    await other.close()
    assert all(write.done() for write in writing)
    assert (await pointer(store, "bob")).seq == 30


async def test_no_more_connections_than_allowed(url: str, opened: AsyncExitStack) -> None:
    store = await PostgresStore.open(url, 100, SqlTimings(), max_connections=3)
    opened.push_async_callback(store.close)
    asking = asyncio.gather(*(store.badge_count(f"u{n}") for n in range(200)))
    name = url.rpartition("/")[2]
    count = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'"
    most = 0
    while not asking.done():
        [(now,)] = await command(count)
        assert isinstance(now, int)
        most = max(most, now)
    assert await asking == [0] * 200
    assert 1 <= most <= 3


async def test_one_connection_is_too_few(url: str) -> None:
    with pytest.raises(ConfigurationError, match="at least 2"):
        await PostgresStore.open(url, 100, SqlTimings(), max_connections=1)


# ---------------------------------------------------------------- in each other's way


async def lock(session: Session, name: str) -> None:
    await session.lock([name])


async def test_two_that_wait_for_each_other_are_both_done_in_the_end(url: str, opened: AsyncExitStack) -> None:
    engine = await PostgresEngine.open(url, 5, SqlTimings())
    opened.push_async_callback(engine.close)
    await apply(PostgresStore(engine, 100, SqlTimings()), channel("a"), channel("b"))
    arrived = {"a": asyncio.Event(), "b": asyncio.Event()}

    async def work(session: Session, first: str, second: str) -> str:
        await lock(session, first)
        arrived[first].set()
        await arrived[second].wait()
        await lock(session, second)
        return first

    crossing = [engine.write(lambda s: work(s, "a", "b")), engine.write(lambda s: work(s, "b", "a"))]
    assert await asyncio.gather(*crossing) == ["a", "b"]


async def test_whoever_waits_too_long_for_a_lock_is_told_to_come_again(url: str, opened: AsyncExitStack) -> None:
    store = await PostgresStore.open(url, 100, SqlTimings(statement=0.2))
    opened.push_async_callback(store.close)
    await apply(store, channel(), join("alice"))
    other = await asyncpg.connect(url)
    opened.push_async_callback(other.close)
    async with other.transaction():
        await other.execute("SELECT FROM channels FOR UPDATE")
        with pytest.raises(StorageUnavailable, match="nothing was changed"):
            await apply(store, say("m1"))
    assert seqs(await apply(store, say("m1"))) == [1]


async def test_whoever_stops_in_the_middle_holds_up_nobody_for_long(url: str, opened: AsyncExitStack) -> None:
    stuck = await PostgresEngine.open(url, 5, SqlTimings(idle_transaction=0.3))
    opened.push_async_callback(stuck.close)
    store = await PostgresStore.open(url, 100, SqlTimings())
    opened.push_async_callback(store.close)
    await apply(store, channel(), join("alice"))
    locked, go_on = asyncio.Event(), asyncio.Event()

    async def work(session: Session) -> None:
        await session.lock(["c"])
        locked.set()
        await go_on.wait()
        await session.run("put_channels", rows=as_json([]))

    stopped = asyncio.ensure_future(stuck.write(work))
    await locked.wait()
    assert seqs(await apply(store, say("m1"))) == [1]
    go_on.set()
    await stopped
    assert (await store.load_channels(["c"]))["c"].last_seq == 1


async def test_text_that_postgresql_has_no_place_for_is_refused_as_such(store: PostgresStore) -> None:
    await apply(store, channel(), join("alice"))
    with pytest.raises(Invalid, match="NUL"):
        await apply(store, say("a\0b"))
    with pytest.raises(Invalid, match="NUL"):
        await store.merge([read("a\0b", ReadState(0, 1))])
    assert seqs(await apply(store, say("m1"))) == [1]


async def test_and_is_looked_for_in_vain(store: PostgresStore) -> None:
    escaped = r"a\u0000 \\u0000"
    await apply(store, channel(escaped), join("alice", name=escaped), say(escaped, name=escaped))
    assert set(await store.by_id([(escaped, escaped), (escaped, "\0"), (escaped, r"\0" + "\0")])) == {
        (escaped, escaped)
    }
    assert set(await store.load_channels([escaped, "a\0", "\0"])) == {escaped}
    assert await store.load_user("a\0b") == []
    assert await store.load_undo("a\0b", "bob", NOW) is None


async def test_processes_that_start_at_once_have_the_same_key_of_cursors(stores: Sequence[PostgresStore]) -> None:
    first, *others = await asyncio.gather(*(store.cursor_key() for store in [*stores, *stores]))

    assert others == [first] * 3


async def test_a_ping_needs_room_on_the_disk(url: str, opened: AsyncExitStack) -> None:
    name = url.rpartition("/")[2].partition("?")[0]
    await command(f'ALTER DATABASE "{name}" SET temp_file_limit = 0', url)
    store = await PostgresStore.open(url, 100, SqlTimings())
    opened.push_async_callback(store.close)

    with pytest.raises(StorageUnavailable, match="lacks memory or disk"):
        await store.ping()
    await apply(store, channel(), join("alice"))


@pytest.mark.parametrize("fault", ["DROP TABLE user_activity", "ALTER TABLE user_activity RENAME last_tap TO gone"])
async def test_what_is_broken_is_told_without_sql(store: PostgresStore, url: str, fault: str) -> None:
    await store.ping()
    await command(fault, url)

    with pytest.raises(StorageUnavailable, match="a table or a privilege is missing") as told:
        await store.activity("bob")
    assert "user_activity" not in told.value.detail
