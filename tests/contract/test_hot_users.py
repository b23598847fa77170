"""What every adapter of the hot state of users promises."""

from readstate.adapters.memory.users import MemoryUsers
from readstate.domain.hot_updates import FanOut, Gone, Joined, Left, OwnRead, Switched
from readstate.domain.model import (
    NO_CHANGE,
    START,
    ChangeNumber,
    Entry,
    Mode,
    Pointer,
    Position,
    Preferences,
    ReadState,
)
from readstate.ports import (
    Absent,
    HotUsers,
    LedgerLoad,
    LedgerView,
    LoadedUserRoom,
    Moved,
    Read,
    Restore,
    Rewind,
    UserRoom,
)

from .conftest import CAP, ManualClock


def place(seq: int) -> Position:
    return Position(seq, f"m{seq}", 1000 + seq)


def entry(seq: int, mention: bool = False) -> Entry:
    return Entry(seq, f"m{seq}", 1000 + seq, mention)


def fan_out(
    seq: int, change: int | None = None, *users: str, sender: str = "alice", named: tuple[str, ...] = ()
) -> FanOut:
    return FanOut("c", change or seq, users or ("bob",), entry(seq), frozenset(named), sender)


async def load(users: HotUsers, user: str = "bob", mode: Mode = Mode.LEDGER, change: int = NO_CHANGE) -> None:
    user_room = LoadedUserRoom("c", True, mode, change, True, Pointer(), Preferences(), 0, False)
    assert await users.install(user, await users.begin(user), [user_room])


async def user_room(users: HotUsers, user: str = "bob") -> UserRoom:
    view = await users.view(user, ["c"])
    assert view is not None
    return view.user_rooms[0]


async def ledger(users: HotUsers, user: str = "bob") -> LedgerView:
    view = (await user_room(users, user)).ledger
    assert view is not None
    return view


async def moved(users: HotUsers, move: Read | Rewind | Restore) -> Moved:
    result = (await users.move([move]))[0]
    assert isinstance(result, Moved)
    return result


async def test_what_is_not_loaded_is_told_apart_from_what_is_empty(users: HotUsers) -> None:
    assert await users.view("bob", "all") is None
    assert await users.unread_summary("bob") is None
    assert await users.move([Read("bob", "c", place(1))]) == [Absent.NOT_LOADED]

    await load(users)

    assert (await ledger(users)).count == 0
    assert await users.move([Read("bob", "elsewhere", place(1))]) == [Absent.NOT_A_MEMBER]


async def test_a_message_is_unread_once_however_often_it_comes(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1), fan_out(1), fan_out(2, None, "bob", named=("bob",)), fan_out(2)])
    view = await ledger(users)
    assert (view.count, view.mentions) == (2, 1)
    assert view.first is not None
    assert view.first.id == "m1"


async def test_ones_own_message_is_never_unread(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1, None, "bob", sender="bob")])
    assert (await ledger(users)).count == 0


async def test_reading_up_to_a_place_leaves_what_is_after_it(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(seq) for seq in (1, 2, 3)])
    result = await moved(users, Read("bob", "c", place(2)))
    assert result.changed
    assert result.pointer.position == place(2)
    assert (await ledger(users)).count == 1


async def test_a_read_that_changes_nothing_says_so_and_still_tells_the_state(users: HotUsers) -> None:
    await load(users)
    await moved(users, Read("bob", "c", place(2)))
    again = await moved(users, Read("bob", "c", place(1)))
    assert not again.changed
    assert again.pointer.seq == 2


async def test_reading_one_by_one_leaves_what_is_before(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(seq) for seq in (1, 2, 3)])
    result = await moved(users, Read("bob", "c", START, (2,), ids=("m2",)))
    assert result.pointer.state == ReadState(0, 0, frozenset({2}))
    assert (await ledger(users)).count == 2
    passed = await moved(users, Read("bob", "c", place(2)))
    assert passed.pointer.apart == frozenset()


async def test_a_read_in_an_epoch_that_is_over_changes_nothing(users: HotUsers) -> None:
    await load(users)
    await moved(users, Read("bob", "c", place(3)))
    rewound = await moved(users, Rewind("bob", "c", 2, place(1), ()))
    assert rewound.pointer.epoch > 0
    late = await moved(users, Read("bob", "c", place(3), epoch=0))
    assert not late.changed
    assert late.pointer.seq == 1


async def test_whoever_has_left_has_no_ledger_whatever_comes_late(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1), fan_out(2), Left("c", 3, ("bob",))])
    late = OwnRead("c", "bob", 2, Pointer(7, 1))
    await users.apply([late])
    await users.install_ledgers([LedgerLoad("bob", "c", ReadState(7, 1), 3, [entry(2)])])
    await users.forget("bob", "c")
    unread_summary, view = await users.unread_summary("bob"), await users.view("bob", [])
    assert unread_summary is not None
    assert unread_summary.plain == (0, 0, 0, False)
    assert view is not None
    assert view.unloaded == []


async def test_marking_unread_needs_the_ledger_again(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1), fan_out(2)])
    await moved(users, Read("bob", "c", place(2)))
    rewound = await moved(users, Rewind("bob", "c", 1, START, ()))
    assert (await user_room(users)).ledger is None
    loads = [LedgerLoad("bob", "c", rewound.pointer.state, 2, [entry(1), entry(2, True)])]
    assert await users.install_ledgers(loads) == [True]
    assert (await ledger(users)).count == 2


async def test_marking_unread_beyond_the_pointer_reads_nothing(users: HotUsers) -> None:
    await load(users)
    await moved(users, Read("bob", "c", place(1), (3, 5), ids=("m3", "m5")))
    rewound = await moved(users, Rewind("bob", "c", 4, place(3), (6,)))
    assert (rewound.pointer.seq, rewound.pointer.apart) == (1, frozenset({3, 6}))
    assert rewound.pointer.position == place(1)


async def test_restore_gives_back_unless_the_pointer_has_moved(users: HotUsers) -> None:
    await load(users)
    await moved(users, Read("bob", "c", place(1), (3,), ids=("m3",)))
    all_read = await moved(users, Read("bob", "c", place(5)))
    await moved(users, Read("bob", "c", START, (8,), ids=("m8",)))
    back = Restore("bob", "c", all_read.before.state, all_read.before.position, all_read.pointer.state)
    restored = await moved(users, back)
    assert (restored.pointer.seq, restored.pointer.apart) == (1, frozenset({3, 8}))
    assert not (await moved(users, back)).changed


async def test_case_3_a_step_that_comes_again_brings_nothing_back(users: HotUsers) -> None:
    """Read one by one, deleted, or its reader gone: the writer repeats the message, or wakes up late."""
    await load(users)
    message = fan_out(1)
    await users.apply([message, fan_out(2), fan_out(3)])
    await moved(users, Read("bob", "c", START, (1,), ids=("m1",)))
    await users.apply([FanOut("c", 4, ("bob",), remove=place(2))])

    await users.apply([message, fan_out(2)])
    assert (await ledger(users)).count == 1

    await users.apply([Left("c", 5, ("bob",)), fan_out(3)])
    assert not (await user_room(users)).member
    await users.apply([Joined("c", 6, Mode.LEDGER, 3, 0, False, (("bob", Pointer()),)), Left("c", 5, ("bob",))])
    assert (await user_room(users)).member


async def test_case_4_a_delete_overtakes_a_loader(users: HotUsers) -> None:
    await load(users)
    rewound = await moved(users, Rewind("bob", "c", 1, START, ()))
    too_old = LedgerLoad("bob", "c", rewound.pointer.state, 2, [entry(1), entry(2)])
    await users.apply([FanOut("c", 3, ("bob",), remove=place(1))])
    assert await users.install_ledgers([too_old]) == [False]
    newer = LedgerLoad("bob", "c", rewound.pointer.state, 3, [entry(2)])
    assert await users.install_ledgers([newer]) == [True]
    assert (await ledger(users)).count == 1


async def test_a_load_for_an_epoch_that_is_over_is_refused(users: HotUsers) -> None:
    await load(users)
    first = await moved(users, Rewind("bob", "c", 1, START, ()))
    await moved(users, Rewind("bob", "c", 1, START, ()))
    assert await users.install_ledgers([LedgerLoad("bob", "c", first.pointer.state, 9, [entry(1)])]) == [False]


async def test_what_was_read_while_a_ledger_was_loading_stays_read(users: HotUsers) -> None:
    await load(users)
    rewound = await moved(users, Rewind("bob", "c", 1, START, ()))
    await moved(users, Read("bob", "c", place(1), (3,), ids=("m3",)))
    loads = [LedgerLoad("bob", "c", rewound.pointer.state, 3, [entry(1), entry(2), entry(3)])]
    assert await users.install_ledgers(loads) == [True]
    assert (await ledger(users)).count == 1


async def test_a_join_overtakes_the_load_of_a_user(users: HotUsers) -> None:
    ticket = await users.begin("bob")
    await users.apply([Joined("c", 1, Mode.LEDGER, 0, 0, False, (("bob", Pointer()),))])
    assert not await users.install("bob", ticket, [])
    assert await users.install("bob", await users.begin("bob"), [])


async def test_a_load_does_not_bring_back_what_was_forgotten_meanwhile(users: HotUsers) -> None:
    """What was read from the durable store may be older than what made somebody forget the user."""
    ticket = await users.begin("bob")
    await users.forget("bob")
    assert not await users.install("bob", ticket, [])
    assert await users.install("bob", await users.begin("bob"), [])


async def test_two_loaders_of_one_user_race_and_one_wins(users: HotUsers) -> None:
    first, second = await users.begin("bob"), await users.begin("bob")
    assert await users.install("bob", second, [])
    await users.apply([Joined("c", 1, Mode.LEDGER, 0, 0, False, (("bob", Pointer()),))])
    assert not await users.install("bob", first, [])
    assert (await user_room(users)).member


async def test_an_own_message_reads_what_was_before_it(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1)])
    told = await users.apply([OwnRead("c", "bob", 2, Pointer(0, 2, frozenset(), "m2", 1002))])
    assert told == []
    assert (await ledger(users)).count == 0
    assert (await user_room(users)).pointer.position == place(2)


async def test_case_6_an_own_message_repeated_after_a_mark_unread_reads_only_itself(users: HotUsers) -> None:
    await load(users)
    sent = OwnRead("c", "bob", 2, Pointer(0, 2, frozenset(), "m2", 1002))
    await users.apply([sent])
    rewound = await moved(users, Rewind("bob", "c", 1, START, ()))
    told = await users.apply([sent])
    pointer = (await user_room(users)).pointer
    assert pointer.state == ReadState(rewound.pointer.epoch, 0, frozenset({2}))
    assert [one.pointer.state for one in told] == [pointer.state]


async def test_a_join_never_moves_the_pointer_back(users: HotUsers) -> None:
    await load(users)
    await moved(users, Read("bob", "c", place(4)))
    await users.apply([Left("c", 1, ("bob",)), Joined("c", 2, Mode.LEDGER, 5, 0, False, (("bob", Pointer()),))])
    assert (await user_room(users)).pointer.seq == 4
    assert (await user_room(users)).ledger is None


async def test_a_join_reads_in_an_epoch_that_only_the_hot_state_knows_and_only_once(users: HotUsers) -> None:
    await load(users)
    rewound = await moved(users, Rewind("bob", "c", 1, START, ()))
    known = Pointer(0, 5, frozenset(), "m5", place(5).at)
    join = Joined("c", 2, Mode.LEDGER, 5, 0, False, (("bob", known),), place(5))
    told = await users.apply([Left("c", 1, ("bob",)), join])
    pointer = (await user_room(users)).pointer
    assert (pointer.state, pointer.position) == (ReadState(rewound.pointer.epoch, 5), place(5))
    assert [one.pointer.state for one in told] == [pointer.state]

    again = await moved(users, Rewind("bob", "c", 3, place(2), ()))
    assert not await users.apply([join])
    assert (await user_room(users)).pointer.state == again.pointer.state


async def test_only_the_newest_are_kept_and_the_count_says_so(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(seq) for seq in range(1, CAP + 3)])
    view = await ledger(users)
    assert (view.count, view.capped) == (CAP, True)
    assert view.first is not None
    assert view.first.id == "m3"
    await moved(users, Read("bob", "c", place(2)))
    assert not (await ledger(users)).capped


async def test_a_loaded_ledger_is_a_lower_bound_until_the_pointer_passes_what_was_left_out(users: HotUsers) -> None:
    await load(users)
    rewound = await moved(users, Rewind("bob", "c", 1, START, ()))
    newest = [entry(seq) for seq in range(9, 9 + CAP)]
    loads = [LedgerLoad("bob", "c", rewound.pointer.state, 3, newest, floor=6)]
    assert await users.install_ledgers(loads) == [True]
    assert (await ledger(users)).capped
    await moved(users, Read("bob", "c", place(5)))
    assert (await ledger(users)).capped
    await moved(users, Read("bob", "c", place(6)))
    view = await ledger(users)
    assert (view.count, view.capped) == (CAP, False)
    assert await users.install_ledgers(loads) == [True]
    assert not (await ledger(users)).capped


async def test_an_edit_gives_and_takes_a_mention(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1), fan_out(2)])
    await users.apply([FanOut("c", 3, ("bob",), entry(1), frozenset({"bob"}), "alice", edit=True)])
    assert (await ledger(users)).mentions == 1
    await users.apply([FanOut("c", 4, ("bob",), entry(1), frozenset(), "alice", edit=True)])
    view = await ledger(users)
    assert (view.count, view.mentions) == (2, 0)


async def test_in_a_timeline_channel_only_messages_by_name_are_kept(users: HotUsers) -> None:
    await load(users, mode=Mode.TIMELINE)
    await users.apply([fan_out(1, None, "bob", named=("bob",)), fan_out(2, None, "bob", named=())])
    assert (await ledger(users)).named == (1,)
    unread_summary, view = await users.unread_summary("bob"), await users.view("bob", [])
    assert unread_summary is not None
    assert view is not None
    assert (unread_summary.plain, list(view.timelines)) == ((0, 0, 0, False), ["c"])
    await users.apply([FanOut("c", 3, ("bob",), entry(1), frozenset(), "alice", edit=True)])
    assert (await ledger(users)).named == ()


async def test_a_view_stays_as_it_was_when_the_user_joins_another_channel(users: HotUsers) -> None:
    await load(users, mode=Mode.TIMELINE)
    view = await users.view("bob", [])
    assert view is not None
    await users.apply([Joined("d", 1, Mode.TIMELINE, 0, 0, False, (("bob", Pointer()),))])
    assert list(view.timelines) == ["c"]
    await users.apply([Left("c", 1, ("bob",))])
    assert list(view.timelines) == ["c"]


async def test_a_switch_to_the_timeline_is_noted_once(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1)])
    await users.apply([Switched("c", 2, ("bob",))])
    assert (await user_room(users)).mode is Mode.TIMELINE
    assert (await user_room(users)).ledger is None


async def test_a_deleted_channel_leaves_only_that_it_is_gone(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1)])
    await moved(users, Read("bob", "c", place(1), (3,), ids=("m3",)))
    before = await users.view("bob", [])
    await users.apply([Gone("c", 2, ("bob",))])
    gone = await user_room(users)
    assert not gone.member
    assert gone.pointer.state == ReadState(1, 0)
    assert before is not None
    changed = await users.view("bob", before.change)
    assert changed is not None
    assert [one.channel_id for one in changed.user_rooms] == ["c"]


async def test_what_changed_since_a_number_is_found_and_nothing_else(users: HotUsers) -> None:
    user_rooms = [
        LoadedUserRoom(f"c{i}", True, Mode.LEDGER, 0, True, Pointer(), Preferences(), 0, False) for i in range(9)
    ]
    assert await users.install("bob", await users.begin("bob"), user_rooms)
    start = await users.view("bob", [])
    assert start is not None
    await users.move([Read("bob", "c3", place(1)), Read("bob", "c5", place(1)), Read("bob", "c3", place(2))])
    await users.prefer("bob", "c7", Preferences(count="none"))
    changed = await users.view("bob", start.change)
    assert changed is not None
    assert {one.channel_id for one in changed.user_rooms} == {"c3", "c5", "c7"}
    nothing = await users.view("bob", changed.change)
    assert nothing is not None
    assert nothing.user_rooms == []


async def test_pointers_of_many_in_one_channel(users: HotUsers) -> None:
    await load(users)
    await load(users, "carol")
    await users.apply([fan_out(seq, None, "bob", "carol") for seq in (1, 2, 3)])
    await users.move([Read("bob", "c", place(1), (3,)), Read("carol", "c", place(2))])

    bob, dave, carol = await users.pointers_in("c", ["bob", "dave", "carol"])

    assert dave is None
    assert bob is not None
    assert (bob.state, bob.position) == (ReadState(0, 1, frozenset({3})), place(1))
    assert carol is not None
    assert (carol.state, carol.position) == (ReadState(0, 2), place(2))
    assert await users.pointers_in("elsewhere", ["bob", "dave"]) == [Pointer(), None]


async def test_a_pointer_tells_when_it_moved_or_that_it_does_not_know(users: HotUsers, clock: ManualClock) -> None:
    await load(users)
    await users.apply([fan_out(seq) for seq in (1, 2, 3)])
    [pointer] = await users.pointers_in("c", ["bob"])
    assert pointer is not None
    assert pointer.read_at == 0
    for move in (Read("bob", "c", place(1)), Read("bob", "c", START, (3,)), Rewind("bob", "c", 1, START, ())):
        clock.now += 1_000
        moved_at = clock.now
        await users.move([move])
        clock.now += 5_000
        await users.apply([fan_out(4, 4)])
        [pointer] = await users.pointers_in("c", ["bob"])
        assert pointer is not None
        assert pointer.read_at in {0, moved_at}
        assert pointer.read_at == moved_at or isinstance(users, MemoryUsers)


async def test_newer_preferences_stay(users: HotUsers) -> None:
    await load(users)
    first = await users.prefer("bob", "c", Preferences(pinned=True), NO_CHANGE)
    assert first is not None
    assert (await user_room(users)).preferences == Preferences(pinned=True, change=first)
    second = await users.prefer("bob", "c", Preferences(), first)
    assert second is not None
    assert second > first
    assert await users.prefer("bob", "c", Preferences(pinned=True), first) is None
    assert (await user_room(users)).preferences == Preferences(change=second)


async def test_preferences_carry_the_number_they_were_loaded_with(users: HotUsers) -> None:
    wanted = Preferences(muted_until=9, change=ChangeNumber(7))
    loaded = LoadedUserRoom("c", True, Mode.LEDGER, NO_CHANGE, True, Pointer(), wanted, 0, False)
    assert await users.install("bob", await users.begin("bob"), [loaded])
    assert (await user_room(users)).preferences == wanted
    assert await users.prefer("bob", "c", Preferences(), ChangeNumber(6)) is None
    assert await users.prefer("bob", "c", Preferences(), ChangeNumber(7)) is not None


async def test_who_has_left_sets_no_preferences(users: HotUsers) -> None:
    await load(users)
    await users.apply([Left("c", 1, ("bob",))])
    assert await users.prefer("bob", "c", Preferences(pinned=True)) is None


async def test_numbers_are_taken_in_order(users: HotUsers) -> None:
    assert await users.take_number("bob") is None
    await load(users)
    numbers = [await users.take_number("bob") for _ in range(3)]
    assert numbers == sorted(numbers, key=lambda number: number or 0)
    assert len(set(numbers)) == 3
    assert await users.changes(["bob"]) == numbers[-1:]


async def test_a_number_from_before_a_load_is_below_every_later_change(users: HotUsers) -> None:
    number = await users.number_before_load("bob")
    await load(users)
    assert await users.number_before_load("bob") is None
    before = (await user_room(users)).pointer.change
    await moved(users, Read("bob", "c", place(1)))
    if number is not None:  # else the store knows none
        assert before <= number < (await user_room(users)).pointer.change


async def test_an_overview_has_the_sums_the_order_and_what_a_page_needs_besides(users: HotUsers) -> None:
    assert await users.unread_overview("bob", None, 9) is None
    await load(users)
    await users.apply([fan_out(1)])
    await users.prefer("bob", "c", Preferences(pinned=True))
    overview, view = await users.unread_overview("bob", None, 9), await users.view("bob", [])
    assert overview is not None
    assert view is not None
    assert overview.summary == await users.unread_summary("bob")
    assert overview.rooms == await users.inbox("bob", None, 9, only_unread=True) != []
    assert (overview.change, overview.preferences) == (view.change, view.preferences)
    assert (list(overview.timelines), overview.unloaded) == ([], False)

    after = await users.unread_overview("bob", overview.rooms[-1], 9)
    assert after is not None
    assert after.rooms == []
    await users.forget("bob", "c")
    unloaded = await users.unread_overview("bob", None, 9)
    assert unloaded is not None
    assert unloaded.unloaded


async def test_a_survey_costs_nothing_for_what_is_read(users: HotUsers) -> None:
    await load(users)
    await users.apply([fan_out(1), fan_out(2, None, "bob", named=("bob",))])
    unread_summary = await users.unread_summary("bob")
    assert unread_summary is not None
    assert unread_summary.plain == (2, 1, 1, False)
    await moved(users, Read("bob", "c", place(2)))
    unread_summary, view = await users.unread_summary("bob"), await users.view("bob", [])
    assert unread_summary is not None
    assert view is not None
    assert (unread_summary.plain, view.unloaded) == ((0, 0, 0, False), [])


async def test_a_ledger_expires_without_activity(users: HotUsers, clock: ManualClock) -> None:
    await load(users)
    await users.apply([fan_out(1)])
    clock.now += 61_000
    assert (await user_room(users)).ledger is None
    view = await users.view("bob", [])
    assert view is not None
    assert view.unloaded == ["c"]


async def test_forgetting_a_user_is_as_if_it_had_never_been_loaded(users: HotUsers) -> None:
    await load(users)
    await users.forget("bob", "c")
    assert (await user_room(users)).ledger is None
    await users.forget("bob")
    assert await users.view("bob", "all") is None


async def test_pointers_are_seen_without_being_used(users: HotUsers, clock: ManualClock) -> None:
    assert await users.pointers("bob") is None
    left = LoadedUserRoom(
        "left", False, Mode.LEDGER, 0, True, Pointer(2, 5, frozenset({9}), "m5", 5), Preferences(), 0, False
    )
    here = LoadedUserRoom("c", True, Mode.LEDGER, 0, True, Pointer(0, 1), Preferences(), 0, False)
    assert await users.install("bob", await users.begin("bob"), [left, here])
    await users.move([Read("bob", "c", place(3), (7,))])

    seen = await users.pointers("bob")
    assert seen is not None
    assert {room: (one.state, one.position) for room, one in seen.items()} == {
        "left": (ReadState(2, 5, frozenset({9})), Position(5, "m5", 5)),
        "c": (ReadState(0, 3, frozenset({7})), place(3)),
    }
    view = await users.view("bob", "all")
    assert view is not None
    assert {user_room.channel_id: user_room.pointer for user_room in view.user_rooms} == seen
