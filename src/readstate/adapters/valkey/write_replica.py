"""The write replica: a second hot store that is asked first. Senders that it knows cause no write to the main store.

Its answer counts only where its set for a badge equals the main store's. A batch begins by reading the name, size and
sum of each badge from the main store. The replica answers for a set only if its own has the same name and size, and the
same sum, which it computes from what it holds at that time. The name is that of a load, and every tap leads to another
load, so a set from before a tap answers for nothing. A sender stays on a badge as long as the badge keeps its name, and
a reload of the badge finds the message in the durable store. So a write that is skipped here is never missing.

In every other case (the replica is down, slow, paused, emptied, of the wrong type, or different) the main store is
written, and the replica is filled from it again.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from time import monotonic
from typing import NamedTuple

import structlog

from readstate.domain.errors import HotStoreUnavailable
from readstate.domain.model import Undelivered
from readstate.telemetry import BADGE_REPLICA_UP, BADGE_WRITES_SAVED
from readstate.timings import ValkeyTimings

from . import Call, ValkeyClient, slot_of, tag_of
from .badges import LOADING, BadgeState, Taken, ValkeyBadges, newest
from .commands import encode
from .functions import COMMAND, Function
from .groups import Packed, run_for_each, run_grouped

MAX_SIZE = 1_000
"""Larger badges are written to the main store alone: comparing them would take too long."""
MAX_SENDERS = 1_000
"""Senders in one call, including those that are compared."""

KNOWN = Function("replica_known")
WRITE = Function("replica_write")

log = structlog.get_logger()


class Question(NamedTuple):
    """Does the replica know these senders of a badge in this state?"""

    user: str
    badge_state: BadgeState
    senders: list[str]


class Update(NamedTuple):
    """Senders to add to the replica's set of a badge or, with `all`, to replace it."""

    user: str
    name: str
    senders: Sequence[str]
    all: bool


class WriteReplica:
    """A store that may fail, forget or be wrong at any time. No method raises because of that, or waits for long."""

    def __init__(self, url: str, prefix: str, timings: ValkeyTimings) -> None:
        answer = timings.replica_answer
        self._client = ValkeyClient(url, replace(timings, patience=answer, answer=answer))
        self._prefix = prefix
        self._timings = timings
        self._paused_until = 0.0
        self._is_up: bool | None = None

    @property
    def is_paused(self) -> bool:
        """Whether it failed a few seconds ago."""
        return monotonic() < self._paused_until

    async def known(self, questions: Sequence[Question]) -> dict[str, list[int]]:
        """Per user, 0 or 1 for each sender asked about. Users whose set differs are left out."""

        def pack(some: list[Question]) -> Packed:
            rows = [(state.name.decode(), state.size, state.sum, senders) for _, state, senders in some]
            return [self._key(one.user) for one in some], [encode(rows)]

        things = ((self._slot(one.user), len(one.senders) + one.badge_state.size, one) for one in questions)
        async with self._or_pause():
            rows = await run_for_each(self._client, KNOWN, things, MAX_SENDERS, pack)
            return {one.user: row for one, row in rows if row}
        return {}

    async def write(self, updates: Sequence[Update]) -> None:
        def pack(some: list[Update]) -> Packed:
            rows = [(int(one.all), one.name, one.senders) for one in some]
            return [self._key(one.user) for one in some], [self._timings.replica_ttl_ms, encode(rows)]

        async with self._or_pause():
            things = ((self._slot(one.user), len(one.senders), one) for one in updates)
            await run_grouped(self._client, WRITE, things, MAX_SENDERS, pack)

    async def forget(self, user: str) -> None:
        if not self.is_paused:
            async with self._or_pause():
                await self._client.run(COMMAND, [Call(self._slot(user), [self._key(user)], ["UNLINK"])])

    async def close(self) -> None:
        await self._client.close()

    def _key(self, user: str) -> str:
        return f"{self._prefix}known:{tag_of(user)}"

    def _slot(self, user: str) -> int:
        return slot_of(self._key(user))

    @asynccontextmanager
    async def _or_pause(self) -> AsyncIterator[None]:
        """A failure, or a wait that is too long, pauses the replica and has no other effect."""
        try:
            async with asyncio.timeout(self._timings.replica_answer):
                yield
        except (HotStoreUnavailable, TimeoutError, OSError) as error:
            self._paused_until = monotonic() + self._timings.replica_pause
            self._report(up=False, error=str(error) or "it does not answer in time")
        else:
            self._report(up=True)

    def _report(self, *, up: bool, **more: str) -> None:
        BADGE_REPLICA_UP.set(up)
        if up is not self._is_up:
            self._is_up = up
            log.info("write replica", action="badge", up=up, **more)


class ReplicatedBadges:
    """`ValkeyBadges` behind a write replica: the same guarantees and the same answers."""

    def __init__(self, main: ValkeyBadges, replica: WriteReplica) -> None:
        self._main = main
        self._replica = replica
        self.count = main.count
        self.counts = main.counts
        self.hold = main.hold
        self.begin = main.begin
        self.install = main.install

    async def release(self, user: str, token: int) -> None:
        await self._main.release(user, token)
        await self._replica.forget(user)

    async def forget(self, user: str) -> None:
        await self._main.forget(user)
        await self._replica.forget(user)

    async def add(self, undelivered: Sequence[Undelivered], *, or_reload: bool = True) -> dict[str, bool]:
        if not undelivered:
            return {}
        if self._replica.is_paused:
            return await self._main.add(undelivered, or_reload=or_reload)
        with self._main.or_reload(or_reload):
            return await self._add(newest(undelivered))

    async def _add(self, wrote: dict[str, dict[str, int]]) -> dict[str, bool]:
        badge_states = await self._main.badge_states(wrote)
        loaded = {user: one for user, one in badge_states.items() if one is not LOADING}
        for user, badge_state in loaded.items():
            wrote[user] = {sender: at for sender, at in wrote[user].items() if at > badge_state.tap}
        equal = await self._leave_out_known(loaded, wrote)
        # A badge that is not in `badge_states` is loaded later, and that load finds the message in the durable store.
        new = {user: wrote[user] for user in badge_states if wrote[user]}
        taken = await self._main.take(new) if new else {}
        await self._update_replica(loaded, equal, taken, new)
        unloaded = {user: False for user in wrote if user not in badge_states}
        return unloaded | {user: one.new > 0 for user, one in taken.items() if one.new}

    async def _leave_out_known(
        self, loaded: dict[str, BadgeState], wrote: dict[str, dict[str, int]]
    ) -> Collection[str]:
        """Remove senders that the replica knows. Returns the users for whom its answer counts."""
        questions = [
            Question(user, badge_state, list(wrote[user]))
            for user, badge_state in loaded.items()
            if wrote[user] and 0 < badge_state.size <= MAX_SIZE
        ]
        known = await self._replica.known(questions) if questions else {}
        for user, _, senders in questions:
            for sender, is_known in zip(senders, known.get(user, [0] * len(senders)), strict=True):
                if is_known:
                    del wrote[user][sender]
                    BADGE_WRITES_SAVED.inc()
        return known

    async def _update_replica(
        self,
        before: dict[str, BadgeState],
        equal: Collection[str],
        taken: dict[str, Taken],
        new: dict[str, dict[str, int]],
    ) -> None:
        """Send the replica what the main store has added or, where its set differs, the whole set."""
        if self._replica.is_paused:
            return
        same = {user for user, one in taken.items() if user in before and one.name == before[user].name}
        empty = {user for user in same if before[user].size == 0}
        updates = [
            Update(user, taken[user].name.decode(), list(new[user]), all=user in empty)
            for user in same
            if user in empty or user in equal
        ]
        other = [user for user in same if user not in empty and user not in equal and before[user].size <= MAX_SIZE]
        found: dict[str, tuple[bytes, list[bytes]]] = {}
        with suppress(HotStoreUnavailable):  # the main store has everything; the replica can wait
            found = await self._main.members(other) if other else {}
        updates += [Update(user, name.decode(), _texts(members), all=True) for user, (name, members) in found.items()]
        if updates:
            await self._replica.write(updates)


def _texts(members: Sequence[bytes]) -> list[str]:
    """As functions can unpack them. Bytes that are not text are not ours: the set then differs and does not count."""
    return [member.decode(errors="replace") for member in members]
