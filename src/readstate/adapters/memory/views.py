"""Consistent views of the hot state of users."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice

from readstate.adapters.words import numbers, pointer_facts, preferences_facts, time_of, yes_or_no
from readstate.domain.model import NO_PREFERENCES, ChangeNumber, Mode, Pointer, Position
from readstate.ports import (
    Clock,
    CountDelta,
    LedgerView,
    StoredKey,
    UnreadOverview,
    UnreadSummary,
    UserRoom,
    UserView,
    Which,
)

from .user_rooms import (
    ARCHIVED,
    HEAD,
    LATEST_AT,
    MEMBER,
    NUMBER_AT,
    PACKING,
    SEQ_AT,
    TIMELINE,
    U64,
    Row,
    Shelf,
    User,
    unpack,
)

_NOTHING: frozenset[int] = frozenset()
_EMPTY = LedgerView()


class UserViews:
    """Reads of users. They change only times of use, the cached inbox, and ledgers that have expired."""

    def __init__(self, clock: Clock, ledger_ttl: int, unread_cap: int) -> None:
        self._clock = clock
        self._cap = unread_cap
        self._ttl = ledger_ttl * 1000
        self._users: dict[str, User] = {}

    async def view(self, user: str, which: Which, known: UnreadOverview | None = None) -> UserView | None:
        found = self._users.get(user)
        if found is None:
            return None
        found.used = self._clock()
        channels: Iterable[str]
        if which == "all":
            channels = found.user_rooms
        elif isinstance(which, int):
            number = U64.unpack_from
            channels = [name for name, raw in found.user_rooms.items() if number(raw, NUMBER_AT)[0] > which]
        else:
            channels = [channel for channel in which if channel in found.user_rooms]
        return UserView(
            change=found.change,
            complete_since=found.since,
            user_rooms=[self._user_room(found, channel, found.used) for channel in channels],
            unloaded=[*found.live.missing, *found.threads.missing],
            timelines=found.timelines.copy(),  # a later join must not change the view
            preferences=found.preferences,
        )

    async def stored(self, user: str, room: str) -> list[StoredKey]:
        known = self._users.get(user)
        if known is None:
            return []
        numbers_known = f"{known.change}, complete since {known.since}"
        found = [StoredKey("user", None, {"user's change number": numbers_known, "last used": time_of(known.used)})]
        if (raw := known.user_rooms.get(room)) is not None:
            row = unpack(raw)
            found.append(StoredKey("user room", None, self._row_facts(known, room, row)))
            shelf = known.shelf(row.flags)
            if room in shelf.missing:
                found.append(StoredKey("ledger", None, {"unread": "the ledger must be loaded"}))
            elif (ledger := shelf.get(room)) is not None:
                found.append(StoredKey("ledger", None, ledger.facts()))
        if (preferences := known.preferences.get(room)) is not None:
            found.append(StoredKey("preferences", None, preferences_facts(preferences)))
        return found

    def _row_facts(self, user: User, room: str, row: Row) -> dict[str, str]:
        pointer = self._pointer(user, room, row)
        return {
            "member": yes_or_no(bool(row.flags & MEMBER)),
            "counted by": row.mode.value,
            **pointer_facts(pointer),
            "read one by one": numbers(pointer.apart),
            "change of the channel": str(row.change),
        }

    def _user_room(self, user: User, channel: str, now: int) -> UserRoom:
        raw = user.user_rooms[channel]
        epoch, seq, at, _, _, number, _, flags = PACKING.unpack_from(raw)
        return UserRoom(
            channel,
            bool(flags & MEMBER),
            Mode.TIMELINE if flags & TIMELINE else Mode.LEDGER,
            Pointer(epoch, seq, user.apart.get(channel, _NOTHING), raw[HEAD:].decode() or None, at or None, 0, number),
            user.preferences.get(channel, NO_PREFERENCES),
            self._ledger_view(user.shelf(flags), channel, bool(flags & TIMELINE), now),
        )

    def _ledger_view(self, shelf: Shelf, channel: str, only_mentions: bool, now: int) -> LedgerView | None:
        """None: the ledger is not loaded, or has expired. Touches it, so that it expires later."""
        ledger = shelf.get(channel)
        if ledger is None:
            return None if channel in shelf.missing else _EMPTY
        if ledger.touched and now - ledger.touched > self._ttl:
            shelf.unload(channel)
            return None
        ledger.touched = now
        named = tuple(ledger.named) if only_mentions else ()
        return LedgerView(len(ledger.seqs), len(ledger.named), ledger.position(0), ledger.floor > 0, True, named)

    async def unread_overview(self, user: str, after: tuple[int, str] | None, limit: int) -> UnreadOverview | None:
        summary = await self.unread_summary(user)
        rooms = await self.inbox(user, after, limit, only_unread=True)
        if summary is None or rooms is None:
            return None
        known = self._users[user]
        unloaded = bool(known.live.missing or known.threads.missing)
        return UnreadOverview(known.change, unloaded, summary, rooms, known.timelines.copy(), known.preferences)

    async def unread_summary(self, user: str) -> UnreadSummary | None:
        known = self._users.get(user)
        if known is None:
            return None
        known.used = self._clock()
        live, threads = known.live, known.threads
        unread, mentions, floors = live.unread, live.mentions, live.capped
        channels, special = len(live), []
        for name in known.preferences.keys() | known.set_aside:
            if name in live:
                ledger = live[name]
                unread, mentions, channels = unread - len(ledger), mentions - len(ledger.named), channels - 1
                floors -= ledger.floor > 0
                if name not in known.set_aside:
                    special.append((name, len(ledger), len(ledger.named), ledger.floor > 0))
        return UnreadSummary(
            plain=(unread, mentions, channels, floors > 0),
            special=special,
            threads=[(name, len(one), one.floor > 0) for name, one in threads.items()],
        )

    async def rooms(self, user: str) -> list[str] | None:
        known = self._users.get(user)
        if known is None:
            return None
        return [name for name, raw in known.user_rooms.items() if raw[HEAD - 1] & MEMBER]

    async def pointers(self, user: str) -> dict[str, Pointer] | None:
        """Does not count as use: a user whom only this method reads is still evicted."""
        known = self._users.get(user)
        if known is None:
            return None
        rows = ((name, unpack(raw)) for name, raw in known.user_rooms.items())
        return {name: self._pointer(known, name, row) for name, row in rows}

    async def pointers_in(self, channel: str, users: Sequence[str]) -> list[Pointer | None]:
        found = [self._users.get(user) for user in users]
        return [None if known is None else self._pointer(known, channel, known.row(channel)) for known in found]

    @staticmethod
    def _pointer(user: User, channel: str, row: Row) -> Pointer:
        apart = user.apart.get(channel, _NOTHING)
        return Pointer(row.epoch, row.seq, apart, row.id.decode() or None, row.at or None, 0, row.number)

    async def count_delta(
        self, channel: str, position: Position, named: frozenset[str] | None, users: Sequence[str]
    ) -> list[tuple[CountDelta, int]]:
        found: list[tuple[CountDelta, int]] = []
        known, seq, one_more = self._users, position.seq, CountDelta.ONE_MORE
        for name in users:
            if (user := known.get(name)) is None:
                found.append((CountDelta.LOOK, 0))
            elif (raw := user.user_rooms.get(channel)) is None:
                found.append((CountDelta.NOTHING, 0))
            else:
                ledger = user.live.get(channel)
                if (
                    ledger is not None
                    and raw[HEAD - 1] == MEMBER
                    and ledger.ends_with(seq)
                    and channel not in user.preferences
                ):
                    found.append((one_more, U64.unpack_from(raw)[0]))
                else:
                    mention = named is None or name in named
                    found.append((self._count_delta(user, channel, raw, seq, mention), U64.unpack_from(raw)[0]))
        return found

    async def changes(self, users: Sequence[str]) -> list[ChangeNumber | None]:
        found = map(self._users.get, users)
        return [None if user is None else user.change for user in found]

    def _count_delta(self, user: User, channel: str, raw: bytes, seq: int, mention: bool) -> CountDelta:
        if not raw[HEAD - 1] & MEMBER:
            return CountDelta.NOTHING
        read = U64.unpack_from(raw, SEQ_AT)[0]
        if seq <= read or seq in user.apart.get(channel, _NOTHING):
            return CountDelta.NOTHING
        if raw[HEAD - 1] & TIMELINE:
            if seq - read > self._cap:
                return CountDelta.LOOK
        elif channel in user.live.missing:
            return CountDelta.LOOK
        elif (ledger := user.live.get(channel)) is None or seq not in ledger:
            return CountDelta.NOTHING
        elif ledger.floor:
            return CountDelta.LOOK
        wanted = user.preferences.get(channel, NO_PREFERENCES)
        if wanted.count == "none" or (wanted.count == "mentions" and not mention):
            return CountDelta.LOOK
        return CountDelta.ONE_MORE_MUTED if wanted.muted_until > self._clock() else CountDelta.ONE_MORE

    async def inbox(
        self, user: str, after: tuple[int, str] | None, limit: int, only_unread: bool = False
    ) -> list[tuple[int, str]] | None:
        known = self._users.get(user)
        if known is None:
            return None
        known.used = self._clock()
        if only_unread:
            return self._unread(known, after, limit)
        if known.inbox is None:
            latest = U64.unpack_from
            rows = ((name, raw) for name, raw in known.user_rooms.items() if raw[HEAD - 1] & ~ARCHIVED == MEMBER)
            known.inbox = sorted((-latest(raw, LATEST_AT)[0], name) for name, raw in rows)
        start = 0 if after is None else bisect_right(known.inbox, after)
        return known.inbox[start : start + limit]

    @staticmethod
    def _unread(user: User, after: tuple[int, str] | None, limit: int) -> list[tuple[int, str]]:
        live, user_rooms, unpack = user.live, user.user_rooms, U64.unpack_from

        def latest(channel: str) -> int:
            time: int = unpack(user_rooms[channel], LATEST_AT)[0]
            return time

        keys = live.by_activity(latest)
        start = 0 if after is None else bisect_right(keys, after)
        current = (key for key in islice(keys, start, None) if key[1] in live and latest(key[1]) == -key[0])
        return list(islice(current, limit))
