"""The bus on real servers: instances hear each other in order, and know when they may have missed something."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

import pytest

from readstate.adapters.valkey import ValkeyClient, slot_of
from readstate.adapters.valkey.bus import sender as valkey_sender
from readstate.adapters.valkey.bus.bus import ValkeyBus
from readstate.adapters.valkey.bus.connections import BusConnection
from readstate.adapters.valkey.bus.wire import encode
from readstate.domain.announcements import Announcement, BadgeChanged, MessageCame, PointerMoved
from readstate.domain.model import Message
from readstate.timings import ValkeyTimings

from ..conftest import eventually
from ..contract.valkey import cluster, single
from .bus_places import (
    ATTENTIVE,
    DEADLINE,
    MISSED,
    PATIENT,
    Instance,
    Place,
    a_place,
    badge,
    counted,
    outsider,
    read,
)


@pytest.fixture(params=["single", "cluster"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    """One server, and three as a Cluster."""
    async with a_place(single().url if request.param == "single" else cluster().url) as place:
        yield place


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
