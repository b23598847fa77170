"""A rolling upgrade: what an older or a newer process writes into the log, this one reads; and the reverse."""

from typing import Any

import msgspec

from readstate.adapters.kafka.consumer import KafkaConsumer
from tests.conftest import eventually
from tests.contract import kafka

from .conftest import WorkingService, listed

NOW = 1_700_000_000_000


# ---------------------------------------------------------------- what the first version reads, and never may lack


class FirstRead(msgspec.Struct):
    user_id: str
    channel_id: str
    epoch: int
    last_read_seq: int
    apart: list[int]
    last_read_id: str | None
    last_read_at: int | None
    read_at: int
    created_at: int
    v: int


class FirstMessage(msgspec.Struct, tag_field="kind", tag="message"):
    channel_id: str
    created_at: int
    v: int
    id: str
    sender_id: str
    at: int


class FirstDelete(msgspec.Struct, tag_field="kind", tag="delete"):
    channel_id: str
    created_at: int
    v: int
    id: str


class FirstEdit(msgspec.Struct, tag_field="kind", tag="edit"):
    channel_id: str
    created_at: int
    v: int
    id: str


class FirstMembers(msgspec.Struct, tag_field="kind", tag="members"):
    channel_id: str
    created_at: int
    v: int
    add: list[str]
    remove: list[str]


class FirstChannel(msgspec.Struct, tag_field="kind", tag="channel"):
    channel_id: str
    created_at: int
    v: int
    action: str


class FirstUnsent(msgspec.Struct):
    sender_id: str
    receiver_id: str
    message_id: str
    channel_id: str
    at: int
    accepted_at: int
    created_at: int
    v: int


FirstEvent = FirstMessage | FirstDelete | FirstEdit | FirstMembers | FirstChannel


async def records(service: WorkingService, topic: str, count: int) -> list[bytes]:
    """All values of a topic; there are so many at least."""
    consumer = KafkaConsumer(service.rs.cluster.options, kafka.topic(), [topic], kafka.TIMINGS)
    found: list[bytes] = []

    async def read() -> bool:
        found.extend(one.value for one in await consumer.batch(100, 0.1))
        return len(found) >= count

    try:
        await eventually(read, f"{count} events are in {topic}")
    finally:
        await consumer.close()
    return found


# ---------------------------------------------------------------- old events, new code


async def test_events_with_the_fields_of_the_first_version_only_take_effect(service: WorkingService) -> None:
    bare: dict[str, Any] = {"channel_id": "general", "created_at": NOW, "v": 1}
    await service.put_events(
        service.topics.messages,
        {**bare, "kind": "message", "id": "m1", "sender_id": "alice", "at": NOW},
        {**bare, "kind": "message", "id": "m2", "sender_id": "alice", "at": NOW},
        {**bare, "kind": "message", "id": "m3", "sender_id": "alice", "at": NOW},
        {**bare, "kind": "delete", "id": "m2"},
        {**bare, "kind": "members", "add": ["carol"]},
    )
    await service.all_done()
    assert await service.chat.count("bob") == 2

    read = {"user_id": "carol", "channel_id": "general", "epoch": 1 << 20, "last_read_seq": 1}
    await service.put_events(service.topics.reads, {**read, "read_at": NOW, "created_at": NOW, "v": 1})
    await service.all_done()
    assert (await service.receipts())["carol", "general"] == (1 << 20, 1, frozenset())


# ---------------------------------------------------------------- events of a newer version, this code


async def test_fields_of_a_newer_version_are_left_aside(service: WorkingService) -> None:
    newer: dict[str, Any] = {"channel_id": "general", "created_at": NOW, "v": 99, "mood": {"deep": [1, 2]}}
    await service.put_events(
        service.topics.messages,
        {**newer, "kind": "message", "id": "m1", "sender_id": "alice", "at": NOW, "colour": "red"},
    )
    read = {"user_id": "bob", "channel_id": "general", "epoch": 1 << 20, "last_read_seq": 1, "mood": "good", "v": 99}
    await service.put_events(service.topics.reads, {**read, "apart": [], "read_at": NOW, "created_at": NOW})
    unsent = {"sender_id": "zoe", "receiver_id": "bob", "message_id": "x", "channel_id": "general", "at": NOW}
    await service.put_events(
        service.topics.unsent, {**unsent, "accepted_at": NOW, "created_at": NOW, "v": 99, "why": "?"}
    )
    await service.all_done()

    assert (await service.chat.channel())["latest"]["id"] == "m1"
    assert (await service.receipts())["bob", "general"][:2] == (1 << 20, 1)
    assert await listed(service) == []


async def test_a_kind_of_event_that_only_a_newer_version_knows_is_put_aside(service: WorkingService) -> None:
    await service.put_events(
        service.topics.messages,
        {"channel_id": "general", "created_at": NOW, "v": 99, "kind": "poll", "question": "?"},
    )
    await service.chat.send("alice", "m1")

    await service.all_done()
    assert await service.chat.count("bob") == 1
    [(topic, error, _)] = await listed(service)
    assert topic == service.topics.messages
    assert "poll" in error


# ---------------------------------------------------------------- new events, old code


async def test_what_is_written_now_has_all_that_the_first_version_needs(service: WorkingService) -> None:
    chat = service.chat
    await chat.send("alice", "m1", "m2")
    await chat.edit("m2", text="changed")
    await chat.delete("m1")
    await chat.read("bob", messages=["m2"])
    await chat.join("carol")
    await service.all_done()

    events = msgspec.json.Decoder(FirstEvent)
    kinds = [type(events.decode(value)) for value in await records(service, service.topics.messages, 7)]
    assert kinds == [FirstChannel, FirstMembers, FirstMessage, FirstMessage, FirstEdit, FirstDelete, FirstMembers]
    reads = [msgspec.json.decode(value, type=FirstRead) for value in await records(service, service.topics.reads, 1)]
    assert ("bob", "general") in {(one.user_id, one.channel_id) for one in reads}
    unsent = [
        msgspec.json.decode(value, type=FirstUnsent) for value in await records(service, service.topics.unsent, 2)
    ]
    assert {(one.sender_id, one.receiver_id) for one in unsent} == {("alice", "bob")}
