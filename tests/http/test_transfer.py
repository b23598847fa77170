"""Moving in and out: export, import and erase, in both ways of counting."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GENERAL, Chat, Clock, check_problem, in_process, of

HEADER = {"type": "readstate", "version": 1}
LINES = {"content-type": "application/x-ndjson"}
PEOPLE = ("alice", "bob", "carol", "dave")
LONG_AGO = 1_700_000_000_000


async def export(chat: Chat) -> list[Any]:
    """The records of an export, without its header."""
    answer = await chat.call("GET", "/v1/export")
    assert answer.status_code == 200, answer.text
    header, *records = [json.loads(line) for line in answer.text.splitlines()]
    assert header["type"] == "readstate"
    assert header["version"] == 1
    return records


async def bring(chat: Chat, *records: Any, header: Any = HEADER, **params: Any) -> Any:
    """Imports records (or lines, as they are) below a header, and returns the report when counts are exact again."""
    lines = [one if isinstance(one, str) else json.dumps(one) for one in (header, *records)]
    content = "\n".join(lines).encode()
    report = await chat.ask("POST", "/v1/import", content=content, headers=LINES, params=params)
    await chat.settled()
    return report


async def bring_whole(chat: Chat, *records: Any) -> None:
    report = await bring(chat, *records)
    assert report["refused"] == []
    assert report["accepted"] == len(records)


@asynccontextmanager
async def another_store(tmp_path: Path, clock: Clock, mode: str) -> AsyncIterator[Chat]:
    limit = 100 if mode == "ledger" else 1
    async with in_process(tmp_path / "another", clock=clock, fanout_max_members=limit) as chat:
        yield chat


async def picture(chat: Chat) -> dict[str, Any]:
    """What everyone sees."""
    seen = await chat.snapshot(PEOPLE, [GENERAL, "pair"])
    for user in PEOPLE:
        seen[f"threads of {user}"] = await chat.threads(user)
        seen[f"inbox of {user}"] = (await chat.inbox(user))["conversations"]
    seen["receipts"] = await chat.receipts()
    return seen


async def a_lively_place(chat: Chat, clock: Clock) -> None:
    """A group with everything that can happen in one, a pair, and a channel that was deleted."""
    await chat.open_channel("alice", "bob", "carol", name="Everybody")
    await chat.open_channel("alice", "bob", channel="pair", type="direct")
    await chat.open_channel("alice", "bob", channel="gone")
    await chat.send("alice", "g1", channel="gone")
    await chat.delete_channel("gone")
    await chat.send("alice", "m1", "m2", "m3")
    await chat.send("bob", "m4")
    await chat.send("alice", "m5", mentions=["carol"])
    await chat.send("alice", "m6", silent=True)
    await chat.send("alice", "m7", "m8")
    await chat.reply("bob", "m1", "r1", "r2")
    await chat.reply("carol", "m1", "r3", also_to_channel=True)
    await chat.post("notices", id="n1", text="maintenance", outside=True)
    await chat.post("bob", id="old", text="from before", backfill=True, at=LONG_AGO)
    await chat.reply("alice", "old", "r4")
    clock.advance(seconds=5)
    await chat.join("dave", history=2)
    await chat.delete("m2")
    await chat.delete("never-seen")
    await chat.read("carol", up_to="m3")
    await chat.read("carol", messages=["m7"])
    await chat.mark_unread("bob", "m3")
    await chat.read_thread("alice", "m1", up_to="r1")
    await chat.unfollow("carol", "m1")
    await chat.prefer("carol", muted=True, pinned=True, count="mentions")
    await chat.prefer("dave", receipts="private")
    await chat.prefer_everywhere("bob", receipts="private")
    await chat.send("alice", "p1", "p2", channel="pair")
    await chat.tap("bob")
    await chat.join("erin")
    await chat.leave("erin")


# ---------------------------------------------------------------- out and in


async def test_what_is_moved_out_and_in_looks_the_same_and_is_written_the_same(
    chat: Chat, clock: Clock, mode: str, tmp_path: Path
) -> None:
    await a_lively_place(chat, clock)
    records = await export(chat)
    before = await picture(chat)

    async with another_store(tmp_path, clock, mode) as other:
        await bring_whole(other, *records)

        assert await export(other) == records
        assert await picture(other) == before


async def test_an_import_may_be_repeated(chat: Chat, clock: Clock, mode: str, tmp_path: Path) -> None:
    await a_lively_place(chat, clock)
    records = await export(chat)

    async with another_store(tmp_path, clock, mode) as other:
        await bring_whole(other, *records)
        await bring_whole(other, *records)

        assert await export(other) == records


async def test_a_repeated_import_takes_back_nothing_that_happened_since(
    chat: Chat, clock: Clock, mode: str, tmp_path: Path
) -> None:
    await a_lively_place(chat, clock)
    records = await export(chat)
    async with another_store(tmp_path, clock, mode) as other:
        await bring_whole(other, *records)
        await other.send("alice", "new")
        await other.read("carol")
        await other.leave("dave")
        await other.delete("m7")
        await other.change_channel(name="Renamed")
        before = await picture_of_the_living(other)

        await bring_whole(other, *records)

        assert await picture_of_the_living(other) == before


async def picture_of_the_living(chat: Chat) -> Any:
    return await chat.snapshot(("alice", "bob", "carol"), [GENERAL, "pair"]), await chat.inbox("alice")


async def test_life_goes_on_after_a_move(chat: Chat, clock: Clock, mode: str, tmp_path: Path) -> None:
    await a_lively_place(chat, clock)
    last = (await chat.channel())["latest"]["seq"]
    records = await export(chat)

    async with another_store(tmp_path, clock, mode) as other:
        await bring_whole(other, *records)
        unread = await other.count("bob")

        result = await other.post("alice", id="next", text="hello again")

        assert result["seq"] == last + 1
        assert await other.count("bob") == unread + 1
        assert (await other.post("bob", id="r9", thread_id="m1", text="still here"))["thread_seq"] == 4


async def test_a_deleted_channel_keeps_its_seqs_in_the_new_store(
    chat: Chat, clock: Clock, mode: str, tmp_path: Path
) -> None:
    await a_lively_place(chat, clock)
    records = await export(chat)

    async with another_store(tmp_path, clock, mode) as other:
        await bring_whole(other, *records)
        await other.open_channel("alice", "bob", channel="gone")

        assert (await other.post("alice", "gone", id="again"))["seq"] == 2


async def test_a_file_may_come_in_pieces(chat: Chat, clock: Clock, mode: str, tmp_path: Path) -> None:
    await a_lively_place(chat, clock)
    records = await export(chat)

    async with another_store(tmp_path, clock, mode) as other:
        next_line = (await bring(other))["next_line"]
        for record in records:
            report = await bring(other, header=record, first_line=next_line)
            assert report["refused"] == []
            next_line = report["next_line"]

        assert next_line == len(records) + 2
        assert await export(other) == records


# ---------------------------------------------------------------- moving in from elsewhere


def channel(name: str = GENERAL, **fields: Any) -> dict[str, Any]:
    return {"type": "channel", "channel_id": name, "kind": "group"} | fields


def message(name: str, sender: str = "alice", at: int = LONG_AGO, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "channel_id": GENERAL, "id": name, "sender_id": sender, "at": at} | fields


def member(user: str, **fields: Any) -> dict[str, Any]:
    return {"type": "member", "channel_id": GENERAL, "user_id": user} | fields


def history(first: int, last: int) -> Iterable[dict[str, Any]]:
    """Messages m41, m42 … with their seqs, a second apart."""
    return [message(f"m{seq}", at=LONG_AGO + seq * 1000, seq=seq) for seq in range(first, last + 1)]


@pytest.mark.parametrize(
    "last_read", [{"seq": 45}, {"id": "m45"}, {"at": LONG_AGO + 45_500}, {"at": "2023-11-14T22:14:05.5Z"}]
)
async def test_a_product_moves_in_without_its_history(chat: Chat, last_read: Any) -> None:
    await bring_whole(
        chat,
        channel(last_seq=50, latest={"id": "m50", "at": LONG_AGO + 50_000, "sender_id": "alice", "preview": "hi"}),
        *history(41, 50),
        member("alice", last_read={"seq": 50}),
        member("bob", last_read=last_read),
        member("carol", last_read={"seq": 40}),
    )

    assert await chat.count("bob") == 5
    assert await chat.count("carol") == 10
    assert (await chat.unread("bob"))["last_read"]["id"] == "m45"
    assert (await chat.unread("bob"))["first_unread"]["id"] == "m46"
    assert (await chat.post("alice", id="m51"))["seq"] == 51
    assert await chat.count("bob") == 6


async def test_without_a_single_message_everything_read_is_known_all_the_same(chat: Chat) -> None:
    latest = {"id": "m50", "at": LONG_AGO, "sender_id": "alice", "preview": "see you"}
    await bring_whole(
        chat, channel(last_seq=50, latest=latest), member("bob", last_read={"at": LONG_AGO}), member("carol")
    )

    assert (await chat.unread("bob"))["last_read"]["seq"] == 50
    assert (await chat.inbox("bob"))["conversations"][0]["last_message"]["preview"] == "see you"
    assert (await chat.post("bob", id="m51"))["seq"] == 51


async def test_messages_without_seqs_get_them_in_the_order_of_the_file(chat: Chat) -> None:
    records = [
        channel(),
        message("first"),
        message("second"),
        message("answer", "bob", thread_id="first"),
        message("third", "bob"),
        member("alice"),
        member("bob", last_read={"id": "first"}),
    ]
    await bring_whole(chat, *records)
    await bring_whole(chat, *records)

    assert [m["id"] for m in await chat.all_waiting("alice", GENERAL)] == ["third"]
    assert await chat.count("bob") == 1
    exported = await export(chat)
    assert not [record for record in exported if "preferences" in record], "preferences at their defaults are left out"
    sent = [record for record in exported if record["type"] == "message"]
    assert [(m["id"], m.get("seq"), m.get("thread_seq")) for m in sent] == [
        ("first", 1, None),
        ("second", 2, None),
        ("third", 3, None),
        ("answer", None, 1),
    ]
    assert [m["at"] - LONG_AGO for m in sent] == [0, 1, 2, 0]


async def test_own_messages_beyond_an_imported_pointer_are_not_unread(chat: Chat) -> None:
    await bring_whole(
        chat,
        channel(),
        message("m1"),
        message("m2", "bob", LONG_AGO + 1),
        message("m3", "carol", LONG_AGO + 2),
        message("m4", "bob", LONG_AGO + 3),
        member("alice"),
        member("bob", last_read={"seq": 0}),
    )

    assert await chat.count("bob") == 2
    assert await chat.waiting("bob", order="oldest") == ["m1", "m3"]


async def test_an_import_into_a_living_channel_is_seen_at_once(chat: Chat) -> None:
    await bring_whole(chat, channel(last_seq=3), member("alice"), member("bob"))
    await chat.send("alice", "m4")
    assert await chat.count("bob") == 1
    cursor = (await chat.sync("bob"))["sync"]

    await bring_whole(chat, *history(2, 3), member("carol", last_read={"seq": 2}))

    assert await chat.count("bob") == 3
    assert await chat.count("carol") == 2
    assert (await chat.channel())["member_count"] == 3
    assert [row["unread"] for row in (await chat.sync("bob", since=cursor))["channels"]] == [3]
    cursor = (await chat.sync("bob"))["sync"]
    await chat.send("alice", "m5")
    assert [row["unread"] for row in (await chat.sync("bob", since=cursor))["channels"]] == [4]


async def test_after_many_imports_delta_sync_misses_no_message(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    for number in range(5):
        await bring_whole(chat, channel(f"other{number}"), member("bob") | {"channel_id": f"other{number}"})
    await chat.send("alice", "root")
    await chat.reply("alice", "root", "only in the thread")
    cursor = (await chat.sync("bob"))["sync"]

    await chat.send("alice", "m1")

    assert GENERAL in [row["channel_id"] for row in (await chat.sync("bob", since=cursor))["channels"]]


async def test_a_channel_that_outgrows_the_limit_by_import_changes_over(tmp_path: Path) -> None:
    async with in_process(tmp_path, fanout_max_members=2) as chat:
        await chat.open_channel("alice", "bob")
        await chat.send("alice", "m1", "m2")
        assert (await chat.explain("bob"))["mode"] == "ledger"

        await bring_whole(chat, member("carol", last_read={"seq": 1}))

        assert (await chat.explain("bob"))["mode"] == "timeline"
        assert await chat.count("bob") == 2
        assert await chat.count("carol") == 1


# ---------------------------------------------------------------- threads that move in


def follow(user: str, thread: str = "root", **fields: Any) -> dict[str, Any]:
    return {"type": "follow", "channel_id": GENERAL, "thread_id": thread, "user_id": user} | fields


def a_thread() -> list[dict[str, Any]]:
    """Alice begins it, bob replies twice, carol is mentioned, and a bot from outside replies too."""
    return [
        message("root", "alice", LONG_AGO),
        message("r1", "bob", LONG_AGO + 1, thread_id="root"),
        message("r2", "alice", LONG_AGO + 2, thread_id="root", mentions=["carol", "zoe"]),
        message("r3", "bob", LONG_AGO + 3, thread_id="root", mentions=["carol"]),
        message("r4", "bot", LONG_AGO + 4, thread_id="root"),
    ]


FOLLOWED = {"alice": 2, "bob": 1, "carol": 3, "dave": None, "bot": None}
"""Unread replies in that thread: alice has read up to r2, bob up to r3, carol up to r1; the others follow nothing."""


async def followed(chat: Chat, thread: str = "root") -> dict[str, int | None]:
    return {user: (await chat.unread_replies(user)).get(thread) for user in FOLLOWED}


async def test_a_thread_that_is_written_live_has_its_followers(chat: Chat) -> None:
    await chat.open_channel(*PEOPLE)
    for one in a_thread():
        fields = {"thread_id": one.get("thread_id"), "mentions": one.get("mentions", [])}
        await chat.post(one["sender_id"], id=one["id"], outside=one["sender_id"] == "bot", **fields)

    assert await followed(chat) == FOLLOWED


@pytest.mark.parametrize("order", ["members first", "members last", "members live"])
@pytest.mark.parametrize("pieces", ["at once", "line by line"])
async def test_an_imported_thread_has_the_same_followers(chat: Chat, order: str, pieces: str) -> None:
    members = [member(user) for user in PEOPLE]
    if order == "members live":
        await chat.open_channel(*PEOPLE)
    records = {
        "members first": [channel(), *members, *a_thread()],
        "members last": [channel(), *a_thread(), *members],
        "members live": a_thread(),
    }[order]
    if pieces == "at once":
        await bring_whole(chat, *records)
    else:
        for one in records:
            await bring_whole(chat, one)

    assert await followed(chat) == FOLLOWED
    await bring_whole(chat, *records)
    assert await followed(chat) == FOLLOWED


async def test_an_imported_thread_is_alive(chat: Chat) -> None:
    await bring_whole(chat, channel(), *a_thread(), *(member(user) for user in PEOPLE))

    await chat.reply("dave", "root", "r5")

    assert await followed(chat) == FOLLOWED | {"alice": 3, "bob": 2, "carol": 4, "dave": 0}
    await chat.read_thread("carol", "root")
    assert (await followed(chat))["carol"] == 0
    assert [r["user_id"] for r in await export(chat) if r["type"] == "follow"] == ["alice", "bob", "carol", "dave"]


async def test_follow_records_say_more_than_what_was_written(chat: Chat) -> None:
    records = [
        channel(),
        *a_thread(),
        *(member(user) for user in PEOPLE),
        follow("alice", last_read={"seq": 0}),
        follow("bob", active=False),
        follow("dave", last_read={"id": "r3"}),
    ]
    wanted = FOLLOWED | {"alice": 3, "bob": None, "dave": 1}

    await bring_whole(chat, *records)
    assert await followed(chat) == wanted
    await bring_whole(chat, *records)
    assert await followed(chat) == wanted

    await chat.read_thread("alice", "root")
    await bring_whole(chat, *records)
    assert await followed(chat) == wanted | {"alice": 0}


async def test_an_import_does_not_bring_back_a_follow_that_has_ended(chat: Chat) -> None:
    records = [channel(), *a_thread(), *(member(user) for user in PEOPLE)]
    await bring_whole(chat, *records)
    await chat.unfollow("carol", "root")

    await bring_whole(chat, *records, message("r5", "carol", LONG_AGO + 5, thread_id="root"), follow("carol"))

    assert await followed(chat) == FOLLOWED | {"alice": 3, "bob": 2, "carol": None}


async def test_who_joined_after_the_replies_does_not_follow(chat: Chat) -> None:
    late = member("carol", joined_at=LONG_AGO + 3_000)
    await bring_whole(chat, channel(), *a_thread(), member("alice"), member("bob", joined_at=LONG_AGO), late)

    assert await followed(chat) == FOLLOWED | {"carol": None}


async def test_who_does_not_follow_does_not_after_a_move(chat: Chat, clock: Clock, mode: str, tmp_path: Path) -> None:
    await chat.open_channel(*PEOPLE)
    await chat.comes_online("dave")
    await chat.send("alice", "root")
    await chat.reply("bob", "root", "r1", mentions=["@here"])
    await chat.edit("r1", mentions=["carol"])
    await chat.reply("carol", "root", "r2")
    await chat.unfollow("carol", "root")
    before = await followed(chat)
    assert before == {"alice": 2, "bob": 1, "carol": None, "dave": None, "bot": None}
    records = await export(chat)

    async with another_store(tmp_path, clock, mode) as other:
        await bring_whole(other, *records)

        assert await followed(other) == before
        assert await export(other) == records


async def test_a_delete_in_the_file_reaches_a_message_that_is_there(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", "m2")
    assert await chat.count("bob") == 2
    records = [r | {"deleted": True} if r.get("id") == "m2" else r for r in await export(chat)]

    await bring_whole(chat, *records)

    assert await chat.count("bob") == 1
    assert (await chat.channel())["latest"]["id"] == "m1"


async def test_of_two_pointers_the_further_one_holds(chat: Chat) -> None:
    await chat.open_channel("alice", "bob", "carol")
    await chat.send("alice", "m1", "m2", "m3")
    await chat.read("bob", up_to="m2")

    await bring_whole(chat, member("bob", last_read={"seq": 1, "apart": [3]}), member("carol", last_read={"id": "m3"}))

    assert await chat.count("bob") == 0
    assert (await chat.unread("bob"))["last_read"]["seq"] == 2
    assert await chat.count("carol") == 0


# ---------------------------------------------------------------- what is refused


TOO_FAR = 2**31 + 1
FAR_AHEAD = 2**53 - 1
DEEP = 50_000
NESTED = ['{"x":' * DEEP + "1" + "}" * DEEP, '{"x":' * DEEP, '{"x":' + "[" * DEEP + "]" * DEEP + "}"]

REFUSED: list[tuple[Any, str]] = [
    ("{", "not JSON"),
    ("[]", "Expected object"),
    ('{"type":"nonsense"}', "type"),
    ('{"channel_id":"general"}', "type"),
    (channel(knid="group"), "unknown field knid"),
    (channel(kind="club"), "kind"),
    (channel(last_seq="7"), "last_seq"),
    (channel("x" * 200), "channel_id must be"),
    (channel("late", latest={"id": "m", "seq": 3, "at": 1, "sender_id": "a"}), "latest.seq"),
    (message("m9", channel_id="nowhere"), "no channel 'nowhere'"),
    (message("m9") | {"at": "yesterday"}, "at must be"),
    (message("m9", at=8_000_000_000_000_000), "in the future"),
    *((wrong, "nested too deeply") for wrong in NESTED),
    (channel("far", last_seq=TOO_FAR), "last_seq must be at most 2^31"),
    (channel("far", last_seq=10**30), "last_seq must be at most 2^31"),
    ({"type": "thread", "channel_id": GENERAL, "thread_id": "m1", "last_seq": TOO_FAR}, "last_seq must be at most"),
    (message("m9", seq=TOO_FAR), "seq must be at most 2^31"),
    (message("m9", thread_id="m1", thread_seq=TOO_FAR), "thread_seq must be at most 2^31"),
    (member("bob", joined_seq=TOO_FAR), "joined_seq must be at most 2^31"),
    (member("bob", skipped=[[0, TOO_FAR]]), "skipped must be at most 2^31"),
    (member("bob", joined_at=FAR_AHEAD), "joined_at is in the future"),
    (member("bob", last_read={"seq": TOO_FAR}), "last_read.seq must be at most 2^31"),
    (member("bob", last_read={"seq": 1, "epoch": 2**46 + 1}), "last_read.epoch must be at most 2^46"),
    (member("bob", last_read={"seq": 1, "apart": [TOO_FAR]}), "last_read.apart must be at most 2^31"),
    (member("bob", last_read={"seq": 1, "at": FAR_AHEAD}), "last_read.at is in the future"),
    (member("bob", last_read={"seq": 1, "read_at": FAR_AHEAD}), "last_read.read_at is in the future"),
    (member("bob", preferences={"archived": TOO_FAR}), "preferences.archived must be at most 2^31"),
    (member("bob", preferences={"muted": 2**53}), "preferences.muted must be"),
    ({"type": "user", "user_id": "bob", "last_tap": FAR_AHEAD}, "last_tap is in the future"),
    ({"type": "user", "user_id": "bob", "last_tap": 2**53}, "last_tap must be"),
    ({"type": "user", "user_id": "bob", "last_seen": FAR_AHEAD}, "last_seen is in the future"),
    (message("m9", sender_id="@alice"), "must not begin with '@'"),
    (message("m9", sender_id=None), "sender_id"),
    (message("m9", seq=0), "begin with 1"),
    (message("m9", seq=9), "leaves a gap: the last one before it is 3"),
    (message("m9", seq=2, at=LONG_AGO + 2000), "already taken, by message 'm2'"),
    (message("m4", seq=4, at=LONG_AGO + 1), "not between"),
    (message("m3", seq=2, at=LONG_AGO + 3000), "already there, with another seq: 3"),
    (message("m3", "bob", seq=3, at=LONG_AGO + 3000), "another sender_id: alice"),
    (message("m3", at=LONG_AGO + 77), "another time"),
    (message("m9", thread_id="nothing"), "there is no root message 'nothing'"),
    (message("m9", backfill=True, seq=4), "a backfill has no seq"),
    (message("m9", mentions=["@here"]), "who was online"),
    (message("m9", text="x" * 9000), "longer than 8192 bytes"),
    (message("m9", text="\0"), "NUL"),
    (member("bob", channel_id="nowhere"), "no channel 'nowhere'"),
    (member("bob", last_read={"seq": 4}), "the last seq there is 3"),
    (member("bob", last_read={"seq": 1, "apart": [4]}), "beyond the last seq"),
    (member("bob", last_read={"id": "nothing"}), "'nothing', which does not exist"),
    (member("bob", last_read={}), "needs a seq"),
    (member("bob", preferences={"count": "some"}), "count"),
    ({"type": "follow", "channel_id": GENERAL, "thread_id": "nothing", "user_id": "bob"}, "'nothing'"),
    ({"type": "user", "user_id": ""}, "user_id must be"),
]


@pytest.mark.parametrize(
    ("record", "reason"), REFUSED, ids=[f"{number} {reason}" for number, (_, reason) in enumerate(REFUSED)]
)
async def test_a_refused_line_is_named_and_leaves_nothing_behind(chat: Chat, record: Any, reason: str) -> None:
    await bring_whole(chat, channel(), *history(1, 3), member("alice"))
    before = await export(chat)

    report = await bring(chat, channel(), record, member("alice"))

    [refused] = report["refused"]
    assert refused["line"] == 3
    assert reason in refused["reason"]
    assert report["accepted"] == 2
    assert report["next_line"] == 5
    assert await export(chat) == before


@pytest.mark.parametrize("wrong", NESTED, ids=["objects", "cut off", "arrays"])
async def test_a_header_that_is_nested_deeply_is_refused(chat: Chat, wrong: str) -> None:
    report = await bring(chat, channel(), header=wrong)

    assert report["refused"][0]["reason"].endswith("the line is nested too deeply")
    assert (report["accepted"], report["next_line"]) == (0, 1)


async def test_after_the_largest_numbers_there_is_room_for_more(chat: Chat) -> None:
    most, last_epoch = 2**31, 2**46
    at_the_end = {"seq": most, "epoch": last_epoch}
    await bring_whole(chat, channel(last_seq=most), member("alice"), member("bob", last_read=at_the_end))

    assert (await chat.post("alice", id="next"))["seq"] == most + 1
    assert await chat.count("bob") == 1
    assert (await chat.mark_unread("bob", "next"))["last_read"]["epoch"] == last_epoch + 1
    assert {record["type"] for record in await export(chat)} == {"channel", "message", "member"}


async def test_a_line_number_without_end_is_refused(chat: Chat) -> None:
    answer = await chat.call("POST", "/v1/import", content=b"{}", headers=LINES, params={"first_line": 10**17})

    check_problem(answer, 422, "invalid", "first_line")


async def test_a_line_that_is_not_utf8_is_refused(chat: Chat) -> None:
    content = json.dumps(HEADER).encode() + b'\n{"type":"user","user_id":"\xff"}\n'
    report = await chat.ask("POST", "/v1/import", content=content, headers=LINES)

    assert [refused["line"] for refused in report["refused"]] == [2]


@pytest.mark.parametrize("wrong", ["{", channel(), {"type": "readstate", "version": 2}, {"type": "readstate"}, ""])
async def test_without_a_header_of_this_version_nothing_is_taken(chat: Chat, wrong: Any) -> None:
    report = await bring(chat, channel(), header=wrong)

    assert [refused["line"] for refused in report["refused"]] == [1]
    assert (report["accepted"], report["next_line"]) == (0, 1)
    assert await export(chat) == []


@pytest.mark.parametrize("wrong", ["{", member("dave", channel_id="nowhere")])
async def test_an_import_can_stop_at_the_first_refused_line_and_go_on_from_it(chat: Chat, wrong: Any) -> None:
    report = await bring(chat, channel(), member("alice"), wrong, member("bob"), "{", stop=True)

    assert [refused["line"] for refused in report["refused"]] == [4]
    assert (report["accepted"], report["next_line"]) == (2, 4)
    assert (await chat.channel())["member_count"] == 1

    report = await bring(chat, member("bob"), header=member("dave"), first_line=4)

    assert report == {"accepted": 2, "refused": [], "next_line": 6}
    assert (await chat.channel())["member_count"] == 3


async def test_empty_lines_count_and_say_nothing(chat: Chat) -> None:
    report = await bring(chat, "", channel(), "", "{")

    assert [refused["line"] for refused in report["refused"]] == [5]
    assert report["next_line"] == 6


async def test_seqs_in_the_wrong_order_are_named(chat: Chat) -> None:
    first, second, third = history(1, 3)

    report = await bring(chat, channel(), first, third, second)

    assert [refused["line"] for refused in report["refused"]] == [4]
    assert await bring(chat, third, header=HEADER) == {"accepted": 1, "refused": [], "next_line": 3}


async def test_only_service_keys_move_and_erase(chat: Chat) -> None:
    bob = chat.as_user("bob")

    check_problem(await bob.call("GET", "/v1/export"), 403, "forbidden")
    check_problem(await bob.call("POST", "/v1/import", content=b"", headers=LINES), 403, "forbidden")
    check_problem(await bob.call("DELETE", "/v1/users/bob"), 403, "forbidden")


# ---------------------------------------------------------------- erase


async def erase(chat: Chat, user: str) -> Any:
    erased = await chat.ask("DELETE", f"/v1/users/{user}")
    await chat.settled()
    return erased


async def test_an_erased_user_leaves_only_messages(chat: Chat, clock: Clock) -> None:
    await a_lively_place(chat, clock)
    assert "bob" in [row["peer_id"] for row in (await chat.inbox("alice"))["conversations"]]
    members = (await chat.channel())["member_count"]

    gone = await erase(chat, "bob")

    assert gone["channels"] == 3
    assert gone["receipts"] >= 2
    traces = [record for record in await export(chat) if "bob" in json.dumps(record)]
    assert {record["type"] for record in traces} == {"message"}
    assert (await chat.channel())["member_count"] == members - 1
    check_problem(await chat.call("GET", f"{of('bob')}/unread"), 404, "not_a_member")
    assert (await chat.sync("bob", only_unread="false"))["channels"] == []
    assert await chat.badge("bob") == 0
    assert "bob" not in await chat.receipts()


async def test_others_are_not_told_of_an_erased_sender(tmp_path: Path) -> None:
    async with in_process(tmp_path) as chat:
        await chat.open_channel("alice", "bob", "carol")
        await chat.send("alice", "m1")
        await chat.send("bob", "m2")
        assert await chat.badge("carol") == 2

        await erase(chat, "bob")

        assert await chat.badge("carol") == 1
        assert [one["sender_id"] for one in (await chat.tap("carol"))["by_sender"]] == ["alice"]


async def test_erasing_nobody_or_twice_is_no_error(chat: Chat) -> None:
    nothing = {"channels": 0, "threads": 0, "receipts": 0, "badge": 0}
    await chat.open_channel("alice", "bob")
    assert await erase(chat, "nobody") == nothing

    await erase(chat, "bob")

    assert await erase(chat, "bob") == nothing
    assert (await chat.channel())["member_count"] == 1


async def test_an_erased_user_may_come_back_as_a_new_one(chat: Chat, clock: Clock) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", "m1", "m2")
    await chat.read("bob")
    await chat.prefer("bob", muted=True)
    await erase(chat, "bob")
    clock.advance(ms=1)  # what a cluster took up to that moment was under way

    await chat.join("bob", history=1)

    assert await chat.count("bob") == 1
    assert (await chat.unread("bob"))["muted"] is False


async def test_what_was_under_way_brings_nothing_back(chat: Chat) -> None:
    await chat.open_channel("alice", "bob")
    await chat.send("alice", *(f"m{number}" for number in range(20)))
    reads = [chat.call("POST", f"{of('bob')}/read", {"up_to_seq": seq}) for seq in range(1, 20)]
    words = [
        chat.call("POST", "/v1/messages", {"channel_id": GENERAL, "sender_id": "bob", "id": f"late{number}"})
        for number in range(5)
    ]

    await asyncio.gather(*reads[:10], *words, chat.call("DELETE", "/v1/users/bob"), *reads[10:])

    traces = [record["type"] for record in await export(chat) if "bob" in json.dumps(record)]
    assert set(traces) <= {"message", "channel"}
    assert (await chat.channel())["member_count"] == 1


async def test_a_device_of_an_erased_user_is_gone(chat: Chat) -> None:
    await chat.comes_online("bob")

    await erase(chat, "bob")

    assert await chat.presence("bob") == {"online": False, "last_seen": None, "devices": []}
