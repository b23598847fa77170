"""What every adapter of the hot state of badges promises."""

from readstate.domain.model import Undelivered
from readstate.ports import HotBadges

NOBODY: frozenset[str] = frozenset()


def wrote(sender: str, at: int, receiver: str = "bob") -> Undelivered:
    return Undelivered(receiver, at, sender, "c", f"{sender} at {at}")


async def load(badges: HotBadges, tap: int = 0, *senders: str, user: str = "bob") -> None:
    assert await badges.install(user, await begin(badges, user), tap, frozenset(senders))


async def begin(badges: HotBadges, user: str = "bob") -> int:
    ticket = await badges.begin(user)
    assert ticket is not None, "nobody taps"
    return ticket


async def test_what_is_not_loaded_is_told_apart_from_nobody(badges: HotBadges) -> None:
    assert await badges.count("bob") is None
    await load(badges)
    assert await badges.count("bob") == 0


async def test_many_are_counted_at_once(badges: HotBadges) -> None:
    await load(badges, 0, "alice", "carol")
    await load(badges, user="eve")
    await badges.begin("being loaded")
    await badges.begin("eve")  # once more
    assert await badges.counts(["eve", "not loaded", "bob", "being loaded"]) == [0, None, 2, None]
    assert await badges.counts([]) == []


async def test_people_are_counted_once_each(badges: HotBadges) -> None:
    await load(badges, 0, "alice")
    await badges.add([wrote("alice", 1), wrote("carol", 2), wrote("carol", 3), wrote("dave", 3, "eve")])
    await badges.add([wrote("carol", 2)])
    assert await badges.count("bob") == 2
    assert await badges.count("eve") is None


async def test_whose_badge_may_be_another_one_is_told(badges: HotBadges) -> None:
    await load(badges, 10, "alice")
    await load(badges, 10, user="carol")
    unknown = [wrote("alice", 11, "not loaded")]
    assert await badges.add([wrote("alice", 11), wrote("dave", 9), wrote("dave", 11, "carol"), *unknown]) == {
        "carol": True,
        "not loaded": False,
    }
    assert await badges.add([wrote("dave", 11, "carol")]) == {}
    assert await badges.add([]) == {}


async def test_a_badge_is_dropped_when_a_tap_begins_and_loaded_again_when_it_is_over(badges: HotBadges) -> None:
    await load(badges, 0, "alice", "carol")
    token = await badges.hold("bob")
    assert await badges.count("bob") is None
    await badges.release("bob", token)
    assert await badges.count("bob") is None
    await load(badges, 10)
    assert await badges.count("bob") == 0


async def test_nobody_loads_while_somebody_taps(badges: HotBadges) -> None:
    token = await badges.hold("bob")
    assert await badges.begin("bob") is None
    await load(badges, user="carol")
    await badges.release("bob", token)
    await load(badges)


async def test_of_two_taps_at_once_both_must_be_over(badges: HotBadges) -> None:
    first, second = await badges.hold("bob"), await badges.hold("bob")
    await badges.release("bob", first)
    await badges.release("bob", first)
    assert await badges.begin("bob") is None
    await badges.release("bob", second)
    await load(badges)


async def test_a_tap_that_is_over_late_drops_what_was_loaded_meanwhile(badges: HotBadges) -> None:
    """Its hold may have expired, or been lost with the memory of the server."""
    token = await badges.hold("bob")
    await badges.release("bob", token)
    await load(badges, 0, "alice")
    await badges.release("bob", token)
    assert await badges.count("bob") is None


async def test_what_comes_while_somebody_taps_is_left_to_the_next_load(badges: HotBadges) -> None:
    await load(badges, 0, "alice")
    token = await badges.hold("bob")
    assert await badges.add([wrote("carol", 1)]) == {"bob": False}
    assert await badges.count("bob") is None
    await badges.release("bob", token)
    assert await badges.count("bob") is None


async def test_a_load_that_began_before_a_tap_fails(badges: HotBadges) -> None:
    ticket = await begin(badges)
    token = await badges.hold("bob")
    assert not await badges.install("bob", ticket, 0, frozenset({"alice"}))
    await badges.release("bob", token)
    assert not await badges.install("bob", ticket, 0, frozenset({"alice"}))
    assert await badges.count("bob") is None


async def test_a_forgotten_badge_stays_held(badges: HotBadges) -> None:
    token = await badges.hold("bob")
    await badges.forget("bob")
    assert await badges.begin("bob") is None
    await badges.release("bob", token)
    await load(badges)


async def test_a_loaded_badge_knows_its_tap(badges: HotBadges) -> None:
    await load(badges, 10, "alice")
    await badges.add([wrote("carol", 10)])
    assert await badges.count("bob") == 1
    await badges.add([wrote("carol", 11)])
    assert await badges.count("bob") == 2


async def test_whatever_happens_during_a_load_makes_it_fail(badges: HotBadges) -> None:
    ticket = await begin(badges)
    await badges.add([wrote("alice", 1)])
    assert not await badges.install("bob", ticket, 0, NOBODY)
    assert await badges.count("bob") is None
    await load(badges)


async def test_what_happens_to_others_does_not(badges: HotBadges) -> None:
    ticket = await begin(badges)
    await badges.add([wrote("alice", 1, "carol")])
    await badges.release("carol", await badges.hold("carol"))
    assert await badges.install("bob", ticket, 0, NOBODY)


async def test_two_that_load_at_once_do_no_harm(badges: HotBadges) -> None:
    first, second = await begin(badges), await begin(badges)
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
    ticket = await begin(badges)
    await badges.forget("bob")
    assert not await badges.install("bob", ticket, 0, frozenset({"alice"}))


async def test_a_load_that_began_when_the_badge_was_there_already_brings_nothing_back(badges: HotBadges) -> None:
    await load(badges)
    late = await begin(badges)
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
