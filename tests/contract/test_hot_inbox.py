"""What every adapter of the hot state of users promises of the inbox and of threads."""

from collections.abc import Sequence

from readstate.domain.hot_updates import FanOut, Gone, Joined, Left
from readstate.domain.model import START, Entry, Mode, Pointer, Position, Preferences, ReadState
from readstate.domain.rooms import thread_room
from readstate.ports import HotUsers, LedgerLoad, LoadedUserRoom, Moved, Read, Rewind

THREAD = thread_room("a", "root")


def loaded_room(channel: str, latest_at: int, *, mode: Mode = Mode.LEDGER, member: bool = True) -> LoadedUserRoom:
    return LoadedUserRoom(channel, member, mode, 0, True, Pointer(), Preferences(), latest_at, False)


async def load(users: HotUsers, *user_rooms: LoadedUserRoom) -> None:
    assert await users.install("bob", await users.begin("bob"), user_rooms)


def message(channel: str, seq: int, at: int) -> FanOut:
    return FanOut(channel, seq, ("bob",), Entry(seq, f"m{seq}", at, False), sender="alice", latest_at=at)


async def names(users: HotUsers, after: tuple[int, str] | None = None, limit: int = 9, **more: bool) -> Sequence[str]:
    found = await users.inbox("bob", after, limit, **more)
    assert found is not None
    return [name for _, name in found]


async def test_an_inbox_that_is_not_loaded_is_told_apart_from_an_empty_one(users: HotUsers) -> None:
    assert await users.inbox("bob", None, 9) is None
    await load(users)
    assert await users.inbox("bob", None, 9) == []


async def test_the_latest_activity_first_and_by_id_where_it_is_the_same(users: HotUsers) -> None:
    await load(users, loaded_room("a", 10), loaded_room("c", 20), loaded_room("b", 20), loaded_room("empty", 0))
    assert await users.inbox("bob", None, 9) == [(-20, "b"), (-20, "c"), (-10, "a"), (0, "empty")]
    assert await names(users, limit=2) == ["b", "c"]
    assert await names(users, (-20, "b"), 2) == ["c", "a"]
    assert await names(users, (-15, "anything")) == ["a", "empty"]


async def test_a_message_moves_its_channel_up_and_a_delete_moves_it_back(users: HotUsers) -> None:
    await load(users, loaded_room("a", 10), loaded_room("b", 20))
    assert await names(users) == ["b", "a"]
    await users.apply([message("a", 1, 30)])
    assert await names(users) == ["a", "b"]
    await users.apply([FanOut("a", 2, ("bob",), remove=Position(1, "m1", 30), latest_at=10)])
    assert await names(users) == ["b", "a"]


async def test_a_repeat_moves_nothing(users: HotUsers) -> None:
    await load(users, loaded_room("a", 10), loaded_room("b", 20))
    moved = message("a", 1, 30)
    await users.apply([moved, message("b", 1, 40)])
    await users.apply([moved])
    assert await names(users) == ["b", "a"]


async def test_a_message_moves_its_channel_also_if_a_loaded_ledger_holds_it_already(users: HotUsers) -> None:
    """Stored, then loaded with the ledger, and only then told to the user."""
    await load(users, loaded_room("a", 10), loaded_room("b", 20))
    [rewound] = await users.move([Rewind("bob", "a", 1, START, ())])
    assert isinstance(rewound, Moved)
    entries = [Entry(1, "m1", 30, False)]
    assert await users.install_ledgers([LedgerLoad("bob", "a", rewound.pointer.state, 1, entries)]) == [True]
    assert await names(users) == ["b", "a"]
    before = await users.view("bob", [])
    assert before is not None

    await users.apply([message("a", 1, 30)])

    assert await names(users) == ["a", "b"]
    changed = await users.view("bob", before.change)
    assert changed is not None
    [told] = changed.user_rooms
    assert told.channel_id == "a"
    assert told.ledger is not None
    assert told.ledger.count == 1


async def test_channels_come_with_joining_and_go_with_leaving_and_deleting(users: HotUsers) -> None:
    await load(users, loaded_room("a", 10), loaded_room("left", 50, member=False))
    assert await names(users) == ["a"]
    await users.apply([Joined("b", 1, Mode.LEDGER, 0, 20, False, (("bob", Pointer()),))])
    assert await names(users) == ["b", "a"]
    await users.apply([Left("b", 2, ("bob",)), Gone("a", 3, ("bob",))])
    assert await names(users) == []


async def test_channels_counted_by_timeline_are_not_in_it(users: HotUsers) -> None:
    await load(users, loaded_room("a", 10), loaded_room("big", 99, mode=Mode.TIMELINE))
    assert await names(users) == ["a"]


async def test_only_those_with_anything_unread(users: HotUsers) -> None:
    await load(users, loaded_room("a", 10), loaded_room("b", 20), loaded_room("c", 30))
    await users.apply([message("a", 1, 40), message("b", 1, 35)])
    assert await names(users, only_unread=True) == ["a", "b"]
    await users.move([Read("bob", "a", Position(1, "m1", 40))])
    assert await names(users, only_unread=True) == ["b"]


async def test_the_order_of_unread_channels_follows_every_change(users: HotUsers) -> None:
    """It is asked for after each step: an adapter may keep the order that it gave before."""

    async def unread(after: tuple[int, str] | None = None) -> Sequence[str]:
        return await names(users, after, only_unread=True)

    not_loaded = LoadedUserRoom("d", True, Mode.LEDGER, 1, False, Pointer(), Preferences(), 70, False)
    await load(users, loaded_room("a", 10), loaded_room("b", 20), loaded_room("c", 30), not_loaded)
    await users.apply([message("a", 1, 40), message("b", 1, 45)])
    assert await unread() == ["b", "a"]
    await users.apply([message("a", 2, 50)])
    assert await unread() == ["a", "b"]
    assert await unread((-50, "a")) == ["b"]
    await users.apply([message("c", 1, 60)])
    assert await unread() == ["c", "a", "b"]
    await users.apply([FanOut("a", 3, ("bob",), remove=Position(2, "m2", 50), latest_at=40)])
    assert await unread() == ["c", "b", "a"]
    await users.move([Read("bob", "c", Position(1, "m1", 60))])
    assert await unread() == ["b", "a"]
    [rewound] = await users.move([Rewind("bob", "c", 1, START, ())])
    assert isinstance(rewound, Moved)
    assert await unread() == ["b", "a"]
    loads = [LedgerLoad("bob", "c", rewound.pointer.state, 1, [Entry(1, "m1", 60, False)])]
    assert await users.install_ledgers(loads) == [True]
    assert await unread() == ["c", "b", "a"]
    await users.install_ledgers([LedgerLoad("bob", "d", ReadState(), 1, [Entry(1, "m1", 70, False)])])
    assert await unread() == ["d", "c", "b", "a"]
    await users.apply([Left("b", 2, ("bob",))])
    assert await unread() == ["d", "c", "a"]


async def test_sums_follow_every_change_of_a_ledger(users: HotUsers) -> None:
    async def sums() -> tuple[int, int, int, bool]:
        summary = await users.unread_summary("bob")
        assert summary is not None
        return summary.plain

    def named(seq: int, change: int, mention: bool, *, edit: bool = False) -> FanOut:
        who = frozenset({"bob"}) if mention else frozenset[str]()
        put = Entry(seq, f"m{seq}", 40 + seq, False)
        return FanOut("a", change, ("bob",), put, sender="alice", latest_at=40 + seq, named=who, edit=edit)

    await load(users, loaded_room("a", 10), loaded_room("b", 20))
    await users.apply([named(1, 1, True), named(2, 2, True), named(3, 3, False)])
    assert await sums() == (3, 2, 1, False)
    await users.apply([named(3, 4, True, edit=True), message("b", 1, 50)])
    assert await sums() == (4, 3, 2, False)
    await users.apply([FanOut("a", 5, ("bob",), remove=Position(2, "m2", 42), latest_at=43)])
    assert await sums() == (3, 2, 2, False)
    await users.move([Read("bob", "a", Position(1, "m1", 41))])
    assert await sums() == (2, 1, 2, False)
    await users.move([Read("bob", "a", START, apart=(3,), ids=("m3",))])
    assert await sums() == (1, 0, 1, False)
    [rewound] = await users.move([Rewind("bob", "a", 1, START, ())])
    assert isinstance(rewound, Moved)
    assert await sums() == (1, 0, 1, False)
    entries = [Entry(1, "m1", 41, True), Entry(3, "m3", 43, True)]
    for _ in range(2):  # the second one replaces the first
        loads = [LedgerLoad("bob", "a", rewound.pointer.state, 5, entries, floor=1)]
        assert await users.install_ledgers(loads) == [True]
    assert await sums() == (3, 2, 2, True)
    await users.forget("bob", "a")
    assert await sums() == (1, 0, 1, False)


async def test_a_followed_thread_is_counted_and_is_in_no_inbox(users: HotUsers) -> None:
    await load(users, loaded_room("a", 10), loaded_room(THREAD, 20))
    await users.apply([message(THREAD, 1, 30), message(THREAD, 2, 31)])
    assert await names(users) == ["a"]
    unread_summary = await users.unread_summary("bob")
    assert unread_summary is not None
    assert unread_summary.threads == [(THREAD, 2, False)]
    assert unread_summary.plain == (0, 0, 0, False)
    await users.move([Read("bob", THREAD, Position(1, "m1", 30)), Read("bob", "a", START)])
    unread_summary = await users.unread_summary("bob")
    assert unread_summary is not None
    assert unread_summary.threads == [(THREAD, 1, False)]
