"""What live updates need of every adapter: what a message does to counts, what came since, who may be seen."""

import itertools

from readstate.domain.events import ChannelEvent, DeleteEvent, Delivery, MembersEvent, MessageEvent, ReadEvent
from readstate.domain.hot_updates import FanOut, Left
from readstate.domain.model import ChangeNumber, LogPosition, Mode, Pointer, Preferences, SeenPosition, Undelivered
from readstate.ports import CountDelta, Durable, HotUsers, LedgerLoad, LoadedUserRoom, Read, Rewind
from tests.online import nobody, only

from .conftest import CAP, ManualClock
from .test_hot_users import entry, fan_out, load, moved, place

NOW = 1_700_000_000_000
positions = itertools.count(1)


async def count_delta(users: HotUsers, seq: int, *named: str) -> CountDelta:
    return (await users.count_delta("c", place(seq), frozenset(named), ["bob"]))[0][0]


async def prefer(users: HotUsers, preferences: Preferences) -> None:
    assert await users.prefer("bob", "c", preferences) is not None


# ---------------------------------------------------------------- what a message does to a count


async def test_a_message_adds_one_where_it_is_unread(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1)])
    assert await count_delta(users, 1) is CountDelta.ONE_MORE


async def test_a_message_that_is_read_or_ones_own_adds_nothing(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1), fan_out(2), fan_out(3, None, "bob", sender="bob")])
    await moved(users, Read("bob", "c", place(1)))
    await moved(users, Read("bob", "c", place(1), apart=(2,), ids=("m2",)))
    assert [await count_delta(users, seq) for seq in (1, 2, 3)] == [CountDelta.NOTHING] * 3


async def test_a_message_that_is_deleted_again_adds_nothing(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1), fan_out(2), FanOut("c", 3, ("bob",), remove=place(2))])
    assert [await count_delta(users, seq) for seq in (1, 2)] == [CountDelta.ONE_MORE, CountDelta.NOTHING]


async def test_a_silent_message_adds_nothing_in_a_ledger(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1), FanOut("c", 2, ("bob",), None, frozenset(), "alice")])
    assert [await count_delta(users, seq) for seq in (1, 2)] == [CountDelta.ONE_MORE, CountDelta.NOTHING]


async def test_a_message_still_adds_one_when_another_came_after_it(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1), fan_out(2)])
    assert [await count_delta(users, seq) for seq in (1, 2)] == [CountDelta.ONE_MORE] * 2


async def test_a_message_that_is_marked_unread_adds_one_once_the_ledger_is_loaded(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1), fan_out(2)])
    await moved(users, Read("bob", "c", place(2)))
    rewound = await moved(users, Rewind("bob", "c", 2, place(1), ()))
    assert await count_delta(users, 2) is CountDelta.LOOK
    assert await users.install_ledgers([LedgerLoad("bob", "c", rewound.pointer.state, 2, [entry(2)])]) == [True]
    assert [await count_delta(users, seq) for seq in (1, 2)] == [CountDelta.NOTHING, CountDelta.ONE_MORE]


async def test_a_message_of_an_archived_channel_adds_one(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1), FanOut("c", 2, ("bob",), archived=True)])
    assert await count_delta(users, 1) is CountDelta.ONE_MORE


async def test_somebody_who_left_or_never_was_there_has_nothing_more(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1), Left("c", 2, ("bob",))])
    assert await count_delta(users, 1) is CountDelta.NOTHING
    assert await users.count_delta("elsewhere", place(1), frozenset(), ["bob"]) == [(CountDelta.NOTHING, 0)]


async def test_what_is_not_loaded_or_capped_must_be_looked_at(users: HotUsers) -> None:
    assert await users.count_delta("c", place(1), frozenset(), ["bob"]) == [(CountDelta.LOOK, 0)]
    user_room = LoadedUserRoom("c", True, Mode.LEDGER, 1, False, Pointer(), Preferences(), 0, False)
    assert await users.install("bob", await users.begin("bob"), [user_room])
    await users.apply([fan_out(2)])
    assert await count_delta(users, 2) is CountDelta.LOOK


async def test_above_the_cap_a_count_does_not_grow(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(seq) for seq in range(1, CAP + 2)])
    assert await count_delta(users, CAP + 1) is CountDelta.LOOK


async def test_preferences_decide_what_counts(users: HotUsers, clock: ManualClock) -> None:
    await load(users)
    await users.apply([fan_out(1, None, "bob", named=("bob",))])
    await prefer(users, Preferences(count="mentions"))
    assert await count_delta(users, 1, "bob") is CountDelta.ONE_MORE
    assert await count_delta(users, 1) is CountDelta.LOOK
    await prefer(users, Preferences(count="none"))
    assert await count_delta(users, 1, "bob") is CountDelta.LOOK
    await prefer(users, Preferences(muted_until=clock.now + 1))
    assert await count_delta(users, 1) is CountDelta.ONE_MORE_MUTED
    clock.now += 1
    assert await count_delta(users, 1) is CountDelta.ONE_MORE


async def test_in_a_timeline_channel_everything_after_the_pointer_adds_one(users: HotUsers) -> None:
    await load(users, mode=Mode.TIMELINE)
    assert await count_delta(users, 1) is CountDelta.ONE_MORE
    await prefer(users, Preferences(count="mentions"))
    assert (await users.count_delta("c", place(1), None, ["bob"]))[0][0] is CountDelta.ONE_MORE
    await prefer(users, Preferences())
    assert await count_delta(users, CAP + 1) is CountDelta.LOOK
    await moved(users, Read("bob", "c", place(1)))
    assert await count_delta(users, 1) is CountDelta.NOTHING


async def test_the_epoch_comes_with_it(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1)])
    await moved(users, Read("bob", "c", place(1)))
    rewound = await moved(users, Rewind("bob", "c", 1, place(0), ()))
    assert (await users.count_delta("c", place(1), frozenset(), ["bob"]))[0][1] == rewound.pointer.epoch


async def test_change_numbers_grow_with_every_change_and_are_unknown_before_loading(users: HotUsers) -> None:
    assert await users.changes(["bob"]) == [None]
    await load(users)
    [before] = await users.changes(["bob"])
    await users.apply([FanOut("c", 1, ("bob",), entry(1), frozenset(), "alice")])
    [after] = await users.changes(["bob"])
    assert before is not None
    assert after is not None
    assert after > before


async def test_rooms_are_those_that_a_user_is_in(users: HotUsers) -> None:
    assert await users.rooms("bob") is None
    await load(users)
    assert await users.rooms("bob") == ["c"]
    await users.apply([Left("c", 1, ("bob",))])
    assert await users.rooms("bob") == []


# ---------------------------------------------------------------- what came since


async def put(durable: Durable, *events: MessageEvent | MembersEvent | ChannelEvent | DeleteEvent) -> int:
    """Applies events, and returns the place in the log of the last one."""
    deliveries = [Delivery(event, next(positions)) for event in events]
    await durable.apply(deliveries, online=nobody)
    return deliveries[-1].position


async def a_channel(durable: Durable, *members: str, channel: str = "c") -> int:
    created = ChannelEvent(channel_id=channel, created_at=NOW, type="group")
    return await put(durable, created, MembersEvent(channel_id=channel, created_at=NOW, add=members))


def say(id_: str, **more: object) -> MessageEvent:
    fields: dict[str, object] = {"channel_id": "c", "created_at": NOW, "sender_id": "alice", "at": NOW, **more}
    return MessageEvent(id=id_, **fields)  # type: ignore[arg-type]


async def since(durable: Durable, position: int, limit: int = 1000) -> list[str]:
    return [message.id for message in await durable.messages_since("c", LogPosition(position), limit)]


async def test_what_came_after_a_place_in_the_log_comes_in_its_order(durable: Durable) -> None:
    await a_channel(durable, "alice", "bob")
    here = await put(durable, say("m1"), say("m2"))
    await put(durable, say("m3"), say("r1", thread_id="m1"), say("m4"), say("r2", thread_id="m1", also_to_channel=True))
    await put(durable, say("old", backfill=True))
    assert await since(durable, here) == ["m3", "r1", "m4", "r2"]
    assert await since(durable, 0) == ["m1", "m2", "m3", "r1", "m4", "r2"]


async def test_one_more_than_the_limit_says_that_there_are_more(durable: Durable) -> None:
    here = await a_channel(durable, "alice", "bob")
    await put(durable, *(say(f"m{number:03}") for number in range(120)))
    assert len(await since(durable, here, limit=100)) == 101
    assert len(await since(durable, here, limit=120)) == 120
    assert await since(durable, here + 118, limit=10) == ["m118", "m119"]


async def test_a_deleted_message_is_still_told_of_as_deleted(durable: Durable) -> None:
    here = await a_channel(durable, "alice", "bob")
    await put(durable, say("m1"), DeleteEvent(channel_id="c", created_at=NOW, id="m1"))
    [message] = await durable.messages_since("c", LogPosition(here), 10)
    assert message.deleted


# ---------------------------------------------------------------- who may be seen


def read(user: str, seq: int, read_at: int, channel: str = "c") -> ReadEvent:
    return ReadEvent(user, channel, 0, seq, (), f"m{seq}", NOW, read_at, ChangeNumber(1), NOW)


async def test_private_readers_are_left_out_and_joins_are_no_receipts(durable: Durable) -> None:
    await a_channel(durable, "alice", "bob", "carol")
    await put(durable, say("m1"), say("m2"))
    await put(durable, MembersEvent(channel_id="c", created_at=NOW, add=("dave",)))
    await durable.save_preferences("bob", "c", Preferences(receipts="private"), 1)
    await durable.save_receipts("carol", "private", 1)
    keys = [(user, "c") for user in ("alice", "bob", "carol", "dave", "stranger")]
    assert await durable.public_readers(keys) == {("alice", "c"): (), ("dave", "c"): ((0, 2),)}


async def test_receipts_since_a_time_are_those_of_others_in_small_channels(durable: Durable) -> None:
    await a_channel(durable, "alice", "bob", "carol")
    await a_channel(durable, "alice", "bob", channel="elsewhere")
    await put(durable, say("m1"), say("m2"))
    await durable.merge([read("bob", 1, NOW + 5), read("carol", 2, NOW + 9), read("bob", 0, NOW + 9, "elsewhere")])
    expected = [SeenPosition("c", "bob", "m1", 1, NOW + 5), SeenPosition("c", "carol", "m2", 2, NOW + 9)]
    found = await durable.receipts_since("alice", NOW + 5, most_members=3, limit=10) or []
    assert [one for one in found if one.channel_id == "c"] == expected
    later = await durable.receipts_since("alice", NOW + 6, most_members=3, limit=10) or []
    assert [one for one in later if one.channel_id == "c"] == expected[1:]
    assert [one.channel_id for one in await durable.receipts_since("alice", 0, 2, 10) or []] == ["elsewhere"]
    assert await durable.receipts_since("stranger", 0, most_members=3, limit=10) == []
    everything = await durable.receipts_since("alice", 0, most_members=3, limit=10)
    assert everything is not None
    assert await durable.receipts_since("alice", 0, most_members=3, limit=len(everything)) == everything
    assert await durable.receipts_since("alice", 0, most_members=3, limit=len(everything) - 1) is None


async def test_what_did_not_get_through_counts_for_the_badge(durable: Durable) -> None:
    await a_channel(durable, "alice", "bob")
    await put(durable, say("m1"))
    await durable.tap("bob", NOW + 1, 10)
    assert await durable.badge_count("bob") == 0
    await durable.apply([Delivery(say("m2"), next(positions))], online=only("bob"))
    assert await durable.badge_count("bob") == 0
    late = [Undelivered("bob", NOW + 2, "alice", "c", "m2")]
    assert await durable.save_undelivered(late) == late
    assert await durable.badge_count("bob") == 1
