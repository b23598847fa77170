"""Events as records: versions read each other, and what is no event says why."""

import pytest
from msgspec import json

from readstate.adapters.kafka.client import kafka_options
from readstate.adapters.kafka.topics import Topics
from readstate.adapters.kafka.wire import NotAnEvent, decode_channel_event, decode_read, decode_unsent, read_record
from readstate.domain.events import ChannelEvent, MessageEvent, ReadEvent
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
