"""The hot state of users twice, in memory and in Valkey: they are told the same, and must say the same.

Change numbers differ in value and must agree in order. Valkey may lack two things that memory has: the seq of the
first unread message, and a ledger after a step that names messages by their seqs only.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import structs

from readstate.adapters.memory.users import MemoryUsers
from readstate.adapters.valkey.calls import UserCalls
from readstate.adapters.valkey.users import ValkeyUsers
from readstate.domain.hot_updates import UserHotUpdate
from readstate.domain.model import NO_PREFERENCES, ChangeNumber, Mode, Pointer, Position, Preferences
from readstate.ports import (
    Absent,
    CountDelta,
    HotUsers,
    LedgerLoad,
    LedgerView,
    LoadedUserRoom,
    Move,
    Moved,
    UserRoom,
    UserView,
)
from tests.contract.valkey import HotStore

from .comparing import Clock

Pair = tuple[str, str]

CAP = 3
TTL = 60
LAG = TTL // 16
"""Seconds after which Valkey notes that a ledger was used: so much earlier than in memory it may expire."""
PAGE = 2


class Twins:
    """Does everything to both and compares the answers."""

    def __init__(self, store: HotStore, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.valkey = ValkeyUsers(UserCalls(store.backend(clock, CAP)))
        self.memory = self._empty_memory()
        self.lacking: set[Pair] = set()
        """Ledgers that memory has, and Valkey must load."""
        self._lacked: set[Pair] = set()
        self.excused: set[Pair] = set()
        """Ledgers that Valkey may lack after the step that is made now."""
        self.hollow: set[Pair] = set()
        """The same for ledgers that are empty: Valkey keeps something of one that was loaded ahead of its user room."""
        self._numbers: dict[str, list[tuple[ChangeNumber, ChangeNumber]]] = {}
        """The change numbers that a user had in memory and in Valkey at the same moments."""

    def _empty_memory(self) -> MemoryUsers:
        number = self.store.generation.number
        return MemoryUsers(unread_cap=CAP, generation=number, clock=self.clock, ledger_ttl=TTL)

    async def lose(self, *, servers: bool) -> None:
        """Everything is lost: servers were emptied, or nobody knows what they hold."""
        if servers:
            await self.store.empty()
        else:
            self.store.generation.distrust()
        await self.store.generation.check()
        self.memory = self._empty_memory()

    # ------------------------------------------------------------ doing

    async def move(self, moves: Sequence[Move]) -> list[tuple[Moved, Moved]]:
        """The pointers that moved, as each says it."""
        here, there = await self.memory.move(moves), await self.valkey.move(moves)
        assert len(here) == len(there) == len(moves)
        pairs = []
        for ours, theirs in zip(here, there, strict=True):
            if isinstance(ours, Absent) or isinstance(theirs, Absent):
                assert ours == theirs
                continue
            if theirs.unread is None and self._may_lack(ours.user_id, ours.channel_id):
                ours = structs.replace(ours, unread=None)  # noqa: PLW2901
            assert _plain(ours) == _plain(theirs)
            pairs.append((ours, theirs))
        return pairs

    async def apply(self, steps: Sequence[UserHotUpdate]) -> list[tuple[Moved, Moved]]:
        here, there = await self.memory.apply(steps), await self.valkey.apply(steps)
        assert list(map(_plain, here)) == list(map(_plain, there))
        return list(zip(here, there, strict=True))

    async def prefer(self, user: str, room: str, wanted: Preferences) -> tuple[int, int] | None:
        here, there = await self.memory.prefer(user, room, wanted), await self.valkey.prefer(user, room, wanted)
        assert (here is None) == (there is None)
        return None if here is None or there is None else (here, there)

    async def begin(self, user: str) -> tuple[int, int]:
        return await self.memory.begin(user), await self.valkey.begin(user)

    async def install(
        self,
        user: str,
        tickets: tuple[int, int],
        user_rooms: Sequence[LoadedUserRoom],
        theirs: Sequence[LoadedUserRoom],
    ) -> bool:
        here = await self.memory.install(user, tickets[0], user_rooms)
        assert here == await self.valkey.install(user, tickets[1], theirs)
        return here

    async def install_ledgers(self, loads: Sequence[LedgerLoad]) -> None:
        assert await self.memory.install_ledgers(loads) == await self.valkey.install_ledgers(loads)

    async def forget(self, user: str, room: str | None = None) -> None:
        await self.memory.forget(user, room)
        await self.valkey.forget(user, room)

    # ------------------------------------------------------------ comparing

    def _may_lack(self, user: str, room: str) -> bool:
        return (user, room) in self._lacked | self.lacking | self.excused

    async def compare(self, users: Sequence[str], rooms: Sequence[str]) -> None:
        """What can be seen of these users and rooms is the same."""
        self._lacked, self.lacking = self.lacking, set()
        for user in users:
            here, there = await self.memory.view(user, rooms), await self.valkey.view(user, rooms)
            assert (here is None) == (there is None), f"{user} is loaded on one side only"
            if here is not None and there is not None:
                self._compare_views(user, here, there)
                await self._compare_all_user_rooms(user, here, there)
                await self._compare_since(user, here, there)
            await self._compare_lists(user)
        self.excused.clear()
        self.hollow.clear()

    def _compare_views(self, user: str, here: UserView, there: UserView) -> None:
        ours, theirs = _by_room(here.user_rooms), _by_room(there.user_rooms)
        assert ours.keys() == theirs.keys()
        for room, user_room in ours.items():
            self._compare_user_rooms(user, user_room, theirs[room])
        assert sorted(here.timelines) == sorted(there.timelines)
        assert _asked_for(here.preferences) == _asked_for(there.preferences)
        lacks = {room for room in ours if (user, room) in self.lacking and ours[room].mode is Mode.LEDGER}
        assert _unloaded(here) | lacks == _unloaded(there)

    def _compare_user_rooms(self, user: str, ours: UserRoom, theirs: UserRoom) -> None:
        room, context = ours.channel_id, f"{user}: {ours}\n{theirs}"
        same = (ours.member, ours.mode, _numberless(ours.pointer), _unnumbered(ours.preferences))
        they = (theirs.member, theirs.mode, _numberless(theirs.pointer), _unnumbered(theirs.preferences))
        assert same == they, context
        if theirs.ledger is None and ours.ledger is not None:
            empty = (user, room) in self.hollow and ours.ledger == LedgerView()
            assert empty or self._may_lack(user, room), f"lacks a ledger: {context}"
            self.lacking.add((user, room))
        else:
            assert _ledger(ours, theirs.ledger) == theirs.ledger, context

    async def _compare_all_user_rooms(self, user: str, here: UserView, there: UserView) -> None:
        """All of them are the same as the single ones."""
        for twin, view in ((self.memory, here), (self.valkey, there)):
            every = await twin.view(user, "all")
            assert every is not None
            assert _by_room(every.user_rooms) == _by_room(view.user_rooms)
            assert _unloaded(every) == _unloaded(view)

    async def _compare_since(self, user: str, here: UserView, there: UserView) -> None:
        """Numbers grow alike, and what has changed since any of them is the same."""
        numbers = self._numbers.setdefault(user, [])
        now = (here.change, there.change)
        if numbers:
            grown = (now[0] > numbers[-1][0], now[1] > numbers[-1][1])
            assert grown in {(True, True), (False, False)}, f"{user}: {numbers[-1]} became {now}"
            assert grown[0] or now == numbers[-1], f"{user}: {numbers[-1]} became {now}"
        if not numbers or now != numbers[-1]:
            numbers.append(now)
        for ours, theirs in numbers[-1:] + numbers[-12::5]:
            assert (ours >= here.complete_since) == (theirs >= there.complete_since)
            since, too = await self.memory.view(user, ours), await self.valkey.view(user, theirs)
            assert since is not None
            assert too is not None
            assert _by_room(since.user_rooms).keys() == _by_room(too.user_rooms).keys(), (
                f"{user} since {ours}, {theirs}"
            )
            assert {
                (user, room)
                for room, user_room in _by_room(too.user_rooms).items()
                if user_room != _by_room(there.user_rooms)[room]
            } == set()

    async def _compare_lists(self, user: str) -> None:
        rooms, too = await self.memory.rooms(user), await self.valkey.rooms(user)
        assert rooms == too or sorted(rooms or ()) == sorted(too or ())
        here, there = await self.memory.changes([user]), await self.valkey.changes([user])
        assert (here == [None]) == (there == [None])
        assert await _pages(self.memory, user, False) == await _pages(self.valkey, user, False)
        if any(lacks == user for lacks, _ in self.lacking):
            return  # what is not loaded is in no sum
        assert await _pages(self.memory, user, True) == await _pages(self.valkey, user, True)
        ours, theirs = await self.memory.unread_summary(user), await self.valkey.unread_summary(user)
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours.plain == theirs.plain, user
            assert sorted(ours.special) == sorted(theirs.special), user
            assert sorted(ours.threads) == sorted(theirs.threads), user

    async def compare_count_delta(
        self, room: str, place: Position, named: frozenset[str] | None, users: Sequence[str]
    ) -> None:
        ours = await self.memory.count_delta(room, place, named, users)
        theirs = await self.valkey.count_delta(room, place, named, users)
        for user, here, there in zip(users, ours, theirs, strict=True):
            unknown = (user, room) in self.lacking and there == (CountDelta.LOOK, here[1])
            assert here == there or unknown, f"{user}, {place}"


async def _pages(twin: HotUsers, user: str, only_unread: bool) -> list[tuple[int, str]] | None:
    """The inbox, page by page."""
    found: list[tuple[int, str]] = []
    after = None
    while page := await twin.inbox(user, after, PAGE, only_unread):
        assert len(page) <= PAGE
        found += page
        after = page[-1]
    return None if page is None else found


def _by_room(user_rooms: Iterable[UserRoom]) -> dict[str, UserRoom]:
    return {user_room.channel_id: user_room for user_room in user_rooms}


def _unloaded(view: UserView) -> set[str]:
    """What must be loaded; a ledger that is found to have expired may be missing from the list of that one look."""
    assert len(view.unloaded) == len({*view.unloaded})
    expired = {
        user_room.channel_id
        for user_room in view.user_rooms
        if user_room.ledger is None and user_room.mode is Mode.LEDGER
    }
    return {*view.unloaded} | expired


def _numberless(pointer: Pointer) -> Pointer:
    return structs.replace(pointer, change=0)


def _plain(moved: Moved | Absent) -> Any:
    """Without what is a value of each store's own."""
    if isinstance(moved, Absent):
        return moved
    return structs.replace(
        moved,
        before=_numberless(moved.before),
        pointer=_numberless(moved.pointer),
        preferences=_unnumbered(moved.preferences),
    )


def _unnumbered(preferences: Preferences) -> Preferences:
    return structs.replace(preferences, change=0)


def _asked_for(preferences: Mapping[str, Preferences]) -> dict[str, Preferences]:
    """Without those that are the default again, which keep only their change number."""
    plain = {room: _unnumbered(wanted) for room, wanted in preferences.items()}
    return {room: wanted for room, wanted in plain.items() if wanted != NO_PREFERENCES}


def _ledger(user_room: UserRoom, other: LedgerView | None) -> LedgerView | None:
    """What memory says of a ledger, in Valkey's words."""
    ledger = user_room.ledger
    if ledger is None or ledger.first is None:
        return ledger
    if user_room.mode is Mode.TIMELINE:
        return structs.replace(ledger, first=None)  # a timeline tells it
    if other is not None and other.first is not None and other.first.seq == 0:
        return structs.replace(ledger, first=Position(0, ledger.first.id, ledger.first.at))
    return ledger
