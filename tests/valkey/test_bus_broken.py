"""The bus while connections break, announcements are lost and slots move: instances know what they may have missed."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from redis.crc import key_slot

from readstate.adapters.valkey.bus import sender as valkey_sender
from readstate.adapters.valkey.bus.bus import ValkeyBus
from readstate.adapters.valkey.bus.wire import encode
from readstate.domain.announcements import StateReplaced, UserRoomChanged
from readstate.stack import Valkey, ValkeyCluster

from ..contract.valkey import single
from .bus_places import (
    ATTENTIVE,
    DEADLINE,
    IMPATIENT,
    MISSED,
    PATIENCE,
    PATIENT,
    Instance,
    Place,
    a_place,
    badge,
    counted,
    is_connected,
    is_cut_off,
    outsider,
    read,
)


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    settings = {"proto-max-bulk-len": "1mb"}
    with Valkey(tmp_path_factory.mktemp("bus") / "valkey", persistent=False, settings=settings) as valkey:
        yield valkey


@pytest.fixture
async def mortal(own_server: Valkey) -> AsyncIterator[Valkey]:
    """One that may be killed."""
    await asyncio.to_thread(own_server.start)
    yield own_server
    own_server.resume()


@pytest.fixture
async def perilous(mortal: Valkey) -> AsyncIterator[Place]:
    async with a_place(mortal.url) as place:
        yield place


# ---------------------------------------------------------------- connections that break


async def test_a_kill_and_a_restart_are_noticed_before_anything_newer(mortal: Valkey, perilous: Place) -> None:
    one, two = await perilous.instance("one"), await perilous.instance("two")

    await asyncio.to_thread(mortal.kill)
    await is_cut_off(two)
    await one.said(badge(1))
    assert one.story[0] == badge(1)
    await asyncio.to_thread(mortal.start)
    await is_connected(one, two)
    await one.said(badge(2))

    for instance in (one, two):
        await instance.heard(badge(2))
        assert instance.story.index(MISSED) < instance.story.index(badge(2))


async def test_a_listener_that_is_cut_off_knows_that_it_missed_something(mortal: Valkey, perilous: Place) -> None:
    one, two = await perilous.instance("one"), await perilous.instance("two")
    before = counted("readstate_bus_gaps_total", sign="connection")

    assert int(mortal.ask("CLIENT", "KILL", "TYPE", "pubsub")) == 2
    await two.until(lambda: MISSED in two.story, "it is noticed")
    await one.said(badge(1))

    await two.heard(badge(1))
    assert two.story == [MISSED, badge(1)]
    assert counted("readstate_bus_gaps_total", sign="connection") >= before + 1


async def test_a_sender_that_is_cut_off_loses_and_repeats_nothing(mortal: Valkey, perilous: Place) -> None:
    one, two = await perilous.instance("one"), await perilous.instance("two")
    for number in range(200):
        if number % 20 == 0:
            mortal.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await one.said(badge(number))

    await two.heard(badge(199))
    assert two.story == [badge(number) for number in range(200)]


async def test_a_server_that_stands_still_is_noticed_and_taken_up_again(mortal: Valkey, perilous: Place) -> None:
    perilous.timings = IMPATIENT
    one, two = await perilous.instance("one"), await perilous.instance("two")

    mortal.pause()
    await one.said(badge(1))
    await is_cut_off(one)
    await is_cut_off(two)
    noticed_at = time.monotonic()
    mortal.resume()
    await is_connected(one, two)
    await one.said(badge(2))

    await two.heard(badge(2))
    assert two.story.index(MISSED) < two.story.index(badge(2))
    assert two.deaf_since < noticed_at - PATIENCE / 2


async def test_a_server_that_is_not_there_yet_may_come_later(mortal: Valkey, perilous: Place) -> None:
    await asyncio.to_thread(mortal.kill)
    one = ValkeyBus(perilous.url, PATIENT, prefix=perilous.prefix, instance_id="one")
    ear = Instance(one)
    one.subscribe(ear.on_announcements, ear.missed, lambda: False)
    await one.publish([badge(1)])
    assert ear.story == [badge(1)]

    await asyncio.to_thread(mortal.start)

    await is_connected(ear)
    await one.close()


async def test_a_server_that_never_comes_holds_up_no_close() -> None:
    one = ValkeyBus("redis://127.0.0.1:1/0", PATIENT, instance_id="one")
    await one.publish([badge(1)])
    await asyncio.wait_for(one.close(), DEADLINE)


class Muffler:
    """Between an instance and its server: everything passes but, when it is `on`, what is said on channels."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.on = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Muffler":
        self._listener = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}/0"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        back, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await asyncio.gather(self._copy(reader, to_server), self._copy(back, writer, muffled=True))
        finally:
            writer.close()
            to_server.transport.abort()
            self._tasks.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, muffled: bool = False) -> None:
        while data := await reader.read(65_536):
            if not (muffled and self.on and b"message\r\n" in data):
                writer.write(data)
                await writer.drain()
        raise ConnectionResetError


async def test_an_instance_that_does_not_hear_itself_listens_anew() -> None:
    """A node that has lost the channel answers as ever, but nothing comes any more."""
    async with Muffler(single().port) as muffler, a_place(single().url) as place:
        place.timings = IMPATIENT
        one, two = await place.instance("one"), await place.instance("two", url=muffler.url)

        muffler.on = True
        await one.said(badge(1))
        await is_cut_off(two)
        noticed_at = time.monotonic()
        muffler.on = False
        await two.until(lambda: MISSED in two.story, "it listens again")
        await one.said(badge(2))

        await two.heard(badge(2))
        assert badge(1) not in two.story
        assert two.story[0] == MISSED
        assert two.deaf_since < noticed_at - PATIENCE / 2  # not since it was noticed, but since it was so


# ---------------------------------------------------------------- announcements that are lost


async def test_too_much_at_once_leaves_a_gap_that_the_others_see(
    mortal: Valkey, perilous: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await perilous.instance("one"), await perilous.instance("two")
    monkeypatch.setattr(valkey_sender, "MAX_QUEUED", 10)
    lost = counted("readstate_bus_lost_total", reason="overflow")

    await one.said(*map(badge, range(11)))
    await one.said(badge(100))

    await two.heard(badge(100))
    assert two.story == [MISSED, badge(100)]
    assert one.story == [*map(badge, range(11)), badge(100)]
    assert counted("readstate_bus_lost_total", reason="overflow") == lost + 11


async def test_what_the_server_refuses_is_given_up_and_leaves_a_gap(perilous: Place) -> None:
    one, two = await perilous.instance("one"), await perilous.instance("two")
    lost = counted("readstate_bus_lost_total", reason="failed")

    await one.said(StateReplaced(("bob",), "x" * 2_000_000))  # more than this server takes

    await two.until(lambda: MISSED in two.story, "the gap is seen")
    await one.said(badge(1))
    await two.heard(badge(1))
    assert two.story == [MISSED, badge(1)]
    assert counted("readstate_bus_lost_total", reason="failed") == lost + 1


async def test_somebody_who_comes_after_a_loss_is_not_told_of_it_twice(
    perilous: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await perilous.instance("one")
    two = await perilous.instance("two")
    with monkeypatch.context() as small:
        small.setattr(valkey_sender, "MAX_QUEUED", 1)
        await one.said(badge(1), badge(2))
    await two.until(lambda: MISSED in two.story, "the gap is seen")

    three = await perilous.instance("three")
    await one.said(badge(3))

    await three.heard(badge(3))
    assert three.story == [badge(3)]


async def test_an_instance_that_dies_may_have_had_something_to_say(
    perilous: Place,
) -> None:
    perilous.timings = replace(ATTENTIVE, bus_silent=1.0)
    two = await perilous.instance("two")
    before = counted("readstate_bus_gaps_total", sign="silence")
    async with outsider(perilous.url) as ghost:
        await ghost.publish(perilous.channels.others, encode("ghost:1", 1, 0, [badge(1)]))

    await two.until(lambda: MISSED in two.story, "the silence is noticed")

    assert two.story == [badge(1), MISSED]
    assert counted("readstate_bus_gaps_total", sign="silence") == before + 1


# ---------------------------------------------------------------- a Cluster in motion


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[ValkeyCluster]:
    with ValkeyCluster(tmp_path / "cluster", replicas=1, persistent=False) as servers:
        yield servers


def owner(servers: ValkeyCluster, slot: int) -> int:
    """Which of three masters has a slot at the beginning."""
    return next(number for number in range(3) if slot < 16_384 * (number + 1) // 3)


async def test_a_failover_of_the_node_with_the_channels_is_survived(own_cluster: ValkeyCluster) -> None:
    async with a_place(own_cluster.url) as place:
        one, two = await place.instance("one"), await place.instance("two")
        node = own_cluster.nodes[owner(own_cluster, key_slot(place.channels.reads.encode()))]

        await asyncio.to_thread(node.kill)
        await is_cut_off(two)
        await is_connected(one, two)
        await one.said(badge(1), read("bob", 1))

        for instance in (one, two):
            await instance.heard(read("bob", 1))
            assert instance.story.index(MISSED) < instance.story.index(badge(1))


async def test_a_slot_that_moves_is_followed(own_cluster: ValkeyCluster) -> None:
    async with a_place(own_cluster.url) as place:
        one, two = await place.instance("one"), await place.instance("two")
        slot = key_slot(place.channels.reads.encode())
        here = owner(own_cluster, slot)
        there = own_cluster.nodes[(here + 1) % 3].demand("CLUSTER", "MYID")

        for node in (own_cluster.nodes[(here + 1) % 3], own_cluster.nodes[here]):
            await asyncio.to_thread(node.demand, "CLUSTER", "SETSLOT", str(slot), "NODE", there)
        await two.until(lambda: MISSED in two.story, "the move is noticed")
        await one.said(badge(1), UserRoomChanged("bob", "general"))

        await two.heard(UserRoomChanged("bob", "general"))
        assert [what for what in two.story if what != MISSED] == [badge(1), UserRoomChanged("bob", "general")]
