"""What every durable store promises to those who look after it: dead letters, pages, samples and turns."""

import pytest
from msgspec.structs import replace

from readstate.domain.events import ChannelEvent, DeadLetter
from readstate.domain.model import ChangeNumber, Pointer
from readstate.ports import Durable

from .test_durable import NOW, apply, channel, join, leave, read, say

LETTER = DeadLetter('{"user_id":"bob"}', "ValueError: no", 3, "read-receipts", 4, 17, NOW)


@pytest.fixture(autouse=True)
async def _a_channel_with_two(durable: Durable) -> None:
    await apply(durable, channel(), join("alice", "bob"))


async def test_a_dead_letter_is_listed_once_however_often_it_comes(durable: Durable) -> None:
    await durable.put_dead_letters([LETTER, replace(LETTER, offset=18)])
    await durable.put_dead_letters([replace(LETTER, error="another reason", created_at=NOW + 5)])

    listed = await durable.list_dead_letters(0, 10)
    assert [(one.topic, one.event, one.error, one.tries, one.failed_at) for one in listed] == [
        ("read-receipts", LETTER.event, "ValueError: no", 3, NOW)
    ] * 2
    assert [one.place.rpartition("/")[0] for one in listed] == ["4/17", "4/18"]


async def test_a_topic_that_was_made_anew_hides_no_event_of_the_earlier_one(durable: Durable) -> None:
    await durable.put_dead_letters([LETTER])
    await durable.put_dead_letters([replace(LETTER, event='{"user_id":"eve"}')])
    assert len(await durable.list_dead_letters(0, 10)) == 2


async def test_dead_letters_come_in_pages_and_go_when_they_are_dealt_with(durable: Durable) -> None:
    await durable.put_dead_letters([replace(LETTER, offset=offset) for offset in range(5)])
    first = await durable.list_dead_letters(0, 2)
    rest = await durable.list_dead_letters(first[-1].id, 10)
    assert [one.place.split("/")[1] for one in first + rest] == ["0", "1", "2", "3", "4"]

    ids = [one.id for one in first]
    assert [one.id for one in await durable.find_dead_letters([ids[1], ids[0], ids[0], 10**9])] == ids
    assert await durable.drop_dead_letters([*ids, 10**9]) == 2
    assert await durable.drop_dead_letters(ids) == 0
    assert await durable.list_dead_letters(0, 10) == rest


async def test_what_is_no_event_at_all_is_listed_too(durable: Durable) -> None:
    odd = replace(LETTER, event="\0\1\ufffd☃ \\u0000 \" '", error="\0", topic="é-dlt")
    await durable.put_dead_letters([odd])
    (listed,) = await durable.list_dead_letters(0, 10)
    assert listed.event == "\ufffd\1\ufffd☃ \\u0000 \" '"
    assert listed.error == "\ufffd"
    assert listed.topic == "é-dlt"


async def test_nothing_to_list_is_fine(durable: Durable) -> None:
    await durable.put_dead_letters([])
    assert await durable.find_dead_letters([]) == []
    assert await durable.drop_dead_letters([]) == 0
    assert await durable.list_dead_letters(0, 10) == []


async def test_everyone_who_has_to_do_with_channels_comes_once(durable: Durable) -> None:
    await apply(durable, channel("d"), join("bob", "carol", name="d"), join("zoë"), leave("zoë"))
    await apply(durable, say("from outside", sender="mallory"))
    await durable.merge([read(1, user="outsider")])

    everyone = ["alice", "bob", "carol", "mallory", "outsider", "zoë"]
    assert await durable.users_after("", 100) == everyone
    assert await durable.users_after("", 2) == everyone[:2]
    assert await durable.users_after("bob", 2) == everyone[2:4]
    assert await durable.users_after("zoë", 10) == []
    assert await durable.count_users() == len(everyone)


async def test_channels_that_are_there_come_by_id(durable: Durable) -> None:
    await apply(durable, channel("a"), channel("b"), channel("d"))
    await apply(durable, ChannelEvent(channel_id="b", created_at=NOW, action="delete"))
    assert await durable.channels_after("", 100) == ["a", "c", "d"]
    assert await durable.channels_after("a", 1) == ["c"]
    assert await durable.count_channels() == 3


async def test_single_read_states_by_user_and_channel(durable: Durable) -> None:
    await apply(durable, say("m1"), say("m2"), say("m3"))
    await durable.merge([read(1, apart=[3])])
    found = await durable.read_states([("bob", "c"), ("bob", "elsewhere"), ("nobody", "c")])
    assert found == {("bob", "c"): Pointer(0, 1, frozenset({3}), "m1", NOW + 1, NOW, ChangeNumber(7))}
    assert await durable.read_states([]) == {}


async def test_a_sample_holds_members_of_channels_that_are_there(durable: Durable) -> None:
    await apply(durable, say("m1"), say("reply", sender="bob", thread_id="m1"))  # both follow the thread
    await apply(durable, channel("gone"), join("alice", name="gone"), join("carol"), leave("carol"))
    await apply(durable, ChannelEvent(channel_id="gone", created_at=NOW, action="delete"))
    assert sorted(await durable.some_user_rooms(100)) == [("alice", "c"), ("bob", "c")]
    assert await durable.some_user_rooms(0) == []


async def test_a_sample_of_many_is_another_one_each_time(durable: Durable) -> None:
    await apply(durable, *(channel(f"c{n}") for n in range(40)), *(join("bob", name=f"c{n}") for n in range(40)))
    samples = {tuple(sorted(await durable.some_user_rooms(5))) for _ in range(10)}
    assert len(samples) > 1
    assert {len(sample) for sample in samples} == {5}


@pytest.mark.parametrize("name", ["reconcile", "audit"])
async def test_a_turn_is_taken_by_one_until_it_is_over(durable: Durable, name: str) -> None:
    assert await durable.claim_turn(name, NOW, 1_000)
    assert not await durable.claim_turn(name, NOW, 1_000)
    assert not await durable.claim_turn(name, NOW + 999, 1_000)
    assert await durable.claim_turn("another", NOW + 999, 1_000)
    assert await durable.claim_turn(name, NOW + 1_000, 1_000)
    assert not await durable.claim_turn(name, NOW + 1_001, 1_000)


async def test_a_clock_that_was_wrong_holds_nobody_off(durable: Durable) -> None:
    assert await durable.claim_turn("reconcile", NOW + 10**9, 1_000)
    assert await durable.claim_turn("reconcile", NOW, 1_000)
    assert not await durable.claim_turn("reconcile", NOW, 1_000)
