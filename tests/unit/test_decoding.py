"""Bodies and queries: what is taken, what is refused, and how it is told."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from readstate.api import NewMessage, ReadTarget
from readstate.domain.errors import BadRequest, BrokenJson, Invalid, TooLarge, WrongContentType
from readstate.gateway.asgi import Disconnected, Event
from readstate.gateway.http.decoding import Messages, Reads, decode, one_or_many, read_body
from readstate.gateway.http.queries import Parameter, boolean, channels, one_of, parse_query, whole

JSON = b"application/json"
read_target = msgspec.json.Decoder(ReadTarget).decode
reads = msgspec.json.Decoder(Reads).decode


# ---------------------------------------------------------------- receiving a body


class Wire:
    """A client that sends these chunks, and goes away after them if it is told to."""

    def __init__(self, *chunks: bytes, leaves: bool = False) -> None:
        self.events: Iterator[Event] = self._events(chunks, leaves)
        self.received = 0

    def _events(self, chunks: tuple[bytes, ...], leaves: bool) -> Iterator[Event]:
        for number, chunk in enumerate(chunks, 1):
            yield {"type": "http.request", "body": chunk, "more_body": leaves or number < len(chunks)}
        yield {"type": "http.disconnect"}

    async def receive(self) -> Event:
        self.received += 1
        return next(self.events)


async def test_a_body_may_come_in_pieces() -> None:
    assert await read_body(Wire(b"{}").receive, None, 1024) == b"{}"
    assert await read_body(Wire(b'{"up_to', b'_seq": ', b"", b"7}").receive, None, 1024) == b'{"up_to_seq": 7}'


@pytest.mark.parametrize("length", [b"1025", b"9" * 40])
async def test_a_body_announced_as_too_large_is_not_received(length: bytes) -> None:
    wire = Wire(b"")

    with pytest.raises(TooLarge):
        await read_body(wire.receive, length, 1024)
    assert wire.received == 0


async def test_a_body_without_a_length_is_received_up_to_the_limit_and_no_further() -> None:
    wire = Wire(*[b" " * 1000] * 100)

    with pytest.raises(TooLarge):
        await read_body(wire.receive, None, 1024)
    assert wire.received == 2


@pytest.mark.parametrize("sizes", [(1024,), (1000, 24), (0, 1024, 0)])
async def test_a_body_of_just_the_limit_is_taken(sizes: tuple[int, ...]) -> None:
    assert len(await read_body(Wire(*(b" " * size for size in sizes)).receive, b"1024", 1024)) == 1024


@pytest.mark.parametrize("sizes", [(1025,), (1024, 1)])
async def test_a_body_of_one_byte_more_is_not(sizes: tuple[int, ...]) -> None:
    with pytest.raises(TooLarge):
        await read_body(Wire(*(b" " * size for size in sizes)).receive, b"1024", 1024)


@pytest.mark.parametrize("chunks", [(), (b"{",), (b"{", b"}")])
async def test_a_client_that_goes_away_has_asked_nothing(chunks: tuple[bytes, ...]) -> None:
    with pytest.raises(Disconnected):
        await read_body(Wire(*chunks, leaves=True).receive, None, 1024)


# ---------------------------------------------------------------- decoding a body


def test_no_body_counts_as_an_empty_object_whatever_its_type() -> None:
    for kind in (None, b"", b"text/plain", JSON):
        assert decode(read_target, b"", kind) == ReadTarget()


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        (b'{"up_to_seq": "5"}', "up_to_seq", "expected int | null, got str"),
        (b'{"up_to_seq": -1}', "up_to_seq", ">= 0"),
        (b'{"up_to_seq": 1e400}', "up_to_seq", "out of range"),
        (b'{"messages": ["m1", 1.5]}', "messages[1]", "got float"),
        (b'{"surprise": 1}', "surprise", "is not a field"),
        (b'{"a.b` - at `c": 1}', "a.b` - at `c", "is not a field"),
        (b"[]", None, "expected object, got array"),
        (b"null", None, "expected object, got null"),
    ],
)
def test_a_fault_is_told_with_its_field(body: bytes, field: str | None, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        decode(read_target, body, JSON)
    assert caught.value.field == field
    assert says in caught.value.detail


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"up_to_seq": True}, "reads[3].up_to_seq"),
        ({"surprise": 1}, "reads[3].surprise"),
        ({"messages": [None]}, "reads[3].messages[0]"),
    ],
)
def test_a_fault_in_a_list_is_told_with_its_place(change: dict[str, Any], field: str) -> None:
    items: list[dict[str, Any]] = [{"user_id": "bob", "channel_id": "general"} for _ in range(5)]
    items[3] |= change

    with pytest.raises(Invalid) as caught:
        decode(reads, json.dumps({"reads": items}).encode(), JSON)
    assert caught.value.field == field


def test_what_is_missing_is_named() -> None:
    for body, field in [(b"{}", "reads"), (b'{"reads": [{"user_id": "bob"}]}', "reads[0].channel_id")]:
        with pytest.raises(Invalid, match="is required") as caught:
            decode(reads, body, JSON)
        assert caught.value.field == field


def test_a_long_name_is_not_repeated_at_length() -> None:
    with pytest.raises(Invalid) as caught:
        decode(read_target, b'{"%s": 1}' % (b"x" * 100_000), JSON)
    assert len(caught.value.detail) + len(caught.value.field or "") < 1_000


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"up_to": 5',
        b"{'up_to': 5}",
        b'{"up_to_seq": NaN}',
        b"{} {}",
        b'{"up_to": 5, }',
        b"\xef\xbb\xbf{}",
        b'{"up_to": "\xff"}',
        b'{"\xff": 1}',
        b'{"surprise": "\xff"}',
        rb'{"up_to": "\ud800"}',
        rb'{"up_to": "\ud800 and more"}',
        rb'{"up_to": "\udc00"}',
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"up_to": ' * 100_000,
    ],
)
def test_what_is_no_json_is_told_as_such_even_if_a_field_is_wrong_too(body: bytes) -> None:
    for make in (read_target, reads, one_or_many):
        with pytest.raises(BrokenJson):
            decode(make, body, JSON)


@pytest.mark.parametrize(
    "kind", [JSON, b"Application/JSON", b'application/json ; charset="UTF-8"', b"application/json;charset=utf8; v=1"]
)
def test_json_is_taken_by_any_of_its_names(kind: bytes) -> None:
    assert decode(read_target, b"{}", kind) == ReadTarget()


@pytest.mark.parametrize(
    "kind", [None, b"", b"text/plain", b"application/json; charset=latin-1", b"application/jsonp", b"json", b"\xff"]
)
def test_another_content_type_is_refused(kind: bytes | None) -> None:
    with pytest.raises(WrongContentType):
        decode(read_target, b"{}", kind)


def test_a_message_comes_alone_or_in_a_list() -> None:
    message = b'{"channel_id": "general", "sender_id": "bob", "text": "\\"messages\\""}'

    alone = decode(one_or_many, message, JSON)
    listed = decode(one_or_many, b'{"messages": [%s, %s]}' % (message, message), JSON)

    assert isinstance(alone, NewMessage)
    assert listed == Messages(messages=(alone, alone))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"messages": null}', "messages"),
        (b'{"messages": {}}', "messages"),
        (b'{"messages": [5]}', "messages[0]"),
        (b'{"messages": [], "sender_id": "bob"}', "sender_id"),
        (b'{"sender_id": "bob"}', "channel_id"),
    ],
)
def test_neither_one_message_nor_a_list_is_refused(body: bytes, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        decode(one_or_many, body, JSON)
    assert caught.value.field == field


# ---------------------------------------------------------------- queries

LIST = {
    "limit": Parameter(whole, "", {}),
    "since": Parameter(str, "", {}),
    "only_unread": Parameter(boolean, "", {}),
    "channels": Parameter(channels, "", {}),
    "order": Parameter(one_of("newest", "oldest"), "", {}),
}


@pytest.mark.parametrize(
    ("query", "meant"),
    [
        (b"", {}),
        (b"limit=5&since=abc", {"limit": 5, "since": "abc"}),
        (b"since=", {"since": ""}),
        (b"since=null", {"since": "null"}),
        (b"since=%F0%9F%90%B1", {"since": "🐱"}),
        (b"only_unread=false", {"only_unread": False}),
        (b"only_unread=1", {"only_unread": True}),
        (b"order=oldest", {"order": "oldest"}),
        (b"channels=a", {"channels": ["a"]}),
        (b"channels=a,b", {"channels": ["a", "b"]}),
        (b"channels=a%2Cb", {"channels": ["a", "b"]}),
        (b"channels=a&channels=b,c", {"channels": ["a", "b,c"]}),
    ],
)
def test_a_query_is_understood(query: bytes, meant: dict[str, Any]) -> None:
    assert parse_query(LIST, query) == meant


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (b"surprise=1", "surprise"),
        (b"LIMIT=1", "LIMIT"),
        (b"limit=many", "limit"),
        (b"limit=", "limit"),
        (b"limit=1.0", "limit"),
        (b"limit=%D9%A3", "limit"),
        (b"limit=" + b"9" * 30, "limit"),
        (b"limit=1&limit=2", "limit"),
        (b"only_unread=maybe", "only_unread"),
        (b"order=NEWEST", "order"),
    ],
)
def test_a_fault_in_a_query_is_named(query: bytes, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_query(LIST, query)
    assert caught.value.field == field


@pytest.mark.parametrize("query", [b"since=%FF", b"%FF=1", b"since=\xff"])
def test_a_query_that_is_not_utf8_is_refused(query: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_query(LIST, query)
