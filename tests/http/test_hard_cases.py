"""The hard cases of the design that can be seen from outside of one process, by their numbers."""

import asyncio
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from readstate import Readstate, Settings
from readstate.domain.errors import ConfigurationError, ReadstateError
from tests.conftest import Chat, check_problem, in_process, of, three_channels
from tests.servers import Server
from tests.stores import not_in_a_cluster


async def test_case_3_what_was_read_or_deleted_stays_so_when_the_message_is_repeated(chat: Chat) -> None:
    await chat.open_channel("alice", "bob", "carol")
    await chat.send("alice", "read", "deleted", "left")
    await chat.read("bob", messages=["read"])
    await chat.delete("deleted")
    await chat.leave("carol")

    repeated = [await chat.post("alice", id=name) for name in ("read", "deleted", "left")]

    assert [r["status"] for r in repeated] == ["duplicate"] * 3
    assert await chat.waiting("bob") == ["left"]
    assert await chat.count("bob") == 1
    assert (await chat.sync("carol", only_unread="false"))["channels"] == []


async def test_case_5_a_message_read_one_by_one_and_then_deleted_leaves_two_unread(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", "m2", "m3")

    await chat.read("bob", messages=["m2"])
    await chat.delete("m2")

    assert await chat.count("bob") == 2
    assert await chat.waiting("bob", order="oldest") == ["m1", "m3"]


async def test_case_6_an_own_send_repeated_after_a_mark_unread_reads_nothing_again(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", "m2")
    await chat.send("bob", "own")
    await chat.mark_unread("bob", "m1")

    assert (await chat.post("bob", id="own"))["status"] == "duplicate"

    assert await chat.waiting("bob", order="oldest") == ["m1", "m2"]
    assert await chat.count("bob") == 2


async def test_case_6_a_join_repeated_after_a_mark_unread_reads_nothing_again(chat: Chat) -> None:
    await chat.open_channel("alice")
    await chat.send("alice", "m1", "m2")
    await chat.join("bob", history="read")
    await chat.mark_unread("bob", "m1")

    assert (await chat.join("bob", history="read"))["added"] == 0

    assert await chat.count("bob") == 2


async def test_case_11_a_channel_outgrows_the_limit_while_everything_goes_on(tmp_path: Path) -> None:
    async with in_process(tmp_path, fanout_max_members=4) as chat:
        await chat.open_channel("alice", "bob", "carol")

        async def write() -> None:
            for number in range(60):
                await chat.send("alice", f"m{number}", mentions=["@channel"] if number % 3 == 0 else [])

        async def read() -> None:
            for seq in range(0, 30, 2):
                await chat.read("carol", up_to_seq=seq)
                assert (await chat.unread("carol"))["exact"]

        async def watch() -> None:
            last = 0
            while last < 60:
                answer = await chat.unread("bob")
                assert answer["exact"]
                assert answer["unread"] >= last, "bob reads nothing: the count never falls"
                last = answer["unread"]
                await asyncio.sleep(0)  # in one process, an answer from memory lets nobody else run

        async def grow() -> None:
            for number in range(6):
                await chat.join(f"guest{number}", history="unread")

        async with asyncio.TaskGroup() as together:
            for task in (write(), read(), watch(), grow()):
                together.create_task(task)

        assert (await chat.explain("bob"))["mode"] == "timeline"
        assert (await chat.unread("bob"))["mentions"] == 20
        assert await chat.count("bob") == 60
        pointer = (await chat.unread("carol"))["last_read"]["seq"]
        assert await chat.count("carol") == 60 - pointer
        assert [await chat.count(f"guest{number}") for number in range(6)] == [60] * 6


async def test_case_11_a_channel_never_changes_back(tmp_path: Path) -> None:
    async with in_process(tmp_path, fanout_max_members=2) as chat:
        await chat.open_channel("alice", "bob", "carol")
        await chat.send("alice", "m1", "m2")
        await chat.read("bob", messages=["m2"])

        await chat.leave("carol")
        await chat.send("alice", "m3")

        assert (await chat.explain("bob"))["mode"] == "timeline"
        assert await chat.waiting("bob", order="oldest") == ["m1", "m3"]

    async with in_process(tmp_path, fanout_max_members=100) as chat:
        assert (await chat.explain("bob"))["mode"] == "timeline"
        assert await chat.count("bob") == 2


async def test_case_12_late_reads_of_a_deleted_channel_hide_nothing_in_the_new_one(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", "m2", "m3")
    old = (await chat.read("bob"))["last_read"]
    await chat.delete_channel()

    await chat.open_channel("alice", "bob")
    assert (await chat.post("alice", id="m1", text="the new first"))["seq"] == 4
    late = await chat.read("bob", up_to_seq=old["seq"], epoch=old["epoch"])
    gone = await chat.call("POST", f"{of('bob')}/read", {"up_to": "m3"})

    assert late["unread"] == 1
    check_problem(gone, 404, "message_not_found")
    assert await chat.waiting("bob") == ["m1"]
    assert await chat.count("bob") == 1


async def test_case_12_nothing_of_a_deleted_channel_is_left_to_a_bot_that_wrote_in_it_from_outside(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("bot", "m1", outside=True)
    await chat.delete_channel()

    await chat.open_channel("alice", "bob")
    await chat.evict()
    await chat.join("bot", history="unread")

    last = (await chat.unread("bot"))["last_read"]
    assert (last["id"], last["seq"], last["at"]) == (None, 0, None)
    assert last["epoch"] > 0


async def test_case_13_what_hangs_on_an_unknown_message_is_not_found(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    reply = {"channel_id": "general", "sender_id": "alice", "thread_id": "unknown"}

    check_problem(await chat.call("POST", "/v1/messages", reply), 404, "thread_not_found")
    check_problem(await chat.call("POST", f"{of('bob')}/read", {"up_to": "unknown"}), 404, "message_not_found", "up_to")


async def test_case_13_a_message_deleted_before_it_came_stays_deleted(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.delete("late")

    await chat.post("alice", id="late", text="replayed", mentions=["bob"])
    await chat.send("alice", "next")

    answer = await chat.unread("bob")
    assert (answer["unread"], answer["mentions"], answer["latest"]["id"]) == (1, 0, "next")
    assert await chat.waiting("bob") == ["next"]
    assert await chat.count("bob") == 1


async def test_case_14_explain_does_not_take_movement_for_a_difference(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    moving = True

    async def move() -> None:
        for number in range(100):
            await chat.send("alice", f"m{number}")
            await chat.read("bob", up_to_seq=number // 2)

    async def watch() -> None:
        while moving:
            why = await chat.explain("bob")
            assert why["agrees"], why

    async with asyncio.TaskGroup() as together:
        for _ in range(4):
            together.create_task(watch())
        await move()
        moving = False

    assert await chat.count("bob") == 51


async def test_case_15_undo_keeps_what_was_read_one_by_one_before_and_since(chat: Chat) -> None:
    await three_channels(chat)
    await chat.read("bob", "c", messages=["c2"])
    done = await chat.read_all("bob")
    await chat.send("alice", "c4", "c5", channel="c")
    await chat.read("bob", "c", messages=["c5"])

    assert (await chat.undo("bob", done["undo"]))["changed"] == 3

    assert await chat.waiting("bob", channel="c", order="oldest") == ["c1", "c3", "c4"]
    assert await chat.count("bob", "c") == 3


@pytest.mark.parametrize("together", [True, False])
async def test_case_16_reads_of_one_epoch_merge_in_any_order(chat: Chat, together: bool) -> None:
    reads: list[dict[str, Any]] = [{"up_to_seq": 10}, {"messages": ["m15"]}, {"up_to_seq": 12}]
    await chat.open_channel("alice", *(f"reader{i}" for i in range(6)))
    await chat.post_all({"channel_id": "general", "sender_id": "alice", "id": f"m{i}"} for i in range(1, 21))

    for number, order in enumerate(permutations(reads)):
        who = {"user_id": f"reader{number}", "channel_id": "general"}
        if together:
            await chat.read_many(*(who | read for read in order))
        else:
            await asyncio.gather(*(chat.read_many(who | read) for read in order))

    for number in range(6):
        why = await chat.explain(f"reader{number}")
        assert (why["pointer"]["seq"], why["minus"]["read_apart"], why["unread"]) == (12, 1, 7)


@not_in_a_cluster(reason="any number of processes share the stores of a cluster")
async def test_case_17_a_second_process_on_the_same_store_is_refused(tmp_path: Path) -> None:
    async with in_process(tmp_path) as chat:
        await chat.open_channel("alice")
        second = Server(tmp_path)
        second.launch()
        assert await asyncio.to_thread(second.wait_for_exit) != 0
        assert "another process" in "".join(second.log).lower() or "lock" in "".join(second.log).lower()
        with pytest.raises(ReadstateError):
            await Readstate.open(data_dir=str(tmp_path))
        await chat.open_channel("bob")
        assert (await chat.channel())["member_count"] == 2


def test_case_17_more_than_one_worker_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="workers"):
        Settings(workers=2)
