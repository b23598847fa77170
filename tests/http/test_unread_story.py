"""Unread counts, views, syncs and preferences, told as stories in both ways of counting."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import Chat, Clock, of, three_channels

# ---------------------------------------------------------------- what is unread


async def test_labels_stop_at_the_cap(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.post_all({"channel_id": "general", "sender_id": "alice", "id": f"m{i}"} for i in range(1, 101))

    assert (await chat.unread("bob"))["label"] == "99+"
    assert (await chat.read("bob", up_to_seq=1))["label"] == "99"


async def test_the_unread_view_in_every_order_and_page_by_page(chat: Chat, clock: Clock) -> None:
    await chat.open_channel("alice", "bob", channel="a")
    await chat.open_channel("alice", "bob", channel="b")
    for name, channel in [("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b")]:
        clock.advance(seconds=1)
        await chat.send("alice", name, channel=channel)

    assert await chat.waiting("bob") == ["b2", "a2", "b1", "a1"]
    assert await chat.waiting("bob", order="oldest") == ["a1", "b1", "a2", "b2"]
    assert await chat.waiting("bob", order="channel") == ["a1", "a2", "b1", "b2"]
    assert await chat.waiting("bob", channel="a") == ["a2", "a1"]
    for order in ("newest", "oldest", "channel"):
        params = {"order": order, "limit": 3}
        first = await chat.ask("GET", "/v1/users/bob/unread/messages", params=params)
        second = await chat.ask("GET", "/v1/users/bob/unread/messages", params=params | {"cursor": first["cursor"]})
        ids = [m["id"] for m in first["messages"] + second["messages"]]
        assert ids == await chat.waiting("bob", order=order)
        assert second["cursor"] is None


async def test_the_unread_view_shows_whole_messages(chat: Chat, clock: Clock) -> None:
    await chat.open_channel("alice", "bob")
    await chat.post("alice", id="m1", text="Hello", mentions=["bob"])

    [message] = (await chat.ask("GET", "/v1/users/bob/unread/messages"))["messages"]

    assert message == {
        "id": "m1",
        "channel_id": "general",
        "seq": 1,
        "sender_id": "alice",
        "at": clock.now,
        "sent_at": None,
        "text": "Hello",
        "preview": "Hello",
        "thread_id": None,
        "thread_seq": None,
        "mentions": ["bob"],
        "silent": False,
        "deleted": False,
    }


async def test_bulk_sync_lists_the_unread_first_then_by_latest_activity(chat: Chat) -> None:
    await three_channels(chat)
    await chat.open_channel("bob", channel="empty")
    await chat.read("bob", "c")

    everything = await chat.sync("bob", only_unread="false")
    unread = await chat.sync("bob")

    assert [row["channel_id"] for row in everything["channels"]] == ["b", "a", "c", "empty"]
    assert [row["channel_id"] for row in unread["channels"]] == ["b", "a"]
    assert everything["totals"] == unread["totals"] == {"unread": 3, "mentions": 0, "channels": 2}
    assert everything["channels"][0] == await chat.unread("bob", "b")
    some = await chat.sync("bob", channels="a,c", only_unread="false")
    assert [row["channel_id"] for row in some["channels"]] == ["a", "c"]


async def test_bulk_sync_comes_in_pages_with_one_sync_moment(chat: Chat, clock: Clock) -> None:
    for number in range(7):
        clock.advance(seconds=1)
        await chat.open_channel("alice", "bob", channel=f"c{number}")
        await chat.send("alice", f"m{number}", channel=f"c{number}")
    rows, moments, cursor = [], set(), None

    while True:
        page = await chat.sync("bob", limit=3, **({"cursor": cursor} if cursor else {}))
        assert len(page["channels"]) <= 3
        assert page["totals"] == {"unread": 7, "mentions": 0, "channels": 7}
        rows += [row["channel_id"] for row in page["channels"]]
        moments.add(page["sync"])
        cursor = page["cursor"]
        if cursor is None:
            break

    assert rows == [f"c{number}" for number in reversed(range(7))]
    assert len(moments) == 1


async def test_a_total_is_the_sum_of_its_parts_also_while_everything_moves(chat: Chat) -> None:
    await three_channels(chat)
    for number in range(30):
        await chat.evict()  # what must be loaded takes long enough for others to get in between
        answers = await asyncio.gather(
            chat.sync("bob"),
            chat.send("alice", f"a-{number}", channel="a"),
            chat.read("bob", "b"),
            chat.sync("bob"),
            chat.send("alice", f"b-{number}", channel="b"),
            chat.sync("bob"),
        )

        for rows in (answers[0], answers[3], answers[5]):
            assert rows["totals"]["unread"] == sum(row["unread"] for row in rows["channels"])
            assert rows["totals"]["channels"] == sum(row["has_unread"] for row in rows["channels"])
            assert all(row["has_unread"] for row in rows["channels"])


async def test_delta_sync_tells_what_changed_and_what_is_gone(chat: Chat) -> None:
    await three_channels(chat)
    await chat.open_channel("alice", "bob", channel="d")
    since = (await chat.sync("bob"))["sync"]
    assert (await chat.sync("bob", since=since))["channels"] == []

    await chat.read("bob", "a")
    await chat.send("alice", "b3", channel="b")
    await chat.leave("bob", channel="c")
    await chat.delete_channel("d")
    delta = await chat.sync("bob", since=since)

    assert {row["channel_id"]: row["unread"] for row in delta["channels"]} == {"a": 0, "b": 3}
    assert sorted(delta["removed"]) == ["c", "d"]
    assert (await chat.sync("bob", since=delta["sync"]))["channels"] == []
    await chat.join("bob", channel="c")
    rejoined = await chat.sync("bob", since=delta["sync"])
    assert ([row["channel_id"] for row in rejoined["channels"]], rejoined["removed"]) == (["c"], [])


# ---------------------------------------------------------------- preferences


async def test_a_mute_leaves_the_totals_until_it_ends(chat: Chat, clock: Clock) -> None:
    await three_channels(chat)
    end = clock.now + 60_000

    told = await chat.prefer("bob", "c", muted=end)

    assert {"muted": True, "muted_until": end, "count": "all"}.items() <= told.items()
    assert await chat.totals("bob") == {"unread": 3, "mentions": 0, "channels": 2}
    row = await chat.unread("bob", "c")
    assert (row["muted"], row["unread"]) == (True, 3)
    clock.advance(seconds=61)
    assert (await chat.totals("bob"))["unread"] == 6
    assert (await chat.unread("bob", "c"))["muted"] is False
    assert (await chat.ask("GET", f"{of('bob', 'c')}/preferences"))["muted"] is False


async def test_a_mute_without_end_stays_until_it_is_taken_off(chat: Chat, clock: Clock) -> None:
    await three_channels(chat)
    told = await chat.prefer("bob", "a", muted=True)
    assert {"muted": True, "muted_until": None, "count": "all"}.items() <= told.items()
    clock.advance(seconds=10**9)
    assert (await chat.totals("bob"))["unread"] == 5

    await chat.prefer("bob", "a", muted=False)

    assert (await chat.totals("bob"))["unread"] == 6


async def test_counting_only_mentions_or_nothing_keeps_the_dot(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", "m2")
    await chat.send("alice", "m3", mentions=["bob"])

    await chat.prefer("bob", count="mentions")
    answer = await chat.unread("bob")
    assert (answer["unread"], answer["label"], answer["mentions"], answer["has_unread"]) == (1, "1", 1, True)
    assert await chat.totals("bob") == {"unread": 1, "mentions": 1, "channels": 1}

    await chat.prefer("bob", count="none")
    answer = await chat.unread("bob")
    assert (answer["unread"], answer["label"], answer["mentions"], answer["has_unread"]) == (0, "", 1, True)
    await chat.prefer("bob", count="all")
    assert await chat.count("bob") == 3


# ---------------------------------------------------------------- looking after it


async def test_explain_tells_why_the_number_is_what_it_is(chat: Chat, mode: str) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", "m2", "m3", "m4")
    await chat.send("alice", "quiet", silent=True)
    await chat.send("bob", "mine")
    await chat.send("alice", "m7")
    await chat.mark_unread("bob", "m2")
    await chat.read("bob", messages=["m3"])
    await chat.delete("m4")

    why = await chat.explain("bob")

    assert (why["unread"], why["hot"], why["durable"], why["agrees"]) == (2, 2, 2, True)
    assert (why["mode"], why["exact"]) == (mode, True)
    assert (why["pointer"]["seq"], why["latest_seq"], why["joined_seq"], why["after_pointer"]) == (1, 7, 0, 6)
    assert why["minus"] == {"own": 1, "deleted": 1, "silent": 1, "read_apart": 1}


async def test_a_recount_of_what_is_right_changes_nothing(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", "m2")

    assert await chat.recount("bob") == {"before": 2, "after": 2}

    assert await chat.waiting("bob", order="oldest") == ["m1", "m2"]


async def test_totals_of_many_users_at_once(chat: Chat) -> None:
    await three_channels(chat)
    await chat.send("alice", "hey", channel="a", mentions=["bob"])

    answer = await chat.ask("POST", "/v1/unread/batch", {"users": ["alice", "bob", "stranger"]})

    nothing = {"unread": 0, "mentions": 0, "channels": 0, "threads": 0, "badge": 0, "exact": True}
    assert answer["users"]["alice"] == answer["users"]["stranger"] == nothing
    assert {"unread": 7, "mentions": 1, "channels": 3, "exact": True}.items() <= answer["users"]["bob"].items()


async def test_what_changed_names_a_channel_with_preferences_once(chat: Chat) -> None:
    await chat.open_channel("alice", "bob", "carol")
    await chat.prefer("bob", "general", pinned=True)
    cursor = (await chat.sync("bob"))["sync"]
    await chat.send("alice", "m1")

    assert [row["channel_id"] for row in (await chat.sync("bob", since=cursor))["channels"]] == ["general"]


async def test_health_readiness_and_metrics_need_no_token(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1")
    await chat.read("bob")
    anyone = chat.with_token(None)

    assert await anyone.ask("GET", "/healthz") == {"status": "ok"}
    assert (await anyone.call("GET", "/readyz")).status_code == 200
    text = (await anyone.call("GET", "/metrics")).text

    names = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    assert names >= {
        "readstate_receipts_total",
        "readstate_messages_total",
        "readstate_receipts_dedup_ratio",
        "readstate_persist_batch_size_count",
        "readstate_persist_seconds_count",
        "readstate_http_requests_total",
        "readstate_http_seconds_count",
    }
