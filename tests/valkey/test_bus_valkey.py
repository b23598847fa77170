"""The bus on real servers: instances hear each other in order, and know when they may have missed something."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from readstate.adapters.valkey import ValkeyClient, slot_of
from readstate.adapters.valkey.bus import sender as valkey_sender
from readstate.adapters.valkey.bus.bus import Channels, ValkeyBus
from readstate.adapters.valkey.bus.connections import BusConnection
from readstate.adapters.valkey.bus.wire import encode
from readstate.domain.announcements import (
    Announcement,
    BadgeChanged,
    MessageCame,
    PointerMoved,
    StateReplaced,
    UserRoomChanged,
)
from readstate.domain.model import ChangeNumber, Message, Pointer
from readstate.stack import Valkey, ValkeyCluster
from readstate.telemetry import REGISTRY
from readstate.timings import ValkeyTimings

from ..conftest import eventually
from ..contract.buses import fresh_prefix
from ..contract.valkey import cluster, single

DEADLINE = 60.0
PATIENCE = 1.0
PATIENT = ValkeyTimings(bus_deaf=DEADLINE)
"""A busy machine makes nobody listen anew: that would be told, and nothing else is to be told."""
ATTENTIVE = replace(PATIENT, bus_heartbeat=0.1, bus_check=0.1)
"""What takes seconds takes tenths of them."""
IMPATIENT = replace(ATTENTIVE, bus_deaf=PATIENCE)
"""And a server that says nothing is given up soon."""
MISSED = "something may have been missed"


class Instance:
    """A bus, and everything that its instance hears, in order."""

    def __init__(self, bus: ValkeyBus) -> None:
        self.bus = bus
        self.story: list[Announcement | str] = []
        self.is_idle = False
        """It has nobody to tell."""
        self.deaf_since = 0.0
        """What was said after that may have been missed."""
        self._news = asyncio.Event()

    async def on_announcements(self, announcements: Sequence[Announcement]) -> None:
        self.story += announcements
        self._news.set()

    async def missed(self, seconds: float) -> None:
        self.deaf_since = time.monotonic() - seconds
        self.story.append(MISSED)
        self._news.set()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE):
                while not condition():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"waited in vain until {what}; heard {self.story[-10:]}") from None

    async def heard(self, one: Announcement) -> None:
        await self.until(lambda: one in self.story, f"{one} is heard")

    async def said(self, *announcements: Announcement) -> None:
        await self.bus.publish(announcements)


class Place:
    """Instances around one server."""

    def __init__(self, url: str, stack: contextlib.AsyncExitStack) -> None:
        self.url = url
        self.timings = PATIENT
        self.prefix = fresh_prefix()
        self._stack = stack

    async def instance(self, name: str, *, url: str | None = None, prefix: str | None = None) -> Instance:
        """One that is connected, and has forgotten how it began."""
        prefix = self.prefix if prefix is None else prefix
        bus = ValkeyBus(url or self.url, self.timings, prefix=prefix, instance_id=name)
        self._stack.push_async_callback(bus.close)
        instance = Instance(bus)
        bus.subscribe(instance.on_announcements, instance.missed, lambda: instance.is_idle)
        await instance.until(lambda: MISSED in instance.story, "it listens")
        await is_connected(instance)
        instance.story.clear()
        return instance

    @property
    def channels(self) -> Channels:
        return Channels.named(self.prefix)


@contextlib.asynccontextmanager
async def a_place(url: str) -> AsyncIterator[Place]:
    async with contextlib.AsyncExitStack() as stack:
        yield Place(url, stack)


@pytest.fixture(params=["single", "cluster"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    """One server, and three as a Cluster."""
    async with a_place(single().url if request.param == "single" else cluster().url) as place:
        yield place


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


async def is_connected(*instances: Instance) -> None:
    async def connected() -> bool:
        return all(one.bus.connected for one in instances)

    await eventually(connected, "the instances are connected")


async def is_cut_off(instance: Instance) -> None:
    async def cut_off() -> bool:
        return not instance.bus.connected

    await eventually(cut_off, "the instance has noticed")


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def badge(number: int) -> BadgeChanged:
    return BadgeChanged(f"user {number}")


def read(user: str, seq: int) -> PointerMoved:
    pointer = Pointer(0, seq, frozenset({seq + 2}), id=f"m{seq}", at=seq, read_at=seq, change=ChangeNumber(seq))
    return PointerMoved(user, "general", Pointer(0, seq - 1), pointer, "one", "connection")


# ---------------------------------------------------------------- hearing each other


async def test_instances_hear_each_other_and_themselves(place: Place) -> None:
    one, two = await place.instance("one"), await place.instance("two")

    await one.said(badge(1))
    assert one.story == [badge(1)]
    await two.heard(badge(1))
    await two.said(badge(2))
    await one.heard(badge(2))

    assert one.story == two.story == [badge(1), badge(2)]


async def test_what_an_instance_says_keeps_its_order_whatever_it_is(place: Place) -> None:
    one, two = await place.instance("one"), await place.instance("two")
    said: list[Announcement] = []
    for number in range(1, 1_001):
        message = Message("general", f"m{number}", number, "алиса", number, preview="привет 💬")
        said += [MessageCame(message, "one"), read("боб", number), read("{carol}", number), badge(number)]

    for start in range(0, len(said), 7):
        await one.said(*said[start : start + 7])

    await two.until(lambda: len(two.story) >= len(said), "all is heard")
    assert two.story == said


async def test_whoever_has_nobody_to_tell_passes_over_reads_and_misses_nothing(place: Place) -> None:
    one, two = await place.instance("one"), await place.instance("two")
    two.is_idle = True
    await one.said(read("ann", 1))
    await one.said(badge(1), read("ann", 2), badge(2))
    await two.heard(badge(2))
    two.is_idle = False
    await two.bus.attend()
    await one.said(read("ann", 3))
    await two.heard(read("ann", 3))
    assert two.story == [badge(1), badge(2), read("ann", 3)]


RESTLESS = replace(ATTENTIVE, bus_silent=0.3)
"""Those who hold no device stop to listen to reads soon."""


async def listeners(place: Place) -> int:
    """How many listen to reads."""
    client = ValkeyClient(place.url, ValkeyTimings())
    try:
        await client.refresh()
        reads = place.channels.reads
        question = "SHARDNUMSUB" if client.is_cluster else "NUMSUB"
        return int((await client.owner(slot_of(reads)).execute_command("PUBSUB", question, reads))[1])  # type: ignore[no-untyped-call]
    finally:
        await client.close()


async def until_listen(place: Place, number: int) -> None:
    async def they_do() -> bool:
        return await listeners(place) == number

    await eventually(they_do, f"{number} listen to reads")


async def test_reads_that_nobody_listens_to_are_not_published_and_take_no_number(place: Place) -> None:
    place.timings = RESTLESS
    one, two = await place.instance("one"), await place.instance("two")
    await until_listen(place, 2)
    one.is_idle = two.is_idle = True
    await until_listen(place, 0)
    published = counted("readstate_bus_published_total")

    await one.said(read("ann", 1), read("ann", 2), badge(1), read("ann", 3))
    await one.said(badge(2))
    await two.heard(badge(2))

    async def are_counted() -> bool:
        return counted("readstate_bus_published_total") >= published + 2

    await eventually(are_counted, "what the server has taken is counted")
    assert counted("readstate_bus_published_total") == published + 2
    assert two.story == [badge(1), badge(2)]


async def test_reads_are_made_only_if_somebody_listens_and_keep_their_order(place: Place) -> None:
    place.timings = RESTLESS
    one, two = await place.instance("one"), await place.instance("two")
    made: list[int] = []

    def reads(*seqs: int) -> Callable[[], list[PointerMoved]]:
        def make() -> list[PointerMoved]:
            made.append(len(seqs))
            return [read("ann", seq) for seq in seqs]

        return make

    one.is_idle = two.is_idle = True
    await until_listen(place, 0)
    await one.bus.publish_reads(1, reads(1))
    await one.said(badge(1))
    await two.heard(badge(1))
    assert made == []
    assert two.story == [badge(1)]

    two.is_idle = False
    await two.bus.attend()
    many = range(2, valkey_sender.MAX_PACK + 4)
    await one.bus.publish_reads(len(many), reads(*many))
    await one.said(badge(2))
    await one.bus.publish_reads(2, reads(1_000))  # fewer than were counted: one has changed nothing
    await two.heard(read("ann", 1_000))
    assert made == [len(many), 1]
    assert two.story == [badge(1), *(read("ann", seq) for seq in many), badge(2), read("ann", 1_000)]


async def test_a_device_waits_until_reads_are_heard_and_misses_none_from_then_on(place: Place) -> None:
    place.timings = RESTLESS
    one, two = await place.instance("one"), await place.instance("two")
    for number in range(3):
        one.is_idle = two.is_idle = True
        await until_listen(place, 0)
        two.is_idle = False
        await asyncio.gather(*(two.bus.attend() for _ in range(3)))
        await one.said(read("ann", number), badge(number))
        await two.heard(badge(number))
        assert two.story == [read("ann", number), badge(number)]
        two.story.clear()


async def test_a_device_does_not_look_before_the_server_has_confirmed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.timings = replace(RESTLESS, bus_answer=DEADLINE)
    two = await place.instance("two")
    two.is_idle = True
    await until_listen(place, 0)
    asks, may_ask, send = asyncio.Event(), asyncio.Event(), BusConnection.send

    async def held_up(connection: BusConnection, *commands: Sequence[str | bytes]) -> None:
        if str(commands[0][0]).endswith("SUBSCRIBE"):
            asks.set()
            await may_ask.wait()
        await send(connection, *commands)

    monkeypatch.setattr(BusConnection, "send", held_up)
    two.is_idle = False
    attending = asyncio.create_task(two.bus.attend())
    await asks.wait()
    assert await listeners(place) == 0
    assert not attending.done()
    may_ask.set()
    await attending
    assert await listeners(place) == 1


async def test_a_device_that_did_not_wait_looks_again_once_reads_are_heard(place: Place) -> None:
    place.timings = RESTLESS
    one, two = await place.instance("one"), await place.instance("two")
    one.is_idle = two.is_idle = True
    await until_listen(place, 0)
    came = time.monotonic()
    two.is_idle = False
    await one.said(read("ann", 1))
    await two.until(lambda: MISSED in two.story, "it looks again")
    assert two.deaf_since <= came
    await one.said(read("ann", 2))
    await two.heard(read("ann", 2))


async def test_processes_that_listen_to_reads_no_more_are_no_silent_ones(place: Place) -> None:
    """Reads are no sign of life to a process that does not listen to them: signs come besides."""
    place.timings = replace(RESTLESS, bus_silent=1.0)
    one, two, idle = [await place.instance(name) for name in ("one", "two", "idle")]
    idle.is_idle = True
    await until_listen(place, 2)
    idle.story.clear()
    end, seq = time.monotonic() + 3 * place.timings.bus_silent, 0
    while time.monotonic() < end:
        seq += 1
        await one.said(read("ann", seq))
        await two.heard(read("ann", seq))
    await one.said(badge(1))
    await idle.heard(badge(1))
    assert idle.story == [badge(1)]


async def test_instances_that_say_much_at_the_same_time_are_heard_whole(place: Place) -> None:
    some = [await place.instance(f"instance {number}") for number in range(3)]

    async def speak(instance: Instance, name: str) -> None:
        for number in range(500):
            await instance.said(BadgeChanged(f"{name} {number}"))

    await asyncio.gather(*(speak(instance, f"n{index}") for index, instance in enumerate(some)))

    for instance in some:
        await instance.until(lambda it=instance: len(it.story) >= 1_500, "all is heard")  # type: ignore[misc]
        for index in range(3):
            heard = [one.user_id for one in instance.story if isinstance(one, BadgeChanged)]
            mine = [name for name in heard if name.startswith(f"n{index} ")]
            assert mine == [f"n{index} {number}" for number in range(500)]


async def test_a_message_travels_without_its_text(place: Place) -> None:
    one, two = await place.instance("one"), await place.instance("two")
    message = Message("general", "m1", 1, "alice", 1, text="the whole text", preview="the whole")

    await one.said(MessageCame(message, "one"))

    await two.until(lambda: bool(two.story), "it is heard")
    [came] = two.story
    assert isinstance(came, MessageCame)
    assert (came.message.text, came.message.preview) == (None, "the whole")


async def test_an_instance_that_comes_later_hears_from_then_on(place: Place) -> None:
    one, witness = await place.instance("one"), await place.instance("witness")
    await one.said(badge(1))
    await witness.heard(badge(1))

    two = await place.instance("two")
    await one.said(badge(2))

    await two.heard(badge(2))
    assert two.story == [badge(2)]


async def test_what_was_said_before_a_close_is_heard(place: Place) -> None:
    two = await place.instance("two")
    one = ValkeyBus(place.url, PATIENT, prefix=place.prefix, instance_id="one")

    await one.publish([badge(number) for number in range(2_000)])
    await one.close()

    await two.until(lambda: len(two.story) >= 2_000, "all is heard")
    assert two.story == [badge(number) for number in range(2_000)]


async def test_prefixes_and_databases_are_worlds_of_their_own() -> None:
    async with a_place(single().url) as place:
        here = await place.instance("here")
        elsewhere = await place.instance("elsewhere", prefix=place.prefix + "other:")
        below = await place.instance("below", url=single().url.removesuffix("/0") + "/1")
        besides = await place.instance("besides")

        await here.said(badge(1))
        await below.said(badge(2))
        await elsewhere.said(badge(3))
        await besides.heard(badge(1))

        assert [one.story for one in (here, besides)] == [[badge(1)]] * 2
        assert (elsewhere.story, below.story) == ([badge(3)], [badge(2)])


async def test_a_user_and_a_password_of_the_server_are_used() -> None:
    single().ask("ACL", "SETUSER", "chat", "on", ">p@ss/word", "~*", "&*", "+@all")
    address = single().url.removeprefix("redis://")
    async with a_place(f"redis://chat:p%40ss%2Fword@{address}") as place:
        one, two = await place.instance("one"), await place.instance("two")
        await one.said(badge(1))
        await two.heard(badge(1))


# ---------------------------------------------------------------- outsiders


@contextlib.asynccontextmanager
async def outsider(url: str) -> AsyncIterator[Redis]:
    client: Redis = Redis.from_url(url)
    try:
        yield client
    finally:
        await client.aclose()


async def test_outside_subscribers_can_read_what_is_read() -> None:
    async with a_place(single().url) as place, outsider(place.url) as client, client.pubsub() as ear:
        one = await place.instance("one")
        await ear.subscribe(f"{place.prefix}read-pointer:changes")
        assert (await ear.get_message(timeout=DEADLINE))["type"] == "subscribe"

        await one.said(badge(1), read("боб", 7))

        told = json.loads((await ear.get_message(timeout=DEADLINE))["data"])
        [change] = told["changes"]
        wanted = {"user_id": "боб", "channel_id": "general", "last_read_seq": 7, "last_read_id": "m7", "epoch": 0}
        assert wanted.items() <= change.items()
        assert change["instance_id"] == "one"


async def test_what_outsiders_shout_is_skipped_and_counted() -> None:
    async with a_place(single().url) as place, outsider(place.url) as client:
        one, two = await place.instance("one"), await place.instance("two")
        before = counted("readstate_bus_skipped_total", kind="malformed")
        junk = [b"", b"hello", b"\xff\x00", b"[]", b'{"v":1}', b'{"v":1,"publisher":1,"number":2,"after":1}']

        for channel, payload in itertools.product(place.channels, junk):
            await client.publish(channel, payload)
        await one.said(badge(1))

        await two.heard(badge(1))
        assert two.story == [badge(1)]
        assert counted("readstate_bus_skipped_total", kind="malformed") >= before + 2 * len(junk)


async def test_what_a_newer_version_says_is_heard_as_far_as_it_is_known() -> None:
    async with a_place(single().url) as place, outsider(place.url) as client:
        two = await place.instance("two")
        before = counted("readstate_bus_skipped_total", kind="unknown")
        newer = json.loads(encode("newer:1", 1, 0, [badge(1)]))
        newer["announcements"].insert(0, {"kind": "invented later", "what": "ever"})

        await client.publish(place.channels.others, json.dumps(newer))
        await client.publish(place.channels.others, encode("newer:1", 2, 1, [badge(2)]))

        await two.heard(badge(2))
        assert two.story == [badge(1), badge(2)]
        assert counted("readstate_bus_skipped_total", kind="unknown") == before + 1


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
