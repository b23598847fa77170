"""Badges in Valkey: a set of senders for each user, and a hash that describes the set (`lua/badge_state.lua`)."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from readstate.domain.model import Undelivered

from . import Backend, Function, slot_of, tag_of
from .commands import Word, encode
from .groups import Packed, all_or_reload, run_for_each

MAX_ADDED = 1_000
"""Pairs of receiver and sender in one call."""
MAX_ASKED = 500
"""Badges that one call reads."""
TICKET_BITS = 53

COUNT, ADD = Function("badge_count"), Function("badge_add")
READ, MEMBERS = Function("badge_read"), Function("badge_members")
BEGIN, INSTALL = Function("badge_begin"), Function("badge_install")
HOLD, RELEASE, FORGET = Function("badge_hold"), Function("badge_release"), Function("badge_forget")

Wrote = Mapping[str, Mapping[str, int]]
"""Per receiver, each sender and when that sender's newest message was accepted (ms)."""


class BadgeState(NamedTuple):
    """Identifies the content of a loaded badge: `name` is unique to a load, `size` and `sum` to a set of senders."""

    name: bytes
    tap: int
    size: int
    sum: int


class Taken(NamedTuple):
    new: int
    """How many senders were new; -1: the badge is not loaded."""
    name: bytes


LOADING = BadgeState(b"", 0, 0, 0)
"""Stands for a badge whose load is in flight."""


class ValkeyBadges:
    """Implements `HotBadges`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._generation = backend.generation

    async def count(self, user: str) -> int | None:
        return (await self.counts([user]))[0]

    async def counts(self, users: Sequence[str]) -> list[int | None]:
        found: dict[str, int] = await self._each(COUNT, users)
        return [None if found[user] < 0 else found[user] for user in users]

    async def add(self, undelivered: Sequence[Undelivered], *, or_reload: bool = True) -> dict[str, bool]:
        with self.or_reload(or_reload):
            taken = await self.take(newest(undelivered))
        return {user: one.new > 0 for user, one in taken.items() if one.new}

    def or_reload(self, wanted: bool) -> AbstractContextManager[None]:
        """Wraps a write that the durable store already has: if it fails and `wanted`, everything is reloaded."""
        return all_or_reload(self._generation) if wanted else nullcontext()

    async def take(self, wrote: Wrote) -> dict[str, Taken]:
        """Add senders whose message was accepted after the last tap."""

        def pack(users: list[str]) -> Packed:
            packed = [[word for one in wrote[user].items() for word in reversed(one)] for user in users]
            return self._keys_of(users), [*self._backend.time(), encode(packed)]

        things = ((self._slot(user), len(senders), user) for user, senders in wrote.items())
        found = await run_for_each(self._backend.client, ADD, things, MAX_ADDED, pack)
        return {user: Taken(*row) for user, row in found}

    async def badge_states(self, users: Collection[str]) -> dict[str, BadgeState]:
        """Badges that are neither loaded nor being loaded are left out."""
        found = await self._each(READ, users)
        return {user: _badge_state(row) for user, row in found.items() if row}

    async def members(self, users: Collection[str]) -> dict[str, tuple[bytes, list[bytes]]]:
        """Per loaded badge, its name and its senders."""
        found = await self._each(MEMBERS, users)
        return {user: (row[0], row[1]) for user, row in found.items() if row}

    async def hold(self, user: str) -> int:
        token = 1 + secrets.randbits(TICKET_BITS)
        await self._run(HOLD, user, token, self._backend.timings.badge_hold_ms, hold=True)
        return token

    async def release(self, user: str, token: int) -> None:
        with all_or_reload(self._generation):
            await self._run(RELEASE, user, token, hold=True)

    async def begin(self, user: str) -> int | None:
        ticket = 1 + secrets.randbits(TICKET_BITS)  # unique, even if the server loses earlier tickets
        given = await self._run(BEGIN, user, *self._backend.time(), ticket, hold=True)
        return int(given) if given else None

    async def install(self, user: str, ticket: int, tap: int, senders: frozenset[str]) -> bool:
        packed = encode(sorted(senders))
        return bool(await self._run(INSTALL, user, *self._backend.time(), ticket, tap, packed))

    async def forget(self, user: str) -> None:
        with all_or_reload(self._generation):
            await self._run(FORGET, user)

    async def _each(self, function: Function, users: Collection[str]) -> dict[str, Any]:
        things = ((self._slot(user), 1, user) for user in users)
        found = await run_for_each(
            self._backend.client, function, things, MAX_ASKED, lambda some: (self._keys_of(some), self._backend.time())
        )
        return dict(found)

    def _keys_of(self, users: Sequence[str]) -> list[str]:
        return [key for user in users for key in self._keys(user)]

    def _keys(self, user: str) -> list[str]:
        tag = tag_of(user)
        return [f"{self._backend.prefix}badge:{tag}", f"{self._backend.prefix}senders:{tag}"]

    def _slot(self, user: str) -> int:
        return slot_of(self._keys(user)[0])

    async def _run(self, function: Function, user: str, *arguments: Word, hold: bool = False) -> Any:
        keys = [*self._keys(user), f"{self._backend.prefix}hold:{tag_of(user)}"]
        return await self._backend.one(function, keys if hold else keys[:2], *arguments)


def newest(undelivered: Sequence[Undelivered]) -> dict[str, dict[str, int]]:
    """A badge needs only the newest message of each sender."""
    receivers: dict[str, dict[str, int]] = {}
    for one in undelivered:
        senders = receivers.setdefault(one.receiver_id, {})
        senders[one.sender_id] = max(one.accepted_at, senders.get(one.sender_id, 0))
    return receivers


def _badge_state(row: list[bytes]) -> BadgeState:
    name, *numbers = row
    return BadgeState(name, *map(int, numbers)) if numbers else LOADING
