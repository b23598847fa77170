"""Presence, as every adapter promises it: who is there, with what open, and what has got through."""

from readstate.domain.model import FOREVER, Undelivered
from readstate.ports import MAX_UNPROVEN, Departure, HotPresence
from tests.conftest import eventually

from .conftest import ManualClock

NOW = 1_700_000_000_000


def note(message: str, receiver: str = "bob", accepted_at: int = NOW) -> Undelivered:
    return Undelivered(receiver, accepted_at, "alice", "c", message)


async def comes(presence: HotPresence, user: str = "bob", connection: str = "k1", focus: str | None = None) -> None:
    await presence.connect(user, "phone", FOREVER, focus, connection)


async def goes(presence: HotPresence, user: str = "bob", connection: str = "k1") -> Departure | None:
    return await presence.disconnect(user, "phone", connection)


async def those_online(presence: HotPresence, *users: str) -> list[str]:
    found = await presence.online(users)
    return [user for user in users if user in found]


# ---------------------------------------------------------------- who is there


async def test_users_are_online_from_their_first_connection_to_their_last(
    presence: HotPresence, clock: ManualClock
) -> None:
    assert await those_online(presence, "alice", "bob") == []
    await comes(presence)
    await presence.connect("bob", "laptop", FOREVER, None, "k2")
    assert await those_online(presence, "alice", "bob") == ["bob"]
    assert await presence.devices("bob") == ["laptop", "phone"]
    assert await goes(presence) is None
    assert await presence.devices("bob") == ["laptop"]
    assert await presence.disconnect("bob", "laptop", "k2") == Departure("bob", clock.now)
    assert await those_online(presence, "alice", "bob") == []


async def test_a_device_with_several_connections_is_there_while_one_is(presence: HotPresence) -> None:
    await comes(presence, connection="k1")
    await comes(presence, connection="k2")
    assert await goes(presence, connection="k1") is None
    assert await presence.devices("bob") == ["phone"]
    assert await goes(presence, connection="k2") is not None
    assert await presence.devices("bob") == []


async def test_what_was_never_there_does_not_go(presence: HotPresence) -> None:
    assert await goes(presence) is None
    await comes(presence)
    assert await goes(presence, connection="another") is None
    assert await goes(presence) is not None
    assert await goes(presence) is None


async def test_a_device_that_is_only_reported_must_be_reported_again_in_time(
    presence: HotPresence, clock: ManualClock
) -> None:
    await presence.connect("bob", "phone", clock.now + 100, None)
    clock.now += 99
    await presence.connect("bob", "phone", clock.now + 100, None)
    clock.now += 99
    assert await presence.expire() == []
    assert await those_online(presence, "bob") == ["bob"]
    clock.now += 1
    assert await those_online(presence, "bob") == []
    assert await presence.devices("bob") == []
    clock.now += 5
    assert await presence.expire() == [Departure("bob", clock.now - 5)]
    assert await presence.expire() == []


async def test_one_user_can_be_looked_at_alone(presence: HotPresence, clock: ManualClock) -> None:
    for user in ("bob", "carol"):
        await presence.connect(user, "phone", clock.now + 100, None)
    clock.now += 100
    assert await presence.expire("bob") == [Departure("bob", clock.now)]
    assert await presence.expire("bob") == []
    assert await presence.expire() == [Departure("carol", clock.now)]


async def test_who_has_another_device_has_not_left(presence: HotPresence, clock: ManualClock) -> None:
    await presence.connect("bob", "tablet", clock.now + 100, None)
    await comes(presence)
    clock.now += 100
    assert await presence.expire() == []
    assert await presence.devices("bob") == ["phone"]


async def test_ids_may_look_like_anything(presence: HotPresence) -> None:
    user, device = "{bo}:b%\n", "ph:o}n{e"
    await presence.connect(user, device, FOREVER, "{c}:d", "k:1")
    assert await presence.devices(user) == [device]
    assert await presence.focused(["{c}:d"]) == {"{c}:d": [user]}
    assert await presence.disconnect(user, device, "k:1") is not None


# ---------------------------------------------------------------- what is open


async def test_who_has_a_channel_open_is_told_until_it_is_left(presence: HotPresence) -> None:
    await comes(presence, focus="c")
    await comes(presence, "carol", focus="c")
    found = await presence.focused(["c", "d"])
    assert {channel: sorted(users) for channel, users in found.items()} == {"c": ["bob", "carol"]}
    await comes(presence, focus="d")
    assert await presence.focused(["c", "d"]) == {"c": ["carol"], "d": ["bob"]}
    await comes(presence, focus=None)
    await goes(presence, "carol")
    assert await presence.focused(["c", "d"]) == {}


async def test_an_overdue_device_has_nothing_open(presence: HotPresence, clock: ManualClock) -> None:
    await presence.connect("bob", "phone", clock.now + 100, "c")
    assert await presence.focused(["c"]) == {"c": ["bob"]}
    clock.now += 100
    assert await presence.focused(["c"]) == {}


async def test_after_a_mark_unread_a_channel_must_be_opened_anew(presence: HotPresence) -> None:
    await comes(presence, focus="c")
    await comes(presence, connection="k2", focus="c")
    await presence.blur("bob", "c")
    await presence.blur("bob", "elsewhere")
    assert await presence.focused(["c"]) == {}
    await comes(presence, focus="c")  # it still is, and was not opened anew
    assert await presence.focused(["c"]) == {}
    await comes(presence, focus=None)
    await comes(presence, focus="c")
    assert await presence.focused(["c"]) == {"c": ["bob"]}


async def test_of_many_who_have_left_a_channel_the_others_remain(presence: HotPresence, clock: ManualClock) -> None:
    for number in range(20):
        await comes(presence, f"user{number:02}", focus="c")
    clock.now += 3_600_000
    for number in range(19):
        await comes(presence, f"user{number:02}", focus=None)
    for _ in range(2):
        assert await presence.focused(["c"]) == {"c": ["user19"]}


# ---------------------------------------------------------------- what got through


async def test_what_was_sent_and_not_proven_goes_with_the_departure(presence: HotPresence) -> None:
    await comes(presence)
    assert await presence.reached([note("m1"), note("m2"), note("m1"), note("m3", "carol")]) == [note("m3", "carol")]
    assert await presence.unproven("bob") == [note("m1"), note("m2")]
    gone = await goes(presence)
    assert gone is not None
    assert set(gone.unproven) == {note("m1"), note("m2")}
    assert await presence.unproven("bob") == []
    assert await presence.reached([note("m4")]) == [note("m4")]


async def test_what_a_departure_tells_is_told_again_until_it_is_noted(
    presence: HotPresence, clock: ManualClock
) -> None:
    await comes(presence)
    await presence.reached([note("m1"), note("m2")])
    assert await goes(presence) == Departure("bob", clock.now, (note("m1"), note("m2")))
    for user in (None, "bob", None):
        assert await presence.expire(user) == [Departure("bob", 0, (note("m1"), note("m2")))]
    assert await presence.expire("carol") == []
    await presence.noted([note("m1")])
    assert await presence.expire() == [Departure("bob", 0, (note("m2"),))]
    await presence.noted([note("m2"), note("m2"), note("m3", "carol")])
    assert await presence.expire() == await presence.expire("bob") == []


async def test_who_comes_back_and_goes_again_leaves_what_is_not_noted_with_the_rest(presence: HotPresence) -> None:
    await comes(presence)
    await presence.reached([note("m1")])
    await goes(presence)
    await comes(presence)
    assert await presence.unproven("bob") == []
    await presence.reached([note("m2", accepted_at=NOW + 1)])
    gone = await goes(presence)
    assert gone is not None
    assert gone.unproven == (note("m1"), note("m2", accepted_at=NOW + 1))


async def test_a_sign_of_life_proves_what_was_sent_before_it(presence: HotPresence) -> None:
    await comes(presence)
    await presence.reached([note("m1"), note("m2")])
    presence.proven("bob")  # nothing was sent yet
    assert await presence.unproven("bob") == [note("m1"), note("m2")]
    presence.sent([note("m1")])
    presence.proven("bob")

    async def only_the_second_is_left() -> bool:
        return await presence.unproven("bob") == [note("m2")]

    await eventually(only_the_second_is_left, "the first is proven")
    gone = await goes(presence)
    assert gone is not None
    assert gone.unproven == (note("m2"),)


async def test_what_is_proven_does_not_go_with_a_departure_right_after_it(presence: HotPresence) -> None:
    await comes(presence)
    await presence.reached([note("m1"), note("m2")])
    presence.sent([note("m1")])
    presence.proven("bob")
    gone = await goes(presence)
    assert gone is not None
    assert gone.unproven == (note("m2"),)


async def test_only_the_newest_are_kept(presence: HotPresence) -> None:
    await comes(presence)
    noted = [note(f"m{number}", accepted_at=NOW + number) for number in range(MAX_UNPROVEN + 5)]
    await presence.reached(noted)
    assert await presence.unproven("bob") == noted[5:]


async def test_who_is_only_reported_proves_nothing(presence: HotPresence, clock: ManualClock) -> None:
    await presence.connect("bob", "phone", clock.now + 100, None)
    assert await presence.reached([note("m1")]) == []
    assert await presence.unproven("bob") == []
    await comes(presence)
    await presence.reached([note("m2")])
    assert await goes(presence) is None
    assert await presence.unproven("bob") == []


async def test_who_is_dropped_leaves_nothing_behind(presence: HotPresence) -> None:
    await comes(presence, focus="c")
    await presence.reached([note("m1")])
    await goes(presence)
    await comes(presence, focus="c")
    await presence.reached([note("m2")])
    await presence.drop("bob")
    assert await those_online(presence, "bob") == []
    assert await presence.focused(["c"]) == {}
    assert await presence.unproven("bob") == []
    assert await presence.expire() == []
    assert await goes(presence) is None
