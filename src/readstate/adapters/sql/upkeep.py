"""Queries for the reconciler and the auditor: pages of everything, samples, and turns."""

from collections.abc import Sequence

from msgspec.json import Decoder

from readstate.domain.facts import Key
from readstate.domain.model import Pointer

from . import rows
from .session import SqlTopic, as_json

_pairs = Decoder(list[tuple[str, str]])


class SqlUpkeep(SqlTopic):
    async def users_after(self, user: str, limit: int) -> list[str]:
        return await self._find(rows.names, "users_after", after=user, limit=limit)

    async def count_users(self) -> int:
        return await self._number("count_users")

    async def channels_after(self, channel: str, limit: int) -> list[str]:
        return await self._find(rows.names, "channels_after", after=channel, limit=limit)

    async def count_channels(self) -> int:
        return await self._number("count_channels")

    async def read_states(self, keys: Sequence[Key]) -> dict[Key, Pointer]:
        wanted = [(channel, user) for user, channel in keys]
        found = await self._find(rows.pointers, "read_states", keys=as_json(wanted))
        return {(user, channel): pointer for channel, user, pointer in found}

    async def some_user_rooms(self, limit: int) -> list[Key]:
        return await self._find(_pairs, "some_user_rooms", limit=limit)

    async def claim_turn(self, name: str, now: int, every: int) -> bool:
        """A turn taken in the future, by a clock that is wrong, blocks no other process."""
        values = {"turn": f"turn:{name}", "now": now, "over": now - every}
        return await self._database.write(lambda session: session.value("claim_turn", **values)) is not None
