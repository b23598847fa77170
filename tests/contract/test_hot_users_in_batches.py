"""Hot updates that come together do the same as one after another, whichever adapter takes them."""

import random
from collections.abc import Iterator

import pytest

from readstate.adapters.memory.users import MemoryUsers
from readstate.domain.hot_updates import FanOut, Joined, Left, OwnRead, UserHotUpdate
from readstate.domain.model import Entry, Generation, Mode, Pointer, Position, Preferences
from readstate.ports import HotUsers, LoadedUserRoom, Read, UserRoom
from tests.effort import examples

from .conftest import CAP, ManualClock

ROOMS = ("c", "d")
USERS = ("ann", "bob", "carol")


class Room:
    """A room counted by ledger, and what happens in it."""

    def __init__(self, name: str, dice: random.Random) -> None:
        self.name = name
        self.dice = dice
        self.seq = self.change = 0
        self.members = list(USERS)

    def place(self, seq: int) -> Position:
        return Position(seq, f"{self.name}{seq}", 1_000 + 10 * seq)

    def happens(self) -> Iterator[UserHotUpdate]:
        self.change += 1
        what = self.dice.choice(["message"] * 8 + ["edit", "delete", "leave", "join"])
        if what == "message" or not self.seq:
            self.seq += 1
            yield from self._message()
        elif what in {"edit", "delete"}:
            yield self._changed(self.dice.randint(1, self.seq), edit=what == "edit")
        elif what == "leave" and len(self.members) > 1:
            user = self.members.pop(self.dice.randrange(len(self.members)))
            yield Left(self.name, self.change, (user,))
        elif what == "join" and len(self.members) < len(USERS):
            user = next(user for user in USERS if user not in self.members)
            self.members = [one for one in USERS if one in self.members or one == user]
            at = self.place(self.seq)
            pointer = ((user, Pointer(0, at.seq, frozenset(), at.id, at.at)),)
            yield Joined(self.name, self.change, Mode.LEDGER, self.seq, at.at or 0, False, pointer, at)

    def _message(self) -> Iterator[UserHotUpdate]:
        at = self.place(self.seq)
        sender = self.dice.choice([*self.members, "zoe"])
        put = Entry(at.seq, at.id or "", at.at or 0, False)
        named = self._named()
        yield FanOut(self.name, self.change, tuple(self.members), put, named, sender, latest_at=at.at or 0)
        if sender != "zoe":
            yield OwnRead(self.name, sender, at.seq, Pointer(0, at.seq, frozenset(), at.id, at.at))

    def _changed(self, seq: int, *, edit: bool) -> FanOut:
        at, latest = self.place(seq), self.place(self.seq).at or 0
        if not edit:
            return FanOut(self.name, self.change, tuple(self.members), remove=at, latest_at=latest)
        put = Entry(at.seq, at.id or "", at.at or 0, False)
        return FanOut(
            self.name, self.change, tuple(self.members), put, self._named(), "zoe", edit=True, latest_at=latest
        )

    def _named(self) -> frozenset[str] | None:
        if self.dice.random() < 0.1:
            return None
        return frozenset(user for user in USERS if self.dice.random() < 0.1)


async def load(users: HotUsers) -> None:
    for user in USERS:
        rooms = [LoadedUserRoom(room, True, Mode.LEDGER, 0, True, Pointer(), Preferences(), 0, False) for room in ROOMS]
        assert await users.install(user, await users.begin(user), rooms)


async def shown(users: HotUsers) -> dict[tuple[str, str], object]:
    found: dict[tuple[str, str], object] = {}
    for user in USERS:
        view = await users.view(user, ROOMS)
        assert view is not None
        found |= {(user, one.channel_id): _told(one) for one in view.user_rooms}
    return found


def _told(room: UserRoom) -> object:
    pointer, ledger = room.pointer, room.ledger
    state = (room.member, pointer.epoch, pointer.seq, pointer.apart, pointer.id)
    if ledger is None:
        return (*state, "not loaded")
    first = None if ledger.first is None else ledger.first.id
    return (*state, ledger.count, ledger.mentions, first, ledger.capped)


@pytest.mark.parametrize("seed", range(examples(12)))
async def test_updates_that_come_together_do_the_same_as_one_by_one(
    users: HotUsers, clock: ManualClock, seed: int
) -> None:
    dice = random.Random(seed)
    rooms = [Room(name, dice) for name in ROOMS]
    model = MemoryUsers(unread_cap=CAP, generation=Generation(1), clock=clock, ledger_ttl=10**9)
    await load(users)
    await load(model)
    for _ in range(12):
        batch = [update for _ in range(dice.randint(1, 9)) for update in dice.choice(rooms).happens()]
        if dice.random() < 0.2:
            batch += batch  # a replay
        await users.apply(batch)
        for update in batch:
            await model.apply([update])
        room = dice.choice(rooms)
        if room.seq and dice.random() < 0.5:
            user, at = dice.choice(USERS), room.place(dice.randint(1, room.seq))
            apart = dice.random() < 0.5
            read = Read(user, room.name, Position(0, None, None), (at.seq,), ids=(at.id or "",))
            for both in (users, model):
                await both.move([read if apart else Read(user, room.name, at)])
        assert await shown(users) == await shown(model)
