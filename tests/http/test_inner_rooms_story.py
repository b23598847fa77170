"""A thread has a room inside the service. No id from outside reaches it, and only members of its channel see it."""

from typing import Any, NamedTuple

import pytest

from tests.conftest import GENERAL, Chat, check_problem, message_path, of, segment, token_for

ROOM = f"{GENERAL}\x1froot"
USERS = ("alice", "bob", "carol")


@pytest.fixture(autouse=True)
async def _a_thread(chat: Chat) -> None:
    """Alice, bob and carol follow a thread. Carol keeps her receipts private in its channel, and then leaves it."""
    await chat.open_channel("alice", "bob", "carol")
    await chat.send("alice", "root")
    await chat.reply("carol", "root", "r1")
    await chat.reply("bob", "root", "r2")
    await chat.prefer("carol", receipts="private")


class Request(NamedTuple):
    """A request in which an id stands in a path, a query or a body."""

    method: str
    path: str
    body: Any = None
    params: dict[str, Any] | None = None
    field: str = "channel"

    @property
    def status(self) -> int:
        """A field of a body is understood and wrong; a URL is not understood."""
        return 422 if "channel_id" in self.field else 400


def in_paths(room: str) -> list[Request]:
    """Every route that takes the id of a channel."""
    channel, user = f"/v1/channels/{segment(room)}", of("bob", room)
    return [
        Request("PUT", channel, {"type": "group"}),
        Request("GET", channel),
        Request("DELETE", channel),
        Request("POST", f"{channel}/members", {"add": ["dave"]}),
        Request("GET", f"{channel}/members"),
        Request("PATCH", message_path(room, "r1"), {"text": "x"}),
        Request("DELETE", message_path(room, "r1")),
        Request("GET", f"{message_path(room, 'r1')}/seen"),
        Request("GET", f"{channel}/receipts"),
        Request("POST", f"{user}/read", {}),
        Request("POST", f"{user}/unread", {"from": "r1"}),
        Request("GET", f"{user}/unread"),
        Request("GET", f"{user}/explain"),
        Request("POST", f"{user}/recount"),
        Request("GET", f"{user}/preferences"),
        Request("PUT", f"{user}/preferences", {"pinned": True}),
        Request("PUT", f"{user}/threads/root/follow"),
        Request("DELETE", f"{user}/threads/root/follow"),
        Request("POST", f"{user}/threads/root/read", {}),
    ]


FOR_SERVICES = {
    ("PUT", f"/v1/channels/{segment(ROOM)}"),
    ("DELETE", f"/v1/channels/{segment(ROOM)}"),
    ("POST", f"/v1/channels/{segment(ROOM)}/members"),
    ("POST", f"{of('bob', ROOM)}/recount"),
}

IN_QUERIES_AND_BODIES = [
    Request("GET", "/v1/users/bob/unread", params={"channels": ROOM}, field="channels"),
    Request("GET", "/v1/users/bob/unread", params={"channels": [GENERAL, ROOM]}, field="channels"),
    Request("GET", "/v1/users/bob/unread/messages", params={"channel": ROOM}),
    Request("GET", "/v1/users/bob/threads", params={"channel": ROOM}),
    Request("POST", "/v1/messages", {"channel_id": ROOM, "sender_id": "bob"}, field="channel_id"),
    Request("POST", "/v1/users/bob/read", {"items": [{"channel_id": ROOM}]}, field="items[0].channel_id"),
    Request(
        "POST",
        "/v1/users/bob/read",
        {"items": [{"channel_id": GENERAL}, {"channel_id": ROOM, "up_to": "r1"}]},
        field="items[1].channel_id",
    ),
]


async def picture(chat: Chat) -> Any:
    """Everything that can be seen of the channel and its thread."""
    threads = [await chat.threads(user) for user in USERS]
    inboxes = [await chat.conversations(user) for user in USERS]
    return await chat.snapshot(USERS, [GENERAL]), threads, inboxes


async def refused(chat: Chat, one: Request, status: int, code: str, field: str | None = None) -> None:
    answer = await chat.call(one.method, one.path, one.body, params=one.params)
    check_problem(answer, status, code, field)


async def test_no_request_reaches_a_room_by_its_name(chat: Chat) -> None:
    before = await picture(chat)
    for one in [*in_paths(ROOM), *IN_QUERIES_AND_BODIES]:
        await refused(chat, one, one.status, "invalid_id", one.field)
        await refused(chat.with_token(None), one, 401, "unauthenticated")
        if (one.method, one.path) in FOR_SERVICES:
            await refused(chat.as_user("bob"), one, 403, "forbidden")
        else:
            await refused(chat.as_user("bob"), one, one.status, "invalid_id", one.field)

    assert await picture(chat) == before
    export = await chat.call("GET", "/v1/export")
    assert export.status_code == 200
    assert "\\u001f" not in export.text


async def test_of_many_reads_one_that_names_a_room_is_rejected(chat: Chat) -> None:
    before = await picture(chat)
    results = await chat.read_many(
        {"user_id": "alice", "channel_id": ROOM},
        {"user_id": "alice", "channel_id": ROOM, "up_to": "r1"},
        {"user_id": "@here", "channel_id": GENERAL},
        {"user_id": "alice", "channel_id": GENERAL, "messages": ["root", "ro\x1fot"]},
    )

    assert [result["status"] for result in results] == ["rejected"] * 4
    assert [result["code"] for result in results] == ["invalid_id"] * 4
    assert await picture(chat) == before


async def test_no_other_id_of_a_path_names_a_room(chat: Chat) -> None:
    odd = segment("root\x1fr1")
    for path in (message_path(GENERAL, "root\x1fr1"), f"{of('bob')}/threads/{odd}/follow"):
        check_problem(await chat.as_user("bob").call("DELETE", path), 400, "invalid_id")
    check_problem(await chat.call("GET", f"/v1/users/{segment('bob')}%1F/threads"), 400, "invalid_id", "user")


async def test_a_device_that_is_reported_has_no_room_open(chat: Chat) -> None:
    body = {"device": "phone", "online": True, "focus": ROOM}
    check_problem(await chat.call("PUT", "/v1/users/bob/presence", body), 422, "invalid_id", "focus")


# ---------------------------------------------------------------- who has left the channel


async def everything_of(chat: Chat, user: str, since: str) -> dict[str, Any]:
    """All answers that a user can get about threads."""
    return {
        "threads": await chat.threads(user),
        "unread threads": await chat.threads(user, filter="unread"),
        "sync": (await chat.sync(user))["threads"],
        "delta": (await chat.sync(user, since=since))["threads"],
        "batch": (await chat.ask("POST", "/v1/unread/batch", {"users": [user]}))["users"][user]["threads"],
    }


NOTHING = {
    "threads": {"totals": {"unread": 0, "threads": 0}, "threads": [], "cursor": None},
    "unread threads": {"totals": {"unread": 0, "threads": 0}, "threads": [], "cursor": None},
    "sync": {"unread": 0, "threads": 0},
    "delta": {"unread": 0, "threads": 0},
    "batch": 0,
}


async def test_whoever_has_left_a_channel_sees_none_of_its_threads(chat: Chat) -> None:
    since = (await chat.sync("carol"))["sync"]
    assert await chat.unread_replies("carol") == {"root": 1}
    await chat.leave("carol")
    await chat.reply("bob", "root", "r3", mentions=["carol"])
    await chat.reply("alice", "root", "r4")

    assert await everything_of(chat, "carol", since) == NOTHING
    carol = chat.with_token(token_for("carol"))
    for one in in_paths(GENERAL):
        path = one.path.replace("/users/bob/", "/users/carol/")
        check_problem(await carol.call(one.method, path, one.body), 403, "forbidden")
    check_problem(await carol.call("GET", "/v1/users/me/threads", params={"channel": GENERAL}), 403, "forbidden")
    check_problem(await chat.call("GET", "/v1/users/carol/threads", params={"channel": GENERAL}), 404, "not_a_member")


async def test_followed_threads_are_back_with_the_channel_and_their_replies_since_are_unread(chat: Chat) -> None:
    await chat.read_thread("carol", "root")
    await chat.leave("carol")
    await chat.reply("bob", "root", "r3")

    await chat.join("carol")

    assert await chat.unread_replies("carol") == {"root": 1}
    assert await chat.unread_replies("carol", filter="unread") == {"root": 1}
    await chat.evict()
    assert await chat.unread_replies("carol") == {"root": 1}


async def test_whoever_is_no_member_cannot_follow(chat: Chat) -> None:
    await chat.leave("carol")
    for action in ("PUT", "DELETE"):
        answer = await chat.call(action, f"{of('carol')}/threads/root/follow")
        check_problem(answer, 404, "not_a_member")
    check_problem(await chat.call("PUT", f"{of('dave')}/threads/root/follow"), 404, "not_a_member")
