"""Threads: who follows, what is unread in them, the panel, and what happens when the channel is left."""

import httpx
import pytest

from tests.conftest import Chat, Clock, check_problem, of


@pytest.fixture(autouse=True)
async def _a_channel_with_a_root(chat: Chat) -> None:
    """Alice has written the root of a thread; bob, carol and dave are there and have read it."""
    await chat.open_channel("alice", "bob", "carol", "dave")
    await chat.send("alice", "root")
    for reader in ("bob", "carol", "dave"):
        await chat.read(reader)


async def test_the_author_the_repliers_and_the_mentioned_follow_and_nobody_else(chat: Chat) -> None:
    await chat.reply("bob", "root", "r1")
    await chat.reply("bob", "root", "r2", mentions=["carol"])

    assert await chat.unread_replies("alice") == {"root": 2}
    assert await chat.unread_replies("bob") == {"root": 0}
    assert await chat.unread_replies("carol") == {"root": 1}
    assert await chat.unread_replies("dave") == {}


async def test_the_author_follows_at_the_first_reply_also_if_somebody_followed_by_hand_before(chat: Chat) -> None:
    await chat.follow("dave", "root")
    await chat.reply("bob", "root", "r1")
    assert await chat.unread_replies("alice") == {"root": 1}


async def test_a_mention_of_everyone_or_of_those_here_makes_nobody_follow(chat: Chat) -> None:
    await chat.comes_online("carol")
    await chat.post_all(
        [
            {"channel_id": "general", "sender_id": "bob", "id": "to carol", "mentions": ["carol"]},
            {"channel_id": "general", "sender_id": "bob", "id": "r1", "thread_id": "root", "mentions": ["@here"]},
            {"channel_id": "general", "sender_id": "bob", "id": "r2", "thread_id": "root", "mentions": ["@channel"]},
        ]
    )
    assert await chat.unread_replies("carol") == {}
    assert await chat.unread_replies("dave") == {}


async def test_replies_touch_no_count_of_their_channel_unless_they_go_there_too(chat: Chat) -> None:
    await chat.reply("bob", "root", "r1")
    assert await chat.count("dave") == 0
    await chat.reply("bob", "root", "r2", also_to_channel=True)
    assert await chat.count("dave") == 1
    assert await chat.unread_replies("alice") == {"root": 2}
    assert await chat.count("alice") == 1

    await chat.read("alice")
    assert await chat.count("alice") == 0
    assert await chat.unread_replies("alice") == {"root": 2}


async def test_following_by_hand_begins_with_everything_read_and_twice_is_as_good_as_once(chat: Chat) -> None:
    await chat.reply("bob", "root", "r1", "r2")
    await chat.follow("dave", "root")
    await chat.follow("dave", "root")
    assert await chat.unread_replies("dave") == {"root": 0}
    await chat.reply("bob", "root", "r3")
    await chat.follow("dave", "root")
    assert await chat.unread_replies("dave") == {"root": 1}


async def test_whoever_unfollows_is_left_alone_until_mentioned(chat: Chat) -> None:
    await chat.reply("bob", "root", "r1")
    await chat.unfollow("alice", "root")
    await chat.unfollow("alice", "root")
    await chat.reply("bob", "root", "r2", "r3")
    assert await chat.unread_replies("alice") == {}

    await chat.reply("bob", "root", "r4", mentions=["alice"])
    assert await chat.unread_replies("alice") == {"root": 1}


async def test_reading_a_thread_to_a_reply_to_its_end_and_never_back(chat: Chat) -> None:
    await chat.reply("bob", "root", "r1", "r2", "r3")
    part = await chat.read_thread("alice", "root", up_to="r2")
    assert (part["unread"], part["label"], part["changed"], part["last_read"]["id"]) == (1, "1", True, "r2")
    late = await chat.read_thread("alice", "root", up_to="r1")
    assert (late["unread"], late["changed"]) == (1, False)
    whole = await chat.read_thread("alice", "root")
    assert (whole["unread"], whole["last_read"]["seq"]) == (0, 3)
    assert await chat.unread_replies("alice", filter="unread") == {}


async def test_a_reply_moves_its_senders_own_pointer(chat: Chat) -> None:
    await chat.reply("bob", "root", "r1", "r2")
    await chat.reply("alice", "root", "mine")
    assert await chat.unread_replies("alice") == {"root": 0}
    assert await chat.unread_replies("bob") == {"root": 1}


async def test_deleted_and_silent_replies_are_not_unread_and_deleted_ones_not_latest(chat: Chat) -> None:
    await chat.reply("bob", "root", "r1", "r2")
    await chat.reply("bob", "root", "quiet", silent=True)
    await chat.delete("r1")
    assert await chat.unread_replies("alice") == {"root": 1}
    await chat.delete("quiet")
    await chat.edit("r2", text="better said")
    [row] = (await chat.threads("alice"))["threads"]
    assert (row["latest"]["id"], row["latest"]["preview"], row["latest"]["seq"]) == ("r2", "better said", 2)
    await chat.delete("r2")
    [row] = (await chat.threads("alice"))["threads"]
    assert (row["latest"], row["unread"]) == (None, 0)


async def test_the_panel_is_ordered_by_activity_paged_filtered_and_summed(chat: Chat, clock: Clock) -> None:
    await chat.open_channel("alice", "bob", channel="elsewhere")
    for n, channel in enumerate(["general", "elsewhere", "general", "elsewhere"]):
        clock.advance(seconds=1)
        await chat.send("alice", f"t{n}", channel=channel)
        await chat.reply("bob", f"t{n}", *(f"t{n}r{i}" for i in range(n + 1)), channel=channel)
    clock.advance(seconds=1)
    await chat.reply("bob", "t1", "newest", channel="elsewhere")
    await chat.read_thread("alice", "t0")

    assert list(await chat.unread_replies("alice")) == ["t1", "t3", "t2", "t0"]
    assert list(await chat.unread_replies("alice", filter="unread")) == ["t1", "t3", "t2"]
    assert list(await chat.unread_replies("alice", channel="general")) == ["t2", "t0"]
    answer = await chat.threads("alice", limit=3)
    assert answer["totals"] == {"unread": 10, "threads": 3}
    rest = await chat.threads("alice", limit=3, cursor=answer["cursor"])
    assert [row["thread_id"] for row in answer["threads"] + rest["threads"]] == ["t1", "t3", "t2", "t0"]
    assert rest["cursor"] is None
    assert (await chat.sync("alice"))["threads"] == answer["totals"]
    totals = await chat.ask("POST", "/v1/unread/batch", {"users": ["alice"]})
    assert totals["users"]["alice"]["threads"] == 10


async def test_threads_of_a_channel_one_has_left_are_gone_and_come_back_with_rejoining(chat: Chat) -> None:
    await chat.reply("bob", "root", "r1")
    await chat.leave("alice")
    assert await chat.unread_replies("alice") == {}
    assert (await chat.sync("alice"))["threads"] == {"unread": 0, "threads": 0}
    await chat.reply("bob", "root", "r2")
    await chat.join("alice")
    assert await chat.unread_replies("alice") == {"root": 2}


async def test_thread_counts_ignore_mutes(chat: Chat) -> None:
    await chat.prefer("alice", muted=True)
    await chat.reply("bob", "root", "r1")
    assert (await chat.threads("alice"))["totals"] == {"unread": 1, "threads": 1}


async def test_threads_are_the_same_after_a_loss_of_memory(chat: Chat) -> None:
    await chat.reply("bob", "root", "r1", "r2", "r3")
    await chat.read_thread("alice", "root", up_to="r1")
    await chat.delete("r2")
    before = [await chat.threads(user) for user in ("alice", "bob", "carol")]
    await chat.evict()
    assert [await chat.threads(user) for user in ("alice", "bob", "carol")] == before


async def test_a_deleted_channel_takes_its_threads_along_and_begins_anew(chat: Chat) -> None:
    await chat.reply("bob", "root", "r1")
    await chat.delete_channel()
    assert await chat.unread_replies("alice") == {}

    await chat.open_channel("alice", "bob")
    await chat.send("alice", "root")
    await chat.reply("bob", "root", "r1")
    assert await chat.unread_replies("alice") == {"root": 1}


@pytest.mark.parametrize("action", ["follow", "unfollow", "read"])
async def test_threads_that_are_not_there(chat: Chat, action: str) -> None:
    method, last = {"follow": ("PUT", "follow"), "unfollow": ("DELETE", "follow"), "read": ("POST", "read")}[action]
    await chat.reply("bob", "root", "r1")
    await chat.open_channel("alice", "dave", channel="private")
    await chat.send("alice", "secret", channel="private")

    async def ask(user: str, thread: str, channel: str = "general") -> httpx.Response:
        body: dict[str, str] | None = {} if action == "read" else None
        return await chat.call(method, f"{of(user, channel)}/threads/{thread}/{last}", body)

    check_problem(await ask("alice", "never sent"), 404, "thread_not_found")
    check_problem(await ask("alice", "secret"), 404, "thread_not_found")
    check_problem(await ask("bob", "secret", "private"), 404, "not_a_member")
    check_problem(await ask("bob", "root", "nowhere"), 404, "channel_not_found")
    check_problem(await ask("alice", "r1"), 422, "reply_to_reply")
    assert await chat.unread_replies("bob") == {"root": 0}


async def test_a_reply_to_a_reply_or_to_nothing_is_refused_and_nobody_follows_by_it(chat: Chat) -> None:
    await chat.reply("bob", "root", "r1")
    draft = {"channel_id": "general", "sender_id": "carol"}
    nested, lost = await chat.post_all([draft | {"thread_id": "r1"}, draft | {"thread_id": "never sent"}])
    assert (nested["status"], nested["code"]) == ("rejected", "reply_to_reply")
    assert (lost["status"], lost["code"]) == ("rejected", "thread_not_found")
    assert await chat.unread_replies("carol") == {}


async def test_reading_what_one_does_not_follow_or_up_to_what_is_no_reply_of_it(chat: Chat) -> None:
    await chat.reply("bob", "root", "r1")
    path = f"{of('carol')}/threads/root/read"
    check_problem(await chat.call("POST", path, {}), 404, "thread_not_found")
    path = f"{of('alice')}/threads/root/read"
    check_problem(await chat.call("POST", path, {"up_to": "root"}), 404, "message_not_found")
    check_problem(await chat.call("POST", path, {"up_to": "never sent"}), 404, "message_not_found")
    assert await chat.unread_replies("alice") == {"root": 1}


@pytest.mark.parametrize(
    ("params", "code", "field"),
    [
        ({"filter": "archived"}, "invalid", "filter"),
        ({"cursor": "nonsense"}, "invalid_cursor", "cursor"),
        ({"limit": "0"}, "invalid", "limit"),
    ],
)
async def test_a_panel_that_cannot_be(chat: Chat, params: dict[str, str], code: str, field: str) -> None:
    answer = await chat.call("GET", "/v1/users/alice/threads", params=params)
    check_problem(answer, answer.status_code, code, field)
    assert answer.status_code in {400, 422}


async def test_a_user_follows_and_reads_only_as_oneself(chat: Chat) -> None:
    await chat.reply("bob", "root", "r1")
    alice = chat.as_user("alice")
    assert await alice.unread_replies("me") == {"root": 1}
    path = f"{of('bob')}/threads/root"
    check_problem(await alice.call("PUT", f"{path}/follow"), 403, "forbidden")
    check_problem(await alice.call("POST", f"{path}/read", {}), 403, "forbidden")
    check_problem(await alice.call("GET", "/v1/users/bob/threads"), 403, "forbidden")
