"""The hot store is lost while reads are only in the log: what devices are told then may be old, and is told anew."""

import json
from typing import Any

import pytest

from readstate.services.cursors import SyncCursor
from readstate.workers import RECEIPT_PERSISTER
from tests.conftest import eventually
from tests.live.state import State, comparable, differences, fetch

from .hard import BIG, SMALL, Instance, LocalCluster

LONG_AGO_SECONDS = 60.0


class Screen:
    """A device of bob's that keeps what it is told."""

    connection_id = "screen"

    def __init__(self, state: State, cursor: str) -> None:
        self.state = state
        self.cursor = cursor

    def push(self, frame: bytes) -> None:
        event = json.loads(frame)
        self.state.apply(event)
        self.cursor = event.get("resume") or self.cursor

    @property
    def doubtful(self) -> list[str]:
        """Channels whose numbers are the last known ones."""
        return [name for name, one in self.state.channels.items() if not one["exact"]]

    async def connect(self, instance: Instance) -> None:
        start = instance.rs.cursors.decode(self.cursor, SyncCursor, "bob")
        await instance.rs.live.attach("bob", self, start)

    async def shows_what_is_there(self, instance: Instance) -> None:
        """It comes to show what a sync made anew says."""
        wrong: list[str] = []

        async def agreed() -> bool:
            truth, totals, _ = await fetch(instance.chat, "bob")
            wrong[:] = differences(comparable(self.state.view()), comparable(truth.view() | totals))
            return not wrong

        try:
            await eventually(agreed, "the screen shows what is there", 30)
        finally:
            assert not wrong


async def synced(instance: Instance) -> Screen:
    state, _, cursor = await fetch(instance.chat, "bob")
    return Screen(state, cursor)


@pytest.fixture
async def lost(cluster: LocalCluster, one: Instance, two: Instance) -> None:
    """Bob has read all of one of two channels, which only the log knows any more."""
    await two.chat.read("bob", SMALL)
    cluster.lose_hot_store()
    await one.knows_of_the_loss()


async def test_a_device_that_is_there_is_told_when_numbers_are_exact_again(
    worker: Instance, one: Instance, lost: None
) -> None:
    screen = await synced(one)
    await screen.connect(one)
    assert sorted(screen.doubtful) == [BIG, SMALL]

    worker.start_worker(RECEIPT_PERSISTER)
    await one.is_fresh()

    await screen.shows_what_is_there(one)
    assert screen.doubtful == []
    assert [screen.state.channels[room]["unread"] for room in (SMALL, BIG)] == [0, 5]


async def test_a_device_that_comes_later_is_told_too(worker: Instance, one: Instance, lost: None) -> None:
    screen = await synced(one)
    assert sorted(screen.doubtful) == [BIG, SMALL]
    worker.start_worker(RECEIPT_PERSISTER)
    await one.is_fresh()

    delta = await one.chat.sync("bob", since=screen.cursor)
    assert sorted(row["channel_id"] for row in delta["channels"]) == [BIG, SMALL]
    await screen.connect(one)

    await screen.shows_what_is_there(one)


async def test_a_read_that_was_missed_and_lost_is_told_when_it_is_known_again(
    cluster: LocalCluster, worker: Instance, one: Instance, two: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its announcement did not come, and as long as only the log has it, nobody can look it up."""
    screen = await synced(one)
    await screen.connect(one)
    with monkeypatch.context() as deaf:
        deaf.setattr(one.rs.live, "_pointer", _ignore)
        await two.chat.read("bob", SMALL)
        assert await one.chat.count("bob", SMALL) == 0
        cluster.lose_hot_store()
        await one.knows_of_the_loss()
    await one.rs.live.on_gap(LONG_AGO_SECONDS)
    await one.rs.live.flushed("bob")
    if screen.state.must_sync:
        screen.state, _, screen.cursor = await fetch(one.chat, "bob")
    assert screen.state.channels[SMALL]["unread"] == 5

    worker.start_worker(RECEIPT_PERSISTER)
    await one.is_fresh()

    await screen.shows_what_is_there(one)
    assert screen.state.channels[SMALL]["unread"] == 0


def _ignore(_: Any) -> None:
    pass
