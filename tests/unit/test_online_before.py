"""Who is online is asked outside of transactions."""

from collections.abc import Callable, Collection
from typing import Any

from readstate.domain.events import Delivery, MessageEvent
from readstate.domain.facts import Effect
from readstate.domain.hot_updates import FanOut
from readstate.ports import Online, Present
from readstate.workers.online_before import MOST_SECONDS, OnlineBefore


class Answer(frozenset[str]):
    def is_connected(self, user: str) -> bool:
        return user in self


class World:
    """Presence, and a store whose transactions take time."""

    is_local = False

    def __init__(self, *members: str) -> None:
        self.members = members
        self.now = 0.0
        self.seconds = 0.0
        self.takes: list[float] = []
        """Seconds that the next transactions take, if not `seconds`."""
        self.connected = {"eve"}
        self.meanwhile: Callable[[], None] = lambda: None
        self.asked_at = 0.0
        self.ages: list[float] = []
        """Of the answers that decided."""
        self.inside = False
        self.asked: list[set[str]] = []
        self.begun = 0
        self.before = OnlineBefore(self, lambda: self.now)  # type: ignore[arg-type]

    async def online(self, users: Collection[str]) -> Present:
        assert not self.inside, "asked while locks are held"
        self.asked.append(set(users))
        self.asked_at = self.now
        return Answer(self.connected.intersection(users))

    async def write(self, *mentions: str) -> Any:
        event = MessageEvent(channel_id="c", created_at=1, id="m1", sender_id="ann", at=1, mentions=mentions)

        async def transaction(online: Online) -> list[str]:
            self.begun += 1
            self.inside = True
            self.now += self.takes.pop(0) if self.takes else self.seconds
            self.meanwhile()
            try:
                present = await online({*self.members, *mentions})
                self.ages.append(self.now - self.asked_at)
                return sorted(user for user in {*self.members, *mentions} if user not in present)
            finally:
                self.inside = False

        away = await self.before.during([Delivery(event, 1)], transaction)
        self.before.learn([Effect(user_updates=[FanOut("c", 1, self.members)])])
        return away


async def test_receivers_of_earlier_messages_are_asked_about_before_the_transaction() -> None:
    world = World("bob", "eve")
    assert await world.write() == ["bob"]
    assert world.begun == 2  # nobody knew them
    assert await world.write("carol") == ["bob", "carol"]
    assert world.begun == 3
    assert world.asked == [set(), {"bob", "eve"}, {"bob", "carol", "eve"}]


async def test_a_transaction_that_finds_a_new_member_is_repeated() -> None:
    world = World("bob")
    await world.write()
    world.members = ("bob", "carol", "eve")
    assert await world.write() == ["bob", "carol"]
    assert world.begun == 4
    assert world.asked[-1] == {"bob", "carol", "eve"}


async def test_an_answer_that_has_become_too_old_decides_nothing() -> None:
    world = World("bob")
    await world.write()
    world.asked, world.begun, world.seconds = [], 0, 1.5 * MOST_SECONDS
    assert await world.write() == ["bob"]
    assert world.begun == 2
    assert world.asked == [{"bob"}, {"bob"}]


async def test_a_new_member_makes_no_older_answer_good_enough() -> None:
    world = World("bob")
    world.seconds = 1.5 * MOST_SECONDS
    world.takes = [0.0]  # the first transaction is quick, and finds a member whom nobody knew
    assert await world.write() == ["bob"]
    assert world.begun == 3
    assert world.ages == [1.5 * MOST_SECONDS]


async def test_a_database_that_stays_slow_is_waited_for() -> None:
    world = World("bob")
    await world.write()
    world.begun, world.seconds = 0, 7 * MOST_SECONDS
    assert await world.write() == ["bob"]
    assert world.begun == 4  # 1, 2, 4 and 8 seconds were allowed


async def test_who_comes_and_goes_meanwhile_is_what_the_answer_that_decides_says() -> None:
    world = World("bob", "eve")
    await world.write()
    world.meanwhile = lambda: setattr(world, "connected", {"bob"})
    assert await world.write() == ["bob"]  # eve has gone, bob has come: after the question
    world.seconds = 1.5 * MOST_SECONDS
    assert await world.write() == ["eve"]


async def test_answers_of_this_process_are_asked_for_where_they_are_needed() -> None:
    world = World("bob")
    world.is_local = True
    world.inside = False
    found: list[Present] = []

    async def transaction(online: Online) -> None:
        found.append(await online({"bob", "eve"}))

    await world.before.during([], transaction)
    assert [sorted(user for user in ("bob", "eve") if user in one) for one in found] == [["eve"]]
