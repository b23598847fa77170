"""A library call names channels, never the room of a thread. What earlier versions did to such rooms does no harm."""

from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from readstate import Readstate
from readstate.adapters.sql.export import record_of
from readstate.api import (
    ChangeMembers,
    ChannelRead,
    MarkUnread,
    MessageEdit,
    NewMessage,
    PutChannel,
    PutPreferences,
    PutPresence,
    ReadAll,
    ReadTarget,
    ThreadRead,
    UserRead,
)
from readstate.domain.errors import ChannelNotFound, InvalidId
from readstate.domain.events import ChannelEvent, Delivery, MembersEvent
from readstate.domain.facts import Facts
from readstate.domain.folding.messages import fold
from readstate.domain.model import Channel, Preferences
from readstate.domain.rooms import thread_room
from readstate.transfer.records import FollowLine, ThreadLine

ROOM = thread_room("c", "root")

CALLS: dict[str, Callable[[Readstate], Coroutine[Any, Any, Any]]] = {
    "put": lambda rs: rs.channels.put(ROOM, PutChannel(type="group")),
    "get": lambda rs: rs.channels.get(ROOM),
    "delete": lambda rs: rs.channels.delete(ROOM),
    "change members": lambda rs: rs.channels.change_members(ROOM, ChangeMembers(add=("cid",))),
    "members": lambda rs: rs.channels.members(ROOM),
    "a message": lambda rs: rs.messages.get(ROOM, "r1"),
    "edit": lambda rs: rs.messages.edit(ROOM, "r1", MessageEdit(text="x")),
    "delete a message": lambda rs: rs.messages.delete(ROOM, "r1"),
    "mark read": lambda rs: rs.reads.mark_read("ann", ROOM, ReadTarget()),
    "mark unread": lambda rs: rs.reads.mark_unread("ann", ROOM, MarkUnread(from_="r1")),
    "mark all": lambda rs: rs.reads.mark_all("ann", ReadAll(items=(ChannelRead(channel_id=ROOM),))),
    "unread": lambda rs: rs.unread.of_channel("ann", ROOM),
    "sync": lambda rs: rs.unread.sync("ann", channels=[ROOM]),
    "unread messages": lambda rs: rs.unread.messages("ann", channel=ROOM),
    "explain": lambda rs: rs.explain.explain("ann", ROOM),
    "recount": lambda rs: rs.explain.recount("ann", ROOM),
    "preferences": lambda rs: rs.preferences.get("ann", ROOM),
    "prefer": lambda rs: rs.preferences.put("ann", ROOM, PutPreferences(pinned=True)),
    "follow": lambda rs: rs.threads.follow("ann", ROOM, "r1"),
    "read a thread": lambda rs: rs.threads.read("ann", ROOM, "r1", ThreadRead()),
    "threads": lambda rs: rs.threads.panel("ann", channel=ROOM),
    "seen": lambda rs: rs.receipts.seen(ROOM, "r1"),
    "receipts": lambda rs: rs.receipts.of_channel(ROOM),
    "a device": lambda rs: rs.presence.put("ann", PutPresence(device="phone", online=True, focus=ROOM)),
    "focus": lambda rs: rs.presence.focus("ann", "phone", "connection", ROOM),
    "figures": lambda rs: rs.renderer.unread("ann", ROOM),
    "membership": lambda rs: rs.is_member("ann", ROOM),
}


@pytest.fixture
async def rs(tmp_path: Path) -> AsyncIterator[Readstate]:
    """Ann and bob have a thread in a channel."""
    async with Readstate.open(data_dir=str(tmp_path)) as rs:
        await rs.channels.put("c", PutChannel(type="group", members=("ann", "bob")))
        await rs.messages.send([NewMessage(channel_id="c", sender_id="ann", id="root", text="root")])
        await rs.messages.send([NewMessage(channel_id="c", sender_id="bob", id="r1", thread_id="root", text="reply")])
        yield rs


@pytest.mark.parametrize("call", CALLS)
async def test_no_call_takes_the_room_of_a_thread_as_a_channel(rs: Readstate, call: str) -> None:
    with pytest.raises(InvalidId):
        await CALLS[call](rs)


async def test_of_many_only_those_that_name_a_room_are_rejected(rs: Readstate) -> None:
    reads = [UserRead(user_id="ann", channel_id=name) for name in (ROOM, "c")]
    assert [outcome.status for outcome in await rs.reads.mark_many(reads)] == ["rejected", "ok"]
    sent = await rs.messages.send([NewMessage(channel_id=name, sender_id="ann") for name in (ROOM, "c")])
    assert [result.code for result in sent] == ["invalid_id", None]


async def test_a_thread_that_was_pinned_by_its_room_is_in_no_inbox(rs: Readstate) -> None:
    known = (await rs.loader.user_room("ann", ROOM)).preferences
    assert await rs.preferences._save("ann", ROOM, known, Preferences(pinned=True, archived_seq=0))
    for options in ({}, {"filter": "archived"}, {"order": "unread_first"}, {"filter": "unread"}):
        page = await rs.inbox.page("ann", **options)  # type: ignore[arg-type]
        assert all(row.channel_id == "c" for row in page.conversations)
    assert (await rs.threads.panel("ann")).totals.unread == 1


def test_a_thread_that_was_deleted_by_its_room_is_exported_as_one() -> None:
    room = {"type": "channel", "channel_id": ROOM, "kind": "group", "deleted": True, "last_seq": 1}
    follower = {"type": "member", "channel_id": ROOM, "user_id": "ann", "active": False, "joined_at": 1}
    assert record_of("rooms", json.encode(room).decode()) == ThreadLine(
        channel_id="c", thread_id="root", deleted=True, last_seq=1
    )
    line = record_of("members", json.encode(follower).decode())
    assert isinstance(line, FollowLine)
    assert (line.channel_id, line.thread_id, line.active) == ("c", "root", False)


@pytest.mark.parametrize(
    "event",
    [
        ChannelEvent(channel_id=ROOM, created_at=1, action="delete"),
        ChannelEvent(channel_id=ROOM, created_at=1, type="group"),
        MembersEvent(channel_id=ROOM, created_at=1, add=("cid",)),
    ],
)
def test_an_event_of_the_log_that_names_a_room_is_refused(event: ChannelEvent | MembersEvent) -> None:
    facts = Facts(channels={"c": Channel("c"), ROOM: Channel(ROOM, type="thread", member_count=2)})
    changes, [effect] = fold([Delivery(event, 1)], facts, 100, ())
    assert isinstance(effect.error, ChannelNotFound)
    assert (changes.channels, changes.members, changes.purged) == ({}, {}, set())
