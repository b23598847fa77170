"""What a message adds to a count, by the short way of the store in memory and by the long one."""

import random

import pytest

from readstate.adapters.memory.users import MemoryUsers
from readstate.domain.hot_updates import FanOut, Joined, Left, Merged, OwnRead, Switched, UserHotUpdate
from readstate.domain.model import NO_CHANGE, START, Entry, Generation, Mode, Pointer, Position, Preferences
from readstate.ports import LedgerLoad, LoadedUserRoom, Read, Rewind

CAP = 5
ROOM = "c"
WISHES = [Preferences(), Preferences(), Preferences(count="mentions"), Preferences(count="none")]
WISHES += [Preferences(muted_until=2_000), Preferences(muted_until=500)]


def place(seq: int) -> Position:
    return Position(seq, f"m{seq}", 1000 + seq) if seq else START


class Story:
    """One member of one channel, and whatever may happen to its count."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.users = MemoryUsers(unread_cap=CAP, generation=Generation(1), clock=lambda: 1_000, ledger_ttl=60)
        self.last = self._change = 0

    async def load(self) -> None:
        row = LoadedUserRoom(ROOM, True, Mode.LEDGER, NO_CHANGE, True, Pointer(), Preferences(), 0, False)
        assert await self.users.install("bob", await self.users.begin("bob"), [row])

    async def step(self) -> None:
        steps = [self._message] * 6 + [self._read] * 3
        steps += [self._read_apart, self._unread, self._delete, self._silent, self._own, self._prefer, self._archive]
        steps += [self._leave_and_join, self._forget, self._refill, self._merge]
        if self._random.random() < 0.005:
            steps = [self._switch]
        await self._random.choice(steps)()

    async def _apply(self, *updates: UserHotUpdate) -> None:
        await self.users.apply(updates)

    def _next(self) -> int:
        self._change += 1
        return self._change

    def _some_seq(self) -> int:
        return self._random.randint(max(0, self.last - CAP - 1), self.last)

    async def _message(self) -> None:
        self.last += 1
        entry = Entry(self.last, f"m{self.last}", 1000 + self.last, False)
        await self._apply(FanOut(ROOM, self._next(), ("bob",), entry, frozenset(), "alice"))

    async def _silent(self) -> None:
        """No ledger gets it."""
        self.last += 1
        await self._apply(FanOut(ROOM, self._next(), ("bob",), None, frozenset(), "alice"))

    async def _own(self) -> None:
        self.last += 1
        entry = Entry(self.last, f"m{self.last}", 1000 + self.last, False)
        pointer = Pointer(0, self.last, id=entry.id, at=entry.at)
        fan_out = FanOut(ROOM, self._next(), ("bob",), entry, frozenset(), "bob")
        await self._apply(fan_out, OwnRead(ROOM, "bob", self.last, pointer))

    async def _read(self) -> None:
        await self.users.move([Read("bob", ROOM, place(self._some_seq()))])

    async def _read_apart(self) -> None:
        seq = max(1, self._some_seq())
        await self.users.move([Read("bob", ROOM, START, apart=(seq,), ids=(f"m{seq}",))])

    async def _unread(self) -> None:
        seq = max(1, self._some_seq())
        await self.users.move([Rewind("bob", ROOM, seq, place(seq - 1), ())])

    async def _merge(self) -> None:
        seq = self._some_seq()
        await self._apply(Merged(ROOM, "bob", Pointer(0, seq, id=f"m{seq}", at=1000 + seq)))

    async def _delete(self) -> None:
        await self._apply(FanOut(ROOM, self._next(), ("bob",), remove=place(max(1, self._some_seq()))))

    async def _prefer(self) -> None:
        await self.users.prefer("bob", ROOM, self._random.choice(WISHES))

    async def _archive(self) -> None:
        await self._apply(FanOut(ROOM, self._next(), ("bob",), archived=self._random.random() < 0.5))

    async def _leave_and_join(self) -> None:
        await self._apply(Left(ROOM, self._next(), ("bob",)))
        if self._random.random() < 0.8:
            mode = Mode.LEDGER
            await self._apply(Joined(ROOM, self._next(), mode, self.last, 0, False, (("bob", Pointer()),)))

    async def _switch(self) -> None:
        await self._apply(Switched(ROOM, self._next(), ("bob",)))

    async def _forget(self) -> None:
        await self.users.forget("bob", ROOM)

    async def _refill(self) -> None:
        """The durable store has everything beyond the pointer."""
        view = await self.users.view("bob", [ROOM])
        if view is None or not view.user_rooms or view.user_rooms[0].ledger is not None:
            return
        pointer = view.user_rooms[0].pointer
        unread = [seq for seq in range(pointer.seq + 1, self.last + 1) if seq not in pointer.apart]
        kept = [Entry(seq, f"m{seq}", 1000 + seq, False) for seq in unread[-CAP:]]
        floor = unread[-CAP - 1] if len(unread) > CAP else 0
        await self.users.install_ledgers([LedgerLoad("bob", ROOM, pointer.state, self._change, kept, floor)])

    async def ways(self, seq: int, named: frozenset[str]) -> tuple[object, object]:
        [(answer, _)] = await self.users.count_delta(ROOM, place(seq), named, ["bob"])
        user = self.users._users["bob"]
        raw = user.user_rooms.get(ROOM)
        return answer, answer if raw is None else self.users._count_delta(user, ROOM, raw, seq, "bob" in named)


@pytest.mark.parametrize("seed", range(40))
async def test_both_ways_say_the_same_whatever_happened(seed: int) -> None:
    story = Story(seed)
    await story.load()
    for number in range(150):
        await story.step()
        for seq in range(max(1, story.last - CAP - 2), story.last + 2):
            for named in (frozenset[str](), frozenset(["bob"])):
                short, long = await story.ways(seq, named)
                assert short is long, (number, seq, named)
