"""Turns hot state into the counts that callers see."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from readstate.api import LastRead, Place, Reason, ThreadTotals, ThreadView, Totals, Unread
from readstate.domain.model import ChangeNumber, Channel, Mode, Pointer, Position, Preferences
from readstate.domain.rules import label
from readstate.ports import Clock, Count, CountQuery, Freshness, Moved, Stale, UserRoom
from readstate.ports.consistency import Lookups

from .loading import Loader
from .positions import Positions

T = TypeVar("T", Totals, ThreadTotals, ThreadView)
_NOTHING = Count()
_NONE_KNOWN: Mapping[CountQuery, Count] = {}


def last_read(pointer: Pointer) -> LastRead:
    return LastRead(pointer.id, pointer.seq, pointer.at, pointer.epoch)


def any_unread(count: Count) -> bool:
    return count.count > 0 or count.capped


def shown(preferences: Preferences, count: Count) -> int:
    """The count that the user's `count` preference asks for."""
    if preferences.count == "all":
        return count.count
    return count.mentions if preferences.count == "mentions" else 0


def reason(stale: bool, capped: bool) -> Reason | UnsetType:
    """Why a count is not exact; UNSET if it is exact."""
    return "stale" if stale else "capped" if capped else UNSET


def flagged(figures: T, why: Reason | UnsetType) -> T:
    """Set `exact` and `reason` only if the numbers are not exact."""
    return figures if why is UNSET else replace(figures, exact=False, reason=why)


@dataclass(eq=False, repr=False)
class Counting:
    """Counts user rooms, both with ledgers and with timelines."""

    _loader: Loader
    _lookups: Lookups
    _positions: Positions
    _freshness: Freshness
    _clock: Clock
    _display_cap: int

    def stale(self, user: str) -> Stale:
        """Which counts of the user may be old, because a server is down or a consumer lags.

        Callers ask before and after they read the hot state: a count called exact is exact at both times.
        """
        return self._freshness.stale(user)

    def label(self, count: int) -> str:
        return label(count, self._display_cap)

    def muted(self, preferences: Preferences) -> bool:
        return preferences.muted_until > self._clock()

    async def rooms(self, user: str, names: Sequence[str]) -> list[tuple[UserRoom, Channel, Count]]:
        """Those of these rooms that the user is in, each with its count before preferences are applied."""
        user_rooms, channels = await self._loader.member_rooms(user, names)
        return list(zip(user_rooms, channels, await self.counts(user, user_rooms, channels), strict=True))

    async def counts(
        self,
        user: str,
        user_rooms: Sequence[UserRoom],
        channels: Sequence[Channel],
        known: Mapping[CountQuery, Count] = _NONE_KNOWN,
    ) -> list[Count]:
        """Counts before preferences are applied. The ledgers must be loaded. `known`: counts that are at hand."""
        counts: list[Count] = []
        missing: list[tuple[int, CountQuery]] = []
        for room, channel in zip(user_rooms, channels, strict=True):
            if room.mode is Mode.LEDGER or room.pointer.seq >= channel.last_seq:
                counts.append(_NOTHING if room.mode is Mode.TIMELINE else _ledger_count(room))
                continue
            query = CountQuery(user, room.channel_id, room.pointer, room.ledger.named if room.ledger else ())
            if query not in known:
                missing.append((len(counts), query))
            counts.append(known.get(query, _NOTHING))
        if missing:
            timelines = await self._loader.counts([query for _, query in missing])
            for (index, _), count in zip(missing, timelines, strict=True):
                counts[index] = count
        return counts

    async def after(self, moved: Moved) -> int:
        """The count after a move, by the user's `count` preference; taken from the move itself if it has the number."""
        if moved.preferences.count == "all":
            if moved.mode is Mode.TIMELINE:
                query = CountQuery(moved.user_id, moved.channel_id, moved.pointer)
                return (await self._lookups.counts([query]))[0].count
            if moved.unread is not None:
                return moved.unread
        user_room = await self._loader.user_room(moved.user_id, moved.channel_id)
        channel = await self._loader.channel(moved.channel_id)
        count = (await self.counts(moved.user_id, [user_room], [channel]))[0]
        return shown(user_room.preferences, count)

    async def room_at(self, user: str, channel: str) -> tuple[Unread, tuple[ChangeNumber, int]]:
        """What callers see of one room, with the change numbers of the user and the room that it was taken at.

        Every read over a live connection is answered with it, so it does without the lists of `unread`.
        """
        before = self.stale(user)
        user_room, change = await self._loader.user_room_at(user, channel)
        room = await self._loader.channel(channel)
        if user_room.mode is Mode.LEDGER:
            count = _ledger_count(user_room)
        else:
            count = (await self.counts(user, [user_room], [room]))[0]
        first = count.first
        if first is not None and not first.seq:
            first = (await self._first_unread([user_room], [count]))[0]
        stale = before.or_by(self.stale(user)).has(channel)
        return self._unread(user_room, room, count, first, self._clock(), stale), (change, room.change)

    async def rows(self, user: str, names: Sequence[str]) -> list[tuple[UserRoom, Channel, Unread]]:
        """Those of these rooms that the user is in, each with what callers see of its count."""
        before = self.stale(user)
        user_rooms, channels = await self._loader.member_rooms(user, names)
        return list(zip(user_rooms, channels, await self.unread(user, user_rooms, channels, before), strict=True))

    async def unread(
        self, user: str, user_rooms: Sequence[UserRoom], channels: Sequence[Channel], before: Stale
    ) -> list[Unread]:
        """`before`: what was stale before the user rooms were looked up."""
        return await self.shown(user, user_rooms, channels, await self.counts(user, user_rooms, channels), before)

    async def shown(
        self,
        user: str,
        user_rooms: Sequence[UserRoom],
        channels: Sequence[Channel],
        counts: Sequence[Count],
        before: Stale,
    ) -> list[Unread]:
        """As `unread`, with counts that are at hand."""
        firsts = await self._first_unread(user_rooms, counts)
        stale, now = before.or_by(self.stale(user)), self._clock()
        some_stale = stale.everything or bool(stale.partitions)
        return [
            self._unread(room, channel, count, first, now, some_stale and stale.has(room.channel_id))
            for room, channel, count, first in zip(user_rooms, channels, counts, firsts, strict=True)
        ]

    def _unread(
        self, user_room: UserRoom, channel: Channel, count: Count, first: Position | None, now: int, stale: bool
    ) -> Unread:
        unread, pointer = shown(user_room.preferences, count), user_room.pointer
        return Unread(  # positional: there may be 100,000 of them in a page
            user_room.channel_id,
            unread,
            label(unread, self._display_cap),
            count.count > 0 or count.capped,
            not (stale or count.capped),
            count.mentions,
            None if first is None else Place(first.id, first.seq, first.at),
            LastRead(pointer.id, pointer.seq, pointer.at, pointer.epoch),
            channel.latest,
            user_room.preferences.muted_until > now,
            "stale" if stale else "capped" if count.capped else UNSET,
            True if channel.archived else UNSET,
        )

    async def _first_unread(self, user_rooms: Sequence[UserRoom], counts: Sequence[Count]) -> list[Position | None]:
        """The first unread messages. Where the hot store keeps no seqs, their positions are looked up."""
        firsts = [count.first for count in counts]
        keys = [
            (room.channel_id, first.id)
            for room, first in zip(user_rooms, firsts, strict=True)
            if first is not None and not first.seq and first.id is not None
        ]
        if not keys:
            return firsts
        positions = await self._positions.by_id(keys)
        return [
            first and positions.get((room.channel_id, first.id or ""), first)
            for room, first in zip(user_rooms, firsts, strict=True)
        ]


def _ledger_count(user_room: UserRoom) -> Count:
    return _NOTHING if user_room.ledger is None else user_room.ledger
