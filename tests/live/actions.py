"""Every kind of thing that can happen in the product, each as one action on a lively place."""

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.conftest import Chat

from .conftest import LiveService
from .device import Device

PEOPLE = ("alice", "bob", "carol", "dave", "erin")
CROWD = tuple(f"one of the crowd {number}" for number in range(1, 6))
FEW = 5
"""Channels of up to so many members are counted by ledgers; with the crowd, by timelines."""


class Scene:
    """A place where something is about to happen, and bob's laptop, which does what only devices can do."""

    def __init__(self, service: LiveService, laptop: Device, size: str) -> None:
        self.chat: Chat = service.chat
        self.service = service
        self.laptop = laptop
        self.here, self.pair = f"{size} group", f"{size} pair"
        self.hall, self.club, self.new = f"{size} hall", f"{size} club", f"{size} new"


async def a_lively_place(chat: Chat) -> None:
    """Twice, once small and once in a crowd: a group, a hall, a club and a pair, with all that makes them lively."""
    for size, crowd in (("small", ()), ("large", CROWD)):
        here, hall, club, pair = f"{size} group", f"{size} hall", f"{size} club", f"{size} pair"
        await chat.open_channel("alice", "bob", channel=pair, type="direct")
        await chat.open_channel("alice", "bob", "carol", "erin", *crowd, channel=here, name="Everybody")
        await chat.open_channel(*PEOPLE, *crowd, channel=hall, type="channel", name="The hall")
        await chat.open_channel("alice", *crowd, channel=club, type="channel")
        messages: list[dict[str, Any]] = [
            *({"channel_id": pair, "sender_id": "alice", "id": f"p{number}"} for number in (1, 2)),
            *({"channel_id": club, "sender_id": "alice", "id": f"c{number}"} for number in (1, 2, 3)),
            *({"channel_id": here, "sender_id": "alice", "id": f"m{number}"} for number in (1, 2)),
            {"channel_id": here, "sender_id": "alice", "id": "m3", "mentions": ["bob"]},
            *({"channel_id": here, "sender_id": "carol", "id": f"m{number}", "text": "hello"} for number in (4, 5)),
            *({"channel_id": hall, "sender_id": "carol", "id": f"h{n}", "mentions": ["@channel"]} for n in (1, 2)),
            {"channel_id": here, "sender_id": "bob", "id": "r1", "thread_id": "m1"},
            *({"channel_id": here, "sender_id": "carol", "id": f"r{n}", "thread_id": "m1"} for n in (2, 3)),
        ]
        assert {result["status"] for result in await chat.post_all(messages)} == {"accepted"}
        await chat.read("bob", here, up_to="m2")
        await chat.prefer("carol", hall, muted=True)
        await chat.prefer("dave", hall, count="mentions")


Act = Callable[[Scene], Awaitable[Any]]
ACTIONS: dict[str, Act] = {}


def action(act: Act) -> Act:
    ACTIONS[act.__name__.replace("_", " ").strip()] = act
    return act


def action_of(name: str, act: Act) -> None:
    ACTIONS[name] = act


# ---------------------------------------------------------------- messages

action_of("a message", lambda s: s.chat.send("alice", "n1", channel=s.here))
action_of("a message to two people", lambda s: s.chat.send("alice", "n1", channel=s.pair))
action_of("a message in a muted channel", lambda s: s.chat.send("alice", "n1", channel=s.hall))
action_of("a message that mentions one", lambda s: s.chat.send("alice", "n1", channel=s.hall, mentions=["dave"]))
action_of("a message that mentions all", lambda s: s.chat.send("alice", "n1", mentions=["@channel"], channel=s.here))
action_of(
    "a message that mentions those who are here",
    lambda s: s.chat.send("alice", "n1", mentions=["@here"], channel=s.here),
)
action_of("a silent message", lambda s: s.chat.send("alice", "n1", silent=True, mentions=["bob"], channel=s.here))
action_of("a backfill", lambda s: s.chat.post("alice", id="n1", backfill=True, at=1_700_000_000_000, channel=s.here))
action_of("a notice from outside", lambda s: s.chat.post("notices", id="n1", text="x", outside=True, channel=s.here))
action_of("a repeated message", lambda s: s.chat.post("alice", id="m1", text="again", channel=s.here))
action_of("a reply", lambda s: s.chat.reply("alice", "m1", "n1", channel=s.here))
action_of("a reply in a thread of one's own", lambda s: s.chat.reply("carol", "m3", "n1", channel=s.here))
action_of("a reply that mentions one", lambda s: s.chat.reply("alice", "m1", "n1", mentions=["bob"], channel=s.here))
action_of(
    "a reply that mentions a newcomer", lambda s: s.chat.reply("alice", "h1", "n1", channel=s.hall, mentions=["dave"])
)
action_of(
    "a reply also to the channel", lambda s: s.chat.reply("alice", "m1", "n1", also_to_channel=True, channel=s.here)
)
action_of("an edit", lambda s: s.chat.edit("m5", text="another text", channel=s.here))
action_of("an edit of the text of an old one", lambda s: s.chat.edit("m4", text="another text", channel=s.here))
action_of("a mention edited in", lambda s: s.chat.edit("m5", mentions=["bob", "alice"], channel=s.here))
action_of("a mention edited out", lambda s: s.chat.edit("m3", mentions=[], channel=s.here))
action_of("a delete", lambda s: s.chat.delete("m4", channel=s.here))
action_of("a delete of the newest", lambda s: s.chat.delete("m5", channel=s.here))
action_of("a delete of the first unread", lambda s: s.chat.delete("m3", channel=s.here))
action_of("a delete of a reply", lambda s: s.chat.delete("r3", channel=s.here))
action_of("a delete of the root of a thread", lambda s: s.chat.delete("m1", channel=s.here))
action_of("a delete of something that never came", lambda s: s.chat.delete("never", channel=s.here))


@action
async def many_messages_at_once(s: Scene) -> None:
    """One batch, so that the hot state has all of them when the first is announced."""
    batch: list[dict[str, Any]] = [
        {"channel_id": channel, "sender_id": user, "text": "x"}
        for _ in range(5)
        for channel in (s.hall, s.here)
        for user in ("alice", "bob")
    ]
    batch[3]["mentions"] = ["bob"]
    batch[6]["silent"] = True
    batch[10]["thread_id"] = "m1"
    assert {result["status"] for result in await s.chat.post_all(batch)} == {"accepted"}


# ---------------------------------------------------------------- reading

action_of("everything read", lambda s: s.chat.read("bob", channel=s.here))
action_of("read up to a message", lambda s: s.chat.read("bob", up_to="m4", channel=s.here))
action_of("read up to a seq", lambda s: s.chat.read("bob", up_to_seq=4, channel=s.here))
action_of("read up to now", lambda s: s.chat.read("bob", up_to_time=int(time.time() * 1000), channel=s.here))
action_of("read one by one", lambda s: s.chat.read("bob", messages=["m4"], channel=s.here))
action_of("read of what is read", lambda s: s.chat.read("bob", up_to="m1", channel=s.here))
action_of("mark unread", lambda s: s.chat.mark_unread("bob", "m2", channel=s.here))
action_of("mark unread of what one wrote oneself", lambda s: s.chat.mark_unread("carol", "m4", channel=s.here))
action_of("a list read", lambda s: s.chat.read_all("bob", items=[{"channel_id": s.pair}, {"channel_id": s.here}]))
action_of("all read", lambda s: s.chat.read_all("bob"))
action_of("reads of many users", lambda s: s.chat.read_many(*({"user_id": u, "channel_id": s.hall} for u in PEOPLE)))
action_of("a thread read", lambda s: s.chat.read_thread("alice", "m1", channel=s.here))
action_of("a thread read up to a reply", lambda s: s.chat.read_thread("alice", "m1", up_to="r2", channel=s.here))
action_of("a read by a device", lambda s: s.laptop.ask("mark_read", channel_id=s.here))
action_of("a partial read by a device", lambda s: s.laptop.ask("mark_read", channel_id=s.here, up_to="m4"))
action_of("mark unread by a device", lambda s: s.laptop.ask("mark_unread", channel_id=s.here, **{"from": "m1"}))
action_of("a thread read by a device", lambda s: s.laptop.ask("mark_read", channel_id=s.here, thread_id="m1"))


@action
async def all_read_and_undone(s: Scene) -> None:
    undo = (await s.chat.read_all("bob"))["undo"]
    assert (await s.chat.undo("bob", undo))["changed"]


@action
async def mark_unread_of_what_was_read_one_by_one(s: Scene) -> None:
    await s.chat.read("bob", messages=["m4", "m5"], channel=s.here)
    await s.chat.mark_unread("bob", "m5", channel=s.here)


# ---------------------------------------------------------------- preferences

action_of("a mute", lambda s: s.chat.prefer("bob", muted=True, channel=s.here))
action_of(
    "a mute with an end", lambda s: s.chat.prefer("bob", muted=int(time.time() * 1000) + 3_600_000, channel=s.here)
)
action_of("a mute that is over", lambda s: s.chat.prefer("carol", s.hall, muted=False))
action_of("only mentions counted", lambda s: s.chat.prefer("bob", count="mentions", channel=s.here))
action_of("nothing counted", lambda s: s.chat.prefer("bob", count="none", channel=s.here))
action_of("all counted again", lambda s: s.chat.prefer("dave", s.hall, count="all"))
action_of("private receipts", lambda s: s.chat.prefer("bob", receipts="private", channel=s.here))
action_of("private receipts everywhere", lambda s: s.chat.prefer_everywhere("bob", receipts="private"))
action_of("a pin", lambda s: s.chat.prefer("bob", pinned=True, channel=s.here))
action_of("a conversation archived", lambda s: s.chat.prefer("bob", archived=True, channel=s.here))


@action
async def a_conversation_archived_and_written_in(s: Scene) -> None:
    await s.chat.prefer("bob", archived=True, channel=s.here)
    await s.chat.send("alice", "n1", channel=s.here)


@action
async def messages_where_only_mentions_count(s: Scene) -> None:
    await s.chat.prefer("bob", count="mentions", channel=s.here)
    await s.chat.send("alice", "n1", channel=s.here)
    await s.chat.send("alice", "n2", mentions=["bob"], channel=s.here)


@action
async def messages_where_nothing_counts(s: Scene) -> None:
    await s.chat.prefer("bob", count="none", channel=s.here)
    await s.chat.read("bob", channel=s.here)
    await s.chat.send("alice", "n1", channel=s.here)
    await s.chat.send("alice", "n2", mentions=["bob"], channel=s.here)


# ---------------------------------------------------------------- channels and members

action_of("a join", lambda s: s.chat.join("bob", channel=s.club))
action_of("a join with all history unread", lambda s: s.chat.join("bob", channel=s.club, history="unread"))
action_of("a join with some history unread", lambda s: s.chat.join("bob", channel=s.club, history=2))
action_of("a leave", lambda s: s.chat.leave("bob", channel=s.here))
action_of("a leave of one of two", lambda s: s.chat.leave("alice", channel=s.pair))
action_of("a new channel", lambda s: s.chat.open_channel("bob", "carol", channel=s.new, name="New"))
action_of("a new name", lambda s: s.chat.change_channel(s.here, name="Another name"))
action_of("a new picture", lambda s: s.chat.change_channel(s.here, avatar="https://pictures.example/1"))
action_of("another type", lambda s: s.chat.change_channel(s.here, type="channel"))
action_of("a channel archived", lambda s: s.chat.change_channel(s.here, archived=True))
action_of("a channel deleted", lambda s: s.chat.delete_channel(s.here))
action_of("members added by a change", lambda s: s.chat.change_channel(s.here, members=["dave"]))


@action
async def a_leave_and_a_return(s: Scene) -> None:
    await s.chat.leave("bob", channel=s.here)
    await s.chat.send("alice", "n1", "n2", channel=s.here)
    await s.chat.join("bob", history="unread", channel=s.here)


@action
async def a_join_at_the_same_time_as_messages(s: Scene) -> None:
    await s.chat.join("bob", channel=s.club, history="unread")
    await s.chat.send("alice", "n1", channel=s.club)


@action
async def a_channel_archived_and_back(s: Scene) -> None:
    await s.chat.change_channel(s.here, archived=True)
    await s.chat.change_channel(s.here, archived=False)
    await s.chat.send("alice", "n1", channel=s.here)


@action
async def a_channel_deleted_and_made_again(s: Scene) -> None:
    await s.chat.delete_channel(s.here)
    await s.chat.open_channel("alice", "bob", channel=s.here)
    await s.chat.send("alice", "n1", "n2", channel=s.here)


# ---------------------------------------------------------------- threads, badge, repairs, moving

action_of("a follow", lambda s: s.chat.follow("bob", "h1", channel=s.hall))
action_of("an unfollow", lambda s: s.chat.unfollow("bob", "m1", channel=s.here))
action_of("a tap", lambda s: s.chat.tap("bob"))
action_of("a tap by a device", lambda s: s.laptop.ask("badge.tap"))
action_of("a recount", lambda s: s.chat.recount("bob", channel=s.here))
action_of("the hot state dropped", lambda s: s.service.rs.evict())
action_of("another user erased", lambda s: s.chat.ask("DELETE", "/v1/users/alice"))
action_of("a user erased who has read", lambda s: s.chat.ask("DELETE", "/v1/users/carol"))


@action
async def a_follow_then_replies(s: Scene) -> None:
    await s.chat.follow("bob", "h1", channel=s.hall)
    await s.chat.reply("alice", "h1", "n1", "n2", channel=s.hall)
    await s.chat.delete("n2", s.hall)


@action
async def the_hot_state_dropped_and_then_messages(s: Scene) -> None:
    await s.service.rs.evict()
    await s.chat.send("alice", "n1", mentions=["bob"], channel=s.here)
    await s.chat.reply("alice", "m1", "n2", channel=s.here)


async def bring(chat: Chat, *records: dict[str, Any]) -> None:
    """Imports records."""
    lines = [{"type": "readstate", "version": 1}, *records]
    content = "\n".join(json.dumps(line) for line in lines).encode()
    report = await chat.ask("POST", "/v1/import", content=content, headers={"content-type": "application/x-ndjson"})
    assert report["refused"] == [], report


@action
async def an_import(s: Scene) -> None:
    members = ({"type": "member", "channel_id": s.new, "user_id": user} for user in ("alice", "bob"))
    await bring(s.chat, {"type": "channel", "channel_id": s.new, "kind": "group"}, *members)
    await s.chat.send("alice", "n1", channel=s.new)


@action
async def an_import_into_a_channel(s: Scene) -> None:
    now = int(time.time() * 1000)
    message = {"type": "message", "channel_id": s.here, "id": "n1", "at": now, "sender_id": "alice", "text": "moved"}
    await bring(s.chat, message)
