"""What every durable store promises of a log that many processes read: what is new in it, and what comes again."""

import pytest

from readstate.domain.events import AnyChannelEvent, ChannelEvent, Delivery, MembersEvent, MessageEvent
from readstate.domain.facts import Effect
from readstate.ports import Durable
from tests.online import nobody

NOW = 1_700_000_000_000
LOG, PART = "a-topic", 3


async def apply(durable: Durable, *events: tuple[int, int, AnyChannelEvent]) -> list[Effect]:
    """Events of one partition, each with its offset and its leader epoch."""
    deliveries = [Delivery(event, offset, PART, epoch) for offset, epoch, event in events]
    return await durable.apply(deliveries, online=nobody, source=LOG)


def say(id_: str) -> MessageEvent:
    return MessageEvent(channel_id="c", created_at=NOW, id=id_, sender_id="alice", at=NOW)


def seqs(effects: list[Effect]) -> list[int | None]:
    return [None if effect.message is None else effect.message.seq for effect in effects]


@pytest.fixture(autouse=True)
async def _three_messages(durable: Durable) -> None:
    """At the offsets 2, 3 and 4; the next one is 5."""
    channel = ChannelEvent(channel_id="c", created_at=NOW, type="group")
    await apply(durable, (0, 1, channel), (1, 1, MembersEvent(channel_id="c", created_at=NOW, add=("alice", "bob"))))
    await apply(durable, (2, 1, say("m1")), (3, 1, say("m2")), (4, 2, say("m3")))


async def test_what_comes_again_is_applied_once(durable: Durable) -> None:
    again = await apply(durable, (3, 1, say("m2")), (4, 2, say("m3")), (5, 2, say("m4")))
    assert [effect.repeated for effect in again] == [True, True, False]
    assert seqs(again) == [2, 3, 4]


async def test_an_offset_under_a_later_leader_is_used_again(durable: Durable) -> None:
    before = (await durable.positions(LOG))[PART]
    found = await apply(durable, (2, 1, say("m1")), (3, 3, say("m4")), (4, 3, say("m5")))
    assert [effect.repeated for effect in found] == [True, False, False]
    assert seqs(found) == [1, 4, 5]
    position, offset = (await durable.positions(LOG))[PART]
    assert offset == 5
    assert [effect.position for effect in found[1:]] == [before[0] + 1, before[0] + 2]
    assert position == before[0] + 2
    assert seqs(await apply(durable, (4, 3, say("m5")), (5, 3, say("m6")))) == [5, 6]


async def test_what_is_used_again_in_one_batch_with_what_was_lost(durable: Durable) -> None:
    found = await apply(durable, (5, 2, say("m4")), (6, 2, say("m5")), (5, 4, say("m6")), (6, 4, say("m7")))
    assert seqs(found) == [4, 5, 6, 7]
    positions = [effect.position for effect in found]
    assert positions == sorted(set(positions))
    assert (await durable.positions(LOG))[PART] == (positions[-1], 7)


async def test_what_another_reader_has_taken_before_the_loss_is_not_lost_either(durable: Durable) -> None:
    await apply(durable, (3, 3, say("m4")))
    assert seqs(await apply(durable, (5, 2, say("m5")))) == [5]
    assert seqs(await apply(durable, (4, 3, say("m6")), (5, 3, say("m7")))) == [6, 7]


async def test_a_part_that_ends_before_what_is_applied_goes_on_from_its_end(durable: Durable) -> None:
    position = (await durable.positions(LOG))[PART]
    assert await durable.cut(LOG, PART, 3, position)
    assert (await durable.positions(LOG))[PART] == (position[0], 3)
    assert not await durable.cut(LOG, PART, 2, position), "it is known already"
    found = await apply(durable, (2, 1, say("m1")), (3, 1, say("m4")))
    assert [effect.repeated for effect in found] == [True, False]
    assert found[1].position == position[0] + 1


async def test_a_loss_that_is_noticed_after_new_events_came_hides_none_of_them(durable: Durable) -> None:
    """Everything from the offset 3 on was lost, and m4 has come there before anybody asked where the part ends."""
    position = (await durable.positions(LOG))[PART]
    assert await durable.cut(LOG, PART, 4, position)
    found = await apply(durable, (2, 1, say("m1")), (3, 3, say("m4")), (4, 3, say("m5")))
    assert [effect.repeated for effect in found] == [True, False, False]
    assert [effect.position for effect in found[1:]] == [position[0] + 1, position[0] + 2]
    assert (await durable.positions(LOG))[PART] == (position[0] + 2, 5)


async def test_a_part_that_has_lost_nothing_stays_as_it_is(durable: Durable) -> None:
    position = (await durable.positions(LOG))[PART]
    assert not await durable.cut(LOG, PART, position[1], position)
    assert (await durable.positions(LOG))[PART] == position


async def test_a_leader_that_is_not_known_says_nothing(durable: Durable) -> None:
    [again] = await apply(durable, (4, -1, say("m3")))
    assert again.repeated
    [new] = await apply(durable, (5, -1, say("m4")))
    assert not new.repeated
    [again] = await apply(durable, (5, 9, say("m4")))
    assert again.repeated
