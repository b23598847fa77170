"""What every durable store promises of threads, receipts and archives."""

import pytest
from msgspec import structs

from readstate.domain.events import (
    ChannelEvent,
    DeleteEvent,
)
from readstate.domain.model import ChangeNumber, Mode, Preferences, ReadState
from readstate.domain.rules import has_seen, receipt_seq
from readstate.ports import Activity, Durable

from .conftest import CAP
from .people import NOW, ROOM, a_channel_with_three, apply, members, read, say


@pytest.fixture(autouse=True)
async def _opened(durable: Durable) -> None:
    await a_channel_with_three(durable)


async def unread_replies(durable: Durable, user: str) -> list[str] | None:
    """The unread replies of a follower; None for somebody who doesn't follow."""
    user_rooms = {user_room.channel_id: user_room for user_room in await durable.load_user(user)}
    if ROOM not in user_rooms or not user_rooms[ROOM].member:
        return None
    [load] = await durable.load_ledgers([(user, ROOM, Mode.LEDGER, user_rooms[ROOM].pointer.state)], CAP)
    return [entry.id for entry in load.entries]


async def test_a_thread_is_a_room_whose_members_follow_it(durable: Durable) -> None:
    await apply(durable, say("root"), say("r1", "bob", thread_id="root"), say("r2", "bob", thread_id="root"))
    assert await unread_replies(durable, "alice") == ["r1", "r2"]
    assert await unread_replies(durable, "bob") == []
    assert await unread_replies(durable, "carol") is None
    room = (await durable.load_channels([ROOM]))[ROOM]
    assert (room.type, room.last_seq, room.member_count) == ("thread", 2, 2)
    assert room.latest is not None
    assert (room.latest.id, room.latest.seq) == ("r2", 2)


async def test_following_by_hand_begins_at_the_end_and_a_mention_at_its_reply(durable: Durable) -> None:
    await apply(durable, say("root"), say("r1", "bob", thread_id="root"))
    await apply(durable, members("carol", thread_id="root"))
    assert await unread_replies(durable, "carol") == []
    await apply(durable, members(remove=("carol",), thread_id="root"))
    assert await unread_replies(durable, "carol") is None
    later = [say("r2", "bob", thread_id="root"), say("r3", "bob", thread_id="root", mentions=("carol",))]
    await apply(durable, *later)
    assert await unread_replies(durable, "carol") == ["r3"]


async def test_a_deleted_reply_is_neither_unread_nor_the_latest(durable: Durable) -> None:
    replies = [say(f"r{n}", "bob", thread_id="root") for n in (1, 2)]
    await apply(durable, say("root"), *replies, DeleteEvent(channel_id="c", created_at=NOW, id="r2"))
    assert await unread_replies(durable, "alice") == ["r1"]
    latest = (await durable.load_channels([ROOM]))[ROOM].latest
    assert latest is not None
    assert latest.id == "r1"


async def test_a_deleted_channel_takes_its_threads_and_badges_along(durable: Durable) -> None:
    await apply(durable, say("root"), say("r1", "bob", thread_id="root"))
    assert await durable.badge_count("alice") == 1
    await apply(durable, ChannelEvent(channel_id="c", created_at=NOW, action="delete"))
    assert await durable.badge_count("alice") == 0
    assert await unread_replies(durable, "alice") is None
    assert (await durable.load_channels([ROOM]))[ROOM].deleted


# ---------------------------------------------------------------- receipts


async def seen_by(durable: Durable, seq: int) -> list[tuple[str, int]]:
    """(user, read at) of those other than alice who have read a place, by time."""
    found = [one for one in await durable.readers("c") if one.user_id != "alice"]
    seen = [(one.user_id, one.pointer.read_at) for one in found if has_seen(one.pointer, seq, one.skipped)]
    assert await durable.seen_count("c", "alice", seq) == len(seen)
    return sorted(seen, key=lambda reader: reader[1])


async def readers(durable: Durable) -> dict[str, int]:
    """How far those have read who have read anything."""
    found = {one.user_id: receipt_seq(one.pointer.seq, one.skipped) for one in await durable.readers("c")}
    return {user: seq for user, seq in found.items() if seq}


async def test_readers_by_the_time_they_read_without_the_sender(durable: Durable) -> None:
    await apply(durable, say("m1"), say("m2"), say("m3"))
    await durable.merge([read("bob", 2, (), read_at=NOW + 9), read("carol", 1, (3,), read_at=NOW + 5)])
    assert await seen_by(durable, 1) == [("carol", NOW + 5), ("bob", NOW + 9)]
    assert await seen_by(durable, 2) == [("bob", NOW + 9)]
    assert await seen_by(durable, 3) == [("carol", NOW + 5)]
    assert [await durable.seen_count("c", "alice", seq) for seq in (1, 2, 3)] == [2, 1, 1]


async def test_what_joins_alone_marked_is_no_receipt(durable: Durable) -> None:
    await apply(durable, say("m1"), say("m2"), members("dave"), members(remove=("dave",)))
    await apply(durable, say("m3"), members("dave"))
    assert [await durable.seen_count("c", "alice", seq) for seq in (1, 2, 3)] == [0, 0, 0]
    assert "dave" not in await readers(durable)
    await apply(durable, say("m4"))
    await durable.merge([read("dave", 4)])
    assert [await durable.seen_count("c", "alice", seq) for seq in (1, 3, 4)] == [0, 0, 1]
    assert (await readers(durable))["dave"] == 4


async def test_what_is_marked_unread_and_read_again_is_a_receipt(durable: Durable) -> None:
    await apply(durable, say("m1"), say("m2"), say("m3"), members("dave"))
    await durable.cut_skipped("dave", "c", 2)
    await durable.merge([read("dave", 1, epoch=1)])
    assert [await durable.seen_count("c", "alice", seq) for seq in (1, 2, 3)] == [0, 0, 0]
    await durable.merge([read("dave", 3, epoch=1)])
    assert [await durable.seen_count("c", "alice", seq) for seq in (1, 2, 3)] == [0, 1, 1]


async def test_private_readers_and_those_who_left_are_in_no_answer(durable: Durable) -> None:
    await apply(durable, say("m1"))
    await durable.merge([read("bob", 1), read("carol", 1)])
    await durable.save_preferences("bob", "c", Preferences(receipts="private"), 1)
    assert await seen_by(durable, 1) == [("carol", NOW)]
    await durable.save_receipts("carol", "private", 1)
    assert await seen_by(durable, 1) == []
    assert await durable.seen_count("c", "alice", 1) == 0
    assert list(await readers(durable)) == ["alice"]
    await apply(durable, members(remove=("alice",)))
    assert await readers(durable) == {}


# ---------------------------------------------------------------- archives


async def test_in_which_channels_somebody_else_has_written(durable: Durable) -> None:
    await apply(durable, say("m1"), say("m2", "bob"), say("m3", "bob"))
    assert await durable.wrote_since("bob", [("c", 0)]) == ["c"]
    assert await durable.wrote_since("bob", [("c", 1)]) == []
    assert await durable.wrote_since("alice", [("c", 1), ("elsewhere", 0)]) == ["c"]
    await apply(durable, say("r1", thread_id="m2"), say("old", backfill=True))
    assert await durable.wrote_since("bob", [("c", 1)]) == []


async def test_preferences_outlive_leaving(durable: Durable) -> None:
    wanted = Preferences(0, "mentions", "private", True, 5)
    await durable.save_preferences("bob", "c", wanted, 1)
    await apply(durable, members(remove=("bob",)), members("bob"))
    [user_room] = await durable.load_user("bob")
    assert user_room.preferences == structs.replace(wanted, change=1)
    assert user_room.pointer.state == ReadState()


async def test_an_older_change_number_never_replaces_newer_preferences(durable: Durable) -> None:
    newer = Preferences(5, "mentions", "private", True, 5)
    await durable.save_preferences("bob", "c", newer, 8)
    await durable.save_preferences("bob", "c", Preferences(), 7)
    [user_room] = await durable.load_user("bob")
    assert user_room.preferences == structs.replace(newer, change=8)
    await durable.save_preferences("bob", "c", Preferences(pinned=True), 9)
    [user_room] = await durable.load_user("bob")
    assert user_room.preferences == Preferences(pinned=True, change=ChangeNumber(9))


async def test_an_older_change_number_never_replaces_a_newer_wish_for_all_channels(durable: Durable) -> None:
    await durable.save_receipts("bob", "private", 8)
    await durable.save_receipts("bob", "public", 7)
    assert (await durable.activity("bob")).receipts == "private"
    await durable.save_seen("bob", 50)
    await durable.save_receipts("bob", "public", 9)
    assert await durable.activity("bob") == Activity(0, 50, "public")
