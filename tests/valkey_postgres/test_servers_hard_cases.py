"""Hard cases of loading, generations, change numbers and timelines, over Valkey and PostgreSQL, their order forced."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from readstate import Readstate
from readstate.api import ChangeMembers, MarkUnread, PutChannel, ReadAll, ReadTarget
from readstate.domain.errors import ReadstateError
from tests.contract import valkey

from .on_servers import BIG, SMALL, Held, clients, count, hot, message, on_servers, two_channels

ROOMS = pytest.mark.parametrize("room", [SMALL, BIG])


@pytest.fixture
async def rs(tmp_path: Path) -> AsyncIterator[Readstate]:
    """Five messages in each channel that bob has not read."""
    async with on_servers(tmp_path, valkey.single().url) as rs:
        await two_channels(rs)
        for room in (SMALL, BIG):
            await rs.messages.send([message("alice", f"m{n}", room) for n in range(1, 6)])
            assert await count(rs, "bob", room) == 5
        yield rs


def emptied() -> None:
    """Everything hot is lost, without a word to anybody."""
    valkey.single().ask("FLUSHALL")


# ---------------------------------------------------------------- 1: emptied while something is on its way


@ROOMS
async def test_two_mark_unreads_with_the_hot_store_emptied_between_them(rs: Readstate, room: str) -> None:
    """The second one knows nothing of the first; whichever counts as the later one, both hold."""
    await rs.reads.mark_read("bob", room, ReadTarget())
    merges = Held(rs.durable, "merge", only_first=True)
    first = asyncio.create_task(rs.reads.mark_unread("bob", room, MarkUnread(from_="m2")))
    await merges.reached()
    emptied()
    await rs.reads.mark_unread("bob", room, MarkUnread(from_="m4"))

    merges.let_go()
    await first

    assert await count(rs, "bob", room) == 4
    await rs.evict()
    assert await count(rs, "bob", room) == 4


@ROOMS
async def test_a_read_and_a_mark_unread_with_the_hot_store_emptied_between_them(rs: Readstate, room: str) -> None:
    merges = Held(rs.durable, "merge", only_first=True)
    read = asyncio.create_task(rs.reads.mark_read("bob", room, ReadTarget(messages=("m1",))))
    await merges.reached()
    emptied()
    await rs.reads.mark_unread("bob", room, MarkUnread(from_="m3"))

    merges.let_go()
    await read

    assert await count(rs, "bob", room) == 4
    await rs.evict()
    assert await count(rs, "bob", room) == 4


@ROOMS
async def test_a_mark_unread_that_was_acknowledged_outlives_the_hot_store(rs: Readstate, room: str) -> None:
    await rs.reads.mark_read("bob", room, ReadTarget())
    unread = await rs.reads.mark_unread("bob", room, MarkUnread(from_="m2"))
    emptied()
    late = ReadTarget(up_to="m5", epoch=0)
    assert (await rs.reads.mark_read("bob", room, late)).last_read.epoch == unread.last_read.epoch
    assert await count(rs, "bob", room) == 4
    again = await rs.reads.mark_unread("bob", room, MarkUnread(from_="m1"))
    assert again.last_read.epoch > unread.last_read.epoch
    assert await count(rs, "bob", room) == 5


# ---------------------------------------------------------------- 3: steps that are repeated


class Recorded:
    """What the hot state was told; can be told again."""

    def __init__(self, rs: Readstate) -> None:
        self._calls: list[tuple[Any, Sequence[Any]]] = []
        for part in (hot(rs).channels, hot(rs).users):
            self._record(part, part.apply)

    def _record(self, part: Any, apply: Any) -> None:
        async def recorded(steps: Sequence[Any]) -> Any:
            self._calls.append((apply, steps))
            return await apply(steps)

        part.apply = recorded

    async def again(self) -> None:
        for apply, steps in list(self._calls):
            await apply(steps)


@ROOMS
async def test_what_was_read_deleted_or_left_stays_so_when_a_writer_wakes_up_late(rs: Readstate, room: str) -> None:
    told = Recorded(rs)
    await rs.messages.send([message("alice", f"m{n}", room) for n in range(6, 10)])
    await told.again()
    await rs.reads.mark_read("bob", room, ReadTarget(messages=("m6",)))
    await rs.messages.delete(room, "m7")
    await told.again()
    assert await count(rs, "bob", room) == 7
    await rs.channels.change_members(room, ChangeMembers(remove=("bob",)))
    await told.again()
    assert not await rs.is_member("bob", room)
    await rs.channels.change_members(room, ChangeMembers(add=("bob",), history="unread"))
    await told.again()
    assert await count(rs, "bob", room) == 7


# ---------------------------------------------------------------- 4 and 5: deletes


@ROOMS
async def test_a_deleted_message_does_not_come_back_with_a_load_that_is_older(rs: Readstate, room: str) -> None:
    for name in ("load_user", "load_ledgers", "load_timeline", "load_channels"):
        before = await count(rs, "bob", room)
        await rs.unread.totals(["alice"])
        await rs.evict()
        if name != "load_user":
            await rs.loader.view("bob", [room])
        held = Held(rs.durable, name, with_answer=True, only_first=True)
        look = asyncio.create_task(rs.unread.of_channel("bob", room))
        if not await held.is_reached_before(look):
            await look
            continue  # this kind of channel is not loaded that way
        await rs.messages.delete(room, f"m{before}")
        held.let_go()
        await look
        assert await count(rs, "bob", room) == before - 1


@ROOMS
async def test_a_message_read_one_by_one_and_then_deleted_is_taken_away_once(rs: Readstate, room: str) -> None:
    await rs.reads.mark_read("bob", room, ReadTarget(messages=("m2",)))
    await rs.messages.delete(room, "m2")
    assert await count(rs, "bob", room) == 4
    emptied()
    assert await count(rs, "bob", room) == 4


# ---------------------------------------------------------------- 11: growing past the limit


async def test_a_channel_outgrows_the_limit_while_everything_goes_on(tmp_path: Path) -> None:
    async with on_servers(tmp_path, valkey.single().url) as rs:
        people = clients(rs, 31)
        await people.gather()

        async def grows() -> None:
            for n in range(5):
                await joins(f"guest{n}")

        async def joins(guest: str) -> None:
            await people.insist(lambda: rs.channels.change_members(SMALL, ChangeMembers(add=(guest,))))

        await people.act(200, [(60, grows), (100, lambda: asyncio.to_thread(emptied))])
        assert (await rs.explain.explain("ann", SMALL)).mode == "timeline"
        await people.check_after_reloading()


# ---------------------------------------------------------------- 12: begun anew


@ROOMS
async def test_a_late_read_of_a_deleted_channel_hides_nothing_of_the_new_one(rs: Readstate, room: str) -> None:
    merges = Held(rs.durable, "merge", only_first=True)
    read = asyncio.create_task(rs.reads.mark_read("bob", room, ReadTarget()))
    await merges.reached()
    await rs.channels.delete(room)
    await rs.channels.put(room, PutChannel(type="group", members=("alice", "bob")))
    await rs.messages.send([message("alice", "n1", room)])

    merges.let_go()
    await asyncio.gather(read, return_exceptions=True)

    assert await count(rs, "bob", room) == 1
    emptied()
    assert await count(rs, "bob", room) == 1


# ---------------------------------------------------------------- 15: undo


@ROOMS
async def test_an_undo_keeps_what_was_read_one_by_one_since(rs: Readstate, room: str) -> None:
    await rs.reads.mark_read("bob", room, ReadTarget(messages=("m2",)))
    token = (await rs.reads.mark_all("bob", ReadAll(all=True))).undo
    await rs.messages.send([message("alice", f"m{n}", room) for n in (6, 7)])
    await rs.reads.mark_read("bob", room, ReadTarget(messages=("m7",)))
    emptied()
    await rs.reads.undo("bob", token)
    assert await count(rs, "bob", room) == 5
    with pytest.raises(ReadstateError, match="undo"):
        await rs.reads.undo("bob", token)
