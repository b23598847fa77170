"""Paths, answers, and who may do what: the gateway alone, over a service that only writes down what it is asked."""

import json
from typing import Any

import pytest

from readstate import telemetry
from readstate.api import LastRead, MessageView, SendResult, Unread, UserTotals
from readstate.domain.errors import BadPath, MessageNotFound, NotAMember, StorageUnavailable
from readstate.gateway.http.routing import segments_of
from tests.unit.alone import KEY, Chat, user


@pytest.fixture
def chat() -> Chat:
    return Chat()


# ---------------------------------------------------------------- paths


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("general", "general"),
        ("a%2Fb", "a/b"),
        ("%2e%2E", ".."),
        ("..", ".."),
        ("%F0%9F%90%B1", "🐱"),
        ("🐱", "🐱"),
        ("a%20b+c", "a b+c"),
        ("100%25", "100%"),
        ("{x}:%22'", "{x}:\"'"),
        ("%2F", "/"),
    ],
)
async def test_an_id_in_a_path_may_be_any_printable_text(chat: Chat, written: str, meant: str) -> None:
    answer = await chat.ask("POST", f"/v1/users/{written}/channels/{written}/read")

    assert answer.status == 200
    assert chat.service.calls[0][:3] == ("mark_read", meant, meant)


@pytest.mark.parametrize("bad", ["", "%00", "c%1Froot", "x" * 129])
@pytest.mark.parametrize(
    "path",
    ["/v1/users/{}/unread", "/v1/channels/{}", "/v1/channels/c/messages/{}/seen", "/v1/users/u/channels/{}/read"],
)
async def test_a_bad_id_in_a_path_is_refused_before_the_service_is_asked(chat: Chat, path: str, bad: str) -> None:
    method = "POST" if path.endswith("/read") else "GET"
    answer = await chat.ask(method, path.format(bad))

    assert (answer.status, answer.json["code"]) == (400, "invalid_id")
    assert chat.service.calls == []


@pytest.mark.parametrize("broken", ["%FF", "%", "%2", "%zz", "%ED%A0%80", "%C0%AF", "a%F0%9F", "%%41"])
async def test_a_path_that_is_not_percent_encoded_utf8_is_refused(chat: Chat, broken: str) -> None:
    answer = await chat.ask("GET", f"/v1/channels/{broken}")

    assert (answer.status, answer.json["code"]) == (400, "bad_path")
    assert chat.service.calls == []


def test_raw_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(BadPath):
        segments_of({"raw_path": b"/v1/channels/\xff"})


@pytest.mark.parametrize("path", ["/", "", "/v1", "/v1/", "/v2/channels/x", "/healthz/", "//healthz"])
async def test_an_unknown_path_is_not_found(chat: Chat, path: str) -> None:
    answer = await chat.ask("GET", path)

    assert (answer.status, answer.json["code"]) == (404, "not_found")


async def test_an_unknown_path_is_not_found_by_anybody(chat: Chat) -> None:
    assert (await chat.ask("GET", "/v1/nothing", token=None)).status == 404


async def test_another_method_is_told_which_ones_there_are(chat: Chat) -> None:
    answer = await chat.ask("POST", "/v1/channels/general")

    assert (answer.status, answer.json["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "DELETE, GET, HEAD, PUT"


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("/chat", "/chat/v1/channels/a%2Fb"),
        ("/chat/", "/chat/v1/channels/a%2Fb"),
        ("/a/b", "/a/b/v1/channels/a%2Fb"),
        ("/caf\u00e9", "/caf%C3%A9/v1/channels/a%2Fb"),
        ("/chat", "/v1/channels/a%2Fb"),
        ("", "/v1/channels/a%2Fb"),
        ("/", "/v1/channels/a%2Fb"),
    ],
)
async def test_under_a_mount_point_paths_mean_the_same(chat: Chat, root: str, path: str) -> None:
    await chat.ask("GET", path, root_path=root)

    assert chat.service.calls == [("get", "a/b")]


async def test_a_server_may_leave_the_raw_path_out(chat: Chat) -> None:
    await chat.ask("GET", "/mount/v1/channels/50%25", root_path="/mount", raw_path=None)

    assert chat.service.calls == [("get", "50%25")]


# ---------------------------------------------------------------- answers


async def test_an_answer_is_json_with_its_length(chat: Chat) -> None:
    answer = await chat.ask("POST", "/v1/users/bob/channels/general/read", b'{"up_to_seq": 5}')

    assert answer.headers == {
        "content-type": "application/json",
        "content-length": str(len(answer.body)),
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
    }
    assert answer.json["last_read"] == {"id": "m5", "seq": 5, "at": 1_700_000_000_000, "epoch": 0}


async def test_head_is_get_without_the_body(chat: Chat) -> None:
    get, head = [await chat.ask(method, "/healthz", token=None) for method in ("GET", "HEAD")]

    assert get.json == {"status": "ok"}
    assert (head.status, head.headers, head.body) == (200, get.headers, b"")


async def test_an_error_of_the_service_is_a_problem(chat: Chat) -> None:
    chat.service.answers["mark_read"] = NotAMember("bob is not a member of general", field="user_id")

    answer = await chat.ask("POST", "/v1/users/bob/channels/general/read")

    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "code": "not_a_member",
        "detail": "bob is not a member of general",
        "field": "user_id",
        "retry": False,
    }


async def test_what_may_be_tried_again_says_when(chat: Chat) -> None:
    chat.service.answers["mark_read"] = StorageUnavailable()

    answer = await chat.ask("POST", "/v1/users/bob/channels/general/read")

    assert (answer.status, answer.json["retry"]) == (503, True)
    assert int(answer.headers["retry-after"]) >= 1


async def test_a_fault_of_ours_tells_nothing_of_itself(chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    chat.service.answers["mark_read"] = RuntimeError("the secret of the house")

    answer = await chat.ask("POST", "/v1/users/bob/channels/general/read")

    assert (answer.status, answer.json["code"]) == (500, "internal")
    assert b"secret" not in answer.body
    assert b"Traceback" not in answer.body
    logged = capsys.readouterr().out
    assert "http.request" in logged
    assert KEY not in logged


async def test_a_dependency_that_is_down_is_named(chat: Chat) -> None:
    assert (await chat.ask("GET", "/readyz", token=None)).json["dependencies"] == {"database": "ok"}
    chat.service.answers["ready"] = {"log": "ok", "database": "the disk is full"}

    answer = await chat.ask("GET", "/readyz", token=None)

    assert (answer.status, answer.json["code"]) == (503, "unavailable")
    assert "database: the disk is full" in answer.json["detail"]
    assert answer.json["dependencies"] == {"log": "ok", "database": "the disk is full"}


async def test_metrics_name_routes_and_never_ids(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "EXPOSITION", telemetry.Exposition(telemetry.REGISTRY))
    await chat.ask("POST", "/v1/users/somebody-special/channels/general/read")
    await chat.ask("BREW", "/v1/somewhere-special")

    answer = await chat.ask("GET", "/metrics", token=None)

    assert answer.headers["content-type"].startswith("text/plain")
    assert b'route="/v1/users/{user}/channels/{channel}/read",status="200"' in answer.body
    assert b"special" not in answer.body
    assert b"BREW" not in answer.body


async def test_a_request_that_is_refused_reaches_nobody(chat: Chat) -> None:
    path = "/v1/users/bob/channels/general/read"
    for body, query, status in [(b"{", "", 400), (b'{"up_to": true}', "", 422), (b"{}", "surprise=1", 422)]:
        assert (await chat.ask("POST", path, body, query=query)).status == status
    assert (await Chat(max_body=1024).ask("POST", path, [b" " * 1000] * 2)).status == 413
    assert chat.service.calls == []


async def test_a_query_reaches_the_service(chat: Chat) -> None:
    await chat.ask("GET", "/v1/users/bob/unread", query="limit=5&channels=a,b&only_unread=false")

    assert chat.service.calls == [("sync", "bob", ("limit", 5), ("channels", ["a", "b"]), ("only_unread", False))]


async def test_a_client_that_goes_away_gets_no_answer(chat: Chat) -> None:
    chat.events = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])
    headers = [(b"authorization", f"Bearer {KEY}".encode())]

    await chat.run({"type": "http", "method": "POST", "path": "/v1/messages", "query_string": b"", "headers": headers})

    assert (chat.sent, chat.service.calls) == ([], [])


# ---------------------------------------------------------------- who may do what


async def test_me_is_the_user_of_the_token(chat: Chat) -> None:
    chat.service.members_of["general"] = {"bob"}

    for name in ("me", "bob"):
        assert (await chat.ask("POST", f"/v1/users/{name}/channels/general/read", token=user("bob"))).status == 200
    assert {call[1] for call in chat.service.calls} == {"bob"}


async def test_a_service_key_has_no_me(chat: Chat) -> None:
    answer = await chat.ask("GET", "/v1/users/me/unread")

    assert (answer.status, answer.json["field"]) == (422, "user")


async def test_a_user_is_told_the_same_of_a_foreign_channel_and_of_none(chat: Chat) -> None:
    chat.service.members_of["general"] = {"alice"}
    chat.service.answers["undo"] = NotAMember("of which channel is nobody's business")
    bob = user("bob")

    foreign = await chat.ask("GET", "/v1/channels/general", token=bob)
    unknown = await chat.ask("GET", "/v1/channels/nowhere", token=bob)
    by_the_service = await chat.ask("POST", "/v1/users/me/read/undo", b'{"undo": "x"}', token=bob)

    assert foreign == unknown == by_the_service
    assert (foreign.status, foreign.json["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    ("method", "path", "body", "query"),
    [
        ("GET", "/v1/users/me/unread", b"", "channels=general,7"),
        ("GET", "/v1/users/me/unread/messages", b"", "channel=7"),
        ("GET", "/v1/users/me/threads", b"", "channel=7"),
    ],
)
async def test_every_channel_that_a_user_names_must_be_its_own(
    chat: Chat, method: str, path: str, body: bytes, query: str
) -> None:
    chat.service.members_of["general"] = {"bob"}
    assert (await chat.ask(method, path, body, token=user("bob"), query=query)).status == 403

    chat.service.members_of["7"] = {"bob"}
    assert (await chat.ask(method, path, body, token=user("bob"), query=query)).status == 200


async def test_of_a_batch_by_a_user_only_the_allowed_is_sent(chat: Chat) -> None:
    chat.service.members_of["general"] = {"bob", "7"}
    chat.service.answers["send"] = [SendResult("m1", 1, None, "accepted")]
    wanted: list[dict[str, Any]] = [
        {"id": "x1", "channel_id": "general", "sender_id": "alice"},
        {"id": "m1", "channel_id": "general", "sender_id": "bob"},
        {"id": "x2", "channel_id": "general", "sender_id": "bob", "outside": True},
        {"id": 3, "channel_id": "general", "sender_id": "bob", "backfill": True},
        {"channel_id": "nowhere", "sender_id": "bob"},
    ]

    answer = await chat.ask("POST", "/v1/messages", json.dumps({"messages": wanted}).encode(), token=user("bob"))

    assert answer.status == 202
    told = [(result["id"], result["status"], result.get("code")) for result in answer.json["results"]]
    assert told == [
        ("x1", "rejected", "forbidden"),
        ("m1", "accepted", None),
        ("x2", "rejected", "forbidden"),
        ("3", "rejected", "forbidden"),
        ("", "rejected", "forbidden"),
    ]
    [(_, sent, _)] = chat.service.calls
    assert [message.id for message in sent] == ["m1"]


async def test_one_message_that_is_rejected_is_an_error_of_its_own(chat: Chat) -> None:
    rejected = SendResult("m1", None, None, "rejected", "channel_archived", "general is archived")
    chat.service.answers["send"] = [rejected]
    message = b'{"channel_id": "general", "sender_id": "bob"}'

    alone = await chat.ask("POST", "/v1/messages", message)
    listed = await chat.ask("POST", "/v1/messages", b'{"messages": [%s]}' % message)

    assert (alone.status, alone.json["code"], alone.json["detail"]) == (409, "channel_archived", "general is archived")
    assert (listed.status, listed.json["results"][0]["status"]) == (202, "rejected")


def message_of(sender: str) -> MessageView:
    return MessageView("m1", "general", 1, sender, 1, None, "hi", "hi", None, None, (), False, False)


async def test_a_user_changes_only_its_own_messages(chat: Chat) -> None:
    chat.service.members_of["general"] = {"alice", "bob"}
    chat.service.answers["get"] = chat.service.answers["edit"] = message_of("bob")
    path = "/v1/channels/general/messages/m1"

    for name, status in [("bob", 200), ("alice", 403)]:
        assert (await chat.ask("PATCH", path, b'{"text": "ho"}', token=user(name))).status == status
        assert (await chat.ask("DELETE", path, token=user(name))).status == status
    assert [call[0] for call in chat.service.calls] == ["get", "edit", "get", "delete", "get", "get"]


async def test_a_user_cannot_delete_what_another_may_yet_send(chat: Chat) -> None:
    chat.service.members_of["general"] = {"bob"}
    chat.service.answers["get"] = MessageNotFound()

    assert (await chat.ask("DELETE", "/v1/channels/general/messages/later", token=user("bob"))).status == 404
    answer = await chat.ask("DELETE", "/v1/channels/general/messages/later")
    assert answer.json == {"id": "later", "channel_id": "general", "deleted": True}


async def test_totals_are_by_user(chat: Chat) -> None:
    chat.service.answers["totals"] = {"7": UserTotals(3, 1, 2, 4, 5, True)}

    answer = await chat.ask("POST", "/v1/unread/batch", b'{"users": [7]}')

    assert chat.service.calls == [("totals", ["7"])]
    assert answer.json == {
        "users": {"7": {"unread": 3, "mentions": 1, "channels": 2, "threads": 4, "badge": 5, "exact": True}}
    }


async def test_a_principal_over_its_rate_waits_and_others_do_not() -> None:
    chat = Chat(rate_limit=1)
    path = "/v1/users/me/unread"
    answers = [await chat.ask("GET", path, token=user("bob")) for _ in range(20)]

    limited = answers[-1]
    assert answers[0].status == 200
    assert (limited.status, limited.json["code"], limited.headers["retry-after"]) == (429, "rate_limited", "1")
    assert (await chat.ask("GET", path, token=user("alice"))).status == 200
    assert all([(await chat.ask("GET", "/v1/users/bob/unread")).status == 200 for _ in range(20)])


# ---------------------------------------------------------------- beside HTTP


async def test_lifespan_is_answered(chat: Chat) -> None:
    chat.events = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    await chat.run({"type": "lifespan"})

    assert [event["type"] for event in chat.sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_a_websocket_of_another_path_is_refused(chat: Chat) -> None:
    chat.events = iter([{"type": "websocket.connect"}])

    await chat.run({"type": "websocket", "path": "/v1/live"})

    assert chat.sent == [{"type": "websocket.close", "code": 1000}]


async def test_unread_of_a_channel_leaves_out_a_reason_that_is_not_there(chat: Chat) -> None:
    last_read = LastRead("m1", 1, 1, 0)
    chat.service.answers["of_channel"] = Unread("general", 0, "", False, True, 0, None, last_read, None, muted=False)

    assert "reason" not in (await chat.ask("GET", "/v1/users/bob/channels/general/unread")).json
