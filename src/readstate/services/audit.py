"""Compares counts, pointers and badges of the hot store with the durable store.

The hot store trails briefly: while a message or a join is applied, or while a new sender is in flight to a badge. So
only a difference that stands is drift.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import Struct

from readstate.domain.errors import NotFound
from readstate.domain.facts import Key
from readstate.domain.model import Pointer
from readstate.domain.rules import merge
from readstate.ports import Durable, Hot
from readstate.telemetry import AUDITED, DRIFT
from readstate.timings import ServiceTimings

from .explain import Explain
from .loading import Loader

AT_ONCE = 16
"""Users or channels processed at the same time."""
CANDIDATES = 5
"""User rooms sampled for each one audited: those of users in the hot store come first."""

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[int, int], None]
"""Called with (done, total)."""


class Drift(Struct, frozen=True):
    """A difference that stood while nothing changed."""

    user_id: str
    channel_id: str | None
    """None: the drift is in the user's badge."""
    what: str
    """`count`: the shown count differs from the durable one. `pointer`: the hot store lacks a read of the durable
    store. `badge`: the size of the set differs from the durable count.
    """
    hot: int
    durable: int


class Audited(Struct):
    counted: int
    badges: int
    """Loaded badges of the audited users."""
    drift: list[Drift]


@dataclass(eq=False, repr=False)
class Audit:
    _hot: Hot
    _durable: Durable
    _loader: Loader
    _explain: Explain
    _timings: ServiceTimings

    async def run(self, sample: int, patience: float, progress: Progress | None = None) -> Audited:
        """Recount a random sample of user rooms, and the badges of their users, from the durable store.

        Differences are checked again until they are gone or have stood for `patience` seconds.
        """
        keys = await self._sample(sample)
        differ = await each(keys, lambda key: self._differs(*key), progress)
        drift = [found for found in differ if found is not None]
        users = list(dict.fromkeys(user for user, _ in keys))
        badges = len(await _loaded_badges(self._hot, users))
        drift += await badge_drift(self._hot, self._durable, users)
        end = asyncio.get_running_loop().time() + patience
        while drift and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(self._timings.audit_poll)
            drift = await self._still_differ(drift)
        AUDITED.inc(len(keys) + badges)
        DRIFT.inc(len(drift))
        return Audited(len(keys), badges, drift)

    async def _still_differ(self, drift: Sequence[Drift]) -> list[Drift]:
        keys = [(one.user_id, one.channel_id) for one in drift if one.channel_id is not None]
        again = await each(keys, lambda key: self._differs(*key))
        badges = await badge_drift(self._hot, self._durable, [one.user_id for one in drift if one.channel_id is None])
        return [*(found for found in again if found is not None), *badges]

    async def _sample(self, size: int) -> list[Key]:
        """Prefers user rooms of users in the hot store: only these can have drifted."""
        sampled = await self._durable.some_user_rooms(size * CANDIDATES)
        users = list(dict.fromkeys(user for user, _ in sampled))
        changes = dict(zip(users, await self._hot.users.changes(users), strict=True)) if users else {}
        return sorted(sampled, key=lambda key: changes[key[0]] is None)[:size]

    async def _differs(self, user: str, channel: str) -> Drift | None:
        """The drift between shown and durable count, taken with the merge of both pointers; None if they agree."""
        try:
            why = await self._explain.explain(user, channel)
            if not why.agrees:
                return Drift(user, channel, "count", why.hot, why.durable)
            durable = (await self._durable.read_states([(user, channel)])).get((user, channel), Pointer())
            hot = (await self._loader.user_room(user, channel)).pointer
        except NotFound:
            return None  # the user left, or the channel was deleted meanwhile
        # A hot pointer that lacks nothing of the durable one is the merge of both, and explain has counted with it.
        return Drift(user, channel, "pointer", hot.seq, durable.seq) if lacks(hot, durable) else None


async def badge_drift(hot: Hot, durable: Durable, users: Sequence[str]) -> list[Drift]:
    """Loaded badges that differ from the durable count."""
    loaded = await _loaded_badges(hot, users)

    async def compare(user: str) -> Drift:
        return Drift(user, None, "badge", loaded[user], await durable.badge_count(user))

    return [one for one in await each(list(loaded), compare) if one.hot != one.durable]


async def _loaded_badges(hot: Hot, users: Sequence[str]) -> dict[str, int]:
    counts = zip(users, await hot.badges.counts(users), strict=True)
    return {user: count for user, count in counts if count is not None}


def lacks(known: Pointer, other: Pointer) -> bool:
    """Whether `other` has anything that `known` lacks."""
    return merge(known.state, other.state) != known.state


async def each(items: Sequence[T], work: Callable[[T], Awaitable[R]], progress: Progress | None = None) -> list[R]:
    """Results of `work`, with at most `AT_ONCE` calls in flight."""
    free = asyncio.Semaphore(AT_ONCE)
    done = 0

    async def one(item: T) -> R:
        nonlocal done
        async with free:
            result = await work(item)
        done += 1
        if progress:
            progress(done, len(items))
        return result

    return await asyncio.gather(*map(one, items))
