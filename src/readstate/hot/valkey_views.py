"""What the hot state of users in Valkey shows, at one moment."""

from collections.abc import Sequence
from struct import pack

from ..model import NO_PREFERENCES, Position
from ..ports import Standing, Survey, UserView, Which
from .valkey_calls import UserCalls
from .valkey_seats import (
    ARCHIVED,
    COUNT,
    MISSING,
    NAMED,
    THREAD,
    TIMELINE,
    USER,
    UserScript,
    encode,
    pairs,
    preferences_of,
    seat_of,
)

VIEW, SURVEY, INBOX, ROOMS = map(UserScript.named, ("view", "survey", "inbox", "rooms"))
STANDING, CHANGES = UserScript.named("standing", width=4), UserScript.named("changes", width=1)


class ValkeyViews:
    """Looks at users."""

    def __init__(self, calls: UserCalls) -> None:
        self._calls = calls

    async def view(self, user: str, which: Which) -> UserView | None:
        """The user's seats at one moment, also those left."""
        if which == "all":
            found = await self._calls.one(VIEW, user, "all", "")
        elif isinstance(which, int):
            found = await self._calls.one(VIEW, user, "since", pack(">Q", which))
        else:
            names = list(which)
            ledgers = [self._calls.keys.ledger(user, name) for name in names]
            found = await self._calls.one(VIEW, user, "rooms", encode(names), more=ledgers)
        if found is None:
            return None
        marker, missing, timelines, preferences, seats, aparts, counts = found
        _, number, since, _, _ = USER.unpack(marker)
        wanted = {room: preferences_of(packed) for room, packed in pairs(preferences).items()}
        apart, rows = pairs(aparts), pairs(counts)
        oldest = (self._calls.clock() - self._calls.ttl) // 1000
        return UserView(
            change=number,
            complete_since=since,
            seats=[
                seat_of(room, raw, apart.get(room, b""), rows.get(room), wanted.get(room, NO_PREFERENCES), oldest)
                for room, raw in pairs(seats).items()
                if room
            ],
            unloaded=[room.decode() for room in missing],
            timelines=[room.decode() for room in timelines],
            preferences=wanted,
        )

    async def survey(self, user: str) -> Survey | None:
        """What is unread in the ledgers that are loaded, at one moment."""
        found = await self._calls.one(SURVEY, user)
        if found is None:
            return None
        wanted = {room.decode() for room in found[1][::2]}
        unread = mentions = channels = 0
        capped = False
        special, threads = [], []
        values = iter(found[0])
        for name, row in zip(values, values, strict=True):
            flags, count, _, _, floor, floor_at, _, _, _, length = COUNT.unpack_from(row)
            if not count or flags & (MISSING | TIMELINE):
                continue
            named = (len(row) - COUNT.size - length) // NAMED.size
            over = floor > 0 or floor_at > 0
            if flags & THREAD:
                threads.append((name.decode(), count, over))
            elif flags & ARCHIVED:
                pass
            elif wanted and (room := name.decode()) in wanted:
                special.append((room, count, named, over))
            else:
                unread, mentions, channels, capped = unread + count, mentions + named, channels + 1, capped or over
        return Survey((unread, mentions, channels, capped), special, threads)

    async def inbox(
        self, user: str, after: tuple[int, str] | None, limit: int, only_unread: bool = False
    ) -> list[tuple[int, str]] | None:
        """The user's ledger channels by latest activity, as (minus the time, channel), after such a pair."""
        if only_unread:
            found = await self._calls.one(SURVEY, user)
            rows = iter(() if found is None else found[0])
            keys = [(-COUNT.unpack_from(row)[6], name) for name, row in zip(rows, rows, strict=True) if _is_unread(row)]
        else:
            found = await self._calls.one(INBOX, user, "" if after is None else -after[0], limit)
            flat = iter(found or ())
            keys = [(-int(at), name) for name, at in zip(flat, flat, strict=True)]
        if found is None:
            return None
        ordered = sorted({(at, name.decode()) for at, name in keys})
        return [key for key in ordered if after is None or key > after][:limit]

    async def rooms(self, user: str) -> list[str] | None:
        """The channels that a user is in, and the threads that the user follows."""
        found = await self._calls.one(ROOMS, user)
        return None if found is None else [room.decode() for room in found]

    async def changes(self, users: Sequence[str]) -> list[int | None]:
        """The change numbers of users; None: not loaded."""
        found = await self._calls.each(CHANGES, users, None)
        return [None if number < 0 else number for (number,) in found]

    async def standing(
        self, channel: str, place: Position, named: frozenset[str] | None, users: Sequence[str]
    ) -> list[tuple[Standing, int]]:
        """What a message that has just come does to the counts of these users, and the epoch that each is in."""
        found = await self._calls.each(STANDING, users, channel, channel, place.seq, place.id or "")
        return [
            (self._standing(code, preferences, named is None or user in named), epoch)
            for user, (code, epoch, preferences) in zip(users, found, strict=True)
        ]

    def _standing(self, code: int, packed: bytes, mention: bool) -> Standing:
        standing = Standing(code)
        if standing is not Standing.ONE_MORE or not packed:
            return standing
        wanted = preferences_of(packed)
        if wanted.count == "none" or (wanted.count == "mentions" and not mention):
            return Standing.LOOK
        return Standing.ONE_MORE_MUTED if wanted.muted_until > self._calls.clock() else Standing.ONE_MORE


def _is_unread(row: bytes) -> bool:
    """Whether a row is that of a channel whose ledger holds something."""
    return not row[0] & (MISSING | TIMELINE | THREAD) and COUNT.unpack_from(row)[1] > 0
