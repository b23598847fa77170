"""Hot updates that come together do the same as one after another, whichever adapter takes them."""

import random
from collections.abc import Iterator, Sequence

import pytest

from readstate.adapters.memory.users import MemoryUsers
from readstate.domain.hot_updates import FanOut, Joined, Left, OwnRead, Switched, UserHotUpdate
from readstate.domain.model import Entry, Generation, Mode, Pointer, Position, Preferences
from readstate.ports import HotUsers, LedgerLoad, LoadedUserRoom, Moved, Read, UserRoom
from tests.effort import examples

from .conftest import CAP, ManualClock

ROOMS = ("c", "d")
USERS = ("ann", "bob", "carol")
QUIET = (*["message"] * 12, "edit", "delete", "silent")
"""What does not end a load that is in flight."""
KINDS = (*QUIET, *["own message"] * 4, "leave", "join", "switch")


class Room:
    """A room, and what happens in it: what the durable store would have."""

    def __init__(self, name: str, dice: random.Random) -> None:
        self.name = name
        self.dice = dice
        self.mode = Mode.LEDGER
        self.seq = self.change = 0
        self.members = list(USERS)
        self.messages: dict[int, tuple[str, frozenset[str] | None]] = {}
        """By seq, without deleted and silent ones: the sender, and who is mentioned."""
        self.pointers = {user: Pointer() for user in USERS}

    def place(self, seq: int) -> Position:
        return Position(seq, f"{self.name}{seq}", 1_000 + 10 * seq) if seq else Position(0, None, None)

    def pointer(self, seq: int) -> Pointer:
        at = self.place(seq)
        return Pointer(0, seq, frozenset(), at.id, at.at)

    def happens(self, what: str) -> Iterator[UserHotUpdate]:
        self.change += 1
        if what in {"message", "own message"} or not self.messages:
            self.seq += 1
            yield from self._message(self.dice.choice(self.members) if what == "own message" else "zoe")
        elif what in {"edit", "delete"}:
            yield self._changed(self.dice.choice(list(self.messages)), edit=what == "edit")
        elif what == "silent":
            self.seq += 1
            yield FanOut(self.name, self.change, tuple(self.members), latest_at=self.place(self.seq).at or 0)
        elif what == "leave" and len(self.members) > 1:
            user = self.members.pop(self.dice.randrange(len(self.members)))
            yield Left(self.name, self.change, (user,))
        elif what == "join" and len(self.members) < len(USERS):
            yield self._joins(next(user for user in USERS if user not in self.members))
        elif what == "switch" and self.mode is Mode.LEDGER:
            self.mode = Mode.TIMELINE
            yield Switched(self.name, self.change, tuple(self.members))

    def _message(self, sender: str) -> Iterator[UserHotUpdate]:
        at, named = self.place(self.seq), self._named()
        self.messages[self.seq] = sender, named
        put = Entry(at.seq, at.id or "", at.at or 0, False)
        yield FanOut(self.name, self.change, tuple(self.members), put, named, sender, latest_at=at.at or 0)
        if sender != "zoe":
            self.pointers[sender] = self.pointer(at.seq)
            yield OwnRead(self.name, sender, at.seq, self.pointers[sender])

    def _joins(self, user: str) -> Joined:
        self.members = [one for one in USERS if one in self.members or one == user]
        at, self.pointers[user] = self.place(self.seq), self.pointer(self.seq)
        pointers = ((user, self.pointers[user]),)
        return Joined(self.name, self.change, self.mode, self.seq, at.at or 0, False, pointers, at)

    def _changed(self, seq: int, *, edit: bool) -> FanOut:
        at, latest = self.place(seq), self.place(self.seq).at or 0
        sender, _ = self.messages.pop(seq)
        if not edit:
            return FanOut(self.name, self.change, tuple(self.members), remove=at, latest_at=latest)
        put, named = Entry(at.seq, at.id or "", at.at or 0, False), self._named()
        self.messages[seq] = sender, named
        users = tuple(self.members)
        return FanOut(self.name, self.change, users, put, named, sender, edit=True, latest_at=latest)

    def _named(self) -> frozenset[str] | None:
        if self.dice.random() < 0.1:
            return None
        return frozenset(user for user in USERS if self.dice.random() < 0.1)

    def user_room(self, user: str) -> LoadedUserRoom:
        pointer, latest = self.pointers[user], self.place(self.seq).at or 0
        empty, member = pointer.seq >= self.seq, user in self.members
        return LoadedUserRoom(self.name, member, self.mode, self.change, empty, pointer, Preferences(), latest, False)

    def ledger(self, user: str, user_room: UserRoom) -> LedgerLoad:
        state = user_room.pointer.state
        unread = []
        for seq, (sender, named) in sorted(self.messages.items()):
            at, mention = self.place(seq), named is None or user in named
            is_read = sender == user or seq <= state.seq or seq in state.apart
            if not is_read and (mention or self.mode is Mode.LEDGER):
                unread.append(Entry(seq, at.id or "", at.at or 0, mention))
        floor = unread[-CAP - 1].seq if len(unread) > CAP else 0
        return LedgerLoad(user, self.name, state, self.change, unread[-CAP:], floor)


class Both:
    """An adapter that takes updates together, and the reference, which takes them one by one."""

    def __init__(self, users: HotUsers, clock: ManualClock, dice: random.Random) -> None:
        self.model = MemoryUsers(unread_cap=CAP, generation=Generation(1), clock=clock, ledger_ttl=10**9)
        self.users = users
        self.dice = dice
        self.rooms = [Room(name, dice) for name in ROOMS]

    async def apply(self, batch: Sequence[UserHotUpdate]) -> None:
        await self.users.apply(batch)
        for update in batch:
            await self.model.apply([update])

    def happens(self, kinds: Sequence[str] = KINDS) -> list[UserHotUpdate]:
        events = range(self.dice.randint(1, 9))
        return [update for _ in events for update in self.dice.choice(self.rooms).happens(self.dice.choice(kinds))]

    async def load(self, user: str) -> None:
        loads = [room.user_room(user) for room in self.rooms]
        for one in (self.users, self.model):
            assert await one.install(user, await one.begin(user), loads)

    async def load_meanwhile(self, user: str) -> list[UserHotUpdate]:
        """Updates arrive during a load, which has some of them already."""
        batch: list[UserHotUpdate] = []
        for one in (self.users, self.model):
            await one.forget(user)
        tickets = [await self.users.begin(user), await self.model.begin(user)]
        kinds = self.dice.choice([KINDS, QUIET])
        batch += self.happens(kinds)
        loads = [room.user_room(user) for room in self.rooms]
        batch += self.happens(kinds)
        await self.apply(batch)
        first, second = [
            await one.install(user, ticket, loads)
            for one, ticket in zip((self.users, self.model), tickets, strict=True)
        ]
        assert first == second
        if not first:
            await self.load(user)
        return batch

    async def load_ledgers(self) -> None:
        """As far as they are missing. They may be ahead of their user rooms."""
        for one in (self.users, self.model):
            for user in USERS:
                view = await one.view(user, ROOMS)
                assert view is not None
                missing = {room.channel_id: room for room in view.user_rooms if room.ledger is None and room.member}
                loads = [room.ledger(user, missing[room.name]) for room in self.rooms if room.name in missing]
                await one.install_ledgers(loads)

    async def read(self) -> None:
        room, user = self.dice.choice(self.rooms), self.dice.choice(USERS)
        if not room.seq:
            return
        at = room.place(self.dice.randint(1, room.seq))
        read = Read(user, room.name, at)
        if self.dice.random() < 0.5:
            read = Read(user, room.name, Position(0, None, None), (at.seq,), ids=(at.id or "",))
        [_], [moved] = await self.users.move([read]), await self.model.move([read])
        if isinstance(moved, Moved):
            room.pointers[user] = moved.pointer

    async def assert_same(self) -> None:
        """An adapter may give up a ledger that the reference keeps: it is loaded again. The opposite is wrong."""
        found, expected = await shown(self.users), await shown(self.model)
        assert found.keys() == expected.keys()
        for key, (state, ledger) in found.items():
            assert state == expected[key][0]
            assert ledger in {None, expected[key][1]}, key


async def shown(users: HotUsers) -> dict[tuple[str, str], tuple[object, object]]:
    """By user and room: what is read, and the ledger; None: not loaded."""
    found: dict[tuple[str, str], tuple[object, object]] = {}
    for user in USERS:
        view = await users.view(user, ROOMS)
        assert view is not None
        found |= {(user, one.channel_id): _told(one) for one in view.user_rooms}
    return found


def _told(room: UserRoom) -> tuple[object, object]:
    pointer, ledger = room.pointer, room.ledger
    state = (room.member, room.mode, pointer.epoch, pointer.seq, pointer.apart, pointer.id)
    if ledger is None:
        return state, None
    if room.mode is Mode.TIMELINE:  # the channel's timeline has the rest
        return state, ledger.mentions
    first = None if ledger.first is None else ledger.first.id
    return state, (ledger.count, ledger.mentions, first, ledger.capped)


@pytest.mark.parametrize("seed", range(examples(12)))
async def test_updates_that_come_together_do_the_same_as_one_by_one(
    users: HotUsers, clock: ManualClock, seed: int
) -> None:
    dice = random.Random(seed)
    both = Both(users, clock, dice)
    for user in USERS:
        await both.load(user)
    for _ in range(12):
        batch = both.happens()
        if dice.random() < 0.3:
            await both.load_ledgers()
        if dice.random() < 0.2:
            batch += batch  # a replay
        await both.apply(batch)
        if dice.random() < 0.3:
            batch = await both.load_meanwhile(dice.choice(USERS))
            await both.assert_same()
            await both.load_ledgers()
            await both.assert_same()
        if dice.random() < 0.3:
            await both.apply(batch[dice.randrange(len(batch)) :] if batch else ())  # a replay of its end
        if dice.random() < 0.5:
            await both.read()
        await both.assert_same()
        if dice.random() < 0.5:
            await both.load_ledgers()
            await both.assert_same()
