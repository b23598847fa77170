"""Explains why a count is what it is, and recounts it."""

import asyncio
from dataclasses import dataclass

from msgspec import UNSET

from readstate.api import Explanation, HotKey, Recount
from readstate.domain.announcements import UserRoomChanged
from readstate.domain.rules import check_user_room
from readstate.ports import Bus, DurableQueries, Hot
from readstate.ports.consistency import Consistency

from .counting import Counting, last_read, reason
from .loading import Loader
from .pending_writes import PendingWrites
from .unread import UnreadCounts

MAX_ATTEMPTS = 20


@dataclass(eq=False, repr=False)
class Explain:
    _hot: Hot
    _durable: DurableQueries
    _loader: Loader
    _counting: Counting
    _pending_writes: PendingWrites
    _bus: Bus
    _unread: UnreadCounts
    _consistency: Consistency

    async def explain(self, user: str, channel: str, keys: bool = False) -> Explanation:
        """Return both counts, the pointer, and how many messages do not count, by reason.

        `agrees` is false only if the counts differed while nothing changed. `keys`: also what the hot store held of
        them before it was asked for a count, which may load it.
        """
        check_user_room(user, channel)
        stored = await self._stored(user, channel) if keys else UNSET
        seen = set()
        before = self._counting.stale(user)
        for attempt in range(MAX_ATTEMPTS):
            await asyncio.sleep(0.01 * attempt)
            user_room = await self._loader.user_room(user, channel)
            info = await self._loader.channel(channel)
            count = (await self._counting.counts(user, [user_room], [info]))[0]
            found = await self._durable.breakdown(user, channel, user_room.pointer)
            quiet = found.change == info.change == (await self._loader.channel(channel)).change
            if quiet and (await self._loader.user_room(user, channel)).pointer == user_room.pointer:
                break
            seen.add((found.change, info.change, found.unread, count.count, user_room.pointer))
        else:
            quiet = len(seen) == 1  # the change numbers differ, but no attempt saw a change
        why = reason(before.or_by(self._counting.stale(user)).has(channel), count.capped)
        return Explanation(
            channel_id=channel,
            user_id=user,
            unread=count.count,
            exact=why is UNSET,
            reason=why,
            mode=user_room.mode.value,
            pointer=last_read(user_room.pointer),
            joined_seq=found.joined_seq,
            latest_seq=found.latest_seq,
            after_pointer=found.after_pointer,
            minus=found.minus,
            hot=count.count,
            durable=found.unread,
            agrees=not quiet or count.count == found.unread or (count.capped and count.count < found.unread),
            answered_by="hot",
            keys=stored,
        )

    async def _stored(self, user: str, channel: str) -> list[HotKey]:
        found = [*await self._hot.users.stored(user, channel), *await self._hot.channels.stored(channel)]
        return [HotKey(key.name, key.expires_in and key.expires_in / 1000, dict(key.facts)) for key in found]

    async def recount(self, user: str, channel: str) -> Recount:
        """Drop the hot state and count again from the durable store."""
        before = await self._unread.of_channel(user, channel)  # checks the ids too
        await self._pending_writes.settled(user)
        await self._consistency.forget_to_recount(self._hot.users, user, channel)
        await self._hot.channels.forget(channel)
        after = await self._unread.of_channel(user, channel)
        await self._bus.publish([UserRoomChanged(user, channel)])
        return Recount(before.unread, after.unread)
