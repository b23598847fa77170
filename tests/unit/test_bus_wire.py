"""What travels on the bus between instances, also of different versions."""

import json
from typing import Any

import pytest

from readstate.adapters.valkey.bus.bus import Channels
from readstate.adapters.valkey.bus.connections import BusServers
from readstate.adapters.valkey.bus.wire import VERSION, decode, encode, runs, without_text
from readstate.domain.announcements import (
    Announcement,
    BadgeChanged,
    ChannelTouched,
    MembersChanged,
    MessageCame,
    PointerMoved,
    StateReplaced,
    ThreadTouched,
    UserRoomChanged,
)
from readstate.domain.errors import ConfigurationError
from readstate.domain.model import ChangeNumber, Message, Pointer, Undelivered
from readstate.domain.rooms import thread_room
from readstate.timings import ValkeyTimings

MESSAGE = Message("größe", "m\u20ac", 3, "алиса", 1_700_000_000_000, preview="привет", mentions=("@channel", "боб"))
KINDS: list[Announcement] = [
    MessageCame(MESSAGE, "i1", (Undelivered("боб", 5, "алиса", "größe", "m\u20ac"),), read_before=True),
    ChannelTouched("größe", "conversation"),
    MembersChanged("größe", joined=("боб",), left=("{braces}", "c:d")),
    ThreadTouched(thread_room("größe", "m1"), ("боб", "💬")),
    UserRoomChanged("боб", "größe", conversation=True),
    BadgeChanged("боб"),
    StateReplaced(("боб",), "imported"),
]
MOVED = PointerMoved(
    "боб",
    "größe",
    Pointer(1, 2),
    Pointer(1, 7, frozenset({9, 12}), id="m\u20ac", at=5, read_at=6, change=ChangeNumber(8)),
    "i1",
    "connection 1",
)


def travelled(*announcements: Announcement) -> list[Announcement]:
    received = decode(encode("p", 1, 0, announcements))
    assert received is not None
    assert received.skipped == 0
    return list(received.announcements)


@pytest.mark.parametrize("one", [*KINDS, MOVED], ids=lambda one: type(one).__name__)
def test_every_announcement_arrives_as_it_was(one: Announcement) -> None:
    assert travelled(one) == [one]


def test_reads_in_threads_arrive_as_they_were() -> None:
    moved = PointerMoved("боб", thread_room("größe", "m1"), Pointer(), Pointer(0, 1, id="r1"), "i1")
    assert travelled(moved) == [moved]


def test_a_batch_without_content_is_a_sign_of_life() -> None:
    received = decode(encode("p", 4, 3))
    assert received is not None
    assert received.is_heartbeat
    assert (received.head.publisher, received.head.number, received.head.after) == ("p", 4, 3)


def test_the_whole_text_of_a_message_stays_at_home() -> None:
    came = MessageCame(Message("c", "m1", 1, "alice", 5, text="a secret", preview="a"), "i1")
    left = without_text(came)
    assert isinstance(left, MessageCame)
    assert (left.message.text, left.message.preview) == (None, "a")
    assert without_text(MOVED) is MOVED


def test_reads_and_the_rest_keep_their_order() -> None:
    found = list(runs([MOVED, MOVED, *KINDS[:2], MOVED]))
    assert found == [(True, (MOVED, MOVED)), (False, tuple(KINDS[:2])), (True, (MOVED,))]


def test_a_read_is_readable_for_others() -> None:
    [change] = json.loads(encode("p", 1, 0, [MOVED]))["changes"]
    assert change == {
        "user_id": "боб",
        "channel_id": "größe",
        "last_read_seq": 7,
        "last_read_id": "m\u20ac",
        "last_read_at": 5,
        "epoch": 1,
        "apart": [9, 12],
        "read_at": 6,
        "instance_id": "i1",
        "before": {"epoch": 1, "last_read_seq": 2},
        "change": 8,
        "origin": "connection 1",
    }


# ---------------------------------------------------------------- other versions


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(encode("p", 7, 6, KINDS[5:6])) | fields).encode()


def test_unknown_announcements_are_skipped_and_counted() -> None:
    badge = {"kind": "badge", "user_id": "bob"}
    news = [{"kind": "not known yet", "x": 1}, badge, {"kind": "seat", "user_id": 5}, {"no": "kind"}, 3]
    received = decode(changed(announcements=news))
    assert received is not None
    assert list(received.announcements) == [BadgeChanged("bob")]
    assert received.skipped == 4


def test_a_batch_of_which_nothing_is_known_still_has_its_number() -> None:
    received = decode(changed(announcements=[{"kind": "not known yet"}]))
    assert received is not None
    assert (received.head.number, list(received.announcements), received.is_heartbeat) == (7, [], False)


def test_reads_that_are_not_understood_are_skipped_and_counted() -> None:
    good = json.loads(encode("p", 1, 0, [MOVED]))["changes"][0]
    received = decode(changed(announcements=[], changes=[good, {"user_id": "bob"}, good | {"epoch": "x"}]))
    assert received is not None
    assert list(received.announcements) == [MOVED]
    assert received.skipped == 2


def test_new_fields_are_ignored() -> None:
    badge = {"kind": "badge", "user_id": "bob", "colour": "red"}
    received = decode(changed(announcements=[badge], later="field"))
    assert received is not None
    assert list(received.announcements) == [BadgeChanged("bob")]


def test_a_batch_of_a_version_that_can_not_be_read_is_skipped_whole() -> None:
    received = decode(changed(v=VERSION + 1))
    assert received is not None
    assert (list(received.announcements), received.skipped, received.head.number) == ([], 1, 7)


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"hello",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"v":1,"publisher":"\xff","number":1,"after":0}',
        b'{"v":1,"publisher":5,"number":1,"after":0}',
        b'{"v":1,"publisher":"p","number":"1","after":0}',
        b'{"v":1,"publisher":"p","number":1,"after":0,"announcements":{}}',
        b"[" * 100_000,
        b'{"v":' + b"[" * 100_000,
    ],
)
def test_what_is_no_batch_is_none(junk: bytes) -> None:
    assert decode(junk) is None


# ---------------------------------------------------------------- names and places


@pytest.mark.parametrize("prefix", ["", "chat:", "{chat}:", "a{b}c", "größe:"])
def test_both_channels_have_one_slot(prefix: str) -> None:
    channels = Channels.named(prefix)
    assert channels.reads == f"{prefix}read-pointer:changes"
    assert channels.others != channels.reads


@pytest.mark.parametrize("prefix", ["chat{", "chat}", "{}chat"])
def test_a_prefix_that_would_part_them_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="braces"):
        Channels.named(prefix)


def test_databases_of_one_server_do_not_hear_each_other() -> None:
    assert len({*Channels.named("", 0), *Channels.named("", 1), *Channels.named("", 2)}) == 6


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://x", "redis://x:port", "redis+cluster://a:1,b:port"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        BusServers(url, ValkeyTimings())
