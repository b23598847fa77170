"""What every durable store promises."""

import asyncio
import itertools
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from readstate.domain.errors import ChannelNotFound, MessageDeleted, MessageNotFound, ReplyToReply, ThreadNotFound
from readstate.domain.events import (
    AnyChannelEvent,
    ChannelEvent,
    DeleteEvent,
    Delivery,
    EditEvent,
    MembersEvent,
    MessageEvent,
    ReadEvent,
)
from readstate.domain.facts import Effect
from readstate.domain.model import ChangeNumber, Generation, Mode, Position, Preferences, ReadState
from readstate.domain.slots import LostRange
from readstate.ports import Durable, LoadedUserRoom, UndoItem
from tests.online import nobody

from .conftest import CAP, FANOUT

NOW = 1_700_000_000_000
positions = itertools.count(1)


async def apply(durable: Durable, *events: AnyChannelEvent) -> list[Effect]:
    return await durable.apply([Delivery(event, next(positions)) for event in events], online=nobody)


def channel(name: str = "c") -> ChannelEvent:
    return ChannelEvent(channel_id=name, created_at=NOW, type="group")


def join(*users: str, history: str | int = "read", name: str = "c") -> MembersEvent:
    return MembersEvent(channel_id=name, created_at=NOW, add=users, history=history)  # type: ignore[arg-type]


def leave(*users: str) -> MembersEvent:
    return MembersEvent(channel_id="c", created_at=NOW, remove=users)


def say(id_: str, sender: str = "alice", name: str = "c", **more: object) -> MessageEvent:
    fields: dict[str, object] = {"text": f"text of {id_}", "at": NOW, **more}
    return MessageEvent(channel_id=name, created_at=NOW, id=id_, sender_id=sender, **fields)  # type: ignore[arg-type]


def read(seq: int, apart: Sequence[int] = (), epoch: int = 0, user: str = "bob", name: str = "c") -> ReadEvent:
    return ReadEvent(user, name, epoch, seq, tuple(apart), f"m{seq}", NOW + seq, NOW, ChangeNumber(7), NOW)


async def user_room(durable: Durable, user: str = "bob", name: str = "c") -> LoadedUserRoom:
    return next(user_room for user_room in await durable.load_user(user) if user_room.channel_id == name)


@pytest.fixture(autouse=True)
async def _a_channel_with_two(durable: Durable) -> None:
    await apply(durable, channel(), join("alice", "bob"))


async def test_seqs_are_given_in_order_without_gaps_across_batches(durable: Durable) -> None:
    first = await apply(durable, say("m1"), say("m2"))
    second = await apply(durable, say("m3"), say("m4", "bob"))
    messages = [effect.message for effect in first + second]
    assert [message and message.seq for message in messages] == [1, 2, 3, 4]
    times = [message.at for message in messages if message]
    assert times == sorted(set(times))


async def test_a_message_that_comes_again_is_the_same_one(durable: Durable) -> None:
    await apply(durable, say("m1"))
    again, other = await apply(durable, say("m1", text="other"), say("m2"))
    assert again.duplicate
    assert again.message is not None
    assert (again.message.seq, again.message.text) == (1, "text of m1")
    assert other.message is not None
    assert other.message.seq == 2


async def test_within_one_batch_too(durable: Durable) -> None:
    effects = await apply(durable, say("m1"), say("m1"), say("m2"))
    assert [effect.duplicate for effect in effects] == [False, True, False]
    assert [effect.message and effect.message.seq for effect in effects] == [1, 1, 2]


async def test_a_failed_event_leaves_the_others_done(durable: Durable) -> None:
    effects = await apply(durable, say("m1"), say("x", name="nowhere"), say("m2"))
    assert isinstance(effects[1].error, ChannelNotFound)
    assert effects[2].message is not None
    assert effects[2].message.seq == 2


async def test_the_senders_pointer_comes_with_the_message(durable: Durable) -> None:
    await apply(durable, say("m1"), say("m2", "bob"), say("m3"))
    pointer = (await user_room(durable, "bob")).pointer
    assert (pointer.seq, pointer.id) == (2, "m2")


@pytest.mark.parametrize(("history", "expected"), [("read", 4), (0, 4), ("unread", 0), (1, 3), (2, 1), (3, 0), (99, 0)])
async def test_a_join_begins_where_history_says(durable: Durable, history: str | int, expected: int) -> None:
    await apply(durable, say("m1"), say("m2"), say("m3"), say("m4"))
    await apply(durable, DeleteEvent(channel_id="c", created_at=NOW, id="m3"), join("carol", history=history))
    assert (await user_room(durable, "carol")).pointer.seq == expected


async def test_a_joiner_has_read_what_he_wrote_himself(durable: Durable) -> None:
    await apply(durable, say("m1", "zoe"), say("m2"))
    await durable.merge([read(0, epoch=1, user="zoe")])
    await apply(durable, join("zoe", history="unread"))
    assert (await user_room(durable, "zoe")).pointer.state == ReadState(1, 0, frozenset({1}))


async def test_joining_again_never_goes_back(durable: Durable) -> None:
    await apply(durable, say("m1"), say("m2"))
    await durable.merge([read(2)])
    await apply(durable, leave("bob"), join("bob", history="unread"))
    assert (await user_room(durable)).pointer.seq == 2


async def test_case_11_a_channel_that_outgrows_the_limit_never_changes_back(durable: Durable) -> None:
    users = [f"u{i}" for i in range(FANOUT)]
    grown = await apply(durable, join(*users))
    assert grown[0].channel is not None
    assert grown[0].channel.mode is Mode.TIMELINE
    shrunk = await apply(durable, leave(*users))
    assert shrunk[0].channel is not None
    assert (shrunk[0].channel.mode, shrunk[0].channel.member_count) == (Mode.TIMELINE, 2)


async def test_an_edit_changes_text_and_mentions_only(durable: Durable) -> None:
    await apply(durable, say("m1", mentions=("bob",)))
    edit = EditEvent(channel_id="c", created_at=NOW, id="m1", text="new", preview="new", mentions=())
    effect = (await apply(durable, edit))[0]
    assert effect.message is not None
    assert (effect.message.seq, effect.message.text, effect.message.mentions) == (1, "new", ())
    assert effect.channel is not None
    assert effect.channel.latest is not None
    assert effect.channel.latest.preview == "new"
    stored = (await durable.by_id([("c", "m1")]))["c", "m1"]
    assert stored == effect.message


async def test_the_latest_is_the_newest_that_is_not_deleted(durable: Durable) -> None:
    await apply(durable, say("m1"), say("m2"), say("m3"))
    gone = [DeleteEvent(channel_id="c", created_at=NOW, id=id_) for id_ in ("m2", "m3")]
    effects = await apply(durable, *gone)
    assert effects[-1].channel is not None
    latest = effects[-1].channel.latest
    assert latest is not None
    assert latest.id == "m1"
    assert (await durable.by_id([("c", "m3")]))["c", "m3"].text is None
    after = await apply(durable, say("m4"))
    assert after[0].message is not None
    assert after[0].message.seq == 4


async def test_case_13_a_message_deleted_before_it_came_stays_deleted(durable: Durable) -> None:
    await apply(durable, DeleteEvent(channel_id="c", created_at=NOW, id="late"))
    effect = (await apply(durable, say("late")))[0]
    assert effect.duplicate
    assert effect.message is not None
    assert effect.message.deleted
    assert (await durable.breakdown("bob", "c", ReadState())).unread == 0
    edited = await apply(durable, EditEvent(channel_id="c", created_at=NOW, id="late", text="x"))
    assert isinstance(edited[0].error, MessageNotFound)


async def test_a_deleted_message_cannot_be_edited(durable: Durable) -> None:
    await apply(durable, say("m1"), DeleteEvent(channel_id="c", created_at=NOW, id="m1"))
    effect = (await apply(durable, EditEvent(channel_id="c", created_at=NOW, id="m1", text="x")))[0]
    assert isinstance(effect.error, MessageDeleted)


async def test_replies_have_an_order_of_their_own(durable: Durable) -> None:
    await apply(durable, say("root"))
    effects = await apply(
        durable,
        say("r1", "bob", thread_id="root"),
        say("r2", "bob", thread_id="root", also_to_channel=True),
        say("r3", thread_id="nothing"),
        say("r4", thread_id="r1"),
    )
    assert [(e.message.seq, e.message.thread_seq) for e in effects if e.message] == [(None, 1), (2, 2)]
    assert isinstance(effects[2].error, ThreadNotFound)
    assert isinstance(effects[3].error, ReplyToReply)


async def test_case_16_states_merge_in_any_order(durable: Durable) -> None:
    for index, order in enumerate(itertools.permutations([read(10, [15]), read(12), read(3, [4, 20])])):
        user = f"user{index}"
        await apply(durable, join(user))
        for event in order:
            await durable.merge([replace(event, user_id=user)])
        assert (await user_room(durable, user)).pointer.state == ReadState(0, 12, frozenset({15, 20}))


async def test_a_newer_epoch_wins_whole_and_an_older_one_does_nothing(durable: Durable) -> None:
    await durable.merge([read(10, [15])])
    await durable.merge([read(2, [5], epoch=1)])
    await durable.merge([read(99, [100], epoch=0)])
    pointer = (await user_room(durable)).pointer
    assert pointer.state == ReadState(1, 2, frozenset({5}))
    assert pointer.id == "m2"


async def test_a_state_without_apart_keeps_what_is_beyond_it_until_a_newer_epoch(durable: Durable) -> None:
    """Such states have a statement of their own."""
    await durable.merge([read(10, [12, 15])])
    await durable.merge([read(13)])
    await durable.merge([read(11), read(7, user="zoe")])
    pointer = (await user_room(durable)).pointer
    assert (pointer.state, pointer.id) == (ReadState(0, 13, frozenset({15})), "m13")

    await durable.merge([read(2, epoch=1)])
    await durable.merge([read(14)])
    pointer = (await user_room(durable)).pointer
    assert (pointer.state, pointer.id, pointer.at) == (ReadState(1, 2, frozenset()), "m2", NOW + 2)


ODD = ("\\", "\\n", '"', '\\"', "{", "}", ",", "", "NULL", "é\U0001f600", "a\x1fb", "\x01", "\b\f\n\r\t", "\\u0041")
"""Texts that a list of texts may have to write in another way."""


@pytest.mark.parametrize("apart", [(), (9,)])
async def test_states_keep_their_texts_to_the_letter(durable: Durable, apart: tuple[int, ...]) -> None:
    states = [replace(read(3, apart), user_id=f"zoe{odd}", last_read_id=odd) for odd in ODD]
    await durable.merge([*states, replace(read(3, apart), user_id="zoe's", last_read_id=None)])
    found = {odd: (await user_room(durable, f"zoe{odd}")).pointer.id for odd in ODD}
    assert found == {odd: odd for odd in ODD}
    assert (await user_room(durable, "zoe's")).pointer.id is None


async def test_the_place_goes_with_the_pointer_that_is_further(durable: Durable) -> None:
    await durable.merge([read(10)])
    await durable.merge([read(4, [12])])
    pointer = (await user_room(durable)).pointer
    assert (pointer.seq, pointer.id, pointer.at, pointer.apart) == (10, "m10", NOW + 10, frozenset({12}))


async def test_a_ledger_is_what_is_unread(durable: Durable) -> None:
    await apply(
        durable,
        say("m1"),
        say("own", "bob"),
        say("m3", silent=True),
        say("m4", mentions=("bob",)),
        say("m5", mentions=("@channel",)),
        say("m6"),
        say("m7"),
        DeleteEvent(channel_id="c", created_at=NOW, id="m7"),
    )
    state = ReadState(0, 0, frozenset({6}))
    ledger, named = await durable.load_ledgers(
        [("bob", "c", Mode.LEDGER, state), ("bob", "c", Mode.TIMELINE, state)], CAP
    )
    assert [(e.seq, e.id, e.mention) for e in ledger.entries] == [(1, "m1", False), (4, "m4", True), (5, "m5", True)]
    assert [(e.seq, e.mention) for e in named.entries] == [(4, True)]
    assert ledger.change == named.change > 0


async def test_a_ledger_holds_the_newest_and_the_newest_that_it_left_out(durable: Durable) -> None:
    await apply(durable, *[say(f"m{i}") for i in range(1, CAP + 4)])
    ledger = (await durable.load_ledgers([("bob", "c", Mode.LEDGER, ReadState())], CAP))[0]
    assert [entry.seq for entry in ledger.entries] == list(range(4, CAP + 4))
    assert ledger.floor == 3
    read_apart = ReadState(0, 0, frozenset({3}))
    ledger = (await durable.load_ledgers([("bob", "c", Mode.LEDGER, read_apart)], CAP))[0]
    assert [entry.seq for entry in ledger.entries] == list(range(4, CAP + 4))
    assert ledger.floor == 2
    exact = (await durable.load_ledgers([("bob", "c", Mode.LEDGER, ReadState(0, 2, frozenset({3})))], CAP))[0]
    assert exact.floor == 0


async def test_a_timeline_holds_the_newest_and_where_it_begins(durable: Durable) -> None:
    await apply(durable, *[say(f"m{i}") for i in range(1, CAP + 3)])
    load = await durable.load_timeline("c", CAP)
    assert [entry.seq for entry in load.entries] == list(range(3, CAP + 3))
    assert load.floor == 2


async def test_a_breakdown_puts_every_message_into_one_group(durable: Durable) -> None:
    await apply(
        durable,
        say("m1"),
        say("m2", "bob"),
        say("m3", silent=True),
        say("m4"),
        say("m5", mentions=("bob", "@channel")),
        say("m6", silent=True),
        DeleteEvent(channel_id="c", created_at=NOW, id="m4"),
        DeleteEvent(channel_id="c", created_at=NOW, id="m6"),
    )
    found = await durable.breakdown("bob", "c", ReadState(0, 0, frozenset({1, 2, 4})))
    minus = found.minus
    assert (minus.own, minus.deleted, minus.silent, minus.read_apart) == (1, 2, 1, 1)
    assert (found.after_pointer, found.unread, found.mentions) == (6, 1, 1)


async def test_places_by_seq_and_by_time(durable: Durable) -> None:
    await apply(durable, *[say(f"m{i}", at=NOW + 10 * i) for i in range(1, 8)])
    found = await durable.by_seq([("c", 3), ("c", 99)])
    assert found == {("c", 3): Position(3, "m3", NOW + 30)}
    assert (await durable.by_time("c", NOW + 45)).id == "m4"
    assert (await durable.by_time("c", NOW + 40)).id == "m4"
    assert (await durable.by_time("c", NOW)).seq == 0
    assert (await durable.by_time("c", NOW + 999)).id == "m7"


async def test_own_messages_from_a_place_on(durable: Durable) -> None:
    await apply(durable, say("m1", "bob"), say("m2"), say("m3", "bob"), say("m4", "bob"))
    assert sorted(await durable.own_seqs("bob", "c", 2, CAP)) == [3, 4]
    assert await durable.own_seqs("bob", "c", 1, 1) == (4,)


async def test_unread_messages_between_two_times(durable: Durable) -> None:
    await apply(durable, *[say(f"m{i}", at=NOW + 10 * i) for i in range(1, 6)], say("own", "bob"))
    state = ReadState(0, 1, frozenset({3}))
    newest = await durable.unread_messages("bob", "c", state, 0, NOW + 50, True, 9)
    assert [message.id for message in newest] == ["m4", "m2"]
    oldest = await durable.unread_messages("bob", "c", state, NOW + 20, NOW + 999, False, 1)
    assert [message.id for message in oldest] == ["m4"]


async def test_members_by_id(durable: Durable) -> None:
    await apply(durable, join("carol"), leave("alice"))
    assert [member.user_id for member in await durable.members("c", "", 9)] == ["bob", "carol"]
    assert [member.user_id for member in await durable.members("c", "bob", 9)] == ["carol"]


async def test_preferences_outlive_leaving(durable: Durable) -> None:
    wanted = Preferences(NOW, "mentions")
    await durable.save_preferences("bob", "c", wanted, 3)
    await apply(durable, leave("bob"), join("bob"))
    assert (await user_room(durable)).preferences == replace(wanted, change=3)


async def test_case_12_a_deleted_channel_created_again_begins_empty_and_goes_on(durable: Durable) -> None:
    await apply(durable, say("m1"), say("m2"))
    await durable.merge([read(2)])
    gone = (await apply(durable, ChannelEvent(channel_id="c", created_at=NOW, action="delete")))[0]
    assert gone.channel is not None
    assert gone.channel.deleted
    assert isinstance((await apply(durable, say("m3")))[0].error, ChannelNotFound)
    await durable.merge([read(2, [9], epoch=4)])
    await apply(durable, channel(), join("bob", history="unread"))
    effect = (await apply(durable, say("m1", "zoe")))[0]
    assert effect.message is not None
    assert (effect.message.seq, effect.duplicate) == (3, False)
    pointer = (await user_room(durable)).pointer
    assert (await durable.breakdown("bob", "c", pointer.state)).unread == 1


async def test_case_12_a_deleted_channel_takes_along_the_pointers_of_those_who_wrote_from_outside(
    durable: Durable,
) -> None:
    await apply(durable, say("m1"), say("m2", "zoe"))
    await durable.merge([read(2)])
    await apply(durable, ChannelEvent(channel_id="c", created_at=NOW, action="delete"))
    for user in ("bob", "zoe"):
        pointer = (await user_room(durable, user)).pointer
        assert (pointer.state, pointer.id, pointer.at) == (ReadState(1, 0), None, None)


async def test_undo_is_kept_until_it_is_over_or_used(durable: Durable) -> None:
    item = UndoItem("c", ReadState(0, 1, frozenset({3})), Position(1, "m1", NOW), ReadState(0, 9))
    await durable.save_undo("t1", "bob", NOW + 10, NOW, [item])
    await durable.save_undo("t2", "bob", NOW + 20, NOW, [])
    assert await durable.load_undo("t1", "bob", NOW) == [item]
    assert await durable.load_undo("t1", "alice", NOW) is None
    assert await durable.load_undo("t1", "bob", NOW + 10) is None
    await durable.drop_undo("t2")
    assert await durable.load_undo("t2", "bob", NOW) is None


async def test_generations_and_positions_only_grow(durable: Durable) -> None:
    assert await durable.next_generation() < await durable.next_generation()
    before = await durable.last_position()
    await apply(durable, say("m1"))
    assert await durable.last_position() > before


async def test_lost_slots_get_one_number_once_in_a_while_and_only_if_the_table_is_as_seen(durable: Durable) -> None:
    everything = [LostRange(0, 5_000, "a"), LostRange(5_001, 16_383, "b")]
    before = await durable.slots()
    first = await durable.renew_slots(before, everything, 7, NOW, 1_000)
    assert first is not None
    assert [one[:2] for one in first] == [(0, 5_000), (5_001, 16_383)]
    assert {one.number for one in first} == {max(one.number for one in first)}
    assert first[0].number > 7
    assert await durable.slots() == first
    lost = [LostRange(5_001, 16_383, "c")]
    assert await durable.renew_slots(first, lost, 0, NOW + 999, 1_000) is None, "too soon"
    assert await durable.renew_slots(before, lost, 0, NOW + 1_000, 1_000) is None, "another process was faster"
    second = await durable.renew_slots(first, lost, 0, NOW + 1_000, 1_000)
    assert second is not None
    assert second[0] == first[0]
    assert second[1].number > first[1].number
    assert await durable.next_generation() > second[1].number


async def test_the_highest_fresh_generation_stays(durable: Durable) -> None:
    assert await durable.fresh() == 0
    for number in (3, 2):
        await durable.note_fresh(Generation(number))
        assert await durable.fresh() == 3


async def test_ids_and_texts_come_back_as_they_went_in(durable: Durable) -> None:
    odd = 'it\'s "{odd}": null/[1,2] \\ %00 😀 é'
    await apply(durable, channel(odd), join(odd, "null", name=odd))
    await apply(durable, say(odd, odd, odd, text=odd, mentions=("null", "true", "1")))
    message = (await durable.by_id([(odd, odd)]))[odd, odd]
    assert (message.id, message.sender_id, message.text, message.mentions) == (odd, odd, odd, ("null", "true", "1"))
    assert (await user_room(durable, odd, odd)).pointer.id == odd
    ledger = (await durable.load_ledgers([("null", odd, Mode.LEDGER, ReadState())], CAP))[0]
    assert [(entry.id, entry.mention) for entry in ledger.entries] == [(odd, True)]


# ---------------------------------------------------------------- cursors


async def test_the_key_that_cursors_are_signed_with_is_made_once(durable: Durable) -> None:
    keys = await asyncio.gather(*(durable.cursor_key() for _ in range(5)))

    assert set(keys) == {await durable.cursor_key()}
    assert len(keys[0]) == 32


async def test_where_a_user_joined_is_told_of_channels_that_the_user_is_in(durable: Durable) -> None:
    await apply(durable, say("m1"), join("dave"), channel("d"), join("dave", name="d"))
    [(seq, position)] = (await durable.joins("dave", ["c", "nowhere"])).values()
    assert seq == 1
    assert position == (await durable.load_channels(["c"]))["c"].position

    await apply(durable, leave("dave"), say("m2"))
    assert set(await durable.joins("dave", ["c", "d"])) == {"d"}

    await apply(durable, join("dave"))
    seq, later = (await durable.joins("dave", ["c", "d"]))["c"]
    assert (seq, later > position) == (2, True)
