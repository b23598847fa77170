"""Events as records: versions read each other, and what is no event says why."""

import pytest
from msgspec import json
from msgspec.structs import replace

from readstate.adapters.kafka.client import kafka_options
from readstate.adapters.kafka.topics import Topics
from readstate.adapters.kafka.wire import (
    MOST_PACKED_BYTES,
    NotAnEvent,
    count_reads,
    count_unsent,
    decode_channel_event,
    decode_read,
    decode_reads,
    decode_unsent,
    decode_unsents,
    read_record,
    read_records,
    split_record,
    split_unsent,
    unsent_record,
    unsent_records,
)
from readstate.domain.events import ChannelEvent, Consumed, MessageEvent, ReadEvent, UnsentEvent, UnsentMessage
from readstate.domain.model import NO_CHANGE, ChangeNumber
from readstate.domain.rooms import thread_room
from readstate.settings import Settings

STATE = ReadEvent("bob", "general", 1, 7, (9, 12), "m7", 70, 80, ChangeNumber(3), 90)
FIRST = {
    "user_id": "bob",
    "channel_id": "general",
    "epoch": 1,
    "last_read_seq": 7,
    "read_at": 80,
    "created_at": 90,
    "v": 1,
}


def test_an_event_of_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    newer = {**json.decode(read_record(STATE, 4).value), "v": 9, "mood": "happy", "more": {"deep": [1]}}
    assert decode_read(json.encode(newer)) == ReadEvent(
        "bob", "general", 1, 7, (9, 12), "m7", 70, 80, ChangeNumber(3), 90, 9
    )
    message = {
        "kind": "message",
        "v": 9,
        "id": "m",
        "channel_id": "c",
        "created_at": 1,
        "sender_id": "a",
        "at": 2,
        "new": 1,
    }
    found = decode_channel_event(json.encode(message))
    assert found == MessageEvent(channel_id="c", created_at=1, v=9, id="m", sender_id="a", at=2)


def test_an_event_of_an_older_version_lacks_what_came_later() -> None:
    assert decode_read(json.encode(FIRST)) == ReadEvent("bob", "general", 1, 7, (), None, None, 80, NO_CHANGE, 90)
    assert decode_channel_event(b'{"kind":"channel","channel_id":"c","created_at":1}') == ChannelEvent(
        channel_id="c", created_at=1
    )


def test_a_state_of_a_thread_names_channel_and_thread() -> None:
    event = ReadEvent("bob", thread_room("general", "root"), 1, 7, (), "m7", 70, 80, ChangeNumber(3), 90)
    record = read_record(event, 4)
    fields = json.decode(record.value)
    assert (fields["channel_id"], fields["thread_id"]) == ("general", "root")
    assert decode_read(record.value) == event
    assert (record.key, record.partition) == read_record(STATE, 4)[::2]


# ---------------------------------------------------------------- packed records


def state(number: int, apart: tuple[int, ...] = ()) -> ReadEvent:
    return ReadEvent(f"user {number}", "general", 1, 7, apart, "m7", 70, 80, ChangeNumber(3), 90 + number)


def test_states_of_one_partition_share_a_record_without_a_key() -> None:
    states = [state(number) for number in range(40)]
    states.append(ReadEvent("bob", thread_room("general", "root"), 1, 7, (9,), "m7", 70, 80, ChangeNumber(3), 90))
    records = read_records(states, 4, packed=True)
    assert {(record.key, record.partition) for record in records} == {(b"", part) for part in range(4)}
    assert len(records) == 4
    for record in records:
        assert json.decode(record.value)["v"] == 2
        found = decode_reads(record.value)
        assert found == [one for one in states if read_record(one, 4).partition == record.partition]


def test_a_state_that_is_alone_has_a_record_of_its_own_and_so_has_each_where_none_may_be_packed() -> None:
    assert read_records([STATE], 4, packed=True) == [read_record(STATE, 4)]
    states = [state(number) for number in range(40)]
    assert read_records(states, 4, packed=False) == [read_record(one, 4) for one in states]
    assert read_records([], 4, packed=True) == []


def test_a_packed_record_has_a_limit_and_a_larger_state_goes_alone() -> None:
    large = state(1, tuple(range(10**15, 10**15 + 20_000)))
    small = [state(number) for number in range(2, 5_000)]
    records = read_records([*small[:2_000], large, *small[2_000:]], 1, packed=True)
    alone = read_record(large, 1)
    assert len(alone.value) > MOST_PACKED_BYTES
    assert alone in records
    assert all(len(record.value) <= MOST_PACKED_BYTES for record in records if record != alone)
    assert {one for record in records for one in decode_reads(record.value)} == {large, *small}


def test_a_packed_record_of_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    value = json.encode({"mood": "happy", "states": [{**FIRST, "v": 9, "new": 1}], "v": 9})
    assert decode_reads(value) == [ReadEvent("bob", "general", 1, 7, (), None, None, 80, NO_CHANGE, 90, 9)]
    assert decode_reads(b'{"v":2,"states":[]}') == []
    never = {**json.decode(read_record(STATE, 4).value), "read_at": 0}
    assert decode_reads(json.encode({"v": 2, "states": [never, never]})) == [replace(STATE, read_at=90)] * 2
    assert decode_reads(json.encode(FIRST)) == [decode_read(json.encode(FIRST))]


def test_the_states_of_a_packed_record_are_told_apart_also_if_one_is_no_state() -> None:
    states = [
        json.encode(FIRST),
        b'{"user_id":"odd","epoch":[1, 2]}',
        b"null",
        json.encode({**FIRST, "user_id": "eve"}),
    ]
    record = Consumed("t", 3, 7, b"", b'{"v": 2, "states": [ %b ]}' % b" , ".join(states), 5)
    with pytest.raises(NotAnEvent, match=r"states\[1\]"):
        decode_reads(record.value)
    parts = split_record(record)
    assert [(part.value, part.nth) for part in parts] == list(zip(states, range(4), strict=True))
    assert {part._replace(value=b"", nth=-1) for part in parts} == {record._replace(value=b"")}
    assert [one for part in parts for one in split_record(part)] == parts


def test_the_states_of_a_record_are_counted() -> None:
    states = [state(number) for number in range(40)]
    [record] = read_records(states, 1, packed=True)
    assert count_reads(Consumed("t", 0, 0, b"", record.value)) == 40
    assert count_reads(Consumed("t", 0, 0, b"", read_record(STATE, 1).value)) == 1
    assert count_reads(Consumed("t", 0, 0, b"", b"no event")) == 1


def unsent(receiver: str, message: str = "m1") -> UnsentEvent:
    return UnsentEvent("ann", receiver, message, "general", 70, 80, 90)


def unsent_message(*receivers: str, message: str = "m1") -> UnsentMessage:
    return UnsentMessage("ann", message, "general", 70, 80, 90, receivers)


def test_receivers_of_one_message_and_partition_share_a_record() -> None:
    users = [f"user {number}" for number in range(40)]
    events = [unsent(user, message) for message in ("m1", "m2") for user in users]
    records = unsent_records([unsent_message(*users, message=message) for message in ("m1", "m2")], 4, packed=True)
    assert sorted((record.key, record.partition) for record in records) == [(b"", part // 2) for part in range(8)]
    for record in records:
        value = json.decode(record.value)
        assert (value["v"], value["sender_id"], "receiver_id" in value) == (2, "ann", False)
        found = decode_unsents(record.value)
        assert found == [unsent(receiver, value["message_id"]) for receiver in value["receivers"]]
        assert {unsent_record(one, 4).partition for one in found} == {record.partition}
        assert len(found) <= count_unsent(Consumed("t", 0, 0, b"", record.value)) <= len(found) + 5
    assert {one for record in records for one in decode_unsents(record.value)} == set(events)


def test_a_receiver_who_is_alone_has_a_record_of_its_own_and_a_packed_one_has_a_limit() -> None:
    assert unsent_records([unsent_message("bob")], 4, packed=True) == [unsent_record(unsent("bob"), 4)]
    users = [f"{number:0200}" for number in range(3_000)]
    events = list(map(unsent, users))
    assert unsent_records([unsent_message(*users)], 4, packed=False) == [unsent_record(one, 4) for one in events]
    records = unsent_records([unsent_message(*users)], 1, packed=True)
    assert all(len(record.value) <= MOST_PACKED_BYTES for record in records)
    assert [one for record in records for one in decode_unsents(record.value)] == events
    assert decode_unsents(unsent_record(unsent("bob"), 4).value) == [unsent("bob")]


def test_the_receivers_of_a_packed_record_are_told_apart_also_if_one_is_nobody() -> None:
    [packed] = unsent_records([unsent_message("bob", "eve")], 1, packed=True)
    record = Consumed("t", 3, 7, b"", packed.value.replace(b'"bob"', b"5"))
    with pytest.raises(NotAnEvent, match="receivers"):
        decode_unsents(record.value)
    odd, good = split_unsent(record)
    assert json.decode(odd.value)["receiver_id"] == 5
    assert (odd.nth, good.nth, good.offset) == (0, 1, 7)
    assert decode_unsent(good.value) == unsent("eve")
    assert split_unsent(good) == [good]


@pytest.mark.parametrize("value", [b"", b"{", b"null", b'{"states":5}', b'{"v":2,"states":[]}', json.encode(FIRST)])
def test_what_is_not_packed_stays_whole(value: bytes) -> None:
    record = Consumed("t", 3, 7, b"k", value)
    assert split_record(record) == [record]
    assert split_unsent(record) == [record]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"{}", "user_id"),
        (json.encode({**FIRST, "epoch": "1"}), "epoch"),
        (b'{"new":' + b"[" * 100_000, "deep"),
    ],
)
def test_what_is_no_event_says_why(value: bytes, reason: str) -> None:
    with pytest.raises(NotAnEvent, match=reason):
        decode_read(value)


def test_what_is_no_event_says_nothing_of_a_text() -> None:
    with pytest.raises(NotAnEvent) as caught:
        decode_channel_event(b'{"kind":"message","channel_id":"c","created_at":1,"id":5,"text":"secret"}')
    assert "secret" not in str(caught.value)
    with pytest.raises(NotAnEvent):
        decode_unsent(b"null")


def test_topics_and_groups_carry_the_prefix() -> None:
    topics = Topics("a.")
    names = ("read-receipts", "messages", "ON_MSG_UNSENT", "read-receipts-dlt", "messages-dlt")
    assert topics.all == tuple("a." + name for name in names)
    assert topics.persister == "a.read-receipt-persister"
    assert (topics.writer, topics.status_update, topics.dead_letters) == (
        "a.message-writer",
        "a.status-update",
        "a.dead-letters",
    )


def test_a_password_goes_to_kafka_only_where_it_is_asked_for() -> None:
    plain = Settings(kafka_bootstrap=("one:1", "two:2"), kafka_username="u", kafka_password="p", kafka_ca="ca.pem")
    assert kafka_options(plain) == {
        "bootstrap.servers": "one:1,two:2",
        "security.protocol": "plaintext",
        "client.id": "readstate",
    }
    safe = Settings(kafka_security="sasl_ssl", kafka_username="u", kafka_password="p", kafka_ca="ca.pem")
    options = kafka_options(safe)
    assert (options["sasl.username"], options["sasl.password"]) == ("u", "p")
    assert (options["sasl.mechanisms"], options["ssl.ca.location"]) == ("SCRAM-SHA-512", "ca.pem")
