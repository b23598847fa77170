"""What every hot store tells of a user and a channel in words: as it is kept, without loading anything."""

from readstate.domain.model import ChangeNumber, Channel, Entry, Mode, Pointer, Position, Preferences
from readstate.ports import HotChannels, HotUsers, LedgerLoad, LoadedUserRoom, Read, StoredKey, TimelineLoad

from .conftest import ManualClock, users_over
from .valkey import hot_store, single


def facts(keys: list[StoredKey]) -> dict[str, str]:
    """Of all keys together; of the first one that has a fact of this name."""
    return {name: fact for key in reversed(keys) for name, fact in key.facts.items()}


async def load(users: HotUsers, mode: Mode = Mode.LEDGER) -> None:
    pointer = Pointer(3, 2, frozenset({4}), "m2", 1_002)
    wishes = Preferences(count="mentions", pinned=True)
    room = LoadedUserRoom("c", True, mode, 0, False, pointer, wishes, 0, False)
    assert await users.install("bob", await users.begin("bob"), [room])
    entries = [Entry(seq, f"m{seq}", 1_000 + seq, seq == 5) for seq in (3, 5, 6)]
    assert await users.install_ledgers([LedgerLoad("bob", "c", pointer.state, 0, entries, 0)]) == [True]


async def test_nothing_is_kept_of_somebody_who_was_never_loaded(users: HotUsers, channels: HotChannels) -> None:
    assert await users.stored("bob", "c") == []
    assert await channels.stored("c") == []
    assert await users.view("bob", "all") is None, "nothing was loaded by looking"


async def test_pointer_ledger_mentions_and_preferences_are_told(users: HotUsers) -> None:
    await load(users)

    told = facts(await users.stored("bob", "c"))

    assert told["member"] == "yes"
    assert told["counted by"] == "ledger"
    assert told["pointer"] == "seq 2 (m2, sent 1970-01-01T00:00:01.002+00:00)"
    assert told["epoch"] == "3"
    assert told["read one by one"] == "4"
    assert told["mentions, by seq"] == "5"
    assert told["dropped up to"] == "nothing was dropped"
    assert "m3" in told["first"]
    assert "m6" in told["last"]
    assert (told["counts"], told["receipts"], told["pinned"]) == ("mentions", "public", "yes")
    assert (told["muted until"], told["archived"]) == ("not muted", "no")


async def test_a_read_shows_at_once_and_other_channels_do_not(users: HotUsers) -> None:
    await load(users)
    await users.move([Read("bob", "c", Position(5, "m5", 1_005))])

    told = facts(await users.stored("bob", "c"))

    assert told["pointer"].startswith("seq 5 (m5")
    assert "m6" in told["first"]
    assert "pointer" not in facts(await users.stored("bob", "elsewhere"))


async def test_a_ledger_that_was_not_loaded_says_so(users: HotUsers) -> None:
    room = LoadedUserRoom("c", True, Mode.LEDGER, 0, False, Pointer(), Preferences(), 0, False)
    assert await users.install("bob", await users.begin("bob"), [room])

    assert facts(await users.stored("bob", "c"))["unread"] == "the ledger must be loaded"


async def test_a_channel_and_its_timeline_are_told(channels: HotChannels) -> None:
    channel = Channel(
        "c", mode=Mode.TIMELINE, member_count=200, last_seq=7, last_id="m7", last_at=1_007, change=ChangeNumber(9)
    )
    assert await channels.install([channel])
    entries = [Entry(seq, f"m{seq}", 1_000 + seq, seq == 6) for seq in (6, 7)]
    assert await channels.install_timeline(TimelineLoad("c", 9, entries, 5))

    told = facts(await channels.stored("c"))

    assert told["last message"] == "seq 7 (m7, sent 1970-01-01T00:00:01.007+00:00)"
    assert (told["counted by"], told["members"], told["messages"]) == ("timeline", "200", "2")
    assert told["dropped up to"] == "seq 5"
    assert "m7" in told["last"]


async def test_in_valkey_keys_expire_and_a_generation_that_has_passed_is_told(clock: ManualClock) -> None:
    async with hot_store(single) as store:
        users = users_over(store, clock)
        await load(users)
        before = {key.name.removeprefix(store.prefix): key for key in await users.stored("bob", "c")}
        store.generation.distrust()
        await store.generation.confirm()
        after = facts(await users.stored("bob", "c"))

    assert set(before) == {
        "read-pointer:{bob}", "read-apart:{bob}", "unread-counts:{bob}", "unread:{bob}:c", "preferences:{bob}",
        "inbox:{bob}",
    }  # fmt: skip
    assert all(key.expires_in for key in before.values())
    assert before["read-pointer:{bob}"].facts["generation"].endswith(", current")
    assert before["unread-counts:{bob}"].facts["unread"] == "3"
    assert before["unread-counts:{bob}"].facts["first unread"].startswith("m3 (seq 3, sent ")
    assert "not current" in after["generation"]
    assert after["pointer"].startswith("seq 2"), "it is shown all the same"
