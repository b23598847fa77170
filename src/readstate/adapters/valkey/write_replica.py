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
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, NamedTuple

import msgspec
import structlog

from readstate.domain.errors import HotStoreUnavailable
from readstate.domain.model import Undelivered
from readstate.telemetry import BADGE_REPLICA_UP, BADGE_WRITES_SAVED

from . import Call, Script, ValkeyClient, slot_of, tag_of
from .badges import LOADING, BadgeState, Taken, ValkeyBadges, newest
from .groups import groups, script

ANSWER_SECONDS = 0.5
"""Time for the calls of one batch; then the replica is paused."""
REST_SECONDS = 5.0
TTL_MS = 24 * 3600 * 1000
"""A set without a new sender for a day expires; it is filled again on use."""
MAX_SIZE = 1_000
"""Larger badges are written to the main store alone: comparing them would take too long."""
MAX_SENDERS = 1_000
"""Senders in one call, including those that are compared."""

KNOWN = script("badge_state", "replica_known")
WRITE = script("replica_write")
FORGET = Script("-- Drops a set.\n-- KEYS  1 known:{user}\nreturn redis.call('UNLINK', KEYS[1])")

_encode = msgspec.msgpack.Encoder().encode
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

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        answer_seconds: float = ANSWER_SECONDS,
        rest_seconds: float = REST_SECONDS,
    ) -> None:
        self._client = ValkeyClient(url, patience=answer_seconds, answer_seconds=answer_seconds)
        self._prefix = prefix
        self._answer_seconds = answer_seconds
        self._rest_seconds = rest_seconds
        self._rests_until = 0.0
        self._is_up: bool | None = None

    @property
    def rests(self) -> bool:
        """Whether it is paused because it failed a few seconds ago."""
        return monotonic() < self._rests_until

    async def known(self, questions: Sequence[Question]) -> dict[str, list[int]]:
        """Per user, 0 or 1 for each sender asked about. Users whose set differs are left out."""
        asked = {one.user: one for one in questions}
        found: dict[str, list[int]] = {}
        with self._resting():
            parts = self._parts((one.user, len(one.senders) + one.badge_state.size) for one in questions)
            packed = [
                [(*_told(asked[user].badge_state), asked[user].senders) for user in users] for users in parts.values()
            ]
            values = await self._run(KNOWN, parts, packed)
            for users, rows in zip(parts.values(), values, strict=True):
                found |= {user: row for user, row in zip(users, rows, strict=True) if row}
        return found

    async def write(self, updates: Sequence[Update]) -> None:
        told = {one.user: one for one in updates}
        with self._resting():
            parts = self._parts((one.user, len(one.senders)) for one in updates)
            packed = [
                [(int(told[user].all), told[user].name, told[user].senders) for user in users]
                for users in parts.values()
            ]
            await self._run(WRITE, parts, packed, TTL_MS)

    async def forget(self, user: str) -> None:
        if not self.rests:
            with self._resting():
                await self._run(FORGET, self._parts([(user, 1)]), [[]])

    async def close(self) -> None:
        await self._client.close()

    def _parts(self, users: Iterable[tuple[str, int]]) -> dict[tuple[int, int], list[str]]:
        """The users of each call, by (slot, number of the call)."""
        things = ((slot_of(self._key(user)), weight, user) for user, weight in users)
        return {(slot, n): part for n, (slot, part) in enumerate(groups(self._client, things, MAX_SENDERS))}

    async def _run(
        self, script: Script, parts: dict[tuple[int, int], list[str]], packed: Sequence[Any], *arguments: int
    ) -> list[Any]:
        calls = [
            Call(slot, [self._key(user) for user in users], [*arguments, _encode(rows)])
            for ((slot, _), users), rows in zip(parts.items(), packed, strict=True)
        ]
        async with asyncio.timeout(self._answer_seconds):
            return (await self._client.run(script, calls)).values

    def _key(self, user: str) -> str:
        return f"{self._prefix}known:{tag_of(user)}"

    @contextmanager
    def _resting(self) -> Iterator[None]:
        """A failure pauses the replica and has no other effect."""
        try:
            yield
        except (HotStoreUnavailable, TimeoutError, OSError) as error:
            self._rests_until = monotonic() + self._rest_seconds
            self._tell(up=False, error=str(error) or "it does not answer in time")
        else:
            self._tell(up=True)

    def _tell(self, *, up: bool, **more: str) -> None:
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
        if self._replica.rests:
            return await self._main.add(undelivered, or_reload=or_reload)
        with self._main.or_reload(or_reload):
            return await self._add(newest(undelivered))

    async def _add(self, wrote: dict[str, dict[str, int]]) -> dict[str, bool]:
        badge_states = await self._main.badge_states(wrote)
        loaded = {user: one for user, one in badge_states.items() if one is not LOADING}
        for user, badge_state in loaded.items():
            wrote[user] = {sender: at for sender, at in wrote[user].items() if at > badge_state.tap}
        believed = await self._leave_out_known(loaded, wrote)
        # A badge that is not in `badge_states` is loaded later, and that load finds the message in the durable store.
        new = {user: wrote[user] for user in badge_states if wrote[user]}
        taken = await self._main.take(new) if new else {}
        await self._tell_replica(loaded, believed, taken, new)
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

    async def _tell_replica(
        self,
        before: dict[str, BadgeState],
        believed: Collection[str],
        taken: dict[str, Taken],
        new: dict[str, dict[str, int]],
    ) -> None:
        """Send the replica what the main store has added or, where its set differs, the whole set."""
        if self._replica.rests:
            return
        same = {user for user, one in taken.items() if user in before and one.name == before[user].name}
        empty = {user for user in same if before[user].size == 0}
        updates = [
            Update(user, taken[user].name.decode(), list(new[user]), all=user in empty)
            for user in same
            if user in empty or user in believed
        ]
        other = [user for user in same if user not in empty and user not in believed and before[user].size <= MAX_SIZE]
        found: dict[str, tuple[bytes, list[bytes]]] = {}
        with suppress(HotStoreUnavailable):  # the main store has everything; the replica can wait
            found = await self._main.members(other) if other else {}
        updates += [Update(user, name.decode(), _texts(members), all=True) for user, (name, members) in found.items()]
        if updates:
            await self._replica.write(updates)


def _told(badge_state: BadgeState) -> tuple[str, int, int]:
    return badge_state.name.decode(), badge_state.size, badge_state.sum


def _texts(members: Sequence[bytes]) -> list[str]:
    """As scripts can unpack them. Bytes that are not text are not ours: the set then differs and does not count."""
    return [member.decode(errors="replace") for member in members]
