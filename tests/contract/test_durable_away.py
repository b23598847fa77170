"""What every durable store promises of who was away, and of whom a message may not have reached."""

from collections.abc import Collection

import pytest
from msgspec import structs

from readstate.adapters.sql.store import SqlStore
from readstate.domain.events import (
    ChannelEvent,
    DeleteEvent,
    Delivery,
)
from readstate.domain.facts import Effect
from readstate.domain.hot_updates import FanOut
from readstate.domain.model import LogPosition
from readstate.ports import Durable, Online, Present
from readstate.workers.online_before import OnlineBefore
from tests.online import nobody, only

from .people import NOW, a_channel_with_three, apply, members, say, times


@pytest.fixture(autouse=True)
async def _opened(durable: Durable) -> None:
    await a_channel_with_three(durable)


async def test_case_9_who_was_away_is_decided_once_and_told_again_when_the_message_comes_again(
    durable: Durable,
) -> None:
    """The writer that stored it may have died before anybody was told; meanwhile presence has changed."""
    message = Delivery(say("m1"), 0, part=0)
    [first] = await durable.apply([message], only("carol"), "log")
    [again] = await durable.apply([message], only("bob"), "log")
    assert [one.receiver_id for one in first.undelivered] == ["bob"]
    assert [one.receiver_id for one in first.reached] == ["carol"]
    assert again.undelivered == first.undelivered
    assert again.reached == first.reached
    assert [await durable.badge_count(user) for user in ("bob", "carol")] == [1, 0]


class Joining:
    """Presence on another server. Carol joins and connects after the first question."""

    is_local = False

    def __init__(self, durable: Durable) -> None:
        self._durable = durable
        self.asked: list[set[str]] = []

    async def online(self, users: Collection[str]) -> Present:
        self.asked.append(set(users))
        if len(self.asked) == 1:
            await self._durable.apply([Delivery(members("carol"), 0, part=1)], nobody, "log")
        return await only("carol" if len(self.asked) > 1 else "")(users)


async def test_case_9_a_member_who_joins_after_the_question_is_asked_about_and_decided_once(durable: Durable) -> None:
    await apply(durable, members(remove=("carol",)))
    presence = Joining(durable)
    before = OnlineBefore(presence)  # type: ignore[arg-type]
    before.learn([Effect(user_updates=[FanOut("c", 1, ("alice", "bob"))])])
    batch = [Delivery(say("m1"), 0, part=0), Delivery(say("m2"), 1, part=0)]
    tried = 0

    async def transaction(online: Online) -> list[Effect]:
        nonlocal tried
        tried += 1
        return await durable.apply(batch, online, "log")

    effects = await before.during(batch, transaction)
    assert tried == 2
    assert presence.asked == [{"alice", "bob"}, {"alice", "bob", "carol"}]
    assert [effect.repeated for effect in effects] == [False, False]
    assert [effect.message.seq for effect in effects if effect.message is not None] == [1, 2]
    assert [[one.receiver_id for one in effect.undelivered] for effect in effects] == [["bob"], ["bob"]]
    assert [[one.receiver_id for one in effect.reached] for effect in effects] == [["carol"], ["carol"]]
    assert [await durable.badge_count(user) for user in ("bob", "carol")] == [1, 0]
    again = await durable.apply(batch, nobody, "log")
    assert [effect.undelivered for effect in again] == [effect.undelivered for effect in effects]


async def test_whom_it_may_not_have_reached_is_told_until_it_is_called_complete(durable: Durable) -> None:
    """The message writer stores a batch while the one before is incomplete."""
    one, two, three, four = (Delivery(say(f"m{offset}"), offset, part=0) for offset in range(4))
    await durable.apply([one], only("bob"), "log")
    [again, new] = await durable.apply([one, two], only("carol"), "log")
    assert [[effect.receiver_id for effect in some.reached] for some in (again, new)] == [["bob"], ["carol"]]

    repeated = await durable.apply([one, two], nobody, "log")
    assert [effect.reached for effect in repeated] == [again.reached, new.reached]
    assert [effect.position for effect in repeated] == [again.position, new.position]

    await durable.apply([three], only("bob"), "log", {0: again.position})
    told = [effect.reached for effect in await durable.apply([one, two, three], nobody, "log")]
    assert told[:2] == [[], new.reached]
    assert [effect.receiver_id for effect in told[2]] == ["bob"]

    await durable.apply([four], nobody, "log", {0: LogPosition(new.position + 1)})
    assert [effect.reached for effect in await durable.apply([one, two, three, four], nobody, "log")] == [
        [],
        [],
        [],
        [],
    ]


async def test_of_a_topic_made_anew_nothing_counts_as_complete(durable: Durable) -> None:
    """Its offsets start over. Its log positions are above all earlier ones."""
    [old] = await durable.apply([Delivery(say("m1"), 70, part=0)], nobody, "log")
    complete = {0: old.position}
    await durable.apply([Delivery(say("m2"), 0, part=0)], only("bob"), "another log", complete)
    await durable.apply([Delivery(say("m3"), 1, part=0)], nobody, "another log", complete)
    [again] = await durable.apply([Delivery(say("m2"), 0, part=0)], nobody, "another log", complete)
    assert [one.receiver_id for one in again.reached] == ["bob"]


async def test_what_is_known_of_offsets_that_are_reused_is_forgotten(durable: Durable) -> None:
    await durable.apply([Delivery(say("m1"), 0, 0, 1), Delivery(say("m2"), 1, 0, 1)], only("bob"), "log")
    await durable.apply([Delivery(say("m3"), 1, 0, 2)], nobody, "log")
    [again] = await durable.apply([Delivery(say("m3"), 1, 0, 2)], nobody, "log")
    assert again.reached == []


async def test_each_part_of_a_log_knows_whom_its_own_last_batch_may_not_have_reached(durable: Durable) -> None:
    here, there = Delivery(say("m1"), 7, part=0), Delivery(say("m2"), 7, part=1)
    await durable.apply([here, there], only("bob"), "log")
    await durable.apply([Delivery(say("m3"), 8, part=1)], nobody, "log")
    [again] = await durable.apply([here], nobody, "log")
    assert [one.message_id for one in again.reached] == ["m1"]


async def test_who_was_noted_since_deleted_or_erased_is_not_reached_again(durable: SqlStore) -> None:
    batch = [Delivery(say(f"m{offset}"), offset, part=0) for offset in range(2)]
    effects = await durable.apply(batch, only("bob", "carol"), "log")
    await durable.save_undelivered([one for one in effects[0].reached if one.receiver_id == "bob"])
    again = await durable.apply(batch, nobody, "log")
    assert [[one.receiver_id for one in effect.reached] for effect in again] == [["carol"], ["bob", "carol"]]
    assert [[one.receiver_id for one in effect.undelivered] for effect in again] == [["bob"], []]

    await durable.transfer.erase("carol", next(times))
    again = await durable.apply(batch, nobody, "log")
    assert [[one.receiver_id for one in effect.reached] for effect in again] == [[], ["bob"]]

    delete = Delivery(DeleteEvent(channel_id="c", created_at=NOW, id="m1"), 0, part=1)
    await durable.apply([delete], nobody, "log")
    assert [effect.reached for effect in await durable.apply(batch, nobody, "log")] == [[], []]


async def test_whom_a_message_did_not_reach_is_told_again_also_when_it_is_deleted(durable: Durable) -> None:
    message, delete = say("m1"), DeleteEvent(channel_id="c", created_at=NOW, id="m1")
    batch = [Delivery(message, 0, part=0), Delivery(delete, 1, part=0)]
    [first, _] = await durable.apply(batch, nobody, "log")
    [again, _] = await durable.apply(batch, nobody, "log")
    assert len(first.undelivered) == 2
    assert sorted(one.receiver_id for one in again.undelivered) == ["bob", "carol"]


async def test_what_is_noted_twice_is_shown_once(durable: Durable) -> None:
    [effect] = await apply(durable, say("m1"), online=["bob", "carol"])
    for _ in range(2):
        await durable.save_undelivered(effect.reached)
    assert [message.id for _, message in (await durable.tap("bob", next(times), 10)).messages] == ["m1"]


async def test_what_is_gone_is_not_noted(durable: Durable) -> None:
    [first, second, third] = await apply(durable, say("m1"), say("m2"), say("m3", "carol"), online=["bob"])
    [one], [two], [three] = (effect.reached for effect in (first, second, third))
    await apply(durable, DeleteEvent(channel_id="c", created_at=NOW, id="m2"))
    by_another = structs.replace(one, sender_id="carol")
    never_there = structs.replace(one, message_id="never there"), structs.replace(one, channel_id="nowhere")
    assert await durable.save_undelivered([one, two, three, by_another, *never_there]) == [one, three]
    assert await durable.save_undelivered([two]) == []
    assert await durable.badge_senders("bob") == (0, frozenset({"alice", "carol"}))
    await apply(durable, ChannelEvent(channel_id="c", created_at=NOW, action="delete"))
    assert await durable.save_undelivered([one, three]) == []
    assert await durable.badge_count("bob") == 0


async def test_which_notes_are_gone_is_told_by_their_receivers(durable: Durable) -> None:
    [first, second] = await apply(durable, say("m1"), say("m2", "carol"))
    notes = [*first.undelivered, *second.undelivered]
    assert await durable.receivers_of_gone(notes) == set()
    assert await durable.receivers_of_gone([]) == set()
    [for_bob] = [note for note in first.undelivered if note.receiver_id == "bob"]
    others = [structs.replace(for_bob, receiver_id="eve"), structs.replace(for_bob, accepted_at=NOW - 1)]
    assert await durable.receivers_of_gone([*notes, others[0]]) == {"eve"}
    assert await durable.receivers_of_gone([*notes, *others]) == {"bob", "eve"}
    await apply(durable, ChannelEvent(channel_id="c", created_at=NOW, action="delete"))
    assert await durable.receivers_of_gone(notes) == {"alice", "bob", "carol"}
