"""What the routes of inbox, badge, threads, receipts, presence and moving ask of the service."""

from typing import Any

import pytest

from readstate.api import PutPreferences, PutPresence, PutUserPreferences, ThreadRead
from readstate.domain.errors import StorageUnavailable
from tests.unit.alone import KEY, Chat, user


@pytest.fixture
def chat() -> Chat:
    return Chat()


# ---------------------------------------------------------------- what users see


@pytest.mark.parametrize(
    ("method", "path", "query", "asked"),
    [
        (
            "GET",
            "/v1/users/bob/inbox",
            "limit=5&cursor=x&order=unread_first&filter=archived",
            ("page", "bob", ("limit", 5), ("cursor", "x"), ("order", "unread_first"), ("filter", "archived")),
        ),
        ("GET", "/v1/users/bob/badge", "", ("get", "bob")),
        ("POST", "/v1/users/bob/badge/tap", "", ("tap", "bob", None)),
        (
            "GET",
            "/v1/users/bob/threads",
            "filter=unread&channel=general&limit=1",
            ("panel", "bob", ("filter", "unread"), ("channel", "general"), ("limit", 1)),
        ),
        ("GET", "/v1/channels/general/messages/m1/seen", "", ("seen", "general", "m1")),
        ("GET", "/v1/channels/general/receipts", "", ("of_channel", "general")),
        ("GET", "/v1/users/bob/presence", "", ("get", "bob")),
        ("GET", "/v1/users/bob/preferences", "", ("get_user", "bob")),
        ("DELETE", "/v1/users/bob", "", ("erase_user", "bob")),
    ],
)
async def test_what_is_asked_reaches_the_service(
    chat: Chat, method: str, path: str, query: str, asked: tuple[Any, ...]
) -> None:
    assert (await chat.ask(method, path, query=query)).status == 200
    assert chat.service.calls == [asked]


@pytest.mark.parametrize(("method", "following"), [("PUT", True), ("DELETE", False)])
async def test_a_thread_is_followed_and_let_go(chat: Chat, method: str, following: bool) -> None:
    chat.service.members_of["general"] = {"bob"}

    answer = await chat.ask(method, "/v1/users/me/channels/general/threads/a%2Fb/follow", token=user("bob"))

    assert answer.json == {"thread_id": "a/b", "channel_id": "general", "following": following}
    assert chat.service.calls == [("follow", "bob", "general", "a/b", ("on", following))]


async def test_a_thread_is_read_up_to_a_reply(chat: Chat) -> None:
    await chat.ask("POST", "/v1/users/bob/channels/general/threads/m1/read", b'{"up_to": "r1"}')

    assert chat.service.calls == [("read", "bob", "general", "m1", ThreadRead(up_to="r1"))]


async def test_preferences_and_presence_are_decoded(chat: Chat) -> None:
    await chat.ask("PUT", "/v1/users/bob/channels/general/preferences", b'{"pinned": true, "receipts": "private"}')
    await chat.ask("PUT", "/v1/users/bob/preferences", b'{"receipts": "public"}')
    await chat.ask("PUT", "/v1/users/bob/presence", b'{"device": 7, "online": true}')

    assert chat.service.calls == [
        ("put", "bob", "general", PutPreferences(pinned=True, receipts="private")),
        ("put_user", "bob", PutUserPreferences(receipts="public")),
        ("put", "bob", PutPresence(device=7, online=True)),
    ]


@pytest.mark.parametrize(
    ("method", "path", "token"),
    [
        ("PUT", "/v1/users/me/presence", "bob"),
        ("GET", "/v1/users/alice/presence", "bob"),
        ("GET", "/v1/users/alice/inbox", "bob"),
        ("POST", "/v1/users/alice/badge/tap", "bob"),
        ("GET", "/v1/channels/general/receipts", "bob"),
        ("GET", "/v1/channels/general/messages/m1/seen", "bob"),
        ("PUT", "/v1/users/me/channels/general/threads/m1/follow", "bob"),
        ("DELETE", "/v1/users/me", "bob"),
        ("GET", "/v1/export", "bob"),
        ("POST", "/v1/import", "bob"),
    ],
)
async def test_a_user_sees_and_changes_only_its_own(chat: Chat, method: str, path: str, token: str) -> None:
    chat.service.members_of["general"] = {"alice"}

    answer = await chat.ask(method, path, b'{"device": "phone", "online": true}', token=user(token))

    assert (answer.status, answer.json["code"]) == (403, "forbidden")
    assert chat.service.calls == []


# ---------------------------------------------------------------- moving in and out

LINES = {"content-type": "application/x-ndjson"}


async def test_an_export_is_sent_while_it_is_made(chat: Chat) -> None:
    chat.service.answers["export"] = [b"one\n", b"two\n"]

    answer = await chat.ask("GET", "/v1/export")

    assert (answer.status, answer.body) == (200, b"one\ntwo\n")
    assert answer.headers == {
        "content-type": "application/x-ndjson",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
    }
    assert [event["body"] for event in chat.sent[1:]] == [b"one\n", b"two\n", b""]


async def test_an_export_of_nothing_is_empty(chat: Chat) -> None:
    chat.service.answers["export"] = []

    assert (await chat.ask("GET", "/v1/export")).body == b""


async def test_the_head_of_an_export_has_no_body(chat: Chat) -> None:
    chat.service.answers["export"] = [b"one\n", b"two\n"]

    answer = await chat.ask("HEAD", "/v1/export")

    assert (answer.status, answer.headers["content-type"], answer.body) == (200, "application/x-ndjson", b"")


async def test_an_export_that_cannot_begin_is_an_error(chat: Chat) -> None:
    chat.service.answers["export"] = [StorageUnavailable()]

    assert (await chat.ask("GET", "/v1/export")).status == 503


async def test_an_export_that_fails_midway_breaks_off(chat: Chat) -> None:
    chat.service.answers["export"] = [b"one\n", StorageUnavailable()]

    with pytest.raises(StorageUnavailable):
        await chat.ask("GET", "/v1/export")

    assert [event.get("more_body") for event in chat.sent] == [None, True]


async def test_an_export_ends_when_its_reader_goes_away(chat: Chat) -> None:
    chat.service.answers["export"] = [b"%d\n" % number for number in range(1000)]
    chat.events = iter([{"type": "http.request"}, {"type": "http.disconnect"}])
    headers = [(b"authorization", f"Bearer {KEY}".encode())]

    await chat.run({"type": "http", "method": "GET", "path": "/v1/export", "query_string": b"", "headers": headers})

    assert len(chat.service.calls) < 1000


async def test_lines_are_taken_in_as_they_are(chat: Chat) -> None:
    await chat.ask("POST", "/v1/import", [b"one\n", b"{"], query="first_line=7&stop=true", headers=LINES)
    await chat.ask("POST", "/v1/import", b"", headers=LINES)

    assert chat.service.calls == [
        ("import_lines", b"one\n{", ("first_line", 7), ("stop", True)),
        ("import_lines", b""),
    ]


@pytest.mark.parametrize(
    ("query", "headers", "status", "code"),
    [
        ("first_line=0", LINES, 422, "invalid"),
        ("first_line=-1", LINES, 422, "invalid"),
        ("stop=perhaps", LINES, 422, "invalid"),
        ("", {"content-type": "application/json"}, 400, "wrong_content_type"),
        ("", {"content-type": "application/x-ndjson; charset=latin-1"}, 400, "wrong_content_type"),
    ],
)
async def test_an_import_that_is_not_understood_is_refused(
    chat: Chat, query: str, headers: dict[str, str], status: int, code: str
) -> None:
    answer = await chat.ask("POST", "/v1/import", b"one\n", query=query, headers=headers)

    assert (answer.status, answer.json["code"]) == (status, code)
    assert chat.service.calls == []
