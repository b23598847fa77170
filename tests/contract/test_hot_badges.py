"""What every adapter of the hot state of badges promises."""

from readstate.model import Undelivered
from readstate.ports import HotBadges

NOBODY: frozenset[str] = frozenset()


def wrote(sender: str, at: int, receiver: str = "bob") -> Undelivered:
    return Undelivered(receiver, at, sender, "c", f"{sender} at {at}")


async def load(badges: HotBadges, tap: int = 0, *senders: str, user: str = "bob") -> None:
    assert await badges.install(user, await badges.begin(user), tap, frozenset(senders))


async def test_what_is_not_loaded_is_told_apart_from_nobody(badges: HotBadges) -> None:
    assert await badges.count("bob") is None
    await load(badges)
    assert await badges.count("bob") == 0


async def test_people_are_counted_once_each(badges: HotBadges) -> None:
    await load(badges, 0, "alice")
    await badges.add([wrote("alice", 1), wrote("carol", 2), wrote("carol", 3), wrote("dave", 3, "eve")])
    await badges.add([wrote("carol", 2)])
    assert await badges.count("bob") == 2
    assert await badges.count("eve") is None


async def test_a_tap_forgets_everyone(badges: HotBadges) -> None:
    await load(badges, 0, "alice", "carol")
    await badges.tap("bob", 10)
    assert await badges.count("bob") == 0


async def test_what_was_accepted_before_the_tap_does_not_bring_the_badge_back(badges: HotBadges) -> None:
    await load(badges)
    await badges.tap("bob", 10)
    await badges.add([wrote("alice", 9), wrote("carol", 10)])
    assert await badges.count("bob") == 0
    await badges.add([wrote("carol", 11)])
    assert await badges.count("bob") == 1


async def test_a_tap_that_comes_late_or_again_forgets_nobody_else(badges: HotBadges) -> None:
    await load(badges)
    await badges.tap("bob", 10)
    await badges.add([wrote("alice", 11)])
    await badges.tap("bob", 10)
    await badges.tap("bob", 5)
    assert await badges.count("bob") == 1


async def test_a_loaded_badge_knows_its_tap(badges: HotBadges) -> None:
    await load(badges, 10, "alice")
    await badges.add([wrote("carol", 10)])
    assert await badges.count("bob") == 1
    await badges.add([wrote("carol", 11)])
    assert await badges.count("bob") == 2


async def test_whatever_happens_during_a_load_makes_it_fail(badges: HotBadges) -> None:
    ticket = await badges.begin("bob")
    await badges.add([wrote("alice", 1)])
    assert not await badges.install("bob", ticket, 0, NOBODY)
    ticket = await badges.begin("bob")
    await badges.tap("bob", 10)
    assert not await badges.install("bob", ticket, 0, frozenset({"alice"}))
    assert await badges.count("bob") is None
    await load(badges)


async def test_what_happens_to_others_does_not(badges: HotBadges) -> None:
    ticket = await badges.begin("bob")
    await badges.add([wrote("alice", 1, "carol")])
    await badges.tap("carol", 10)
    assert await badges.install("bob", ticket, 0, NOBODY)


async def test_two_that_load_at_once_do_no_harm(badges: HotBadges) -> None:
    first, second = await badges.begin("bob"), await badges.begin("bob")
    assert await badges.install("bob", first, 0, frozenset({"alice"}))
    await badges.add([wrote("carol", 1)])
    await badges.install("bob", second, 0, frozenset({"alice"}))
    assert await badges.count("bob") in {2, None}


async def test_a_forgotten_badge_is_loaded_again(badges: HotBadges) -> None:
    await load(badges, 0, "alice")
    await badges.forget("bob")
    assert await badges.count("bob") is None
    await load(badges, 0, "alice")
    assert await badges.count("bob") == 1


async def test_a_load_that_began_before_the_badge_was_forgotten_fails(badges: HotBadges) -> None:
    ticket = await badges.begin("bob")
    await badges.forget("bob")
    assert not await badges.install("bob", ticket, 0, frozenset({"alice"}))


async def test_a_load_that_began_when_the_badge_was_there_already_brings_nothing_back(badges: HotBadges) -> None:
    await load(badges)
    late = await badges.begin("bob")
    await badges.add([wrote("alice", 1)])
    await badges.install("bob", late, 0, NOBODY)
    assert await badges.count("bob") in {1, None}


async def test_many_who_are_away_are_told_at_once(badges: HotBadges) -> None:
    users = [f"user {number}" for number in range(50)]
    for user in users[:40]:
        await load(badges, 0, "alice", user=user)
    await badges.add([wrote(sender, 1, user) for sender in ("alice", "bob", "carol") for user in users])
    assert [await badges.count(user) for user in users] == [3] * 40 + [None] * 10


async def test_names_of_any_kind_are_told_apart(badges: HotBadges) -> None:
    names = ["a", "{a}", "{a", "a}", "%7Ba%7D", "a:b", "{a}:b", "{}", "ä", "张", "👍", "A"]
    for size, user in enumerate(names):
        await load(badges, 0, *names[:size], user=user)
    assert [await badges.count(user) for user in names] == list(range(len(names)))
