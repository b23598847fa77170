"""Channels, messages and reads over HTTP, told as stories of a chat product in both ways of counting."""

from datetime import UTC, datetime

from tests.conftest import Chat, Clock, check_problem, message_path, of, three_channels

# ---------------------------------------------------------------- channels and members


async def test_a_channel_is_made_and_told(chat: Chat) -> None:
    made = await chat.open_channel("alice", "bob", type="group", name="Lunch", avatar="🍕")

    assert made == await chat.channel()
    assert (made["type"], made["name"], made["avatar"]) == ("group", "Lunch", "🍕")
    assert made["member_count"] == 2
    assert made["archived"] is False
    assert made["latest"] is None


async def test_a_channel_keeps_what_an_update_leaves_out(chat: Chat) -> None:
    await chat.open_channel("alice", "bob", type="channel", name="Lunch", avatar="🍕")

    await chat.change_channel(members=["carol"], name="Dinner")

    told = await chat.channel()
    assert (told["type"], told["name"], told["avatar"], told["member_count"]) == ("channel", "Dinner", "🍕", 3)


async def test_members_come_and_go_and_are_listed_in_pages(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    assert await chat.join("carol", "dave", "bob") == {"added": 2, "removed": 0, "member_count": 4}
    assert await chat.leave("bob", "nobody") == {"added": 0, "removed": 1, "member_count": 3}

    first = await chat.members(limit=2)
    second = await chat.members(limit=2, cursor=first["cursor"])

    assert [m["user_id"] for m in first["members"] + second["members"]] == ["alice", "carol", "dave"]
    assert second["cursor"] is None


async def test_joining_takes_as_much_history_as_asked(chat: Chat) -> None:
    await chat.open_channel("alice")
    await chat.send("alice", "one", "two", "three", "four")

    await chat.join("reads-all", history="read")
    await chat.join("reads-two", history=2)
    await chat.join("reads-none", history="unread")
    await chat.join("asks-for-more-than-there-is", history=50)

    assert await chat.count("reads-all") == 0
    assert await chat.count("reads-two") == 2
    assert await chat.count("reads-none") == 4
    assert await chat.count("asks-for-more-than-there-is") == 4


async def test_rejoining_never_makes_unread_what_was_read(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "one", "two")
    await chat.read("bob", up_to="one")
    await chat.leave("bob")
    check_problem(await chat.call("GET", f"{of('bob')}/unread"), 404, "not_a_member")
    await chat.send("alice", "three")

    await chat.join("bob", history="unread")

    assert await chat.waiting("bob", order="oldest") == ["two", "three"]


async def test_an_archived_channel_takes_no_messages_and_leaves_the_totals(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "one")
    await chat.change_channel(archived=True)

    refused = await chat.call("POST", "/v1/messages", {"channel_id": "general", "sender_id": "alice", "text": "x"})

    check_problem(refused, 409, "channel_archived")
    assert await chat.totals("bob") == {"unread": 0, "mentions": 0, "channels": 0}
    assert await chat.count("bob") == 1
    await chat.change_channel(archived=False)
    assert await chat.totals("bob") == {"unread": 1, "mentions": 0, "channels": 1}


async def test_deleting_a_channel_takes_all_that_hangs_on_it(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "one")

    await chat.delete_channel()

    check_problem(await chat.call("GET", "/v1/channels/general"), 404, "channel_not_found")
    check_problem(await chat.call("DELETE", "/v1/channels/general"), 404, "channel_not_found")
    assert (await chat.call("GET", f"{of('bob')}/unread")).status_code == 404
    assert (await chat.sync("bob", only_unread="false"))["channels"] == []
    assert await chat.waiting("bob") == []


# ---------------------------------------------------------------- sending


async def test_a_message_is_accepted_counted_and_shown_as_latest(chat: Chat, clock: Clock) -> None:
    await chat.open_channel("alice", "bob")

    result = await chat.post("alice", text="Hello Bob")

    assert result["status"] == "accepted"
    assert result["seq"] == 1
    assert result["id"].startswith("msg_")
    assert result.get("thread_seq") is None
    latest = {"id": result["id"], "seq": 1, "at": clock.now, "sender_id": "alice", "preview": "Hello Bob"}
    assert (await chat.channel())["latest"] == latest
    assert await chat.unread("bob") == {
        "channel_id": "general",
        "unread": 1,
        "label": "1",
        "has_unread": True,
        "exact": True,
        "mentions": 0,
        "first_unread": {"id": result["id"], "seq": 1, "at": clock.now},
        "last_read": {"id": None, "seq": 0, "at": None, "epoch": 0},
        "latest": latest,
        "muted": False,
    }


async def test_sending_moves_the_senders_own_pointer(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("bob", "one")

    await chat.send("alice", "two")

    assert await chat.count("alice") == 0
    assert (await chat.unread("alice"))["last_read"]["id"] == "two"
    assert await chat.count("bob") == 1


async def test_a_message_sent_twice_is_one_message(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    first = await chat.post("alice", id="m1", text="once")

    again = await chat.post("alice", id="m1", text="twice")
    within = await chat.post_all([{"channel_id": "general", "sender_id": "alice", "id": "m2"}] * 3)

    assert (again["status"], again["id"], again["seq"]) == ("duplicate", "m1", first["seq"])
    assert [(r["status"], r["seq"]) for r in within] == [("accepted", 2), ("duplicate", 2), ("duplicate", 2)]
    assert await chat.count("bob") == 2


async def test_in_a_batch_what_cannot_be_done_is_rejected_and_the_rest_is_done(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")

    results = await chat.post_all(
        [
            {"channel_id": "general", "sender_id": "alice", "id": "m1"},
            {"channel_id": "nowhere", "sender_id": "alice"},
            {"channel_id": "general", "sender_id": "stranger"},
            {"channel_id": "general", "sender_id": "alice", "id": "bad\nid"},
            {"channel_id": "general", "sender_id": "alice", "id": "m2"},
        ]
    )

    assert [r["status"] for r in results] == ["accepted", "rejected", "rejected", "rejected", "accepted"]
    assert [r["code"] for r in results[1:4]] == ["channel_not_found", "not_a_member", "invalid_id"]
    assert all(r["detail"] for r in results[1:4])
    assert [results[0]["seq"], results[4]["seq"]] == [1, 2]


async def test_a_bot_outside_the_channel_sends_only_as_outside(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    notice = {"channel_id": "general", "sender_id": "bot", "text": "Server moved"}

    check_problem(await chat.call("POST", "/v1/messages", notice), 404, "not_a_member")
    assert (await chat.post("bot", text="Server moved", outside=True))["status"] == "accepted"

    assert await chat.count("bob") == 1
    assert (await chat.channel())["member_count"] == 2


async def test_a_silent_message_takes_a_place_and_counts_for_nobody(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")

    result = await chat.post("alice", id="quiet", silent=True, mentions=["bob"])

    assert result["seq"] == 1
    answer = await chat.unread("bob")
    assert (answer["unread"], answer["has_unread"], answer["mentions"]) == (0, False, 0)
    assert answer["latest"]["id"] == "quiet"
    assert (await chat.explain("bob"))["minus"]["silent"] == 1


async def test_a_backfill_is_stored_takes_no_place_and_never_counts(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "one")

    result = await chat.post("bob", id="old", text="from 2019", at="2019-05-01T12:00:00Z", backfill=True)

    assert (result["status"], result["seq"]) == ("accepted", None)
    assert await chat.count("alice") == 0
    assert await chat.count("bob") == 1
    assert (await chat.channel())["latest"]["id"] == "one"
    refused = await chat.call("POST", f"{of('bob')}/read", {"up_to": "old"})
    check_problem(refused, 422, "message_without_seq", "up_to")


async def test_a_reply_takes_a_place_in_the_channel_only_when_asked(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "root")

    aside = await chat.post("alice", id="aside", thread_id="root")
    both = await chat.post("alice", id="both", thread_id="root", also_to_channel=True)

    assert (aside["seq"], aside["thread_seq"]) == (None, 1)
    assert (both["seq"], both["thread_seq"]) == (2, 2)
    assert await chat.waiting("bob", order="oldest") == ["root", "both"]
    assert (await chat.channel())["latest"]["id"] == "both"


async def test_a_thread_hangs_on_a_root_message(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "root")
    await chat.post("alice", id="reply", thread_id="root")
    message = {"channel_id": "general", "sender_id": "alice"}

    to_reply = await chat.call("POST", "/v1/messages", message | {"thread_id": "reply"})
    to_nothing = await chat.call("POST", "/v1/messages", message | {"thread_id": "nothing"})

    check_problem(to_reply, 422, "reply_to_reply")
    check_problem(to_nothing, 404, "thread_not_found")
    assert await chat.count("bob") == 1


async def test_times_follow_the_servers_clock_and_the_order_of_the_channel(chat: Chat, clock: Clock) -> None:
    await chat.open_channel("alice", "bob")
    tomorrow, yesterday = clock.now + 86_400_000, clock.now - 86_400_000
    iso = datetime.fromtimestamp(yesterday / 1000, UTC).isoformat()

    await chat.send("alice", "past", at=iso)
    await chat.send("alice", "future", at=tomorrow)
    await chat.send("alice", "behind", at=yesterday)

    shown = await chat.all_waiting("bob", "general")
    assert [m["at"] for m in shown] == [yesterday, clock.now, clock.now + 1]
    assert [m["sent_at"] for m in shown] == [yesterday, tomorrow, yesterday]


async def test_mentions_are_counted_edited_out_and_edited_in(chat: Chat) -> None:
    await chat.open_channel("alice", "bob", "carol")
    await chat.send("alice", "m1", mentions=["bob"])
    await chat.send("alice", "m2", mentions=["@channel", "bob"])
    await chat.send("alice", "m3")
    assert (await chat.unread("bob"))["mentions"] == 2
    assert (await chat.unread("carol"))["mentions"] == 1
    assert (await chat.unread("alice"))["mentions"] == 0

    await chat.edit("m1", mentions=["carol"])
    edited = await chat.edit("m3", text="look at this, Bob", mentions=["bob"])

    assert (edited["text"], edited["mentions"]) == ("look at this, Bob", ["bob"])
    assert (await chat.unread("bob"))["mentions"] == 2
    assert (await chat.unread("carol"))["mentions"] == 2
    await chat.read("bob", up_to="m2")
    assert (await chat.unread("bob"))["mentions"] == 1
    await chat.mark_unread("bob", "m1")
    assert (await chat.unread("bob"))["mentions"] == 2
    assert (await chat.totals("bob"))["mentions"] == 2


async def test_here_is_everyone_in_a_big_channel_and_the_online_in_a_small_one(chat: Chat, mode: str) -> None:
    await chat.open_channel("alice", "bob")

    await chat.send("alice", "m1", mentions=["@here"])

    assert (await chat.unread("bob"))["mentions"] == (1 if mode == "timeline" else 0)


async def test_an_edit_of_the_text_changes_what_is_shown_and_no_count(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", mentions=["bob"])

    await chat.edit("m1", text="better words")

    assert (await chat.channel())["latest"]["preview"] == "better words"
    answer = await chat.unread("bob")
    assert (answer["unread"], answer["mentions"]) == (1, 1)
    check_problem(await chat.call("PATCH", message_path("general", "m9"), {"text": "x"}), 404, "message_not_found")


async def test_a_deleted_message_counts_nowhere_and_its_place_is_not_given_again(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", "m2", mentions=["bob"])

    gone = await chat.delete("m2")
    await chat.delete("m2")

    assert gone == {"id": "m2", "channel_id": "general", "deleted": True}
    answer = await chat.unread("bob")
    assert (answer["unread"], answer["mentions"], answer["latest"]["id"]) == (1, 1, "m1")
    assert (await chat.explain("bob"))["minus"]["deleted"] == 1
    assert (await chat.post("alice", id="m3"))["seq"] == 3
    assert await chat.count("bob") == 2
    refused = await chat.call("PATCH", message_path("general", "m2"), {"text": "back?"})
    check_problem(refused, 409, "message_deleted")


async def test_an_integer_id_is_its_decimal_string(chat: Chat) -> None:
    await chat.ask("PUT", "/v1/channels/42", {"type": "group", "members": [7, "8"]})

    result = await chat.post(7, 42, id=1001, mentions=[8])  # type: ignore[arg-type]

    assert result["id"] == "1001"
    answer = await chat.unread("8", "42")
    assert (answer["unread"], answer["mentions"], answer["first_unread"]["id"]) == (1, 1, "1001")
    await chat.ask("POST", f"{of('8', '42')}/read", {"messages": [1001]})
    assert await chat.count("8", "42") == 0


# ---------------------------------------------------------------- reading


async def test_reading_everything(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", "m2", "m3")

    result = await chat.read("bob")

    assert (result["unread"], result["label"], result["changed"]) == (0, "", True)
    assert (result["last_read"]["id"], result["last_read"]["seq"]) == ("m3", 3)
    answer = await chat.unread("bob")
    assert (answer["has_unread"], answer["first_unread"], answer["last_read"]) == (False, None, result["last_read"])
    assert (await chat.call("POST", f"{of('bob')}/read")).json()["changed"] is False


async def test_reading_up_to_a_message_a_place_or_a_time(chat: Chat, clock: Clock) -> None:
    await chat.open_channel("alice", "bob")
    for name in ("m1", "m2", "m3", "m4"):
        await chat.send("alice", name)
        clock.advance(seconds=60)
    [_, second, third, _] = await chat.all_waiting("bob", "general")

    assert (await chat.read("bob", up_to="m1"))["unread"] == 3
    assert (await chat.read("bob", up_to_seq=2))["unread"] == 2
    assert (await chat.read("bob", up_to_time=third["at"] - 1))["changed"] is False
    iso = datetime.fromtimestamp(third["at"] / 1000, UTC).isoformat()
    assert (await chat.read("bob", up_to_time=iso))["unread"] == 1
    assert (await chat.read("bob", up_to_time=second["at"]))["changed"] is False
    assert (await chat.read("bob", up_to_seq=10**12))["last_read"]["seq"] == 4
    assert await chat.count("bob") == 0


async def test_reading_exactly_these_messages(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", "m2", "m3", "m4")

    result = await chat.read("bob", messages=["m2", "m4"])

    assert (result["unread"], result["last_read"]["seq"], result["changed"]) == (2, 0, True)
    assert await chat.waiting("bob", order="oldest") == ["m1", "m3"]
    assert (await chat.read("bob", messages=["m2"]))["changed"] is False
    assert (await chat.read("bob", up_to="m1"))["unread"] == 1
    assert (await chat.unread("bob"))["first_unread"]["id"] == "m3"
    assert (await chat.explain("bob"))["minus"]["read_apart"] == 2
    refused = await chat.call("POST", f"{of('bob')}/read", {"messages": ["m3", "m9"]})
    check_problem(refused, 404, "message_not_found")
    assert await chat.waiting("bob") == ["m3"]


async def test_a_read_never_moves_the_pointer_back(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", "m2", "m3")
    await chat.read("bob", up_to="m3")

    late = await chat.read("bob", up_to="m1")

    assert (late["changed"], late["last_read"]["id"], late["unread"]) == (False, "m3", 0)


async def test_marking_unread_from_a_message_on(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", "m2", "m3")
    before = await chat.read("bob")

    result = await chat.mark_unread("bob", "m2")

    assert (result["unread"], result["changed"], result["last_read"]["id"]) == (2, True, "m1")
    assert result["last_read"]["epoch"] > before["last_read"]["epoch"]
    assert await chat.waiting("bob", order="oldest") == ["m2", "m3"]


async def test_marking_unread_takes_back_later_single_reads_and_makes_nothing_read(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", "m2", "m3", "m4")
    await chat.read("bob", messages=["m2", "m4"])

    await chat.mark_unread("bob", "m3")

    assert await chat.waiting("bob", order="oldest") == ["m1", "m3", "m4"]


async def test_marking_unread_needs_a_message_with_a_place(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", "m2")
    await chat.post("alice", id="aside", thread_id="m1")
    await chat.delete("m2")
    path = f"{of('bob')}/unread"

    check_problem(await chat.call("POST", path, {"from": "m9"}), 404, "message_not_found")
    check_problem(await chat.call("POST", path, {"from": "m2"}), 409, "message_deleted")
    check_problem(await chat.call("POST", path, {"from": "aside"}), 422, "message_without_seq")
    assert (await chat.unread("bob"))["last_read"]["epoch"] == 0


async def test_a_late_read_of_an_epoch_that_is_over_changes_nothing(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", "m2", "m3")
    seen = (await chat.read("bob"))["last_read"]["epoch"]
    now = (await chat.mark_unread("bob", "m2"))["last_read"]["epoch"]

    late = await chat.read("bob", up_to="m3", epoch=seen)
    later = await chat.mark_unread("bob", "m1", epoch=seen)

    assert (late["changed"], late["unread"], later["changed"], later["unread"]) == (False, 2, False, 2)
    assert (await chat.read("bob", up_to="m3", epoch=now))["unread"] == 0


async def test_many_reads_of_many_users_in_one_request(chat: Chat) -> None:
    await chat.open_channel("alice", "bob", "carol")
    await chat.send("alice", "m1", "m2", "m3")

    results = await chat.read_many(
        {"user_id": "bob", "channel_id": "general", "up_to": "m2"},
        {"user_id": "carol", "channel_id": "general"},
        {"user_id": "stranger", "channel_id": "general"},
        {"user_id": "bob", "channel_id": "nowhere"},
        {"user_id": "bob", "channel_id": "general", "up_to": "m9"},
        {"user_id": "bob", "channel_id": "general", "up_to_seq": 1},
        {"user_id": "bob", "channel_id": "general", "up_to_seq": 1, "up_to": "m1"},
    )

    rejected = ["ok", "ok", "rejected", "rejected", "rejected", "ok", "rejected"]
    assert [r["status"] for r in results] == rejected
    assert [r["changed"] for r in results] == [True, True, False, False, False, False, False]
    codes = [r.get("code") for r in results if r["status"] == "rejected"]
    assert codes == ["not_a_member", "channel_not_found", "message_not_found", "invalid"]
    assert (await chat.count("bob"), await chat.count("carol")) == (1, 0)


async def test_marking_all_read_and_taking_it_back(chat: Chat) -> None:
    await three_channels(chat)
    await chat.read("bob", "c", messages=["c2"])

    done = await chat.read_all("bob")

    assert done["changed"] == 3
    assert await chat.totals("bob") == {"unread": 0, "mentions": 0, "channels": 0}
    assert await chat.undo("bob", done["undo"]) == {"changed": 3}
    assert await chat.totals("bob") == {"unread": 5, "mentions": 0, "channels": 3}
    assert await chat.waiting("bob", channel="c", order="oldest") == ["c1", "c3"]
    again = await chat.call("POST", "/v1/users/bob/read/undo", {"undo": done["undo"]})
    check_problem(again, 404, "undo_not_found")


async def test_marking_a_list_of_channels_read(chat: Chat) -> None:
    await three_channels(chat)

    items = [{"channel_id": "a"}, {"channel_id": "b", "up_to": "b1"}, {"channel_id": "c", "up_to_seq": 0}]
    done = await chat.read_all("bob", items=items)

    assert done["changed"] == 2
    assert await chat.waiting("bob", order="channel") == ["b2", "c1", "c2", "c3"]
    assert (await chat.undo("bob", done["undo"]))["changed"] == 2
    assert (await chat.totals("bob"))["unread"] == 6


async def test_marking_all_read_up_to_a_time(chat: Chat, clock: Clock) -> None:
    await three_channels(chat)
    clock.advance(seconds=60)
    await chat.send("alice", "a2", channel="a")

    await chat.read_all("bob", all=True, up_to_time=clock.now - 1)

    assert await chat.waiting("bob") == ["a2"]


async def test_undo_leaves_alone_where_the_user_has_moved_since(chat: Chat) -> None:
    await three_channels(chat)
    done = await chat.read_all("bob")
    await chat.send("alice", "a2", channel="a")
    await chat.read("bob", "a")
    await chat.mark_unread("bob", "b2", "b")

    assert (await chat.undo("bob", done["undo"]))["changed"] == 1

    assert await chat.waiting("bob", order="oldest") == ["b2", "c1", "c2", "c3"]


async def test_undo_is_good_for_ten_minutes_and_for_its_user_only(chat: Chat, clock: Clock) -> None:
    await three_channels(chat)
    token = (await chat.read_all("bob"))["undo"]
    other = await chat.call("POST", "/v1/users/alice/read/undo", {"undo": token})
    check_problem(other, 404, "undo_not_found")

    clock.advance(seconds=601)

    late = await chat.call("POST", "/v1/users/bob/read/undo", {"undo": token})
    check_problem(late, 404, "undo_not_found")
    assert (await chat.totals("bob"))["unread"] == 0


async def test_the_largest_numbers_that_may_be_given_do_no_harm(chat: Chat) -> None:
    most = 2**53 - 1
    await chat.open_channel("alice", "bob")
    await chat.post("alice", id="m1", at=most)
    assert (await chat.prefer("bob", muted=most - 1))["muted"] is not False
    assert (await chat.unread("bob"))["muted"] is not False
    assert (await chat.read("bob", up_to_seq=1, epoch=most))["changed"] is False
    assert (await chat.read("bob", up_to_time=most))["unread"] == 0
    await chat.send("alice", "m2")
    await chat.read("bob", up_to_seq=most)
    await chat.join("carol", history=1_000_000)
    await chat.evict()
    assert [await chat.count(user) for user in ("alice", "bob", "carol")] == [0, 0, 2]
