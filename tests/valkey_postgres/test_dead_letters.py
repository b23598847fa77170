"""Events that were put aside: what becomes of them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from readstate import Readstate
from readstate.adapters.kafka.topics import Topics
from readstate.adapters.kafka.wire import (
    channel_record,
    decode_read,
    decode_whose,
    read_record,
    read_records,
    split_reads,
    unsent_record,
)
from readstate.api import NewMessage, ReadTarget
from readstate.domain.errors import StorageUnavailable
from readstate.domain.events import DeadLetter, MessageEvent, ReadEvent, UnsentEvent
from readstate.domain.model import NO_CHANGE, ReadState
from readstate.domain.rooms import thread_room
from readstate.telemetry import DLT_FAILED, DLT_RECONCILED
from readstate.workers.dead_letters import DeadLetters

from .on_servers import BIG, SMALL, count
from .repairing import KINDS, chat, durable_state, hot_state, read_hot_only, state_event

TOPICS = Topics("shared.")


@pytest.fixture(params=KINDS)
async def rs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Readstate]:
    async with chat(request.param, tmp_path) as rs:
        yield rs


@pytest.fixture
def worker(rs: Readstate) -> DeadLetters:
    return DeadLetters(rs.durable, rs.hot.users, rs.clock, TOPICS.reads, split_reads, decode_read, decode_whose)


def letter(event: ReadEvent | str, offset: int = 1, topic: str = TOPICS.reads) -> DeadLetter:
    text = event if isinstance(event, str) else read_record(event, 1).value.decode()
    return DeadLetter(text, "ValueError: it failed", 3, topic, 0, offset, 1_700_000_000_000)


def counted(topic: str = TOPICS.reads) -> tuple[float, float]:
    return DLT_RECONCILED.labels(topic)._value.get(), DLT_FAILED.labels(topic)._value.get()


async def test_a_read_is_repaired_from_what_the_hot_store_has(rs: Readstate, worker: DeadLetters) -> None:
    await read_hot_only(rs, SMALL, 4)
    repaired, failed = counted()

    await worker.handle([letter(await state_event(rs, SMALL, 2))])

    assert await durable_state(rs, SMALL) == ReadState(0, 4)
    assert counted() == (repaired + 1, failed)
    assert await rs.durable.list_dead_letters(0, 10) == []


async def test_or_else_from_the_event_itself(rs: Readstate, worker: DeadLetters) -> None:
    event = await state_event(rs, SMALL, 2, (5,))
    await rs.evict()
    await worker.handle([letter(event)])
    assert await durable_state(rs, SMALL) == ReadState(0, 2, frozenset({5}))
    assert await count(rs, "bob", SMALL) == 2


async def test_a_hot_store_that_was_lost_since_gets_the_read_back(rs: Readstate, worker: DeadLetters) -> None:
    await worker.handle([letter(await state_event(rs, SMALL, 2))])
    assert await hot_state(rs, SMALL) == await durable_state(rs, SMALL) == ReadState(0, 2)
    assert await count(rs, "bob", SMALL) == 3


async def test_each_has_something_that_the_other_lacks(rs: Readstate, worker: DeadLetters) -> None:
    await read_hot_only(rs, SMALL, 1, (5,))
    await worker.handle([letter(await state_event(rs, SMALL, 2, (4,)))])
    both = ReadState(0, 2, frozenset({4, 5}))
    assert await hot_state(rs, SMALL) == await durable_state(rs, SMALL) == both


async def test_a_read_of_a_thread_is_repaired_too(rs: Readstate, worker: DeadLetters) -> None:
    room = thread_room(SMALL, "m1")
    reply = NewMessage(channel_id=SMALL, sender_id="bob", id="reply", thread_id="m1")
    more = NewMessage(channel_id=SMALL, sender_id="alice", id="more", thread_id="m1")
    await rs.messages.send([reply, more])
    now = rs.clock()
    await worker.handle([letter(ReadEvent("bob", room, 0, 2, (), "more", now, now, NO_CHANGE, now))])
    assert await durable_state(rs, room) == ReadState(0, 2)


@pytest.mark.parametrize(
    "values",
    ['"epoch":"two"', '"epoch":0,"last_read_seq":99999999999999999999', '"epoch":-1,"last_read_seq":1', '"apart":{}'],
)
async def test_an_event_whose_values_make_no_sense_is_repaired_from_the_hot_store(
    rs: Readstate, worker: DeadLetters, values: str
) -> None:
    await read_hot_only(rs, SMALL, 3)
    await worker.handle([letter(f'{{"user_id":"bob","channel_id":"{SMALL}",{values}}}')])
    assert await durable_state(rs, SMALL) == ReadState(0, 3)
    assert await rs.durable.list_dead_letters(0, 10) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON at all",
        '{"user_id":"bob"}',
        '{"user_id":"a\\u0000b","channel_id":"c","epoch":0,"last_read_seq":1}',
        '{"user_id":"@bob","channel_id":"c","epoch":0,"last_read_seq":1}',
        '{"user_id":"somebody","channel_id":"small","epoch":"two"}',
        "[" * 5_000,
    ],
)
async def test_what_nothing_is_known_of_is_listed(rs: Readstate, worker: DeadLetters, text: str) -> None:
    repaired, failed = counted()
    await worker.handle([letter(text), letter(await state_event(rs, SMALL, 2), 2)])

    (listed,) = await rs.durable.list_dead_letters(0, 10)
    assert (listed.topic, listed.event, listed.tries) == (TOPICS.reads, text, 3)
    assert listed.error
    assert counted() == (repaired + 1, failed + 1)
    assert await durable_state(rs, SMALL) == ReadState(0, 2)  # one does not stop the others


async def test_what_changes_channels_is_not_applied_out_of_order_but_listed(rs: Readstate, worker: DeadLetters) -> None:
    now = rs.clock()
    late = MessageEvent(channel_id=SMALL, created_at=now, id="late", sender_id="alice", at=now)
    text = channel_record(late, 1).value.decode()
    repaired, failed = counted(TOPICS.messages)

    await worker.handle([letter(text, topic=TOPICS.messages)])

    (listed,) = await rs.durable.list_dead_letters(0, 10)
    assert (listed.topic, listed.event, listed.error) == (TOPICS.messages, text, "ValueError: it failed")
    assert counted(TOPICS.messages) == (repaired, failed + 1)
    assert await rs.durable.by_id([(SMALL, "late")]) == {}


async def test_a_batch_that_comes_again_changes_nothing(rs: Readstate, worker: DeadLetters) -> None:
    batch = [letter("no event"), letter(await state_event(rs, SMALL, 2), 2)]
    await worker.handle(batch)
    await worker.handle(batch)
    assert len(await rs.durable.list_dead_letters(0, 10)) == 1
    assert await durable_state(rs, SMALL) == ReadState(0, 2)


async def test_case_13_a_database_that_is_down_is_waited_for(
    rs: Readstate, worker: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = await state_event(rs, SMALL, 2)

    async def down(*_: object, **__: object) -> None:
        raise StorageUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(rs.durable, "merge_unless_erased", down)
        before = counted()
        with pytest.raises(StorageUnavailable):
            await worker.handle([letter(event)])
        assert counted() == before
    assert await rs.durable.list_dead_letters(0, 10) == []
    await worker.handle([letter(event)])
    assert await durable_state(rs, SMALL) == ReadState(0, 2)


async def test_case_12_late_events_of_an_erased_user_bring_nothing_back(rs: Readstate, worker: DeadLetters) -> None:
    event = await state_event(rs, SMALL, 2)
    await rs.durable.transfer.erase("bob", on_the_way=rs.clock())
    await rs.evict()
    await worker.handle([letter(event), letter(read_record(event, 1).value.decode().replace("2", '"two"'), 2)])
    assert await rs.durable.read_states([("bob", SMALL)]) == {}


async def test_case_12_with_a_user_go_the_letters_that_are_listed_of_reads(rs: Readstate, worker: DeadLetters) -> None:
    """What the user wrote belongs to its channel."""
    now = rs.clock()
    odd = '{"user_id":"bob","channel_id":"nowhere","epoch":"two"}'
    unsent = UnsentEvent("alice", "bob", "m1", SMALL, now, now, now)
    told = unsent_record(unsent, 1).value.decode()
    wrote = MessageEvent(channel_id=SMALL, created_at=now, id="late", sender_id="bob", at=now, text=odd)
    said = channel_record(wrote, 1).value.decode()
    letters = [letter(odd), letter(odd.replace("bob", "bobby"), 2), letter(told, 3, TOPICS.unsent)]
    await worker.handle([*letters, letter(said, 4, TOPICS.messages)])
    assert len(await rs.durable.list_dead_letters(0, 10)) == 4

    await rs.transfer.erase_user("bob")

    assert [one.event for one in await rs.durable.list_dead_letters(0, 10)] == [odd.replace("bob", "bobby"), said]


async def test_case_12_late_events_of_a_deleted_channel_hide_nothing(rs: Readstate, worker: DeadLetters) -> None:
    event = await state_event(rs, SMALL, 4)
    await rs.channels.delete(SMALL)
    await worker.handle([letter(event)])
    assert (await durable_state(rs, SMALL)).seq == 0


async def test_a_packed_record_that_an_older_worker_put_aside_is_repaired_whole(
    rs: Readstate, worker: DeadLetters
) -> None:
    events = [await state_event(rs, SMALL, 2), await state_event(rs, BIG, 3)]
    [record] = read_records(events, 1, packed=True)
    await worker.handle([letter(record.value.decode())])
    assert (await durable_state(rs, SMALL)).seq == 2
    assert (await durable_state(rs, BIG)).seq == 3
    assert await rs.durable.list_dead_letters(0, 10) == []


async def test_two_at_once_do_no_harm(rs: Readstate, worker: DeadLetters) -> None:
    batch = [letter(await state_event(rs, SMALL, 2), 2), letter("no event")]
    await asyncio.gather(worker.handle(batch), worker.handle(batch), rs.reads.mark_read("bob", SMALL, ReadTarget()))
    assert await count(rs, "bob", SMALL) == 0
    assert len(await rs.durable.list_dead_letters(0, 10)) == 1
