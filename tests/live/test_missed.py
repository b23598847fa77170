"""Announcements that never come: what devices missed by that is found in the state, and told in order."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from readstate.adapters.memory.bus import LocalBus
from readstate.domain.announcements import Announcement, Outcome
from readstate.domain.errors import StorageUnavailable
from readstate.domain.model import ChangeNumber, LogPosition
from readstate.live.cursors import CursorHistory
from readstate.live.devices import MAX_CATCHING_UP
from readstate.services.cursors import SyncCursor
from readstate.timings import LiveTimings
from tests.conftest import GENERAL
from tests.effort import long

from .actions import ACTIONS, FEW, Scene, a_lively_place
from .conftest import LiveService, live_service
from .device import Frame
from .state import Follower

AT_ONCE = 0.0
APART_MS = LiveTimings().cursor_distance_ms


class Deafness:
    """Between the bus and the devices: while it is `total`, or for what it `swallows`, nothing is heard."""

    def __init__(self, service: LiveService) -> None:
        self._rs = service.rs
        self._live = service.rs.live
        bus: Any = service.rs.preferences._bus
        if isinstance(bus, LocalBus):
            bus.subscribe(self._on_announcements, self._live.on_gap, self._live.is_idle)
        else:
            bus._listener._on_announcements = self._hear_in_a_cluster
        self.total = False
        self.swallows: Callable[[Announcement], bool] = lambda _: False

    async def _on_announcements(self, announcements: Sequence[Announcement]) -> None:
        heard = [one for one in announcements if not self.total and not self.swallows(one)]
        if heard:
            await self._live.on_announcements(heard)

    async def _hear_in_a_cluster(self, announcements: Sequence[Announcement]) -> None:
        """Requests that wait for the outcome of what they sent hear of that all the same."""
        await self._on_announcements([one for one in announcements if not isinstance(one, Outcome)])
        self._rs.cluster.log.on_announcements(announcements)


@pytest.fixture
async def busy(tmp_path: Path) -> AsyncIterator[LiveService]:
    """A lively place, with small channels (counted by ledgers) and large ones (by timelines)."""
    async with live_service(tmp_path, fanout_max_members=FEW) as service:
        await a_lively_place(service.chat)
        yield service


@pytest.fixture
def deafness(either: LiveService) -> Deafness:
    return Deafness(either)


def messages(events: list[Frame]) -> list[str]:
    return [event["message_id"] for event in events if event["type"] == "message.new"]


# ---------------------------------------------------------------- whatever happened


@pytest.mark.parametrize("name", ACTIONS)
async def test_whatever_was_not_heard_of_is_made_up_for(busy: LiveService, name: str) -> None:
    places = [("alice", "phone"), ("bob", "phone"), ("bob", "laptop"), ("carol", "phone"), ("dave", "phone")]
    followers = [await Follower(busy, *place).start() for place in places]
    deafness = Deafness(busy)

    deafness.total = True
    for size in ("small", "large"):
        await ACTIONS[name](Scene(busy, followers[2].device, size))
    deafness.total = False
    await busy.rs.live.on_gap(AT_ONCE)

    for follower in followers:
        await follower.agrees()


@pytest.mark.parametrize("heard", [0, 1])
async def test_what_was_heard_besides_hides_nothing(either: LiveService, deafness: Deafness, heard: int) -> None:
    """Each second announcement is lost; the cursors of the others pass over what they were about."""
    bob, carol = await Follower(either, "bob", "phone").start(), await Follower(either, "carol", "phone").start()
    turn = iter(range(1_000_000))
    deafness.swallows = lambda _: next(turn) % 2 != heard

    for number in range(1, 6):
        await either.chat.send("alice", f"m{number}")
        await either.chat.read("bob", up_to=f"m{number}")
    await either.chat.mark_unread("bob", "m2")
    await bob.device.quiet()
    deafness.swallows = lambda _: False
    await either.rs.live.on_gap(AT_ONCE)

    await bob.agrees()
    await carol.agrees()


class Day:
    """What three people do at random, each thing possible when it is done."""

    def __init__(self, service: LiveService, seed: int) -> None:
        self.chance = random.Random(seed)
        self._chat = service.chat
        self._sent: list[str] = []
        self._numbers = itertools.count(1)

    async def something(self) -> None:
        chance, chat = self.chance, self._chat
        user = chance.choice(("alice", "bob", "carol"))
        what = chance.choice(("send", "send", "read", "unread", "delete", "prefer", "reply", "rejoin", "tap"))
        if what == "send" or not self._sent:
            self._sent.append(f"m{next(self._numbers)}")
            await chat.send(user, self._sent[-1], mentions=chance.choice(([], ["bob"], ["@channel"])))
        elif what == "read":
            await chat.read(user, messages=[chance.choice(self._sent)])
        elif what == "unread":
            await chat.mark_unread(user, self._sent[-1])
        elif what == "delete" and len(self._sent) > 1:
            await chat.delete(self._sent.pop(0))
        elif what == "prefer":
            await chat.prefer(user, muted=chance.random() < 0.5, count=chance.choice(("all", "mentions")))
        elif what == "reply":
            await chat.post(user, text="x", thread_id=self._sent[-1])
        elif what == "rejoin":
            await chat.leave(user, channel=GENERAL)
            await chat.join(user, channel=GENERAL, history=chance.choice(("read", "unread")))
        else:
            await chat.tap(user)


@pytest.mark.parametrize("seed", [*range(3), *long(range(3, 8))])
async def test_a_day_of_which_half_is_not_heard_adds_up(either: LiveService, deafness: Deafness, seed: int) -> None:
    """Gaps are noticed at any moment, also while others are being made up for, and devices come and go."""
    day = Day(either, seed)
    places = [("alice", "phone"), ("bob", "phone"), ("bob", "laptop"), ("carol", "phone")]
    followers = [await Follower(either, *place).start() for place in places]
    deafness.swallows = lambda _: day.chance.random() < 0.5

    async def notice(times: int) -> None:
        for _ in range(times):
            await either.rs.live.on_gap(AT_ONCE)
            await followers[1].device.quiet()

    for _ in range(4):
        noticing = asyncio.create_task(notice(5))
        for _ in range(10):
            await day.something()
        await followers[0].drop()
        await followers[0].come_back()
        await noticing
    deafness.swallows = lambda _: False
    await either.rs.live.on_gap(AT_ONCE)

    for follower in followers[1:]:
        await follower.agrees()


# ---------------------------------------------------------------- order


async def test_missed_messages_come_in_order_and_before_anything_newer(either: LiveService, deafness: Deafness) -> None:
    bob = await Follower(either, "bob", "phone").start()
    deafness.total = True
    await either.chat.send("alice", "m1", "m2", "m3")
    deafness.total = False

    await either.rs.live.on_gap(AT_ONCE)
    await either.chat.send("alice", "m4")

    await bob.agrees()
    assert list(dict.fromkeys(one["message_id"] for one in bob.messages)) == ["m1", "m2", "m3", "m4"]
    assert bob.state.channels[GENERAL]["unread"] == 4


async def test_what_is_heard_while_it_is_looked_up_waits(
    either: LiveService, deafness: Deafness, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = await either.fresh("bob")
    gate, looking = held_back(either, monkeypatch)
    deafness.total = True
    await either.chat.send("alice", "m1")
    deafness.total = False

    await either.rs.live.on_gap(AT_ONCE)
    await looking.wait()
    await either.chat.send("alice", "m2")
    assert messages(bob.frames) == []
    gate.set()

    assert list(dict.fromkeys(messages(await bob.heard()))) == ["m1", "m2"]


async def test_something_missed_again_while_it_is_looked_up_is_looked_up_again(
    either: LiveService, deafness: Deafness, monkeypatch: pytest.MonkeyPatch
) -> None:
    phone, laptop = await Follower(either, "bob", "phone").start(), await Follower(either, "bob", "laptop").start()
    gate, looking = held_back(either, monkeypatch, after=True)
    deafness.total = True
    await either.chat.send("alice", "m1")

    await either.rs.live.on_gap(AT_ONCE)
    await looking.wait()
    await either.chat.send("alice", "m2")
    await either.rs.live.on_gap(AT_ONCE)
    deafness.total = False
    gate.set()

    for follower in (phone, laptop):
        await follower.agrees()
        assert list(dict.fromkeys(one["message_id"] for one in follower.messages)) == ["m1", "m2"]


async def test_something_missed_while_a_device_comes_is_told_to_it(
    either: LiveService, deafness: Deafness, monkeypatch: pytest.MonkeyPatch
) -> None:
    phone = await Follower(either, "bob", "phone").start()
    gate, looking = held_back(either, monkeypatch, after=True)
    deafness.total = True
    laptop = Follower(either, "bob", "laptop")
    coming = asyncio.create_task(laptop.start())
    await looking.wait()

    await either.chat.send("alice", "m1")
    await either.rs.live.on_gap(AT_ONCE)
    deafness.total = False
    gate.set()
    await coming

    for follower in (phone, laptop):
        await follower.agrees()
        assert [one["message_id"] for one in follower.messages]


async def test_a_ping_waits_for_its_own_device_though_another_has_caught_up_since(
    either: LiveService, deafness: Deafness, monkeypatch: pytest.MonkeyPatch
) -> None:
    phone, laptop = await Follower(either, "bob", "phone").start(), Follower(either, "bob", "laptop")
    gate, both, since = asyncio.Event(), asyncio.Event(), either.rs.catch_up._events
    numbers = itertools.count(1)

    async def first_waits(user: str, start: SyncCursor) -> Any:
        number = next(numbers)
        if number == 1:
            await gate.wait()
        elif number == 2:  # the laptop connects during a gap, and is caught up by itself afterwards
            await either.rs.live.on_gap(AT_ONCE)
        else:
            both.set()
        return await since(user, start)

    monkeypatch.setattr(either.rs.catch_up, "_events", first_waits)
    deafness.total = True
    await either.chat.send("alice", "m1")
    await either.rs.live.on_gap(AT_ONCE)
    deafness.total = False
    await laptop.start()

    asked = asyncio.create_task(phone.agrees())
    await both.wait()
    done, _ = await asyncio.wait([asked], timeout=0.1)
    gate.set()
    assert not done
    await asked
    await laptop.agrees()


def held_back(
    service: LiveService, monkeypatch: pytest.MonkeyPatch, *, after: bool = False
) -> tuple[asyncio.Event, asyncio.Event]:
    """Looking up what was missed waits at the gate, before or after it has looked; and whether it is there."""
    gate, there = asyncio.Event(), asyncio.Event()
    since = service.rs.catch_up._events

    async def slow(user: str, start: SyncCursor) -> Any:
        found = await since(user, start) if after else None
        there.set()
        await gate.wait()
        return found if after else await since(user, start)

    monkeypatch.setattr(service.rs.catch_up, "_events", slow)
    return gate, there


# ---------------------------------------------------------------- who hears what


async def test_a_channel_joined_unheard_is_heard_from_then_on(either: LiveService, deafness: Deafness) -> None:
    bob = await Follower(either, "bob", "phone").start()
    deafness.total = True
    await either.chat.open_channel("alice", "bob", channel="new")
    deafness.total = False
    await either.rs.live.on_gap(AT_ONCE)

    await either.chat.send("alice", "m1", channel="new")

    await bob.agrees()
    assert {one["message_id"] for one in bob.messages} == {"m1"}  # a repair may repeat what comes meanwhile


async def test_a_channel_left_unheard_is_heard_no_more(either: LiveService, deafness: Deafness) -> None:
    bob = await either.fresh("bob")
    deafness.total = True
    await either.chat.leave("bob", channel=GENERAL)
    deafness.total = False
    await either.rs.live.on_gap(AT_ONCE)

    await either.chat.send("alice", "not for bob")

    events = await bob.heard()
    assert "channel.removed" in [event["type"] for event in events]
    assert messages(events) == []


async def test_nobody_is_told_twice_where_nothing_was_missed(either: LiveService) -> None:
    await either.chat.send("alice", "m1")
    bob = await either.fresh("bob")

    await either.rs.live.on_gap(AT_ONCE)

    assert await bob.kinds() == ["badge.updated"]


async def test_what_can_not_be_given_whole_leads_to_a_sync(service: LiveService) -> None:
    deafness = Deafness(service)
    bob = await Follower(service, "bob", "phone").start()
    deafness.total = True
    for _ in range(2):
        await service.chat.post_all([{"channel_id": GENERAL, "sender_id": "alice"} for _ in range(501)])
    deafness.total = False

    await service.rs.live.on_gap(AT_ONCE)

    await bob.device.first("sync.required")
    await bob.agrees()


# ---------------------------------------------------------------- trouble and crowds


async def test_a_store_that_fails_is_asked_again(
    either: LiveService, deafness: Deafness, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = await Follower(either, "bob", "phone").start()
    since, failed = either.rs.catch_up._events, asyncio.Event()

    async def failing(user: str, start: SyncCursor) -> Any:
        if failed.is_set():
            return await since(user, start)
        failed.set()
        raise StorageUnavailable

    monkeypatch.setattr(either.rs.catch_up, "_events", failing)
    deafness.total = True
    await either.chat.send("alice", "m1")
    deafness.total = False

    await either.rs.live.on_gap(AT_ONCE)

    await bob.agrees()
    assert failed.is_set()


class Quiet:
    """A device that takes what it is given."""

    def __init__(self, name: str) -> None:
        self.connection_id = name
        self.frames: list[bytes] = []

    def push(self, frame: bytes) -> None:
        self.frames.append(frame)


async def test_a_thousand_devices_are_caught_up_a_few_at_a_time(
    service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    deafness = Deafness(service)
    live = service.rs.live
    people = [f"p{number}" for number in range(999)]
    await service.chat.open_channel("alice", *people, channel="square", type="channel")
    devices = [Quiet(name) for name in people]
    for device in devices:
        await live.attach(device.connection_id, device, None)
    at_once, most, since = 0, 0, service.rs.catch_up._events

    async def counted(user: str, start: SyncCursor) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            await asyncio.sleep(0)
            return await since(user, start)
        finally:
            at_once -= 1

    monkeypatch.setattr(service.rs.catch_up, "_events", counted)
    deafness.total = True
    await service.chat.send("alice", "for all", channel="square")

    await live.on_gap(AT_ONCE)
    for name in people:
        await live.flushed(name)

    assert all(any(b'"for all"' in frame for frame in device.frames) for device in devices)
    assert 1 <= most <= MAX_CATCHING_UP
    for device in devices:
        live.detach(device.connection_id, device)


# ---------------------------------------------------------------- from which moment on


def moment(at: int) -> SyncCursor:
    return SyncCursor(change=ChangeNumber(at), positions=(LogPosition(at),), at=at, store=1)


def test_what_the_state_itself_told_is_sure_at_once() -> None:
    cursor_history = CursorHistory()
    cursor_history.begin(moment(5))
    assert cursor_history.before(0) == moment(5)


def test_before_anything_was_told_nothing_is_sure() -> None:
    cursor_history = CursorHistory()
    cursor_history.note(moment(5), APART_MS)
    assert cursor_history.before(10) is None


def test_what_was_announced_is_sure_when_it_is_old_enough() -> None:
    cursor_history = CursorHistory()
    cursor_history.begin(moment(0))
    first, second, third = (moment(APART_MS * number) for number in (1, 2, 3))
    for noted in (moment(1), first, moment(first.at + 1), second, third):
        cursor_history.note(noted, APART_MS)

    assert cursor_history.before(third.at) == third
    assert cursor_history.before(third.at - 1) == second
    assert cursor_history.before(second.at - 1) == moment(0)


def test_of_devices_that_come_together_the_one_that_is_less_far_counts() -> None:
    cursor_history = CursorHistory()
    cursor_history.begin(moment(5))
    cursor_history.begin(moment(3))
    cursor_history.begin(moment(8))
    assert cursor_history.before(0) == moment(3)


async def test_a_long_silence_is_looked_up_from_before_it_began(tmp_path: Path) -> None:
    """What was heard during the silence has moved the cursor; it is not gone from there."""
    now = 1_800_000_000_000

    def clock() -> int:
        return now

    async with live_service(tmp_path, clock=clock) as service:
        deafness = Deafness(service)
        await service.chat.open_channel("alice", "bob")
        bob = await Follower(service, "bob", "phone").start()
        for number in range(1, 4):
            now += 2 * APART_MS
            await service.chat.send("alice", f"before {number}")
            await bob.device.quiet()
        deafness.swallows = lambda one: "unheard" in str(one)
        await service.chat.send("alice", "unheard")
        for number in range(1, 4):
            now += 2 * APART_MS
            await service.chat.send("alice", f"after {number}")
            await bob.device.quiet()

        await service.rs.live.on_gap(6 * APART_MS / 1000)

        await bob.agrees()
        assert "unheard" in [one["message_id"] for one in bob.messages]
