"""Bad input of every kind gets a clear answer and changes nothing."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import pytest_asyncio

from tests.conftest import Chat, check_problem, in_process, of

pytestmark = pytest.mark.asyncio(loop_scope="module")

USERS = ("alice", "bob", "carol")
CHANNELS = ("general", "big")
BOB = of("bob")
HUGE = 2**53
DEEP = 100_000


class World(NamedTuple):
    """A chat with some history, and all that could be seen of it before the bad request."""

    chat: Chat
    before: dict[str, Any]

    async def refuses(self, answer: httpx.Response, status: int, code: str, field: str | None = None) -> None:
        """The answer is that problem, and nothing has changed."""
        check_problem(answer, status, code, field)
        assert await self.chat.snapshot(USERS, CHANNELS) == self.before


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """One chat for the whole file: bad requests leave it as it is, in whatever order they come."""
    data_dir: Path = tmp_path_factory.mktemp("bad-input")
    async with in_process(data_dir, fanout_max_members=2) as chat:
        await chat.open_channel("alice", "bob")
        await chat.open_channel("alice", "bob", "carol", channel="big")
        for channel in CHANNELS:
            await chat.send("alice", "m1", "m2", channel=channel, mentions=["bob"])
            await chat.send("bob", "m3", channel=channel)
            await chat.mark_unread("bob", "m1", channel=channel)
            await chat.read("bob", channel, messages=["m2"])
        await chat.prefer("bob", "big", muted=True)
        yield World(chat, await chat.snapshot(USERS, CHANNELS))


# ---------------------------------------------------------------- one good request of every kind


class Good(NamedTuple):
    """A request that would be done, and what kind of value each of its fields takes."""

    method: str
    path: str
    body: dict[str, Any]
    kinds: dict[str, str]


MESSAGE = {"channel_id": "general", "sender_id": "alice"}
MESSAGE_KINDS = {
    "channel_id": "id",
    "sender_id": "user",
    "id": "id?",
    "at": "time?",
    "text": "text?",
    "preview": "text?",
    "thread_id": "id?",
    "also_to_channel": "bool",
    "mentions": "users",
    "silent": "bool",
    "backfill": "bool",
    "outside": "bool",
}
TARGET_KINDS = {
    "up_to": "id?",
    "up_to_seq": "number?",
    "up_to_time": "time?",
    "messages": "ids?",
    "epoch": "number?",
}

REQUESTS = {
    "put channel": Good(
        "PUT",
        "/v1/channels/general",
        {},
        {"type": "choice", "name": "text?", "avatar": "text?", "archived": "bool", "members": "users"},
    ),
    "change members": Good(
        "POST",
        "/v1/channels/general/members",
        {"add": ["dave"]},
        {"add": "users", "remove": "users", "history": "history"},
    ),
    "send": Good("POST", "/v1/messages", MESSAGE, MESSAGE_KINDS),
    "edit": Good(
        "PATCH", "/v1/channels/general/messages/m1", {"text": "other"}, {"text": "text?", "mentions": "users"}
    ),
    "read": Good("POST", f"{BOB}/read", {}, TARGET_KINDS),
    "mark unread": Good("POST", f"{BOB}/unread", {"from": "m1"}, {"from": "id", "epoch": "number?"}),
    "mark all read": Good(
        "POST", "/v1/users/bob/read", {"all": True}, {"all": "bool", "up_to_time": "time?", "items": "objects?"}
    ),
    "undo": Good("POST", "/v1/users/bob/read/undo", {"undo": "x"}, {"undo": "text"}),
    "preferences": Good("PUT", f"{BOB}/preferences", {"count": "none"}, {"muted": "bool or time", "count": "choice"}),
    "batch totals": Good("POST", "/v1/unread/batch", {"users": ["bob"]}, {"users": "users"}),
    "many messages": Good("POST", "/v1/messages", {"messages": [MESSAGE]}, {"messages": "objects"}),
    "many reads": Good(
        "POST", "/v1/reads", {"reads": [{"user_id": "bob", "channel_id": "general"}]}, {"reads": "objects"}
    ),
}

BAD_IDS = ["", "x" * 129, "é" * 65, "nul\0", "line\nbreak", "tab\t", "escape\x1b", "delete\x7f", "\x85"]
NO_IDS: list[Any] = [1.5, True, ["x"], {"id": "x"}]
BAD_TIMES = ["yesterday", "", "2026-01-01", "2026-01-01T00:00:00", "2026-13-01T00:00:00Z", "1767225600000", -1, HUGE]
NO_LISTS: list[Any] = ["bob", 5, True, {"0": "bob"}]

WRONG: dict[str, list[Any]] = {
    "id": [*BAD_IDS, *NO_IDS, None],
    "user": [*BAD_IDS, *NO_IDS, None, "@alice", "@channel", "@here"],
    "users": [*NO_LISTS, None, *([bad] for bad in [*BAD_IDS, *NO_IDS, None, "@alice"])],
    "ids": [*NO_LISTS, None, *([bad] for bad in [*BAD_IDS, *NO_IDS, None])],
    "number": ["5", 1.5, -1, HUGE, 10**30, True, [1], {"n": 1}],
    "time": [*BAD_TIMES, 1.5, True, [1], {"t": 1}],
    "text": [5, 1.5, True, ["x"], {"x": 1}],
    "bool": [0, 1, "true", "", [True], {"a": 1}, None],
    "bool or time": [*BAD_TIMES, 1.5, [True], {"a": 1}, None],
    "choice": ["", "ALL", "everything", 1, True, ["group"], {"a": 1}, None],
    "history": ["", "all", "5", -1, 1.5, 1_000_001, True, [1], {"n": 1}, None],
    "objects": [*NO_LISTS, None, ["x"], [5], [None], [["x"]], [{"surprise": 1}]],
}


def wrong_values() -> Iterator[Any]:
    """Every field of every request with every wrong value of its kind."""
    for name, good in REQUESTS.items():
        for field, kind in good.kinds.items():
            values = WRONG[kind.removesuffix("?")]
            for value in values:
                if value is None and kind.endswith("?"):
                    continue
                yield pytest.param(name, field, value, id=f"{name}: {field}={value!a:.40}")


@pytest.mark.parametrize(("name", "field", "value"), list(wrong_values()))
async def test_a_wrong_value_is_refused_by_name(world: World, name: str, field: str, value: Any) -> None:
    good = REQUESTS[name]

    answer = await world.chat.call(good.method, good.path, good.body | {field: value})

    code = "invalid_id" if _is_bad_id(good.kinds[field], value) else "invalid"
    await world.refuses(answer, 422, code, field)


def _is_bad_id(kind: str, value: Any) -> bool:
    if kind.startswith(("users", "ids")):
        return isinstance(value, list) and isinstance(value[0], str)
    return kind.startswith(("id", "user")) and isinstance(value, str)


@pytest.mark.parametrize("name", REQUESTS)
async def test_an_unknown_field_is_refused_by_name(world: World, name: str) -> None:
    good = REQUESTS[name]

    answer = await world.chat.call(good.method, good.path, good.body | {"surprise": 1})

    await world.refuses(answer, 422, "invalid", "surprise")


@pytest.mark.parametrize("body", [[], [{}], "text", 5, True, 0.5], ids=repr)
@pytest.mark.parametrize("name", REQUESTS)
async def test_a_body_must_be_an_object(world: World, name: str, body: Any) -> None:
    good = REQUESTS[name]

    await world.refuses(await world.chat.call(good.method, good.path, body), 422, "invalid")


REQUIRED = [
    ("send", "channel_id"),
    ("send", "sender_id"),
    ("mark unread", "from"),
    ("undo", "undo"),
    ("batch totals", "users"),
    ("many reads", "reads"),
]


@pytest.mark.parametrize(("name", "field"), REQUIRED)
async def test_a_missing_field_is_named(world: World, name: str, field: str) -> None:
    good = REQUESTS[name]
    body = {key: value for key, value in good.body.items() if key != field}

    problem = await world.chat.call(good.method, good.path, body)

    await world.refuses(problem, 422, "invalid")
    assert field in problem.text


IN_LISTS = [
    ("/v1/messages", {"messages": [MESSAGE, MESSAGE | {"text": 5}]}, "messages[1].text"),
    ("/v1/messages", {"messages": [MESSAGE | {"surprise": 5}]}, "messages[0]"),
    ("/v1/reads", {"reads": [{"user_id": "bob", "channel_id": "general", "up_to_seq": -1}]}, "reads[0].up_to_seq"),
    ("/v1/reads", {"reads": [{"user_id": "bob", "channel_id": "general"}, {"user_id": "bob"}]}, "reads[1]"),
    ("/v1/users/bob/read", {"items": [{"channel_id": "general", "up_to_seq": "5"}]}, "items[0].up_to_seq"),
]


@pytest.mark.parametrize(("path", "body", "field"), IN_LISTS)
async def test_a_fault_in_a_list_is_named_with_its_place_and_the_whole_is_refused(
    world: World, path: str, body: Any, field: str
) -> None:
    await world.refuses(await world.chat.call("POST", path, body), 422, "invalid", field)


# ---------------------------------------------------------------- values that contradict each other

TARGETS: dict[str, Any] = {"up_to": "m3", "up_to_seq": 3, "up_to_time": 1, "messages": ["m1"]}
PAIRS = [(a, b) for a in TARGETS for b in TARGETS if a < b]


@pytest.mark.parametrize(("one", "other"), PAIRS)
async def test_two_targets_at_once_are_refused(world: World, one: str, other: str) -> None:
    both = {one: TARGETS[one], other: TARGETS[other]}

    await world.refuses(await world.chat.call("POST", f"{BOB}/read", both), 422, "invalid")
    items = {"items": [{"channel_id": "general"} | both]}
    await world.refuses(await world.chat.call("POST", "/v1/users/bob/read", items), 422, "invalid")
    [result] = await world.chat.read_many({"user_id": "bob", "channel_id": "general"} | both)
    assert (result["status"], result["changed"], result["code"]) == ("rejected", False, "invalid")


CONTRADICTIONS = [
    ("/v1/users/bob/read", {}),
    ("/v1/users/bob/read", {"all": False}),
    ("/v1/users/bob/read", {"all": True, "items": [{"channel_id": "general"}]}),
    ("/v1/users/bob/read", {"items": [{"channel_id": "general"}], "up_to_time": 1}),
    ("/v1/channels/general/members", {"add": ["dave"], "remove": ["dave"]}),
]


@pytest.mark.parametrize(("path", "body"), CONTRADICTIONS)
async def test_contradictions_are_refused(world: World, path: str, body: Any) -> None:
    await world.refuses(await world.chat.call("POST", path, body), 422, "invalid")


async def test_a_new_channel_needs_a_type(world: World) -> None:
    answer = await world.chat.call("PUT", "/v1/channels/new", {"members": ["bob"]})

    await world.refuses(answer, 422, "invalid", "type")


NOT_THERE = [
    ("POST", f"{of('bob', 'nowhere')}/read", {}, "channel_not_found"),
    ("POST", f"{of('dave')}/read", {}, "not_a_member"),
    ("POST", f"{BOB}/read", {"up_to": "m9"}, "message_not_found"),
    ("POST", f"{BOB}/read", {"messages": ["m1", "m9"]}, "message_not_found"),
    ("POST", f"{BOB}/unread", {"from": "m9"}, "message_not_found"),
    ("GET", f"{of('bob', 'nowhere')}/unread", None, "channel_not_found"),
    ("GET", f"{of('dave')}/unread", None, "not_a_member"),
    ("GET", f"{of('dave')}/explain", None, "not_a_member"),
    ("POST", f"{of('dave')}/recount", None, "not_a_member"),
    ("PUT", f"{of('dave')}/preferences", {"muted": True}, "not_a_member"),
    ("POST", "/v1/channels/nowhere/members", {"add": ["bob"]}, "channel_not_found"),
    ("GET", "/v1/channels/nowhere/members", None, "channel_not_found"),
    ("DELETE", "/v1/channels/nowhere", None, "channel_not_found"),
    ("PATCH", "/v1/channels/general/messages/m9", {"text": "x"}, "message_not_found"),
    ("DELETE", "/v1/channels/nowhere/messages/m1", None, "channel_not_found"),
    ("POST", "/v1/messages", MESSAGE | {"channel_id": "nowhere"}, "channel_not_found"),
    ("POST", "/v1/messages", MESSAGE | {"sender_id": "dave"}, "not_a_member"),
    ("POST", "/v1/messages", MESSAGE | {"thread_id": "m9"}, "thread_not_found"),
    ("POST", "/v1/users/bob/read", {"items": [{"channel_id": "nowhere"}]}, "channel_not_found"),
    ("POST", "/v1/users/bob/read/undo", {"undo": "made-up"}, "undo_not_found"),
    ("GET", "/v1/surprise", None, "not_found"),
    ("GET", "/v1/channels/general/surprise", None, "not_found"),
    ("GET", "/", None, "not_found"),
]


@pytest.mark.parametrize(("method", "path", "body", "code"), NOT_THERE)
async def test_what_is_not_there_is_said_to_be_not_there(
    world: World, method: str, path: str, body: Any, code: str
) -> None:
    await world.refuses(await world.chat.call(method, path, body), 404, code)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/channels/general"), ("PUT", "/v1/messages"), ("GET", f"{BOB}/read"), ("DELETE", "/healthz")],
)
async def test_another_method_is_refused_with_those_allowed(world: World, method: str, path: str) -> None:
    answer = await world.chat.call(method, path)

    await world.refuses(answer, 405, "method_not_allowed")
    assert answer.headers["allow"]


# ---------------------------------------------------------------- ids in paths

BAD_SEGMENTS = ["", "%00", "a%0Ab", "%7F", "%1B", "x" * 129, "%C3%A9" * 65, "%C2%85"]


@pytest.mark.parametrize("segment", BAD_SEGMENTS)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/channels/{}/members"),
        ("GET", "/v1/channels/{}"),
        ("DELETE", "/v1/channels/general/messages/{}"),
        ("GET", "/v1/users/{}/unread"),
        ("GET", "/v1/users/bob/channels/{}/unread"),
        ("POST", "/v1/users/{}/channels/general/read"),
    ],
)
async def test_a_bad_id_in_a_path_is_refused(world: World, method: str, path: str, segment: str) -> None:
    body: Any = {} if method in {"PUT", "POST"} else None

    await world.refuses(await world.chat.call(method, path.format(segment), body), 400, "invalid_id")


@pytest.mark.parametrize("user", ["@here", "%40channel", "@bob"])
async def test_a_user_in_a_path_does_not_begin_with_an_at(world: World, user: str) -> None:
    await world.refuses(await world.chat.call("GET", f"/v1/users/{user}/unread"), 400, "invalid_id")


@pytest.mark.parametrize("segment", ["%FF", "%C3", "%ED%A0%80", "%C0%AF", "%F5%80%80%80"])
async def test_a_path_that_is_not_utf8_is_refused(world: World, segment: str) -> None:
    await world.refuses(await world.chat.call("GET", f"/v1/channels/{segment}"), 400, "bad_path")
    await world.refuses(await world.chat.call("POST", f"/v1/users/{segment}/read", {"all": True}), 400, "bad_path")


# ---------------------------------------------------------------- query parameters

LISTS = ["/v1/users/bob/unread", "/v1/users/bob/unread/messages", "/v1/channels/general/members"]
BAD_QUERIES = [
    *((path, {"limit": limit}, "limit") for path in LISTS for limit in ("0", "-1", "1001", "abc", "", "1.5", "1e2")),
    *((path, {"surprise": "1"}, "surprise") for path in [*LISTS, f"{BOB}/unread", f"{BOB}/explain"]),
    *((path, {"cursor": cursor}, "cursor") for path in LISTS for cursor in ("x", "é", "AAAA", "e30=", "💥" * 300)),
    *(("/v1/users/bob/unread", {"since": since}, "since") for since in ("x", "-1", "AAAA", "99999999999999999999")),
    *(("/v1/users/bob/unread", {"only_unread": value}, "only_unread") for value in ("maybe", "", "2")),
    *(("/v1/users/bob/unread/messages", {"order": value}, "order") for value in ("random", "", "NEWEST")),
    ("/v1/users/bob/unread", {"channels": "a,b\n"}, "channels"),
    ("/v1/users/bob/unread/messages", {"channel": "\0"}, "channel"),
]


@pytest.mark.parametrize(("path", "params", "field"), BAD_QUERIES)
async def test_a_bad_query_parameter_is_refused_by_name(
    world: World, path: str, params: dict[str, str], field: str
) -> None:
    answer = await world.chat.call("GET", path, params=params)

    codes = {"cursor": "invalid_cursor", "since": "invalid_cursor", "channel": "invalid_id", "channels": "invalid_id"}
    code = codes.get(field, "invalid")
    await world.refuses(answer, 422 if code == "invalid" else 400, code, field)


async def test_a_cursor_of_another_list_or_user_is_refused(world: World) -> None:
    chat = world.chat
    of_members = (await chat.members("big", limit=1))["cursor"]
    of_sync = await chat.sync("bob", limit=1, only_unread="false")
    of_messages = (await chat.ask("GET", "/v1/users/carol/unread/messages", params={"limit": 1}))["cursor"]
    assert of_members
    assert of_sync["cursor"]
    assert of_messages

    for path, foreign in [
        ("/v1/users/bob/unread", of_members),
        ("/v1/users/bob/unread", of_messages),
        ("/v1/users/alice/unread", of_sync["cursor"]),
        ("/v1/users/bob/unread/messages", of_sync["cursor"]),
        ("/v1/users/bob/unread/messages", of_messages),
        ("/v1/channels/big/members", of_sync["cursor"]),
        ("/v1/channels/general/members", of_members),
    ]:
        await world.refuses(await chat.call("GET", path, params={"cursor": foreign}), 400, "invalid_cursor")
    since = await chat.call("GET", "/v1/users/alice/unread", params={"since": of_sync["sync"]})
    await world.refuses(since, 400, "invalid_cursor", "since")


# ---------------------------------------------------------------- bodies that are no JSON

BROKEN = {
    "nothing but a brace": b"{",
    "truncated": b'{"up_to_seq": 3',
    "truncated text": b'{"up_to": "m',
    "two values": b"{} {}",
    "trailing comma": b'{"up_to_seq": 3,}',
    "single quotes": b"{'up_to_seq': 3}",
    "a comment": b'{"up_to_seq": 3} // all',
    "NaN": b'{"up_to_seq": NaN}',
    "Infinity": b'{"up_to_seq": Infinity}',
    "invalid UTF-8 in a value": b'{"up_to": "\xff"}',
    "invalid UTF-8 in a name": b'{"\xff": 1}',
    "overlong UTF-8": b'{"up_to": "\xc0\xaf"}',
    "UTF-8 of a surrogate": b'{"up_to": "\xed\xa0\x80"}',
    "UTF-16": '{"up_to_seq": 3}'.encode("utf-16"),
    "high surrogate alone": rb'{"up_to": "\ud800"}',
    "high surrogate alone, more follows": rb'{"up_to": "\ud800 and more of it"}',
    "low surrogate alone": rb'{"up_to": "\udc00"}',
    "a control character": b'{"up_to": "a\nb"}',
    "a leading zero": b'{"up_to_seq": 03}',
    "form data": b"up_to_seq=3",
}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
async def test_a_body_that_is_no_json_is_refused(world: World, body: bytes) -> None:
    answer = await world.chat.call("POST", f"{BOB}/read", content=body, headers=JSON)

    await world.refuses(answer, 400, "broken_json")


@pytest.mark.parametrize("body", [rb'"\ud800"', rb'"\udc00 x"', rb'"\udc00\ud800"'])
@pytest.mark.parametrize("field", ["text", "id", "mentions"])
async def test_a_lone_surrogate_never_gets_in(world: World, field: str, body: bytes) -> None:
    value = b"[" + body + b"]" if field == "mentions" else body
    content = b'{"channel_id": "general", "sender_id": "alice", "%s": %s}' % (field.encode(), value)

    answer = await world.chat.call("POST", "/v1/messages", content=content, headers=JSON)

    await world.refuses(answer, 400, "broken_json")


@pytest.mark.parametrize("number", [b"1e400", b"-1e400", b"1" * 5000, b"1.5e0"])
@pytest.mark.parametrize("field", ["up_to", "up_to_seq", "up_to_time", "epoch"])
async def test_a_number_beyond_all_bounds_is_refused(world: World, field: str, number: bytes) -> None:
    content = b'{"%s": %s}' % (field.encode(), number)

    answer = await world.chat.call("POST", f"{BOB}/read", content=content, headers=JSON)

    await world.refuses(answer, 422, "invalid", field)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * DEEP,
        b"[" * DEEP + b"]" * DEEP,
        b'{"up_to":' * DEEP + b"1" + b"}" * DEEP,
        b'{"up_to": ' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"surprise": ' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"messages": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    ],
    ids=["open", "closed", "objects", "in a field", "in an unknown field", "in a list"],
)
@pytest.mark.parametrize("path", [f"{BOB}/read", "/v1/messages", "/v1/reads", "/v1/users/bob/read"])
async def test_deep_nesting_is_refused(world: World, path: str, body: bytes) -> None:
    answer = await world.chat.call("POST", path, content=body, headers=JSON)

    assert answer.status_code in {400, 422}, answer.text[:300]
    await world.refuses(answer, answer.status_code, answer.json()["code"])


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "json", ""])
async def test_another_content_type_is_refused(world: World, kind: str) -> None:
    answer = await world.chat.call("POST", f"{BOB}/read", content=b"{}", headers={"content-type": kind})

    await world.refuses(answer, 400, "wrong_content_type")


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "Application/JSON", 'application/json;charset="UTF-8"']
)
async def test_json_by_any_of_its_names_is_taken(world: World, kind: str) -> None:
    answer = await world.chat.call("POST", f"{BOB}/read", content=b'{"up_to_seq": 0}', headers={"content-type": kind})

    assert answer.status_code == 200, answer.text


# ---------------------------------------------------------------- sizes


async def _too_large(world: World, method: str, path: str, body: Any) -> None:
    await world.refuses(await world.chat.call(method, path, body), 413, "too_large")


async def test_a_body_over_the_limit_is_refused_with_and_without_its_length(world: World) -> None:
    body = json.dumps(MESSAGE | {"text": "x" * 2**20}).encode()

    async def in_chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 65_536):
            yield body[start : start + 65_536]

    whole = await world.chat.call("POST", "/v1/messages", content=body, headers=JSON)
    chunked = await world.chat.call("POST", "/v1/messages", content=in_chunks(), headers=JSON)

    await world.refuses(whole, 413, "too_large")
    await world.refuses(chunked, 413, "too_large")


@pytest.mark.parametrize("text", ["x" * 8193, "é" * 4097])
async def test_a_text_over_8_kib_is_refused(world: World, text: str) -> None:
    await _too_large(world, "POST", "/v1/messages", MESSAGE | {"text": text})
    await _too_large(world, "PATCH", "/v1/channels/general/messages/m1", {"text": text})


async def test_more_than_a_thousand_items_are_refused(world: World) -> None:
    read = {"user_id": "bob", "channel_id": "general"}
    users = [f"u{number}" for number in range(1001)]

    await _too_large(world, "POST", "/v1/messages", {"messages": [MESSAGE] * 1001})
    await _too_large(world, "POST", "/v1/reads", {"reads": [read] * 1001})
    await _too_large(world, "POST", "/v1/users/bob/read", {"items": [{"channel_id": "general"}] * 1001})
    await _too_large(world, "POST", "/v1/unread/batch", {"users": users})
    await _too_large(world, "POST", "/v1/channels/general/members", {"add": users})
    await _too_large(world, "POST", "/v1/channels/general/members", {"remove": users})
    await _too_large(world, "PUT", "/v1/channels/general", {"members": users})
    await _too_large(world, "POST", f"{BOB}/read", {"messages": users})
    await _too_large(world, "POST", "/v1/messages", MESSAGE | {"mentions": users})
    await _too_large(world, "PATCH", "/v1/channels/general/messages/m1", {"mentions": users})
