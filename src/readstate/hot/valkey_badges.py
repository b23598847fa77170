"""Badges in Valkey: a set of senders for each user, and beside it what is known of the set."""

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from ..model import Undelivered
from ..ports import Clock
from ..valkey import Call, Fleet, Generation, Script, slot_of, tag_of
from .valkey_groups import all_or_reload, groups, script

MAX_ADDED = 1_000
"""Messages in one call."""
TICKET_BITS = 53


COUNT = script("badge_state", "badge_count")
ADD = script("badge_state", "badge_add")
TAP = script("badge_state", "badge_tap")
BEGIN = script("badge_state", "badge_begin")
INSTALL = script("badge_state", "badge_install")
FORGET = script("badge_forget")

_encode = msgspec.msgpack.Encoder().encode


class ValkeyBadges:
    """The hot state of badges in Valkey or Redis, single or a Cluster."""

    def __init__(self, fleet: Fleet, generation: Generation, *, prefix: str, clock: Clock, ttl: int) -> None:
        self._fleet = fleet
        self._generation = generation
        self._prefix = prefix
        self._clock = clock
        self._ttl = ttl * 1000

    async def count(self, user: str) -> int | None:
        """How many; None: not loaded."""
        count: int = await self._run(COUNT, user, self._clock(), self._ttl)
        return None if count < 0 else count

    async def add(self, undelivered: Sequence[Undelivered]) -> None:
        """Take them in, unless they were accepted before the user's last tap."""
        receivers: dict[str, list[str | int]] = {}
        for one in undelivered:
            receivers.setdefault(one.receiver_id, []).extend((one.accepted_at, one.sender_id))
        keys = {user: self._keys(user) for user in receivers}
        things = ((slot_of(keys[user][0]), len(messages) // 2, user) for user, messages in receivers.items())
        calls = [
            Call(
                slot,
                [key for user in users for key in keys[user]],
                [self._clock(), self._ttl, _encode([receivers[user] for user in users])],
            )
            for slot, users in groups(self._fleet, things, MAX_ADDED)
        ]
        with all_or_reload(self._generation):
            await self._fleet.run(ADD, calls)

    async def tap(self, user: str, at: int) -> None:
        """Forget everyone up to a moment."""
        with all_or_reload(self._generation):
            await self._run(TAP, user, self._clock(), self._ttl, at)

    async def begin(self, user: str) -> int:
        """Announce a load."""
        ticket = 1 + secrets.randbits(TICKET_BITS)  # nobody else has it, even if the server forgets who had which
        return int(await self._run(BEGIN, user, self._clock(), self._ttl, ticket))

    async def install(self, user: str, ticket: int, tap: int, senders: frozenset[str]) -> bool:
        """Take a loaded badge; False if something has happened since `begin`: load again."""
        packed = _encode(sorted(senders))
        return bool(await self._run(INSTALL, user, self._clock(), self._ttl, ticket, tap, packed))

    async def forget(self, user: str) -> None:
        """Drop a badge; loaded again on use."""
        with all_or_reload(self._generation):
            await self._run(FORGET, user)

    def _keys(self, user: str) -> list[str]:
        tag = tag_of(user)
        return [f"{self._prefix}badge:{tag}", f"{self._prefix}senders:{tag}"]

    async def _run(self, script: Script, user: str, *arguments: str | bytes | int) -> Any:
        keys = self._keys(user)
        return (await self._fleet.run(script, [Call(slot_of(keys[0]), keys, arguments)])).values[0]
