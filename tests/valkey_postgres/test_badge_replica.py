"""The write replica: it spares the main store writes, and whatever becomes of it the badge stays right."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from readstate.adapters.sql.session import as_json
from readstate.adapters.valkey.badges import ValkeyBadges
from readstate.adapters.valkey.write_replica import ReplicatedBadges, WriteReplica
from readstate.domain.events import UnsentEvent
from readstate.domain.model import Undelivered
from readstate.stack import Valkey
from readstate.telemetry import BADGE_REPLICA_UP, BADGE_WRITES_SAVED
from tests.conftest import Clock
from tests.contract.valkey import PATIENCE
from tests.effort import examples

from .away import PATIENT, Cluster, a_cluster, second

PEOPLE = ["alice", "carol", "dave"]
SEED = 20_261_117
SOON = 0.5
"""Seconds after which a replica that does not answer is given up."""


@pytest.fixture
def replica() -> Iterator[Valkey]:
    """A server that was never hurt, and is none the worse for it afterwards."""
    server = second()
    server.ask("FLUSHALL")
    yield server
    server.resume()
    server.start()
    server.ask("ACL", "SETUSER", "default", "+@all")
    for name in ("maxmemory", "min-replicas-to-write"):
        server.ask("CONFIG", "SET", name, "0")


@pytest.fixture
async def cluster(replica: Valkey, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """Bob is away, has a direct channel with each of three people, and alice and carol are on his badge."""
    async with a_cluster(Clock(), timings=PATIENT) as cluster:
        await prepare(cluster)
        yield cluster


def waits(cluster: Cluster, seconds: float) -> None:
    """So long the replica has from now on to answer."""
    for hot in cluster.hots:
        assert hot._replica is not None
        hot._replica._timings = replace(hot._replica._timings, replica_answer=seconds)


async def prepare(cluster: Cluster) -> None:
    for person in PEOPLE:
        await cluster.open(f"{person} and bob", person, "bob", type="direct")
    assert await cluster.badge("bob") == 0
    for person in ("alice", "carol"):
        await write(cluster, person)
    assert await cluster.badge("bob") == 2


async def write(cluster: Cluster, sender: str) -> int:
    """Somebody writes to bob; how many writes the replica has saved."""
    cluster.clock.advance(ms=1)
    before = BADGE_WRITES_SAVED._value.get()
    await cluster.say(sender, f"{sender} and bob", f"{sender} at {cluster.clock()}")
    return int(BADGE_WRITES_SAVED._value.get() - before)


async def believed_again(cluster: Cluster) -> None:
    """It is filled by itself with the first message, and spares the write of the next."""
    await write(cluster, "alice")
    assert await write(cluster, "alice") == 1
    assert BADGE_REPLICA_UP._value.get() == 1


def key(replica: Valkey) -> str:
    """Where the replica has bob's set."""
    [name] = names(replica)
    return name


def names(replica: Valkey) -> list[str]:
    found = replica.ask("EVAL", "return table.concat(redis.call('KEYS', '*'), '\\n')", "0")
    return [name for name in found.split("\n") if name]


# ---------------------------------------------------------------- what it saves


async def test_known_senders_cause_no_write_and_new_ones_are_written_to_both(cluster: Cluster, replica: Valkey) -> None:
    assert await write(cluster, "alice") == 1
    assert await write(cluster, "dave") == 0
    assert await write(cluster, "dave") == 1
    assert replica.ask("HEXISTS", key(replica), "dave") == "1"
    assert await cluster.badge("bob") == 3


async def test_a_tap_empties_both(cluster: Cluster, replica: Valkey) -> None:
    assert len(names(replica)) == 1
    await cluster.tap("bob")
    assert names(replica) == []
    assert await cluster.badge("bob") == 0
    assert await write(cluster, "alice") == 0
    assert await cluster.badge("bob") == 1
    await believed_again(cluster)


# ---------------------------------------------------------------- what it can do wrong


def adds_somebody(replica: Valkey) -> None:
    replica.ask("HSET", key(replica), "dave", "")


def loses_somebody(replica: Valkey) -> None:
    replica.ask("HDEL", key(replica), "alice")


def takes_one_for_another(replica: Valkey) -> None:
    """Of the same size, and alice, who is on the badge, is not missed."""
    replica.ask("HDEL", key(replica), "carol")
    replica.ask("HSET", key(replica), "dave", "")


def has_another_name(replica: Valkey) -> None:
    replica.ask("HSET", key(replica), "", "another load")


def has_no_name(replica: Valkey) -> None:
    replica.ask("HDEL", key(replica), "")


def is_of_another_type(replica: Valkey) -> None:
    name = key(replica)
    replica.ask("DEL", name)
    replica.ask("SET", name, "alice dave")


def is_emptied(replica: Valkey) -> None:
    replica.ask("FLUSHALL")


def is_restarted(replica: Valkey) -> None:
    replica.kill()
    replica.start()


def forgets_its_scripts(replica: Valkey) -> None:
    replica.ask("FUNCTION", "FLUSH")


LIES = [
    adds_somebody,
    loses_somebody,
    takes_one_for_another,
    has_another_name,
    has_no_name,
    is_of_another_type,
    is_emptied,
    is_restarted,
    forgets_its_scripts,
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
@pytest.mark.parametrize("sender", ["alice", "dave"])
async def test_a_replica_that_is_wrong_makes_no_badge_wrong_and_is_filled_again(
    cluster: Cluster, replica: Valkey, lie: Callable[[Valkey], None], sender: str
) -> None:
    lie(replica)
    await write(cluster, sender)
    assert await cluster.badge("bob") == len({"alice", "carol", sender})
    await believed_again(cluster)
    assert await write(cluster, "dave") in {0, 1}
    assert await cluster.badge("bob") == 3


async def test_a_replica_that_lies_all_the_time_is_never_believed_where_it_is_wrong(
    cluster: Cluster, replica: Valkey
) -> None:
    dice = random.Random(SEED)
    on_badge = {"alice", "carol"}
    for _ in range(60):
        if names(replica):
            dice.choice([lie for lie in LIES if lie is not is_restarted])(replica)
        if dice.random() < 0.15:
            await cluster.tap("bob")
            on_badge.clear()
            continue
        sender = dice.choice(PEOPLE)
        await write(cluster, sender)
        on_badge.add(sender)
        assert await cluster.badge("bob") == len(on_badge)


# ---------------------------------------------------------------- down, slow, refusing


def refuses_writes_for_lack_of_memory(replica: Valkey) -> None:
    replica.ask("CONFIG", "SET", "maxmemory", "1")


def lets_nobody_run_scripts(replica: Valkey) -> None:
    replica.ask("ACL", "SETUSER", "default", "-@scripting")


def refuses_writes_for_lack_of_replicas(replica: Valkey) -> None:
    replica.ask("CONFIG", "SET", "min-replicas-to-write", "3")


def is_down(replica: Valkey) -> None:
    replica.kill()


def stands_still(replica: Valkey) -> None:
    replica.pause()


FAULTS = [
    refuses_writes_for_lack_of_memory,
    lets_nobody_run_scripts,
    refuses_writes_for_lack_of_replicas,
    is_down,
    stands_still,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_everything_goes_to_the_main_store_while_the_replica_is_of_no_use(
    cluster: Cluster, replica: Valkey, fault: Callable[[Valkey], None]
) -> None:
    waits(cluster, SOON)
    fault(replica)
    for sender, badge in (("alice", 2), ("dave", 3), ("dave", 3)):
        await write(cluster, sender)
        assert await cluster.badge("bob") == badge
    await cluster.tap("bob")
    assert await cluster.badge("bob") == 0
    assert await write(cluster, "alice") == 0, "it was on the set that the replica could not drop"
    assert await cluster.badge("bob") == 1


async def test_case_8_a_replica_that_was_away_during_a_tap_does_not_answer_for_the_new_badge(
    cluster: Cluster, replica: Valkey
) -> None:
    old = key(replica)
    name = replica.ask("HGET", old, "")
    waits(cluster, SOON)
    replica.pause()
    await cluster.tap("bob")
    assert BADGE_REPLICA_UP._value.get() == 0
    replica.resume()
    waits(cluster, PATIENCE)
    assert replica.ask("PING") == "PONG", "a drop that waited in its socket has been done"
    replica.ask("HSET", old, "", name, "alice", "")  # the old set is there as if that drop had never reached it
    assert await cluster.badge("bob") == 0
    assert await write(cluster, "alice") == 0
    assert await cluster.badge("bob") == 1


async def test_a_replica_that_is_down_from_the_start_is_used_when_it_comes(
    replica: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica.kill()
    async with a_cluster(Clock(), timings=PATIENT) as cluster:
        waits(cluster, SOON)
        await prepare(cluster)
        assert BADGE_REPLICA_UP._value.get() == 0
        replica.start()
        waits(cluster, PATIENCE)
        patience = iter(range(50))  # a new connection may need more than one try
        while next(patience) >= 0 and await write(cluster, "alice") == 0:
            pass
        await believed_again(cluster)
        assert await cluster.badge("bob") == 2


# ---------------------------------------------------------------- case 8: in every order


class Turns:
    """Lets things that run at once take their steps in a given order."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._arrived = asyncio.Condition()
        self._done: set[str] = set()

    def gate(self, thing: object, name: str, lane: str) -> None:
        """Every call of it is a step of a lane."""
        call: Callable[..., Awaitable[Any]] = getattr(thing, name)

        async def step(*args: Any, **named: Any) -> Any:
            if asyncio.current_task() is not self._tasks.get(lane):
                return await call(*args, **named)
            async with self._arrived:
                self._waiting[lane] = asyncio.get_running_loop().create_future()
                self._arrived.notify_all()
            await self._waiting[lane]
            return await call(*args, **named)

        setattr(thing, name, step)

    async def run(self, lanes: dict[str, Callable[[], Awaitable[object]]], order: Sequence[str]) -> None:
        """Each lane goes one step when it is named; whatever is left goes on to its end, one after the other."""
        self._done = set()
        self._tasks = {lane: asyncio.create_task(self._work(lane, work)) for lane, work in lanes.items()}
        for lane in lanes:
            await self._stands(lane)
        for lane in itertools.chain(order, itertools.chain.from_iterable(itertools.repeat(one, 50) for one in lanes)):
            if lane not in self._done:
                self._waiting.pop(lane).set_result(None)
                await self._stands(lane)
        await asyncio.gather(*self._tasks.values())

    async def _work(self, lane: str, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        finally:
            async with self._arrived:
                self._done.add(lane)
                self._arrived.notify_all()

    async def _stands(self, lane: str) -> None:
        async with asyncio.timeout(60), self._arrived:
            await self._arrived.wait_for(lambda: lane in self._waiting or lane in self._done)


STEPS = {
    "update": [
        ("main", "badge_states"),
        ("replica", "known"),
        ("main", "take"),
        ("main", "members"),
        ("replica", "write"),
    ],
    "tap": [("badges", "hold"), ("durable", "tap"), ("main", "release"), ("replica", "forget")],
    "load": [("other", "count"), ("other", "begin"), ("durable", "badge_senders"), ("other", "install")],
}


def gates(cluster: Cluster, lanes: Sequence[str]) -> Turns:
    badges = cluster.hot.badges
    assert isinstance(badges, ReplicatedBadges)
    main, replica = badges._main, badges._replica
    assert isinstance(main, ValkeyBadges)
    assert isinstance(replica, WriteReplica)
    other = cluster.hots[1].badges
    things = {"main": main, "replica": replica, "badges": badges, "other": other, "durable": cluster.durable}
    turns = Turns()
    for lane in lanes:
        for thing, name in STEPS[lane]:
            turns.gate(things[thing], name, lane)
    return turns


def orders(*lanes: str) -> list[tuple[str, ...]]:
    """Every way in which their steps can come."""
    if len(lanes) == 2:
        first, second = (len(STEPS[lane]) for lane in lanes)
        places = itertools.combinations(range(first + second), first)
        return [tuple(lanes[0] if at in chosen else lanes[1] for at in range(first + second)) for chosen in places]
    dice = random.Random(SEED)
    steps = [lane for lane in lanes for _ in STEPS[lane]]
    return list({tuple(dice.sample(steps, len(steps))) for _ in range(examples(60))})


@pytest.mark.parametrize("lanes", [("update", "tap"), ("update", "load"), ("update", "tap", "load")], ids=", ".join)
async def test_case_8_in_every_order_of_their_steps_the_badge_is_right(
    cluster: Cluster, lanes: tuple[str, ...]
) -> None:
    """Somebody who was on the badge and somebody who is new have written, before and after the tap."""
    turns, noted = gates(cluster, lanes), Noted(cluster)
    at = cluster.clock()
    await cluster.tap("bob")
    for number, order in enumerate(orders(*lanes)):
        # The tap comes between the two messages that are under way: it is at + 2.
        at += 10
        cluster.clock.now = at + 2
        known = [wrote("alice", at - 1), wrote("carol", at - 1)]
        under_way = [wrote("alice", at + 1), wrote("dave", at + 1 if number % 2 else at + 3)]
        await noted.take(known)
        await cluster.instances[0].badge.count("bob")
        await cluster.status_update.handle(events(known))
        await noted.take(under_way)

        works: dict[str, Callable[[], Awaitable[object]]] = {
            "update": lambda under_way=under_way: cluster.status_update.handle(events(under_way)),  # type: ignore[misc]
            "tap": lambda: cluster.tap("bob"),
            "load": lambda: cluster.instances[1].badge.count("bob"),
        }
        await turns.run({lane: works[lane] for lane in lanes}, order)

        assert await cluster.badge("bob") == await noted.count(), order
        # What the replica knows now is as good as what it knew before.
        again = [wrote(person, at + 4) for person in PEOPLE]
        await noted.take(again)
        await cluster.status_update.handle(events(again))
        assert await cluster.badge("bob") == await noted.count() == 3, order
        cluster.clock.now = at + 5
        await cluster.tap("bob")


class Noted:
    """Everything that bob has ever missed, counted by hand."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._all: list[Undelivered] = []

    async def take(self, new: Sequence[Undelivered]) -> None:
        """The message writer has stored it."""
        self._all += new
        await self._cluster.durable._run("put_undelivered", rows=as_json(list(new)))

    async def count(self) -> int:
        """How many different people wrote since the last tap."""
        tapped = (await self._cluster.durable.activity("bob")).last_tap
        self._all = [one for one in self._all if one.accepted_at > tapped]
        return len({one.sender_id for one in self._all})


def wrote(sender: str, at: int) -> Undelivered:
    return Undelivered("bob", at, sender, f"{sender} and bob", f"{sender} at {at}")


def events(undelivered: Sequence[Undelivered]) -> list[UnsentEvent]:
    return [
        UnsentEvent(one.sender_id, one.receiver_id, one.message_id, one.channel_id, one.accepted_at, one.accepted_at, 0)
        for one in undelivered
    ]


async def test_taps_that_race_with_status_update_thousands_of_times_lose_and_bring_back_nothing(
    cluster: Cluster,
) -> None:
    """Each round: somebody writes, Status Update hears of it, bob taps and looks, all at once; then all is still."""
    dice, noted = random.Random(SEED), Noted(cluster)
    cluster.clock.advance(ms=1)
    await cluster.tap("bob")
    now = cluster.clock()
    for round_ in range(examples(200)):
        now += 10
        cluster.clock.now = now + 5
        new = [wrote(dice.choice(PEOPLE), now + dice.randint(0, 9)) for _ in range(dice.randint(1, 3))]
        await noted.take(new)
        work: list[Awaitable[object]] = [
            cluster.status_update.handle(events(new)),
            cluster.status_update.handle(events(new[:1])),
            cluster.instances[1].badge.count("bob"),
        ]
        if dice.random() < 0.7:
            work.append(cluster.tap("bob", instance=round_ % 2))
        dice.shuffle(work)
        await asyncio.gather(*work)
        assert await cluster.badge("bob") == await noted.count(), f"round {round_}"
