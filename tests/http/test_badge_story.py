"""The offline badge: how many different people wrote while the user was away. Told in both modes of counting."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Chat, Clock, in_process

PEOPLE = ["alice", "carol", "dave", "erin"]


@pytest.fixture(params=["precomputed", "on_the_fly"])
async def chat(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Chat]:
    """Bob has a direct channel with each of four people; larger channels than of six count by timeline."""
    async with in_process(tmp_path, clock=clock, badge_mode=request.param, fanout_max_members=6) as chat:
        for person in PEOPLE:
            await chat.open_channel(person, "bob", channel=f"{person} and bob", type="direct")
        yield chat


async def write(chat: Chat, clock: Clock, *messages: tuple[str, str]) -> None:
    """Each sender writes to bob, a second apart."""
    for sender, id_ in messages:
        clock.advance(seconds=1)
        await chat.send(sender, id_, channel=f"{sender} and bob")


async def test_six_messages_from_four_people_show_4_and_again_after_going_away_again(chat: Chat, clock: Clock) -> None:
    # If 6 messages come from 4 different users while offline, the counter shows 4.
    six = [("alice", "a1"), ("carol", "c1"), ("alice", "a2"), ("dave", "d1"), ("erin", "e1"), ("carol", "c2")]
    await write(chat, clock, *six)
    await chat.comes_online("bob")
    assert await chat.badge("bob") == 4

    # When the user taps the counter, they see all unread messages from different users, and it resets to 0.
    tap = await chat.tap("bob")
    assert tap["senders"] == 4
    assert ids_by_sender(tap) == {"carol": ["c2", "c1"], "erin": ["e1"], "dave": ["d1"], "alice": ["a2", "a1"]}
    assert await chat.badge("bob") == 0

    # The counter reset is not dependent on whether the user views each individual's message or not.
    assert (await chat.totals("bob"))["unread"] == 6

    # If the user goes offline again and receives 2 new messages from 1 user, the counter shows 1 when back online.
    await chat.goes_away("bob")
    await write(chat, clock, ("carol", "c3"), ("carol", "c4"))
    await chat.comes_online("bob")
    assert await chat.badge("bob") == 1
    assert ids_by_sender(await chat.tap("bob")) == {"carol": ["c4", "c3"]}
    assert await chat.badge("bob") == 0


def ids_by_sender(tap: Any) -> dict[str, list[str]]:
    """What a tap shows, in its order."""
    return {one["sender_id"]: [message["id"] for message in one["messages"]] for one in tap["by_sender"]}


async def test_what_comes_while_a_device_is_connected_is_not_on_the_badge(chat: Chat, clock: Clock) -> None:
    await chat.comes_online("bob", "phone")
    await chat.comes_online("bob", "laptop")
    await write(chat, clock, ("alice", "both connected"))
    await chat.goes_away("bob", "phone")
    await write(chat, clock, ("carol", "one connected"))
    assert await chat.badge("bob") == 0

    await chat.goes_away("bob", "laptop")
    await write(chat, clock, ("dave", "none connected"))
    assert await chat.badge("bob") == 1


async def test_a_device_that_was_not_reported_in_time_is_gone(chat: Chat, clock: Clock) -> None:
    await chat.comes_online("bob", ttl=60)
    await write(chat, clock, ("alice", "in time"))
    clock.advance(seconds=60)
    await write(chat, clock, ("carol", "too late"))
    assert ids_by_sender(await chat.tap("bob")) == {"carol": ["too late"]}


async def test_reading_does_not_lower_the_badge_and_a_tap_reads_nothing(chat: Chat, clock: Clock) -> None:
    await write(chat, clock, ("alice", "a1"), ("carol", "c1"))
    await chat.read_all("bob")
    assert await chat.badge("bob") == 2

    await write(chat, clock, ("alice", "a2"))
    await chat.tap("bob")
    assert await chat.count("bob", "alice and bob") == 1


async def test_a_second_tap_shows_nothing(chat: Chat, clock: Clock) -> None:
    await write(chat, clock, ("alice", "a1"))
    first = await chat.tap("bob")
    second = await chat.tap("bob")
    assert (second["senders"], second["by_sender"]) == (0, [])
    assert second["tapped_at"] >= first["tapped_at"]


async def test_the_badge_tells_since_when_it_counts(chat: Chat, clock: Clock) -> None:
    assert await chat.ask("GET", "/v1/users/bob/badge") == {"senders": 0, "label": "", "since": None}
    tap = await chat.tap("bob")
    await write(chat, clock, ("alice", "a1"))
    assert await chat.ask("GET", "/v1/users/bob/badge") == {"senders": 1, "label": "1", "since": tap["tapped_at"]}


async def test_case_7_a_thousand_messages_in_one_millisecond_and_a_tap_ten_later(chat: Chat, clock: Clock) -> None:
    people = [f"person {n}" for n in range(250)]
    for person in people:
        await chat.open_channel(person, "bob", channel=f"with {person}", type="direct")
    batch = [{"channel_id": f"with {person}", "sender_id": person} for person in people for _ in range(4)]

    results = await chat.post_all(batch)
    assert all(result["status"] == "accepted" for result in results)
    assert await chat.badge("bob") == 250
    clock.advance(ms=10)
    assert (await chat.tap("bob"))["senders"] == 250
    assert await chat.badge("bob") == 0

    clock.advance(ms=1)
    await chat.send("person 7", "later", channel="with person 7")
    assert await chat.badge("bob") == 1


async def test_what_is_written_after_a_tap_counts_even_in_the_same_millisecond(chat: Chat) -> None:
    await chat.send("alice", "before", channel="alice and bob")
    await chat.tap("bob")
    await chat.send("alice", "after", channel="alice and bob")
    assert ids_by_sender(await chat.tap("bob")) == {"alice": ["after"]}


async def test_amid_messages_no_tap_shows_what_another_has_shown_and_none_is_brought_back(chat: Chat) -> None:
    """What is accepted before a tap and processed after it is on no badge; it is still unread."""

    async def talk() -> None:
        for n in range(40):
            await chat.send("alice", f"a{n}", channel="alice and bob")

    talking = asyncio.create_task(talk())
    shown: list[str] = []
    while not talking.done():
        shown += ids_by_sender(await chat.tap("bob")).get("alice", [])
    await talking
    shown += ids_by_sender(await chat.tap("bob")).get("alice", [])
    assert len(shown) == len(set(shown))
    assert await chat.badge("bob") == 0
    assert await chat.count("bob", "alice and bob") == 40


async def test_a_deleted_message_stays_on_the_badge_but_its_text_is_shown_to_nobody(chat: Chat, clock: Clock) -> None:
    await write(chat, clock, ("alice", "a1"))
    await chat.delete("a1", "alice and bob")
    assert await chat.badge("bob") == 1
    [alice] = (await chat.tap("bob"))["by_sender"]
    [message] = alice["messages"]
    assert (message["id"], message["deleted"], message["text"], message["preview"]) == ("a1", True, None, None)


async def test_what_hangs_on_a_deleted_channel_leaves_the_badge(chat: Chat, clock: Clock) -> None:
    await write(chat, clock, ("alice", "a1"), ("carol", "c1"))
    assert await chat.badge("bob") == 2
    await chat.delete_channel("alice and bob")
    assert await chat.badge("bob") == 1
    await chat.evict()
    assert await chat.badge("bob") == 1
    assert ids_by_sender(await chat.tap("bob")) == {"carol": ["c1"]}


async def test_muted_channels_are_left_out_until_the_mute_ends_or_somebody_mentions_the_user(
    chat: Chat, clock: Clock
) -> None:
    await chat.prefer("bob", "alice and bob", muted=clock() + 60_000)
    await write(chat, clock, ("alice", "muted"))
    assert await chat.badge("bob") == 0

    await chat.send("alice", "named", channel="alice and bob", mentions=["bob"])
    assert ids_by_sender(await chat.tap("bob")) == {"alice": ["named"]}

    clock.advance(seconds=60)
    await write(chat, clock, ("alice", "loud again"))
    assert await chat.badge("bob") == 1


@pytest.mark.parametrize("kind", ["channel", "crowd"])
async def test_in_open_and_in_large_channels_only_mentions_by_id_count(chat: Chat, kind: str) -> None:
    others = [f"one of many {n}" for n in range(7)] if kind == "crowd" else []
    await chat.open_channel(*PEOPLE, "bob", *others, type="group" if others else "channel")
    await chat.send("alice", "to all")
    await chat.send("carol", "louder", mentions=["@channel"])
    assert await chat.badge("bob") == 0
    await chat.send("dave", "to bob", mentions=["bob"])
    assert ids_by_sender(await chat.tap("bob")) == {"dave": ["to bob"]}


async def test_silent_messages_backfills_and_ones_own_never_count(chat: Chat) -> None:
    await chat.send("alice", "silent", channel="alice and bob", silent=True, mentions=["bob"])
    await chat.send("alice", "old", channel="alice and bob", backfill=True, mentions=["bob"])
    await chat.send("bob", "own", channel="alice and bob", mentions=["bob"])
    assert await chat.badge("bob") == 0
    assert await chat.badge("alice") == 1


async def test_replies_count_for_those_who_follow_the_thread(chat: Chat) -> None:
    await chat.open_channel(*PEOPLE, "bob", type="channel")
    await chat.send("bob", "root")
    await chat.reply("alice", "root", "to the author")
    await chat.follow("carol", "root")
    await chat.reply("dave", "root", "to followers")
    assert ids_by_sender(await chat.tap("bob")) == {"dave": ["to followers"], "alice": ["to the author"]}
    assert await chat.badge("alice") == 1
    assert await chat.badge("carol") == 1
    assert await chat.badge("erin") == 0


async def test_nobody_is_told_of_a_channel_they_have_left(chat: Chat) -> None:
    await chat.open_channel(*PEOPLE, "bob", type="channel")
    await chat.send("bob", "root")
    await chat.reply("alice", "root", "still there")
    await chat.tap("bob")
    await chat.leave("bob")
    await chat.reply("alice", "root", "gone", mentions=["bob"])
    assert await chat.badge("bob") == 0


async def test_a_tap_shows_nothing_of_channels_that_were_left_and_counts_their_senders(
    chat: Chat, clock: Clock
) -> None:
    await chat.open_channel("bob", "erin", "frank", channel="club", type="channel")
    await chat.send("bob", "root", channel="club")
    await write(chat, clock, ("alice", "a1"), ("carol", "c1"))
    await chat.reply("erin", "root", "r1", channel="club")
    await chat.send("frank", "f1", channel="club", mentions=["bob"])
    await chat.leave("bob", channel="carol and bob")
    await chat.leave("bob", channel="club")
    await chat.edit("c1", "carol and bob", text="a text for those who are there")

    assert await chat.badge("bob") == 4
    tap = await chat.tap("bob")
    assert (tap["senders"], ids_by_sender(tap)) == (4, {"alice": ["a1"]})
    assert await chat.badge("bob") == 0


async def test_a_tap_shows_a_channel_again_that_was_left_and_rejoined(chat: Chat, clock: Clock) -> None:
    await write(chat, clock, ("alice", "a1"))
    await chat.leave("bob", channel="alice and bob")
    await chat.join("bob", channel="alice and bob")

    assert ids_by_sender(await chat.tap("bob")) == {"alice": ["a1"]}


async def test_the_pages_of_a_tap_show_nothing_of_a_channel_that_was_left_meanwhile(tmp_path: Path) -> None:
    async with in_process(tmp_path, max_page=2) as chat:
        for channel in ("one", "two"):
            await chat.open_channel("alice", "bob", channel=channel, type="direct")
            await chat.send("alice", *(f"{channel} {n}" for n in range(3)), channel=channel)
        first = await chat.tap("bob")
        await chat.leave("bob", channel="one")

        path, page = "/v1/users/bob/badge/tap", first
        shown = []
        while page["cursor"] is not None:
            page = await chat.ask("POST", path, {"cursor": page["cursor"]})
            shown += [message for ids in ids_by_sender(page).values() for message in ids]

        assert ids_by_sender(first) == {"alice": ["two 2", "two 1"]}
        assert (shown, page["senders"]) == (["two 0"], 1)


async def test_the_badge_survives_a_loss_of_memory(chat: Chat, clock: Clock) -> None:
    await write(chat, clock, ("alice", "a1"), ("carol", "c1"))
    await chat.tap("bob")
    await write(chat, clock, ("dave", "d1"))
    await chat.evict()
    assert await chat.badge("bob") == 1
    assert ids_by_sender(await chat.tap("bob")) == {"dave": ["d1"]}
    await chat.evict()
    assert await chat.badge("bob") == 0


@pytest.mark.parametrize("badge_mode", ["precomputed", "on_the_fly"])
async def test_a_tap_from_a_clock_that_was_ahead_counts_as_now(tmp_path: Path, clock: Clock, badge_mode: str) -> None:
    async with in_process(tmp_path, clock=clock, badge_mode=badge_mode) as chat:
        await chat.open_channel("alice", "bob", "carol", type="group")
        await chat.send("alice", "m1")
        assert (await chat.tap("bob"))["senders"] == 1
        assert (await chat.tap("carol"))["senders"] == 1

    clock.advance(seconds=-3600)
    async with in_process(tmp_path, clock=clock, badge_mode=badge_mode) as chat:
        assert await chat.badge("bob") == 0
        clock.advance(seconds=1)
        await chat.send("alice", "m2")

        assert await chat.badge("bob") == 1
        tap = await chat.tap("bob")
        assert ids_by_sender(tap) == {"alice": ["m2"]}
        assert tap["tapped_at"] <= clock.now + 60_000
        assert (await chat.tap("carol"))["tapped_at"] <= clock.now + 60_000


async def test_without_a_badge_nobody_is_on_it_and_a_tap_shows_nothing(tmp_path: Path, clock: Clock) -> None:
    async with in_process(tmp_path, clock=clock, badge_mode="off") as chat:
        await chat.open_channel("alice", "bob", type="group")
        await chat.send("alice", "m1")
        assert await chat.badge("bob") == 0
        assert ids_by_sender(await chat.tap("bob")) == {}
    async with in_process(tmp_path, clock=clock) as chat:
        assert await chat.badge("bob") == 0
