"""The badge of the cluster profile: the message writer decides who was away, Status Update tells the badges.

Every number is looked at twice: as the set that is kept ready, and as the durable store counts it.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from readstate.api import NewMessage
from readstate.domain.announcements import MessageCame
from readstate.domain.errors import StorageUnavailable
from readstate.workers.status_update import fold_unsent
from tests.conftest import Clock
from tests.contract.valkey import ask_all, single

from .away import FANOUT, PATIENT, Cluster, a_cluster, outsider

PEOPLE = ["alice", "carol", "dave", "erin"]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def cluster(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """Bob has a direct channel with each of four people."""
    async with a_cluster(clock, timings=PATIENT) as cluster:
        for person in PEOPLE:
            await cluster.open(f"{person} and bob", person, "bob", type="direct")
        yield cluster


async def write_to_bob(cluster: Cluster, *messages: tuple[str, str]) -> None:
    """Each sender writes to bob, a second apart, on one instance or the other."""
    for turn, (sender, id_) in enumerate(messages):
        cluster.clock.advance(seconds=1)
        await cluster.send(sender, f"{sender} and bob", id_, instance=turn % 2)


def message(sender: str, id_: str) -> NewMessage:
    return NewMessage(id=id_, channel_id=f"{sender} and bob", sender_id=sender, text=id_)


# ---------------------------------------------------------------- the document's examples


async def test_six_messages_from_four_people_show_4_and_again_after_going_away_again(cluster: Cluster) -> None:
    # If 6 messages come from 4 different users while offline, the counter shows 4.
    six = [("alice", "a1"), ("carol", "c1"), ("alice", "a2"), ("dave", "d1"), ("erin", "e1"), ("carol", "c2")]
    await write_to_bob(cluster, *six)
    await cluster.settle()
    await cluster.comes_online("bob")
    assert [await cluster.badge("bob", instance) for instance in (0, 1)] == [4, 4]

    # When the user taps the counter, they see all unread messages from different users, and it resets to 0.
    tap = await cluster.tap("bob", instance=1)
    assert tap.senders == 4
    shown = {one.sender_id: [message.id for message in one.messages] for one in tap.by_sender}
    assert shown == {"carol": ["c2", "c1"], "erin": ["e1"], "dave": ["d1"], "alice": ["a2", "a1"]}
    assert [await cluster.badge("bob", instance) for instance in (0, 1)] == [0, 0]

    # The counter reset is not dependent on whether the user views each individual's message or not.
    assert (await cluster.instances[0].unread.totals(["bob"]))["bob"].unread == 6

    # If the user goes offline again and receives 2 new messages from 1 user, the counter shows 1 when back online.
    await cluster.goes_away("bob")
    await write_to_bob(cluster, ("carol", "c3"), ("carol", "c4"))
    await cluster.settle()
    await cluster.comes_online("bob")
    assert await cluster.badge("bob") == 1
    assert (await cluster.tap("bob")).senders == 1
    assert await cluster.badge("bob", instance=1) == 0


async def test_an_event_says_who_wrote_what_to_whom_and_when(cluster: Cluster) -> None:
    # (D, A, m, ts): user D sent message m to user A at timestamp ts but A was offline.
    await write_to_bob(cluster, ("dave", "m"))
    await cluster.write()
    [event] = cluster.log.unsent
    assert (event.sender_id, event.receiver_id, event.message_id) == ("dave", "bob", "m")
    assert event.accepted_at == cluster.clock()


async def test_a_batch_is_folded_to_the_set_of_senders_of_each_receiver(cluster: Cluster) -> None:
    await cluster.open("three", "alice", "bob", "carol")
    for n in range(5):
        cluster.clock.advance(ms=1)
        await cluster.send("alice", "three", f"a{n}")
        await cluster.send("bob", "three", f"b{n}")
    await cluster.write()
    assert len(cluster.log.unsent) == 20
    folded = {(one.receiver_id, one.sender_id): one.accepted_at for one in fold_unsent(cluster.log.unsent)}
    assert sorted(folded) == [("alice", "bob"), ("bob", "alice"), ("carol", "alice"), ("carol", "bob")]
    assert set(folded.values()) == {cluster.clock()}, "the newest of each"
    await cluster.update()
    assert [await cluster.badge(user) for user in ("alice", "bob", "carol")] == [1, 1, 2]


async def test_a_sender_who_is_on_the_badge_already_is_not_written_again(cluster: Cluster) -> None:
    # B is offline for a day and A sends repeated messages at hourly intervals.
    assert await cluster.badge("bob") == 0
    assert await writes_of_an_update(cluster, "alice", "first") == 1
    for hour in range(24):
        cluster.clock.advance(seconds=60)
        assert await writes_of_an_update(cluster, "alice", f"hour {hour}") == 0, "the replica knows alice"
    assert await writes_of_an_update(cluster, "carol", "somebody new") == 1
    assert await cluster.badge("bob") == 2


async def writes_of_an_update(cluster: Cluster, sender: str, id_: str) -> int:
    """How often the main store's sets are written to when somebody writes to bob."""
    await cluster.send(sender, f"{sender} and bob", id_)
    await cluster.write()
    single().ask("CONFIG", "RESETSTAT")
    await cluster.update()
    counted = single().info("commandstats").get("cmdstat_sadd", "calls=0,")
    return int(counted.removeprefix("calls=").partition(",")[0])


# ---------------------------------------------------------------- for whom there is an event


async def receivers(cluster: Cluster) -> list[str]:
    """Who has got an event since the last question."""
    await cluster.write()
    new = cluster.log.unsent[cluster.updated :]
    await cluster.update()
    return sorted(event.receiver_id for event in new)


async def test_there_is_an_event_for_each_recipient_who_was_away(cluster: Cluster) -> None:
    await cluster.open("group", "alice", "bob", "carol")
    await cluster.comes_online("carol")
    await cluster.send("alice", "group", "m1")
    assert await receivers(cluster) == ["bob"]
    await cluster.goes_away("carol")
    await cluster.send("alice", "group", "m2")
    assert await receivers(cluster) == ["bob", "carol"]


async def test_there_is_none_for_a_muted_channel_unless_somebody_is_named(cluster: Cluster) -> None:
    await cluster.open("group", "alice", "bob", "carol")
    await cluster.mute("bob", "group")
    await cluster.send("alice", "group", "m1")
    assert await receivers(cluster) == ["carol"]
    await cluster.send("alice", "group", "m2", "bob")
    assert await receivers(cluster) == ["bob", "carol"]


async def test_big_channels_only_give_events_to_those_who_are_named(cluster: Cluster) -> None:
    await cluster.open("crowd", "alice", "bob", *(f"guest {n}" for n in range(FANOUT)))
    await cluster.send("alice", "crowd", "m1")
    assert await receivers(cluster) == []
    await cluster.send("alice", "crowd", "m2", "bob")
    assert await receivers(cluster) == ["bob"]


async def test_replies_give_events_to_those_who_follow_the_thread(cluster: Cluster) -> None:
    await cluster.open("open", *PEOPLE, "bob", type="channel")
    await cluster.say("bob", "open", "root")
    for sender, id_ in (("alice", "r1"), ("dave", "r2")):
        await cluster.reply(sender, "open", "root", id_)
    assert await receivers(cluster) == ["alice", "bob", "bob"]


# ---------------------------------------------------------------- what is repeated, late or lost


async def test_events_that_come_again_in_any_order_change_nothing(cluster: Cluster) -> None:
    await write_to_bob(cluster, ("alice", "a1"), ("carol", "c1"), ("alice", "a2"))
    await cluster.settle()
    await cluster.tap("bob")
    await write_to_bob(cluster, ("dave", "d1"))
    await cluster.settle()
    assert await cluster.badge("bob") == 1
    for events in (cluster.log.unsent, cluster.log.unsent[::-1], cluster.log.unsent * 3):
        await cluster.status_update.handle(events)
        assert await cluster.badge("bob") == 1


async def test_case_7_a_thousand_messages_in_one_millisecond_and_a_tap_ten_later(cluster: Cluster) -> None:
    """Their own times are pushed far beyond the tap: each comes a millisecond after the last."""
    assert await cluster.badge("bob") == 0
    for instance in (0, 1):
        batch = [message(PEOPLE[n % 4], f"m{n}") for n in range(500 * instance, 500 * instance + 500)]
        await cluster.instances[instance].messages.send(batch)
    await cluster.write(400)
    await cluster.update(200)
    cluster.clock.advance(ms=10)
    tap = await cluster.tap("bob")
    assert tap.senders == 4
    assert max(message.at for one in tap.by_sender for message in one.messages) > tap.tapped_at

    # 200 were told of before the tap, 200 are told of after it, 600 are written after it.
    await cluster.update()
    assert await cluster.badge("bob") == 0
    await cluster.settle()
    assert await cluster.badge("bob") == 0

    cluster.clock.advance(ms=1)
    await cluster.say("alice", "alice and bob", "later")
    assert await cluster.badge("bob") == 1


@pytest.mark.parametrize("told", [False, True], ids=["killed before anybody heard", "killed after the badges heard"])
async def test_case_9_a_writer_that_repeats_its_batch_decides_nothing_again(cluster: Cluster, told: bool) -> None:
    await cluster.open("group", "alice", "bob", "carol")
    await cluster.comes_online("carol")
    assert [await cluster.badge(user) for user in ("bob", "carol")] == [0, 0]
    await cluster.send("alice", "group", "m1")
    if told:
        await cluster.settle()
        cluster.written -= 1
    else:
        await cluster.write_and_die()

    # Presence has changed before the batch comes again, and the hot store has lost everything.
    await cluster.comes_online("bob")
    await cluster.goes_away("carol")
    if told:
        async with outsider(single().url) as main:
            await ask_all(main, "FLUSHALL")
    await cluster.settle()

    assert await cluster.badge("bob") == 1
    assert await cluster.badge("carol") == 0
    assert {event.receiver_id for event in cluster.log.unsent} == {"bob"}


async def in_the_log(cluster: Cluster) -> None:
    """Bob and dave have connections, and alice has written to them."""
    await cluster.open("group", "alice", "bob", "dave")
    for user in ("bob", "dave"):
        await cluster.connects(user)
    await cluster.send("alice", "group", "m1")


async def test_case_9_who_leaves_before_a_batch_is_repeated_has_missed_it(cluster: Cluster) -> None:
    """The writer was killed before it could look after those who were online when it stored the message."""
    await in_the_log(cluster)
    await cluster.write_and_die()
    await cluster.is_cut("bob")
    await cluster.settle()
    assert [await cluster.badge(user) for user in ("bob", "dave")] == [1, 0]

    # Dave is still there: it is sent to him, and counts unless he confirms it.
    [came] = [one for one in cluster.told if isinstance(one, MessageCame)]
    assert [one.receiver_id for one in came.reached] == ["bob", "dave"]
    await cluster.is_cut("dave")
    assert [await cluster.badge(user) for user in ("bob", "dave")] == [1, 1]


async def test_case_9_who_confirms_what_is_repeated_has_it(cluster: Cluster) -> None:
    await in_the_log(cluster)
    await cluster.write_and_die()
    await cluster.settle()
    for user in ("bob", "dave"):
        await cluster.confirms(user)
        await cluster.is_cut(user)
    assert [await cluster.badge(user) for user in ("bob", "dave")] == [0, 0]


@pytest.mark.parametrize("same", [False, True], ids=["by another writer", "by the same writer"])
async def test_case_9_who_has_confirmed_a_message_before_it_is_repeated_has_not_missed_it(
    cluster: Cluster, same: bool
) -> None:
    await in_the_log(cluster)
    effect = (await cluster.write())[-1]
    if not same:  # the first one was done, and noted that, but its offsets were not committed
        await cluster.hot.channels.passed({0: (effect.position, cluster.written)})
        cluster.writer = cluster.another_writer()
    await cluster.confirms("bob")
    await cluster.is_cut("bob")
    await cluster.confirms("dave")
    cluster.written -= 1
    await cluster.settle()
    assert await cluster.hot.presence.unproven("dave") == []
    await cluster.is_cut("dave")
    assert [await cluster.badge(user) for user in ("bob", "dave")] == [0, 0]


async def test_case_9_a_tap_since_then_forgets_what_was_missed_before_it(cluster: Cluster) -> None:
    await in_the_log(cluster)
    await cluster.write_and_die()
    await cluster.is_cut("bob")
    cluster.clock.advance(ms=1)
    await cluster.tap("bob")
    await cluster.settle()
    assert await cluster.badge("bob") == 0


async def test_case_9_a_batch_is_not_done_until_it_is_noted_who_has_missed_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bob is gone when the writer looks after him, and the database fails just then."""
    await in_the_log(cluster)
    await cluster.write_and_die()
    await cluster.is_cut("bob")

    async def fails(*_: object) -> None:
        raise StorageUnavailable("the database is away")

    with monkeypatch.context() as away:
        away.setattr(cluster.durable, "save_undelivered", fails)
        with pytest.raises(StorageUnavailable):
            await cluster.write()
    cluster.writer = cluster.another_writer()
    await cluster.settle()
    assert await cluster.badge("bob") == 1


async def test_what_status_update_was_killed_with_comes_again(cluster: Cluster) -> None:
    assert await cluster.badge("bob") == 0
    await write_to_bob(cluster, ("alice", "a1"), ("carol", "c1"), ("dave", "d1"))
    await cluster.write()
    await cluster.update(2)
    cluster.updated = 0  # it died before it could say how far it had come
    await cluster.update()
    assert await cluster.badge("bob") == 3


async def test_the_set_is_rebuilt_from_the_durable_store_when_it_is_lost(cluster: Cluster) -> None:
    await write_to_bob(cluster, ("alice", "a1"), ("carol", "c1"))
    await cluster.settle()
    assert await cluster.badge("bob") == 2
    async with outsider(single().url) as main:
        await ask_all(main, "FLUSHALL")
    assert await cluster.badge("bob", instance=1) == 2


# ---------------------------------------------------------------- taps


async def test_what_was_sent_before_a_tap_and_is_under_way_never_counts_again(cluster: Cluster) -> None:
    assert await cluster.badge("bob") == 0
    await write_to_bob(cluster, ("alice", "in the log"))
    await cluster.write()
    await write_to_bob(cluster, ("carol", "not even written"))
    cluster.clock.advance(ms=1)
    await cluster.tap("bob", instance=1)
    await cluster.settle()
    assert await cluster.badge("bob") == 0
    assert (await cluster.tap("bob")).senders == 0


async def test_two_taps_at_once_on_two_instances_show_everything_once(cluster: Cluster) -> None:
    await write_to_bob(cluster, ("alice", "a1"), ("carol", "c1"))
    await cluster.settle()
    cluster.clock.advance(ms=1)
    taps = await asyncio.gather(cluster.tap("bob", 0), cluster.tap("bob", 1))
    shown = sorted(message.id for tap in taps for one in tap.by_sender for message in one.messages)
    assert shown == ["a1", "c1"]
    assert sorted(tap.senders for tap in taps) == [0, 2]
    assert await cluster.badge("bob") == 0


async def test_a_tap_is_grouped_by_sender_and_given_in_pages(cluster: Cluster) -> None:
    size = cluster.instances[0].settings.max_page
    await cluster.instances[0].messages.send([message(PEOPLE[n % 2], f"m{n}") for n in range(size + 3)])
    await cluster.settle()
    cluster.clock.advance(ms=1)
    first = await cluster.tap("bob")
    assert (first.senders, sum(len(one.messages) for one in first.by_sender)) == (2, size)
    assert first.cursor is not None
    # More of it comes from any instance, and stays as it was when there is news.
    await cluster.say("dave", "dave and bob", "news")
    rest = await cluster.instances[1].badge.tap("bob", first.cursor)
    assert (rest.senders, rest.cursor) == (2, None)
    shown = [message.id for page in (first, rest) for one in page.by_sender for message in one.messages]
    assert sorted(shown) == sorted(f"m{n}" for n in range(size + 3))
    assert await cluster.badge("bob") == 1


async def test_what_a_tap_has_shown_is_removed_in_the_background_and_nothing_else(
    cluster: Cluster,
) -> None:
    await write_to_bob(cluster, ("alice", "a1"), ("carol", "c1"))
    await cluster.settle()
    await cluster.tap("bob")
    await write_to_bob(cluster, ("dave", "d1"))
    await cluster.settle()
    badge = cluster.instances[0].badge
    assert await badge.expire() == 0, "a tap can still be paged through"
    cluster.clock.advance(seconds=cluster.instances[0].settings.badge_retention + 1)
    assert await badge.expire() == 2
    assert await cluster.badge("bob") == 1


# ---------------------------------------------------------------- live


async def test_every_change_of_a_badge_is_told_when_it_can_be_seen(cluster: Cluster) -> None:
    assert await cluster.badge("bob") == 0
    await write_to_bob(cluster, ("alice", "a1"))
    await cluster.write()
    cluster.badges_told()
    await cluster.update()
    assert cluster.badges_told() == ["bob"]

    await write_to_bob(cluster, ("alice", "a2"))
    await cluster.write()
    cluster.badges_told()
    await cluster.update()
    assert cluster.badges_told() == [], "alice is on it already"

    await cluster.tap("bob", instance=1)
    assert cluster.badges_told() == ["bob"]


async def test_the_first_message_after_going_away_counts(cluster: Cluster) -> None:
    await cluster.comes_online("bob")
    await write_to_bob(cluster, ("alice", "seen"))
    await cluster.settle()
    await cluster.goes_away("bob")
    assert await cluster.badge("bob") == 0
    cluster.badges_told()
    await write_to_bob(cluster, ("alice", "first"))
    await cluster.settle()
    assert "bob" in cluster.badges_told()
    assert await cluster.badge("bob") == 1
