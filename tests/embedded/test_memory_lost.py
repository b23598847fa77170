"""Memory is lost while something is on its way to the store: what is acknowledged is what is shown afterwards."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from readstate import Readstate
from readstate.api import NewMessage, PutChannel, PutPresence, ReadAll, ReadTarget, UserRead
from tests import stores
from tests.conftest import eventually


class Held:
    """Calls of the store that wait until they are let go: before they reach it, or with the answer in hand."""

    def __init__(self, rs: Readstate, name: str, *, with_answer: bool = False) -> None:
        self._call = getattr(rs.durable, name)
        self._name = name
        self._with_answer = with_answer
        self._waiting: list[asyncio.Event] = []
        self._all_may_pass = False
        self.calls = 0
        setattr(rs.durable, name, self._hold)

    async def _hold(self, *args: Any) -> Any:
        self.calls += 1
        if self._with_answer:
            answer = await self._call(*args)
            await self._wait()
            return answer
        await self._wait()
        return await self._call(*args)

    async def _wait(self) -> None:
        if not self._all_may_pass:
            self._waiting.append(asyncio.Event())
            await self._waiting[-1].wait()

    async def reached(self, count: int) -> None:
        async def waiting() -> bool:
            return len(self._waiting) >= count

        await eventually(waiting, f"{count} calls of {self._name} wait")

    def let_first_go(self) -> None:
        self._waiting[0].set()

    def let_all_go(self) -> None:
        self._all_may_pass = True
        for one in self._waiting:
            one.set()


@pytest.fixture(params=[100, 1], ids=["ledger", "timeline"])
async def rs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Readstate]:
    """A channel with two messages that bob has not read."""
    where = stores.settings_of(tmp_path)
    async with Readstate.open(data_dir=str(tmp_path), fanout_max_members=request.param, **where) as rs:
        await rs.channels.put("general", PutChannel(type="group", members=("alice", "bob")))
        await rs.messages.send([message("alice", "m1"), message("alice", "m2")])
        yield rs


def message(sender: str, name: str) -> NewMessage:
    return NewMessage(channel_id="general", sender_id=sender, id=name)


async def unread(rs: Readstate) -> int:
    return (await rs.unread.of_channel("bob", "general")).unread


async def test_a_load_that_began_before_a_read_was_stored_does_not_hide_it(rs: Readstate) -> None:
    assert await unread(rs) == 2
    merges = Held(rs, "merge")
    read = asyncio.create_task(rs.reads.mark_read("bob", "general", ReadTarget(messages=("m1",))))
    await merges.reached(1)
    await rs.evict()
    loads = Held(rs, "load_user", with_answer=True)
    look = asyncio.create_task(unread(rs))
    await loads.reached(1)

    merges.let_all_go()
    loads.let_all_go()
    assert (await read).unread == 1

    assert await look in {1, 2}  # it looked while the read was on its way
    assert await unread(rs) == 1


async def test_a_read_is_not_lost_that_waits_for_another_user_to_be_loaded(rs: Readstate) -> None:
    """Reads that arrive together are stored together: bob's is in memory while alice is still being loaded."""
    await rs.evict()
    assert await unread(rs) == 2
    loads, merges = Held(rs, "load_user", with_answer=True), Held(rs, "merge")
    both = [UserRead(user_id=user, channel_id="general") for user in ("bob", "alice")]
    read = asyncio.create_task(rs.reads.mark_many(both))
    await loads.reached(1)
    await rs.evict()
    loads.let_all_go()
    await merges.reached(1)
    assert await unread(rs) == 2

    merges.let_all_go()
    assert [outcome.status for outcome in await read] == ["ok", "ok"]

    assert await unread(rs) == 0


async def test_a_read_by_focus_is_not_lost_that_waits_for_the_one_before_to_be_stored(rs: Readstate) -> None:
    await rs.reads.mark_read("bob", "general", ReadTarget())
    await rs.presence.put("bob", PutPresence(device="phone", online=True, focus="general"))
    merges = Held(rs, "merge")
    await rs.messages.send([message("alice", "m3")])
    await merges.reached(1)
    await rs.messages.send([message("alice", "m4")])
    await rs.evict()
    merges.let_first_go()
    await merges.reached(2)
    assert await unread(rs) == 1

    merges.let_all_go()

    async def nothing_is_unread() -> bool:
        return await unread(rs) == 0

    await eventually(nothing_is_unread, "both messages are read")


async def test_an_own_message_is_read_in_an_epoch_that_is_not_stored_yet(rs: Readstate) -> None:
    """The message finds an undo on its way to the store: by sending it, bob reads what the undo gave back."""
    token = (await rs.reads.mark_all("bob", ReadAll(all=True))).undo
    merges = Held(rs, "merge")
    undo = asyncio.create_task(rs.reads.undo("bob", token))
    await merges.reached(1)
    assert await unread(rs) == 2
    await rs.messages.send([message("bob", "mine")])
    await rs.evict()
    assert await unread(rs) == 0

    merges.let_all_go()
    await undo

    assert await unread(rs) == 0
    assert (await rs.explain.explain("bob", "general")).agrees
