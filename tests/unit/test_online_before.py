"""Who is online is asked outside of transactions."""

from collections.abc import Collection
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
        self.inside = False
        self.asked: list[set[str]] = []
        self.begun = 0
        self.before = OnlineBefore(self, lambda: self.now)  # type: ignore[arg-type]

    async def online(self, users: Collection[str]) -> Present:
        assert not self.inside, "asked while locks are held"
        self.asked.append(set(users))
        return Answer(user for user in users if user == "eve")

    async def write(self, *mentions: str) -> Any:
        event = MessageEvent(channel_id="c", created_at=1, id="m1", sender_id="ann", at=1, mentions=mentions)

        async def transaction(online: Online) -> list[str]:
            self.begun += 1
            self.inside = True
            self.now += self.seconds
            try:
                present = await online({*self.members, *mentions})
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


async def test_answers_of_this_process_are_asked_for_where_they_are_needed() -> None:
    world = World("bob")
    world.is_local = True
    world.inside = False
    found: list[Present] = []

    async def transaction(online: Online) -> None:
        found.append(await online({"bob", "eve"}))

    await world.before.during([], transaction)
    assert [sorted(user for user in ("bob", "eve") if user in one) for one in found] == [["eve"]]
