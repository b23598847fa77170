"""Users in memory and in Valkey side by side: whatever happens, they say the same, and it is right."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from readstate.domain.hot_updates import FanOut, Joined, OwnRead, Switched, UserHotUpdate
from readstate.domain.model import Position, Preferences
from readstate.domain.rooms import is_thread, thread_room
from readstate.domain.rules import EVERYONE
from readstate.ports import LedgerLoad, LoadedUserRoom, Move, Moved, Read, Restore, Rewind
from tests.contract.valkey import hot_store, single

from .comparing import START, Clock
from .conftest import stateful_settings
from .truth import Truth
from .twins import CAP, LAG, TTL, Twins

T = TypeVar("T")
Talk = list[tuple[str, frozenset[str]]]

USERS = ["bob", "{al}ice:1", "çarol"]
"""Whose state is looked at."""
PEOPLE = [*USERS, "dave", "erin"]
ROOMS = ["c", "{d}:\N{FOX FACE}", thread_room("c", "root")]
LIMIT = 4

users = some.sampled_from(USERS)
people = some.sampled_from(PEOPLE)
rooms = some.sampled_from(ROOMS)
numbers = some.integers(0, 5)
several = some.frozensets(numbers, max_size=3)
mentions = some.frozensets(some.sampled_from([*PEOPLE, EVERYONE]), max_size=2)
talk = some.lists(some.tuples(people, mentions), max_size=5)
often = some.sampled_from([True, True, True, False])
seldom = some.sampled_from([False, False, False, True])
preferences = some.builds(
    Preferences,
    muted_until=some.sampled_from([0, START + 30_000, 2**53]),
    count=some.sampled_from(["all", "mentions", "none"]),
    pinned=some.booleans(),
)


@dataclass
class UserLoad:
    """A load of a user under way."""

    user: str
    tickets: tuple[int, int]
    memory: object
    """Tickets are good in the memory that gave them."""
    user_rooms: tuple[list[LoadedUserRoom], list[LoadedUserRoom]] | None = None


class SideBySideUsers(RuleBasedStateMachine):
    """Everything that happens to the hot state of users, and what they know of it."""

    server = staticmethod(single)

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = Clock()
        self.stack = AsyncExitStack()
        self.twins = self.run(self._open())
        self.truth = Truth(ROOMS, LIMIT, self.clock)
        self.pending: list[UserHotUpdate] = []
        """The durable store has them, the hot state was not told yet."""
        self.told: list[UserHotUpdate] = []
        self.moved: list[Moved] = []
        self.kept: tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]] = ({}, {})
        """The change numbers in the durable store, those of memory and those of Valkey: user, room."""
        self.loads: list[UserLoad] = []
        self.ledgers: list[LedgerLoad] = []
        self.idle = 0
        """Seconds since somebody looked."""
        self.blind = False

    async def _open(self) -> Twins:
        store = await self.stack.enter_async_context(hot_store(type(self).server))
        await store.generation.confirm()
        return Twins(store, self.clock)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.runner.close()

    # ------------------------------------------------------------ what happens in rooms

    @initialize(big=some.booleans())
    def begin_with_members(self, big: bool) -> None:
        for name in ROOMS:
            self._happen(self.truth.join(self.truth.rooms[name], USERS, read=True), now=True)
        if big:
            self._happen(self.truth.join(self.truth.rooms[ROOMS[1]], PEOPLE, read=True), now=True)
        for user in USERS:
            self.load(user)
        self.say_much(ROOMS[1], [("dave", frozenset(USERS)), ("erin", frozenset())], True)

    def _happen(self, steps: list[UserHotUpdate], now: bool) -> None:
        self.pending += steps
        if now:
            self.tell(len(self.pending))

    @rule(room=rooms, sender=people, mentions=mentions, silent=seldom, now=often)
    def say(self, room: str, sender: str, mentions: frozenset[str], silent: bool, now: bool) -> None:
        self._happen(self.truth.say(self.truth.rooms[room], sender, mentions, silent), now)

    @rule(room=rooms, messages=talk, now=often)
    def say_much(self, room: str, messages: Talk, now: bool) -> None:
        steps = [self.truth.say(self.truth.rooms[room], who, named, False) for who, named in messages]
        self._happen([step for each in steps for step in each], now)

    @rule(room=rooms, number=numbers, mentions=mentions, now=often)
    def edit(self, room: str, number: int, mentions: frozenset[str], now: bool) -> None:
        if (seq := self._some_message(room, number)) is not None:
            self._happen(self.truth.edit(self.truth.rooms[room], seq, mentions), now)

    @rule(room=rooms, number=numbers, now=often)
    def delete(self, room: str, number: int, now: bool) -> None:
        if (seq := self._some_message(room, number)) is not None:
            self._happen(self.truth.delete(self.truth.rooms[room], seq), now)

    def _some_message(self, room: str, number: int) -> int | None:
        alive = [seq for seq, message in self.truth.rooms[room].messages.items() if not message.deleted]
        return alive[-1 - number % len(alive)] if alive else None

    @rule(room=rooms, who=some.frozensets(people, min_size=1, max_size=2), read=some.booleans(), now=often)
    def join(self, room: str, who: frozenset[str], read: bool, now: bool) -> None:
        self._happen(self.truth.join(self.truth.rooms[room], sorted(who), read), now)

    @rule(room=rooms, user=people, now=often)
    def leave(self, room: str, user: str, now: bool) -> None:
        if user in self.truth.rooms[room].members:
            self._happen(self.truth.leave(self.truth.rooms[room], user), now)

    @rule(room=some.sampled_from([name for name in ROOMS if not is_thread(name)]), now=often)
    def archive(self, room: str, now: bool) -> None:
        self._happen(self.truth.archive(self.truth.rooms[room]), now)

    @rule(room=rooms, now=often, again=often, rare=seldom)
    def gone(self, room: str, now: bool, again: bool, rare: bool) -> None:
        if not rare:
            return
        self._happen(self.truth.gone(self.truth.rooms[room]), now)
        if again:
            self._happen(self.truth.join(self.truth.rooms[room], USERS[:2], read=False), now)

    @precondition(lambda self: self.pending)
    @rule(count=some.integers(1, 4))
    def tell(self, count: int) -> None:
        """The hot state learns what the durable store has."""
        steps, self.pending = self.pending[:count], self.pending[count:]
        self.told += steps
        self._apply(steps)

    @precondition(lambda self: self.told)
    @rule(start=numbers, count=some.integers(1, 6), pointer_of_now=some.booleans())
    def tell_again(self, start: int, count: int, pointer_of_now: bool) -> None:
        """A writer repeats itself, or one that was replaced wakes up; a repeated message brings the pointer of now."""
        start = max(0, len(self.told) - 1 - start)
        steps = self.told[start : start + count]
        if pointer_of_now:
            steps = [self._with_pointer_of_now(step) for step in steps]
        self._apply(steps)

    def _with_pointer_of_now(self, step: UserHotUpdate) -> UserHotUpdate:
        if not isinstance(step, OwnRead):
            return step
        return structs.replace(step, pointer=self.truth.rooms[step.channel_id].pointer(step.user_id))

    def _apply(self, steps: list[UserHotUpdate]) -> None:
        for step in steps:
            if isinstance(step, Switched):
                self.twins.hollow.update((user, step.channel_id) for user in step.users)
            given = [(step.user_id, step.pointer)] if isinstance(step, OwnRead) else []
            given += step.pointers if isinstance(step, Joined) else []
            for user, pointer in given:  # Valkey keeps ledgers by ids and times, and these are not told here
                if pointer.apart or (pointer.seq and not pointer.at):
                    self.twins.excused.add((user, step.channel_id))
        self._keep(self.run(self.twins.apply(steps)))

    # ------------------------------------------------------------ what users do

    def _keep(self, moved: list[tuple[Moved, Moved]]) -> None:
        """The durable store takes the pointers."""
        for ours, theirs in moved:
            user, room = ours.user_id, ours.channel_id
            self.truth.merge(self.truth.rooms[room], user, ours.pointer)
            for kept, one in zip(self.kept, (ours, theirs), strict=True):
                numbers = kept.setdefault(user, {})
                numbers[room] = max(numbers.get(room, 0), one.pointer.change)
            if ours.changed:
                self.moved.append(ours)

    reads = some.tuples(users, rooms, numbers, several, often, some.sampled_from([None, None, 0, 1]), seldom)

    @rule(reads=some.lists(reads, min_size=1, max_size=3))
    def read(self, reads: list[Any]) -> None:
        self._move([self._read(*each) for each in reads])

    def _read(
        self, user: str, name: str, back: int, apart: frozenset[int], named: bool, late: int | None, timeless: bool
    ) -> Read:
        room = self.truth.rooms[name]
        to = room.place(max(0, room.last.seq - back))
        singles = [seq for seq in sorted(room.messages) if room.last.seq - seq in apart]
        ids = tuple(room.messages[seq].id for seq in singles) if named else ()
        if timeless:
            to = Position(to.seq, to.id, None)
        if (singles and not named) or not to.at:
            self.twins.excused.add((user, name))
        epoch = None if late is None else room.pointer(user).epoch - late
        return Read(user, name, to, tuple(singles), epoch if epoch is None or epoch >= 0 else None, None, ids)

    @rule(user=users, room=rooms, back=some.integers(0, 2))
    def read_up_to(self, user: str, room: str, back: int) -> None:
        known = self.truth.rooms[room]
        self._move([Read(user, room, known.place(max(0, known.last.seq - back)))])

    @rule(user=users, name=rooms, number=numbers)
    def read_one(self, user: str, name: str, number: int) -> None:
        room = self.truth.rooms[name]
        waiting = room.unread(user, room.pointer(user).state)
        if waiting:
            one = waiting[number % len(waiting)]
            self._move([Read(user, name, Position(0, None, None), (one.seq,), ids=(one.id,))])

    @rule(user=users, name=rooms, back=numbers)
    def mark_unread(self, user: str, name: str, back: int) -> None:
        room = self.truth.rooms[name]
        seq = max(1, room.last.seq - back)
        own = tuple(one for one in room.own(user) if one >= seq)
        self._move([Rewind(user, name, seq, room.place(seq - 1), own)])

    @precondition(lambda self: self.moved)
    @rule(number=numbers)
    def undo(self, number: int) -> None:
        one = self.moved[-1 - number % len(self.moved)]
        self._move([Restore(one.user_id, one.channel_id, one.before.state, one.before.position, one.pointer.state)])

    def _move(self, moves: list[Move]) -> None:
        self._keep(self.run(self.twins.move(moves)))

    @rule(user=users, room=rooms, wanted=preferences)
    def prefer(self, user: str, room: str, wanted: Preferences) -> None:
        if user not in self.truth.rooms[room].members:
            return
        numbers = self.run(self.twins.prefer(user, room, wanted))
        if numbers is not None:
            self.truth.rooms[room].preferences[user] = wanted
            for kept, number in zip(self.kept, numbers, strict=True):
                kept.setdefault(user, {})[room] = number

    # ------------------------------------------------------------ loading and losing

    @rule(user=users)
    def load(self, user: str) -> None:
        """Nothing comes between."""
        self.begin(user)
        self.look_up(len(self.loads) - 1)
        self.install(len(self.loads) - 1)

    @rule(user=users, room=rooms, before=talk, after=talk)
    def load_meanwhile(self, user: str, room: str, before: Talk, after: Talk) -> None:
        """People go on talking while a user is loaded."""
        self.run(self.twins.forget(user))
        self.begin(user)
        self.say_much(room, before, True)
        self.look_up(len(self.loads) - 1)
        self.say_much(room, after, True)
        self.install(len([load for load in self.loads if load.user_rooms is not None]) - 1)

    @rule(user=users)
    def begin(self, user: str) -> None:
        tickets = self.run(self.twins.begin(user))
        self.loads.append(UserLoad(user, tickets, self.twins.memory))

    @precondition(lambda self: self.loads)
    @rule(number=numbers)
    def look_up(self, number: int) -> None:
        load = self.loads[number % len(self.loads)]
        if load.user_rooms is None:
            ours, theirs = (self.truth.user_rooms(load.user, kept.get(load.user, {})) for kept in self.kept)
            load.user_rooms = ours, theirs

    @precondition(lambda self: any(load.user_rooms for load in self.loads))
    @rule(number=numbers)
    def install(self, number: int) -> None:
        ready = [load for load in self.loads if load.user_rooms is not None]
        load = ready[number % len(ready)]
        self.loads.remove(load)
        assert load.user_rooms is not None
        if load.memory is not self.twins.memory:
            load.tickets = (0, load.tickets[1])
        for step in self.told:  # what has come meanwhile is not in its ledger
            if isinstance(step, FanOut) and load.user in step.users:
                self.twins.excused.add((load.user, step.channel_id))
        self.run(self.twins.install(load.user, load.tickets, *load.user_rooms))

    @rule(user=users, room=rooms)
    def look_up_ledger(self, user: str, room: str) -> None:
        view = self.run(self.twins.memory.view(user, [room]))
        for user_room in view.user_rooms if view is not None else ():
            if user_room.member:
                state = user_room.pointer.state
                self.ledgers.append(self.truth.ledger(user, room, user_room.mode, state, CAP))

    @precondition(lambda self: self.ledgers)
    @rule(count=some.integers(1, 3), newest_first=some.booleans(), keep=seldom)
    def install_ledgers(self, count: int, newest_first: bool, keep: bool) -> None:
        loads = self.ledgers[-count:]
        if not loads:
            return
        self.run(self.twins.install_ledgers(loads[::-1] if newest_first else loads))
        if not keep:
            del self.ledgers[-count:]

    @rule(user=users, room=rooms, said=talk, newest_first=some.booleans())
    def two_loads_of_a_ledger(self, user: str, room: str, said: Talk, newest_first: bool) -> None:
        """Two look it up, before and after something that the hot state is not told yet."""
        self.look_up_ledger(user, room)
        self.say_much(room, said, False)
        self.look_up_ledger(user, room)
        self.install_ledgers(2, newest_first, False)

    @rule(user=users)
    def fill(self, user: str) -> None:
        """Whatever must be loaded of a user is loaded."""
        view = self.run(self.twins.valkey.view(user, ROOMS))
        user_rooms = (
            [user_room for user_room in view.user_rooms if user_room.ledger is None and user_room.member]
            if view is not None
            else []
        )
        wanted = [(user_room.channel_id, user_room.mode, user_room.pointer.state) for user_room in user_rooms]
        self.run(self.twins.install_ledgers([self.truth.ledger(user, *each, CAP) for each in wanted]))

    @rule(user=users, again=often)
    def forget(self, user: str, again: bool) -> None:
        self.run(self.twins.forget(user))
        if again:
            self.load(user)

    @rule(user=users, room=rooms)
    def forget_ledger(self, user: str, room: str) -> None:
        self.run(self.twins.forget(user, room))

    @rule(servers=some.booleans(), rare=seldom)
    def lose(self, servers: bool, rare: bool) -> None:
        if rare:
            self.run(self.twins.lose(servers=servers))
            for user in USERS[1:]:
                self.load(user)

    @rule(seconds=some.sampled_from([1, LAG, LAG + 1, TTL // 2, TTL - LAG - 1, TTL - 1, TTL, TTL + 1]), look=often)
    def pass_time(self, seconds: int, look: bool) -> None:
        self.clock.now += 1000 * seconds
        self.blind = not look
        self.idle += seconds

    # ------------------------------------------------------------ comparing

    @invariant()
    def both_say_the_same(self) -> None:
        if self.blind:  # to look is to use
            self.blind = False
            return
        if self.idle >= TTL - LAG:
            expired = self.twins.hollow if self.idle > TTL else self.twins.excused
            expired.update((user, room) for user in USERS for room in ROOMS)
        self.idle = 0
        self.run(self.twins.compare(USERS, ROOMS))
        self._what_is_loaded_is_right()
        for room in self.truth.rooms.values():
            for message in [] if is_thread(room.name) else list(room.messages.values())[-2:]:
                named = None if EVERYONE in message.mentions else message.mentions
                self.run(self.twins.compare_count_delta(room.name, message.place, named, PEOPLE))

    def _what_is_loaded_is_right(self) -> None:
        """A ledger holds what is unread beyond its pointer, once all was told."""
        waiting = {step.channel_id for step in self.pending}
        for user in USERS:
            view = self.run(self.twins.memory.view(user, ROOMS))
            for user_room in view.user_rooms if view is not None else ():
                room = self.truth.rooms[user_room.channel_id]
                if user_room.ledger is None or not user_room.member or room.name in waiting:
                    continue
                assert user in room.members
                assert user_room.mode is room.mode
                entries = room.entries(user, user_room.pointer.state, user_room.mode)
                if not user_room.ledger.capped:
                    assert user_room.ledger.count == len(entries), f"{user}: {user_room}, {entries}"
                    if not is_thread(room.name):  # nobody is told of mentions in threads
                        assert user_room.ledger.mentions == sum(entry.mention for entry in entries), (
                            f"{user}: {user_room}"
                        )


def thorough(profile: settings) -> settings:
    """More steps in fewer stories: much must have happened before something odd can."""
    return settings(profile, max_examples=max(1, profile.max_examples // 5), stateful_step_count=60)


TestSideBySideUsers = SideBySideUsers.TestCase
TestSideBySideUsers.settings = thorough(stateful_settings())
